"""
Models that version 0.1.0 saved load today, with the paper's prior of the weights, and predict what
they predicted then.

`tests/data/saved` holds the folders, `tests/data/recorded.npz` what the models gave before they
were saved.
"""

from pathlib import Path

import numpy as np
import pytest
from problems import assert_close

import gpflow_cool
from gpflow_cool.saving.folder import DOCUMENT

DATA = Path(__file__).parents[1] / "data"
NAMES = sorted(path.name for path in (DATA / "saved").iterdir())
RECORDED = dict(np.load(DATA / "recorded.npz"))


def points():
    """Where the models were asked: the numbers that were drawn then."""
    rng = np.random.default_rng(7)
    rng.uniform(-2, 2, size=(18, 2)), rng.normal(size=(18, 3))
    return rng.uniform(-2, 2, size=(4, 2)), rng.normal(size=(4, 3))


def load(name):
    return gpflow_cool.load(DATA / "saved" / name)


def error_of(name):
    """Numbers with inducing points were recorded when their covariance had a jitter of 1e-11."""
    return 1e-9 if name == "sparse" else 1e-10


@pytest.mark.slow
def test_every_kind_of_model_is_there():
    classes = {type(load(name)).__name__ for name in NAMES}
    models = {"CoolMTGP", "KroneckerMTGP", "SparseCoolMTGP", "IndependentGPs", "ConvMT"}
    assert classes == models | {"CoolMTGPRegressor"}


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("estimator")])
def test_predictions_of_models(name):
    X, Y = points()
    model = load(name)
    mean, cov = model.predict_y(X, full_output_cov=True)
    assert_close(mean, RECORDED[f"{name}/mean"], rtol=1e-10)
    assert_close(cov, RECORDED[f"{name}/cov"], rtol=1e-10)
    if f"{name}/density" in RECORDED:
        density = model.predict_log_density((X, Y), full_output_cov=True)
        assert_close(density, RECORDED[f"{name}/density"], rtol=1e-10)


@pytest.mark.parametrize("name", [name for name in NAMES if f"{name}/objective" in RECORDED])
def test_objectives(name):
    objective = load(name).maximum_log_likelihood_objective()
    assert_close(objective, RECORDED[f"{name}/objective"], rtol=error_of(name))


@pytest.mark.parametrize("name", [name for name in NAMES if f"{name}/C" in RECORDED])
def test_matrices_and_evidence(name):
    model = load(name)
    error = error_of(name)
    assert_close(model.task_covariance(), RECORDED[f"{name}/C"], rtol=error)
    assert_close(model.noise_covariance(), RECORDED[f"{name}/Sigma"], rtol=error)
    assert_close(model.log_marginal_likelihood(), RECORDED[f"{name}/evidence"], rtol=error)


def is_by_the_chain(model):
    """Whether the densities of rows left out are the chain's, which they were not then."""
    is_chain = isinstance(model, gpflow_cool.CoolMTGP)
    return is_chain and model.observed is None


def with_joint_densities(model):
    """The model, or the exact one that predicts the same, where densities are the joint model's."""
    return model.to_exact() if is_by_the_chain(model) else model


LEFT_OUT = [name for name in NAMES if f"{name}/loo" in RECORDED]


@pytest.mark.parametrize("name", [name for name in LEFT_OUT if not name.startswith("estimator")])
def test_rows_left_out(name):
    density = with_joint_densities(load(name)).leave_one_out().log_density
    assert_close(density, RECORDED[f"{name}/loo"], rtol=error_of(name))


@pytest.mark.parametrize("name", [name for name in LEFT_OUT if name.startswith("estimator")])
def test_rows_left_out_by_estimators(name):
    """Their densities are those of targets in the user's units."""
    regressor = load(name)
    regressor.model_ = with_joint_densities(regressor.model_)
    assert_close(regressor.leave_one_out_.log_density, RECORDED[f"{name}/loo"], rtol=1e-10)


CHAINS = [name for name in NAMES if name.startswith(("cool", "sparse", "independent"))]


@pytest.mark.parametrize("name", CHAINS)
def test_chains_have_the_prior_of_the_paper(name):
    model = load(name)
    for part in getattr(model, "models", [model]):
        assert part.weight_prior == "unit" and part.weight_variance is None


def test_an_engine_that_is_gone():
    """A model with `engine="cholesky"` is now one with "spectral"."""
    assert '"engine": "cholesky"' in (DATA / "saved/cool_approximate" / DOCUMENT).read_text()
    assert load("cool_approximate").engine == "spectral"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("estimator")])
def test_predictions_of_estimators(name):
    X, _ = points()
    regressor = load(name)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        mean, cov = regressor.predict(X, return_cov=True)
    assert_close(mean, RECORDED[f"{name}/mean"], rtol=1e-10)
    assert_close(cov, RECORDED[f"{name}/cov"].reshape(cov.shape), rtol=1e-10)
