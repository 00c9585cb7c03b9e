"""The model as a scikit-learn estimator: tables go in, predictions in the user's units come out."""

import copy
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel
from typing_extensions import Self

try:
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.metrics import r2_score
    from sklearn.utils import check_consistent_length
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "CoolMTGPRegressor needs scikit-learn 1.6 or newer: pip install 'gpflow_cool[table]'."
    ) from error

from .. import checks
from ..linalg import correlation_from_covariance
from ..metrics import known_log_densities
from ..models.chain import ChainModel
from ..saving.models import Document, Given, Saveable, document_of, plain, restore, saveable
from ..saving.modules import Reader, Writer
from ..training.remarks import warn_of_remarks
from .choices import (
    Model,
    check_settings,
    choose_model,
    refine_where_possible,
    seed_of_fit,
    train_model,
)
from .columns import (
    FORMS,
    Scaling,
    TargetForm,
    check_pair,
    check_targets,
    in_blocks,
    index_of,
    scalings,
    target_form,
    targets_of,
    with_all_targets,
)
from .costs import DEFAULT_ORDERS
from .encoding import Encoding
from .inputs import keep_indicators, keep_names, new_inputs, refuse_weights, training_inputs
from .intervals import Intervals
from .learned import LearnedKernel, table_from_json, table_to_json
from .parquet import is_dataset
from .places import Places
from .sentinels import check_values
from .streams import fit_dataset
from .training_rows import TrainingRows
from .transforms import Transform, Warping, checked_probabilities, learn_warping


