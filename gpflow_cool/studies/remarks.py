"""Sentences on how our numbers differ from the paper's, written from the numbers themselves."""

from collections.abc import Callable, Sequence

import numpy as np

from . import paper, permutation, real, runtime, synthetic, variance
from .methods import COOL, NAMES, STEPS
from .table import Row

STARTS = (
    "our kernels start at half the median distance between rows, the paper's at its libraries'"
    " defaults, and with many inputs a lengthscale of 1 makes every row a stranger to every other"
)
REASONS = {
    ("se", "std-mt"): STARTS,
    ("se", "conv-mt"): STARTS + "; ours stops after 100 L-BFGS steps",
    ("se", "independent"): STARTS,
    ("linear", "independent"): "the paper does not say how its independent GPs were trained",
    ("linear", "std-mt"): "the paper trained by gradient steps in GPyTorch, we by L-BFGS",
    ("linear", "conv-mt"): "inducing points and optimiser differ",
    ("linear", "cool-approximate"): "splits differ, and the paper's optimiser was a gradient step",
    ("se", "cool-approximate"): "splits differ, and ours starts and optimises otherwise",
}
"""Why a number may differ: what is known, not what has been proved."""


def mean(rows: Sequence[Row], column: str) -> float:
    return float(np.mean([row[column] for row in rows]))


def real_remarks(rows: Sequence[Row]) -> list[str]:
    """A sentence on every number of the paper's tables that we have; those that agree in one."""
    found = []
    for kernel, words in real.KERNELS.items():
        alike = []
        for name in real.names_of(rows):
            for method in paper.METHODS:
                mine = real.rows_of(rows, kernel, name, method)
                if not mine:
                    continue
                sentence = difference(kernel, name, method, mean(mine, "rmse"))
                if sentence is None:
                    alike.append(f"{name} ({NAMES[method]})")
                else:
                    found.append(sentence)
        if alike:
            found.append(
                f"{words.capitalize()}: within one of the paper's standard deviations of its mean,"
                f" and so no difference that ten splits could show: {', '.join(alike)}."
            )
    return found


def difference(kernel: str, name: str, method: str, ours: float) -> str | None:
    """How far our mean is from the paper's; None where it is within one deviation."""
    printed = paper.RMSE[kernel][name][method]
    distance = ours - printed.mean
    if abs(distance) <= printed.spread + 0.005:  # the paper prints two decimals
        return None
    side = "better" if distance < 0 else "worse"
    return (
        f"{name}, {kernel}, {NAMES[method]}: ours {ours:.2f}, the paper's {printed}, {side} by"
        f" {abs(distance):.2f}; probably because {REASONS[kernel, method]}."
    )


def synthetic_remarks(rows: Sequence[Row]) -> list[str]:
    """What the paper concludes from its box plots, and whether ours say so."""
    found = [
        "The paper prints box plots and no numbers; the scale of its noise and the number of its"
        " inputs are not given, so that only ratios can be compared."
    ]
    for R in sorted({row["R"] for row in rows}):
        by_P = [(m, P) for m, P in synthetic.cases(rows, R) if m in synthetic.RANKED]
        for method in synthetic.RANKED:
            errors = {
                P: mean(synthetic.rows_of(rows, R, m, P), "mse") for m, P in by_P if m == method
            }
            if errors:
                best = min(errors, key=lambda P: errors[P])
                listed = ", ".join(f"P={P:.0f}: {error:.2f}" for P, error in errors.items())
                agrees = "as the paper says" if best == R else "not at P = R as the paper says"
                found.append(
                    f"R={R}: {NAMES[method]} is best at P={best:.0f}, {agrees} ({listed})."
                )
        pair = [synthetic.rows_of(rows, R, method) for method in COOL]
        if all(pair):
            hierarchical, approximate = (mean(mine, "Sigma_error") for mine in pair)
            side = "closer to" if hierarchical < approximate else "not closer to"
            found.append(
                f"R={R}: the hierarchical approach's Sigma is {side} the truth than the approximate"
                f" one's, {hierarchical:.2f} against {approximate:.2f}; the paper finds it slightly"
                " better."
            )
    singular = [row["R"] for row in rows if row["method"] == "sigma-mt" and row["R"] < row["tasks"]]
    if singular:
        ranks = " and ".join(f"{R:.0f}" for R in sorted(set(singular)))
        found.append(
            f"R={ranks}: the true Sigma has rank R, less than the number of tasks, so that the"
            f" evidence of {NAMES['sigma-mt']} grows without end as its Sigma loses rank. It stops"
            f" after {STEPS['sigma-mt']} steps wherever that has led, which is why it is erratic;"
            " the paper finds it the most sensitive to P, and reports that it did not converge."
        )
    return found


