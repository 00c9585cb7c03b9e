"""The page's own predictions: its JavaScript, in an engine without a browser, against Python."""

import json
from pathlib import Path

import gpflow
import numpy as np
import pandas as pd
import pytest
import quickjs
from numpy.testing import assert_allclose
from scipy.special import ndtr

from gpflow_cool.kernels import Laplacian
from gpflow_cool.report import whatif
from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.transforms import FAR_AWAY, Transform

pytestmark = pytest.mark.filterwarnings("ignore:Beware")
"""Tables with so few rows of three inputs hardly tell noise."""

SCRIPT = (Path(whatif.__file__).parent / "predictor.js").read_text()

k = gpflow.kernels
KERNELS = {
    "se": k.SquaredExponential(lengthscales=[1.0, 2.0, 0.5], variance=2.0),
    "matern12": k.Matern12(variance=0.3, lengthscales=0.7),
    "matern32": k.Matern32(active_dims=[2, 0], lengthscales=[1.0, 2.0]),
    "matern52": k.Matern52(lengthscales=1.7),
    "exponential": k.Exponential(lengthscales=0.9),
    "rq": k.RationalQuadratic(lengthscales=[1.0, 2.0, 3.0], alpha=0.7),
    "laplacian": Laplacian(variance=0.4, lengthscales=[1.0, 2.0, 3.0]),
    "linear": k.Linear(variance=[0.5, 0.2, 0.1]),
    "sum": k.Matern32(active_dims=slice(1, 3)) + k.Linear(variance=0.4, active_dims=[0]),
    "product": k.SquaredExponential(active_dims=[1]) * k.Constant(2.0) + k.Constant(0.3),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_in_the_page_are_gpflows(rng, name):
    X, X2 = rng.normal(size=[4, 3]), rng.normal(size=[3, 3])
    context = quickjs.Context()
    context.eval(SCRIPT)
    for label, value in [
        ("kernel", whatif.kernel_document(KERNELS[name], 3)),
        ("X", X.ravel().tolist()),
        ("X2", X2.tolist()),
    ]:
        context.eval(f"const {label} = {json.dumps(value)};")
    rows = "[0, 1, 2, 3].map((i) => X2.map((z) => covariance(kernel, X, 3 * i, z, 0)))"
    found = np.array(json.loads(context.eval(f"JSON.stringify({rows})")))
    assert_allclose(found, KERNELS[name](X, X2), rtol=1e-9, atol=1e-12)


def make_table(N, T=3, D=3):
    rng = np.random.default_rng(5)
    X = rng.normal(size=[N, D]) * [1.0, 20.0, 0.1] + [0.0, 300.0, -2.0]
    signal = np.sin(2 * (X - X.mean(axis=0)) / X.std(axis=0)) @ rng.normal(size=[D, T])
    return X, 1000 + 50 * signal + 10 * rng.normal(size=[N, T])


def in_javascript(document, rows):
    """Means [M, T] and covariances [M, T, T] as the page computes them."""
    context = quickjs.Context()
    context.eval(SCRIPT)
    context.eval(
        f"const stored = {json.dumps(document)}; const rows = {json.dumps(rows.tolist())};"
    )
    text = context.eval(
        "const plain = (p) => [p.mean, p.normal.cov.map((row) => Array.from(row)), p.low, p.high];"
        "JSON.stringify(rows.map(makePredictor(stored)).map(plain))"
    )
    mean, cov, low, high = map(np.array, zip(*json.loads(text), strict=True))
    scale = np.array(document["targets"]["scale"])
    return mean, cov * np.outer(scale, scale), low, high


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["matern52", k.Linear() + k.Constant(), KERNELS["sum"]])
def test_the_page_predicts_what_python_predicts(kernel):
    X, Y = make_table(20)
    regressor = CoolMTGPRegressor(kernel, ard=False, orders=2).fit(X, Y)
    document = whatif.what_if_document(regressor)
    rows = np.vstack([X[:3], X.mean(axis=0), X.mean(axis=0) + 3 * X.std(axis=0)])
    mean, cov = regressor.predict(rows, return_cov=True)
    found, S, *_ = in_javascript(document, rows)
    std = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    assert (np.abs(found - mean) < 1e-6 * std).all()
    assert_allclose(S, cov, rtol=1e-6, atol=1e-6 * np.square(std).min())
    assert document["error"] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("log", "yeo-johnson", "none"), ("yeo-johnson",) * 3])
def test_transformed_targets(kinds):
    X, Y = make_table(20)
    Y = (Y - Y.mean(axis=0)) / Y.std(axis=0)
    Y = np.stack([np.exp(Y[:, 0]), np.sinh(2 * Y[:, 1]), -np.exp(Y[:, 2])], axis=1)
    transform = {f"y{t}": kind for t, kind in enumerate(kinds)}
    frame = pd.DataFrame(Y, columns=list(transform))
    regressor = CoolMTGPRegressor("se", ard=False, orders=2, target_transform=transform)
    regressor.fit(X, frame)
    rows = np.vstack([X[:4], X.mean(axis=0), X.mean(axis=0) + 3 * X.std(axis=0)])
    mean, std = (np.asarray(part) for part in regressor.predict(rows, return_std=True))
    low, high = np.moveaxis(regressor.predict_quantiles(rows, ndtr([-2.0, 2.0])), -1, 0)
    found, _, a, b = in_javascript(whatif.what_if_document(regressor), rows)
    for ours, theirs in [(found, mean), (a, low), (b, high)]:
        assert (np.abs(ours - theirs) < 1e-6 * std).all()


