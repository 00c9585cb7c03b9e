"""Expectation maximisation over full C and Sigma, for a fixed kernel and mean function."""

from typing import Protocol

import tensorflow as tf
from gpflow.base import RegressionData
from gpflow.kernels import Kernel

from .covariances import FullCovariance
from .kronecker import em_step, log_evidence, solve_joint, task_basis
from .linalg import eigh
from .profile import Evaluation
from .spectrum import exact_spectrum


class EMModel(Protocol):
    """What EM needs of a model."""

    kernel: Kernel
    data: RegressionData

    def centred_targets(self) -> tf.Tensor: ...
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
        lam, self.U = eigh(self.model.kernel(self.model.data[0]))
        self.spectrum = exact_spectrum(lam, self.U, self.model.centred_targets())

    def evaluate(self) -> Evaluation:
        """The loss at the present C and Sigma."""
        basis = task_basis(*self._covariances())
        U = tf.cast(self.U, tf.float64)
        evidence = log_evidence(solve_joint(U, self.spectrum.lam, self.spectrum.Yr, basis))
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
