"""Training of KroneckerMTGP, GPflow's utilities on it, and its errors."""

import copy

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import SquaredExponential
from gpflow.utilities import multiple_assign, read_values
from numpy.testing import assert_allclose
from problems import (
    assert_close,
    perturb,
    random_problem,
    repeated_rows,
)

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.chain.starting import EXACT_NOISE_FLOOR


@pytest.fixture
def data(rng):
    X = np.sort(rng.uniform(size=(20, 1)), axis=0)
    F = np.hstack([np.cos(6 * X), np.sin(6 * X), np.cos(6 * X) - np.sin(6 * X)])
    return X, F + 0.3 * rng.normal(size=(20, 3)) @ [[1, 0.5, 0], [0, 1, 0.5], [0, 0, 1]]


def build(data, **options):
    return KroneckerMTGP(data, SquaredExponential(lengthscales=0.3), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer, options",
    [("profile", {}), ("scipy", {"steps": 20}), ("em", {"steps": 20}), ("adam", {"steps": 30})],
)
def test_every_optimizer_raises_the_evidence(data, optimizer, options):
    model = build(data)
    before = model.training_loss().numpy()
    history = model.fit(optimizer, verbose=0, **options)
    losses = history.history["loss"]
    assert min(losses) < before - 1.0
    last = model.training_loss().numpy()  # Adam's last step is recorded only if it is the best
    assert last <= min(losses) + 1e-9
    assert optimizer == "adam" or last == pytest.approx(min(losses), rel=1e-9)
    evidences = history.history["terms/evidence"]
    assert_allclose(evidences, -np.array(losses), rtol=1e-12)


@pytest.mark.slow
def test_default_is_lbfgs(data):
    """Nothing can be solved for inside, so that "profile" is "scipy"."""
    default, named = build(data), build(data)
    histories = default.fit(verbose=0, steps=8), named.fit("scipy", verbose=0, steps=8)
    assert histories[0].params["optimizer"] == "scipy"
    assert_allclose(histories[0].history["loss"], histories[1].history["loss"], rtol=1e-12)
    assert_allclose(default.training_loss(), named.training_loss(), rtol=1e-12)
    history = named.fit(verbose=0)
    assert history.converged
    assert history.history["gradient_norm"][-1] < 0.05


@pytest.mark.slow
def test_refinement_raises_the_exact_evidence(data):
    cool = CoolMTGP(data, SquaredExponential(lengthscales=0.3))
    cool.fit(verbose=0)
    evidence = cool.log_marginal_likelihood().numpy()
    refined = cool.to_exact()
    refined.fit("em", verbose=0, steps=20)
    by_em = refined.log_marginal_likelihood().numpy()
    refined.fit("scipy", verbose=0, steps=20)
    by_scipy = refined.log_marginal_likelihood().numpy()
    assert evidence < by_em < by_scipy


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"rank": 1, "noise_rank": 1}, {"rank": 2, "noise_rank": 0}]
)
def test_training_where_the_noise_is_singular(rng, options):
    """Noise of rank one in three tasks: without a floor the evidence grows without end."""
    X = rng.normal(size=(25, 2))
    Y = X @ rng.normal(size=(2, 3)) + rng.normal(size=(25, 1)) @ rng.normal(size=(1, 3))
    model = KroneckerMTGP((X, Y), gpflow.kernels.Linear(), **options)
    model.fit("scipy", verbose=0, steps=80)
    assert np.isfinite(model.training_loss())
    floor = EXACT_NOISE_FLOOR * Y.var(axis=0)
    excess = np.linalg.eigvalsh(model.noise_covariance().numpy() - np.diag(floor))
    assert excess[0] >= -1e-12
    assert np.isfinite(model.predict_y(X, full_output_cov=True)[1]).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The standard deviations of the targets differ")
@pytest.mark.parametrize("N, T", [(1, 1), (1, 3), (2, 5), (6, 1)])
def test_training_at_degenerate_sizes(rng, N, T):
    p = random_problem(rng, N, T)
    model = KroneckerMTGP((p.X, p.Y), p.gpflow_kernel())
    before = model.training_loss().numpy()
    model.fit("scipy", verbose=0, steps=15)
    assert np.isfinite(model.training_loss()) and model.training_loss().numpy() <= before
    for part in model.predict_y(p.Xnew, True, True):
        assert np.isfinite(part).all()


@pytest.mark.slow
def test_repeated_rows_and_linear_kernel_train(rng):
    for p in (repeated_rows(rng), random_problem(rng, 12, 3, D=2, kernel="linear")):
        model = KroneckerMTGP.sigma_mt((p.X, p.Y), p.gpflow_kernel(), rank=1)
        before = model.training_loss().numpy()
        model.fit("scipy", verbose=0, steps=20)
        assert model.training_loss().numpy() < before