def variance_remarks(rows: Sequence[Row]) -> list[str]:
    """The paper's four observations, in numbers."""
    by_method = {m: [row for row in rows if row["method"] == m] for m in variance.METHODS}
    by_method = {method: mine for method, mine in by_method.items() if mine}
    found = ["The paper shows one draw, in figures; the numbers are ours."]
    for method in COOL:
        if method in by_method:
            mine = by_method[method]
            found.append(
                f"{NAMES[method]} learns a noise correlation of"
                f" {mean(mine, 'noise_correlation'):.2f} where {variance.TRUE_CORRELATION} is true:"
                " forty rows and the N(0, 1) prior of the weight between tasks pull it towards"
                " zero. At two sigma it covers"
                f" {mean(mine, 'coverage_2'):.3f} of the held-out targets."
            )
    if "std-mt" in by_method:
        tilts = ", ".join(f"{mean(by_method['std-mt'], name):.2f}" for name in variance.TILTS)
        found.append(
            f"Std-MT's level curves tilt by {tilts} at x* = 0, 0.25, 0.5, where the true law's tilt"
            f" is {variance.TRUE_CORRELATION}. From x* = 0.25, where data lie, to 0.5, where none"
            f" do, their area grows {mean(by_method['std-mt'], 'widening'):.1f} times; the paper"
            " says that Std-MT is insensitive there."
        )
    return found


def permutation_remarks(rows: Sequence[Row]) -> list[str]:
    """The paper's claim that order has no impact, in numbers."""
    found = []
    for name, mine in permutation.groups(rows).items():
        C, Sigma = mean(mine, "C_distance"), mean(mine, "Sigma_distance")
        low, high = mean(mine, "nlpd_min"), mean(mine, "nlpd_max")
        found.append(
            f"{name}: from order to order C differs by {100 * C:.0f}% and Sigma by"
            f" {100 * Sigma:.0f}%, the joint NLPD a task by {high - low:.3f}; averaging over"
            f" {permutation.AVERAGED} orders takes it from {mean(mine, 'nlpd_own'):.3f} to"
            f" {mean(mine, 'nlpd_averaged'):.3f}, and the RMSE from {mean(mine, 'rmse_own'):.3f} to"
            f" {mean(mine, 'rmse_averaged'):.3f}."
        )
    return ["The paper's 'consistent with regard to the order' rests on one figure.", *found]


def runtime_remarks(rows: Sequence[Row]) -> list[str]:
    """The paper's figure of times, and why ours looks otherwise."""
    return [
        "The paper prints no times. Its machine was an i9 with one core and an RTX 2080 Ti; times"
        " are averaged over 50 runs there, medians of a few here.",
        "With a linear kernel nothing is left to iterate over for our Cool-MT: the kernel matrix is"
        " factorised once and b and sigma2 are solved for, instead of the paper's 50 steps.",
        "Times include building the model and TensorFlow's tracing, which is most of what Std-MT"
        " and Conv-MT take for few rows.",
        *([] if "GPU" in runtime.devices_of(rows) else ["There was no GPU on this machine."]),
    ]


REMARKS: dict[str, Callable[[Sequence[Row]], list[str]]] = {
    "synthetic": synthetic_remarks,
    "permutation": permutation_remarks,
    "variance": variance_remarks,
    "real": real_remarks,
    "runtime": runtime_remarks,
}
