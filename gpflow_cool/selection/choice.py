"""A kernel that nobody has to choose: candidates fitted, compared by leave-one-out, relevance."""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray, RegressionData
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from tqdm.auto import tqdm

from .. import checks
from ..linalg import threads_for
from ..models.cool import CoolMTGP
from ..training.relevance import (
    RELEVANCE,
    free_lengthscales,
    freed_parameters,
    prior_around,
    prior_cost,
    share_lengthscales,
)
from ..training.run import History
from .candidates import named_candidates
from .comparison import FIT_FAILURES, compare, failed, scored, uninterrupted
from .ranking import Candidate, Trained, best_of, charged, is_better, surpasses

MAX_ROWS = 1000
"""Beyond this many rows the choice is made on a sample of them."""

ENOUGH_COMPLETE = 50
"""If so many rows have all their targets, and they are a third of all, they make the choice."""

PER_INPUT = ", a lengthscale per input"

Maker = Callable[[RegressionData, Kernel], Any]
"""Makes a model of data, not trained yet."""


class KernelTable(NamedTuple):
    """
    The kernels that were compared. Printing it gives a table;
    :func:`gpflow_cool.plotting.plot_kernel_table` draws it.
    """

    candidates: tuple[Candidate, ...]
    """The best first, those that failed last."""

    chosen: str
    """Name of the chosen kernel."""

    num_rows: int
    """Number of rows that the choice was made on."""

    def __str__(self) -> str:
        return "\n".join(table_lines(self))


class KernelChoice(NamedTuple):
    """A trained model, and the kernels among which its own was chosen."""

    model: Any
    """The model with the chosen kernel, trained on all rows."""

    history: History
    """Of the model's training."""

    table: KernelTable
    """Every kernel with its scores; it prints."""

    def __str__(self) -> str:
        return str(self.table)


def choose_kernel(
    data: RegressionData,
    candidates: Any = None,
    *,
    relevance: str = "shrunk",
    learning: str = "approximate",
    mean_function: MeanFunction | None = None,
    task_names: Sequence[str] | None = None,
    max_rows: int = MAX_ROWS,
    seed: int | None = None,
    verbose: int = 1,
) -> KernelChoice:
    """
    Fit a :class:`~gpflow_cool.CoolMTGP` with each of several kernels, and keep the best.

    Each kernel first has one lengthscale for all inputs. Kernels are compared by the density of
    every row given all the other rows, which needs no second fit (`leave_one_out`). Of those that
    are not clearly worse than the best, the one is chosen that explains the data best, charged for
    its parameters (see :mod:`gpflow_cool.selection.ranking`). It and the next best kernel then get
    one lengthscale per input, pulled towards the common one. That is taken unless it makes rows
    less likely, or the lengthscales are decided by the prior more than by the data; of the two, the
    other one only if its score is higher and its errors are smaller.

    >>> import numpy as np
    >>> from gpflow_cool import choose_kernel
    >>> X = np.random.default_rng(0).normal(size=[40, 1])
    >>> Y = np.hstack([np.sin(2 * X), np.cos(2 * X)])
    >>> choice = choose_kernel((X, Y), ["se", "linear"], verbose=0)
    >>> choice.table.chosen
    'se'

    The scores in the table are optimistic, because kernels and covariances were learnt from all
    rows: `CoolMTGPRegressor` in scikit-learn's `cross_validate`, or `gpflow-cool evaluate`, makes
    the choice anew in every fold.

    :param data: As for :class:`~gpflow_cool.CoolMTGP`; NaN where a target is missing.
    :param candidates: Names ("se", "matern12", "matern32", "matern52", "rq", "se+linear",
        "matern32+laplacian", "linear") and GPflow kernels in a list, or kernels by names of your
        own in a dict. All named ones by default. Kernels are copied. They should see inputs of
        comparable scale: standardise X.
    :param relevance: "shrunk": kernels compete with one lengthscale each, whatever they were given,
        and the best two may get one per input. "given": kernels have the lengthscales that they
        were given.
    :param max_rows: Where there are more rows, the choice is made on a random sample of so many,
        and the chosen kernel is then trained on all rows. Where targets are missing, the choice is
        made on the complete rows if there are enough.
    :param seed: Of that sample, and of the draws of missing targets.
    :param verbose: 1 for a progress bar that names the candidate, 0 for none.
    """
    X, Y = (np.asarray(part) for part in checks.regression_data(data, missing=True))
    names = checks.task_names(task_names, data, Y.shape[1])

    def make(data: RegressionData, kernel: Kernel) -> CoolMTGP:
        function = copy.deepcopy(mean_function)
        return CoolMTGP(data, kernel, function, learning=learning, task_names=names)

    kernels = named_candidates(candidates)
    checks.positive_integer(max_rows, "max_rows")
    return choose(
        (X, Y),
        kernels,
        make,
        make,
        relevance=relevance,
        max_rows=max_rows,
        seed=seed,
        verbose=verbose,
    )


