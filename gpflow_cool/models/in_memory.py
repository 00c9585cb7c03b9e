"""The models whose data is in memory: missing targets, leaving one out, coregionalization."""

import abc
import copy
from collections.abc import Callable, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import InputData, MeanAndVariance, RegressionData
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from gpflow.posteriors import PrecomputeCacheType
from gpflow.utilities import to_default_float
from typing_extensions import Self

from .. import checks
from ..chain.spectrum import Spectrum, exact_spectrum
from ..coregion import from_coregion, predict_coregion, to_coregion_gpr
from ..joint.base_posterior import JointPosterior
from ..joint.conditioning import Imputation, impute
from ..joint.kronecker import JointSolution, TaskBasis, solve_joint, spectrum_log_evidence
from ..joint.leave_one_out import (
    LeaveOneOut,
    leave_one_out,
    leave_one_out_of_features,
    leave_one_out_of_observed,
)
from ..joint.missing import (
    ObservedSolution,
    ObservedSystem,
    observed_log_evidence,
    solve_observed,
)
from ..joint.posteriors import CompleteDataPosterior, MissingDataPosterior
from ..linalg import eigh
from ..lowrank.features import LinearFeatures, linear_features
from ..lowrank.rows import TensorRows
from ..lowrank.statistics import Statistics, decompose, row_statistics
from ..saving.models import Document
from ..saving.modules import Reader, Writer
from .base import MultitaskModel


