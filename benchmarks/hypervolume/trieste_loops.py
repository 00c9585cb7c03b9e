"""Loops of Trieste: the same acquisition functions over two models."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gpflow
import numpy as np
import scipy.optimize
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.optimizers import Scipy
from gpflow.utilities import multiple_assign, read_values
from trieste.acquisition.function import (
    BatchMonteCarloExpectedHypervolumeImprovement,
    ExpectedHypervolumeImprovement,
)
from trieste.acquisition.optimizer import generate_continuous_optimizer
from trieste.acquisition.rule import EfficientGlobalOptimization
from trieste.ask_tell_optimization import AskTellOptimizer
from trieste.data import Dataset
from trieste.models.gpflow import GaussianProcessRegression, build_gpr
from trieste.models.gpflow.utils import randomize_hyperparameters, squeeze_hyperparameters
from trieste.models.interfaces import TrainablePredictJointReparamModelStack
from trieste.space import Box

from gpflow_cool import CoolMTGP
from gpflow_cool.trieste import MultitaskRegression

from .problems import Problem

SPACE = Box([0.0, 0.0], [1.0, 1.0])
LENGTHSCALE = 0.2 * np.sqrt(2.0)
"""The start and the median of the prior of Trieste's own builder."""

SAMPLES = 32
"""Draws of the batch acquisition function."""


def ours(data: Dataset) -> MultitaskRegression:
    """`CoolMTGP` with the kernel, the prior of lengthscales and the mean of Trieste's builder."""
    kernel = gpflow.kernels.Matern52(lengthscales=[LENGTHSCALE] * 2)
    kernel.lengthscales.prior = tfp.distributions.LogNormal(np.log(LENGTHSCALE), np.float64(1.0))
    mean = gpflow.mean_functions.Constant(np.mean(data.observations, axis=0))
    return MultitaskRegression(CoolMTGP(data.astuple(), kernel, mean_function=mean))


def stack(data: Dataset, regression: type[GaussianProcessRegression]) -> Any:
    """One Gaussian process per objective, as Trieste builds them, with noise that is trained."""
    models = []
    for t in range(2):
        own = Dataset(data.query_points, data.observations[:, t : t + 1])
        model = build_gpr(own, SPACE, likelihood_variance=0.01, trainable_likelihood=True)
        models.append((regression(model), 1))
    return TrainablePredictJointReparamModelStack(*models)


class KeptGraphs(GaussianProcessRegression):
    """
    The same training as Trieste's, but compiled once for all steps.

    Trieste compiles loss and gradient anew at each step, which takes most of its time. This class
    makes a study of many runs short; `independent-trieste` is what a user has, for its seconds.
    """

    _graphs: tuple[Any, Any] | None = None

    def _compiled(self) -> tuple[Any, Any]:
        """The loss at random parameters, and loss and gradient at the present ones."""
        if self._graphs is None:
            variables = self.model.trainable_variables

            def random_loss() -> tf.Tensor:
                randomize_hyperparameters(self.model)
                return self.model.training_loss()

            def loss_and_gradient() -> tuple[tf.Tensor, list[tf.Tensor]]:
                with tf.GradientTape() as tape:
                    loss = self.model.training_loss()
                return loss, tape.gradient(loss, variables)

            self._graphs = tf.function(random_loss), tf.function(loss_and_gradient)
        return self._graphs

    def find_best_model_initialization(self, num_kernel_samples: int) -> None:
        squeeze_hyperparameters(self.model)
        best, values = self.model.training_loss(), read_values(self.model)
        for _ in range(num_kernel_samples):
            with suppress(tf.errors.InvalidArgumentError):
                loss = self._compiled()[0]()
                if loss < best:
                    best, values = loss, read_values(self.model)
        multiple_assign(self.model, values)

    def optimize_encoded(self, dataset: Dataset) -> Any:
        self.find_best_model_initialization(10 * 3)  # ten for each of three parameters with a prior
        variables, (_, evaluate) = self.model.trainable_variables, self._compiled()

        def objective(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            Scipy.assign_tensors(variables, Scipy.unpack_tensors(variables, x))
            loss, gradient = evaluate()
            return loss.numpy(), Scipy.pack_tensors(gradient).numpy()

        start = Scipy.initial_parameters(variables).numpy()
        result = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B")
        Scipy.assign_tensors(variables, Scipy.unpack_tensors(variables, result.x))
        self.update_posterior_cache()
        return result


MODELS: dict[str, Callable[[Dataset], Any]] = {
    "ours": ours,
    "independent": lambda data: stack(data, KeptGraphs),
    "independent-trieste": lambda data: stack(data, GaussianProcessRegression),
}


def rule(problem: Problem, batch: int) -> EfficientGlobalOptimization[Any, Any]:
    """Expected improvement of the hypervolume: exact for one point, by draws for a batch."""
    points, runs = (1000, 4) if batch == 1 else (300, 2)  # a batch has four times the inputs
    search = generate_continuous_optimizer(points, runs)
    reference = tf.constant(problem.reference)
    if batch == 1:
        return EfficientGlobalOptimization(
            ExpectedHypervolumeImprovement(reference), optimizer=search
        )
    builder = BatchMonteCarloExpectedHypervolumeImprovement(SAMPLES, reference)
    return EfficientGlobalOptimization(builder, optimizer=search, num_query_points=batch)


KEPT: dict[tuple[str, str, int], tuple[Any, Any]] = {}
"""Models and rules by model, problem and batch: their graphs serve for all seeds."""


def inner_models(model: Any) -> list[gpflow.Module]:
    """The models of GPflow inside one of Trieste's."""
    parts = getattr(model, "_models", [model])
    return [part.model for part in parts]


class TriesteLoop:
    """Ask for points, and tell what was observed there."""

    def __init__(
        self, model: str, problem: Problem, batch: int, X: np.ndarray, Y: np.ndarray, seed: int
    ) -> None:
        np.random.seed(seed)
        tf.random.set_seed(seed)
        data = Dataset(tf.constant(X), tf.constant(Y))
        fresh = MODELS[model](data)
        made, chosen = KEPT.setdefault((model, problem.name, batch), (fresh, rule(problem, batch)))
        for inner, new in zip(inner_models(made), inner_models(fresh), strict=True):
            multiple_assign(inner, read_values(new))
        self._loop = AskTellOptimizer(SPACE, data, made, chosen)

    def ask(self) -> np.ndarray:
        return self._loop.ask().numpy()

    def tell(self, X: np.ndarray, Y: np.ndarray) -> None:
        self._loop.tell(Dataset(tf.constant(X), tf.constant(Y)))

    def means(self, X: np.ndarray) -> np.ndarray:
        """[M, 2], the posterior means of both objectives."""
        return self._loop.model.predict(tf.constant(X))[0].numpy()