# GPflow's utilities -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"rank": 1, "noise_rank": 1}, {"rank": 0, "noise_rank": 0}]
)
def test_copies_and_values(data, rng, options):
    model = build(data, **options)
    perturb(model, rng)
    loss = model.training_loss().numpy()
    twin = copy.deepcopy(model)
    other = build(data, **options)
    multiple_assign(other, read_values(model))
    assert_allclose([twin.training_loss(), other.training_loss()], loss, rtol=1e-10)
    perturb(twin, rng)
    assert_allclose(model.training_loss(), loss, rtol=1e-14)
    assert_close(twin.likelihood.covariance(), twin.noise_covariance(), rtol=0)


@pytest.mark.slow
def test_float32(data):
    exact = build(data)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-5)):
        model = build(data)
        assert_allclose(model.training_loss(), exact.training_loss(), rtol=1e-4)
        model.fit("scipy", verbose=0, steps=20)
        model.fit("em", verbose=0, steps=5)
        outputs = [model.training_loss(), *model.predict_y(data[0], full_output_cov=True)]
        singular = KroneckerMTGP.ground_truth(
            data, SquaredExponential(), np.ones((3, 3)), np.ones((3, 3))
        )
        outputs.append(singular.training_loss())
    assert {output.dtype for output in outputs} == {tf.float32}
    assert all(np.isfinite(output).all() for output in outputs)
    assert float(outputs[0]) < exact.training_loss().numpy() - 1.0


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, text",
    [
        ({"rank": 4}, r"rank=4 is not possible for 3 tasks: pass a whole number from 0 to 3, or N"),
        ({"rank": -1}, "rank=-1 is not possible for 3 tasks"),
        ({"rank": 1.0}, "rank=1.0 is not possible for 3 tasks"),
        ({"rank": True}, "rank=True is not possible for 3 tasks"),
        ({"rank": "full"}, "rank='full' is not possible .* or None"),
        ({"noise_rank": 4}, 'noise_rank=4 is not .* from 0 to 3, or "full", or "diagonal"'),
        ({"noise_rank": None}, "noise_rank=None is not possible for 3 tasks"),
        ({"noise_rank": "diag"}, "noise_rank='diag' is not possible for 3 tasks"),
        (
            {"task_covariance": np.eye(2)},
            r"task_covariance has shape \(2, 2\), but Y has 3 tasks: pass \(3, 3\)",
        ),
        ({"noise_covariance": np.ones(3)}, r"noise_covariance has shape \(3,\), but Y has 3 tasks"),
        (
            {"task_covariance": [[1, 0.5, 0], [0.4, 1, 0], [0, 0, 1]]},
            r"task_covariance is not symmetric: 0.5 at \[0, 1\], but 0.4 at \[1, 0\]",
        ),
        (
            {"noise_covariance": np.diag([1.0, -0.5, 2.0])},
            "noise_covariance is not a covariance: its smallest eigenvalue is -0.5",
        ),
        ({"noise_covariance": np.zeros((3, 3))}, "noise_covariance is not .* nor all of them zero"),
        (
            {"task_covariance": np.diag([1.0, np.nan, 1.0])},
            r"task_covariance\[1, 1\] is nan. Every entry must be finite",
        ),
        ({"task_covariance": "identity"}, "task_covariance cannot be read as numbers"),
    ],
)
def test_errors(data, options, text):
    with pytest.raises(ValueError, match=text):
        build(data, **options)


def test_errors_of_constructors(data):
    with pytest.raises(ValueError, match="rank=5 is not possible for 3 tasks"):
        KroneckerMTGP.std_mt(data, SquaredExponential(), rank=5)
    with pytest.raises(ValueError, match="noise_covariance is not symmetric"):
        KroneckerMTGP.ground_truth(data, SquaredExponential(), np.eye(3), np.triu(np.ones((3, 3))))
    with pytest.raises(ValueError, match=r"Y\[1, 0\] is inf"):
        Y = data[1].copy()
        Y[1, 0] = np.inf
        build((data[0], Y))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The standard deviations")
@pytest.mark.parametrize("factors", [[1e-6, 1e-6], [1e20, 1e20], [1e-4, 1e4]])
def test_training_does_not_depend_on_the_units_of_the_targets(factors):
    rng = np.random.default_rng(0)
    X = np.linspace(0, 6, 30)[:, None]
    Y = np.hstack([np.sin(X), np.cos(X)]) + 0.1 * rng.normal(size=(30, 2))
    evidence, means = [], []
    for units in (np.ones(2), np.array(factors)):
        model = KroneckerMTGP((X, Y * units), gpflow.kernels.SquaredExponential())
        model.fit(verbose=0)
        evidence.append(float(model.log_marginal_likelihood()) + 30 * np.sum(np.log(units)))
        means.append(model.predict_f(X)[0] / units)
    assert_allclose(evidence[1], evidence[0], atol=0.05)
    assert_allclose(means[1], means[0], atol=0.02)  # a fifth of the noise
