r"""
Data of the paper's experiments: two generators, and a reader of the Mulan regression sets.

The generators draw from seeded laws, so that a study can be repeated to the last digit. The Mulan
files are third-party data and no part of this package: :func:`load_mulan` reads them from where
the user keeps them.
"""

from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from scipy.stats import truncnorm

from .table import arff

TWO_TASK_NOISE = ((0.1, 0.05), (0.05, 0.1))
"""Noise covariance of the two-task data."""

TWO_TASK_CENTRES = (0.25, 0.75)
"""Where the two-task training inputs gather."""

MULAN_TARGETS = {
    "andro": 6,
    "atp1d": 6,
    "atp7d": 6,
    "edm": 2,
    "enb": 2,
    "oes10": 16,
    "oes97": 16,
    "scm1d": 16,
    "scm20d": 16,
    "slump": 3,
}
"""Number of targets, the last columns, of the ten Mulan sets of the paper."""


class TwoTaskData(NamedTuple):
    """Rows of the two-task law; see :func:`clustered_two_task`."""

    X: AnyNDArray
    """Inputs [N, 1] inside (0, 1)."""
    Y: AnyNDArray
    """Targets [N, 2]."""
    noise_covariance: AnyNDArray
    """True noise covariance [2, 2]."""


class LowRankData(NamedTuple):
    """One draw of the synthetic benchmark; see :func:`low_rank_synthetic`."""

    X: AnyNDArray
    """Inputs [N, D]."""
    Y: AnyNDArray
    """Targets [N, T]."""
    C: AnyNDArray
    """True task covariance [T, T]."""
    Sigma: AnyNDArray
    """True noise covariance [T, T]."""


class MulanData(NamedTuple):
    """A multi-target regression set; see :func:`load_mulan`."""

    X: AnyNDArray
    """Inputs [N, D]; NaN where the file has a question mark."""
    Y: AnyNDArray
    """Targets [N, T]; NaN where the file has a question mark."""
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]


@check_shapes("X: [N, 1]", "return: [N, 2]")
def two_task_mean(X: AnyNDArray) -> AnyNDArray:
    r"""
    True functions of the two-task data.

    .. math:: f(x) = (\cos 2 \pi x, \; \sin 2 \pi x)
    """
    angle = 2.0 * np.pi * np.asarray(X)
    return np.hstack([np.cos(angle), np.sin(angle)])


@check_shapes("X: [N, 1]", "return.X: [N, 1]", "return.Y: [N, 2]")
def two_task_at(X: AnyNDArray, seed: int = 0) -> TwoTaskData:
    r"""
    Targets of the two-task law at given inputs.

    .. math:: y_n \sim N\big(f(x_n), \Sigma\big), \qquad
        \Sigma = \begin{pmatrix} 0.1 & 0.05 \\ 0.05 & 0.1 \end{pmatrix}

    :param X: Where to draw; a row may occur many times.
    """
    X = np.asarray(X, dtype=float)
    return _two_task(X, np.random.default_rng(seed))


