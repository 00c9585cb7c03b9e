"""Expectation maximisation over full C and Sigma, for a fixed kernel and mean function."""

from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray

from ..graphs import compiled
from ..joint.covariances import FullCovariance
from ..joint.kronecker import em_step, spectrum_log_evidence, task_basis
from ..systems.eigen import exact_spectrum
from ..systems.products import decompose
from .model import Evaluation, ExpectationMaximisation, TrainableModel


class ExactEM(ExpectationMaximisation):
    """
    EM from one eigendecomposition; each step sets the model's C and Sigma.

    The evidence never decreases. A covariance that is not trainable stays.
    """

    def __init__(
        self, model: TrainableModel, signal: FullCovariance, noise: FullCovariance
    ) -> None:
        self.model, self.signal, self.noise = model, signal, noise
        if signal.factor.prior is not None or noise.factor.prior is not None:
            raise ValueError('optimizer="em" does not know priors of C or Sigma: use "scipy".')
        self._unconstrained = {
            id(covariance): compiled(
                inverse_of(covariance), tf.convert_to_tensor(covariance.factor)
            )
            for covariance in (signal, noise)
        }
        self.prepare()

    def prepare(self) -> None:
        """Start from the model's present parameters, with a decomposition of its kernel matrix."""
        lam, U = decompose(self.model.kernel_matrix())
        self.spectrum = exact_spectrum(lam, U, self.model.centred_completions())
        self.C = tf.cast(self.signal(), tf.float64)
        self.Sigma = tf.cast(self.noise(), tf.float64)
        self.log_prior = float(self.model.log_prior_density())  # of kernel and mean: they stay

    def evaluate(self) -> Evaluation:
        evidence = spectrum_log_evidence(self.spectrum, task_basis(self.C, self.Sigma))
        return Evaluation(-float(evidence) - self.log_prior, [], evidence.numpy()[None])

    def step(self) -> None:
        C, Sigma = em_step(self.spectrum, self.C, self.Sigma)
        if self.signal.factor.trainable:
            self.C = self._set(self.signal, C.numpy())
        if self.noise.factor.trainable:
            self.Sigma = self._set(self.noise, Sigma.numpy())

    def _set(self, covariance: FullCovariance, value: AnyNDArray) -> tf.Tensor:
        """
        Set a covariance, and return its new value, which differs where the floor was reached.

        `covariance.assign(value)` and `covariance()` do the same, but take 30 milliseconds.
        """
        factor = covariance.factor
        L = covariance.factor_of(value).astype(factor.dtype.as_numpy_dtype)
        factor.unconstrained_variable.assign(self._unconstrained[id(covariance)](tf.constant(L)))
        L = L.astype(np.float64)
        return tf.constant(L @ L.T + np.diag(covariance.floor))


def inverse_of(covariance: FullCovariance) -> Any:
    """What takes a factor to its unconstrained numbers; a function that can be named in a graph."""
    transform: Any = covariance.factor.transform
    return lambda L: transform.inverse(L)
