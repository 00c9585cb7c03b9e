"""Models whose data is in memory: missing targets, and GPflow's coregionalization layout."""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.base import InputData, MeanAndVariance, RegressionData
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from gpflow.posteriors import PrecomputeCacheType
from typing_extensions import Self

from .. import checks
from ..chain.starting import chain_start, mean_kernel_diagonal, task_scales
from ..coregion import from_coregion, predict_coregion, to_coregion_gpr
from ..graphs import unconverted_method
from ..grid.axes import Grid
from ..grid.kernels import KernelOnGrid, grid_that_pays, kernel_on_grid
from ..grid.posterior import GridPosterior
from ..joint.base_posterior import JointPosterior
from ..joint.conditioning import Imputation, impute
from ..joint.leave_one_out import LeaveOneOut, leave_one_out, leave_one_out_of_observed
from ..joint.missing import (
    ObservedSolution,
    observed_log_evidence,
    observed_system,
    solve_observed,
)
from ..joint.posteriors import MissingDataPosterior
from ..joint.sampling import draw_completions, impute_by_draws
from ..joint.updating import new_rows
from ..kernels import kernel_matrix, origin_of
from ..saving.models import Document
from ..saving.modules import Reader, Writer
from ..systems.eigen import EigenSystem, ThinSystem
from ..systems.features import LinearFeatures, constant_left, linear_features
from ..systems.products import KernelMatrix, decompose
from ..systems.rows import TensorRows
from ..systems.statistics import FeatureSystem, decompose_rows, row_statistics
from ..training.starts import start_at_best
from .arguments import input_names
from .base import MultitaskModel
from .data import (
    Completions,
    check_can_grow,
    check_targets,
    grown,
    rows_of_task,
    separate_pairs,
)

