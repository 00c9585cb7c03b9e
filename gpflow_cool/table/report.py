"""
One HTML page about a fitted estimator. It needs no other file, no script and no network.

Figures are part of the page, as vector graphics.
"""

import base64
import html
import re
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from ..plotting import plot_calibration, plot_predicted, plot_task_matrix
from .residuals import standardised_rows
from .summary import (
    caveat_lines,
    deviations,
    kernel_parameters,
    known_noise_correlation,
    leave_one_out_scores,
    lengthscales,
    log_evidence,
    missing_targets,
    observed_and_predicted,
    strongest_correlation,
    untold_pairs,
    untold_sentence,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TARGETS_DRAWN = 12
"""Predictions of at most this many targets are drawn."""

STYLE = """
:root { color-scheme: light; --ink: #1f2933; --soft: #64748b; --line: #e2e8f0; --deep: #1d4e89; }
* { box-sizing: border-box; }
body { margin: 0; background: #f1f5f9; color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header { background: var(--deep); color: white; padding: 2rem max(1.5rem, calc(50vw - 34rem)); }
header h1 { margin: 0 0 .25rem; font-size: 1.7rem; overflow-wrap: anywhere; }
header p { margin: 0; opacity: .85; }
main { max-width: 71rem; margin: 0 auto; padding: 1.5rem; }
section { background: white; border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.25rem 1.5rem 1.5rem; margin-bottom: 1.25rem; }
h2 { margin: 0 0 .5rem; font-size: 1.2rem; }
p { margin: .25rem 0 .9rem; max-width: 48rem; }
.note { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 60%; }
th, td { padding: .35rem .9rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; font-size: .85rem; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr:last-child td { border-bottom: 0; }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; margin-bottom: 1.25rem; }
.fact { background: white; border: 1px solid var(--line); border-radius: .6rem; flex: 1 1 auto;
  padding: .7rem 1.1rem; }
.fact b { display: block; font-size: 1.2rem; }
.fact span { color: var(--soft); font-size: .85rem; }
.figures { display: grid; gap: 1rem; justify-items: center;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); }
.wide { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; text-align: center; width: 100%; }
figure img { max-width: 100%; height: auto; }
footer { color: var(--soft); font-size: .85rem; text-align: center; padding: 0 1rem 2rem; }
@media print { body { background: white; } section { break-inside: avoid; } }
"""


def report_page(regressor: Any, title: str) -> str:
    """
    The page, as HTML.

    :param regressor: A fitted CoolMTGPRegressor.
    :param title: Name of the model.
    """
    name = html.escape(title)
    sections = [part(regressor) for part in SECTIONS]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{name}: Cool-MTGP report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{name}</h1><p>{subtitle(regressor)}</p></header>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n<footer>Written by gpflow_cool. Where a row is left out, nothing is trained"
        " again: kernel and covariances are those of all rows.</footer>\n"
        "</body>\n</html>\n"
    )


def subtitle(regressor: Any) -> str:
    """What was predicted from what."""
    return (
        f"Multitask Gaussian process: {count(len(regressor.target_names_), 'target')} predicted"
        f" together from {count(regressor.n_features_in_, 'input')}"
    )


# Sections ------------------------------------------------------------------------------------


def facts_section(regressor: Any) -> str:
    """The main numbers, at the head of the page."""
    model = regressor.model_
    kernel = words(type(model.kernel).__name__) + (", ARD" if regressor.ard else "")
    missing = sum(missing_targets(regressor).values())
    evidence = log_evidence(model)
    facts = [
        (f"{model.num_rows:,}", "rows"),
        (str(regressor.n_features_in_), "inputs"),
        (str(len(regressor.target_names_)), "targets"),
        *([(f"{missing:,}", "cells of targets missing")] if missing else []),
        (kernel, "kernel"),
        (regressor.learning, "learning"),
        (number(np.nan if evidence is None else evidence), "log evidence, standardised data"),
    ]
    cells = [
        f'<div class="fact"><b>{html.escape(value)}</b><span>{label}</span></div>'
        for value, label in facts
    ]
    return f'<div class="facts">{"".join(cells)}</div>'


def scores_section(regressor: Any) -> str:
    """Scores of every target."""
    scores = leave_one_out_scores(regressor)
    rows = [
        [
            row["target"],
            number(row["rmse"]),
            number(row["relative_rmse"]),
            f"{row['coverage']:.1%}",
            number(row["nlpd"]),
        ]
        for row in scores["targets"]
    ]
    head = ["target", "RMSE", "relative RMSE", "inside ±2σ", "NLPD"]
    caveat = html.escape(" ".join(caveat_lines(scores)))
    return section(
        "How well every row is predicted from the others",
        "A relative RMSE of 1 is no better than predicting the mean. Of the targets, 95.4&nbsp;%"
        " should lie within two standard deviations. NLPD is the negative log predictive density,"
        f" the lower the better; joint over a row it is {number(scores['joint_nlpd'])}.",
        f'<p class="note">{caveat}</p>{table(head, rows)}',
    )


