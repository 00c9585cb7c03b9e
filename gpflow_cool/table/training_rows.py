"""What an estimator tells of the rows that were in its fit."""

from typing import Any

import numpy as np
from gpflow.base import AnyNDArray
from sklearn.utils.validation import check_is_fitted
from typing_extensions import Self

from ..systems.summed import SummedRows
from .columns import Imputed, LeaveOneOutAnswer, Scaling, TargetForm, index_of
from .encoding import Encoding
from .inputs import encoded_names
from .transforms import Warping


class TrainingRows:
    """Methods of the estimator about its training rows."""

    model_: Any
    chain_: Any
    _inputs: Scaling
    _targets: Warping
    _encoding: Encoding | None
    _form: TargetForm
    target_names_: tuple[str, ...]

    def _values(self, y: Any, num_rows: int) -> AnyNDArray:
        raise NotImplementedError

    def _answer(
        self, mean: AnyNDArray, cov: AnyNDArray, index: Any, return_std: bool, return_cov: bool
    ) -> Any:
        raise NotImplementedError

    def _standardised_inputs(self, X: Any) -> AnyNDArray:
        raise NotImplementedError

    def _set_model(self, model: Any, form: TargetForm) -> Self:
        raise NotImplementedError

    def add_rows(self, X: Any, y: Any) -> Self:
        """
        Take more rows into the fitted estimator, without training.

        Predictions are then those given all rows, at the parameters, scaling and categories of the
        fit; only with `orders=1` and with inducing points, C and Sigma are recovered from all rows.
        This is no `partial_fit`, which would learn: to train again, fit all rows.

        >>> import numpy as np
        >>> from gpflow_cool import CoolMTGPRegressor
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> noise = 0.1 * np.random.default_rng(0).normal(size=[20, 2])
        >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)]) + noise
        >>> regressor = CoolMTGPRegressor(kernel="se").fit(X[:15], Y[:15])
        >>> before = np.abs(regressor.predict(X[19:]) - Y[19:]).max()
        >>> after = np.abs(regressor.add_rows(X[15:], Y[15:]).predict(X[19:]) - Y[19:]).max()
        >>> bool(after < before)
        True

        :param X: [q, D], or a frame with the columns of the fit.
        :param y: [q, T], NaN where a target is missing.
        """
        Z = self._standardised_inputs(X)
        Y = self._targets.known(self._values(y, len(Z)), self.target_names_)
        self.model_.add_rows(Z, Y)
        if self.chain_ is not None and self.chain_ is not self.model_:
            self.chain_.add_rows(Z, Y)
        old, new = getattr(self, "_index", None), index_of(y)
        self._index = None if old is None or new is None else old.append(new)
        return self._set_model(self.model_, self._form)

    @property
    def encoded_names_(self) -> list[str]:
        """
        Names of the inputs that the kernel sees: one per category of a column of words, say
        "hue=red", and one per column that had gaps, say "size missing".
        """
        check_is_fitted(self, "model_")
        names = encoded_names(self, self._encoding)
        return [f"x{d}" for d in range(len(self._inputs.scale))] if names is None else names

    @property
    def encoded_kinds_(self) -> list[str]:
        """What each of these inputs is: "number", "date", "duration" or "indicator"."""
        if self._encoding is None:
            return ["number"] * len(self.encoded_names_)
        return [
            "indicator" if is_indicator else coding.kind
            for coding in self._encoding.codings
            for is_indicator in coding.indicators
        ]

    def typical_inputs(self) -> AnyNDArray:
        """[D], encoded: the means of numbers and dates, the most frequent categories, no gaps."""
        X, _ = self.training_data()
        mean = X.mean(axis=0)
        return mean if self._encoding is None else self._encoding.typical(mean)

    def impute(self, y: Any) -> Imputed:
        """
        Fill in what is missing of the targets that the estimator was fitted to.

        Missing targets are predicted from all that was observed, in their own row and in the
        others. For rows that were not in the fit, use :meth:`predict_given`.

        :param y: The targets of the fit, [N, T], NaN where one is missing. The index of a frame is
            kept.
        """
        _, trained = self.training_data()
        if isinstance(self.model_.rows, SummedRows):
            raise ValueError(
                "The estimator was fitted to a stream of rows, which had no gaps and are not kept:"
                " there is nothing to fill in. For the gaps of another table, use"
                " predict_given(X, y)."
            )
        Y = self._values(y, len(trained))
        Z = self._targets.standardised(Y), self._targets.standardised(trained)
        other = ~np.isclose(*Z, rtol=1e-6, atol=1e-6, equal_nan=True)
        if other.any():
            n, t = np.argwhere(other)[0]
            raise ValueError(
                f"y[{n}, {t}] is {Y[n, t]:g}, but {trained[n, t]:g} in the fit: impute fills in the"
                " targets of the fit. Fit again, or use predict_given(X, y) for other rows."
            )
        gaps, index = np.isnan(Y), index_of(y)
        moments = Z[0], np.zeros([*Y.shape, Y.shape[1]])
        if gaps.any():  # never with inducing points
            moments = tuple(part.numpy() for part in self.model_.impute())
        mean, std, cov = self._answer(*moments, index, True, True)
        completed = np.where(gaps, np.asarray(mean).reshape(Y.shape), Y)
        return Imputed(self._form.rows(completed, index), std, cov)

    @property
    def leave_one_out_(self) -> LeaveOneOutAnswer:
        """
        Every training row predicted from all the others, in closed form, without a refit.

        This is optimistic: kernel, covariances and scaling have seen the row, and a copy of it may
        be among the others. Frames have the index that y had in `fit`; it is not saved, so that a
        loaded estimator answers with arrays.
        """
        return self._leave_one_out(return_cov=True)

    def _leave_one_out(self, return_cov: bool) -> LeaveOneOutAnswer:
        check_is_fitted(self, "model_")
        rows = self.model_.leave_one_out(full_output_cov=return_cov)
        index = getattr(self, "_index", None)
        moments = np.asarray(rows.mean), np.asarray(rows.cov)  # .numpy() would copy them
        mean, std, *covariances = self._answer(*moments, index, True, return_cov)
        cov = covariances[0] if return_cov else None
        _, Y = self.training_data()
        density = self._targets.log_density(rows.log_density.numpy(), Y, ~np.isnan(Y))
        return LeaveOneOutAnswer(mean, std, cov, self._form.column(density, "log_density", index))

    def training_data(self) -> tuple[AnyNDArray, AnyNDArray]:
        """Inputs [N, D], encoded, and targets [N, T] of the fit, in their own units, with NaN."""
        check_is_fitted(self, "model_")
        X, Y = (np.asarray(part) for part in self.model_.rows.arrays())
        scale = np.where(np.isinf(self._inputs.scale), 0.0, self._inputs.scale)
        return X * scale + self._inputs.centre, self._targets.values(Y)
