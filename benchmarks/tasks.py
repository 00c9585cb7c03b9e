"""
The cost of many tasks, as ratios of one run: `python benchmarks/tasks.py [--quick] [--rows N]`.

Seconds to fit and to average over eight orders of the tasks, with the slope between one number of
tasks and the next: how the logarithm of the time grows with that of T. Where GPyTorch is installed,
its multitask model with full task noise runs beside ours, 50 steps of Adam.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
from core import problem

from gpflow_cool import CoolMTGP

TASKS = (2, 16, 50, 100, 200, 400)
REPEATS = 2
ADAM_STEPS = 50


def standardised(N: int, T: int) -> tuple[np.ndarray, np.ndarray]:
    X, Y = problem(N, T)
    return X, (Y - Y.mean(axis=0)) / Y.std(axis=0)


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def fit_and_average(N: int, T: int) -> tuple[float, float]:
    """Seconds to fit, tracing included, and to average over orders."""
    model = CoolMTGP(standardised(N, T), gpflow.kernels.SquaredExponential(lengthscales=2.0))
    return (
        seconds(lambda: model.fit(verbose=0)),
        seconds(lambda: model.average_over_orders(8, seed=0)),
    )


def fit_gpytorch(N: int, T: int) -> float:
    """Seconds that GPyTorch's multitask model with full task noise takes."""
    import gpytorch
    import torch

    X, Y = (torch.tensor(part) for part in standardised(N, T))
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=T, rank=T)

    class Model(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(X, Y, likelihood)
            means = gpytorch.means.ConstantMean()
            self.mean_module = gpytorch.means.MultitaskMean(means, num_tasks=T)
            kernel = gpytorch.kernels.RBFKernel()
            self.covar_module = gpytorch.kernels.MultitaskKernel(kernel, num_tasks=T, rank=T)

        def forward(self, x: Any) -> Any:
            mean, covariance = self.mean_module(x), self.covar_module(x)
            return gpytorch.distributions.MultitaskMultivariateNormal(mean, covariance)

    model = Model().double()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood.double(), model)

    def train() -> None:
        for _ in range(ADAM_STEPS):
            optimizer.zero_grad()
            (-evidence(model(X), Y)).backward()
            optimizer.step()

    return seconds(train)


def slope(earlier: tuple[int, float] | None, T: int, time: float) -> str:
    """How the logarithm of the time grew with that of T."""
    if earlier is None:
        return ""
    return f", slope {np.log(time / earlier[1]) / np.log(T / earlier[0]):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few tasks")
    parser.add_argument("--rows", type=int, default=200)
    options = parser.parse_args()
    has_gpytorch = importlib.util.find_spec("gpytorch") is not None
    earlier = None
    for T in TASKS[:2] if options.quick else TASKS:
        runs = [fit_and_average(options.rows, T) for _ in range(REPEATS)]
        fit, average = (min(times) for times in zip(*runs, strict=True))
        print(
            f"N={options.rows}, T={T}: fit {fit:.2f} s{slope(earlier, T, fit)};"
            f" eight orders {average:.2f} s, {average / fit:.2f} times the fit"
        )
        if has_gpytorch:
            other = fit_gpytorch(options.rows, T)
            print(f"  GPyTorch {other:.2f} s, {other / fit:.1f} times ours")
        earlier = T, fit


if __name__ == "__main__":
    main()
