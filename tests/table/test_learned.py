"""`relevance_`: one number per column of the user's table, from predictions of exchanged cells."""

import gpflow
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGPRegressor, load
from gpflow_cool.selection.choice import KernelTable
from gpflow_cool.table.learned import kernel_in_words, relevance_by_name


def make_frame():
    """Words decide most, a number with gaps less, dates a little, and another number nothing."""
    rng = np.random.default_rng(1)
    hue = np.array(["red", "blue", "green", "blue"] * 6)
    x, noise = rng.uniform(0, 6, 24), rng.normal(size=24)
    day = pd.date_range("2026-01-01", periods=24, freq="D")
    shift = pd.Series(hue).map({"red": 0.0, "blue": 2.0, "green": -2.0}).to_numpy()
    F = np.stack([np.sin(x) + shift, 5.0 * (np.cos(x) - shift + np.arange(24) / 20)], axis=1)
    Y = F + 0.1 * rng.normal(size=F.shape) * [1.0, 5.0]
    frame = pd.DataFrame({"x": x, "hue": hue, "noise": noise, "day": day})
    frame.loc[[3, 8], "x"] = np.nan
    return frame, pd.DataFrame(Y, columns=["a", "b"])


X, Y = make_frame()


def by_definition(regressor, X, Y):
    """What predictions of tables with exchanged cells tell, one pair of rows at a time."""
    first, second = (part.ravel() for part in np.meshgrid(*[np.arange(len(X))] * 2, indexing="ij"))
    here, others = (X.iloc[rows].reset_index(drop=True) for rows in (first, second))
    mean, scale = np.asarray(regressor.predict(here)), np.nanstd(Y, axis=0)

    def moved(table):
        return np.mean(np.sum(((np.asarray(regressor.predict(table)) - mean) / scale) ** 2, axis=1))

    columns = {name: moved(here.assign(**{name: others[name]})) for name in X}
    return pd.Series(columns) / moved(others)


def with_gaps(Y):
    return Y.where(np.random.default_rng(2).uniform(size=Y.shape) > 0.2)


WAYS = {
    "averaged": ({}, lambda Y: Y),
    "in its own units": ({"standardize": False, "orders": 1}, lambda Y: Y),
    "inducing points": ({"inducing": 12}, lambda Y: Y),
    "missing targets": ({"random_state": 0}, with_gaps),
}


@pytest.mark.filterwarnings("ignore:Beware")
@pytest.mark.parametrize(
    "way", [*list(WAYS)[:3], pytest.param("missing targets", marks=pytest.mark.slow)]
)
def test_relevance_is_what_predictions_of_the_table_tell(way, tmp_path):
    settings, change = WAYS[way]
    frame = X if settings.get("standardize", True) else X.drop(columns="day")
    targets = change(Y)
    fitted = CoolMTGPRegressor("se", ard=False, missing_inputs="fill", **settings)
    relevance = fitted.fit(frame, targets).relevance_
    assert_allclose(relevance, by_definition(fitted, frame, targets), rtol=1e-6)
    assert list(relevance.index) == list(frame.columns)
    assert relevance_by_name(fitted) == relevance.to_dict()
    if way == "averaged":
        assert relevance["hue"] > 0.6 and relevance.drop("hue").max() < 0.5 * relevance["hue"]
    fitted.save(tmp_path / "model")
    assert load(tmp_path / "model").relevance_.to_dict() == pytest.approx(relevance.to_dict())


@pytest.mark.filterwarnings("ignore:Beware")
def test_with_one_lengthscale_inputs_differ_by_what_they_move():
    """All have the same lengthscale, and one alone decides."""
    rng = np.random.default_rng(3)
    table = rng.uniform(-1, 1, size=[40, 3])
    fitted = CoolMTGPRegressor("se", ard=False).fit(table, 5.0 * table[:, 1:2] + [2.0, 3.0])
    assert fitted.model_.kernel.lengthscales.shape == ()
    assert isinstance(fitted.relevance_, np.ndarray)
    assert fitted.relevance_[1] > 0.9 and np.all(fitted.relevance_[[0, 2]] < 0.02)


def test_where_all_is_noise_nothing_is_relevant():
    rng = np.random.default_rng(4)
    table = rng.normal(size=[30, 2])
    alike = np.vstack([table, table])
    noise = rng.normal(size=[30, 2])
    with pytest.warns(UserWarning, match="Beware: everything looks like noise"):
        fitted = CoolMTGPRegressor("se", ard=False).fit(alike, np.vstack([noise, -noise]))
    assert fitted.relevance_.tolist() == [0.0, 0.0]


def test_words_without_names_and_a_column_that_never_varies():
    table = np.column_stack([X["hue"], np.full(24, 7.0), X["noise"]]).astype(object)
    relevance = CoolMTGPRegressor("se", ard=False).fit(table, Y.to_numpy()).relevance_
    assert relevance.shape == (3,) and relevance[1] == 0.0 and relevance[0] > 5 * relevance[2] > 0


@pytest.mark.parametrize(
    "kernel, ard, words",
    [
        ("se+linear", "shrunk", "se+linear, a lengthscale per input"),
        ("se", False, "se"),
        (gpflow.kernels.Linear() + gpflow.kernels.Matern32(), "shrunk", "Linear + Matern32"),
    ],
)
def test_the_kernel_is_told_as_it_was_trained(kernel, ard, words):
    table = X[["noise", "day"]]
    regressor = CoolMTGPRegressor(kernel, ard=ard).fit(table, Y)
    assert kernel_in_words(regressor) == words
    regressor.kernel_choice_ = KernelTable((), "rq", 24)
    assert kernel_in_words(regressor) == "rq"