@saveable
class CoolMTGPRegressor(
    Places,
    Intervals,
    LearnedKernel,
    TrainingRows,
    Saveable,
    MultiOutputMixin,
    RegressorMixin,
    BaseEstimator,
):
    """
    Multitask Gaussian process regression with correlated tasks and correlated noise.

    >>> import numpy as np
    >>> from gpflow_cool import CoolMTGPRegressor
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> noise = np.random.default_rng(0).normal(size=[30, 2]) * [0.1, 2.0]
    >>> y = np.hstack([np.sin(X), 100 + 20 * np.cos(X)]) + noise
    >>> regressor = CoolMTGPRegressor().fit(X, y)
    >>> mean, std = regressor.predict([[1.0]], return_std=True)
    >>> np.all(np.abs(mean - [[np.sin(1), 100 + 20 * np.cos(1)]]) < [0.1, 2.0])
    True

    All inputs and outputs are in the user's units. With `standardize`, the model inside sees inputs
    and targets that are centred and divided by their standard deviations. If y is a data frame, so
    are the answers, with its column names, where what is asked about has an index. Without one, as
    after a scaler in a pipeline, answers are arrays. Targets may be missing (NaN): :meth:`impute`
    fills them. Columns of words become one input per category, and dates become days; the kernel
    sees these inputs, `encoded_names_`.

    :param kernel: "auto" takes the best of the kernels that have a name, by leave-one-out, see
        :func:`~gpflow_cool.choose_kernel`. They are "se" (squared exponential), "matern12",
        "matern32", "matern52", "rq" (rational quadratic), "se+linear", "matern32+laplacian" and
        "linear". Or any GPflow kernel over the columns of X, which is copied and trained as it is.
    :param ard: For a kernel given by name or chosen: "shrunk" for one lengthscale per column of X,
        pulled towards a common one; False for one lengthscale; True for free ones (if linear,
        variances), which overfit where rows are few.
    :param learning: "approximate" or "hierarchical", see :class:`~gpflow_cool.CoolMTGP`.
    :param standardize: Whether to standardise inputs and targets. Constant columns of X are then
        not used.
    :param inducing: Number of inducing points through which the rows are seen, see
        :class:`~gpflow_cool.SparseCoolMTGP`; 0 for the exact model. By default 300 if there are
        more than 5000 rows and the kernel is not linear, with a warning, else 0.
    :param orders: Orders of the targets over which C and Sigma are averaged; 1 keeps the trained
        chain as it is, without refinement. Else `model_` is the exact model at C and Sigma of
        :meth:`gpflow_cool.CoolMTGP.refine`, except for one target or with inducing points.
    :param missing_inputs: What to do about gaps in inputs: "refuse" them, "fill" them with the
        column's median and add an input that flags them, or "drop" their rows from the fit.
    :param target_transform: "none", "log" or "yeo-johnson": how skewed targets are transformed
        before a normal distribution is fitted to them, see docs/guide/skewed.md. For some targets
        only, pass a dictionary of their names and transforms. Answers stay in the user's units. The
        covariances after `fit` are those of the transformed targets.
    :param restarts: How many random parameters to try as a start of training, besides those that
        are always tried.
    :param random_state: Seed or generator of the random starts, and of the draws of missing
        targets. None is 0: two fits of the same table are the same.
    :param verbose: 1 for a progress bar.

    After `fit`: `chain_` (the CoolMTGP or SparseCoolMTGP that was trained, in standardised units,
    with its `b`, `sigma2` and `weight_variance`), `model_` (the KroneckerMTGP that it was refined
    to, or the chain itself), `history_` (of training, in the targets' own order),
    `target_names_`, `task_covariance_`, `noise_covariance_`, `task_correlation_`,
    `noise_correlation_` (between the targets, in the user's units), `leave_one_out_`,
    `relevance_` (of each column of X), `kernel_choice_` (the kernels that were compared, or None).
    """

    def __init__(
        self,
        kernel: str | Kernel = "auto",
        *,
        ard: bool | str = "shrunk",
        learning: str = "approximate",
        standardize: bool = True,
        inducing: int | None = None,
        orders: int = DEFAULT_ORDERS,
        missing_inputs: str = "refuse",
        target_transform: Any = "none",
        restarts: int = 0,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.ard = ard
        self.learning = learning
        self.standardize = standardize
        self.inducing = inducing
        self.orders = orders
        self.missing_inputs = missing_inputs
        self.target_transform = target_transform
        self.restarts = restarts
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        callbacks: Sequence[Any] | None = (),
        tensorboard: str | os.PathLike[str] | None = None,
        **other: Any,
    ) -> Self:
        """
        Train on inputs [N, D] and targets [N, T] or [N], NaN where a target is missing; or on a
        `pyarrow.dataset`, which is read in chunks, with the targets' names as y. Ctrl-C raises
        KeyboardInterrupt, and leaves the estimator as it was. `callbacks` (of Keras) and
        `tensorboard`, a folder to log to, are those of :meth:`gpflow_cool.CoolMTGP.fit`.
        """
        check_settings(self.restarts, self.orders, self.standardize)
        refuse_weights(other)
        if is_dataset(X):
            return fit_dataset(self, X, y, callbacks, tensorboard)
        check_pair(X, y)
        table, (X, y, encoding) = X, training_inputs(X, y, self.missing_inputs)
        of_X = {"dtype": np.float64, "ensure_min_samples": 2}
        of_y = {"dtype": np.float64, "ensure_2d": False, "ensure_all_finite": "allow-nan"}
        X, values = validate_data(self, X, y, validate_separately=(of_X, of_y))
        check_consistent_length(X, values)
        input_names = keep_names(self, table, encoding)
        form, Y = target_form(y, values), values.reshape(len(X), -1)
        check_targets(Y, form.names)
        check_values((X, Y), input_names, form.names)
        inputs = keep_indicators(scalings(X, Y, self.standardize)[0], encoding)
        Z = inputs.standardised(X)
        targets = learn_warping(Z, Y, self.target_transform, form.names, self.standardize)
        make = partial(self._make_model, task_names=form.names, input_names=input_names)
        chain, history, kernels = train_model(
            (Z, targets.standardised(Y)),
            self.kernel,
            self.ard,
            make,
            inducing=self.inducing,
            restarts=self.restarts,
            seed=seed_of_fit(self.random_state),
            callbacks=callbacks,
            verbose=self.verbose,
            tensorboard=tensorboard,
        )
        model = refine_where_possible(chain, self.orders)
        self.chain_, self.kernel_choice_, self.history_ = chain, kernels, history
        self._index = index_of(y)
        self._inputs, self._targets, self._encoding = inputs, targets, encoding
        warn_of_remarks(history.message, stacklevel=2)
        return self._set_model(model, form)

    def _make_model(self, data: Any, kernel: Kernel, **options: Any) -> Any:
        """A model of standardised data, not trained yet."""
        settings = {"inducing": self.inducing, "learning": self.learning}
        return choose_model(data, kernel, **{**settings, **options})

    def _set_model(self, model: Model, form: TargetForm) -> Self:
        """Set the attributes that a trained model gives."""
        self.model_ = model
        self.posterior_ = model.posterior()
        self._form = form
        self.target_names_ = form.names
        solution = self.posterior_.solution()
        P, d = solution.P.numpy(), solution.d.numpy()
        for name, S in [("task", (P * d) @ P.T), ("noise", P @ P.T)]:
            S = self._targets.covariance(S)
            R = correlation_from_covariance(tf.constant(S)).numpy()
            setattr(self, f"{name}_covariance_", form.matrix(S))
            setattr(self, f"{name}_correlation_", form.matrix(R))
        return self

    # Predictions ---------------------------------------------------------------------------------

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        include_noise: bool = True,
    ) -> Any:
        """
        Predict the targets at new inputs.

        :param return_std: Also return standard deviations, [M, T].
        :param return_cov: Also return the covariance between the targets of each row, [M, T, T].
        :param include_noise: Whether deviations are of new observations, or of the functions.
        :return: Means, or a tuple of means and what else was asked for.
        """
        mean, cov = self._moments(X, None, return_cov, include_noise)
        return self._answer(mean, cov, index_of(X), return_std, return_cov)

    def predict_quantiles(
        self, X: Any, probabilities: Sequence[float], y: Any = None, *, include_noise: bool = True
    ) -> AnyNDArray:
        """
        Quantiles of each target at new inputs: 0.5 for the median, 0.05 and 0.95 for an interval.

        :param y: Known targets, as for :meth:`predict_given`.
        :return: [M, T, number of probabilities], or without T if y was one-dimensional.
        """
        levels = checked_probabilities(probabilities)
        mean, variance = self._moments(X, y, False, include_noise)
        quantiles = self._targets.quantiles(mean, variance, levels)
        return quantiles[:, 0] if self._form.kind in ("vector", "series") else quantiles

    def predict_given(
        self,
        X: Any,
        y: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        include_noise: bool = True,
    ) -> Any:
        """
        Predict targets at new inputs where some of them are known.

        :param y: [M, T], NaN where a target is asked for; a frame may have the known ones only.
        :return: As :meth:`predict`; with noise, a known target keeps its value, with deviation 0.
        """
        mean, cov = self._moments(X, y, return_cov, include_noise)
        return self._answer(mean, cov, index_of(X), return_std, return_cov)

    def _moments(self, X: Any, y: Any, full_cov: bool, include_noise: bool) -> Any:
        """Means [M, T] and covariances [M, T, T], or variances [M, T], of standardised targets."""
        Z, pairs = self._standardised_inputs(X), len(self.target_names_) ** 2
        y = with_all_targets(y, self.target_names_)
        if y is None or np.isnan(y := self._values(y, len(Z))).all():
            predict = self.posterior_.predict_y if include_noise else self.posterior_.predict_f
            return in_blocks(predict, [Z], pairs if full_cov else 1, full_output_cov=full_cov)
        known = self._targets.known(y, self.target_names_)

        def predict_given(Z: AnyNDArray, Y: AnyNDArray) -> Any:
            mean, cov = self.posterior_.predict_given(Z, Y, noise=include_noise)
            return mean, cov if full_cov else tf.linalg.diag_part(cov)

        return in_blocks(predict_given, [Z, known], pairs)

    def log_density(self, X: Any, y: Any) -> Any:
        """
        Log density of the targets of each row, joint over them, [M]: the higher the better.

        Targets that are NaN are left out of their row's density.
        """
        index, Z = index_of(X), self._standardised_inputs(X)
        values = self._values(y, len(Z))
        Y, known = self._targets.standardised(values), ~np.isnan(values)

        def score(Z: AnyNDArray, Y: AnyNDArray) -> Any:
            if known.all():
                return (self.posterior_.predict_log_density(Z, Y, full_output_cov=True),)
            predicted = self.posterior_.predict_y(Z, full_output_cov=True)
            return (tf.constant(known_log_densities(Y, *predicted)),)

        (density,) = in_blocks(score, [Z, Y], len(self.target_names_) ** 2)
        return self._form.column(
            self._targets.log_density(density, values, known), "log_density", index
        )

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination R^2, averaged over the targets; NaN in y is ignored."""
        mean = np.asarray(self.predict(X))
        Y = self._values(y, len(mean))
        weight = np.ones(len(Y)) if sample_weight is None else np.asarray(sample_weight)
        scores = [
            r2_score(y[known], m[known], sample_weight=weight[known])
            for y, m, known in zip(Y.T, mean.reshape(Y.shape).T, ~np.isnan(Y.T), strict=True)
        ]
        return float(np.mean(scores))

    def _standardised_inputs(self, X: Any) -> AnyNDArray:
        check_is_fitted(self, "model_")
        return self._inputs.standardised(new_inputs(self, X, self._encoding))

    def _values(self, y: Any, num_rows: int) -> AnyNDArray:
        """[M, T], targets in the order of the fit; NaN is allowed."""
        return targets_of(y, self.target_names_, num_rows)

    def _answer(
        self, mean: AnyNDArray, cov: AnyNDArray, index: Any, return_std: bool, return_cov: bool
    ) -> Any:
        """What was asked for, in the user's units and form; `cov` may be variances [M, T]."""
        mean, cov = self._targets.moments(mean, cov)
        answer = [self._form.rows(mean, index)]
        if return_std:
            variance = np.diagonal(cov, axis1=1, axis2=2) if cov.ndim == 3 else cov
            answer.append(self._form.rows(np.sqrt(np.maximum(variance, 0.0)), index))
        if return_cov:
            answer.append(self._form.matrices(cov, index))
        return answer[0] if len(answer) == 1 else tuple(answer)

    # Saving --------------------------------------------------------------------------------------

    def to_document(self, writer: Writer) -> dict[str, Any]:
        """The estimator as plain data; `random_state` is kept if it is a number."""
        check_is_fitted(self, "model_")
        settings = {k: plain(v) for k, v in self.get_params(deep=False).items() if k != "kernel"}
        names = getattr(self, "feature_names_in_", None)
        refined = self.chain_ is not None and self.chain_ is not self.model_
        chain = document_of(self.chain_, writer) if refined else None
        return {
            "settings": settings,
            "kernel": self.kernel if isinstance(self.kernel, str) else None,
            "input_names": None if names is None else [str(name) for name in names],
            "layout": [self._form.kind, list(self._form.names)],
            "inputs": [writer.array("input_scaling", part) for part in self._inputs],
            "targets": [writer.array("target_scaling", part) for part in self._targets.scaling],
            "transforms": [list(transform) for transform in self._targets.transforms],
            "encoding": None if self._encoding is None else self._encoding.to_json(),
            "kernel_choice": table_to_json(self.kernel_choice_),
            "model": document_of(self.model_, writer),
            "chain": chain,
        }

    @classmethod
    def from_document(cls, saved: Document, reader: Reader, given: Given) -> Self:
        given = {**given, "mean_function": None}
        model = restore(saved["model"], reader, given)
        kernel = copy.deepcopy(model.kernel) if saved["kernel"] is None else str(saved["kernel"])
        estimator = cls(kernel, **saved["settings"])
        estimator._inputs = Scaling(*(reader.array(name) for name in saved["inputs"]))
        scaling = Scaling(*(reader.array(name) for name in saved["targets"]))
        transforms = saved.get("transforms") or [["none"]] * len(scaling.scale)
        estimator._targets = Warping(tuple(Transform(*part) for part in transforms), scaling)
        encoding = saved.get("encoding")
        estimator._encoding = None if encoding is None else Encoding.from_json(encoding)
        raw = estimator._inputs.centre if encoding is None else encoding["columns"]
        estimator.n_features_in_ = len(raw)
        if saved["input_names"] is not None:
            estimator.feature_names_in_ = np.array(saved["input_names"], dtype=object)
        estimator.kernel_choice_ = table_from_json(saved.get("kernel_choice"))
        estimator.chain_ = model if isinstance(model, ChainModel) else None
        if saved.get("chain") is not None:  # version 0.2 and before did not keep it
            estimator.chain_ = restore(saved["chain"], reader, given)
        kind, names = saved["layout"]
        kind = checks.option(kind, "layout", FORMS)
        return estimator._set_model(model, TargetForm(kind, tuple(names)))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("posterior_", None)  # N x N, and quickly made again
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model_" in self.__dict__:
            self.posterior_ = self.model_.posterior()
