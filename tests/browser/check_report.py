"""
The report in Chromium: `make test-report`. It is no part of `make test`, which needs no browser.

A slider moves, and the page says what Python predicts there.
"""

import html
import json
import re
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr

from gpflow_cool.report import page, sections
from gpflow_cool.table.estimator import CoolMTGPRegressor

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


def make_table(N, D, T):
    rng = np.random.default_rng(1)
    X = rng.uniform(size=[N, D]) * (1 + 3 * np.arange(D))
    weights = rng.normal(size=[3, D]) * 2 / np.arange(1, D + 1)
    Y = 5 + np.sin(X @ weights.T + rng.normal(size=3)) @ rng.normal(size=[3, T])
    names = [[f"{letter}{n}" for n in range(count)] for letter, count in (("in", D), ("out", T))]
    Y = Y + 0.3 * rng.normal(size=[N, T])
    return pd.DataFrame(X, columns=names[0]), pd.DataFrame(Y, columns=names[1])


def opened(path, width):
    """What the page says after its sliders were moved, and what the console says."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    options += [f"--window-size={width},900"]
    command = [CHROMIUM, *options, "--virtual-time-budget=20000", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    result = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.S)
    assert result, done.stderr[-3000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(result.group(1))), console


def make_mixed_table(N):
    """Words, dates, gaps and skewed targets."""
    X, Y = make_table(N, 2, 2)
    rng = np.random.default_rng(2)
    X["soil"] = rng.choice(["clay", "sand", "peat"], N)
    X["day"] = pd.Timestamp("2024-03-01") + pd.to_timedelta(rng.integers(0, 300, N), unit="D")
    X.loc[rng.uniform(size=N) < 0.1, "in0"] = np.nan
    return X, np.exp(Y.add(X.soil == "clay", axis=0) / 2)


def opened_report(regressor, tmp_path, monkeypatch, width=1200):
    """What a page says and how large it is, after every control was moved."""
    extra = str(Path(__file__).with_name("move_sliders.js"))
    monkeypatch.setattr(page, "SCRIPTS", (*page.SCRIPTS, extra))
    text = sections.report_page(regressor, "model")
    path = tmp_path / "report.html"
    path.write_text(text)
    assert len(text) < 6e6
    result, console = opened(path, width)
    assert console == []
    assert result["milliseconds"] < 3000
    print(f"{len(text) / 1e6:.2f} MB, {result['milliseconds']:.0f} ms")
    return result


def check_places(regressor, result, columns):
    """The page says what Python predicts, to a thousandth of a deviation."""
    rows = pd.DataFrame([place["x"] for place in result["places"]], columns=columns)
    for name in set(columns) & {"day"}:
        rows[name] = pd.to_datetime(rows[name], unit="D")
    mean, std = (np.asarray(part) for part in regressor.predict(rows, return_std=True))
    ends = regressor.predict_quantiles(rows, ndtr([-2.0, 2.0]))
    said = np.array([place["said"] for place in result["places"]])  # [places, T, 3]
    assert (np.abs(said[:, :, 0] - mean) < 1e-3 * std).all()
    assert (np.abs(said[:, :, 1:] - ends) < 1e-3 * std[..., None]).all()
    assert (np.abs(np.diff(said[:, :, 0], axis=0)) > 0).all()


@pytest.mark.parametrize(
    "N, D, T, settings",
    [
        (103, 7, 3, {"kernel": "se", "ard": True}),
        (60, 2, 2, {"kernel": "matern52"}),
        (40, 1, 1, {"kernel": "se"}),
        (50_000, 4, 3, {"kernel": "se", "inducing": 300}),
    ],
)
def test_a_slider_moves_and_the_page_says_what_python_predicts(
    tmp_path, monkeypatch, N, D, T, settings
):
    X, Y = make_table(N, D, T)
    floor = pytest.warns(UserWarning, match="Beware: the noise, sigma2, of out1, out2 is at its")
    with floor if "ard" in settings else nullcontext():
        regressor = CoolMTGPRegressor(**settings).fit(X, Y)
    result = opened_report(regressor, tmp_path, monkeypatch)
    assert len(result["places"]) == D + 1
    check_places(regressor, result, X.columns)
    scores = [float(cell.replace("−", "-")) for cell in result["column"]]
    assert scores == sorted(scores)
    assert result["charts"] >= 2 + (T > 1) + D


@pytest.mark.parametrize("width", [1200, 400])
def test_words_dates_gaps_and_transforms_in_the_page(tmp_path, monkeypatch, width):
    X, Y = make_mixed_table(80)
    settings = {"missing_inputs": "fill", "target_transform": "yeo-johnson"}
    regressor = CoolMTGPRegressor("matern52", **settings).fit(X, Y)
    result = opened_report(regressor, tmp_path, monkeypatch, width)
    assert len(result["places"]) == 6  # four columns, and a gap in one
    check_places(regressor, result, X.columns)
    assert result["wide"] <= 0  # nothing beyond the window