def choose(
    data: tuple[AnyNDArray, AnyNDArray],
    kernels: dict[str, Kernel],
    make: Maker,
    make_final: Maker,
    *,
    relevance: str = "shrunk",
    max_rows: int = MAX_ROWS,
    seed: int | None = None,
    verbose: int = 1,
    train_again: bool = False,
    **final_options: Any,
) -> KernelChoice:
    """
    What :func:`choose_kernel` does, for kernels by name and any way of making models.

    :param make: Makes the models that are compared, on the rows of the choice.
    :param make_final: Makes the model of all rows, if these are not the same rows.
    :param train_again: Whether it does so also if they are.
    :param final_options: Options of the last fit, such as callbacks.
    """
    checks.option(relevance, "relevance", RELEVANCE)
    if relevance == "shrunk":
        for kernel in kernels.values():
            share_lengthscales(kernel)
    X, Y = data
    rows = rows_of_choice(Y, max_rows, 0 if seed is None else checks.whole_number(seed, "seed"))
    options = {"seed": seed, "verbose": verbose, **final_options}
    with progress(verbose) as bar, threads_for(max(Y[rows].shape)):
        trained = compare(kernels, lambda kernel: make((X[rows], Y[rows]), kernel), seed, bar)
        best = best_of(trained)
        if best.failure is not None:
            raise no_kernel(trained)
        freed = []
        if relevance == "shrunk":
            freed = with_relevance(trained, best, make, (X[rows], Y[rows]), seed, bar)
    chosen, trained = best_freed(freed, best), trained + freed
    model, history = chosen.model, chosen.history
    again = len(rows) < len(X) or train_again
    if again:
        model = make_final(data, copy.deepcopy(model.kernel))
    # So far it was trained quietly, and with one lengthscale roughly.
    if again or chosen is best or any(final_options.values()):
        history = train_from(model, chosen.common or best.model.kernel, options)
    ranked = sorted((item.row for item in trained), key=lambda row: -row.log_density)
    table = KernelTable(tuple(ranked), chosen.row.name, len(rows))
    return KernelChoice(model, history, table)


def no_kernel(trained: Sequence[Trained]) -> Exception:
    """What to raise if every kernel has failed; if all for the same reason, that reason."""
    reasons = [item.row.error for item in trained]
    if len(set(reasons)) == 1 and isinstance(trained[0].failure, ValueError):
        return trained[0].failure
    lines = (f"  {item.row.name}: {reason}" for item, reason in zip(trained, reasons, strict=True))
    return RuntimeError("\n".join(["No kernel could be fitted:", *lines]))


def rows_of_choice(Y: AnyNDArray, max_rows: int, seed: int) -> AnyNDArray:
    """Numbers of the rows on which kernels are compared, in order."""
    rows = np.arange(len(Y))
    complete = np.flatnonzero(~np.isnan(Y).any(axis=1))
    if len(complete) >= max(ENOUGH_COMPLETE, len(Y) / 3):
        rows = complete
    if len(rows) > max_rows:
        rows = np.sort(np.random.default_rng(seed).choice(rows, max_rows, replace=False))
    return rows


def progress(verbose: int) -> Any:
    """A bar that names the candidate, where there is a terminal or a notebook."""
    return tqdm(unit="kernel", leave=False, disable=None if verbose else True)


