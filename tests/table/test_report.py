"""The report page: well formed, self-contained, and its numbers those of the estimator."""

import base64
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import gpflow
import pytest
from tables import NASTY, make_data

from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.report import number, report_page
from gpflow_cool.table.summary import leave_one_out_scores

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


@pytest.mark.slow
def test_nothing_is_fetched_and_nothing_runs(small_regressor):
    text = report_page(small_regressor, NASTY)
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


def test_its_numbers_are_the_estimators(small_regressor):
    text = report_page(small_regressor, "model")
    assert "<b>hierarchical</b><span>learning</span>" in text
    assert f"<b>{number(small_regressor.model_.log_marginal_likelihood())}</b>" in text
    rows = Page(text).rows
    found = {row[0]: row[1:] for row in rows[::-1]}
    scores = leave_one_out_scores(small_regressor)["targets"]
    assert found[NASTY][0] == number(scores[0]["rmse"])
    assert found["b"][2] == f"{scores[1]['coverage']:.1%}"
    X, Y = make_data(2)
    assert found["depth"][:4] == [
        number(value) for value in (X[:, 0].min(), X[:, 0].mean(), X[:, 0].max(), X[:, 0].std())
    ]
    length = small_regressor.model_.kernel.lengthscales.numpy()[0] * X[:, 0].std()
    assert found["depth"][4] == number(length)
    assert found["lamp"][4] == "constant, not used"
    assert [number(Y[:, 1].mean())] == [row[2] for row in rows if row[0] == "b"][2:]


def test_figures_are_there(small_regressor):
    figures = Page(report_page(small_regressor, "model")).figures()
    assert len(figures) == 2 + 1 + 2  # two correlations, calibration, one per target
    assert all(len(list(figure.iter())) > 50 for figure in figures)


@pytest.mark.slow
@pytest.mark.parametrize("num_tasks", [1, 13])
def test_one_target_and_many(num_tasks):
    X, Y = make_data(num_tasks)
    y = Y[:, 0] if num_tasks == 1 else Y
    kernel = gpflow.kernels.Linear() + gpflow.kernels.Matern12(active_dims=[0])
    page = Page(report_page(CoolMTGPRegressor(kernel, ard=False).fit(X, y), "m"))
    assert len(page.figures()) == 3 + min(num_tasks, 12)
    heads = [row for row in page.rows if row[0] == "input"]
    assert heads == [["input", "min", "mean", "max", "σ"]]  # no lengthscales


@pytest.mark.slow
def test_the_same_page_twice(small_regressor):
    one, two = (report_page(small_regressor, "model") for _ in range(2))
    strip = re.compile(r"base64,[^\"]*")  # matplotlib numbers the parts of a figure anew
    assert strip.sub("", one) == strip.sub("", two)
