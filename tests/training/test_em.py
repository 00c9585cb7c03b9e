"""Expectation maximisation over full C and Sigma: its steps, and what it never does."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow_probability as tfp
from gpflow.kernels import Linear, SquaredExponential
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_close, random_covariance, random_problem, repeated_rows

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.chain.starting import EXACT_NOISE_FLOOR


def exact(p, **options):
    return KroneckerMTGP((p.X, p.Y), p.gpflow_kernel(), **options)


def by_rows(p):
    """lam and U^T Y of a problem."""
    lam, U = np.linalg.eigh(p.K)
    return np.maximum(lam, 0.0), U.T @ p.Y


SIZES = {
    "N1-T1": lambda rng: random_problem(rng, 1, 1),
    "N7-T3": lambda rng: random_problem(rng, 7, 3),
    "T>N": lambda rng: random_problem(rng, 2, 4),
    "repeated_rows": repeated_rows,  # eigenvalues of zero
    "linear": lambda rng: random_problem(rng, 9, 3, D=1, kernel="linear"),
}


@pytest.mark.parametrize("case", SIZES)
def test_step_equals_the_reference(rng, case):
    p = SIZES[case](rng)
    T = p.Y.shape[1]
    C, Sigma = random_covariance(rng, T), random_covariance(rng, T)
    model = exact(p, task_covariance=C, noise_covariance=Sigma)
    em = model.expectation_maximisation()
    lam, Yr = by_rows(p)
    assert_close(em.evaluate().loss, -ref.row_log_evidence(lam, Yr, C, Sigma))
    for _ in range(2):
        C, Sigma = ref.em_step(lam, Yr, C, Sigma)
        em.step()
        assert_close(model.task_covariance(), C, rtol=1e-7)
        assert_close(model.noise_covariance(), Sigma, rtol=1e-7)
        loss = em.evaluate().loss
        assert_close(loss, -ref.row_log_evidence(lam, Yr, C, Sigma), rtol=1e-8)
        assert_close(loss, model.training_loss(), rtol=1e-9)


def singular_noise(rng):
    """Noise of rank one: the evidence grows until the floor holds it."""
    p = random_problem(rng, 15, 3, kernel="linear")
    Y = p.X @ rng.normal(size=(2, 3)) + rng.normal(size=(15, 1)) @ rng.normal(size=(1, 3))
    return p._replace(Y=Y)


def copies(rng):
    p = random_problem(rng, 8, 3)
    return p._replace(Y=p.Y[:, [0, 0, 1]])


@pytest.mark.filterwarnings("ignore:The standard deviations of the targets differ")
@pytest.mark.parametrize(
    "make", [*SIZES.values(), singular_noise, copies], ids=lambda f: f.__name__
)
def test_evidence_never_decreases(rng, make):
    p = make(rng)
    model = exact(p)
    start = -model.training_loss().numpy()
    history = model.fit("em", verbose=0, steps=40)
    evidence = np.array([start, *history.history["terms/evidence"]])
    assert np.all(np.isfinite(evidence))
    assert np.all(np.diff(evidence) >= -1e-9 * np.abs(evidence[1:]))
    assert evidence[-1] > start
    assert_allclose(model.log_marginal_likelihood(), evidence.max(), rtol=1e-6)
    floor = EXACT_NOISE_FLOOR * np.where(
        p.Y.var(axis=0) > 0, p.Y.var(axis=0), (p.Y**2).mean(axis=0)
    )
    assert np.linalg.eigvalsh(model.noise_covariance() - np.diag(floor))[0] > -1e-12


def test_start_from_singular_covariances(rng):
    p = random_problem(rng, 9, 3)
    a = rng.normal(size=(3, 1))
    model = exact(p, task_covariance=a @ a.T, noise_covariance=a @ a.T)
    history = model.fit("em", verbose=0, steps=15)
    evidence = history.history["terms/evidence"]
    assert np.all(np.diff(evidence) >= -1e-9)
    assert np.isfinite(model.predict_y(p.Xnew, full_output_cov=True)[1]).all()


@pytest.mark.slow
def test_converges_to_a_maximum(rng):
    """No direction of C or Sigma is uphill where EM ends; the kernel is not touched."""
    X = rng.uniform(size=(40, 1))
    Y = np.hstack([np.cos(6 * X), np.sin(6 * X)]) + 0.3 * rng.normal(size=(40, 2))
    kernel = SquaredExponential(lengthscales=0.3)
    kernel.lengthscales.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(3.0))
    model = KroneckerMTGP((X, Y), kernel)
    log_prior = model.log_prior_density().numpy()
    history = model.fit("em", verbose=0)
    assert history.converged
    assert "gained less than 0.0001 nats" in history.message
    assert_allclose(model.training_loss(), history.history["loss"][-1], rtol=1e-9)
    evidence = model.log_marginal_likelihood()
    assert_allclose(history.history["loss"][-1], -evidence - log_prior, rtol=1e-9)
    K = ref.squared_exponential(X, X, 1.0, 0.3)
    C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()
    for _ in range(20):
        A, B = rng.normal(size=(2, 2, 2))
        other = C + 0.02 * (A + A.T), Sigma + 0.005 * (B + B.T)
        assert ref.log_evidence(K, Y, *other) < evidence.numpy() + 1e-3
    assert kernel.lengthscales.numpy() == pytest.approx(0.3, rel=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", ["signal", "noise"])
def test_what_is_not_trainable_stays(rng, frozen):
    p = random_problem(rng, 10, 3)
    model = exact(p, noise_covariance=random_covariance(rng, 3))
    gpflow.set_trainable(getattr(model, frozen), False)
    lam, Yr = by_rows(p)
    before = {"signal": model.task_covariance().numpy(), "noise": model.noise_covariance().numpy()}
    C, Sigma = ref.em_step(lam, Yr, before["signal"], before["noise"])
    em = model.expectation_maximisation()
    em.step()
    after = {"signal": C, "noise": Sigma} | {frozen: before[frozen]}
    assert_close(model.task_covariance(), after["signal"], rtol=1e-7)
    assert_close(model.noise_covariance(), after["noise"], rtol=1e-7)
    history = model.fit("em", verbose=0, steps=10)
    assert np.all(np.diff(history.history["terms/evidence"]) >= -1e-9)
    assert_array_equal(getattr(model, frozen)(), before[frozen])


def test_a_fit_starts_from_the_present_kernel(rng):
    p = random_problem(rng, 8, 2)
    model = exact(p)
    em = model.expectation_maximisation()
    model.kernel.lengthscales.assign(0.4)
    model.signal.assign(np.eye(2))
    assert abs(em.evaluate().loss - model.training_loss().numpy()) > 1e-3
    em.prepare()
    assert_close(em.evaluate().loss, model.training_loss(), rtol=1e-9)


@pytest.mark.slow
def test_mean_function_is_subtracted(rng):
    p = random_problem(rng, 8, 2)
    mean_function = gpflow.mean_functions.Constant([3.0, -4.0])
    shifted = KroneckerMTGP((p.X, p.Y + [3.0, -4.0]), p.gpflow_kernel(), mean_function)
    plain = exact(p)
    for model in (shifted, plain):
        model.fit("em", verbose=0, steps=3)
    assert_close(shifted.task_covariance(), plain.task_covariance(), rtol=1e-8)
    assert_close(shifted.noise_covariance(), plain.noise_covariance(), rtol=1e-8)


def test_refusals(rng):
    p = random_problem(rng, 6, 3)
    text = 'optimizer="em" is for full covariances, rank=None and noise_rank="full": use'
    for options in ({"rank": 2}, {"noise_rank": 1}, {"rank": 0, "noise_rank": "diagonal"}):
        with pytest.raises(ValueError, match=text):
            exact(p, **options).fit("em")
    for name in ("signal", "noise"):
        model = exact(p)
        normal = tfp.distributions.Normal(np.float64(0.0), np.float64(1.0))
        getattr(model, name).factor.prior = normal
        with pytest.raises(ValueError, match='optimizer="em" does not know priors of C or Sigma'):
            model.fit("em")
    cool = CoolMTGP((p.X, p.Y), Linear())
    with pytest.raises(ValueError, match=r'CoolMTGP has no optimizer="em": .*to_exact\(\)\.fit'):
        cool.fit("em")
