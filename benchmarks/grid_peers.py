"""
Other packages on the grids of benchmarks/grid.py: `python benchmarks/grid_peers.py`.

It needs `pip install ".[benchmark]"`.

* GPyTorch's exact multitask model: `MultitaskKernel` of all rows, conjugate gradients.
* The same with its `GridKernel` for the rows.
* BoTorch's `LatentKroneckerGP` over the two axes, one per task: it has no correlated tasks.

Each takes `--steps` steps of Adam. Printed are the processor's seconds per step, that is for one
loss and its gradient, on one thread, and what went wrong where one does not run. Each has a process
of its own, which is ended after `--limit` seconds and may have `--memory` gigabytes. A fit takes
dozens of steps; `benchmarks/grid.py` prints seconds of whole fits of CoolMTGP.
"""

import argparse
import multiprocessing
import resource
import time
import warnings

import gpytorch
import numpy as np
import torch
from botorch.models.latent_kronecker_gp import LatentKroneckerGP

T = 4


def field(size):
    """Four tasks that mix two smooth functions on size x size points, with noise."""
    rng = np.random.default_rng(0)
    axis = np.linspace(0.0, 10.0, size)
    lam, U = np.linalg.eigh(np.exp(-0.5 * np.square(axis[:, None] - axis)))
    root = U * np.sqrt(np.maximum(lam, 0.0))
    functions = [(root @ rng.normal(size=[size, size]) @ root.T).ravel() for _ in range(2)]
    Y = np.stack(functions, axis=1) @ rng.normal(size=[2, T])
    return torch.tensor(axis), torch.tensor(Y + 0.3 * rng.normal(size=Y.shape))


def rbf(dims):
    return gpytorch.kernels.RBFKernel(ard_num_dims=dims)


class Multitask(gpytorch.models.ExactGP):
    """A kernel over rows, and covariances of rank two between tasks."""

    def __init__(self, X, Y, rows):
        super().__init__(X, Y, gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=T))
        self.mean = gpytorch.means.MultitaskMean(gpytorch.means.ZeroMean(), num_tasks=T)
        self.covariance = gpytorch.kernels.MultitaskKernel(rows, num_tasks=T, rank=2)

    def forward(self, X):
        parts = self.mean(X), self.covariance(X)
        return gpytorch.distributions.MultitaskMultivariateNormal(*parts)


def train(model, loss, steps):
    """Seconds per step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    started = time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return (time.process_time() - started) / steps


def multitask(axis, Y, steps, on_grid):
    X = torch.cartesian_prod(axis, axis)
    rows = gpytorch.kernels.GridKernel(rbf(2), [axis, axis]) if on_grid else rbf(2)
    model = Multitask(X, Y, rows).double()
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    return train(model, lambda: -likelihood(model(X), Y), steps)


def latent_kronecker(axis, Y, steps):
    size, seconds = len(axis), 0.0
    for t in range(T):
        model = LatentKroneckerGP(axis[:, None], axis[:, None], Y[:, t].reshape(size, size))
        likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        model.train()

        def loss(model=model, likelihood=likelihood):
            return -likelihood(model(*model.train_inputs), model.train_targets)

        seconds += train(model, loss, steps)
    return seconds


PEERS = {
    "GPyTorch, exact multitask": lambda *given: multitask(*given, on_grid=False),
    "GPyTorch, multitask on GridKernel": lambda *given: multitask(*given, on_grid=True),
    "BoTorch, LatentKroneckerGP per task": latent_kronecker,
}


def tell(name, size, steps, memory, answers):
    """Send what happened to the queue `answers`."""
    limit = int(memory * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        answers.put(f"{PEERS[name](*field(size), steps):.2f} s per step")
    except (RuntimeError, MemoryError, NotImplementedError, ValueError) as error:
        answers.put(f"does not run: {type(error).__name__}: {str(error)[:100]}")


def in_process(name, size, options):
    """What a peer says, or that it was ended."""
    processes = multiprocessing.get_context("fork")
    answers = processes.SimpleQueue()
    given = (name, size, options.steps, options.memory, answers)
    process = processes.Process(target=tell, args=given)
    process.start()
    process.join(options.limit)
    if process.is_alive():
        process.kill()
        return f"not done with {options.steps} steps after {options.limit:g} s"
    return f"ended with exit code {process.exitcode}" if answers.empty() else answers.get()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=[30, 50, 100])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds by the clock")
    parser.add_argument("--memory", type=float, default=10.0, help="gigabytes")
    options = parser.parse_args()
    for size in options.sizes:
        for name in PEERS:
            said = in_process(name, size, options)
            print(f"{size**2} rows, {name}: {said}", flush=True)


if __name__ == "__main__":
    main()
