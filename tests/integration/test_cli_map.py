"""`gpflow-cool map`: files go in, a picture comes out, mistakes get one line."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from commands import mistake, run

from gpflow_cool.table.estimator import CoolMTGPRegressor


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.uniform(size=[20, 3]), columns=["lon", "lat", "depth"])
    Y = pd.DataFrame({"Cd": np.sin(3 * X.lon), "Cu": np.cos(3 * X.lat)})
    folder = tmp_path_factory.mktemp("map") / "model"
    CoolMTGPRegressor("se", ard=False).fit(X, Y + 0.1 * rng.normal(size=Y.shape)).save(folder)
    return folder


@pytest.mark.slow
def test_a_map_is_drawn(model, tmp_path):
    out = tmp_path / "map.png"
    options = ["--x", "lon", "--y", "lat", "--cells", "8", "--out", out, "--json"]
    few = run("map", model, *options, "--targets", "Cd")
    assert few.exit_code == 0, few.output
    small = plt.imread(out).shape
    shown = {"out": str(out), "x": "lon", "y": "lat", "targets": ["Cd"]}
    assert json.loads(few.stdout) == shown
    more = ["--limits", "Cd=0.2,Cu=0.5", "--simulations", "1", "--at", "depth=0.9", "--force"]
    result = run("map", model, *options, *more)
    assert json.loads(result.stdout)["targets"] == ["Cd", "Cu"]
    image = plt.imread(out)
    assert image.shape[0] == 2 * small[0] and image.shape[1] == 2 * small[1]  # 4 rows, 2 columns
    assert image.std() > 0.05


def test_mistakes_have_one_line(model, tmp_path):
    out = ("--out", tmp_path / "map.png")
    assert "The inputs are lon, lat, depth: pass two of them as" in mistake("map", model, *out)
    place = ("--x", "lon", "--y", "lat")
    assert "'east' is not an input" in mistake("map", model, "--x", "east", "--y", "lat", *out)
    assert "'Pb' is not a target" in mistake("map", model, *place, "--targets", "Pb", *out)
    wrong = mistake("map", model, *place, "--limits", "Cd", *out)
    assert "'Cd' is not of the form NAME=NUMBER" in wrong
    both = ("--targets", "Cd,Cu", "--limits", "Cd=1")
    assert "'Cu' is to be drawn but has no limit" in mistake("map", model, *place, *both, *out)
    assert "'deep' is not an input" in mistake("map", model, *place, "--at", "deep=1", *out)
    bad = mistake("map", model, *place, "--out", tmp_path / "map.csv")
    assert ".png or .pdf or .svg" in bad
