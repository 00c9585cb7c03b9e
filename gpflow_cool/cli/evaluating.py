"""The command `evaluate`: folds and tables are checked before TensorFlow is loaded."""

from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from ..table.costs import MAX_ROWS
from ..table.files import TableError, check_names
from ..table.folds import Fold, blocks_of, check_folds, check_trainable, split_groups, split_rows
from . import console, tables
from .console import KERNELS, Training, if_stopped, load_tensorflow, note, say, split_names
from .tables import TrainingTable

SAME_KERNEL = (
    "In every fold, independent GPs and Std-MT have the kernel that was chosen for Cool-MTGP there,"
    " with lengthscales of their own."
)


class Blocks(click.ParamType):
    """Columns of places, and into how many parts each is cut."""

    name = "x,y,K"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[list[str], int]:
        if isinstance(value, tuple):
            return value
        *names, count = split_names(value)
        if not names or not all(names) or not count.isdigit() or int(count) < 1:
            self.fail(f"{value!r} is not columns and a number of parts, as x,y,4", param, ctx)
        return names, int(count)


class Kernels(click.ParamType):
    """Names of kernels with commas between them."""

    name = "se,matern32"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[str]:
        if isinstance(value, list):
            return value
        names = list(dict.fromkeys(split_names(value)))
        for name in names:
            if name not in KERNELS:
                self.fail(f"{name!r} is not one of {', '.join(KERNELS)}", param, ctx)
        return names


@click.command(short_help="Does the coupling pay? Cross-validate beside other models.")
@console.training_options
@click.option(
    "--folds",
    type=console.Whole(2),
    default=5,
    show_default=True,
    help="Number of parts; each is predicted from the others.",
)
@click.option("--groups", help="Column of groups; rows of a group are held out together.")
@click.option(
    "--blocks", type=Blocks(), help="Hold out blocks of places: a grid of K x K over x and y."
)
@click.option("--kernels", type=Kernels(), help="Several kernels to compare, in place of --kernel.")
@click.option("--inducing", type=console.Whole(1), help="Inducing points of Cool-MTGP.")
@console.output_options
def evaluate(
    folds: int,
    groups: str | None,
    blocks: tuple[list[str], int] | None,
    kernels: list[str] | None,
    inducing: int | None,
    **options: Any,
) -> None:
    """
    Does the coupling pay? Cross-validate Cool-MTGP beside independent GPs and Std-MT.

    Joint NLPD is the negative log density per held-out row, all its targets together: the lower
    the better. aRRMSE is the error relative to predicting the mean: 1 is no better than that.
    Empty cells of targets count as missing, in training and in scores. With --transform, Cool-MTGP
    is scored without and with it, and it is told whether densities and whether means are better.
    A kernel that is chosen is chosen anew in every fold. Independent GPs and Std-MT then have the
    same, else the first kernel, with lengthscales of their own, and no transform. They are left out
    beyond 5000 rows with --inducing.

    Rows near each other, or of one patient, are alike: held out at random, they are predicted from
    their like. Say --blocks or --groups to know how well new places or patients are predicted.

    \b
      gpflow-cool evaluate data.csv --targets heat,cold --folds 10
      gpflow-cool evaluate data.csv --targets 'y*' --kernels se,matern32 --transform yeo-johnson
      gpflow-cool evaluate soil.csv --targets Cd,Zn --blocks lon,lat,6
    """
    given = Training(**options)
    source = click.get_current_context().get_parameter_source("kernel")
    if kernels is not None and source is not ParameterSource.DEFAULT:
        raise TableError("--kernels takes the place of --kernel: choose one of the two.")
    if groups is not None and blocks is not None:
        raise TableError("--groups and --blocks are two ways of holding out rows: choose one.")
    found = tables.training_table(given, apart=[] if groups is None else [groups])
    parts = split_table(found, folds, given.seed, groups, blocks)
    check_trainable(found.Y, found.targets, parts)
    check_scored(found)
    names = kernels or [given.kernel]
    points = 0 if inducing is None else tables.inducing_points(found, given, inducing, folds)
    coupling = inducing is None or len(found.X) <= MAX_ROWS or given.large
    if coupling:
        tables.check_size(len(found.X), given, folds * (1 + len(names) + len(found.targets)))
    load_tensorflow()
    from ..table import comparison, evaluation

    if any(found.gaps.values()):
        note(found.gaps_line(), given.quiet)
    candidates = evaluation.candidates_of(
        {name: name for name in names},
        len(found.targets),
        given.learning,
        ard=given.lengthscales,
        transform=given.transform,
        inducing=points,
        coupling=coupling,
    )
    scores = scores_of(candidates, found, parts, given.quiet)
    how = held_out(groups, blocks)
    result = comparison.comparison(scores, found.targets, len(found.X), folds, how, given.transform)
    lines = comparison.comparison_lines(result)
    if coupling and names[0] == "auto":
        lines.append(SAME_KERNEL)
    say(result, lines, given.quiet, given.as_json)


def scores_of(candidates: Any, found: TrainingTable, parts: list[Fold], quiet: bool) -> Any:
    """Scores of every candidate, with a progress bar."""
    from tqdm.auto import tqdm

    from ..table.evaluation import score_candidates

    bar = tqdm(total=len(parts) * len(candidates), unit="fit", disable=True if quiet else None)
    with if_stopped("nothing was written, and no score is told."), bar:
        return score_candidates(
            found.X,
            found.Y,
            candidates,
            parts,
            names=found.targets,
            encoding=found.encoding,
            progress=lambda name: bar.update(),
        )


def split_table(
    found: TrainingTable,
    folds: int,
    seed: int,
    groups: str | None,
    blocks: tuple[list[str], int] | None,
) -> list[Fold]:
    """Training and test rows of every fold."""
    check_folds(folds, len(found.X))
    if groups is not None:
        check_names([groups], found.table)
        cells = found.cells(groups)
        check_several(cells, f"--groups {groups}", f"the column is {str(cells[0])!r} in every row")
        return split_groups(cells, folds, seed)
    if blocks is not None:
        places = found.table.numbers(blocks[0])[found.kept]
        cells = blocks_of(places, blocks[1])
        option = f"--blocks {','.join(blocks[0])},{blocks[1]}"
        check_several(cells, option, "all rows are in one block")
        return split_groups(cells, folds, seed)
    return list(split_rows(len(found.X), folds, seed))


def check_several(groups: Sequence[Any], option: str, what: str) -> None:
    """
    Raise if all rows are of one group.

    :param what: How to say so.
    """
    if len(set(map(str, groups))) == 1:
        raise TableError(
            f"{option}: {what}, so that no part of the rows can be held out. Choose others, or"
            f" leave {option.split()[0]} out."
        )


def check_scored(found: TrainingTable) -> None:
    """Raise if a target never changes, so that no error can be relative to its spread."""
    from ..variation import is_constant

    for name, y in zip(found.targets, found.Y.T, strict=True):
        known = y[y == y]
        if is_constant(known.min(), known.max()):
            raise TableError(f"Target {name!r} never changes, and cannot be scored: leave it out.")


def held_out(groups: str | None, blocks: tuple[list[str], int] | None) -> str:
    """
    How rows are held out, in words.

    >>> held_out(None, (["x", "y"], 4))
    'by blocks of x, y (4 parts each)'
    """
    if groups is not None:
        return f"by groups of {groups}"
    if blocks is not None:
        return f"by blocks of {', '.join(blocks[0])} ({blocks[1]} parts each)"
    return "at random"
