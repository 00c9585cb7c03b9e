"""The models that studies compare, behind one interface, and how their predictions are scored."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gpflow
import numpy as np
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel

from ..chain.starting import half_median_distance
from ..metrics import arrmse, joint_nlpd, mean_rmse
from ..models import ConvMT, CoolMTGP, IndependentGPs, KroneckerMTGP
from .records import StudyError

NAMES_AND_COLORS = {
    "truth": ("Ground truth", "0.35"),
    "independent": ("Indep. GPs", "C7"),
    "std-mt": ("Std-MT", "C1"),
    "sigma-mt": ("Σ-MT", "C3"),
    "conv-mt": ("Conv-MT", "C2"),
    "cool-approximate": ("~Cool-MT", "C9"),
    "cool-hierarchical": ("HCool-MT", "C0"),
}
NAMES = {method: name for method, (name, _) in NAMES_AND_COLORS.items()}
"""The methods, with the names that the paper gives them, in the order of its figures."""
COLORS = {method: color for method, (_, color) in NAMES_AND_COLORS.items()}

Names = Sequence[str] | str | None
"""Names that a user chooses, or one text with commas between them; None for the default."""

COOL = ("cool-hierarchical", "cool-approximate")

STEPS = {"std-mt": 200, "sigma-mt": 200, "conv-mt": 100}
"""At most so many L-BFGS steps for the methods that learn many parameters; the others converge."""


def step_limit(
    method: str, steps: int | None, defaults: Mapping[str, int] = STEPS
) -> dict[str, int | None]:
    """
    The effort of a method: at most so many L-BFGS steps, None for a method that converges.

    :param steps: What the user asks for; None for the method's default.
    """
    return {"steps": (steps or defaults[method]) if method in defaults else None}


def make_kernel(name: str, X: AnyNDArray) -> Kernel:
    """
    A kernel whose parameters start at values that suit the inputs: a squared exponential with half
    the median distance for its lengthscale, or a linear one whose diagonal is one on average.

    :param name: "se" or "linear".
    """
    if name == "se":
        return gpflow.kernels.SquaredExponential(lengthscales=half_median_distance(X))
    return gpflow.kernels.Linear(variance=1.0 / max(float(np.mean(np.sum(X**2, axis=1))), 1e-12))


def build(
    method: str,
    data: tuple[AnyNDArray, AnyNDArray],
    kernel: Kernel,
    *,
    rank: int = 1,
    weight_prior: str = "unit",
) -> Any:
    """
    A model, not trained yet.

    :param method: One of `NAMES` other than "truth", which needs covariances.
    :param rank: P of Std-MT and Sigma-MT.
    :param weight_prior: Of the weights between tasks in Cool-MT; by default the paper's.
    """
    if method == "independent":
        return IndependentGPs(data, kernel)
    if method == "conv-mt":
        return ConvMT(data, kernel)
    if method == "std-mt":
        return KroneckerMTGP.std_mt(data, kernel, rank=rank)
    if method == "sigma-mt":
        return KroneckerMTGP.sigma_mt(data, kernel, rank=rank)
    learning = method.removeprefix("cool-")
    return CoolMTGP(data, kernel, learning=learning, weight_prior=weight_prior)


def train(model: Any, steps: int | None = None) -> float:
    """
    Train a model without printing anything; return the seconds that it took.

    :param steps: At most so many steps; the model's own limit if None.
    :raises KeyboardInterrupt: If the user ended training: a half-trained model is not a result.
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
    """How well held-out rows are predicted: means over tasks, and the joint density of a row."""
    return {
        "rmse": mean_rmse(Y_test, mean),
        "arrmse": arrmse(Y_test, mean, Y_train),
        "joint_nlpd": joint_nlpd(Y_test, mean, cov),
    }


def choose(
    what: str, chosen: Names, known: Iterable[str], default: Iterable[str] | None = None
) -> list[str]:
    """
    What the user has chosen, checked, or the default.

    :param what: Name of the option, for the error.
    :param default: All that are known if None.
    """
    known = list(known)
    if chosen is None:
        return known if default is None else list(default)
    names = chosen.split(",") if isinstance(chosen, str) else list(chosen)
    names = [name.strip() for name in names if name.strip()]
    bad = [name for name in names if name not in known]
    if bad or not names:
        raise StudyError(f"{what}={','.join(bad)!r} is not known. Choose from {', '.join(known)}.")
    return list(dict.fromkeys(names))


def frobenius_distance(A: AnyNDArray, B: AnyNDArray) -> float:
    r"""The relative distance of A from B, :math:`\|A - B\|_F / \|B\|_F`."""
    return float(np.linalg.norm(A - B) / np.linalg.norm(B))
