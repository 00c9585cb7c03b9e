"""Expectation maximisation over full C and Sigma, for a fixed kernel and mean function."""

from typing import Protocol

import tensorflow as tf
from gpflow.base import RegressionData
from gpflow.kernels import Kernel

from .covariances import FullCovariance
from .kronecker import em_step, spectrum_log_evidence, task_basis
from .linalg import eigh
from .profile import Evaluation
from .spectrum import exact_spectrum


class EMModel(Protocol):
    """What EM needs of a model."""

    kernel: Kernel
    data: RegressionData

    def centred_completions(self) -> tf.Tensor: ...
    def log_prior_density(self) -> tf.Tensor: ...


class ExactEM:
    """
    EM from one eigendecomposition; each step sets the model's C and Sigma.

    The evidence never decreases. A covariance that is not trainable stays.
    """

    def __init__(self, model: EMModel, signal: FullCovariance, noise: FullCovariance) -> None:
        self.model, self.signal, self.noise = model, signal, noise
        if signal.factor.prior is not None or noise.factor.prior is not None:
            raise ValueError('optimizer="em" does not know priors of C or Sigma: use "scipy".')
        self.prepare()

    def prepare(self) -> None:
        """Decompose the kernel matrix at the present kernel parameters."""
        lam, U = eigh(self.model.kernel(self.model.data[0]))
        self.spectrum = exact_spectrum(lam, U, self.model.centred_completions())

    def evaluate(self) -> Evaluation:
        """The loss at the present C and Sigma."""
        evidence = spectrum_log_evidence(self.spectrum, task_basis(*self._covariances()))
        loss = -float(evidence) - float(self.model.log_prior_density())
        return Evaluation(loss, [], evidence.numpy()[None])

    def step(self) -> None:
        """One step of EM."""
        C, Sigma = em_step(self.spectrum.lam, self.spectrum.Yr, *self._covariances())
        if self.signal.factor.trainable:
            self.signal.assign(C.numpy())
        if self.noise.factor.trainable:
            self.noise.assign(Sigma.numpy())

    def _covariances(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(self.signal(), tf.float64), tf.cast(self.noise(), tf.float64)
