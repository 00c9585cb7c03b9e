"""BoTorch's Kronecker model with BoTorch's acquisition function."""

import warnings

import numpy as np
import torch
from botorch.acquisition.multi_objective.logei import qLogExpectedHypervolumeImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import KroneckerMultiTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions import FastNondominatedPartitioning
from gpytorch.mlls import ExactMarginalLogLikelihood

from .problems import Problem

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
SAMPLES = 64


class BotorchLoop:
    """Ask for points, and tell what was observed there. BoTorch maximises: signs are turned."""

    def __init__(
        self, problem: Problem, batch: int, X: np.ndarray, Y: np.ndarray, seed: int
    ) -> None:
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        self._problem, self._batch = problem, batch
        self._X, self._Y = torch.tensor(X), -torch.tensor(Y)
        self._train()

    def _train(self) -> None:
        self._model = KroneckerMultiTaskGP(
            self._X, self._Y, likelihood_rank=2, outcome_transform=Standardize(2)
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(self._model.likelihood, self._model))

    def ask(self) -> np.ndarray:
        reference = -torch.tensor(self._problem.reference)
        with torch.no_grad():
            mean = self._model.posterior(self._X).mean
        acquisition = qLogExpectedHypervolumeImprovement(
            model=self._model,
            ref_point=reference,
            partitioning=FastNondominatedPartitioning(ref_point=reference, Y=mean),
            sampler=SobolQMCNormalSampler(torch.Size([SAMPLES])),
        )
        bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
        points, _ = optimize_acqf(
            acquisition, bounds, q=self._batch, num_restarts=4, raw_samples=256, sequential=True
        )
        return points.detach().numpy()

    def tell(self, X: np.ndarray, Y: np.ndarray) -> None:
        self._X = torch.cat([self._X, torch.tensor(X)])
        self._Y = torch.cat([self._Y, -torch.tensor(Y)])
        self._train()

    def means(self, X: np.ndarray) -> np.ndarray:
        """[M, 2], the posterior means of both objectives."""
        with torch.no_grad():
            return -self._model.posterior(torch.tensor(X)).mean.numpy()
