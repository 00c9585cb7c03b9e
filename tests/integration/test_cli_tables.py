"""The command line on tables as they come: words, dates, gaps, patterns, skewed counts."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from commands import mistake, run, write
from numpy.testing import assert_allclose

from gpflow_cool.cli.columns import sample_names
from gpflow_cool.loading import load
from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.files import TableError


def make_frame(num_rows=24):
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 6, num_rows)
    hue = rng.choice(["red", "blue"], num_rows)
    base = np.sin(x) + (hue == "red")
    noise = 0.2 * rng.normal(size=[2, num_rows])
    frame = pd.DataFrame(
        {
            "id": [f"s{n}" for n in range(num_rows)],
            "x": x,
            "hue": hue,
            "day": pd.date_range("2026-01-01", periods=num_rows).strftime("%Y-%m-%d"),
            "patient": np.arange(num_rows) % 6,
            "y 1": np.exp(base + noise[0]),
            "y, 2": base + noise[1],
        }
    )
    frame.loc[[2, 7], "x"] = np.nan
    return frame


FRAME = make_frame()
FIT = ["--targets", "y*", "--exclude", "id,patient", "--missing-inputs"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table that has an index, and a model with a transform fitted to it."""
    folder = tmp_path_factory.mktemp("tables")
    FRAME.to_csv(folder / "data.csv")
    result = run(
        *["fit", folder / "data.csv", *FIT, "fill", "--transform", "y 1=log", "--json"],
        *["--out", folder / "model", "--report", folder / "page.html"],
    )
    assert result.exit_code == 0, result.output
    (folder / "said.json").write_text(result.stdout)
    return folder


def test_from_file_to_report(place):
    found = json.loads((place / "said.json").read_text())
    assert found["targets"] == ["y 1", "y, 2"]
    assert found["inputs"] == ["x", "x missing", "hue=blue", "hue=red", "day"]
    page = (place / "page.html").read_text()
    assert "<h1>model</h1>" in page and "hue=red" in page


def test_the_model_is_the_estimators_and_the_same_after_loading(place):
    X, Y = FRAME[["x", "hue", "day"]], FRAME[["y 1", "y, 2"]]
    expected = CoolMTGPRegressor(
        "se", ard=False, missing_inputs="fill", target_transform={"y 1": "log"}
    ).fit(X, Y)
    loaded = load(place / "model")
    assert loaded.encoded_names_ == expected.encoded_names_
    assert_allclose(loaded.predict(X), expected.predict(X), rtol=1e-4)


def test_predict_keeps_columns_and_writes_quantiles(place, tmp_path):
    out = tmp_path / "p.csv"
    result = run(
        *["predict", place / "model", place / "data.csv", "--out", out],
        *["--keep", "id,x*,y*", "--quantiles", "0.05,0.95"],
    )
    assert result.exit_code == 0, result.output
    got = pd.read_csv(out, index_col=0)
    assert list(got) == [
        *["id", "x", "y 1", "y 1_std", "y 1_q5", "y 1_q95"],
        *["y, 2", "y, 2_std", "y, 2_q5", "y, 2_q95"],
    ]
    assert list(got.index) == list(range(24)) and list(got["id"]) == list(FRAME["id"])
    model, X = load(place / "model"), FRAME[["x", "hue", "day"]]
    mean, std = model.predict(X, return_std=True)
    quantiles = model.predict_quantiles(X, [0.05, 0.95])
    assert_allclose(got[["y 1", "y, 2"]], mean, atol=1e-4)
    assert_allclose(got[["y 1_std", "y, 2_std"]], std, atol=1e-4)
    assert_allclose(got[["y 1_q5", "y 1_q95"]], quantiles[:, 0], atol=1e-4)
    assert (got["y 1_q5"] > 0.0).all()
    assert out.read_text().splitlines()[1].count("0000") == 0  # readable digits
    assert max(map(len, out.read_text().split(","))) < 20


