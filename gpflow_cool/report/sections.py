"""
One HTML page about a fitted estimator. It needs no other file and no network.

Tables can be sorted, figures zoomed, and inputs moved: the page predicts by itself (`whatif`).
"""

import html
from collections.abc import Callable
from typing import Any

import numpy as np

from ..plotting import (
    MAX_TASKS_WITH_NUMBERS,
    cluster_order,
    plot_kernel_table,
    plot_relevance,
    plot_task_matrix,
)
from ..plotting.kernels import MAX_BARS
from ..selection.ranking import Candidate
from ..table.encoding import Coding
from ..table.learned import kernel_in_words, relevance_by_name
from ..table.parameters import (
    deviations,
    kernel_parameters,
    large_signal_sentence,
    lengthscales,
)
from ..table.remarks import noise_lines
from ..table.residuals import heavy_lines, heavy_tails, poor_lines
from ..table.summary import (
    caveat_lines,
    known_noise_correlation,
    leave_one_out_scores,
    log_evidence,
    missing_targets,
    strongest_correlation,
    untold_pairs,
    untold_sentence,
)
from .data import (
    MAX_ROWS_DRAWN,
    MAX_TARGETS_DRAWN,
    Findings,
    calibration_of,
    has_labels,
    is_map,
    most_surprising,
    report_data,
)
from .page import (
    column_rows,
    count,
    embed,
    lengthscale,
    new_figure,
    number,
    section,
    table,
    whole_page,
)


def report_page(regressor: Any, title: str) -> str:
    """
    The page, as HTML.

    :param regressor: A fitted CoolMTGPRegressor.
    :param title: Name of the model.
    """
    found = Findings(regressor)
    return whole_page(
        title,
        subtitle(regressor),
        [text for text in (part(found) for part in SECTIONS) if text],
        "Written by gpflow_cool. Where a row is left out, nothing is trained again: kernel and"
        " covariances are those of all rows.",
        report_data(found),
    )


def subtitle(regressor: Any) -> str:
    """What was predicted from what."""
    return (
        f"Multitask Gaussian process: {count(len(regressor.target_names_), 'target')} predicted"
        f" together from {count(regressor.n_features_in_, 'input')}"
    )


# Sections ------------------------------------------------------------------------------------


def facts_section(found: Findings) -> str:
    """The main numbers, at the head of the page."""
    regressor = found.regressor
    model = regressor.model_
    missing = sum(missing_targets(regressor).values())
    evidence = log_evidence(model)
    facts = [
        (f"{model.num_rows:,}", "rows"),
        (str(regressor.n_features_in_), "inputs"),
        (str(len(regressor.target_names_)), "targets"),
        *([(f"{missing:,}", "cells of targets missing")] if missing else []),
        (kernel_in_words(regressor), "kernel"),
        (regressor.learning, "learning"),
        (number(np.nan if evidence is None else evidence), "log evidence, standardised data"),
    ]
    cells = [
        f'<div class="fact"><b>{html.escape(value)}</b><span>{label}</span></div>'
        for value, label in facts
    ]
    return f'<div class="facts">{"".join(cells)}</div>'


def scores_section(found: Findings) -> str:
    """Scores of every target."""
    regressor = found.regressor
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
    transformed = not regressor._targets.is_linear
    streamed = scores["rows"] < regressor.model_.num_rows
    remarks = noise_lines(regressor)
    remarks += heavy_lines(heavy_tails(regressor), transformed, streamed)
    remarks += poor_lines(scores["targets"], transformed)
    notes = [" ".join(caveat_lines(scores)), *remarks]
    caveat = "".join(f'<p class="note">{html.escape(line)}</p>' for line in notes)
    return section(
        "Scores",
        "How good are the predictions?",
        "Each row is predicted from all the others. A relative RMSE of 1 is no better than"
        " predicting the mean. Of the targets, 95.4&nbsp;%"
        " should lie within two standard deviations. NLPD is the negative log predictive density,"
        f" the lower the better; joint over a row it is {number(scores['joint_nlpd'])}.",
        table(head, rows) + caveat,
    )


