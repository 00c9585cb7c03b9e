"""
The cost of many tasks, as ratios of one run: `python benchmarks/tasks.py [--quick] [--rows N]`.

CPU seconds to fit and to average over eight orders of the tasks, with the slope between one number
of tasks and the next: how the logarithm of the time grows with that of T. `--peers` instead
measures GPyTorch's multitask model, with full task noise and with one noise per task, 50 steps of
Adam, and scikit-learn's independent Gaussian processes, which may be in an environment of their
own. Each result is a line of JSON in the file of `--out`, from which `--plot` draws both.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TASKS = (2, 16, 32, 50, 100, 200, 400, 1000)
REPEATS = 2
ADAM_STEPS = 50
LONGEST = 60.0
"""A method that took longer than so many seconds is not tried with more tasks."""


def standardised(N: int, T: int, D: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Smooth correlated targets with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=[N, D])
    F = np.sin(X @ rng.normal(size=[D, T])) @ rng.normal(size=[T, T]) / np.sqrt(T)
    Y = F + 0.3 * rng.normal(size=[N, T])
    return X, (Y - Y.mean(axis=0)) / Y.std(axis=0)


def seconds(function: Callable[[], Any]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def fit_and_average(N: int, T: int) -> dict[str, float]:
    """CPU seconds to fit, tracing included, and to average over orders."""
    import gpflow

    from gpflow_cool import CoolMTGP

    model = CoolMTGP(standardised(N, T), gpflow.kernels.SquaredExponential(lengthscales=2.0))
    fit = seconds(lambda: model.fit(verbose=0))
    return {"fit": fit, "eight orders": seconds(lambda: model.average_over_orders(8, seed=0))}


def fit_gpytorch(N: int, T: int, rank: int) -> float:
    """CPU seconds that GPyTorch's multitask model takes; task noise of full rank, or of rank 0."""
    import gpytorch
    import torch

    torch.set_num_threads(1)
    X, Y = (torch.tensor(part) for part in standardised(N, T))
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=T, rank=rank)

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


def fit_sklearn(N: int, T: int) -> float:
    """CPU seconds of scikit-learn's independent Gaussian processes, one per task."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    X, Y = standardised(N, T)
    kernel = ConstantKernel() * RBF(2.0) + WhiteKernel(0.1)
    return seconds(lambda: [GaussianProcessRegressor(kernel).fit(X, y) for y in Y.T])


PEERS: dict[str, Callable[[int, int], float]] = {
    "GPyTorch, full task noise": lambda N, T: fit_gpytorch(N, T, T),
    "GPyTorch, one noise per task": lambda N, T: fit_gpytorch(N, T, 0),
    "scikit-learn, independent": fit_sklearn,
}


def record(out: Path | None, N: int, T: int, times: dict[str, float]) -> None:
    line = {"N": N, "T": T, **{name: round(value, 3) for name, value in times.items()}}
    print(json.dumps(line), flush=True)
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")


def measure_ours(N: int, tasks: tuple[int, ...], out: Path | None) -> None:
    earlier: tuple[int, float] | None = None
    fit_and_average(20, 2)  # what TensorFlow and SciPy load once
    for T in tasks:
        runs = [fit_and_average(N, T) for _ in range(REPEATS if T <= 400 else 1)]
        record(out, N, T, best := {name: min(run[name] for run in runs) for name in runs[0]})
        if earlier is not None:
            slope = np.log(best["fit"] / earlier[1]) / np.log(T / earlier[0])
            print(
                f"  slope {slope:.1f}; eight orders {best['eight orders'] / best['fit']:.2f} fits"
            )
        earlier = T, best["fit"]


def measure_peers(N: int, tasks: tuple[int, ...], out: Path | None) -> None:
    left = dict(PEERS)
    for T in tasks:
        times = {name: fit(N, T) for name, fit in left.items()}
        record(out, N, T, times)
        left = {name: left[name] for name, value in times.items() if value < LONGEST}


def plot(out: Path, picture: Path) -> None:
    """The times against the number of tasks, both logarithmic; slopes in the legend."""
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for line in out.read_text().splitlines()]
    rows = sorted({line["N"] for line in lines})
    methods = list(dict.fromkeys(key for line in lines for key in line if key not in ("N", "T")))
    figure, axes = plt.subplots(1, len(rows), figsize=(5 * len(rows), 5), squeeze=False)
    for axis, N in zip(axes[0], rows, strict=True):
        own = [line for line in lines if line["N"] == N]
        for number, name in enumerate(methods):
            times = sorted((x["T"], x[name]) for x in own if name in x)
            if len(times) < 2:
                continue
            T, time = np.array(times).T
            slope = np.polyfit(np.log(T[-3:]), np.log(time[-3:]), 1)[0]
            axis.loglog(T, time, "o-", color=f"C{number}", label=f"{name} (slope {slope:.1f})")
        axis.set(title=f"{N} rows", xlabel="tasks", ylabel="CPU seconds")
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few tasks")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--peers", action="store_true", help="GPyTorch and scikit-learn instead")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, help="draw the file of --out, and measure nothing")
    options = parser.parse_args()
    if options.plot is not None:
        plot(options.out, options.plot)
        return
    measure = measure_peers if options.peers else measure_ours
    measure(options.rows, TASKS[:2] if options.quick else TASKS, options.out)


if __name__ == "__main__":
    main()