MAX_IMPUTATION = 2**28
"""Up to this many numbers in its systems, the covariances of imputed targets are exact."""


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
        check_targets(Y)
        super().__init__((X, Y), kernel, mean_function, names)
        self.input_names = input_names(data[0])
        self.task_column = -1
        self.grid = self._find_grid()
        self.observed = checks.observed_entries(Y)
        self._warned_of_loop = False
        self._completed: Completions | None = None
        if self.observed is not None:
            self._completed = Completions(self._mean_filled())

    @property
    def completions(self) -> tf.Variable | None:
        return None if self._completed is None else self._completed.variable

    def training_loss(self) -> tf.Tensor:
        """
        The objective with the prior's density, negated.

        Where targets are missing it is a mean over the present completions of them, which only
        :meth:`fit` draws anew; a loop of one's own is warned once.
        """
        self._warn_of_loop()
        return super().training_loss()

    @unconverted_method
    def _training_loss(self) -> tf.Tensor:
        return super()._training_loss()

    def training_loss_closure(self, *, compile: bool = True) -> Callable[[], tf.Tensor]:
        self._warn_of_loop()
        return super().training_loss_closure(compile=compile)

    def _warn_of_loop(self) -> None:
        if self.observed is None or self._warned_of_loop:
            return
        self._warned_of_loop = True
        warnings.warn(
            "Targets are missing, and training_loss sees the present guess of them only. A loop of"
            " your own that minimises it ends at parameters which fit that guess. Train with"
            " model.fit(), which draws the missing targets anew in every round; your optimizer may"
            " be its first argument.",
            stacklevel=3,
        )

    def warn_of_separate_tasks(self) -> None:
        """
        Warn of tasks that no row has both: nothing tells how their noises correlate.

        Models that learn correlations of the noise call this when they are built.
        """
        pairs = [] if self.observed is None else separate_pairs(self.observed)
        if not pairs:
            return
        names = [f"{self.task_names[i]} and {self.task_names[j]}" for i, j in pairs]
        more = f" and {len(names) - 3} more pairs" if len(names) > 3 else ""
        warnings.warn(
            f"No row has targets of both {'; '.join(names[:3])}{more}. No data tells how the noises"
            " of such tasks correlate: do not rely on that entry of noise_correlation(), nor on"
            " densities of such tasks together. A model without these correlations is"
            ' KroneckerMTGP(data, kernel, noise_rank="diagonal").',
            stacklevel=3,
        )

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
        self.check_targets()
        return self._centred(*self.data)

    def centred_completions(self) -> tf.Tensor:
        if self.completions is None:
            return self.centred_targets()
        return self.completions - self.mean_function(self.data[0])

    def independent_completion(self) -> tf.Tensor:
        X, _ = self.data
        residual = self.centred_targets()
        if self.is_on_grid:
            return (self.mean_function(X) + self._smoothed(residual))[None]
        predicted = []
        for t, name in enumerate(self.task_names):
            task = self.one_task_model(
                rows_of_task(X, residual, t), copy.deepcopy(self.kernel), task_names=[name]
            )
            start_at_best(task)
            predicted.append(task.predict_f(X)[0])
        filled = tf.where(self.observed, residual, tf.concat(predicted, axis=-1))
        return (self.mean_function(X) + filled)[None]

    def _smoothed(self, residual: tf.Tensor) -> tf.Tensor:
        """[N, T], the targets, with those missing as one Gaussian process per task has them."""
        assert self.observed is not None
        lam, U = decompose(self.kernel_matrix())
        variance = mean_kernel_diagonal(self.kernel, self.data[0].numpy())
        b, sigma2 = chain_start(variance, task_scales(residual.numpy()))
        system = observed_system(U, lam, np.diag(b), np.diag(sigma2), self.observed)
        nothing = tf.zeros([1, *residual.shape], tf.float64)
        drawn = draw_completions(system, tf.cast(residual, tf.float64), nothing, nothing)
        return tf.cast(drawn[0], residual.dtype)

    @property
    def features(self) -> LinearFeatures | None:
        """Features of a linear kernel, if they are fewer than the rows; else None."""
        return linear_features(self.kernel, self.data[0]) if self.observed is None else None

    def constant_left(self) -> float:
        """The part of a constant that is none of the kernel's features; all of it without any."""
        features = self.features
        return 1.0 if features is None else constant_left(features(self.data[0]).numpy())

    def _find_grid(self) -> Grid | None:
        """The grid that the rows are, if it saves much work; X must not change then."""
        X, _ = self.data
        return None if isinstance(X, tf.Variable) else grid_that_pays(self.kernel, X.numpy())

    @property
    def is_on_grid(self) -> bool:
        may_change = isinstance(self.data[0], tf.Variable)
        return self.grid is not None and self.features is None and not may_change

    @property
    def kernel_on_grid(self) -> KernelOnGrid | None:
        """The kernel as a product over the axes of a grid, where rows are one; else None."""
        if self.grid is None or not self.is_on_grid:
            return None
        X, _ = self.data
        return kernel_on_grid(self.kernel, self.grid, X, origin_of(X))

    def kernel_matrix(self) -> KernelMatrix:
        on_grid = self.kernel_on_grid
        return kernel_matrix(self.kernel, self.data[0]) if on_grid is None else on_grid.matrix()

    @property
    def rows(self) -> TensorRows:
        return TensorRows(*self.data)

    def system(self, *, python_callback: bool = False) -> EigenSystem | FeatureSystem:
        """
        What the kernel does to the rows: one factorisation.

        :param python_callback: Whether a graph may call LAPACK, see :func:`.linalg.eigh`.
        """
        features = self.features
        if features is None:
            targets = self.centred_completions()
            return EigenSystem(self.kernel_matrix(), targets, python_callback=python_callback)
        X, Y = self.data[0], self.centred_targets()
        F = features(X)
        # From the rows themselves: sums over rows lose digits where targets are far from zero.
        known = decompose_rows(F, Y, python_callback=python_callback)
        U = tf.cast(known.E * tf.sqrt(known.spectrum.lam), self.dtype)
        return FeatureSystem(row_statistics(F, Y, features.diagonal(X)), known, U)

    def row_system(self) -> EigenSystem | ThinSystem:
        """The system of complete targets with its rows, which can be left out."""
        features = self.features
        if features is None:
            return EigenSystem(self.kernel_matrix(), self.centred_targets())
        F, Y = tf.cast(features(self.data[0]), tf.float64), self.centred_targets()
        E, spectrum = decompose_rows(F, tf.cast(Y, tf.float64))
        lam = spectrum.lam
        scale = tf.where(lam > spectrum.rounding, tf.math.rsqrt(lam), tf.zeros_like(lam))
        return ThinSystem(spectrum, tf.matmul(F, E) * scale, Y)

    def observed_solution(self) -> ObservedSolution:
        """The joint model given the observed targets."""
        return solve_observed(self.observed_system(), self.centred_targets())

    @unconverted_method
    def log_marginal_likelihood(self) -> tf.Tensor:
        if self.observed is None:
            return super().log_marginal_likelihood()
        evidence = observed_log_evidence(self.observed_system(), self.centred_targets())
        return tf.cast(evidence, self.dtype)

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> JointPosterior:
        if self.observed is None:
            on_grid = self.kernel_on_grid
            if on_grid is None:
                return super().posterior(precompute_cache)
            return GridPosterior(
                self.kernel,
                self.data,
                self.mean_function,
                self.joint_solution,
                precompute_cache=precompute_cache,
                on_grid=on_grid,
            )
        return MissingDataPosterior(
            self.kernel,
            self.data,
            self.mean_function,
            self.observed_solution,
            precompute_cache=precompute_cache,
        )

    def add_rows(self, X: InputData, Y: InputData) -> None:
        """
        Take rows into the model for good. Nothing is trained: a :meth:`fit` that follows starts
        from the present parameters.

        Posteriors and compiled losses made before do not know the rows. C and Sigma of models that
        recover them, as CoolMTGP does, are recovered from all rows from now on; a posterior with
        more rows at the same C and Sigma is that of `model.posterior().condition_on(X, Y)`.

        >>> import gpflow, numpy as np
        >>> from gpflow_cool import CoolMTGP
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
        >>> model = CoolMTGP((X[:15], Y[:15]), gpflow.kernels.SquaredExponential(lengthscales=0.3))
        >>> model.add_rows(X[15:], Y[15:])
        >>> model.num_rows
        20

        :param X: [q, D].
        :param Y: [q, T], NaN where a target is missing.
        """
        X, Y = new_rows(X, Y, self._num_inputs, self.num_tasks, self.dtype)
        if Y.shape.rank != 2:
            raise ValueError(f"Ynew has shape {tuple(Y.shape)}: pass [q, {self.num_tasks}].")
        completed = self._joined_completions(X, Y)
        joined = [tf.concat([old, new], axis=0) for old, new in zip(self.data, (X, Y), strict=True)]
        check_targets(joined[1])
        check_can_grow(self.data, joined[1])
        self._hold(tuple(grown(old, new) for old, new in zip(self.data, joined, strict=True)))
        self.observed = checks.observed_entries(joined[1])
        self._completed = None if completed is None else Completions(completed)

    def _hold(self, data: RegressionData) -> None:
        """Take other data, and find their grid. `observed` stays."""
        before, self.data = self.data, data
        try:
            self.grid = self._find_grid()
        except ValueError:  # a grid was asked for, and these rows are none
            self.data = before
            raise

    def _joined_completions(self, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor | None:
        """[S, N + q, T], present completions and predicted new targets; None if none is missing."""
        if self.completions is None and not np.isnan(Y).any():
            return None
        old = self.data[1][None] if self.completions is None else self.completions
        new, _ = self.predict_y_given(X, Y)
        new = tf.broadcast_to(new, [tf.shape(old)[0], *new.shape])
        return tf.concat([old, new], axis=1)

    def leave_one_out(self, full_output_cov: bool = True) -> LeaveOneOut:
        if self.observed is not None:
            return leave_one_out_of_observed(
                self.observed_system(), *self.data, self.mean_function, full_output_cov
            )
        if self.features is None:
            return leave_one_out(self.joint_solution(), self.data[1], full_output_cov)
        return super().leave_one_out(full_output_cov)

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
            [N, T, T], the covariance of each row's missing targets, zero for the others. On a grid
            of many rows it is estimated from 128 draws, so that deviations are good to 6%.
        """
        if self.observed is None:
            Y = tf.convert_to_tensor(self.data[1])
            return Imputation(Y, tf.zeros([*Y.shape, self.num_tasks], Y.dtype))
        work = self.num_rows**2 * self.num_tasks**2  # numbers in the right-hand sides of all rows
        by_draws = self.is_on_grid and work > MAX_IMPUTATION
        fill = impute_by_draws if by_draws else impute
        return fill(self.observed_system(), *self.data, self.mean_function)

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
