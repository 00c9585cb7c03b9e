"""What the two models of the chain share: b and sigma2, and the C and Sigma recovered from them."""

from typing import Any

import tensorflow as tf

from .. import checks
from ..chain.recovery import MultitaskParameters, recover
from ..chain.spectrum import Spectrum
from ..joint.kronecker import TaskBasis, chain_task_basis
from ..saving.models import Document, Given
from ..saving.modules import Reader, Writer
from ..training.model import TrainableChain
from .base import MultitaskModel


class ChainModel(MultitaskModel, TrainableChain):
    """Base of the models that learn one b and one sigma2 per task, and recover C and Sigma."""

    saved_options: tuple[str, ...]
    """Arguments of the constructor that are saved, each an attribute of the model as well."""

    @property
    def objective_term_names(self) -> tuple[str, ...]:
        return self.task_names

    def objective_terms(self) -> tf.Tensor:
        return self.conditional_log_likelihoods()

    def multitask_parameters(
        self, correlation: str = "map", *, num_samples: int = 100, seed: int | None = None
    ) -> MultitaskParameters:
        """
        The joint model's B, C, Sigma and W, each [T, T], at the present parameters.

        :param correlation: How the tasks' input weights correlate: at their maximum ("map"), or on
            average over draws from their posterior given the weights between tasks
            ("monte_carlo"), which both ways of learning share.
        :param num_samples: Number of draws.
        :param seed: Seed of the draws.
        """
        checks.option(correlation, "correlation", ["map", "monte_carlo"])
        checks.positive_integer(num_samples, "num_samples")
        _, spectrum = self.spectral()
        parameters = self._recover(spectrum, correlation, num_samples, checks.seed(seed))
        return MultitaskParameters(*(tf.cast(part, self.dtype) for part in parameters))

    def task_covariance(self) -> tf.Tensor:
        """C, [T, T], recovered at the present parameters."""
        return self.multitask_parameters().C

    def noise_covariance(self) -> tf.Tensor:
        """Sigma, [T, T], recovered at the present parameters."""
        return self.multitask_parameters().Sigma

    def joint_basis(self, spectrum: Spectrum) -> TaskBasis:
        parameters = self._recover(spectrum)
        return chain_task_basis(parameters.W, parameters.B, tf.cast(self.sigma2, tf.float64))

    def _recover(self, spectrum: Spectrum, *options: Any) -> MultitaskParameters:
        """The joint model's matrices, in float64."""
        b, sigma2 = tf.cast(self.b, tf.float64), tf.cast(self.sigma2, tf.float64)
        return recover(spectrum, b, sigma2, self.learning, *options)

    def to_document(self, writer: Writer) -> dict[str, Any]:
        return super().to_document(writer) | {
            "options": {name: getattr(self, name) for name in self.saved_options},
            "b": writer.parameter(self.b),
            "sigma2": writer.parameter(self.sigma2),
        }

    @classmethod
    def saved_arguments(cls, saved: Document, reader: Reader, given: Given) -> dict[str, Any]:
        options = {name: saved["options"][name] for name in cls.saved_options}
        return super().saved_arguments(saved, reader, given) | options

    def restore_state(self, saved: Document, reader: Reader) -> None:
        super().restore_state(saved, reader)
        self.b, self.sigma2 = reader.parameter(saved["b"]), reader.parameter(saved["sigma2"])
