"""The report page: well formed, self-contained, and its numbers those of the estimator."""

import base64
import copy
import hashlib
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import gpflow
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.stats import chi2, kstest, norm
from tables import NASTY, make_data

from gpflow_cool import load
from gpflow_cool.report.data import surprise
from gpflow_cool.report.page import FOLDER, SCRIPTS
from gpflow_cool.report.sections import number, report_page
from gpflow_cool.selection.choice import KernelTable
from gpflow_cool.selection.ranking import Candidate
from gpflow_cool.table.estimator import CoolMTGPRegressor
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
def test_nothing_is_fetched_and_only_the_pages_own_script_runs(small_regressor):
    text = report_page(small_regressor, NASTY)
    page = Page(text)
    assert not {"iframe", "object", "embed", "form"} & {tag for tag, _ in page.tags}
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [
        {"type": "application/json", "id": "data"},
        {},
    ]
    script = "\n".join((FOLDER / name).read_text() for name in SCRIPTS)
    assert text.count(f"<script>{script}</script>") == 1
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv")]
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert policy.endswith(f"script-src 'sha256-{digest}'")
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            if tag == "a":
                assert attributes["href"][0] == "#" and attributes["href"][1:] in ids
            else:
                assert attributes.get(name, "data:").startswith("data:")
    addresses = {address for address in re.findall(r"https?:[^\"' ]*", text)}
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name of the language, not fetched
    assert "@import" not in text and "innerHTML" not in text
    for figure in page.figures():
        assert not [e for e in figure.iter() if e.tag.endswith("script")]
    assert ("html", {"lang": "en"}) in page.tags
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")


def data_of(text):
    """What the page's script works with."""
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))


def test_what_the_script_gets_is_the_estimators(small_regressor):
    data = data_of(report_page(small_regressor, "model"))
    X, Y = make_data(2)
    rows = small_regressor.leave_one_out_
    assert data["targets"] == [NASTY, "b"]
    assert [part["name"] for part in data["controls"]] == ["depth", "lamp"]
    assert_allclose(data["controls"][0]["start"], X[:, 0].mean())
    for t, part in enumerate(data["scatter"]):
        assert_allclose(part["y"], Y[:, t], rtol=1e-5)
        assert_allclose(part["mean"], np.asarray(rows.mean)[:, t], rtol=1e-5)
        half = 2 * np.asarray(rows.std)[:, t]
        assert_allclose(part["low"], part["mean"] - half, rtol=1e-4, atol=1e-4 * half.max())
        assert_allclose(part["high"], part["mean"] + half, rtol=1e-4, atol=1e-4 * half.max())
        assert part["row"] == [str(n) for n in range(1, 16)]
    calibration = data["calibration"]
    inside = np.abs(Y - rows.mean) <= norm.ppf(0.75) * rows.std
    assert_allclose([curve[20] for curve in calibration["curves"]], inside.mean(axis=0))
    assert data["maps"] is None  # one of the two inputs is constant


def test_surprise_is_uniform_if_the_model_is_right(rng):
    A = rng.normal(size=[4000, 3, 3])
    S = A @ A.transpose(0, 2, 1) + 0.1 * np.eye(3)
    Y = np.einsum("nij,nj->ni", np.linalg.cholesky(S), rng.normal(size=[4000, 3]))
    mean = rng.normal(size=[4000, 3])
    Y = np.where(rng.uniform(size=Y.shape) < 0.3, np.nan, Y + mean)
    p = surprise(Y, mean, S)
    known = ~np.isnan(Y).all(axis=1)
    assert kstest(p[known], "uniform").pvalue > 0.01
    assert (p[~known] == 1).all() and not known.all()


def test_surprise_is_chi_square(rng):
    r, S = np.array([[1.0, -2.0]]), np.array([[[2.0, 0.5], [0.5, 1.0]]])
    distance = float(r[0] @ np.linalg.inv(S[0]) @ r[0])
    assert_allclose(surprise(r, np.zeros([1, 2]), S), chi2.sf(distance, 2))
    gap = np.array([[np.nan, -2.0]])
    assert_allclose(surprise(gap, np.zeros([1, 2]), S), chi2.sf(4.0, 1))


@pytest.mark.slow
def test_an_outlier_is_the_most_surprising_row():
    X, Y = make_data(2)
    Y[6, 1] += 60.0
    index = [f"sample {n}" for n in range(15)]
    frame = pd.DataFrame(Y, columns=["a", "b"], index=index)
    inputs = pd.DataFrame(X, columns=["depth", "lamp"], index=index)
    page = Page(report_page(CoolMTGPRegressor("se", ard=False).fit(inputs, frame), "m"))
    start = next(n for n, row in enumerate(page.rows) if row[:2] == ["row", "target"])
    assert page.rows[start + 1][:3] == ["sample 6", "b", number(Y[6, 1])]


@pytest.mark.slow
def test_rows_without_labels_are_counted_from_one(small_regressor, tmp_path):
    counted = "Rows of the fit are counted from 1."
    first = min(range(15), key=lambda n: most_surprising_of(small_regressor)[n])
    small_regressor.save(tmp_path / "model")
    for regressor in (small_regressor, load(tmp_path / "model")):
        text = report_page(regressor, "m")
        page = Page(text)
        start = next(n for n, row in enumerate(page.rows) if row[:2] == ["row", "target"])
        assert page.rows[start + 1][0] == str(first + 1) and counted in text
    labelled = copy.copy(small_regressor)
    labelled._index = pd.Index(range(100, 115))
    assert data_of(report_page(labelled, "m"))["scatter"][0]["row"][first] == str(100 + first)
    assert counted not in report_page(labelled, "m")


