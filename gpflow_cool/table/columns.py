"""
Columns: in units of their own standard deviations and back; data frames in, data frames out.

Pandas is imported only where a frame is made, which takes one that came in.
"""

from typing import Any, NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

KINDS = ("array", "vector", "frame", "series")


# Standardised columns -----------------------------------------------------------------------------


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


# Forms of the targets and of answers --------------------------------------------------------------


class RowsLeftOut(NamedTuple):
    """Every training row predicted from all the others, in the user's units."""

    mean: Any
    """[N, T]; like the rest, NaN where a target is missing."""

    std: Any
    """[N, T], of the observation, noise included."""

    cov: Any
    """[N, T, T]."""

    log_density: Any
    """[N], joint over the tasks of a row that are observed."""


class Imputed(NamedTuple):
    """Targets with the missing ones filled in, in the user's units."""

    completed: Any
    """[N, T], what was observed as it is, and the means of what was not."""

    std: Any
    """[N, T], standard deviations of the missing targets; zero for the others."""

    cov: Any
    """[N, T, T], covariance of each row's missing targets; zero for the others."""


class Layout(NamedTuple):
    """The form of the targets."""

    kind: str
    """"array" [N, T], "vector" [N], "frame" or "series"."""

    names: tuple[str, ...]
    """Names of the columns."""

    def rows(self, values: AnyNDArray, index: Any = None) -> Any:
        """One row a point: [M, T] in the form of the targets."""
        if self.kind == "array":
            return values
        if self.kind == "vector":
            return values[:, 0]
        import pandas as pd

        frame = pd.DataFrame(values, index=index, columns=list(self.names))
        return frame if self.kind == "frame" else frame.iloc[:, 0]

    def column(self, values: AnyNDArray, name: str, index: Any = None) -> Any:
        """One number a point, [M]."""
        if self.kind in ("array", "vector"):
            return values
        import pandas as pd

        return pd.Series(values, index=index, name=name)

    def matrix(self, values: AnyNDArray) -> Any:
        """A matrix between tasks, [T, T]."""
        if self.kind in ("array", "vector"):
            return values
        import pandas as pd

        return pd.DataFrame(values, index=list(self.names), columns=list(self.names))

    def matrices(self, values: AnyNDArray, index: Any = None) -> Any:
        """A matrix between tasks a point, [M, T, T]; in a frame, `.loc[row]` is one of them."""
        if self.kind in ("array", "vector"):
            return values
        import pandas as pd

        labels = np.arange(len(values)) if index is None else index
        pairs = [labels.repeat(len(self.names)), list(self.names) * len(values)]
        rows = pd.MultiIndex.from_arrays(pairs, names=["row", "task"])
        return pd.DataFrame(
            values.reshape(-1, len(self.names)), index=rows, columns=list(self.names)
        )


def layout_of(y: Any, values: AnyNDArray) -> Layout:
    """
    The form that targets came in.

    :param values: The same as an array, [N] or [N, T].
    """
    if is_frame(y):
        return Layout("frame", tuple(str(name) for name in y.columns))
    if is_series(y):
        return Layout("series", ("y" if y.name is None else str(y.name),))
    if values.ndim == 1:
        return Layout("vector", ("y",))
    return Layout("array", tuple(f"task_{t}" for t in range(values.shape[1])))


def is_frame(value: Any) -> bool:
    """Whether something is a data frame of pandas, which need not be installed to ask."""
    return hasattr(value, "iloc") and hasattr(value, "columns")


def is_series(value: Any) -> bool:
    return hasattr(value, "iloc") and not hasattr(value, "columns") and hasattr(value, "name")


def index_of(X: Any) -> Any:
    """Labels of the rows of a frame or a series; None if it is neither."""
    return X.index if is_frame(X) or is_series(X) else None
