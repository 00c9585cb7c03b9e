"""
The objective of a kernel matrix, with a gradient written by hand, by one of two engines.

The spectral engine needs one eigendecomposition for all tasks, the Cholesky engine one Cholesky
factorisation per task.
"""

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType

from ..graphs import unconverted
from ..linalg import has_gpu
from .eigenbasis import leave_eigenbasis
from .likelihood import (
    block_contrasts,
    chain_gradient,
    contrasts,
    log_likelihood_terms,
    solve_chain,
    solve_task_systems,
    sum_over_contrasts,
)
from .products import Eigenvectors, KernelMatrix, decompose, kernel_tensors, with_tensors
from .spectrum import Spectrum, exact_spectrum

ENGINES = ("auto", "spectral", "cholesky", "grid")


@unconverted
@check_shapes("Y: [copies..., N, T]", "b: [T]", "sigma2: [T]", "return: [T]")
def conditional_log_likelihoods(
    K: KernelMatrix,
    Y: TensorType,
    b: TensorType,
    sigma2: TensorType,
    *,
    learning: str,
    engine: str,
) -> tf.Tensor:
    """
    The T terms of the objective for a kernel matrix, with a gradient written by hand.

    :param K: [N, N], or a Kronecker product for the spectral engine.
    :param Y: The targets; or S completions of them, for the mean of the hierarchical terms over
        completions with the weights between tasks as parameters, by the spectral engine.
    :param learning: "hierarchical" or "approximate".
    :param engine: "spectral" or "cholesky".
    """

    @tf.custom_gradient
    def terms(Y: tf.Tensor, b: tf.Tensor, sigma2: tf.Tensor, *tensors: tf.Tensor):  # type: ignore[no-untyped-def]
        if engine == "cholesky":
            return cholesky_terms(tensors[0], Y, b, sigma2, learning)
        lam, U = decompose(with_tensors(K, tensors), python_callback=True)
        return spectral_terms(exact_spectrum(lam, U, Y), U, Y, b, sigma2, learning)

    arguments = (tf.convert_to_tensor(value) for value in (Y, b, sigma2))
    return terms(*arguments, *kernel_tensors(K))


def spectral_terms(  # type: ignore[no-untyped-def]
    spectrum: Spectrum,
    U: Eigenvectors,
    Y: tf.Tensor,
    b: tf.Tensor,
    sigma2: tf.Tensor,
    learning: str,
):
    """The terms, and a function for their gradient, from the eigenvectors U of K."""
    dtype = Y.dtype
    b, sigma2 = tf.cast(b, tf.float64), tf.cast(sigma2, tf.float64)
    chain = solve_chain(spectrum, b, sigma2, learning)

    def gradient(weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        weights = tf.cast(weights, tf.float64)

        def part(V: tf.Tensor, tasks: TensorType, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
            g = chain_gradient(spectrum, V, tasks, chain.d, b, sigma2, weights)
            by_tasks = (tf.cast(part, dtype) for part in (g.b, g.sigma2))
            *by_kernel, by_Y = leave_eigenbasis(g.kernel, U, Y)
            return by_Y, *by_tasks, *by_kernel

        return sum_over_contrasts(part, spectrum, sigma2, chain.W, chain.d, learning, weights)

    return tf.cast(chain.terms, dtype), gradient


def cholesky_terms(K: tf.Tensor, Y: tf.Tensor, b: tf.Tensor, sigma2: tf.Tensor, learning: str):  # type: ignore[no-untyped-def]
    """The terms, and a function for their gradient, from one Cholesky factorisation per task."""
    dtype, num_tasks = Y.dtype, Y.shape[1]
    num_rows = tf.cast(tf.shape(Y)[0], tf.float64)
    factors = [task_factor(K, b[t], sigma2[t]) for t in range(num_tasks)]
    Yw = [tf.cast(tf.linalg.triangular_solve(L, Y), tf.float64) for L in factors]
    G, tasks = tf.stack([tf.matmul(X, X, transpose_a=True) for X in Yw]), tf.range(num_tasks)
    systems = solve_task_systems(G, tasks)
    residual_map = np.eye(num_tasks) - systems.W
    E = [tf.linalg.matvec(X, residual_map[t]) for t, X in enumerate(Yw)]
    quadratic = tf.stack([tf.reduce_sum(tf.square(e)) for e in E])
    log_det_x = tf.stack(
        [2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L))) for L in factors]
    )
    terms = log_likelihood_terms(
        quadratic, tf.cast(log_det_x, tf.float64), systems.W, systems.log_det, num_rows, learning
    )

    def gradient(weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        gK, gY = tf.zeros_like(K), tf.zeros_like(Y)
        gb, gs = [], []
        V, owners = (
            contrasts(systems.W)
            if learning == "hierarchical"
            else block_contrasts(systems.W, systems, tasks)
        )
        eye = tf.eye(tf.shape(K)[0], dtype=dtype)
        for t, L in enumerate(factors):
            v = tf.boolean_mask(V, tf.equal(owners, t))
            Yv = tf.cast(tf.matmul(Yw[t], v, transpose_b=True), dtype)
            alpha = tf.linalg.triangular_solve(L, Yv, adjoint=True)  # [N, V_t]
            S = tf.matmul(alpha, alpha, transpose_b=True) - tf.linalg.cholesky_solve(L, eye)
            gY -= weights[t] * tf.matmul(alpha, tf.cast(v, dtype))
            gK += (0.5 * weights[t] * b[t]) * S
            gb.append(0.5 * weights[t] * tf.reduce_sum(S * K))
            gs.append(0.5 * weights[t] * tf.linalg.trace(S))
        return gY, tf.stack(gb), tf.stack(gs), gK

    return tf.cast(terms, dtype), gradient


def task_factor(K: tf.Tensor, b: tf.Tensor, sigma2: tf.Tensor) -> tf.Tensor:
    """
    The Cholesky factor of b K + sigma2 I. Where sigma2 is lost in the rounding of b K, there may be
    none: then that rounding is added to the diagonal.
    """
    diagonal = b * tf.linalg.diag_part(K)
    rounding = np.finfo(K.dtype.as_numpy_dtype).eps * tf.cast(tf.shape(K)[0], K.dtype) * diagonal
    S = tf.linalg.set_diag(b * K, diagonal + sigma2)
    L = tf.linalg.cholesky(S)
    more = tf.linalg.set_diag(S, diagonal + sigma2 + rounding)
    found = tf.reduce_all(tf.math.is_finite(L))
    return tf.cond(found, lambda: L, lambda: tf.linalg.cholesky(more))  # no gradient passes here


def choose_engine(num_tasks: int) -> str:
    """
    The engine that "auto" stands for: Cholesky on a GPU and for up to two tasks, else spectral.

    On a GPU eigendecompositions are slow. On a CPU, loss and gradient at N=800 in seconds of one
    run of `benchmarks/core.py` on two cores, hierarchical / approximate; the ratio hardly depends
    on N, because both sides cost O(N^3):

    ========  ===========  ===========  ===========  ===========  ===========
    engine    T=1          T=2          T=3          T=4          T=16
    ========  ===========  ===========  ===========  ===========  ===========
    spectral  .106 / .113  .083 / .106  .110 / .136  .101 / .127  .116 / .152
    cholesky  .054 / .052  .065 / .068  .102 / .120  .126 / .137  .474 / .414
    ========  ===========  ===========  ===========  ===========  ===========
    """
    return "cholesky" if has_gpu() or num_tasks <= 2 else "spectral"
