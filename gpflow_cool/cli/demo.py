"""
The main job of the package on the paper's two-task data: ``python -m gpflow_cool demo``.

Fits :class:`~gpflow_cool.models.cool.CoolMTGP` to forty rows with gaps between their inputs, prints
what it has learned beside the truth, scores it on held-out rows, and draws the two figures of the
paper's study of predictive variances.
"""

from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

import gpflow
import numpy as np
from gpflow.base import AnyNDArray

from ..datasets import (
    TWO_TASK_NOISE,
    TwoTaskData,
    clustered_two_task,
    two_task_at,
    two_task_mean,
    uniform_two_task,
)
from ..metrics import coverage, joint_nlpd, nominal_coverage, rmse
from ..models.cool import CoolMTGP
from ..plotting import plot_bands, plot_level_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK_NAMES = ("cos", "sin")
LEVEL_CURVE_INPUTS = (0.0, 0.25, 0.5)


def run_demo(out: Path, seed: int) -> None:
    """Fit, print and draw; the figures go to a new folder."""
    folder = fresh_folder(out)  # before the work, so that no work is lost
    train, held_out = clustered_two_task(seed=seed), uniform_two_task(seed=seed + 1)
    model = fit(train)
    print(report(model, train, held_out))
    bands_figure(model).savefig(folder / "confidence_bands.png", dpi=150)
    level_curves_figure(model, seed + 2).savefig(folder / "level_curves.png", dpi=150)
    print(f"\nFigures in {folder}: confidence_bands.png, level_curves.png")


def fit(train: TwoTaskData) -> CoolMTGP:
    """A model trained on the two-task data."""
    kernel = gpflow.kernels.SquaredExponential()
    model = CoolMTGP((train.X, train.Y), kernel, task_names=TASK_NAMES)
    if model.fit().interrupted:
        raise KeyboardInterrupt
    return model


def scores(held_out: TwoTaskData, mean: AnyNDArray, cov: AnyNDArray) -> dict[str, AnyNDArray]:
    """
    Scores of predictions of held-out rows, by name: one number per task, or one for both.

    :param mean: Predictive mean of y [M, T].
    :param cov: Predictive covariance of the tasks of y at each row [M, T, T].
    """
    var = np.diagonal(cov, axis1=1, axis2=2)  # [M, T]
    return {
        "RMSE": rmse(held_out.Y, mean),
        **{
            f"coverage at {k} sigma ({nominal_coverage(k):.3f})": coverage(held_out.Y, mean, var, k)
            for k in (1, 2)
        },
        "joint NLPD": np.array([joint_nlpd(held_out.Y, mean, cov)]),
    }


def report(model: CoolMTGP, train: TwoTaskData, held_out: TwoTaskData) -> str:
    """What the model has learned, beside the truth, and how well it predicts."""
    matrices = {
        "learned C": np.asarray(model.task_covariance()),
        "learned Sigma": np.asarray(model.noise_covariance()),
        "true Sigma": train.noise_covariance,
    }
    learned = float(np.asarray(model.noise_correlation())[0, 1])
    truth = train.noise_covariance[0, 1] / train.noise_covariance[0, 0]
    mean, cov = (np.asarray(a) for a in model.predict_y(held_out.X, full_output_cov=True))
    ideal = np.broadcast_to(held_out.noise_covariance, cov.shape)
    lines = [
        f"Cool-MTGP on the paper's two-task data, {len(train.X)} training rows",
        "",
        *side_by_side(matrices),
        "",
        f"Noise correlation: learned {learned:.3f}, true {truth:.3f}",
        "",
        f"{len(held_out.X)} held-out rows, inputs uniform in (0, 1)",
        *score_table(
            scores(held_out, mean, cov),
            scores(held_out, two_task_mean(held_out.X), ideal),
        ),
    ]
    return "\n".join(lines)


def side_by_side(matrices: Mapping[str, AnyNDArray]) -> list[str]:
    """Lines of text with one column per matrix, its name above it."""
    blocks = []
    for name, matrix in matrices.items():
        rows = ["".join(f"{value:9.4f}" for value in row) for row in matrix]
        width = max(len(name), *map(len, rows))
        blocks.append([text.rjust(width) for text in (name, *rows)])
    return ["    ".join(parts) for parts in zip(*blocks, strict=True)]


def score_table(model: Mapping[str, AnyNDArray], truth: Mapping[str, AnyNDArray]) -> list[str]:
    """Lines of text with the model's scores beside those of the true law."""

    def cells(values: AnyNDArray) -> str:
        return "".join(f"{value:9.3f}" for value in values).ljust(9 * len(TASK_NAMES))

    head = " " * 28 + "".join(f"{name:>9}" for name in TASK_NAMES) + "   of the true law"
    return [head, *(f"{name:28}{cells(model[name])}{cells(truth[name])}" for name in model)]


def bands_figure(model: CoolMTGP) -> "Figure":
    """Mean and two-sigma bands of each task, with the data and the true function."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    Xnew = np.linspace(0.0, 1.0, 201)[:, None]
    for t, ax in enumerate(figure.subplots(1, 2, sharey=True)):
        plot_bands(model, Xnew, task=t, ax=ax, legend=False)
        true = two_task_mean(Xnew)[:, t]
        ax.plot(Xnew[:, 0], true, "--", color="C3", linewidth=1.5, label="true function")
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def level_curves_figure(model: CoolMTGP, seed: int, num_draws: int = 200) -> "Figure":
    """Joint predictive distribution of y at three inputs, beside the true law and draws of it."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(11.0, 4.4), layout=ConstrainedLayoutEngine(wspace=0.06))
    Xnew = np.array(LEVEL_CURVE_INPUTS)[:, None]
    mean, cov = (np.asarray(a) for a in model.predict_y(Xnew, full_output_cov=True))
    for i, ax in enumerate(figure.subplots(1, len(Xnew))):
        draws = two_task_at(np.repeat(Xnew[i : i + 1], num_draws, axis=0), seed + i).Y
        ax.plot(*draws.T, ".", color="0.6", markersize=4, alpha=0.5, label="draws of the true law")
        plot_level_curves(mean[i], cov[i], ax, label="Cool-MTGP", names=TASK_NAMES)
        truth, noise = two_task_mean(Xnew[i : i + 1])[0], np.array(TWO_TASK_NOISE)
        plot_level_curves(truth, noise, ax, color="C3", linestyle="--", label="true law")
        ax.set_title(f"$x^* = {Xnew[i, 0]:g}$")
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def fresh_folder(path: Path) -> Path:
    """
    Make the folder `path`, or the first of `path_1`, `path_2`, ... that is not there yet.

    In a folder without a name of its own (``.``, ``..``, the root) make ``demo_output`` or so.
    """
    if path.name in ("", ".."):
        path = path / "demo_output"
    candidates = chain([path], (path.with_name(f"{path.name}_{n}") for n in count(1)))
    folder = next(folder for folder in candidates if not folder.exists())
    folder.mkdir(parents=True)
    return folder