def correlation_section(regressor: Any) -> str:
    """Heat maps of both correlations."""
    names = regressor.target_names_
    tasks, noise = regressor.task_correlation_, known_noise_correlation(regressor)
    untold = untold_sentence(untold_pairs(noise, names))
    figures = []
    for kind, R in [("Tasks", tasks), ("Noise", noise)]:
        side = min(9.0, 3.6 + 0.22 * len(names))
        figure = new_figure((side + 0.8, side), layout="compressed")
        plot_task_matrix(np.asarray(R), names, figure.subplots(), kind, limit=1.0)
        figures.append(embed(figure, f"Correlations of the {kind.lower()} between targets"))
    return section(
        "Correlations between the targets",
        "<b>Tasks:</b> how the functions behind the targets vary together over the inputs."
        f" {html.escape(strongest_correlation(tasks, names))} <b>Noise:</b> how the deviations from"
        " these functions vary together within a row."
        f" {html.escape(strongest_correlation(noise, names))} {html.escape(untold)}",
        f'<div class="figures wide">{"".join(figures)}</div>',
    )


def calibration_section(regressor: Any) -> str:
    """Calibration, and predictions against observations."""
    rows, names = observed_and_predicted(regressor), regressor.target_names_
    figure = new_figure((4.4, 4.2))
    ax = figure.subplots()
    few = len(names) <= MAX_TARGETS_DRAWN
    normal = standardised_rows(regressor)
    plot_calibration(normal.Y, normal.mean, normal.std**2, names, ax, legend=few)
    figures = [embed(figure, "Calibration of the predictive intervals")]
    for t, name in enumerate(names[:MAX_TARGETS_DRAWN]):
        figure = new_figure((4.0, 4.2))
        known = ~np.isnan(rows.Y[:, t])
        y, mean, std = (part[known, t] for part in (rows.Y, rows.mean, rows.std))
        plot_predicted(y, mean, std, figure.subplots(), str(name), color=f"C{t % 10}")
        figures.append(embed(figure, f"Predicted against observed {name}"))
    more = "" if few else f" The first {MAX_TARGETS_DRAWN} targets are drawn."
    return section(
        "Calibration",
        "Where the curves lie near the diagonal, intervals hold as many targets as they should."
        " Below it they are too narrow, above it too wide. The other figures show each target,"
        " predicted from the other rows, against what was observed; bars are two standard"
        f" deviations.{more}",
        f'<div class="figures">{"".join(figures)}</div>',
    )


def parameters_section(regressor: Any) -> str:
    """Signal, noise and kernel."""
    parts = deviations(regressor)
    rows = [
        [name, number(signal), number(noise)]
        for name, signal, noise in zip(regressor.target_names_, *parts.values(), strict=True)
    ]
    content = table(["target", "signal σ", "noise σ"], rows)
    kernel = kernel_parameters(regressor)
    if kernel:
        content += '<p class="note">Kernel, in units of standardised inputs: '
        content += "; ".join(html.escape(f"{name} = {value}") for name, value in kernel) + ".</p>"
    return section(
        "Learned parameters",
        "Standard deviations of each target's function (before any data) and of its noise, in the"
        " target's units.",
        content,
    )


def data_section(regressor: Any) -> str:
    """Summary of the columns."""
    X, Y = regressor.training_data()
    names = regressor.encoded_names_
    scales = lengthscales(regressor)
    inputs = column_rows(names, X)
    if scales is not None:
        inputs = [[*row, lengthscale(s)] for row, s in zip(inputs, scales, strict=True)]
    head = ["min", "mean", "max", "σ"]
    return section(
        "Data",
        "A lengthscale, in the input's units, is the distance over which the targets change their"
        " course. If inputs have lengthscales of their own, an input matters little whose"
        " lengthscale is many times its σ."
        if scales is not None
        else "",
        table(["input", *head, *(["lengthscale"] if scales is not None else [])], inputs)
        + "<br>"
        + table(["target", *head], column_rows(regressor.target_names_, Y)),
    )


SECTIONS: list[Callable[[Any], str]] = [
    facts_section,
    scores_section,
    correlation_section,
    calibration_section,
    parameters_section,
    data_section,
]


# Parts ---------------------------------------------------------------------------------------


def section(heading: str, text: str, content: str) -> str:
    """A box with a heading; `text` and `content` are HTML."""
    return f"<section><h2>{heading}</h2>{f'<p>{text}</p>' if text else ''}{content}</section>"


def table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are text."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    inside = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inside}</table></div>'


def column_rows(names: Sequence[str], values: Any) -> list[list[str]]:
    """One row per column of numbers: smallest, mean, largest and standard deviation; no NaN."""
    statistics = [f(values, axis=0) for f in (np.nanmin, np.nanmean, np.nanmax, np.nanstd)]
    return [[name, *map(number, cells)] for name, *cells in zip(names, *statistics, strict=True)]


def lengthscale(value: float) -> str:
    return "constant, not used" if np.isinf(value) else number(value)


def number(value: float) -> str:
    """
    A number with four digits.

    >>> number(0.123456), number(-12345.6), number(float("nan"))
    ('0.1235', '−1.235e+04', '–')
    """
    return "–" if np.isnan(value) else f"{value:.4g}".replace("-", "−", 1)


def words(name: str) -> str:
    """
    >>> words("SquaredExponential"), words("Matern52")
    ('squared exponential', 'matern52')
    """
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower()


def count(number: int, what: str) -> str:
    """
    >>> count(1, "input"), count(3, "input")
    ('1 input', '3 inputs')
    """
    return f"{number} {what}" + ("" if number == 1 else "s")


def new_figure(size: tuple[float, float], layout: Any = "constrained") -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout=layout)


def embed(figure: "Figure", text: str) -> str:
    """A figure as part of the page, with a text for those who cannot see it."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = html.escape(text, quote=True)
    return f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{data}"></figure>'
