"""
Data frames in, data frames out: what the targets came as, and answers in the same form.

Pandas is imported only where a frame is made, which takes one that came in.
"""

from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

KINDS = ("array", "vector", "frame", "series")


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
