"""Models whose data is in memory: missing targets, and GPflow's coregionalization layout."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
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
from ..joint.leave_one_out import LeaveOneOut, leave_one_out, leave_one_out_of_observed
from ..joint.missing import (
    ObservedSolution,
    observed_log_evidence,
    solve_observed,
)
from ..joint.posteriors import MissingDataPosterior
from ..linalg import eigh
from ..lowrank.features import LinearFeatures, linear_features
from ..lowrank.rows import TensorRows
from ..lowrank.statistics import Statistics, decompose, row_statistics
from ..saving.models import Document
from ..saving.modules import Reader, Writer
from .base import MultitaskModel


class InMemoryModel(MultitaskModel):
    """Base of the models with all data in memory, where targets may be missing."""

    one_task_model: Callable[..., "InMemoryModel"]
    """The model of one task for a first guess of missing targets: CoolMTGP, which is set there."""

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
        """[1, N, T], a task's missing targets as far from the mean function as its others are."""
        residual = self.centred_targets()
        typical = np.nanmean(residual.numpy(), axis=0)
        return (self.mean_function(self.data[0]) + tf.where(self.observed, residual, typical))[None]

    def centred_targets(self) -> tf.Tensor:
        return self._centred(*self.data)

    def centred_completions(self) -> tf.Tensor:
        if self.completions is None:
            return self.centred_targets()
        return self.completions - self.mean_function(self.data[0])

    def independent_completion(self) -> tf.Tensor:
        X, _ = self.data
        residual = self.centred_targets()
        predicted = []
        for t, name in enumerate(self.task_names):
            task = self.one_task_model(
                rows_of_task(X, residual, t), copy.deepcopy(self.kernel), task_names=[name]
            )
            if task.fit(verbose=0).interrupted:
                raise KeyboardInterrupt  # the model itself has not been trained at all
            predicted.append(task.predict_f(X)[0])
        filled = tf.where(self.observed, residual, tf.concat(predicted, axis=-1))
        return (self.mean_function(X) + filled)[None]

    @property
    def features(self) -> LinearFeatures | None:
        """Features of a linear kernel, if they are fewer than the rows; else None."""
        return linear_features(self.kernel, self.data[0]) if self.observed is None else None

    @property
    def rows(self) -> TensorRows:
        return TensorRows(*self.data)

    def feature_statistics(self, features: LinearFeatures) -> Statistics:
        """Sums over rows of features and targets."""
        X, _ = self.data
        return row_statistics(features(X), self.centred_targets(), features.diagonal(X))

    def spectral(self) -> tuple[tf.Tensor, Spectrum]:
        features = self.features
        if features is None:
            lam, U = eigh(self.kernel(self.data[0]))
            return U, exact_spectrum(lam, U, self.centred_completions())
        E, spectrum = decompose(self.feature_statistics(features))
        return to_default_float(E * tf.sqrt(spectrum.lam)), spectrum

    def observed_solution(self) -> ObservedSolution:
        """The joint model given the observed targets."""
        return solve_observed(self.observed_system(), self.centred_targets())

    def log_marginal_likelihood(self) -> tf.Tensor:
        if self.observed is None:
            return super().log_marginal_likelihood()
        evidence = observed_log_evidence(self.observed_system(), self.centred_targets())
        return to_default_float(evidence)

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> JointPosterior:
        if self.observed is None:
            return super().posterior(precompute_cache)
        return MissingDataPosterior(
            self.kernel,
            self.data,
            self.mean_function,
            self.observed_solution,
            precompute_cache=precompute_cache,
        )

    def leave_one_out(self) -> LeaveOneOut:
        if self.observed is not None:
            return leave_one_out_of_observed(self.observed_system(), *self.data, self.mean_function)
        if self.features is None:
            return leave_one_out(self.joint_solution(), self.data[1])
        return super().leave_one_out()

    @classmethod
    def from_coregion(cls, model: Any, **options: Any) -> Self:
        """
        The model that replaces a GPflow `GPR` or `VGP` whose kernel is a base kernel times
        `Coregion`.

        The rows may come in any order. X becomes the union of the tasks' inputs, matched exactly,
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

        Noise variances are carried over. Correlations of the noise cannot be, which a warning says.
        """
        return to_coregion_gpr(self)

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
        super().restore_state(saved, reader)
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
