"""The report page: well formed, self-contained, and its numbers those of the estimator."""

import base64
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import gpflow
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.report import number, report_page
from gpflow_cool.table.summary import (
    deviations,
    kernel_parameters,
    leave_one_out_scores,
    lengthscales,
    rows_left_out,
    score_lines,
    strongest,
)

NASTY = "<script>alert('a & b')</script>"
VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Tags, attributes and tables of a page; raises where a tag is closed that is not open."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.rows = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def figures(self):
        """The root elements of the figures."""
        sources = [attributes["src"] for tag, attributes in self.tags if tag == "img"]
        head = "data:image/svg+xml;base64,"
        assert all(source.startswith(head) for source in sources)
        return [ElementTree.fromstring(base64.b64decode(s.removeprefix(head))) for s in sources]


def make_data(num_tasks):
    rng = np.random.default_rng(3)
    X = rng.normal(size=[15, 2]) * [1.0, 0.0] + [0.0, 4.0]
    return X, np.sin(X[:, :1] + np.arange(num_tasks)) * 10 + rng.normal(size=[15, num_tasks])


@pytest.fixture(scope="module")
def regressor():
    X, Y = make_data(2)
    inputs = pd.DataFrame(X, columns=["depth", "lamp"])
    return CoolMTGPRegressor("matern32", ard=True).fit(
        inputs, pd.DataFrame(Y, columns=[NASTY, "b"])
    )


def test_nothing_is_fetched_and_nothing_runs(regressor):
    text = report_page(regressor, NASTY)
    page = Page(text)
    assert not {"script", "iframe", "object", "embed", "form"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert attributes.get(name, "data:").startswith("data:")
    assert not re.search(r"https?:|url\(|@import", text)
    for figure in page.figures():
        assert not [e for e in figure.iter() if e.tag.endswith("script")]
    assert ("html", {"lang": "en"}) in page.tags
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")


def test_its_numbers_are_the_estimators(regressor):
    text = report_page(regressor, "model")
    assert "<b>hierarchical</b><span>learning</span>" in text
    assert f"<b>{number(regressor.model_.log_marginal_likelihood())}</b>" in text
    rows = Page(text).rows
    found = {row[0]: row[1:] for row in rows[::-1]}
    scores = leave_one_out_scores(regressor)["targets"]
    assert found[NASTY][0] == number(scores[0]["rmse"])
    assert found["b"][2] == f"{scores[1]['coverage']:.1%}"
    X, Y = make_data(2)
    assert found["depth"][:4] == [
        number(value) for value in (X[:, 0].min(), X[:, 0].mean(), X[:, 0].max(), X[:, 0].std())
    ]
    length = regressor.model_.kernel.lengthscales.numpy()[0] * X[:, 0].std()
    assert found["depth"][4] == number(length)
    assert found["lamp"][4] == "constant, not used"
    assert [number(Y[:, 1].mean())] == [row[2] for row in rows if row[0] == "b"][2:]


def test_figures_are_there(regressor):
    figures = Page(report_page(regressor, "model")).figures()
    assert len(figures) == 2 + 1 + 2  # two correlations, calibration, one a target
    assert all(len(list(figure.iter())) > 50 for figure in figures)


@pytest.mark.parametrize("num_tasks", [1, 13])
def test_one_target_and_many(num_tasks):
    X, Y = make_data(num_tasks)
    y = Y[:, 0] if num_tasks == 1 else Y
    kernel = gpflow.kernels.Linear() + gpflow.kernels.Matern12(active_dims=[0])
    page = Page(report_page(CoolMTGPRegressor(kernel).fit(X, y), "m"))
    assert len(page.figures()) == 3 + min(num_tasks, 12)
    heads = [row for row in page.rows if row[0] == "input"]
    assert heads == [["input", "min", "mean", "max", "σ"]]  # no lengthscale an input


def test_the_same_page_twice(regressor):
    one, two = (report_page(regressor, "model") for _ in range(2))
    strip = re.compile(r"base64,[^\"]*")  # matplotlib numbers the parts of a figure anew
    assert strip.sub("", one) == strip.sub("", two)


# Summaries ---------------------------------------------------------------------------------------


def test_scores_by_hand(regressor):
    X, Y = make_data(2)
    rows, scores = regressor.leave_one_out_, leave_one_out_scores(regressor)
    mean, std = np.asarray(rows.mean), np.asarray(rows.std)
    for t, score in enumerate(scores["targets"]):
        error = np.sqrt(np.mean((Y[:, t] - mean[:, t]) ** 2))
        assert score["target"] == [NASTY, "b"][t]
        assert_allclose(score["rmse"], error)
        assert_allclose(score["relative_rmse"], error / np.std(Y[:, t]))
        inside = np.mean(np.abs(Y[:, t] - mean[:, t]) <= 2 * std[:, t])
        assert_allclose(score["coverage"], inside)
    assert_allclose(scores["joint_nlpd"], -np.mean(rows.log_density))
    lines = score_lines(scores)
    assert len({len(line) for line in lines}) == 1 and lines[2].startswith("b ")


def test_deviations_and_parameters(regressor):
    X, Y = make_data(2)
    parts = deviations(regressor)
    model, s = regressor.model_, Y.std(axis=0)
    assert_allclose(parts["noise"], np.sqrt(np.diag(model.noise_covariance())) * s, rtol=1e-8)
    assert_allclose(parts["signal"], np.sqrt(np.diag(model.task_covariance())) * s, rtol=1e-8)
    assert kernel_parameters(regressor) == [("variance", "1 (fixed)")]
    assert np.isinf(lengthscales(regressor)[1])
    assert rows_left_out(regressor).Y.shape == Y.shape


def test_the_strongest_correlation_is_told():
    R = [[1.0, 0.1, -0.9], [0.1, 1.0, 0.3], [-0.9, 0.3, 1.0]]
    assert strongest(R, "xyz") == "The strongest is -0.90, between x and z."
    assert strongest([[1.0]], "x") == "There is one target, and so nothing to correlate with."
