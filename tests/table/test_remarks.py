"""What a fit says of the noise is told again of a saved estimator."""

import numpy as np
import pytest

from gpflow_cool import CoolMTGPRegressor, load
from gpflow_cool.report.sections import report_page
from gpflow_cool.table.remarks import certainty_lines, noise_lines, trained_chain
from gpflow_cool.training.remarks import remark_lines


def crowded(rng):
    """Twelve rows of eight tasks: the last ones are sums of the first."""
    first = rng.normal(size=(12, 3))
    return rng.normal(size=(12, 2)), np.hstack([first, first @ rng.normal(size=(3, 5))])


def exact(rng):
    X = np.linspace(0.0, 6.0, 40)[:, None]
    return X, np.hstack([np.sin(X), np.cos(X)])


def noisy(rng):
    X, Y = exact(rng)
    return X, Y + 0.3 * rng.normal(size=Y.shape)


def only_noise(_):
    """Of draws in which chance does not look like a signal."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(40, 1)), rng.normal(size=(40, 2))


JOINT = "covariances between targets, and predictions given some of them, may be far too certain."
FEW = "There are too many targets for so few rows."

CASES = {
    "averaged": (crowded, {}, f"{JOINT} {FEW}"),
    "own order": (crowded, {"orders": 1}, f"{JOINT} {FEW}"),
    "approximate": (crowded, {"learning": "approximate"}, f"{JOINT} {FEW}"),
    "exact": (exact, {}, f"of every task is at its lower bound, so that {JOINT}"),
    "inducing points": (
        exact,
        {"inducing": 12},
        f"of every task is at its lower bound, so that {JOINT}",
    ),
    "noisy": (noisy, {}, ""),
    "only noise": (only_noise, {}, ""),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if case[0] is crowded else [])
        for name, case in CASES.items()
    ],
)
@pytest.mark.filterwarnings("ignore:Beware")
def test_a_saved_estimator_says_what_the_fit_has_said(name, rng, tmp_path):
    make, settings, ending = CASES[name]
    regressor = CoolMTGPRegressor("se", ard=False, **settings).fit(*make(rng))
    regressor.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    said = remark_lines(regressor.history_.message)
    assert noise_lines(loaded) == noise_lines(regressor) == said
    assert len(said) == (0 if name == "noisy" else 1)
    told = certainty_lines(loaded)
    assert len(told) == bool(ending)
    assert all(line.startswith("Beware: the noise of ") and line.endswith(ending) for line in told)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Beware")
@pytest.mark.usefixtures("explored")
def test_the_chain_behind_an_average_is_that_of_the_fit(rng):
    X, Y = crowded(rng)
    averaged, own = (CoolMTGPRegressor("se", ard=False, orders=n).fit(X, Y) for n in (8, 1))
    before = averaged.predict(X)
    chain = trained_chain(averaged)
    np.testing.assert_allclose(chain.sigma2, own.model_.sigma2, rtol=1e-3)
    np.testing.assert_allclose(chain.b, own.model_.b, rtol=1e-3)
    np.testing.assert_array_equal(averaged.predict(X), before)
    assert trained_chain(own) is own.model_


@pytest.mark.filterwarnings("ignore:Beware")
def test_one_target_has_no_covariances_to_doubt(rng):
    X, Y = exact(rng)
    regressor = CoolMTGPRegressor("se", ard=False).fit(X, Y[:, :1])
    assert certainty_lines(regressor) == []
    (line,) = noise_lines(regressor)
    assert line.startswith("Beware: sigma2 of every task is at its lower bound")
    assert line in report_page(regressor, "m")
