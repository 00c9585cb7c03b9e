"""
The report in Chromium: `make test-report`. It is no part of `make test`, which needs no browser.

A slider moves, and the page says what Python predicts there.
"""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

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


def opened(path):
    """What the page says after its sliders were moved, and what the console says."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command = [CHROMIUM, *options, "--virtual-time-budget=20000", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    result = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.S)
    assert result, done.stderr[-3000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(result.group(1))), console


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
    regressor = CoolMTGPRegressor(**settings).fit(X, Y)
    extra = str(Path(__file__).with_name("move_sliders.js"))
    monkeypatch.setattr(page, "SCRIPTS", (*page.SCRIPTS, extra))
    text = sections.report_page(regressor, "model")
    path = tmp_path / "report.html"
    path.write_text(text)
    assert len(text) < 6e6
    result, console = opened(path)
    assert console == []
    assert result["milliseconds"] < 3000
    places = result["places"]
    assert len(places) == D + 1
    rows = pd.DataFrame([place["x"] for place in places], columns=X.columns)
    mean, std = (np.asarray(part) for part in regressor.predict(rows, return_std=True))
    said = np.array([place["said"] for place in places])  # [D + 1, T, 2]
    assert (np.abs(said[:, :, 0] - mean) < 1e-3 * std).all()
    assert (np.abs(said[:, :, 1] - 2 * std) < 1e-3 * std).all()
    assert (np.abs(np.diff(said[:, :, 0], axis=0)) > 0).all()
    scores = [float(cell.replace("−", "-")) for cell in result["column"]]
    assert scores == sorted(scores)
    assert result["charts"] >= 2 + (T > 1) + D
    print(f"N={N}: {len(text) / 1e6:.2f} MB, {result['milliseconds']:.0f} ms")