def test_samples_of_all_rows_together(place, tmp_path):
    command = ["predict", place / "model", place / "data.csv", "--samples", 50, "--keep", "id"]
    drawn = {}
    for name, options in [("a.csv", []), ("b.parquet", []), ("c.csv", ["--seed", 1])]:
        result = run(*command, "--out", tmp_path / name, *options)
        assert "24 rows drawn 50 times, written to" in result.stdout, result.output
        drawn[name] = tmp_path / name
    text, exact = pd.read_csv(drawn["a.csv"]), pd.read_parquet(drawn["b.parquet"])
    assert list(text) == ["sample", "row", "Unnamed: 2", "id", "y 1", "y, 2"]
    assert list(text["sample"]) == list(np.repeat(np.arange(50), 24))
    assert list(text["row"]) == list(np.tile(np.arange(24), 50)) == list(text["Unnamed: 2"])
    assert list(text["id"][:24]) == list(FRAME["id"]) == list(text["id"][-24:])
    model, X = load(place / "model"), FRAME[["x", "hue", "day"]]
    expected = np.moveaxis(model.sample_y(X, 50, 0), -1, 0).reshape(-1, 2)  # [50 * 24, 2]
    assert_allclose(exact[["y 1", "y, 2"]], expected, rtol=1e-9)
    assert_allclose(text[["y 1", "y, 2"]], expected, atol=1e-3)
    assert (text["y 1"] > 0.0).all() and max(map(len, text["y 1"].astype(str))) < 12
    other = pd.read_csv(drawn["c.csv"])
    assert not np.allclose(other["y 1"], text["y 1"])
    line = mistake(*command, "--out", tmp_path / "d.csv", "--cov")
    assert "--samples goes without --cov, --quantiles and --given" in line


def test_samples_need_names_for_their_columns():
    with pytest.raises(TableError, match="called 'row', and so is a target"):
        sample_names(["a", "row"])


def test_a_map_of_encoded_inputs(place, tmp_path):
    result = run(
        *["map", place / "model", "--x", "x", "--y", "day", "--cells", 5],
        *["--at", "hue=red", "--out", tmp_path / "map.png", "--json"],
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["y"] == "day"
    line = mistake("map", place / "model", "--x", "hue", "--y", "x", "--out", tmp_path / "m.png")
    assert "'hue' holds categories: choose of x, day for --x and --y." in line


def test_unknown_categories_and_gaps_get_a_word(place, tmp_path):
    FRAME[:3].assign(hue=["red", "teal", "blue"]).to_csv(tmp_path / "new.csv", index=False)
    arguments = ["predict", place / "model", tmp_path / "new.csv", "--out", tmp_path / "p.csv"]
    result = run(*arguments)
    assert "Column 'hue' holds 'teal', which the fit has not seen (it has" in result.stderr
    assert pd.read_csv(tmp_path / "p.csv").notna().all(axis=None)


def test_rows_with_gaps_are_left_out(place, tmp_path):
    fit = ["fit", place / "data.csv", *FIT, "drop", "--out", tmp_path / "m", "--kernel", "linear"]
    result = run(*fit)
    assert "2 of 24 rows have an empty cell in the inputs and are left out." in result.stderr
    assert load(tmp_path / "m").model_.num_rows == 22
    result = run("predict", tmp_path / "m", place / "data.csv", "--out", tmp_path / "p.csv")
    assert "their predictions are left empty" in result.stderr
    empty = pd.read_csv(tmp_path / "p.csv")["y 1"].isna()
    assert list(np.flatnonzero(empty)) == [2, 7]


def test_decimal_commas_encodings_and_names_with_commas(tmp_path):
    text = "größe;a, b;y\n1,5;3;2,5\n2,5;1;3,5\n3,5;2;1,0\n"
    (tmp_path / "data.csv").write_bytes(text.encode("latin-1"))
    fit = ["fit", tmp_path / "data.csv", "--targets", '"a, b"', "--out", tmp_path / "m", "--quiet"]
    assert "Say how it is encoded, for example --encoding latin-1" in mistake(*fit)
    assert "say --decimal ','" in mistake(*fit, "--encoding", "latin-1", "--targets", "y")
    options = ["--encoding", "latin-1", "--decimal", ",", "--kernel", "linear"]
    assert run(*fit, *options).output == ""
    model = load(tmp_path / "m")
    assert list(model.feature_names_in_) == ["größe", "y"] and model.target_names_ == ("a, b",)
    assert_allclose(model.training_data()[0][:, 0], [1.5, 2.5, 3.5])


def make_german(folder, header="größe;a;y"):
    """A table with decimal commas, semicolons, and a gap."""
    rows = [f"{n / 4 - 2:.2f};s{n}.5;{n * n / 10 if n != 3 else '':}" for n in range(12)]
    text = "\n".join([header, *rows, ""]).replace(".", ",").replace(",5;", ".5;")
    (folder / "data.csv").write_bytes(text.encode("latin-1"))
    return folder / "data.csv", text, ["--encoding", "latin-1", "--decimal", ","]


def test_tables_are_written_as_they_were_read(tmp_path):
    data, text, options = make_german(tmp_path)
    impute = ["impute", data, "--targets", "y", "--exclude", "a", "--out", tmp_path / "c.csv"]
    result = run(*impute, *options, "--kernel", "linear")
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "c.csv").read_bytes().decode("latin-1").splitlines()
    assert lines[0] == "größe;a;y;y_std"
    whole = [line for n, line in enumerate(text.splitlines()) if n not in (0, 4)]
    assert [line for n, line in enumerate(lines) if n not in (0, 4)] == [f"{w};0,0" for w in whole]
    *cells, filled, std = lines[4].split(";")
    assert cells == ["-1,25", "s3.5"] and "." not in filled + std and "," in filled
    options += ["--quiet"]
    fit = ["fit", tmp_path / "c.csv", "--targets", "y", "--inputs", "größe", "--kernel", "linear"]
    assert run(*fit, "--out", tmp_path / "m", *options).output == ""
    predict = ["predict", tmp_path / "m", tmp_path / "c.csv", "--out", tmp_path / "p.csv"]
    assert run(*predict, "--keep", "größe,a", *options).output == ""
    got = pd.read_csv(tmp_path / "p.csv", sep=";", decimal=",", encoding="latin-1")
    assert list(got) == ["größe", "a", "y", "y_std"]
    assert_allclose(got["größe"], np.arange(12) / 4 - 2)
    assert_allclose(got["y"], load(tmp_path / "m").predict(got[["größe"]])["y"], atol=1e-2)
    assert "." not in (tmp_path / "p.csv").read_text("latin-1").replace(".5;", ";")


