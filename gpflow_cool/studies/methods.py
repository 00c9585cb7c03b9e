"""The models that studies compare, behind one interface, and how their predictions are scored."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import gpflow
import numpy as np
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel

from ..chain.starting import half_median_distance
from ..metrics import arrmse, joint_nlpd, mean_rmse
from ..models import ConvMT, CoolMTGP, IndependentGPs, KroneckerMTGP
from .table import StudyError

NAMES = {
    "truth": "Ground truth",
    "independent": "Indep. GPs",
    "std-mt": "Std-MT",
    "sigma-mt": "Σ-MT",
    "conv-mt": "Conv-MT",
    "cool-approximate": "~Cool-MT",
    "cool-hierarchical": "HCool-MT",
}
"""The methods, with the names that the paper gives them."""

COLORS = {
    "truth": "0.35",
    "independent": "C7",
    "std-mt": "C1",
    "sigma-mt": "C3",
    "conv-mt": "C2",
    "cool-approximate": "C9",
    "cool-hierarchical": "C0",
}

COOL = ("cool-hierarchical", "cool-approximate")

STEPS = {"std-mt": 200, "sigma-mt": 200, "conv-mt": 100}
"""At most so many L-BFGS steps for the methods that learn many parameters; the others converge."""


class Scores(NamedTuple):
    """How well held-out rows are predicted."""

    rmse: float
    """Mean over tasks."""
    arrmse: float
    joint_nlpd: float
    """Mean over rows, joint over the tasks of a row."""


def make_kernel(name: str, X: AnyNDArray) -> Kernel:
    """
    A kernel that starts where its inputs suggest: a squared exponential with half the median
    distance for its lengthscale, a linear one whose diagonal is one on average.

    :param name: "se" or "linear".
    """
    if name == "se":
        return gpflow.kernels.SquaredExponential(lengthscales=half_median_distance(X))
    return gpflow.kernels.Linear(variance=1.0 / max(float(np.mean(np.sum(X**2, axis=1))), 1e-12))


def build(
    method: str, data: tuple[AnyNDArray, AnyNDArray], kernel: Kernel, *, rank: int = 1
) -> Any:
    """
    A model, not trained yet.

    :param method: One of `NAMES` other than "truth", which needs covariances.
    :param rank: P of Std-MT and Sigma-MT.
    """
    if method == "independent":
        return IndependentGPs(data, kernel)
    if method == "conv-mt":
        return ConvMT(data, kernel)
    if method == "std-mt":
        return KroneckerMTGP.std_mt(data, kernel, rank=rank)
    if method == "sigma-mt":
        return KroneckerMTGP.sigma_mt(data, kernel, rank=rank)
    return CoolMTGP(data, kernel, learning=method.removeprefix("cool-"))


def train(model: Any, steps: int | None = None) -> float:
    """
    Train a model without a sound; the seconds that it took.

    :param steps: At most so many steps; the model's own limit if None.
    :raises KeyboardInterrupt: If the user ended training: a model trained by half is no result.
    """
    started = time.perf_counter()
    options = {} if steps is None else {"steps": steps}
    model.fit(verbose=0, **options)
    seconds = time.perf_counter() - started
    parts = model.models if isinstance(model, IndependentGPs) else [model]
    if any(getattr(part, "stop_training", False) for part in parts):
        raise KeyboardInterrupt
    return seconds


def moments(model: Any, Xnew: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    """Mean [M, T] and covariance over tasks [M, T, T] of observations at Xnew."""
    mean, cov = model.predict_y(Xnew, full_output_cov=True)
    return np.asarray(mean), np.asarray(cov)


def scores(
    mean: AnyNDArray, cov: AnyNDArray, Y_test: AnyNDArray, Y_train: AnyNDArray
) -> dict[str, float]:
    """:class:`Scores` of predictions, by name."""
    return Scores(
        mean_rmse(Y_test, mean), arrmse(Y_test, mean, Y_train), joint_nlpd(Y_test, mean, cov)
    )._asdict()


def choose(
    what: str, chosen: Sequence[str] | str | None, known: Iterable[str], default: Iterable[str]
) -> list[str]:
    """
    What the user has chosen, checked, or the default.

    :param what: Name of the option, for the error.
    :param chosen: Names, or one text with commas between them.
    """
    known = list(known)
    if chosen is None:
        return list(default)
    names = chosen.split(",") if isinstance(chosen, str) else list(chosen)
    names = [name.strip() for name in names if name.strip()]
    bad = [name for name in names if name not in known]
    if bad or not names:
        raise StudyError(f"{what}={','.join(bad)!r} is not known. Choose from {', '.join(known)}.")
    return list(dict.fromkeys(names))


def frobenius_distance(A: AnyNDArray, B: AnyNDArray) -> float:
    r"""
    How far A is from B.

    .. math:: \|A - B\|_F / \|B\|_F
    """
    return float(np.linalg.norm(A - B) / np.linalg.norm(B))
