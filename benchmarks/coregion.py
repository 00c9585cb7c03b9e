"""
Loss and gradient of the exact model against GPflow's `GPR` with `Coregion`, as a ratio of one run:
`python benchmarks/coregion.py [--quick]`.

Both are the same model at the same parameters, compiled and warm; the runs alternate, and the
fastest of each side counts: the machine may be busy.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_cool import KroneckerMTGP

ROUNDS = 4
OURS_A_ROUND = 20
LENGTHSCALE = 2.0
BAR = 50.0


def problem(N: int, T: int, D: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Smooth correlated targets with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=[N, D])
    F = np.sin(X @ rng.normal(size=[D, T])) @ rng.normal(size=[T, T]) / np.sqrt(T)
    return X, F + 0.3 * rng.normal(size=[N, T])


def coregion_gpr(model: KroneckerMTGP) -> gpflow.models.GPR:
    """GPflow's model with the parameters of ours."""
    X, Y = (part.numpy() for part in model.data)
    N, T = Y.shape
    W = model.signal.weights.numpy()
    coregion = gpflow.kernels.Coregion(T, W.shape[1], active_dims=[X.shape[1]])
    coregion.W.assign(W)
    coregion.kappa.assign(np.full(T, model.signal.diagonal.numpy()))
    base = gpflow.kernels.SquaredExponential(
        lengthscales=LENGTHSCALE, active_dims=list(range(X.shape[1]))
    )
    gpflow.set_trainable(base.variance, False)  # as ours: the task covariance has the scale
    X_aug = np.hstack([np.tile(X, (T, 1)), np.repeat(np.arange(T), N)[:, None]])
    return gpflow.models.GPR(
        (X_aug, Y.reshape(-1, 1, order="F")),
        base * coregion,
        noise_variance=model.noise.diagonal.numpy(),
    )


def loss_and_gradient(model: gpflow.models.BayesianModel) -> Callable[[], Any]:
    """Compiled loss and gradient with respect to all trainable variables."""
    variables = model.trainable_variables

    @tf.function(autograph=False)
    def compute() -> Any:
        with tf.GradientTape() as tape:
            value = model.training_loss()
        return value, tape.gradient(value, variables)

    return compute


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(N: int, T: int, rank: int) -> float:
    """How many times faster ours is, after a check that the two losses are equal."""
    kernel = gpflow.kernels.SquaredExponential(lengthscales=LENGTHSCALE)
    model = KroneckerMTGP.std_mt(problem(N, T), kernel, rank=rank)
    ours, theirs = loss_and_gradient(model), loss_and_gradient(coregion_gpr(model))
    np.testing.assert_allclose(ours()[0], theirs()[0], rtol=1e-6)
    times_ours, times_theirs = [], []
    for _ in range(ROUNDS):
        times_ours += [seconds(ours) for _ in range(OURS_A_ROUND)]
        times_theirs.append(seconds(theirs))
    ratio = min(times_theirs) / min(times_ours)
    print(
        f"N={N}, T={T}: KroneckerMTGP {1000 * min(times_ours):.1f} ms, GPflow GPR with Coregion"
        f" {1000 * min(times_theirs):.0f} ms, ratio {ratio:.0f}"
    )
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    if parser.parse_args().quick:
        compare(30, 4, rank=2)
        return
    compare(50, 4, rank=2)
    ratio = compare(100, 16, rank=2)
    verdict = "met" if ratio >= BAR else "missed"
    print(f"bar of {BAR:.0f} at N=100, T=16: {verdict}")


if __name__ == "__main__":
    main()