def most_surprising_of(regressor):
    """Probabilities of rows at least as far from their predictions."""
    rows, Z = regressor.model_.leave_one_out(), np.asarray(regressor.model_.data[1])
    return surprise(Z, rows.mean.numpy(), rows.cov.numpy())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Beware")
def test_maps_of_two_inputs_and_tables_of_choices():
    rng = np.random.default_rng(0)
    X = rng.normal(size=[20, 2])
    regressor = CoolMTGPRegressor("se", ard=False).fit(X, np.sin(X))
    regressor.ard = "shrunk"
    good = Candidate("se", -1.5, 0.25, 7.5, 3, 0.125, score=3.25, interpolates=True)
    rows = good, Candidate("rq", 0, 0, 0, 0, 1.0, "<bad>")
    regressor.kernel_choice_ = KernelTable(rows, "se", 20)
    text = report_page(regressor, "m")
    data = data_of(text)["maps"]
    x, y = np.meshgrid(data["x"], data["y"])
    mean, std = regressor.predict(np.stack([x.ravel(), y.ravel()], axis=1), return_std=True)
    assert_allclose(np.array(data["mean"]).T, mean, rtol=1e-4, atol=1e-5)
    assert_allclose(np.array(data["std"]).T, std, rtol=1e-4)
    rows = Page(text).rows
    assert ["se", "−1.5", "0.25", "7.5", "3.2!", "3", "0.125"] in rows
    assert ["rq", "failed: <bad>", "", "", "", "", "1"] in rows
    assert "<b>se</b><span>kernel</span>" in text  # though ard was not ruled out by the user
    assert len(Page(text).figures()) == 4  # two correlations, kernels, relevance


@pytest.mark.slow
def test_transformed_targets_words_and_dates():
    rng = np.random.default_rng(0)
    colours = ["red", "blue", "red", "grey", "blue"] * 5
    X = pd.DataFrame({"size": rng.normal(size=25), "colour": colours})
    X["day"] = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(25), unit="D")
    X.loc[3, "size"] = np.nan
    Y = np.exp(np.sin(np.arange(25)) + (X.colour == "red") + 0.2 * rng.normal(size=25))
    regressor = CoolMTGPRegressor("se", ard=False, target_transform="log", missing_inputs="fill")
    text = report_page(regressor.fit(X, Y.to_frame("mass")), "m")
    data = data_of(text)
    assert [part["kind"] for part in data["controls"]] == ["number", "category", "date"]
    assert [part["first"] for part in data["controls"]] == [0, 2, 5]
    size, colour, day = data["controls"]
    assert size["flag"] and size["fill"] == pytest.approx(np.nanmedian(X["size"]))
    assert colour["categories"][colour["start"]] == "blue"  # as often as red, and before it
    assert (day["max"] - day["min"], day["min"]) == (24.0, 19723.0)
    rows = regressor.model_.leave_one_out()
    Z = np.asarray(regressor.model_.data[1])
    scores = (Z - rows.mean.numpy())[:, 0] / np.sqrt(rows.cov.numpy()[:, 0, 0])
    assert_allclose(data["calibration"]["curves"][0][20], np.mean(np.abs(scores) <= norm.ppf(0.75)))
    part = data["scatter"][0]
    inside = (np.array(part["low"]) <= part["y"]) & (part["y"] <= np.array(part["high"]))
    assert inside.mean() == np.mean(np.abs(scores) <= 2.0)
    cells = {row[0]: row[1:] for row in Page(text).rows}
    assert cells["day"][:3] == ["2024-01-01", "2024-01-13", "2024-01-25"]
    assert cells["colour=grey"][:4] == ["", "20.0%", "", ""]


def test_its_numbers_are_the_estimators(small_regressor):
    text = report_page(small_regressor, "model")
    assert "<b>approximate</b><span>learning</span>" in text
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
    assert [number(Y[:, 1].mean())] == [row[2] for row in rows if row[0] == "b"][3:]


def test_figures_are_there(small_regressor):
    figures = Page(report_page(small_regressor, "model")).figures()
    assert len(figures) == 3  # two correlations, relevance; the script draws the others
    assert all(len(list(figure.iter())) > 50 for figure in figures)


@pytest.mark.slow
@pytest.mark.parametrize("num_tasks", [1, 13])
def test_one_target_and_many(num_tasks):
    X, Y = make_data(num_tasks)
    y = Y[:, 0] if num_tasks == 1 else Y
    kernel = gpflow.kernels.Linear() + gpflow.kernels.Matern12(active_dims=[0])
    page = Page(report_page(CoolMTGPRegressor(kernel, ard=False).fit(X, y), "m"))
    assert len(page.figures()) == (1 if num_tasks == 1 else 3)  # relevance, two correlations
    heads = [row for row in page.rows if row[0] == "input"]
    assert heads == [["input", "min", "mean", "max", "σ"]]  # no lengthscales


@pytest.mark.slow
def test_the_same_page_twice(small_regressor):
    one, two = (report_page(small_regressor, "model") for _ in range(2))
    strip = re.compile(r"base64,[^\"]*")  # matplotlib numbers the parts of a figure anew
    assert strip.sub("", one) == strip.sub("", two)