def correlation_section(found: Findings) -> str:
    """Heat maps of both correlations."""
    regressor = found.regressor
    names = regressor.target_names_
    if len(names) == 1:
        return ""
    tasks, noise = regressor.task_correlation_, known_noise_correlation(regressor)
    untold = untold_sentence(untold_pairs(noise, names))
    many = len(names) > MAX_TASKS_WITH_NUMBERS
    order = cluster_order(tasks) if many else None
    figures = []
    for kind, R in [("Tasks", tasks), ("Noise", noise)]:
        side = min(9.0, 3.6 + 0.22 * len(names))
        figure = new_figure((side + 0.8, side), layout="compressed")
        ax = figure.subplots()
        plot_task_matrix(np.asarray(R), names, ax, kind, limit=1.0, order=order)
        figures.append(embed(figure, f"Correlations of the {kind.lower()} between targets"))
    sorted_by = " Targets whose functions vary together stand side by side." if many else ""
    return section(
        "Targets",
        "How do the targets hang together?",
        "<b>Tasks:</b> how the functions behind the targets vary together over the inputs."
        f" {html.escape(strongest_correlation(tasks, names))} <b>Noise:</b> how the deviations from"
        " these functions vary together within a row."
        f" {html.escape(strongest_correlation(noise, names))} {html.escape(untold)}{sorted_by}",
        f'<div class="figures wide">{"".join(figures)}</div>',
    )


def what_if_section(found: Findings) -> str:
    """Sliders, predictions that follow them, slices and an ellipse, drawn by the page's script."""
    model = found.model
    if isinstance(model, str):
        return section("What if", "What if?", html.escape(model), "")
    return section(
        "What if",
        "What if?",
        "Change an input, and see what the model predicts. A new observation lies between"
        " <i>from</i> and <i>to</i> with a probability of 95.4&nbsp;% (two standard deviations)."
        " The regions around the dot show two targets together, at one and two standard deviations."
        " Below, one input at a time varies while the others stay. The start is a typical row:"
        " means of numbers and dates, the most frequent categories.",
        '<div id="what-if"></div>' + error_note(model, found.regressor.model_.num_rows),
    )


def error_note(model: dict[str, Any], num_rows: int) -> str:
    """How far the numbers of the page are from those of `predict`."""
    points = "all rows" if model["points"] == num_rows else f"{model['points']} points"
    form = f"all rows, deviations from {points}" if "X" in model else points
    return (
        f'<p class="note">The page computes this itself, from {form}. Compared with'
        " <code>predict</code>, means and deviations differ by at most"
        f" {model['error']:.1e} standard deviations, measured at rows of the data and between"
        " them.</p>"
    )


def maps_section(found: Findings) -> str:
    """For two inputs, maps of means and deviations."""
    regressor = found.regressor
    if not is_map(regressor):
        return ""
    return section(
        "Maps",
        "Maps",
        "Mean of each target over the two inputs, and the standard deviation of a new observation.",
        '<div id="maps"></div>',
    )


def calibration_section(found: Findings) -> str:
    """Calibration, and predictions against observations."""
    num_rows, few = len(found.rows.Y), len(found.names) <= MAX_TARGETS_DRAWN
    more = "" if few else f" The first {MAX_TARGETS_DRAWN} targets are drawn."
    drawn = "" if num_rows <= MAX_ROWS_DRAWN else f" {MAX_ROWS_DRAWN:,} rows are drawn."
    return section(
        "Intervals",
        "Can the intervals be trusted?",
        "Each row is predicted from all the others. One figure shows a target against its"
        " prediction, with intervals of two standard deviations. The other tells how many rows lie"
        " inside regions of each size: intervals of one target, or an ellipsoid of all targets"
        " together. Near the diagonal, regions hold as many rows as they should; below it they are"
        " too narrow, above it too wide. Click into a figure to zoom with the wheel or to drag it,"
        f" twice to see all again.{more}{drawn}",
        '<div class="columns"><div id="scatter"></div><div id="calibration"></div></div>'
        + coverage_table(found),
    )


def coverage_table(found: Findings) -> str:
    """Rows inside the regions of some probabilities, for each target and for all together."""
    levels = [0.5, 0.8, 0.9, 0.95]
    curves, joint = calibration_of(found.rows, levels)
    cells = list(zip(found.names, curves.T, strict=False))
    cells += [] if joint is None else [("all together", np.array(joint))]
    head = ["inside a region of", *(f"{c:.0%}" for c in levels)]
    return table(head, [[name, *(f"{c:.1%}" for c in curve)] for name, curve in cells])


def surprises_section(found: Findings) -> str:
    """The rows that the model, given all the others, expects least."""
    head = ["row", "target", "observed", "predicted", "from", "to", "probability"]
    rows = [
        [row.label, row.target]
        + [number(v) for v in (row.observed, row.predicted, row.low, row.high, row.probability)]
        for row in most_surprising(found)
    ]
    if not rows:
        return ""
    num_rows = len(found.rows.Y)
    counted = "" if has_labels(found.regressor) else " Rows of the fit are counted from 1."
    return section(
        "Surprises",
        "Which rows are surprising?",
        "Each row is predicted from all the others. The probability is that of a row at least as"
        " far from its prediction, all targets together. The target is the one that deviates most;"
        " it was expected between <i>from</i> and <i>to</i> (two standard deviations)."
        f" Of {num_rows:,} rows, one below {number(1 / num_rows)} is expected by chance.{counted}",
        table(head, rows),
    )