@pytest.mark.parametrize("column", ["preis", "x"])
def test_points_among_decimal_commas_are_refused(tmp_path, column):
    text = "x;preis\n0,637;740\n0,27;1.376\n0,041;1.132\n"
    if column == "x":
        text = text.replace("0,041;1.132", "1.041;1132").replace("1.376", "1376")
    row = 2 if column == "preis" else 3
    fit = ["fit", write(tmp_path / "data.csv", text), "--targets", "preis", "--decimal", ","]
    line = mistake(*fit, "--out", tmp_path / "m")
    assert f"row {row} (line {row + 1}), column {column!r}: '1." in line
    assert "Does the point separate thousands? Then remove it." in line
    assert "leave out --decimal if all numbers of the file have points" in line


def test_a_thousand_targets_by_a_pattern(tmp_path):
    rng = np.random.default_rng(0)
    Y = rng.normal(size=[4, 1000])
    frame = pd.DataFrame(Y, columns=[f"y{t}" for t in range(1000)]).assign(x=range(4))
    frame.to_csv(tmp_path / "data.csv", index=False)
    # Answered before training: only the input is wrong.
    line = mistake(
        *["fit", tmp_path / "data.csv", "--targets", "y*", "--inputs", "z"],
        *["--out", tmp_path / "m"],
    )
    assert "has no column 'z'" in line