def powers(low, high):
    ends = [(None, None), (low, high)]
    return [("yeo-johnson", p, 0.7, *end) for p in (0.0, 0.4, 1.0, 1.6, 2.0) for end in ends]


@pytest.mark.parametrize("parts", [("none", 1.0, 1.0, None, None), *powers(-2.0, 1.5)])
def test_inverse_transforms(parts):
    kind, power, unit, low, high = parts
    transform = Transform(
        kind,
        power,
        unit,
        *(end if end else np.sign(s) * FAR_AWAY for s, end in ((-1, low), (1, high))),
    )
    z = np.linspace(-3, 3, 13)
    context = quickjs.Context()
    context.eval(SCRIPT)
    document = json.dumps({"kind": kind, "power": power, "unit": unit, "low": low, "high": high})
    found = context.eval(
        f"JSON.stringify({z.tolist()}.map((z) => inverseTransform({document}, z)))"
    )
    assert_allclose(json.loads(found), transform.inverse(z), rtol=1e-12, atol=1e-13)


def test_constant_inputs_and_one_target():
    X, Y = make_table(12, T=1)
    X[:, 1] = 7.0
    regressor = CoolMTGPRegressor("matern52").fit(X, Y[:, 0])
    mean, std = regressor.predict(X, return_std=True)
    found, S, *_ = in_javascript(whatif.what_if_document(regressor), X)
    assert_allclose(found[:, 0], mean, rtol=1e-9)
    assert_allclose(np.sqrt(S[:, 0, 0]), std, rtol=1e-6)


@pytest.mark.slow
def test_inducing_points():
    X, Y = make_table(60)
    regressor = CoolMTGPRegressor("matern32", ard=False, inducing=15).fit(X, Y)
    document = whatif.what_if_document(regressor)
    assert document["points"] == 15
    mean, cov = regressor.predict(X[:20], return_cov=True)
    found, S, *_ = in_javascript(document, X[:20])
    std = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    assert (np.abs(found - mean) < 1e-3 * std).all()
    assert (np.abs(np.sqrt(np.diagonal(S, axis1=1, axis2=2)) - std) < 1e-3 * std).all()


@pytest.mark.slow
def test_many_rows_are_reduced_and_the_error_is_told(monkeypatch):
    monkeypatch.setattr(whatif, "MAX_POINTS", 30)
    X, Y = make_table(40)
    regressor = CoolMTGPRegressor("se", ard=False, orders=2).fit(X, Y)
    mean, std = regressor.predict(X, return_std=True)
    for points, numbers in [(40, 1000), (40, 10), (12, 1000), (12, 10)]:
        monkeypatch.setattr(whatif, "REDUCED_POINTS", points)
        monkeypatch.setattr(whatif, "MAX_MEAN_NUMBERS", numbers)
        document = whatif.what_if_document(regressor)
        assert document["points"] == points and ("X" in document) == (numbers == 1000)
        found, S, *_ = in_javascript(document, X)
        shift = np.max(np.abs(found - mean) / std)
        spread = np.max(np.abs(np.sqrt(np.diagonal(S, axis1=1, axis2=2)) / std - 1))
        assert max(shift, spread) <= document["error"] * 1.001 + 1e-9  # all rows were checked
        if points == 40:
            assert document["error"] < 1e-4
        else:
            assert document["error"] > 1e-3  # the check sees that twelve points are few
        if numbers == 1000:
            assert shift < 1e-6


@pytest.mark.slow
def test_seven_digits_where_numbers_are_many(monkeypatch):
    X, Y = make_table(25)
    regressor = CoolMTGPRegressor("se", ard=False, orders=2).fit(X, Y)
    monkeypatch.setattr(whatif, "MAX_DOUBLES", 100)
    document = whatif.what_if_document(regressor)
    assert (document["V"]["type"], document["d"]["type"]) == ("f4", "f8")
    mean, std = regressor.predict(X, return_std=True)
    assert (np.abs(in_javascript(document, X)[0] - mean) < 1e-3 * std).all()
    assert 0 < document["error"] < 1e-3


@pytest.mark.slow
def test_what_the_page_cannot_do_is_said(monkeypatch):
    X, Y = make_table(12)
    periodic = k.Periodic(k.SquaredExponential(active_dims=[0]))
    text = whatif.what_if_document(CoolMTGPRegressor(periodic, orders=1).fit(X, Y))
    assert text.startswith("The page does not know this kernel")
    monkeypatch.setattr(whatif, "MAX_COLUMNS", 2)
    text = whatif.what_if_document(CoolMTGPRegressor("se", ard=False, orders=1).fit(X, Y))
    assert text.startswith("There are more than 60 targets or 2 inputs")


@pytest.mark.slow
def test_missing_targets(monkeypatch):
    X, Y = make_table(16)
    Y[:5, 0] = Y[3:8, 2] = np.nan
    regressor = CoolMTGPRegressor("matern32", ard=False, random_state=0).fit(X, Y)
    document = whatif.what_if_document(regressor)
    rows = np.vstack([X, X.mean(axis=0)])
    mean, cov = regressor.predict(rows, return_cov=True)
    found, S, *_ = in_javascript(document, rows)
    std = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    assert (np.abs(found - mean) < 1e-6 * std).all()
    assert_allclose(S, cov, rtol=1e-6, atol=1e-6 * np.square(std).min())
    assert document["error"] < 1e-6
    monkeypatch.setattr(whatif, "MAX_OBSERVED", 30)
    text = whatif.what_if_document(regressor)
    assert text.startswith("Targets are missing, and more than 30 are observed")