def kernels_section(found: Findings) -> str:
    """The kernels that were compared, if there was a choice."""
    choice = found.regressor.kernel_choice_
    if choice is None:
        return ""
    figure = new_figure((6.4, 0.7 + 0.3 * len(choice.candidates)))
    plot_kernel_table(choice, figure.subplots())
    head = ["kernel", "log density", "RMSE", "log evidence", "score", "parameters", "seconds"]
    rows = [[*kernel_cells(row), number(row.seconds)] for row in choice.candidates]
    return section(
        "Kernel",
        "Which kernel?",
        f"Each of {choice.num_rows:,} rows is predicted from all the others, with every kernel. Of"
        " those that are not clearly worse than the best, the one with the highest score is used,"
        " the training objective charged for the parameters:"
        f" {html.escape(choice.chosen)}. Density and RMSE are of standardised targets.",
        embed(figure, "Densities of the kernels that were compared") + table(head, rows),
    )


def kernel_cells(row: Candidate) -> list[str]:
    """What the table tells of a kernel, its seconds left out."""
    if row.error:
        return [row.name, f"failed: {row.error}", "", "", "", ""]
    return [row.name, *map(number, row[1:4]), row.score_text, str(row.num_parameters)]


def relevance_section(found: Findings) -> str:
    """Which inputs matter."""
    relevance = relevance_by_name(found.regressor)
    if len(relevance) < 2:
        return ""
    figure = new_figure((6.4, 0.8 + 0.26 * min(len(relevance), MAX_BARS)))
    plot_relevance(list(relevance.values()), list(relevance), figure.subplots())
    return section(
        "Inputs",
        "Which inputs matter?",
        "The part of the variance of the predictions that moves if one column alone is exchanged"
        " with that of another row, all targets taken together: 0 for a column that does not"
        " matter. Columns that act together count in full for each of them.",
        embed(figure, "Relevance of the inputs"),
    )


def parameters_section(found: Findings) -> str:
    """Signal, noise and kernel."""
    regressor = found.regressor
    parts = deviations(regressor)
    rows = [
        [name, number(signal), number(noise)]
        for name, signal, noise in zip(regressor.target_names_, *parts.values(), strict=True)
    ]
    content = table(["target", "signal σ", "noise σ"], rows)
    large = large_signal_sentence(regressor)
    content += f'<p class="note">{html.escape(large)}</p>' if large else ""
    kernel = kernel_parameters(regressor)
    if kernel:
        content += '<p class="note">Kernel, in units of standardised inputs: '
        content += "; ".join(html.escape(f"{name} = {value}") for name, value in kernel) + ".</p>"
    linear = regressor._targets.is_linear
    units = "the target's units" if linear else "units of the transformed target"
    return section(
        "Signal and noise",
        "Signal and noise",
        "Standard deviations of each target's function (before any data) and of its noise, in"
        f" {units}.",
        content,
    )


def data_section(found: Findings) -> str:
    """Summary of the columns."""
    regressor = found.regressor
    scales = lengthscales(regressor)
    inputs = input_rows(regressor)
    if scales is not None:
        inputs = [[*row, lengthscale(s)] for row, s in zip(inputs, scales, strict=True)]
    head = ["min", "mean", "max", "σ"]
    about = "A column of words is one input per category, and its mean is the category's share. "
    about = about if "indicator" in regressor.encoded_kinds_ else ""
    if scales is not None:
        about += (
            "A lengthscale, in the input's units, is the distance over which the targets change"
            " their course. If inputs have lengthscales of their own, an input matters little whose"
            " lengthscale is many times its σ."
        )
    return section(
        "Data",
        "The data",
        about,
        table(["input", *head, *(["lengthscale"] if scales is not None else [])], inputs)
        + table(["target", *head], column_rows(regressor.target_names_, found.rows.Y)),
    )


def input_rows(regressor: Any) -> list[list[str]]:
    """Smallest, mean and largest value and deviation of each input, as people write them."""
    X = regressor.training_data()[0]
    rows = column_rows(regressor.encoded_names_, X)
    for row, kind, x in zip(rows, regressor.encoded_kinds_, X.T, strict=True):
        if kind == "indicator":
            row[1:] = ["", f"{x.mean():.1%}", "", ""]
        elif kind != "number":
            coding = Coding(row[0], kind)
            row[1:] = [*map(coding.shown, (x.min(), x.mean(), x.max())), f"{number(x.std())} days"]
    return rows


SECTIONS: list[Callable[[Findings], str]] = [
    facts_section,
    what_if_section,
    scores_section,
    relevance_section,
    maps_section,
    correlation_section,
    calibration_section,
    surprises_section,
    kernels_section,
    parameters_section,
    data_section,
]
