"""
Does the coupling pay? Cross-validation of Cool-MTGP beside models that couple the tasks less.

All methods see the same folds, the same kernel and the same standardised columns; scores are in the
user's units. Where Cool-MTGP chooses its kernel, the others take the one that it has chosen in the
same fold, and train it. Missing targets (NaN) are left out of the scores.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel

from .. import checks
from ..metrics import known_log_densities
from ..models.competitors import IndependentGPs
from ..models.cool import CoolMTGP
from ..models.exact import KroneckerMTGP
from ..selection.choice import PER_INPUT, KernelTable
from .choices import (
    SHRUNK,
    choose_model,
    make_kernel,
    refine_where_possible,
    train_model,
)
from .columns import scalings
from .costs import DEFAULT_ORDERS
from .encoding import Encoding
from .folds import Fold, check_folds, check_trainable, split_rows
from .inputs import keep_indicators
from .transforms import learn_warping

COOL, INDEPENDENT, STD_MT = "Cool-MTGP", "independent GPs", "Std-MT"
MAX_RANK = 2
"""Rank of Std-MT where there are that many tasks."""


class MethodScores(NamedTuple):
    """Scores of one method, over all held-out rows."""

    rmse: AnyNDArray
    """[T], in the user's units."""

    arrmse: float
    """Error relative to predicting the training mean, averaged over tasks."""

    joint_nlpd: float
    """Negative log density per row, joint over its tasks."""

    nlpd_rows: AnyNDArray
    """[N], the same of each row; NaN for a row with no target."""

    error_rows: AnyNDArray
    """[N], squared errors relative to those of the training mean, averaged over known tasks."""

    seconds: float
    """Time of all fits and predictions."""


Maker = Callable[..., Any]
"""Makes a model of data and a kernel, not trained yet."""


class Candidate(NamedTuple):
    """A model to be scored."""

    make: Maker
    kernel: str | Kernel | None
    """Copied for every fit; sees standardised inputs. None for that of the first candidate, which
    in every fold is trained anew."""

    transform: Any = "none"
    """Of the targets, as for the estimator."""

    ard: bool | str | None = None
    """As for the estimator, which then trains the model; None for a kernel that is trained as it
    is."""


class Recipe(NamedTuple):
    """A kernel before training, and how it is trained."""

    kernel: Kernel
    relevance: str
    """As for :meth:`gpflow_cool.CoolMTGP.fit`."""


def less_coupled(num_tasks: int) -> dict[str, Maker]:
    """The models that couple the tasks less, by name."""
    rank = min(MAX_RANK, num_tasks)
    return {
        INDEPENDENT: IndependentGPs,
        f"{STD_MT}, rank {rank}": partial(KroneckerMTGP.std_mt, rank=rank),
    }


def candidates_of(
    kernels: Mapping[str, str | Kernel],
    num_tasks: int,
    learning: str,
    *,
    ard: bool | str | None = None,
    transform: Any = "none",
    inducing: int = 0,
    coupling: bool = True,
) -> dict[str, Candidate]:
    """
    What is compared: Cool-MTGP with every kernel, without and with a transform of the targets, and
    models that couple the tasks less, with the first kernel and lengthscales of their own.

    :param kernels: By name; the first is that of plain "Cool-MTGP".
    :param ard: Candidate's `ard`.
    :param inducing: Number of inducing points of Cool-MTGP, 0 for the exact model.
    :param coupling: Whether the models that couple the tasks less are among them.
    """
    names = [f"task_{t}" for t in range(num_tasks)]
    cool = partial(choose_model, inducing=inducing, learning=learning, task_names=names)
    first = next(iter(kernels))
    found = {}
    for name, kernel in kernels.items():
        own = COOL if name == first else f"{COOL}, {name}"
        found[own] = Candidate(cool, kernel, ard=ard)
        if transform != "none":
            found[f"{own}, {named(transform)}"] = Candidate(cool, kernel, transform, ard)
    if coupling:
        others = less_coupled(num_tasks)
        found |= {name: Candidate(make, None) for name, make in others.items()}
    return found


