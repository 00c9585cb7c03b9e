"""`gpflow-cool map`: files go in, a picture comes out, mistakes get one line."""

import json
import warnings
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from commands import mistake, run
from matplotlib.figure import Figure
from numpy.testing import assert_array_equal

from gpflow_cool import load
from gpflow_cool.cli.maps import (
    Assignments,
    axes_of,
    held_inputs,
    held_line,
    values_at,
    write_below,
)
from gpflow_cool.cli.predicting import SavedColumns
from gpflow_cool.table.encoding import Coding, Encoding
from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.files import TableError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.uniform(size=[20, 3]), columns=["lon", "lat", "depth"])
    Y = pd.DataFrame({"Cd": np.sin(3 * X.lon), "Cu": np.cos(3 * X.lat)})
    folder = tmp_path_factory.mktemp("map") / "model"
    with warnings.catch_warnings(action="ignore"):  # the noise may be at its lower bound
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
    depth = load(model).training_data()[0][:, 2].mean()
    held = {"depth": {"at": f"{depth:.4g}", "why": "mean"}}
    assert json.loads(few.stdout) == shown | {"held": held}
    more = ["--limits", "Cd=0.2,Cu=0.5", "--simulations", "1", "--at", "depth=0.9", "--force"]
    result = run("map", model, *options, *more)
    assert json.loads(result.stdout)["targets"] == ["Cd", "Cu"]
    assert json.loads(result.stdout)["held"] == {"depth": {"at": "0.9", "why": "--at"}}
    image = plt.imread(out)
    assert image.shape[0] == 2 * small[0] and image.shape[1] == 2 * small[1]  # 4 rows, 2 columns
    assert image.std() > 0.05
    result = run("map", model, *options, "--limits", "Cu=0.5", "--force")
    assert json.loads(result.stdout)["targets"] == ["Cd", "Cu"]
    assert plt.imread(out).shape[:2] == (small[0] * 3 // 2, 2 * small[1])
    text = run("map", model, *options[:-1], "--force").stdout
    assert text.startswith(f"Held in the whole map: depth = {depth:.4g} (mean).\n2 targets drawn")


def test_mistakes_are_told_before_tensorflow_is_loaded(model, tmp_path, monkeypatch):
    monkeypatch.setattr("gpflow_cool.cli.console.load_tensorflow", None)
    out = ("--out", tmp_path / "map.png")
    assert "Pass two inputs as --x and --y. They are lon, lat, depth." in mistake(
        "map", model, *out
    )
    place = ("--x", "lon", "--y", "lat")
    assert "'east' is not an input" in mistake("map", model, "--x", "east", "--y", "lat", *out)
    wrong = mistake("map", model, "--x", "lno", "--y", "lat", *out)
    assert "'lno' is not an input of the model: lon, lat, depth. Did you mean 'lon'?" in wrong
    wrong = mistake("map", model, *place, "--targets", "cu", *out)
    assert "'cu' is not a target of the model: Cd, Cu. Did you mean 'Cu'?" in wrong
    wrong = mistake("map", model, *place, "--at", "dept=1", *out)
    assert "--at dept: not an input of the model: lon, lat, depth. Did you mean 'depth'?" in wrong
    wrong = mistake("map", model, *place, "--at", "lat=3,depth=1", *out)
    assert "--at lat: this input is on an axis of the map, where it takes all values." in wrong
    assert "--at is for the inputs that are on neither axis: leave 'lat' out." in wrong
    assert "are both 'lon'" in mistake("map", model, "--x", "lon", "--y", "lon", *out)
    assert "'Pb' is not a target" in mistake("map", model, *place, "--targets", "Pb", *out)
    wrong = mistake("map", model, *place, "--limits", "Cd", *out)
    assert "'Cd' is not of the form NAME=VALUE" in wrong
    wrong = mistake("map", model, *place, "--limits", "Cd=much", *out)
    assert "'much', the limit of 'Cd', is not a number" in wrong
    both = ("--targets", "Cd", "--limits", "Cu=1")
    assert "'Cu' has a limit but is not drawn: add it" in mistake("map", model, *place, *both, *out)
    assert "--at deep: not an input" in mistake("map", model, *place, "--at", "deep=1", *out)
    wrong = mistake("map", model, *place, "--at", "depth=low", *out)
    assert "--at depth: 'low' is not a number" in wrong
    (tmp_path / "map.png").touch()
    assert "'Pb' is not a target" in mistake("map", model, *place, "--targets", "Pb", *out)
    assert "map.png exists already" in mistake("map", model, *place, *out)
    bad = mistake("map", model, *place, "--out", tmp_path / "map.csv")
    assert ".png or .pdf or .svg" in bad


def test_inputs_off_the_map_are_told_with_their_values():
    soil = Coding("soil", "category", ("clay", "sand"))
    codings = (soil, Coding("x", "number"), Coding("day", "date"), Coding("y", "number", flag=True))
    codings += (Coding("p$H$", "number", flag=True), Coding("age", "duration"))
    columns = SavedColumns([c.name for c in codings], ["t"], Encoding(codings, "fill"))
    places = np.array([0.0, 1.0, 5.0, 2.0, 7.0, 0.0, 6.54321, 0.0, 1.5])
    held = held_inputs(columns, ("x", "y"), places, {"day": "1970-01-03"})
    line = held_line(held)
    assert line == (
        "Held in the whole map: soil = sand (most frequent), day = 1970-01-03 (--at), p$H$ = 6.543"
        " (mean), age = 1.5 days (mean)."
    )
    figure = Figure(figsize=(3.7, 3.1))
    write_below(figure, line)
    below = figure.get_supxlabel()
    assert below.replace("\n", " ") == line and below.count("\n") == 2
    figure.savefig(BytesIO(), format="png")  # dollars are no formula
    assert held_line(held_inputs(columns._replace(encoding=None), columns.inputs, places, {})) == ""
    bare = Figure()
    write_below(bare, "")
    assert bare.get_supxlabel() == ""


def test_values_of_other_inputs():
    soil, day = Coding("soil, deep", "category", ("clay", "sand")), Coding("day", "date")
    codings = (soil, Coding("x", "number"), day, Coding("y", "number", flag=True))
    columns = SavedColumns([c.name for c in codings], ["t"], Encoding(codings, "fill"))
    at = Assignments().convert('"soil, deep=sand", day=1970-01-03, y=2', None, None)
    assert_array_equal(values_at(columns, at), [0.0, 1.0, np.nan, 2.0, 2.0, 0.0])
    with pytest.raises(TableError, match="--at soil, deep=rock: the fit has seen clay, sand."):
        values_at(columns, {"soil, deep": "rock"})
    with pytest.raises(TableError, match="'soil, deep' holds categories: choose of x, day, y"):
        axes_of(columns, "x", "soil, deep")
    assert axes_of(columns, "x", "day") == ("x", "day")
    few = SavedColumns(["soil, deep", "x"], ["t"], Encoding(codings[:2], "fill"))
    told = "'soil, deep' holds categories, but a map needs two inputs that .* The model has x."
    with pytest.raises(TableError, match=told):
        axes_of(few, "x", "soil, deep")
