"""The command ``gpflow-cool map``: predictions over two inputs as pictures."""

from pathlib import Path
from typing import Any

import click

from ..saving.files import write_whole
from ..table.files import TableError, check_output
from . import console

PICTURES = (".png", ".pdf", ".svg")


class Limits(click.ParamType):
    """Names with limits, as Cd=0.8,Cu=50."""

    name = "a=1,b=2"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, float]:
        if isinstance(value, dict):
            return value
        limits = {}
        for part in value.split(","):
            name, equals, number = part.rpartition("=")
            try:
                limits[name.strip()] = float(number)
            except ValueError:
                equals = ""
            if not equals or not name.strip():
                self.fail(f"{part!r} is not of the form NAME=NUMBER", param, ctx)
        return limits


@click.command("map", short_help="Draw maps over two inputs of MODEL.")
@console.model_argument
@click.option("--x", help="Input that goes to the right; by default the first of two.")
@click.option("--y", help="Input that goes upwards; by default the second of two.")
@click.option("--targets", type=console.Names(), help="Targets to draw; by default all.")
@click.option(
    "--limits", type=Limits(), default={}, help="Draw probabilities of exceeding these, too."
)
@click.option("--at", type=Limits(), default={}, help="Values of other inputs; by default means.")
@click.option("--simulations", type=click.IntRange(0), default=0, help="Draw so many, too.")
@click.option("--cells", type=click.IntRange(2), default=200, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
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
    at: dict[str, float],
    simulations: int,
    cells: int,
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
    joint over places and targets. Inputs that are not on the map stay at their means, or --at.

    \b
      gpflow-cool map model --x lon --y lat --limits Cd=0.8,Cu=50 --out map.png
    """
    console.check_model(model)
    check_output(out, PICTURES, force)
    regressor = console.load_model(model)
    inputs, names = list(regressor.encoded_names_), list(regressor.target_names_)
    first, second = axes_of(inputs, x, y)
    shown = shown_targets(names, targets, limits)
    fixed = values_at(regressor, inputs, at)
    with console.if_stopped("nothing was written."):
        from ..plotting import plot_maps

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
            at=fixed,
        )
        write_whole(out, picture(figure, out.suffix))
    result = {"out": str(out), "x": first, "y": second, "targets": shown}
    console.say(result, [f"{len(shown)} targets drawn, written to {out}."], quiet, as_json)


def axes_of(inputs: list[str], x: str | None, y: str | None) -> tuple[str, str]:
    """The two inputs of a map; may be left out where there are two."""
    if x is None and y is None and len(inputs) == 2:
        return inputs[0], inputs[1]
    if x is None or y is None:
        raise TableError(f"The inputs are {', '.join(inputs)}: pass two of them as --x and --y.")
    for name in (x, y):
        if name not in inputs:
            raise TableError(f"{name!r} is not an input of the model: {', '.join(inputs)}.")
    return x, y


def shown_targets(
    names: list[str], targets: list[str] | None, limits: dict[str, float]
) -> list[str]:
    """Targets to draw: those asked for, or those with limits, or all."""
    shown = targets or list(limits) or names
    for name in (*shown, *limits):
        if name not in names:
            raise TableError(f"{name!r} is not a target of the model: {', '.join(names)}.")
    missing = [name for name in shown if limits and name not in limits]
    if missing:
        raise TableError(f"{missing[0]!r} is to be drawn but has no limit: add it to --limits.")
    return shown


def values_at(regressor: Any, inputs: list[str], at: dict[str, float]) -> Any:
    """Values of all inputs where a map does not vary them."""
    for name in at:
        if name not in inputs:
            raise TableError(f"{name!r} is not an input of the model: {', '.join(inputs)}.")
    means = regressor.training_data()[0].mean(axis=0)
    return [at.get(name, mean) for name, mean in zip(inputs, means, strict=True)]


def picture(figure: Any, suffix: str) -> bytes:
    """A figure as the bytes of a file."""
    from io import BytesIO

    buffer = BytesIO()
    figure.savefig(buffer, format=suffix.lstrip(".").lower(), dpi=150)
    return buffer.getvalue()
