"""Intervals and regions whose level is that of training rows, each predicted from the others."""

import math
from typing import Any

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from sklearn.utils.validation import check_is_fitted

from .columns import TargetForm, index_of
from .transforms import Warping


class Intervals:
    """Methods of the estimator about intervals that hold what they promise."""

    model_: Any
    _targets: Warping
    _form: TargetForm

    def _moments(self, X: Any, y: Any, full_cov: bool, include_noise: bool) -> Any:
        raise NotImplementedError

    def predict_interval(self, X: Any, level: float = 0.9, *, joint: bool = False) -> Any:
        """
        Lower and upper ends of intervals that hold new observations with a given probability.

        The width is not the normal distribution's. It is such that the training rows, each
        predicted from all the others, are inside as often as the level says. With n rows, this
        frequency is known to about (level (1 - level) / n)^(1/2). It is somewhat optimistic where
        rows are few or inputs many, because the model has learnt from all rows.

        >>> import numpy as np
        >>> from gpflow_cool import CoolMTGPRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> noise = 0.1 * np.random.default_rng(0).normal(size=[40, 2])
        >>> regressor = CoolMTGPRegressor("se").fit(X, np.hstack([np.sin(X), np.cos(X)]) + noise)
        >>> lower, upper = regressor.predict_interval([[1.0]])
        >>> bool(np.all((lower < [np.sin(1), np.cos(1)]) & ([np.sin(1), np.cos(1)] < upper)))
        True

        :param level: Between 0 and 1.
        :param joint: Whether all targets of a row are inside at once with this probability, or each
            of them on its own. Rows with missing targets then do not count.
        :return: Two answers in the form of :meth:`predict`.
        """
        check_is_fitted(self, "model_")
        z = np.abs(self._left_out_residuals())
        if joint:
            complete = z[~np.isnan(z).any(axis=1)]
            z = np.repeat(np.max(complete, axis=1, keepdims=True), z.shape[1], axis=1)
        width = np.array([raised_quantile(column[~np.isnan(column)], level) for column in z.T])
        mean, variance = self._moments(X, None, False, True)
        reach, index = width * np.sqrt(variance), index_of(X)
        ends = self._targets.values(mean - reach), self._targets.values(mean + reach)
        return tuple(self._form.rows(end, index) for end in ends)

    def region_distance(self, level: float = 0.9) -> float:
        r"""
        The distance within which the targets of a row lie with a given probability.

        .. math:: d^2 = (y - \mu)^\top S^{-1} (y - \mu)

        with mean :math:`\mu` and covariance S of :meth:`predict` (of the transformed targets, if
        there is a `target_transform`). It is the quantile of these distances of the training rows,
        each predicted from all the others, as for :meth:`predict_interval`. For normal
        distributions it would be the root of a quantile of the chi-squared distribution with T
        degrees of freedom.
        """
        check_is_fitted(self, "model_")
        if self.model_.observed is not None:
            raise ValueError("Targets are missing, so that distances of rows are not comparable.")
        rows = self.model_.leave_one_out()
        residual = self._trained_targets() - rows.mean.numpy()
        return raised_quantile(mahalanobis(residual, rows.cov.numpy()), level)

    def _left_out_residuals(self) -> AnyNDArray:
        """[N, T], residuals of the rows over their deviations, each predicted from the others."""
        rows = self.model_.leave_one_out(full_output_cov=False)
        return (self._trained_targets() - rows.mean.numpy()) / np.sqrt(rows.cov.numpy())

    def _trained_targets(self) -> AnyNDArray:
        """[N, T], of the rows that are left out in turn; `data` of a sparse model is a sample."""
        return np.asarray(self.model_.rows.arrays()[1])


@check_shapes("residual: [N, T]", "cov: [N, T, T]", "return: [N]")
def mahalanobis(residual: AnyNDArray, cov: AnyNDArray) -> AnyNDArray:
    """Distances of residuals from zero, in units of their covariances."""
    white = np.linalg.solve(np.linalg.cholesky(cov), residual[..., None])[..., 0]
    return np.linalg.norm(white, axis=1)


def raised_quantile(values: AnyNDArray, level: float) -> float:
    r"""
    The smallest of n values that is at least as large as :math:`\lceil (n + 1) p \rceil` of them: a
    new value of the same law is at most that large with probability p or more.

    >>> raised_quantile(np.arange(1.0, 10.0), 0.8)
    8.0
    """
    if not isinstance(level, float | np.floating) or not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r} is a probability: pass a number between 0 and 1.")
    rank = math.ceil(round((len(values) + 1) * level, 9))
    if rank > len(values):
        needed = math.ceil(round(level / (1.0 - level), 9))
        raise ValueError(
            f"level={level:g} needs at least {needed} rows, of which {len(values)} are known:"
            " lower the level, or use the deviations of predict(X, return_std=True)."
        )
    return float(np.sort(values)[rank - 1])
