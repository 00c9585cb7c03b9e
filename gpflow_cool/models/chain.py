"""What the two models of the chain share: their parameters, and the C and Sigma recovered."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import Parameter, set_trainable
from gpflow.base import TensorData
from gpflow.config import default_float

from .. import checks
from ..chain.recovery import CORRELATIONS, MultitaskParameters, Recovered, recover
from ..chain.terms import LEARNING, WEIGHT_PRIORS, Chain, conditional_log_likelihoods
from ..joint.kronecker import TaskBasis, chain_task_basis
from ..saving.models import Document, Given
from ..saving.modules import Reader, Writer
from ..systems.spectrum import System
from ..training.model import TrainableChain
from .base import MultitaskModel

SPREAD = 3.0
"""Of log lambda in its prior: two deviations are a factor of 400 either way."""

LEAST = 1e-8
"""Of lambda: with 30 rows and four tasks terms were wrong by 4e-7 there, and by 4e-3 at 1e-12."""


def check_chain_options(learning: Any, weight_prior: Any, weight_variance: Any) -> None:
    """Raise unless the options of a chain make sense."""
    checks.option(learning, "learning", LEARNING)
    checks.option(weight_prior, "weight_prior", WEIGHT_PRIORS)
    if weight_variance is None:
        return
    if weight_prior == "unit":
        raise ValueError(
            'weight_variance goes with weight_prior="scaled". With "unit" the weights between'
            " tasks have variance 1, as in the paper: leave one of the two out."
        )
    value = np.asarray(weight_variance)
    if value.shape != () or value.dtype.kind not in "iuf" or not LEAST <= value < np.inf:
        raise ValueError(
            f"weight_variance={weight_variance!r} must be one number of at least {LEAST:g}: the"
            " prior variance of the weights between tasks, relative to the noise. By default it"
            f" starts at 1; {LEAST:g} is as good as no weights."
        )


def weight_variance_parameter(value: TensorData | None, num_tasks: int, learning: str) -> Parameter:
    r"""
    lambda, with a log-normal prior whose mode is 1.

    Its density is proportional to :math:`N(\log \lambda \,|\, 0, 3^2)`. (Were that the density of
    log lambda, the most likely lambda before any data would be :math:`e^{-9}`: no weights.) It is
    not trained with one task, which has no weights, nor with hierarchical learning, which does not
    charge for them: nothing but the prior would hold it.
    """
    number = default_float()
    return Parameter(
        np.asarray(1.0 if value is None else value, number),
        transform=tfp.bijectors.Exp(),
        prior=tfp.distributions.LogNormal(number(SPREAD**2), number(SPREAD)),
        trainable=num_tasks > 1 and learning == "approximate",
    )


class ChainModel(MultitaskModel, TrainableChain):
    """Base of the models that learn one b and one sigma2 per task, and recover C and Sigma."""

    saved_options: tuple[str, ...]
    """Arguments of the constructor that are saved, each an attribute of the model as well."""

    @property
    def objective_term_names(self) -> tuple[str, ...]:
        return self.task_names

    def objective_terms(self) -> tf.Tensor:
        return self.conditional_log_likelihoods()

    def conditional_log_likelihoods(self) -> tf.Tensor:
        """The objective's terms, [T]: each task's likelihood given the tasks before it."""
        terms = conditional_log_likelihoods(
            self.system(python_callback=True), self.chain, self.learning
        )
        return tf.cast(terms, self.dtype)

    @property
    def chain(self) -> Chain:
        """The present parameters, in float64."""
        return Chain(
            tf.cast(self.b, tf.float64),
            tf.cast(self.sigma2, tf.float64),
            None if self.weight_variance is None else tf.cast(self.weight_variance, tf.float64),
        )

    def multitask_parameters(
        self, correlation: str | None = None, *, num_samples: int = 100, seed: int | None = None
    ) -> MultitaskParameters:
        """
        The joint model's B, C, Sigma and W, each [T, T], at the present parameters.

        :param correlation: "mean" for means over what the weights between tasks may be; "map" for
            these weights at their maximum, as in the paper; "monte_carlo" as "mean", but with
            correlations of the tasks' input weights as means over draws. By default "mean", and
            "map" with the paper's prior of the weights, `weight_prior="unit"`.
        :param num_samples: Number of draws.
        :param seed: Seed of the draws.
        """
        if correlation is not None:
            checks.option(correlation, "correlation", CORRELATIONS)
        checks.positive_integer(num_samples, "num_samples")
        found = self._recover(self.system(), correlation, num_samples, checks.seed(seed))
        return MultitaskParameters(*(tf.cast(part, self.dtype) for part in found.matrices()))

    def task_covariance(self) -> tf.Tensor:
        """C, [T, T], recovered at the present parameters."""
        return self.multitask_parameters().C

    def noise_covariance(self) -> tf.Tensor:
        """Sigma, [T, T], recovered at the present parameters."""
        return self.multitask_parameters().Sigma

    def joint_basis(self, system: System) -> TaskBasis:
        found = self._recover(system)
        return chain_task_basis(found.W, found.innovations, found.noise)

    def _recover(
        self,
        system: System,
        correlation: str | None = None,
        num_samples: int = 1,
        seed: int | None = None,
    ) -> Recovered:
        """The joint model's matrices in parts, in float64."""
        default = "mean" if self.weight_prior == "scaled" else "map"
        return recover(system, self.chain, correlation or default, num_samples, seed)

    def to_document(self, writer: Writer) -> dict[str, Any]:
        document = super().to_document(writer) | {
            "options": {name: getattr(self, name) for name in self.saved_options},
            "b": writer.parameter(self.b),
            "sigma2": writer.parameter(self.sigma2),
        }
        if self.weight_variance is not None:
            document["weight_variance"] = float(self.weight_variance.numpy())
            document["trains_weight_variance"] = bool(self.weight_variance.trainable)
        return document

    @classmethod
    def saved_arguments(cls, saved: Document, reader: Reader, given: Given) -> dict[str, Any]:
        # Models of version 0.2 and before have the paper's prior, and may name an engine that is
        # gone.
        known = {"weight_prior": "unit"} | saved["options"]
        options = {name: known[name] for name in cls.saved_options}
        if options.get("engine") == "cholesky":
            options["engine"] = "spectral"
        if "weight_variance" in saved:
            options["weight_variance"] = saved["weight_variance"]
        return super().saved_arguments(saved, reader, given) | options

    def restore_state(self, saved: Document, reader: Reader) -> None:
        super().restore_state(saved, reader)
        self.b, self.sigma2 = reader.parameter(saved["b"]), reader.parameter(saved["sigma2"])
        if self.weight_variance is not None:
            set_trainable(self.weight_variance, bool(saved["trains_weight_variance"]))