def named(transform: Any) -> str:
    """
    >>> named("log"), named({"rain": "log"})
    ('log', 'rain=log')
    """
    if isinstance(transform, str):
        return transform
    return " ".join(f"{target}={kind}" for target, kind in transform.items())


@check_shapes("X: [N, D]", "Y: [N, T]")
def cross_validate(
    X: AnyNDArray,
    Y: AnyNDArray,
    kernel: Kernel,
    *,
    folds: int = 5,
    learning: str = "approximate",
    seed: int = 0,
    progress: Callable[[str], object] = lambda name: None,
) -> dict[str, MethodScores]:
    """
    Scores of Cool-MTGP and of models that couple the tasks less, by name.

    :param kernel: Copied for every fit; sees standardised inputs.
    :param folds: Number of parts into which the rows are split at random.
    :param progress: Called with the name of a method after each of its fits.
    """
    checks.positive_integer(folds, "folds")
    check_folds(folds, len(X))
    parts = list(split_rows(len(X), folds, seed))
    check_trainable(Y, list(map(str, range(Y.shape[1]))), parts)
    candidates = candidates_of({"": kernel}, Y.shape[1], learning)
    return score_candidates(X, Y, candidates, parts, progress=progress)


@check_shapes("X: [N, D]", "Y: [N, T]")
def score_candidates(
    X: AnyNDArray,
    Y: AnyNDArray,
    candidates: Mapping[str, Candidate],
    parts: Sequence[Fold],
    *,
    names: Sequence[str] | None = None,
    encoding: Encoding | None = None,
    progress: Callable[[str], object] = lambda name: None,
) -> dict[str, MethodScores]:
    """
    Scores of every candidate, by its name, over the rows that are held out.

    :param parts: Training and test rows of every fold; each row is in one test part.
    :param names: Of the targets.
    :param encoding: Of the inputs, as the estimator uses it.
    :param progress: Called with the name of a candidate after each of its fits.
    """
    mean = {name: np.empty_like(Y) for name in candidates}
    nlpd = {name: np.empty(len(Y)) for name in candidates}
    seconds = dict.fromkeys(candidates, 0.0)
    baseline = np.empty_like(Y)  # the prediction that knows only the mean of the training rows
    names = list(map(str, range(Y.shape[1]))) if names is None else names
    for train, test in parts:
        baseline[test] = np.nanmean(Y[train], axis=0)
        held = HeldOut(X[train], Y[train], X[test], Y[test], names, encoding)
        first: Recipe | None = None
        for name, candidate in candidates.items():
            started = time.perf_counter()
            mean[name][test], nlpd[name][test], recipe = predict_held_out(held, candidate, first)
            first = first or recipe
            seconds[name] += time.perf_counter() - started
            progress(name)
    errors = {name: rmse_of_known(Y, mean[name]) for name in candidates}
    base = rmse_of_known(Y, baseline)
    return {
        name: MethodScores(
            rmse=errors[name],
            arrmse=float(np.mean(errors[name] / base)),
            joint_nlpd=float(np.nanmean(nlpd[name])),
            nlpd_rows=nlpd[name],
            error_rows=mean_of_known(((Y - mean[name]) / base) ** 2),
            seconds=seconds[name],
        )
        for name in candidates
    }


class HeldOut(NamedTuple):
    """Rows to train on, and rows that are held out."""

    X: AnyNDArray
    Y: AnyNDArray
    X_test: AnyNDArray
    Y_test: AnyNDArray
    names: Sequence[str]
    encoding: Encoding | None