def clustered_two_task(num_rows: int = 40, seed: int = 0, *, spread: float = 0.06) -> TwoTaskData:
    """
    Training data of the paper's study of predictive variances.

    Half of the inputs gather at 0.25, half at 0.75 (the first group gets the odd one), so that
    there are regions with little data. Each group is normal, truncated to (0, 1).

    >>> X, Y, noise_covariance = clustered_two_task(num_rows=10)
    >>> X.shape, Y.shape, noise_covariance.tolist()
    ((10, 1), (10, 2), [[0.1, 0.05], [0.05, 0.1]])

    :param spread: Standard deviation of a group before truncation.
    """
    _check_at_least_one(num_rows=num_rows)
    if not spread > 0:
        raise ValueError(f"spread={spread!r} is a standard deviation: pass a positive number.")
    rng = np.random.default_rng(seed)
    centres = np.repeat(TWO_TASK_CENTRES, [(num_rows + 1) // 2, num_rows // 2])
    low, high = -centres / spread, (1.0 - centres) / spread
    x = truncnorm.rvs(low, high, loc=centres, scale=spread, random_state=rng)
    return _two_task(x[:, None], rng)


def uniform_two_task(num_rows: int = 1000, seed: int = 1) -> TwoTaskData:
    """
    Held-out data of the same law as :func:`clustered_two_task`, inputs uniform in (0, 1).

    >>> X, Y, _ = uniform_two_task(num_rows=100)
    >>> X.shape, Y.shape, bool(X.min() > 0 and X.max() < 1)
    ((100, 1), (100, 2), True)
    """
    _check_at_least_one(num_rows=num_rows)
    rng = np.random.default_rng(seed)
    return _two_task(rng.uniform(size=[num_rows, 1]), rng)


@check_shapes("return.X: [N, D]", "return.Y: [N, T]", "return.C: [T, T]", "return.Sigma: [T, T]")
def low_rank_synthetic(
    rank: int = 5,
    seed: int = 0,
    *,
    num_rows: int = 200,
    num_tasks: int = 15,
    num_inputs: int = 25,
    noise_scale: float = 0.3,
) -> LowRankData:
    r"""
    One draw of the paper's synthetic benchmark, where R is 5, 10 or 15.

    .. math:: \mathrm{vec}(Y) \sim N(0, C \otimes K + \Sigma \otimes I), \qquad
        K = X X^\top, \quad C = \sum_{r=1}^R c_r c_r^\top, \quad
        \Sigma = 0.3^2 \sum_{r=1}^R s_r s_r^\top

    Entries of X are normal with standard deviation 1/5, those of c and s standard normal. No
    N T x N T matrix is formed: Y = X Z c^T + 0.3 G s^T with standard normal Z [D, R] and G [N, R].

    >>> drawn = low_rank_synthetic(rank=5, num_rows=50)
    >>> drawn.X.shape, drawn.Y.shape, int(np.linalg.matrix_rank(drawn.Sigma))
    ((50, 25), (50, 15), 5)

    :param rank: R, the rank of both covariances where it is below the number of tasks.
    """
    _check_at_least_one(rank=rank, num_rows=num_rows, num_tasks=num_tasks, num_inputs=num_inputs)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal([num_rows, num_inputs]) / 5.0
    c = rng.standard_normal([num_tasks, rank])
    s = noise_scale * rng.standard_normal([num_tasks, rank])
    F = X @ rng.standard_normal([num_inputs, rank]) @ c.T  # [N, T]
    E = rng.standard_normal([num_rows, rank]) @ s.T  # [N, T]
    return LowRankData(X, F + E, C=c @ c.T, Sigma=s @ s.T)


@check_shapes("return.X: [N, D]", "return.Y: [N, T]")
def load_mulan(
    name_or_path: str | PathLike[str],
    folder: str | PathLike[str] | None = None,
    *,
    num_targets: int | None = None,
) -> MulanData:
    """
    Read one of the Mulan multi-target regression sets, or any ARFF file with numeric columns.

    >>> from tempfile import TemporaryDirectory
    >>> columns = ["@attribute x numeric", "@attribute y numeric"]
    >>> lines = ["@relation r", *columns, "@data", "1,2", "3,4"]
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "small.arff"
    ...     _ = path.write_text("\\n".join(lines))
    ...     found = load_mulan(path, num_targets=1)
    >>> found.X.tolist(), found.Y.tolist()
    ([[1.0], [3.0]], [[2.0], [4.0]])

    :param name_or_path: One of the ten names in ``MULAN_TARGETS``, or the path of a file.
    :param folder: The folder that holds the files; needed with a name.
    :param num_targets: How many of the last columns are targets; known for the ten sets.
    :raises FileNotFoundError: If the folder or the file is not there.
    :raises ValueError: If the name is not known or the file is not what it should be; names the
        line.
    """
    path = _mulan_path(name_or_path, folder)
    if num_targets is None:
        num_targets = _known_targets(path)
    names, table = read_arff(path)
    if not 0 < num_targets < len(names):
        raise ValueError(
            f"num_targets={num_targets!r}, but {path} has {len(names)} columns: at least one must"
            " be a target and one an input."
        )
    split = len(names) - num_targets
    return MulanData(table[:, :split], table[:, split:], names[:split], names[split:])


def read_arff(path: str | PathLike[str]) -> tuple[tuple[str, ...], AnyNDArray]:
    """
    Read a dense ARFF file whose columns hold numbers.

    A column may be declared ``numeric``, ``real`` or ``integer``, or list its values if these are
    numbers. A question mark becomes NaN.

    >>> from tempfile import TemporaryDirectory
    >>> columns = ["@attribute x numeric", "@attribute y numeric"]
    >>> lines = ["@relation r", *columns, "@data", "1,2", "3,?"]
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "small.arff"
    ...     _ = path.write_text("\\n".join(lines))
    ...     names, table = read_arff(path)
    >>> names, table.tolist()
    (('x', 'y'), [[1.0, 2.0], [3.0, nan]])

    :return: The names of the columns, and the table [N, number of columns].
    """
    found = arff.read(path, only_numbers=True)
    rows = [arff.parse_numbers(cells, where, found.names) for cells, where in found.rows()]
    return found.names, np.array(rows)


def _two_task(X: AnyNDArray, rng: np.random.Generator) -> TwoTaskData:
    """Draw targets at X from the two-task law."""
    Sigma = np.array(TWO_TASK_NOISE)
    noise = rng.standard_normal([len(X), 2]) @ np.linalg.cholesky(Sigma).T
    return TwoTaskData(X, two_task_mean(X) + noise, Sigma)


def _check_at_least_one(**sizes: int) -> None:
    """Raise unless each size is at least one."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size!r} must be at least 1.")


def _mulan_path(name_or_path: str | PathLike[str], folder: str | PathLike[str] | None) -> Path:
    """Where the file is, checked to be there."""
    given = Path(name_or_path)
    is_name = given.suffix == "" and given.name == str(given)
    if is_name and str(given) not in MULAN_TARGETS:
        raise ValueError(
            f"{str(given)!r} is not a set that is known. Choose one of {', '.join(MULAN_TARGETS)},"
            " or pass the path of an .arff file and num_targets."
        )
    if is_name and folder is None:
        raise ValueError(
            f"Pass folder, where {given}.arff is: the package holds no data. The files are"
            " published by the Mulan project and by OpenML."
        )
    if folder is not None and not Path(folder).is_dir():
        raise FileNotFoundError(f"folder={str(folder)!r} is not a folder: check the path.")
    path = Path(folder or ".") / (f"{given}.arff" if is_name else given)
    if not path.is_file():
        found = sorted(file.name for file in path.parent.glob("*.arff"))
        there = ", ".join(found) if found else "no .arff file"
        raise FileNotFoundError(f"{path} is not there. Its folder holds {there}.")
    return path


def _known_targets(path: Path) -> int:
    """Number of targets of a set, known by the name of its file."""
    if path.stem not in MULAN_TARGETS:
        raise ValueError(
            f"How many of the last columns of {path} are targets is not known: pass num_targets."
        )
    return MULAN_TARGETS[path.stem]
