"""Pictures of kernels and relevance: what is drawn, in which order."""

import numpy as np

from gpflow_cool.plotting import plot_kernel_table, plot_relevance
from gpflow_cool.selection.choice import KernelTable
from gpflow_cool.selection.ranking import Candidate


def labels(ax):
    return [text.get_text() for text in ax.get_yticklabels()]


def test_kernels_from_the_worst_to_the_best_and_the_chosen_in_colour():
    rows = (
        Candidate("se", -1.0, 0.5, -10.0, 3, 0.1),
        Candidate("linear", -3.0, 0.9, -30.0, 3, 0.1),
        Candidate("rq", -np.inf, np.nan, np.nan, 0, 0.1, "no luck"),
    )
    ax = plot_kernel_table(KernelTable(rows, "se", 12))
    assert labels(ax) == ["linear", "se"]
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches]
    np.testing.assert_allclose(ends, [-3.0, -1.0])
    assert ax.patches[0].get_facecolor() != ax.patches[1].get_facecolor()
    assert ax.get_title() == "failed: rq"


def test_relevance_from_the_least_to_the_most():
    ax = plot_relevance([0.1, 0.5, 0.2], ["a", "b", "c"])
    assert labels(ax) == ["a", "c", "b"]
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], [0.1, 0.2, 0.5])
    many = plot_relevance(np.linspace(0, 1, 40), list(map(str, range(40))))
    assert len(many.patches) == 25 and labels(many)[-1] == "39"
    assert many.get_title() == "the first 25 of 40 inputs"