def predict_held_out(
    rows: HeldOut, candidate: Candidate, first: Recipe | None
) -> tuple[AnyNDArray, AnyNDArray, Recipe]:
    """
    Mean [M, T] and joint NLPD [M] of the test rows, from a model of the training rows, and its
    kernel.

    :param first: The kernel of the first candidate.
    """
    inputs = keep_indicators(scalings(rows.X, rows.Y)[0], rows.encoding)
    Z = inputs.standardised(rows.X)
    targets = learn_warping(Z, rows.Y, candidate.transform, rows.names)
    model, recipe = trained_model(candidate, (Z, targets.standardised(rows.Y)), first)
    if isinstance(model, CoolMTGP):  # as the estimator does
        model = refine_where_possible(model, DEFAULT_ORDERS)
    predicted = model.predict_y(inputs.standardised(rows.X_test), full_output_cov=True)
    mean, cov = (part.numpy() for part in predicted)
    known = ~np.isnan(rows.Y_test)
    density = known_log_densities(targets.standardised(rows.Y_test), mean, cov)
    nlpd = -targets.log_density(density, rows.Y_test, known)
    answer = targets.moments(mean, np.diagonal(cov, axis1=1, axis2=2))[0]
    return answer, np.where(known.any(axis=1), nlpd, np.nan), recipe


def trained_model(
    candidate: Candidate, data: tuple[AnyNDArray, AnyNDArray], first: Recipe | None
) -> tuple[Any, Recipe]:
    """A model of the training rows, and its kernel. One that is to be chosen is chosen anew."""
    make, kernel, _, ard = candidate
    if kernel is not None and ard is not None:
        settings: dict[str, Any] = {"restarts": 0, "seed": 0, "verbose": 0}
        inducing = getattr(make, "keywords", {}).get("inducing")
        trained = train_model(data, kernel, ard, make, inducing=inducing, **settings)
        return trained.model, recipe_of(kernel, ard, trained.table, data[0].shape[1])
    recipe = first if kernel is None else Recipe(make_kernel(kernel, False, 1), "given")
    assert recipe is not None, "The first candidate has a kernel of its own."
    model = make(data, copy.deepcopy(recipe.kernel))
    fit_or_restart(model, recipe.relevance)
    return model, recipe


def recipe_of(
    kernel: str | Kernel, ard: bool | str, table: KernelTable | None, num_inputs: int
) -> Recipe:
    """
    The kernel that :func:`train_model` has trained, as it was before.

    >>> recipe_of("matern52", "shrunk", None, 3).relevance
    'shrunk'

    :param table: The kernels among which it was chosen, if it was.
    """
    if table is None:
        by_name = isinstance(kernel, str) and ard == SHRUNK
        return Recipe(make_kernel(kernel, ard, num_inputs), SHRUNK if by_name else "given")
    relevance = SHRUNK if table.chosen.endswith(PER_INPUT) else "given"
    return Recipe(make_kernel(table.chosen.removesuffix(PER_INPUT), False, num_inputs), relevance)


@check_shapes("Y: [N, T]", "mean: [N, T]", "return: [T]")
def rmse_of_known(Y: AnyNDArray, mean: AnyNDArray) -> AnyNDArray:
    """Root mean square error of each task; NaN in Y is ignored."""
    return np.sqrt(np.nanmean((Y - mean) ** 2, axis=0))


@check_shapes("values: [N, T]", "return: [N]")
def mean_of_known(values: AnyNDArray) -> AnyNDArray:
    """Mean of each row over what is not NaN; NaN for a row that is all NaN."""
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)


def fit_or_restart(model: Any, relevance: str) -> None:
    """
    Train; if that fails, with random starts as well; if all fail, keep the best parameters seen.

    :raises KeyboardInterrupt: If the user ended training: a half-trained model has no score.
    """
    try:
        trained = model.fit(verbose=0, seed=0, relevance=relevance)
    except RuntimeError:
        trained = []
        with suppress(RuntimeError):
            trained = model.fit(verbose=0, restarts=3, seed=0, relevance=relevance)
    if any(history.interrupted for history in np.atleast_1d(trained)):
        raise KeyboardInterrupt
