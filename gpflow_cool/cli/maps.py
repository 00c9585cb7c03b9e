"""The command ``gpflow-cool map``: predictions over two inputs as pictures."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from ..saving.files import write_with_folders
from ..table.cells import read_cells
from ..table.encoding import Coding
from ..table.files import TableError, did_you_mean
from ..table.writing import check_output
from . import console
from .predicting import SavedColumns, saved_columns
from .wording import printable

PICTURES = (".png", ".pdf", ".svg")

LETTERS_PER_INCH = 16
"""How many letters of the line below a picture fit into an inch."""


class Assignments(click.ParamType):
    """Names with values, as hue=red,"size, inside"=3."""

    name = "a=1,b=2"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, str]:
        if isinstance(value, dict):
            return value
        found = {}
        for part in console.split_names(value):
            name, equals, text = (word.strip() for word in part.rpartition("="))
            if not name or not text:
                self.fail(f"{part!r} is not of the form NAME=VALUE", param, ctx)
            found[name] = text
        return found


class Limits(Assignments):
    """Names with limits, as Cd=0.8,Cu=50."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        limits: dict[str, float] = {}
        for name, text in super().convert(value, param, ctx).items():
            try:
                limits[name] = float(text)
            except ValueError:
                self.fail(f"{text!r}, the limit of {name!r}, is not a number", param, ctx)
        return limits


