"""Columns in units of their own standard deviations, and predictions back in the user's units."""

from typing import NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray


class Scaling(NamedTuple):
    r"""
    What is taken off each column, and what it is then divided by: :math:`z = (x - c) / s`.
    """

    centre: AnyNDArray
    """[P]."""

    scale: AnyNDArray
    """[P], positive; infinite for a column that is not to be used, which makes it zero."""

    @check_shapes("values: [M, P]", "return: [M, P]")
    def standardised(self, values: AnyNDArray) -> AnyNDArray:
        return (values - self.centre) / self.scale

    @check_shapes("mean: [M, P]", "return: [M, P]")
    def mean(self, mean: AnyNDArray) -> AnyNDArray:
        """Standardised values in the user's units."""
        return mean * self.scale + self.centre

    @check_shapes("cov: [batch..., P, P]", "return: [batch..., P, P]")
    def covariance(self, cov: AnyNDArray) -> AnyNDArray:
        """Covariances between columns in the user's units."""
        return cov * np.multiply.outer(self.scale, self.scale)

    def log_density(self, log_density: AnyNDArray, known: AnyNDArray | None = None) -> AnyNDArray:
        r"""
        Joint log densities of rows in the user's units.

        .. math:: \log p(y) = \log p(z) - \sum_t \log s_t

        :param known: [M, P], which columns a row's density is of; None for all.
        """
        if known is None:
            return log_density - np.sum(np.log(self.scale))
        return log_density - known @ np.log(self.scale)


def no_scaling(num_columns: int) -> Scaling:
    """Leaves everything as it is."""
    return Scaling(np.zeros(num_columns), np.ones(num_columns))


@check_shapes("values: [N, P]")
def standardising(values: AnyNDArray, constant_scale: float) -> Scaling:
    """
    Makes means 0 and standard deviations 1, of the numbers that are not NaN.

    :param constant_scale: What to divide a constant column by.
    """
    centre = np.nanmean(values, axis=0)
    scale = np.where(constant_columns(values), constant_scale, np.nanstd(values, axis=0))
    return Scaling(centre, scale)


@check_shapes("values: [N, P]", "return: [P]")
def constant_columns(values: AnyNDArray) -> AnyNDArray:
    """
    Which columns do not vary by more than rounding, NaN left aside.

    >>> constant_columns(np.array([[0.1, 1.0], [0.1, 2.0]])).tolist()
    [True, False]
    """
    rounding = 10.0 * np.finfo(np.float64).eps * np.nanmax(np.abs(values), axis=0)
    return np.asarray(np.nanmax(values, axis=0) - np.nanmin(values, axis=0) <= rounding)
