"""What `fit` needs of a model: the interfaces that models declare."""

import abc
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray

from .. import checks
from ..joint.missing import ObservedSystem
from ..joint.model import JointModel
from ..systems.features import Features
from ..systems.products import KernelMatrix
from ..systems.rows import Rows
from ..systems.spectrum import System
from .vector import lower_bound

ABOVE_FLOOR = 1.0 + 1e-6
"""sigma2 stays above this times its bound, where the transform still has an inverse."""


class Evaluation(NamedTuple):
    """A loss, its gradients by the unconstrained variables, and the terms of the objective."""

    loss: float
    gradients: list[AnyNDArray]
    terms: AnyNDArray


class Loss(abc.ABC):
    """A model's loss, evaluated at the model's present parameters."""

    parameters: list[Parameter]
    """What an optimiser must iterate over; the gradients are with respect to these."""

    @abc.abstractmethod
    def evaluate(self) -> Evaluation:
        """Loss, gradients and terms; it may set parameters that it solves for."""

    def value(self) -> float:
        """The loss alone, which may take less time."""
        return self.evaluate().loss


class ExpectationMaximisation(abc.ABC):
    """Expectation maximisation of a model's parameters."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Start from the model's present parameters."""

    @abc.abstractmethod
    def evaluate(self) -> Evaluation:
        """The loss at the present parameters, without gradients."""

    @abc.abstractmethod
    def step(self) -> None:
        """One step, which changes the model's parameters."""


class TrainableModel(JointModel):
    """A model that `fit` can train. Where targets are missing, its data must be in memory."""

    stop_training = False
    """Callbacks set this to end training after the present step."""

    observed: AnyNDArray | None = None
    """[N, T], which targets are observed; None where all are."""

    has_drawn = False
    """Whether the first draws of missing targets come from the model, which knows C already."""

    reads_chunks = False
    """Whether rows are read in chunks, and not all of them are in memory."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> int:
        """N."""

    @property
    def is_on_grid(self) -> bool:
        """Whether the kernel matrix is a Kronecker product over the axes of a grid."""
        return False

    @property
    def completions(self) -> tf.Variable | None:
        """[S, N, T], the targets with the missing ones filled in; None where none is missing."""
        return None

    @property
    @abc.abstractmethod
    def rows(self) -> Rows:
        """All the data, in chunks of rows."""

    @abc.abstractmethod
    def system(self, *, python_callback: bool = False) -> System:
        """
        What the kernel does to the rows at the present parameters.

        :param python_callback: Whether a graph may call LAPACK, see :func:`.linalg.eigh`.
        """

    @property
    @abc.abstractmethod
    def features(self) -> Features | None:
        """Features whose products are the kernel matrix; None where the matrix itself is needed."""

    def expectation_maximisation(self) -> ExpectationMaximisation:
        """Expectation maximisation, for `fit("em")`."""
        advice = (
            'train it with "profile", then refine the exact model: model.to_exact().fit("em").'
            if hasattr(self, "to_exact")
            else 'use "profile".'
        )
        raise ValueError(f'{type(self).__name__} has no optimizer="em": {advice}')

    def check_targets(self) -> None:
        """Refuse gaps in targets that were complete when the model was built."""
        Y = self.data[1]
        if self.observed is None and isinstance(Y, tf.Variable) and tf.executing_eagerly():
            checks.check_finite(Y.numpy(), "Y", "build a new model where targets are missing")

    def centred_targets(self) -> tf.Tensor:
        """[N, T], the targets minus the mean function; NaN where a target is missing."""
        raise NotImplementedError

    def centred_completions(self) -> tf.Tensor:
        """
        The targets that the objective sees, minus the mean function: [N, T], or, where some are
        missing, the completions of the last round, [S, N, T], over which the objective is a mean.
        """
        raise NotImplementedError

    def independent_completion(self) -> tf.Tensor:
        """
        [1, N, T], the missing targets as predicted by one Gaussian process per task, trained on the
        observed targets of that task.
        """
        raise NotImplementedError

    def kernel_matrix(self) -> KernelMatrix:
        """The kernel matrix of all rows, [N, N], or a Kronecker product where they are a grid."""
        raise NotImplementedError

    def observed_system(self) -> ObservedSystem:
        """The covariance of the observed targets at the present parameters."""
        raise NotImplementedError


class TrainableChain(TrainableModel):
    """A model whose objective is the chain of conditional likelihoods."""

    b: Parameter
    sigma2: Parameter
    weight_variance: Parameter | None
    learning: str
    weight_prior: str
    strategy: tf.distribute.Strategy | None = None
    """Spreads passes over the rows over devices."""

    @property
    def noise_floor(self) -> AnyNDArray:
        """[T], what sigma2 stays above."""
        bound = lower_bound(self.sigma2)
        return np.zeros(self.sigma2.shape) if bound is None else bound * ABOVE_FLOOR