@click.command("map", short_help="Draw maps over two inputs of MODEL.")
@console.model_argument
@click.option("--x", help="Input that goes to the right; by default the first of two.")
@click.option("--y", help="Input that goes upwards; by default the second of two.")
@click.option("--targets", type=console.Names(), help="Targets to draw; by default all.")
@click.option(
    "--limits",
    type=Limits(),
    default={},
    help="Draw probabilities of exceeding these, too; not every target needs one.",
)
@click.option(
    "--at",
    type=Assignments(),
    default={},
    help="Values of other inputs, as depth=3,soil=clay; by default means, or the most frequent.",
)
@click.option("--simulations", type=console.Whole(0), default=0, help="Draw so many, too.")
@click.option("--cells", type=console.Whole(2), default=200, show_default=True)
@click.option(
    "--aspect",
    type=click.Choice(["equal", "auto"]),
    help="Whether both inputs have the same unit; by default what their names tell.",
)
@click.option("--seed", type=console.Whole(0), default=0, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help=".png, .pdf or .svg file."
)
@console.force_option
@console.output_options
def map_command(
    model: Path,
    x: str | None,
    y: str | None,
    targets: list[str] | None,
    limits: dict[str, float],
    at: dict[str, str],
    simulations: int,
    cells: int,
    aspect: str | None,
    seed: int,
    out: Path,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """
    Draw maps of MODEL over two of its inputs: one column of pictures per target.

    The rows show the mean with the data on top, the deviation of a new observation, with --limits
    the probability of exceeding a limit, and with --simulations functions that are drawn at random,
    joint over places and targets. Inputs that are not on the map stay at their means, categories at
    the most frequent one, or where --at puts them; a line below the pictures says where that is.

    \b
      gpflow-cool map model --x lon --y lat --limits Cd=0.8,Cu=50 --out map.png
    """
    console.check_model(model)
    columns = saved_columns(model)
    if columns is not None:
        first, second = axes_of(columns, x, y)
        shown = shown_targets(columns.targets, targets, limits)
        fixed = values_at(columns, at, (first, second))
    check_output(out, PICTURES, force, [model])
    regressor = console.load_model(model)
    if columns is None:
        raise TableError(f"{model} was fitted to arrays without names: draw maps from Python.")
    with console.if_stopped("nothing was written."):
        from ..plotting import plot_maps

        places = np.where(np.isnan(fixed), regressor.typical_inputs(), fixed)
        held = held_inputs(columns, (first, second), places, at)
        figure = plot_maps(
            regressor,
            shown,
            ["mean", "deviation", *(["probability"] if limits else [])],
            limits=limits,
            simulations=simulations,
            seed=seed,
            x=first,
            y=second,
            cells=cells,
            aspect=aspect,
            at=places,
        )
        write_below(figure, held_line(held))
        write_with_folders(out, picture(figure, out.suffix))
    told = {part.name: {"at": part.value, "why": part.why} for part in held}
    result = {"out": str(out), "x": first, "y": second, "targets": shown, "held": told}
    lines = [*filter(None, [held_line(held)]), drawn_line(shown, out)]
    console.say(result, lines, quiet, as_json)


def drawn_line(shown: list[str], out: Path) -> str:
    """What was done."""
    return (
        f"{len(shown)} {'target' if len(shown) == 1 else 'targets'} drawn, {console.written(out)}."
    )


# Inputs that are not on the map ------------------------------------------------------------------


class HeldInput(NamedTuple):
    """An input that is not on the map, and the value that it has in all of it."""

    name: str
    value: str
    """As people write it."""

    why: str
    """"mean", "most frequent", or "--at"."""


def held_inputs(
    columns: SavedColumns, axes: tuple[str, str], places: Any, at: dict[str, str]
) -> list[HeldInput]:
    """
    Where the inputs are that are not on the map.

    :param places: [D], values of all inputs, encoded.
    """
    found, start = [], 0
    for name, coding in columns.codings.items():
        own = places[start : start + len(coding.inputs)]
        start += len(own)
        if name in axes or not len(own):
            continue
        is_category = coding.kind == "category"
        value = coding.categories[int(np.argmax(own))] if is_category else shown_value(coding, own)
        usual = "most frequent" if is_category else "mean"
        found.append(HeldInput(name, value, "--at" if name in at else usual))
    return found


def shown_value(coding: Coding, own: Any) -> str:
    """The value of a number, a date or a duration, as people write it, with four digits."""
    value = float(own[0])
    return coding.shown(value if coding.kind == "date" else float(f"{value:.4g}"))


def held_line(held: list[HeldInput]) -> str:
    """
    What to say of the inputs that are not on the map; nothing if all are.

    >>> held_line([HeldInput("depth", "0.5", "mean"), HeldInput("soil", "clay", "--at")])
    'Held in the whole map: depth = 0.5 (mean), soil = clay (--at).'
    """
    from ..table.residuals import listed  # needs TensorFlow

    parts = listed([f"{part.name} = {part.value} ({part.why})" for part in held])
    return f"Held in the whole map: {parts}." if held else ""


def write_below(figure: Any, line: str) -> None:
    """Write a line below all pictures of a figure, in several lines if it is long."""
    if line:
        width = int(LETTERS_PER_INCH * figure.get_figwidth())
        text = "\n".join(textwrap.wrap(printable(line), width))
        figure.supxlabel(text, fontsize=7, parse_math=False)


# Before TensorFlow is loaded ---------------------------------------------------------------------


def axes_of(columns: SavedColumns, x: str | None, y: str | None) -> tuple[str, str]:
    """The two inputs of a map; may be left out where there are two."""
    codings = columns.codings
    names = [name for name, coding in codings.items() if coding.kind != "category"]
    listed = ", ".join(names)
    if x is None and y is None and len(names) == 2:
        return names[0], names[1]
    words = [name for name in (x, y) if name in codings and name not in names]
    if len(names) < 2:
        told = f"{words[0]!r} holds categories, but a" if words else "A"
        raise TableError(
            f"{told} map needs two inputs that are numbers or dates. The model has"
            f" {listed or 'none'}."
        )
    if words:
        raise TableError(f"{words[0]!r} holds categories: choose of {listed} for --x and --y.")
    if x is None or y is None:
        raise TableError(f"Pass two inputs as --x and --y. They are {listed}.")
    for name in (x, y):
        if name not in codings:
            meant = did_you_mean(name, names)
            raise TableError(f"{name!r} is not an input of the model: {listed}.{meant}")
    if x == y:
        raise TableError(f"--x and --y are both {x!r}: a map needs two inputs.")
    return x, y


def shown_targets(
    names: list[str], targets: list[str] | None, limits: dict[str, float]
) -> list[str]:
    """Targets to draw: those asked for, or all."""
    shown = targets or names
    for name in (*shown, *limits):
        if name not in names:
            listed, meant = ", ".join(names), did_you_mean(name, names)
            raise TableError(f"{name!r} is not a target of the model: {listed}.{meant}")
    hidden = [name for name in limits if name not in shown]
    if hidden:
        raise TableError(f"{hidden[0]!r} has a limit but is not drawn: add it to --targets.")
    return shown


def values_at(columns: SavedColumns, at: dict[str, str], axes: Sequence[str] = ()) -> Any:
    """
    [D], values of the inputs that --at names, encoded; NaN for the others.

    :param axes: Inputs that vary over the map, and have no single value.
    """
    unknown = [name for name in at if name not in columns.inputs]
    if unknown:
        names, meant = ", ".join(columns.inputs), did_you_mean(unknown[0], columns.inputs)
        raise TableError(f"--at {unknown[0]}: not an input of the model: {names}.{meant}")
    varied = [name for name in at if name in axes]
    if varied:
        raise TableError(
            f"--at {varied[0]}: this input is on an axis of the map, where it takes all values."
            f" --at is for the inputs that are on neither axis: leave {varied[0]!r} out."
        )
    parts = []
    for name, coding in columns.codings.items():
        if name not in at:
            parts.append(np.full(len(coding.inputs), np.nan))
            continue
        cells = read_cells(name, coding.kind, [at[name]], lambda row, name: f"--at {name}")
        if coding.kind == "category" and cells[0] not in coding.categories:
            seen = ", ".join(coding.categories[:10])
            raise TableError(f"--at {name}={at[name]}: the fit has seen {seen}.")
        parts.append(coding.encode(cells)[0])
    return np.concatenate(parts)


def picture(figure: Any, suffix: str) -> bytes:
    """A figure as the bytes of a file."""
    from io import BytesIO

    buffer = BytesIO()
    figure.savefig(buffer, format=suffix.lstrip(".").lower(), dpi=150)
    return buffer.getvalue()
