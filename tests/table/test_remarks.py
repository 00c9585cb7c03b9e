"""What a fit says of the noise is told again of a saved estimator."""

import numpy as np
import pytest

from gpflow_cool import CoolMTGPRegressor, load
from gpflow_cool.report.sections import report_page
from gpflow_cool.saving.folder import write_folder
from gpflow_cool.saving.models import content_of
from gpflow_cool.table.remarks import UNKNOWN, certainty_lines, noise_lines
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


JOINT = "covariances between targets, and predictions given some of them, may be far too certain."
FEW = "There are too many targets for so few rows."

CASES = {
    "refined": (crowded, {}, f"{JOINT} {FEW}"),
    "the chain": (crowded, {"orders": 1}, f"{JOINT} {FEW}"),
    "exact": (exact, {}, f"of every task is at its lower bound, so that {JOINT}"),
    "inducing points": (
        exact,
        {"inducing": 12},
        f"of every task is at its lower bound, so that {JOINT}",
    ),
    "noisy": (noisy, {}, ""),
}


@pytest.mark.parametrize("name", CASES)
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


def test_a_refined_model_of_an_earlier_version_has_no_chain(rng, tmp_path):
    regressor = CoolMTGPRegressor("se", ard=False).fit(*noisy(rng))
    content = content_of(regressor)
    del content.document["chain"]
    write_folder(tmp_path / "model", content)
    loaded = load(tmp_path / "model")
    assert loaded.chain_ is None
    assert noise_lines(loaded) == [UNKNOWN] and certainty_lines(loaded) == []
    assert UNKNOWN in report_page(loaded, "m")
    assert len(loaded.add_rows([[1.0]], [[0.5, 0.5]]).training_data()[0]) == 41


@pytest.mark.filterwarnings("ignore:Beware")
def test_one_target_has_no_covariances_to_doubt(rng):
    X, Y = exact(rng)
    regressor = CoolMTGPRegressor("se", ard=False).fit(X, Y[:, :1])
    assert certainty_lines(regressor) == []
    (line,) = noise_lines(regressor)
    assert line.startswith("Beware: sigma2 of every task is at its lower bound")
    assert line in report_page(regressor, "m")
