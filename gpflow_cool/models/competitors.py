"""
Other people's models behind the same interface, so that studies treat all models alike.

Both have `fit()`, `predict_f`, `predict_y`, `predict_log_density`, `task_names` and `data`.
"""

import abc
import copy
import os
from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.base import InputData, MeanAndVariance, RegressionData
from gpflow.kernels import Kernel
from typing_extensions import Self

from .. import checks
from ..gaussian import log_density_of_layout
from ..saving.models import (
    Document,
    Given,
    Saveable,
    data_document,
    document_of,
    saveable,
    saved_data,
)
from ..saving.modules import Reader, Writer
from ..training.run import History
from .cool import CoolMTGP
from .in_memory import check_targets, rows_of_task

CONV_MT_STEPS = 1000


class Competitor(Saveable, abc.ABC):
    """Base of models whose tasks are independent given the data."""

    def __init__(
        self, data: RegressionData, task_names: Sequence[str] | None, *, missing: bool
    ) -> None:
        self.data = checks.regression_data(data, missing=missing)
        check_targets(self.data[1])
        self.num_tasks = int(self.data[1].shape[1])
        self.task_names = checks.task_names(task_names, data, self.num_tasks)

    @abc.abstractmethod
    def _moments(self, Xnew: InputData, full_cov: bool, *, noise: bool) -> MeanAndVariance:
        """Mean [..., M, T], and variances [..., M, T] or covariances [..., T, M, M]."""

    def predict_f(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Mean and (co)variance of the functions, in the shapes of :meth:`CoolMTGP.predict_f`."""
        mean, S = self._moments(Xnew, full_cov, noise=False)
        return mean, with_zeros_between_tasks(S, full_cov) if full_output_cov else S

    def predict_y(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Mean and (co)variance of observations, in the shapes of :meth:`CoolMTGP.predict_f`."""
        mean, S = self._moments(Xnew, full_cov, noise=True)
        return mean, with_zeros_between_tasks(S, full_cov) if full_output_cov else S

    def predict_log_density(
        self, data: RegressionData, full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """Log density of observations, in the shapes of :meth:`CoolMTGP.predict_log_density`."""
        X, _ = self.data
        Xnew, Ynew = checks.scored_data(data, int(X.shape[1]), self.num_tasks, X.dtype)
        mean, S = self.predict_y(Xnew, full_cov, full_output_cov)
        return log_density_of_layout(Ynew - mean, S, full_cov, full_output_cov)


@saveable
class IndependentGPs(Competitor):
    """
    One Gaussian process per task, each without knowledge of the other tasks.

    Each is a one-task :class:`CoolMTGP`, which is the same model as GPflow's `GPR` and trains with
    about ten eigendecompositions. For one kernel shared by all tasks, with amplitudes and noises of
    their own, use `KroneckerMTGP(data, kernel, rank=0, noise_rank="diagonal")`.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import IndependentGPs
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> model = IndependentGPs((X, Y), gpflow.kernels.SquaredExponential())
    >>> len(model.fit(verbose=0))
    2

    :param data: Inputs [N, D] and targets [N, T]; the process of a task ignores targets of NaN.
    :param kernel: Copied for each task.
    """

    def __init__(
        self, data: RegressionData, kernel: Kernel, *, task_names: Sequence[str] | None = None
    ) -> None:
        super().__init__(data, task_names, missing=True)
        X, Y = self.data
        self.models = [
            CoolMTGP(rows_of_task(X, Y, t), copy.deepcopy(kernel), task_names=[name])
            for t, name in enumerate(self.task_names)
        ]

    def fit(
        self,
        optimizer: Any = "profile",
        *,
        tensorboard: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> list[History]:
        """
        Train each model, see :meth:`CoolMTGP.fit`; returns one History per task.

        After Ctrl-C the tasks that have not been trained keep their parameters, and have no
        History: the last one is `interrupted`.

        :param tensorboard: Folder for TensorBoard, which gets one folder per task.
        """
        folders = [
            None if tensorboard is None else os.path.join(tensorboard, f"{number}")
            for number in range(self.num_tasks)
        ]
        histories: list[History] = []
        for model, folder in zip(self.models, folders, strict=True):
            histories.append(model.fit(optimizer, tensorboard=folder, **options))
            if histories[-1].interrupted:
                break
        return histories

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Sum of the tasks' log evidences."""
        return tf.add_n([model.maximum_log_likelihood_objective() for model in self.models])

    def _moments(self, Xnew: InputData, full_cov: bool, *, noise: bool) -> MeanAndVariance:
        results = [
            model.predict_y(Xnew, full_cov) if noise else model.predict_f(Xnew, full_cov)
            for model in self.models
        ]
        mean = tf.concat([mean for mean, _ in results], axis=-1)
        return mean, tf.concat([S for _, S in results], axis=-3 if full_cov else -1)

    def to_document(self, writer: Writer) -> dict[str, Any]:
        models = [document_of(model, writer) for model in self.models]
        return data_document(self.data, self.task_names, writer) | {"models": models}

    @classmethod
    def from_document(cls, saved: Document, reader: Reader, given: Given) -> Self:
        first = reader.module(saved["models"][0]["kernel"], "kernel", given["kernel"])
        model = cls(saved_data(saved, reader), first, task_names=saved["task_names"])
        model.models = [
            # A custom kernel is copied for each task, and has been given its values in the copy.
            CoolMTGP.from_document(
                part, reader, {**given, "kernel": given["kernel"] and each.kernel}
            )
            for part, each in zip(saved["models"], model.models, strict=True)
        ]
        return model


@saveable
class ConvMT(Competitor):
    """
    GPflow's sparse variational multi-output model (`SVGP` with `SharedIndependent`).

    The paper calls it Conv-MT: inducing points at half of the rows, one kernel for all outputs. Its
    outputs are independent given the kernel, which is what its joint covariance says too.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import ConvMT
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> model = ConvMT((X, Y), gpflow.kernels.SquaredExponential(lengthscales=0.3))
    >>> mean, var = model.predict_f(X[:3])
    >>> mean.shape, var.shape
    (TensorShape([3, 2]), TensorShape([3, 2]))

    :param num_inducing: By default half the number of rows.
    :param seed: Which rows become inducing points.
    """

    def __init__(
        self,
        data: RegressionData,
        kernel: Kernel,
        *,
        num_inducing: int | None = None,
        seed: int = 0,
        task_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(data, task_names, missing=False)
        checks.kernel(kernel)
        X, _ = self.data
        num_rows = int(X.shape[0])
        count = max(1, num_rows // 2) if num_inducing is None else num_inducing
        rows = np.random.default_rng(seed).permutation(num_rows)[
            : checks.positive_integer(count, "num_inducing")
        ]
        points = gpflow.inducing_variables.InducingPoints(tf.gather(X, np.sort(rows)))
        self.model = gpflow.models.SVGP(
            gpflow.kernels.SharedIndependent(kernel, output_dim=self.num_tasks),
            gpflow.likelihoods.Gaussian(0.1),
            gpflow.inducing_variables.SharedIndependentInducingVariables(points),
            num_latent_gps=self.num_tasks,
        )

    def fit(self, *, steps: int = CONV_MT_STEPS, verbose: int = 0) -> Any:
        """Train by L-BFGS; SciPy's result is returned. Ctrl-C raises KeyboardInterrupt."""
        closure = self.model.training_loss_closure(self.data, compile=True)
        options = {"maxiter": checks.positive_integer(steps, "steps")}
        return gpflow.optimizers.Scipy().minimize(
            closure, self.model.trainable_variables, options=options
        )

    def _moments(self, Xnew: InputData, full_cov: bool, *, noise: bool) -> MeanAndVariance:
        X, _ = self.data
        Xnew = checks.inputs(Xnew, int(X.shape[1]), X.dtype)
        mean, S = self.model.predict_f(Xnew, full_cov=full_cov)
        if noise:
            variance = tf.convert_to_tensor(self.model.likelihood.variance)
            diagonal = tf.linalg.diag_part(S) + variance if full_cov else S + variance
            S = tf.linalg.set_diag(S, diagonal) if full_cov else diagonal
        return mean, S

    def to_document(self, writer: Writer) -> dict[str, Any]:
        return data_document(self.data, self.task_names, writer) | {
            "kernel": writer.module(self.model.kernel.kernel, "kernel"),
            "num_inducing": int(self.model.inducing_variable.num_inducing),
            "paths": writer.paths(self.model),
        }

    @classmethod
    def from_document(cls, saved: Document, reader: Reader, given: Given) -> Self:
        model = cls(
            saved_data(saved, reader),
            reader.module(saved["kernel"], "kernel", given["kernel"]),
            num_inducing=int(saved["num_inducing"]),
            task_names=saved["task_names"],
        )
        reader.assign(model.model, saved["paths"], "model")
        return model


def with_zeros_between_tasks(S: tf.Tensor, full_cov: bool) -> tf.Tensor:
    """Covariance [..., M, T, M, T] or [..., M, T, T] of tasks that are independent."""
    if not full_cov:
        return tf.linalg.diag(S)
    eye = tf.eye(tf.shape(S)[-3], dtype=S.dtype)
    return tf.einsum("...tmn,tu->...mtnu", S, eye)