class JointGPModel(MultitaskModel):
    """
    Base of the models of vec(Y) ~ N(0, C (x) K + Sigma (x) I) with all data in memory.

    A model adds its parameters, its objective, :meth:`joint_basis` and, for targets of which some
    are missing, :meth:`observed_system`.
    """

    one_task_model: Callable[..., "JointGPModel"]
    """What the first guess of missing targets comes from: CoolMTGP, whose module sets this."""

    def __init__(
        self,
        data: RegressionData,
        kernel: Kernel,
        mean_function: MeanFunction | None,
        task_names: Sequence[str] | None,
    ) -> None:
        X, Y = checks.regression_data(data, missing=True)
        names = checks.task_names(task_names, data, int(Y.shape[1]))
        super().__init__((X, Y), kernel, mean_function, names)
        self.task_column = -1
        self.observed = checks.observed_entries(Y)
        if self.observed is not None:
            shape = [None, *Y.shape]
            self.completions = tf.Variable(self._mean_filled(), trainable=False, shape=shape)

    @property
    def num_rows(self) -> int:
        """N."""
        return int(tf.shape(self.data[0])[0])

    def _mean_filled(self) -> tf.Tensor:
        """[1, N, T], each task's missing targets as far from the mean function as its others."""
        residual = self.centred_targets()
        typical = np.nanmean(residual.numpy(), axis=0)
        return (self.mean_function(self.data[0]) + tf.where(self.observed, residual, typical))[None]

    def centred_targets(self) -> tf.Tensor:
        """[N, T], the targets with the mean function subtracted; NaN where one is missing."""
        X, Y = self.data
        return Y - self.mean_function(X)

    def centred_completions(self) -> tf.Tensor:
        """
        What the objective sees: the centred targets; where some are missing, [S, N, T], the
        completions of the last round of training, over which the objective is a mean.
        """
        if self.completions is None:
            return self.centred_targets()
        return self.completions - self.mean_function(self.data[0])

    def independent_completion(self) -> tf.Tensor:
        """
        [1, N, T], missing targets as predicted by one Gaussian process a task, trained on the
        targets of that task that are there.
        """
        X, _ = self.data
        residual = self.centred_targets()
        predicted = []
        for t, name in enumerate(self.task_names):
            task = self.one_task_model(
                rows_of_task(X, residual, t), copy.deepcopy(self.kernel), task_names=[name]
            )
            task.fit(verbose=0)
            predicted.append(task.predict_f(X)[0])
        filled = tf.where(self.observed, residual, tf.concat(predicted, axis=-1))
        return (self.mean_function(X) + filled)[None]

    @property
    def features(self) -> LinearFeatures | None:
        """Features of a linear kernel, fewer than rows; None where K itself is needed."""
        return linear_features(self.kernel, self.data[0]) if self.observed is None else None

    strategy = None
    """Data in memory is one chunk, on one device."""

    @property
    def rows(self) -> TensorRows:
        """The data as one chunk of rows."""
        return TensorRows(*self.data)

    def feature_statistics(self, features: LinearFeatures) -> Statistics:
        """Sums over rows of features and targets."""
        X, _ = self.data
        return row_statistics(features(X), self.centred_targets(), features.diagonal(X))

    def spectral(self) -> tuple[tf.Tensor, Spectrum]:
        """
        What takes cross-covariances to the eigenbasis of K, and the spectrum: one factorisation, of
        K or, where the kernel is linear, of the features' Gram matrix.
        """
        features = self.features
        if features is None:
            lam, U = eigh(self.kernel(self.data[0]))
            return U, exact_spectrum(lam, U, self.centred_completions())
        E, spectrum = decompose(self.feature_statistics(features))
        return to_default_float(E * tf.sqrt(spectrum.lam)), spectrum

    @abc.abstractmethod
    def joint_basis(self, spectrum: Spectrum) -> TaskBasis:
        """The tasks' basis at the present parameters, in float64."""

    def joint_solution(self) -> JointSolution:
        """Solve the joint model at the present parameters and data, of which none is missing."""
        U, spectrum = self.spectral()
        return solve_joint(U, spectrum.lam, spectrum.Yr, self.joint_basis(spectrum))

    @abc.abstractmethod
    def observed_system(self) -> ObservedSystem:
        """The covariance of the observed targets at the present parameters, where some are not."""

    def observed_solution(self) -> ObservedSolution:
        """The joint model given the observed targets."""
        return solve_observed(self.observed_system(), self.centred_targets())

    @check_shapes("return: []")
    def log_marginal_likelihood(self) -> tf.Tensor:
        """
        Exact log evidence of the joint model at its present C and Sigma, of the observed targets:
        where some are missing, at a cost cubic in the number of the others.
        """
        if self.observed is None:
            _, spectrum = self.spectral()
            return to_default_float(spectrum_log_evidence(spectrum, self.joint_basis(spectrum)))
        evidence = observed_log_evidence(self.observed_system(), self.centred_targets())
        return to_default_float(evidence)

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> JointPosterior:
        if self.observed is not None:
            return MissingDataPosterior(
                self.kernel,
                self.data,
                self.mean_function,
                self.observed_solution,
                precompute_cache=precompute_cache,
            )
        return CompleteDataPosterior(
            self.kernel,
            self.data,
            self.mean_function,
            self.joint_solution,
            precompute_cache=precompute_cache,
            cross_covariance=None if self.features is None else self.features.cross,
        )

    @classmethod
    def from_coregion(cls, model: Any, **options: Any) -> Self:
        """
        The swapped-in model for a GPflow `GPR` or `VGP` whose kernel is a base kernel times
        `Coregion`.

        Its rows may come in any order. X becomes the union of the tasks' inputs, matched exactly,
        and Y is NaN where a task is not measured. The base kernel is copied, without the task
        column, and so is the mean function; nothing is trained yet.

        :param options: Passed on to the constructor, for example `learning="approximate"`.
        """
        shared = from_coregion(model)
        options.setdefault("mean_function", shared.mean_function)
        swapped = cls((shared.X, shared.Y), shared.kernel, **options)
        swapped.task_column = shared.task_column
        return swapped

    def predict_coregion(self, X_aug: InputData, *, noise: bool = False) -> MeanAndVariance:
        """
        Mean and variance, [M, 1] each, at rows in GPflow's coregionalization layout.

        :param X_aug: [M, D + 1], the inputs with a column that holds the number of the task: the
            last one, or where :meth:`from_coregion` found it.
        :param noise: Whether observations are asked for, or functions.
        """
        return predict_coregion(self, X_aug, noise=noise, task_column=self.task_column)

    def to_coregion_gpr(self) -> gpflow.models.GPR:
        """
        A GPflow `GPR` with `Coregion`, the task column last, at this model's C.

        Noise variances are carried over; correlations of the noise cannot be, and a warning says
        so.
        """
        return to_coregion_gpr(self)

    def leave_one_out(self) -> LeaveOneOut:
        """
        Mean, covariance and log density of every row, predicted from all the other rows.

        In closed form, at the present parameters: no refit. A row's targets that are missing are
        NaN in its mean and covariance, and its density is that of the others.
        """
        features, (X, Y) = self.features, self.data
        if features is not None:
            return leave_one_out_of_features(
                self.joint_solution(),
                features.cross(X),
                features.diagonal(X),
                Y,
                self.centred_targets(),
            )
        if self.observed is None:
            return leave_one_out(self.joint_solution(), Y)
        return leave_one_out_of_observed(self.observed_system(), *self.data, self.mean_function)

    def impute(self) -> Imputation:
        """
        The missing targets given all that is observed, at the present parameters.

        :return: `Y` [N, T], the targets with the means of the missing ones filled in; `cov`
            [N, T, T], the covariance of each row's missing targets, zero for the others.
        """
        if self.observed is None:
            Y = tf.convert_to_tensor(self.data[1])
            return Imputation(Y, tf.zeros([*Y.shape, self.num_tasks], Y.dtype))
        return impute(self.observed_system(), *self.data, self.mean_function)

    # Saving --------------------------------------------------------------------------------------

    def to_document(self, writer: Writer) -> dict[str, Any]:
        document = super().to_document(writer) | {"task_column": int(self.task_column)}
        if self.completions is not None:  # C and Sigma are recovered from them
            document["completions"] = writer.array("completions", self.completions)
            document["has_drawn"] = bool(self.has_drawn)
        return document

    def restore_state(self, saved: Document, reader: Reader) -> None:
        """Set what is saved besides the arguments of the constructor."""
        self.task_column = int(saved["task_column"])
        if self.completions is not None:
            self.completions.assign(reader.array(saved["completions"]))
            self.has_drawn = bool(saved["has_drawn"])


def rows_of_task(X: tf.Tensor, Y: tf.Tensor, task: int) -> RegressionData:
    """Inputs and targets, [n, 1], of one task, without the rows where it was not observed."""
    observed = checks.observed_entries(Y)
    y = Y[:, task : task + 1]
    if observed is None:
        return X, y
    return tf.boolean_mask(X, observed[:, task]), tf.boolean_mask(y, observed[:, task])
