"""Transforms of targets: densities, moments and quantiles against integrals and draws."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import lognorm, multivariate_normal, norm, yeojohnson

from gpflow_cool.loading import load
from gpflow_cool.table import transforms
from gpflow_cool.table.columns import Scaling
from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.transforms import Transform, Warping, kinds_of, learn_warping

KINDS = [
    Transform("none"),
    Transform("log"),
    Transform("log", high=3.0),
    Transform("yeo-johnson", 0.0, 2.0),
    Transform("yeo-johnson", 0.3, 0.5, high=4.0),
    Transform("yeo-johnson", 1.6, 1.0, low=-2.0),
    Transform("yeo-johnson", 2.0, 3.0),
]


@pytest.mark.parametrize("transform", KINDS, ids=str)
def test_inverse_and_slope(transform):
    y = np.array([0.01, 0.4, 1.0, 2.9, 3.1, 40.0])
    y = y if transform.kind == "log" else np.concatenate([-y, [0.0], y])
    z = transform.forward(y)
    assert np.all(np.diff(transform.forward(np.sort(y))) > 0.0)
    assert_allclose(transform.inverse(z), y, rtol=1e-10, atol=1e-12)
    h = 1e-6 * np.maximum(np.abs(y), 1e-2)
    slope = (transform.forward(y + h) - transform.forward(y - h)) / (2.0 * h)
    assert_allclose(transform.log_slope(y), np.log(slope), rtol=1e-5, atol=1e-6)


def test_numbers_without_a_logarithm_are_below_all_others():
    z = Transform("log", high=3.0).forward(np.array([-1.0, 0.0, 1.0, np.nan]))
    assert_array_equal(z, [-np.inf, -np.inf, 0.0, np.nan])


def test_yeo_johnson_is_scipys_in_a_unit():
    y = np.array([-3.0, -0.5, 0.0, 0.2, 7.0])
    for power in (0.0, 0.7, 1.0, 1.5, 2.0):
        expected = yeojohnson(y / 2.5, lmbda=power)
        assert_allclose(Transform("yeo-johnson", power, 2.5).forward(y), expected, rtol=1e-12)


@pytest.mark.parametrize("transform", KINDS, ids=str)
@pytest.mark.parametrize("mean, std", [(0.3, 0.5), (-1.0, 1.2)])
def test_densities_integrate_to_one_and_to_the_moments(transform, mean, std):
    warping = Warping((transform,), Scaling(np.array([0.2]), np.array([0.8])))

    # The middles of many narrow cells, and the cells' widths.
    y = warping.values(np.linspace(mean - 9 * std, mean + 9 * std, 40_001)[:, None])
    middle, width = 0.5 * (y[1:] + y[:-1]), np.diff(y[:, 0])
    z = warping.standardised(middle)
    mass = width * np.exp(warping.log_density(norm.logpdf(z, mean, std)[:, 0], middle))
    assert_allclose(mass.sum(), 1.0, rtol=1e-6)
    first = mass @ middle[:, 0]
    second = mass @ (middle[:, 0] - first) ** 2
    m, v = warping.moments(np.array([[mean]]), np.array([[std**2]]))
    assert_allclose([m[0, 0], v[0, 0]], [first, second], rtol=2e-3, atol=1e-3)
    for p in (0.1, 0.5, 0.9):
        q = warping.quantiles(np.array([[mean]]), np.array([[std**2]]), [p])[0, 0, 0]
        assert_allclose(
            warping.standardised(np.array([[q]]))[0, 0], norm.ppf(p, mean, std), atol=1e-9
        )


def test_moments_of_a_logarithm_are_those_of_the_lognormal():
    warping = Warping((Transform("log"),), Scaling(np.array([0.5]), np.array([0.9])))
    m, v = warping.moments(np.array([[0.7], [-2.0]]), np.array([[1.1], [0.3]]))
    for row, (mean, var) in enumerate([(0.7, 1.1), (-2.0, 0.3)]):
        law = lognorm(s=0.9 * np.sqrt(var), scale=np.exp(0.5 + 0.9 * mean))
        assert_allclose([m[row, 0], v[row, 0]], [law.mean(), law.var()], rtol=1e-9)


def test_covariances_are_integrals():
    pair = (Transform("log"), Transform("yeo-johnson", 0.4, 1.5, high=2.0))
    scaling = Scaling(np.array([0.1, -0.3]), np.array([0.5, 1.2]))
    warping = Warping(pair, scaling)
    mean, S = np.array([0.2, 0.4]), np.array([[0.5, -0.3], [-0.3, 0.6]])
    m, C = warping.moments(mean[None], S[None])
    grid = np.stack(np.meshgrid(*(np.linspace(c - 7, c + 7, 501) for c in mean)), -1).reshape(-1, 2)
    mass = multivariate_normal(mean, S).pdf(grid) * (14 / 500) ** 2
    expected = mass @ np.prod(warping.values(grid) - m, axis=1)
    assert_allclose(C[0, 0, 1], expected, rtol=1e-3)
    assert_allclose(C[0, 1, 0], C[0, 0, 1])
    assert_allclose(np.diagonal(C[0]), warping.moments(mean[None], np.diag(S)[None])[1][0])


def test_targets_that_are_known_stay_as_they_are():
    warping = Warping((Transform("log"),) * 2, Scaling(np.zeros(2), np.ones(2)))
    m, C = warping.moments(np.log([[3.0, 2.0]]), np.array([[[0.0, 0.0], [0.0, 0.2]]]))
    assert_allclose(m[0, 0], 3.0)
    assert_allclose(C[0, 0], 0.0, atol=1e-12)
    assert C[0, 1, 1] > 0.5


def test_linear_answers_are_exact_and_mix_with_others():
    scaling = Scaling(np.array([5.0, -2.0]), np.array([2.0, 30.0]))
    mean, S = np.array([[0.5, 1.0]]), np.array([[[0.4, 0.1], [0.1, 0.7]]])
    plain = Warping((Transform(),) * 2, scaling).moments(mean, S)
    nearly = Warping((Transform(), Transform("yeo-johnson", 1.0)), scaling).moments(mean, S)
    assert_allclose(plain[0], mean * scaling.scale + scaling.centre, rtol=1e-14)
    assert_allclose(plain[1], S * np.outer(scaling.scale, scaling.scale), rtol=1e-14)
    assert_allclose(nearly[0], plain[0], rtol=1e-9)
    assert_allclose(nearly[1], plain[1], rtol=1e-9)


def test_evidence_is_that_of_a_gaussian_process():
    rng = np.random.default_rng(0)
    X, z = rng.normal(size=[7, 2]), rng.normal(size=[7, 1])
    D = np.array([[np.sum((a - b) ** 2) for b in X] for a in X])
    typical = np.median(D[np.triu_indices(7, 1)])
    best = -np.inf
    for factor in transforms.LENGTHSCALES:
        K = np.exp(-0.5 * D / (factor**2 * typical))
        for part in transforms.PARTS:
            V = part * K + (1 - part) * np.eye(7)
            r = z[:, 0] - z.mean()
            s = r @ np.linalg.solve(V, r) / 7
            value = multivariate_normal(cov=s * V, allow_singular=True).logpdf(r)
            best = max(best, value + 3.5 * (1 + np.log(2 * np.pi)))
    assert_allclose(transforms.log_evidence(X, z), [best], rtol=1e-6)


def test_the_power_is_that_of_the_noise_not_of_the_inputs():
    rng = np.random.default_rng(3)
    X = rng.normal(size=[150, 1])
    skewed = np.exp(0.5 * X[:, 0] + 0.6 * rng.normal(size=150))
    assert transforms.learn_power(X, skewed).power < 0.3
    inputs = np.exp(X)  # skewed inputs, normal noise
    linear = 3.0 * inputs[:, 0] + 0.3 * rng.normal(size=150)
    assert transforms.learn_power(inputs, linear).power > 0.6


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_units_of_the_targets_do_not_matter(unit):
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=[40, 1]), np.exp(rng.normal(size=40))
    y[3] = np.nan
    Z = [
        learn_warping(X, u * y[:, None], "yeo-johnson", ["y"]).standardised(u * y[:, None])
        for u in (1, unit)
    ]
    assert_allclose(Z[0], Z[1], rtol=1e-6)


def test_mistakes():
    assert kinds_of("log", ["a", "b"]) == ["log", "log"]
    with pytest.raises(ValueError, match="target_transform names 'c', but the targets are a, b."):
        kinds_of({"c": "log"}, ["a", "b"])
    with pytest.raises(ValueError, match=r"names 'rian', .* are rain, 5\. Did you mean 'rain'\?"):
        kinds_of({"rian": "log"}, ["rain", "5"])
    with pytest.raises(ValueError, match=r"names 5, .* are rain, 5\. Did you mean '5'\?"):
        kinds_of({5: "log"}, ["rain", "5"])
    with pytest.raises(ValueError, match="target_transform='sqrt' is not known. Choose one of"):
        kinds_of("sqrt", ["a"])
    Y = np.array([[1.0], [0.0], [2.0]])
    with pytest.raises(ValueError, match="Target 'a' is 0 in row 1, and has no logarithm: use"):
        learn_warping(Y, Y, "log", ["a"])


# The estimator -----------------------------------------------------------------------------------


def make_data():
    rng = np.random.default_rng(6)
    X = rng.uniform(0, 6, [30, 1])
    F = np.sin(X) + np.array([0.0, 0.5]) + 0.3 * rng.normal(size=[30, 2])
    return X, pd.DataFrame({"rain": np.exp(F[:, 0]), "heat": F[:, 1]})


X, Y = make_data()
NEW = np.array([[1.0], [2.5], [20.0]])


@pytest.fixture(scope="module")
def skewed():
    return CoolMTGPRegressor("se", ard=False, target_transform={"rain": "log"}).fit(X, Y)


def test_the_estimator_is_that_of_logarithms(skewed):
    by_hand = CoolMTGPRegressor("se", ard=False).fit(X, Y.assign(rain=np.log(Y["rain"])))
    mean, cov = (by_hand.predict(NEW, return_cov=True)[i] for i in range(2))
    got_mean, got_std = skewed.predict(NEW, return_std=True)
    assert_allclose(got_mean[:, 1], mean[:, 1], rtol=1e-4)
    high = Y["rain"].max()
    draws = np.random.default_rng(0).normal(mean[:, 0], np.sqrt(cov[:, 0, 0]), [200_000, 3])
    values = np.where(draws < np.log(high), np.exp(draws), high * (1 + draws - np.log(high)))
    assert_allclose(got_mean[:, 0], values.mean(axis=0), rtol=0.01)
    assert_allclose(got_std[:, 0], values.std(axis=0), rtol=0.01)
    quantiles = skewed.predict_quantiles(NEW, [0.05, 0.5])
    z = mean[:, 0, None] + np.sqrt(cov[:, 0, 0, None]) * norm.ppf([0.05, 0.5])
    assert_allclose(quantiles[:, 0], np.exp(z), rtol=1e-4)
    assert np.all(quantiles[:, 0] > 0.0)
    samples = skewed.sample_y(NEW, 2000)
    assert np.all(samples[:, 0] > 0.0)
    assert_allclose(np.median(samples[:, 0], axis=1), quantiles[:, 0, 1], rtol=0.15)


def test_densities_have_the_jacobian(skewed):
    by_hand = CoolMTGPRegressor("se", ard=False).fit(X, Y.assign(rain=np.log(Y["rain"])))
    new = Y[:3].assign(heat=[0.1, np.nan, 0.3])
    logs = new.assign(rain=np.log(new["rain"]))
    expected = by_hand.log_density(X[:3], logs) - np.log(new["rain"])
    assert_allclose(skewed.log_density(X[:3], new), expected, rtol=1e-4)
    expected = by_hand.leave_one_out_.log_density - np.log(Y["rain"])
    assert_allclose(skewed.leave_one_out_.log_density, expected, rtol=1e-3, atol=1e-4)


def test_training_data_and_known_targets_are_in_the_users_units(skewed, tmp_path):
    assert_allclose(skewed.training_data()[1], Y, rtol=1e-12)
    known = np.array([[2.0, np.nan], [np.nan, 0.1], [np.nan, np.nan]])
    mean, std = skewed.predict_given(NEW, known, return_std=True)
    assert mean[0, 0] == pytest.approx(2.0) and std[0, 0] == pytest.approx(0.0, abs=1e-9)
    q = skewed.predict_quantiles(NEW, [0.25, 0.75], known)
    assert_allclose(q[0, 0], 2.0)
    skewed.save(tmp_path / "m")
    same = load(tmp_path / "m")
    assert same.target_transform == {"rain": "log"}
    assert_allclose(same.predict(NEW), skewed.predict(NEW), rtol=1e-12)
    assert_allclose(same.predict_quantiles(NEW, [0.1]), skewed.predict_quantiles(NEW, [0.1]))


def test_probabilities_are_checked(skewed):
    for bad in ([], [0.0], [1.2], 0.5):
        with pytest.raises(ValueError, match="give numbers between 0 and 1"):
            skewed.predict_quantiles(NEW, bad)
    for bad in (None, ["half"]):
        with pytest.raises(ValueError, match="probabilities cannot be read as numbers"):
            skewed.predict_quantiles(NEW, bad)