def with_relevance(
    trained: Sequence[Trained],
    best: Trained,
    make: Maker,
    data: RegressionData,
    seed: int | None,
    bar: Any,
) -> list[Trained]:
    """
    The best candidate with one lengthscale per input, and the best of the others: where few inputs
    matter, kernels are in another order then. Without those that cannot have several.
    """
    fitted = [item for item in trained if item.failure is None]
    able = [item for item in fitted if may_be_freed(item.model.kernel, data[0].shape[1])]
    first = [item for item in able if item is best]
    rest = [item for item in able if item is not best]
    freed = []
    for item in first + ([best_of(rest)] if rest else []):
        bar.total += 1
        bar.set_description(item.row.name + PER_INPUT)
        freed.append(with_lengthscales_per_input(item, make, data, seed))
        bar.update()
    return freed


def may_be_freed(kernel: Kernel, num_columns: int) -> bool:
    """Whether one of the kernels inside can have several lengthscales."""
    return bool(free_lengthscales(copy.deepcopy(kernel), num_columns))


def with_lengthscales_per_input(
    item: Trained, make: Maker, data: RegressionData, seed: int | None
) -> Trained:
    """
    A candidate with one lengthscale per input. Its score is charged for what the prior takes, and
    for the parameters with one lengthscale.
    """
    kernel = copy.deepcopy(item.model.kernel)
    freed = free_lengthscales(kernel, data[0].shape[1])
    name, started = item.row.name + PER_INPUT, time.perf_counter()
    try:
        model = make(data, kernel)
        history = uninterrupted(model.fit(seed=seed, verbose=0))
        result = scored(name, model, history, started)
    except FIT_FAILURES as error:
        return failed(name, started, error)
    finally:
        for parameter in freed:
            parameter.prior = None
    objective = result.objective - prior_cost(kernel, item.model.kernel)
    score = charged(objective, item.row.num_parameters, len(data[0]))
    return result._replace(row=result.row._replace(score=score), common=item.model.kernel)


def best_freed(freed: Sequence[Trained], best: Trained) -> Trained:
    """
    The kernel to take, with one lengthscale per input if that pays; see :func:`.is_better` and
    :func:`.surpasses`.

    :param freed: Kernels with one lengthscale per input, that of the best kernel first.
    """
    fitted = [item for item in freed if item.failure is None]
    costs = [prior_cost(item.model.kernel, item.common) for item in fitted]
    chosen = best
    for item, cost in zip(fitted, costs, strict=True):
        is_own = item.common is best.model.kernel
        if is_better(item, best, cost) and (is_own or surpasses(item, chosen)):
            chosen = item
    return chosen


def train_from(model: Any, common: Kernel, options: dict[str, Any]) -> History:
    """
    Train a model from the kernel that it has; lengthscales per input have the prior that they had
    in the choice.

    :param common: The kernel with one lengthscale for all inputs.
    """
    freed = freed_parameters(model.kernel, common)
    for parameter, centre in freed:
        parameter.prior = prior_around(centre)
    try:
        return uninterrupted(model.fit(**options))
    finally:
        for parameter, _ in freed:
            parameter.prior = None


def table_lines(table: KernelTable) -> list[str]:
    """A table as lines of text, the chosen kernel marked."""
    width = max(len(row.name) for row in table.candidates)
    columns = "log density      RMSE  log evidence      score  parameters  seconds"
    lines = [f"  {'kernel':{width}}  {columns}"]
    for row in table.candidates:
        mark = "*" if row.name == table.chosen else " "
        if row.error:
            lines.append(f"{mark} {row.name:{width}}  failed: {row.error.splitlines()[0][:80]}")
            continue
        lines.append(
            f"{mark} {row.name:{width}}  {row.log_density:11.3f}  {row.rmse:8.4g}"
            f"  {row.log_evidence:12.2f}  {row.score_text:>9}  {row.num_parameters:10d}"
            f"  {row.seconds:7.1f}"
        )
    lines.append(f"Every one of {table.num_rows} rows predicted from all the others; * is chosen.")
    freed = [row for row in table.candidates if row.name.endswith(PER_INPUT) and not row.error]
    if freed and not table.chosen.endswith(PER_INPUT):
        lines.append("Lengthscales per input are not taken: the data tell too little about them.")
    if any(row.interpolates for row in table.candidates):
        lines.append("! passes through every target: taken only if all that are as good do.")
    return lines