def test_evaluate_groups_blocks_kernels_and_transforms(place):
    arguments = ["evaluate", place / "data.csv", "--targets", "y 1", "--inputs", "hue,patient"]
    arguments += ["--folds", 2, "--json"]
    result = run(*arguments, "--groups", "patient", "--transform", "yeo-johnson")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["held_out"] == "by groups of patient"
    assert list(found["scores"])[:2] == ["Cool-MTGP", "Cool-MTGP, yeo-johnson"]
    assert found["best"]["joint_nlpd"] in found["scores"]
    options = ["--kernels", "se,linear", "--inducing", 4, "--blocks", "patient,3"]
    result = run(*arguments, *options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["held_out"] == "by blocks of patient (3 parts each)"
    assert list(found["scores"])[:2] == ["Cool-MTGP", "Cool-MTGP, linear"]


# Mistakes, before TensorFlow is loaded -----------------------------------------------------------

GOOD = "a,b,c\n1,2,3\n2,4,7\n3,5,4\n"

MISTAKES = {
    "pattern": (GOOD, ["--targets", "z*"], "has no column that matches 'z*'"),
    "excluded": (GOOD, ["--targets", "a", "--exclude", "b,c"], "no column left to predict from"),
    "gap": ("a,b\n1,2\n,3\n", ["--targets", "b"], "make it a target (--targets); or leave it out"),
    "names": (
        "a,b\n" + "".join(f"n{i},{i}\n" for i in range(12)),
        ["--targets", "b"],
        "Column 'a' holds 12 different categories in 12 rows",
    ),
    "log": ("a,b\n1,0\n2,3\n", ["--targets", "b", "--transform", "log"], "has no logarithm. Say"),
    "transform": (GOOD, ["--targets", "a", "--transform", "b=log"], "--transform b: the targets"),
    "kind": (GOOD, ["--targets", "a", "--transform", "sqrt"], "'sqrt' is not one of none, log"),
    "few": (
        "a,b\n1,2\n,3\n",
        ["--targets", "b", "--missing-inputs", "drop"],
        "1 of 2 rows have no",
    ),
    "report": (GOOD, ["--targets", "a", "--report", "r.pdf"], "ends in .html"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_fit(tmp_path, name):
    text, arguments, message = MISTAKES[name]
    data = write(tmp_path / "data.csv", text)
    assert message in mistake("fit", data, *arguments, "--out", tmp_path / "model")


def test_mistakes_in_evaluate(tmp_path):
    data = write(tmp_path / "data.csv", GOOD)
    arguments = ["evaluate", data, "--targets", "a", "--folds", 2]
    assert "--folds 2 is not possible for 3 rows" in mistake(*arguments)
    data.write_text(GOOD + "4,4,4\n5,5,9\n")
    assert "has no column 'g'" in mistake(*arguments, "--groups", "g")
    assert "choose one" in mistake(*arguments, "--groups", "b", "--blocks", "b,c,2")
    assert "is not columns and a number of parts" in mistake(*arguments, "--blocks", "b,c")
    assert "'rbf' is not one of auto, se," in mistake(*arguments, "--kernels", "se,rbf")
    data.write_text("a,b\n7,1\n7,2\n7,3\n7,4\n")
    assert "Target 'a' never changes, and cannot be scored" in run(*arguments).stderr


def test_a_constant_target_is_told_and_fitted(tmp_path):
    data = write(tmp_path / "data.csv", "a,b\n1,7\n2,7\n3,7\n")
    result = run("fit", data, "--targets", "b", "--out", tmp_path / "model")
    assert result.exit_code == 0, result.output
    assert "Target 'b' is 7 in every row: there is nothing to learn" in result.stderr
    assert "UserWarning" not in result.stderr


def test_mistakes_in_predict_are_told_without_tensorflow(place, tmp_path):
    new = write(tmp_path / "new.csv", "x,hue\n1,red\n")
    code = (
        "import sys\nfrom gpflow_cool.cli.commands import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n    print('tensorflow' in sys.modules)\n"
    )
    out = ["--out", tmp_path / "p.csv"]
    for data, options, message in [
        (new, out, "has no column 'day'"),
        (
            place / "data.csv",
            [*out, "--given", "z"],
            "--given z: the model's targets are y 1,",
        ),
        (place / "data.csv", [*out, "--keep", "y 1"], "--keep y 1: a column of predictions has"),
        (place / "data.csv", ["--out", new], "new.csv exists already"),
        (new, ["--out", new, "--force"], "new.csv is also read by this command"),
    ]:
        command = [sys.executable, "-c", code, "predict", place / "model", data, *options]
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert message in result.stderr and result.stdout == "False\n", result.stderr


# Sets like those of the Mulan collection ---------------------------------------------------------


def nominal(rng, n):
    """Like sf1: letters and a few numbers in, rare counts out."""
    table = {f"c{i}": rng.choice(list("ABCD"), n) for i in range(3)} | {"k": rng.choice([1, 2], n)}
    counts = {f"y{t}": rng.poisson(0.3 + (table["c0"] == "A"), n) for t in range(2)}
    return pd.DataFrame(table | counts)


def gappy(rng, n):
    """Like osales: many gaps, in the same rows of several columns; sales over orders of size."""
    X = rng.normal(size=[n, 5])
    sales = np.exp(X[:, :1] + 1.5 * rng.normal(size=[n, 2])) * 1000
    X[rng.random(n) < 0.3, 2:4] = np.nan
    X[rng.random(n) < 0.2, 4] = np.nan
    return pd.DataFrame(np.hstack([X, sales]), columns=[*"abcde", "y1", "y2"])


def counts(rng, n):
    """Like scpf: places in two towns, words with gaps, counts of which a few are very large."""
    town = rng.random(n) < 0.5
    frame = pd.DataFrame({"lat": 37 + 5 * town + 0.05 * rng.normal(size=n)})
    frame["tag"] = rng.choice(["tree", "trash", None], n)
    frame["y1"] = np.floor(np.exp(rng.normal(size=n) * 1.5))
    frame["y2"] = rng.poisson(0.5, n)
    return frame


@pytest.mark.parametrize("make", [nominal, gappy, counts])
def test_one_command_from_file_to_report(tmp_path, make):
    make(np.random.default_rng(2), 30).to_csv(tmp_path / "data.csv", index=False)
    result = run(
        *["fit", tmp_path / "data.csv", "--targets", "y*", "--missing-inputs", "fill"],
        *["--transform", "yeo-johnson", "--out", tmp_path / "m", "--report", tmp_path / "r.html"],
    )
    assert result.exit_code == 0, result.output
    assert "<h1>m</h1>" in (tmp_path / "r.html").read_text()
    result = run("predict", tmp_path / "m", tmp_path / "data.csv", "--out", tmp_path / "p.csv")
    assert result.exit_code == 0, result.output
    assert pd.read_csv(tmp_path / "p.csv").notna().all(axis=None)
