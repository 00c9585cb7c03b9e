"""
What the chain's gradient in NumPy buys, as ratios of one run: `python benchmarks/twins.py`.

An evaluation of profiled training ends with the gradient with respect to the kernel matrix. It is
computed in NumPy (`gpflow_cool.chain.terms`), and could be computed by the TensorFlow functions of
`gpflow_cool.chain.likelihood`, eager or compiled. All sides run warm, and the fastest of `REPEATS`
runs counts. Compiling happens once per fit.
"""

import time
from collections.abc import Callable

import gpflow
import numpy as np
import tensorflow as tf
from core import fastest, problem

from gpflow_cool import CoolMTGP
from gpflow_cool.chain.compression import dual_vectors
from gpflow_cool.chain.eigenbasis import KernelGradient
from gpflow_cool.chain.likelihood import (
    ChainGradient,
    block_contrasts,
    block_systems,
    chain_gradient,
    contrasts,
    solve_chain,
)
from gpflow_cool.chain.newton import solve_from
from gpflow_cool.chain.search import Box, Starts
from gpflow_cool.systems.spectrum import Spectrum, exact_spectrum
from gpflow_cool.chain.terms import kernel_gradient, task_problems
from gpflow_cool.linalg import eigh


def tensorflow_gradient(spectrum: Spectrum, learning: str) -> Callable[..., ChainGradient]:
    """The gradient at b and sigma2 by the functions of `gpflow_cool.chain.likelihood`."""

    def gradient(b: tf.Tensor, sigma2: tf.Tensor) -> ChainGradient:
        chain = solve_chain(spectrum, b, sigma2, learning)
        V, tasks = contrasts(chain.W)
        if learning == "approximate":
            systems = block_systems(spectrum, chain.d, sigma2, tf.constant(tasks))
            V, tasks = block_contrasts(chain.W, systems, tf.constant(tasks))
        return chain_gradient(spectrum, V, tasks, chain.d, b, sigma2, tf.ones_like(b))

    return gradient


def inside(gradient: KernelGradient) -> np.ndarray:
    """The gradient with respect to the kernel matrix, in the eigenbasis."""
    F = np.asarray(gradient.factors)
    return np.diag(gradient.diagonal) + F.T @ np.diag(gradient.weights) @ F


def compare(N: int, T: int, learning: str) -> None:
    """One evaluation of profiled training, and its gradient in three ways."""
    kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0)
    model = CoolMTGP(problem(N, T), kernel, learning=learning)
    profile = model.profile()
    evaluation = fastest(profile.evaluate)  # leaves b and sigma2 at their best
    spectrum = exact_spectrum(*eigh(kernel(model.data[0])), model.data[1])
    problems = task_problems(spectrum.numpy(), learning)
    present = profile.present().numpy()
    starts = Starts(np.arange(len(present)), np.log(present))
    solution = solve_from(problems, Box(starts.x, starts.x), starts)
    best = solution.parameters, solution.W, dual_vectors(problems, present, solution.W)
    b, sigma2 = tf.unstack(tf.constant(present), axis=1)
    eager = tensorflow_gradient(spectrum, learning)
    start = time.perf_counter()
    compiled = tf.function(eager, autograph=False).get_concrete_function(b, sigma2)
    compiled(b, sigma2)
    compiling = time.perf_counter() - start
    one, other = (inside(g) for g in (kernel_gradient(problems, *best), eager(b, sigma2).kernel))
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * np.max(np.abs(one)))
    numpy = fastest(lambda: kernel_gradient(problems, *best))
    others = [fastest(lambda way=way: way(b, sigma2)) for way in (eager, compiled)]
    slower = [1.0 + (other - numpy) / evaluation for other in others]
    print(
        f"N={N}, T={T}, {learning}: an evaluation takes {1e3 * evaluation:.1f} ms,"
        f" {1e3 * numpy:.2f} of them the gradient in NumPy."
        f" Eager {1e3 * others[0]:.2f} ms, evaluation times {slower[0]:.2f};"
        f" compiled {1e3 * others[1]:.2f} ms, times {slower[1]:.2f},"
        f" and compiling takes as long as {compiling / evaluation:.1f} evaluations"
    )


def main() -> None:
    for N in (200, 800):
        for T in (4, 16):
            for learning in ("hierarchical", "approximate"):
                compare(N, T, learning)


if __name__ == "__main__":
    main()
