"""
The model's own cost, as ratios of one run: `python benchmarks/core.py [--quick] [--device GPU:0]`.

Each side runs warm, `REPEATS` times, and its fastest time counts: the machine may be busy.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_cool import CoolMTGP
from gpflow_cool.training.losses import loss_of

REPEATS = 5


def fastest(function: Callable[[], Any]) -> float:
    """Fastest of some warm runs, in seconds."""
    function()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def problem(N: int, T: int, D: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Smooth correlated targets with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=[N, D])
    F = np.sin(X @ rng.normal(size=[D, T])) @ rng.normal(size=[T, T]) / np.sqrt(T)
    return X, F + 0.3 * rng.normal(size=[N, T])


def loss_and_gradient(model: gpflow.models.BayesianModel, loss: Callable[[], tf.Tensor]) -> Any:
    """Compiled loss and gradient with respect to all trainable variables."""
    variables = model.trainable_variables

    @tf.function(autograph=False)
    def compute() -> Any:
        with tf.GradientTape() as tape:
            value = loss()
        return value, tape.gradient(value, variables)

    return compute


def batched_cholesky_loss(model: CoolMTGP) -> tf.Tensor:
    """The approximate objective as one would write it first: T matrices N x N, autodiff."""
    X, Y = model.data
    N, T = Y.shape
    earlier = np.tril(np.ones([T, T]), -1)
    scaled = Y / tf.sqrt(tf.reduce_mean(tf.square(Y), axis=0))
    weights = tf.sqrt(model.weight_variance * model.sigma2)
    masked = weights[:, None, None] * earlier[:, None, :] * scaled  # [T, N, T], columns before t
    S = model.b[:, None, None] * model.kernel(X)
    S += tf.matmul(masked, masked, transpose_b=True)
    S += model.sigma2[:, None, None] * tf.eye(N, dtype=Y.dtype)
    L = tf.linalg.cholesky(S)
    z = tf.linalg.triangular_solve(L, tf.transpose(Y)[..., None])
    log_det = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L)))
    return 0.5 * (tf.reduce_sum(tf.square(z)) + log_det + N * T * np.log(2.0 * np.pi))


def compare_objective(N: int, T: int) -> None:
    """Loss and gradient against batched Cholesky, and against what LAPACK needs at least."""
    X, Y = problem(N, T)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0)
    K = kernel(X).numpy()

    def floor() -> None:
        _, U = np.linalg.eigh(K)
        U @ K @ U

    lapack = fastest(floor)
    print(f"N={N}, T={T}: LAPACK eigh and two products {lapack:.3f} s")
    for learning in ("hierarchical", "approximate"):
        model = CoolMTGP((X, Y), kernel, learning=learning, engine="spectral")
        given = fastest(loss_and_gradient(model, model.training_loss))
        solved = fastest(loss_of(model, profile=True).evaluate)
        print(f"  {learning:12s} at given b and sigma2 {given:.3f} s, {given / lapack:.2f} times")
        print(f"  {learning:12s} at the best ones {solved:.3f} s, {solved / lapack:.2f} times")
    reference = loss_and_gradient(model, lambda: batched_cholesky_loss(model))
    objective = model.maximum_log_likelihood_objective()
    np.testing.assert_allclose(-reference()[0], objective, rtol=1e-8)
    baseline = fastest(reference)
    print(f"  batched Cholesky, autodiff: {baseline:.3f} s, ratio {baseline / given:.1f}")


def compare_tasks(N: int, few: int, many: int) -> None:
    """What more tasks cost."""
    for learning in ("hierarchical", "approximate"):
        times = []
        for T in (few, many):
            kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0)
            model = CoolMTGP(problem(N, T), kernel, learning=learning, engine="spectral")
            times.append(fastest(loss_and_gradient(model, model.training_loss)))
        print(f"N={N}, T={few} to {many}, {learning}: {times[1] / times[0]:.2f} times the cost")


def dense_prediction(model: CoolMTGP, Xnew: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and T x T covariances by dense Kronecker algebra, factorisation included."""
    X, Y = (part.numpy() for part in model.data)
    C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()
    T, M = len(C), len(Xnew)
    S = np.kron(C, model.kernel(X).numpy()) + np.kron(Sigma, np.eye(len(X)))
    cross = np.kron(C, model.kernel(X, Xnew).numpy())  # [N T, M T], task-major
    L = np.linalg.cholesky(S)
    half = np.linalg.solve(L, np.hstack([cross, Y.reshape(-1, 1, order="F")]))
    mean = (half[:, :-1].T @ half[:, -1]).reshape(T, M).T
    half = half[:, :-1].reshape(-1, T, M)
    prior = C[None] * model.kernel(Xnew, full_cov=False).numpy()[:, None, None]
    return mean, prior - np.einsum("ntm,num->mtu", half, half)


def compare_prediction(N: int, T: int, M: int, N_dense: int) -> None:
    """Cached prediction of mean and T x T covariance, against dense algebra where that fits."""
    rng = np.random.default_rng(1)
    Xnew = rng.normal(size=[M, 5])
    for rows in (N, N_dense):
        kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0)
        model = CoolMTGP(problem(rows, T), kernel)
        posterior = model.posterior()
        predict = tf.function(
            lambda posterior=posterior: posterior.predict_f(Xnew, full_output_cov=True)
        )
        seconds = fastest(predict)
        print(f"N={rows}, T={T}: cached prediction of {M} points {1000 * seconds:.1f} ms")
    start = time.perf_counter()
    mean, cov = dense_prediction(model, Xnew)
    dense = time.perf_counter() - start
    np.testing.assert_allclose(predict()[1], cov, atol=1e-6)
    print(f"  dense Kronecker algebra {dense:.2f} s, ratio {dense / seconds:.0f}")


def memory_status(name: str) -> int:
    """A field of the process's status on Linux, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}")


def peak_memory(N: int, T: int, learning: str) -> None:
    """Peak memory of an evaluation above what was there before, in matrices of N x N floats."""

    def evaluate(rows: int) -> None:
        kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0)
        model = CoolMTGP(problem(rows, T), kernel, learning=learning, engine="spectral")
        loss_and_gradient(model, model.training_loss)()

    evaluate(50)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = memory_status("VmRSS")
    evaluate(N)
    extra = memory_status("VmHWM") - before
    print(f"N={N}, T={T}, {learning}: peak memory {extra / (8 * N * N):.1f} matrices of N x N")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--memory", nargs=3, help="N T learning: measure memory only")
    parser.add_argument("--device", default="CPU:0", help="where to compute, for example GPU:0")
    options = parser.parse_args()
    if not tf.config.list_logical_devices(options.device.partition(":")[0]):
        parser.error(f"TensorFlow sees no {options.device}: install it with support for it.")
    with tf.device(options.device):
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Everything, or memory alone, on the chosen device."""
    if options.memory:
        peak_memory(int(options.memory[0]), int(options.memory[1]), options.memory[2])
        return
    N = 100 if options.quick else 800
    compare_objective(N, 16)
    for T in (1, 2, 3, 4):
        compare_objective(N, T)
    compare_tasks(N, 4, 32)
    compare_prediction(N, 16, 1000, 50 if options.quick else 100)
    for learning in ("hierarchical", "approximate"):  # a fresh process, so that a peak is its own
        command = [sys.executable, __file__, "--memory", str(2 * N), "16", learning]
        command += ["--device", options.device]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
