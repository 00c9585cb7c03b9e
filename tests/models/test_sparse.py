"""SparseCoolMTGP against dense algebra on what its inducing points see, and against CoolMTGP."""

import gpflow
import numpy as np
import pandas as pd
import pytest
import reference as ref
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.inducing_variables import InducingPoints
from numpy.testing import assert_allclose
from problems import LAYOUTS, LEARNINGS, assert_close, assert_moments, random_problem

from gpflow_cool import CoolMTGP, SparseCoolMTGP
from gpflow_cool.training.losses import loss_of

SE = gpflow.kernels.SquaredExponential


LAM = 0.6


def evaluated(model):
    """Loss and gradients in chunks of rows, or at once."""
    return loss_of(model, profile=False).evaluate()


class Case:
    """A problem, a sparse model of it, and what the dense reference takes."""

    def __init__(self, rng, N=14, T=3, M=4, learning="approximate", **options):
        self.p = random_problem(rng, N, T)
        self.Z = rng.normal(size=(M, 2))
        self.learning = learning
        self.model = self.make((self.p.X, self.p.Y), **options)

    def make(self, data, Z=None, **options):
        p = self.p
        start = {"learning": self.learning, "b": p.b, "sigma2": p.sigma2, "weight_variance": LAM}
        Z = self.Z if Z is None else Z
        return SparseCoolMTGP(data, p.gpflow_kernel(), Z, **start | options)

    def terms(self, Z=None, lengthscale=None, b=None, sigma2=None, lam=LAM):
        p, Z = self.p, self.Z if Z is None else Z

        def k(A, B):
            return ref.squared_exponential(A, B, 1.3, lengthscale or 1.5)

        b, sigma2 = p.b if b is None else b, p.sigma2 if sigma2 is None else sigma2
        parts = k(Z, Z), k(Z, p.X), np.diag(k(p.X, p.X)), p.Y, b, sigma2
        return ref.sparse_terms(*parts, self.learning, lam)

    @property
    def Q(self):
        p = self.p
        return ref.inducing_kernel(p.k(self.Z, self.Z), p.k(self.Z, p.X))

    @property
    def kernels(self):
        """Q, Q_n* and K_**: what prediction with inducing points amounts to."""
        p = self.p
        gain = np.linalg.solve(p.k(self.Z, self.Z), p.k(self.Z, p.Xnew))
        return self.Q, p.k(p.X, self.Z) @ gain, p.k(p.Xnew, p.Xnew)

    @property
    def tasks(self):
        return ref.recover(self.Q, self.p.Y, self.p.b, self.p.sigma2, LAM)


# Against dense algebra ----------------------------------------------------------------------------


def test_chunks_of_one_row(rng):
    case = Case(rng, N=5, chunk_rows=1)
    assert_close(case.model.conditional_log_likelihoods(), case.terms(), rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("chunk_rows", [8, 100])
def test_terms_and_covariances_equal_dense(rng, learning, chunk_rows):
    case = Case(rng, learning=learning, chunk_rows=chunk_rows)
    assert_close(case.model.conditional_log_likelihoods(), case.terms(), rtol=1e-8)
    C, Sigma = case.tasks
    assert_close(case.model.task_covariance(), C, rtol=1e-7)
    assert_close(case.model.noise_covariance(), Sigma, rtol=1e-7)
    slack = np.trace(case.p.K) - np.trace(case.Q)
    bound = ref.log_evidence(case.Q, case.p.Y, C, Sigma)
    bound -= 0.5 * slack * np.trace(np.linalg.solve(Sigma, C))
    assert_close(case.model.log_marginal_likelihood(), bound, rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_terms_and_covariances_of_the_paper(rng, learning):
    case = Case(rng, learning=learning, weight_prior="unit", weight_variance=None)
    p = case.p
    diagonal = np.diag(p.K)
    parts = p.k(case.Z, case.Z), p.k(case.Z, p.X), diagonal, p.Y, p.b, p.sigma2
    assert_close(
        case.model.conditional_log_likelihoods(), ref.sparse_terms(*parts, learning), rtol=1e-8
    )
    C, Sigma = ref.recover(case.Q, p.Y, p.b, p.sigma2)
    assert_close(case.model.task_covariance(), C, rtol=1e-7)
    assert_close(case.model.noise_covariance(), Sigma, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("learning", LEARNINGS)
def test_gradients_equal_finite_differences_of_dense(rng, learning):
    case = Case(rng, learning=learning, chunk_rows=5)
    model = case.make((case.p.X, case.p.Y), Z=InducingPoints(case.Z), chunk_rows=5)
    gpflow.set_trainable(model.weight_variance, True)
    evaluation = evaluated(model)
    gradients = {
        id(p): g for p, g in zip(model.trainable_parameters, evaluation.gradients, strict=True)
    }
    direction = rng.normal(size=case.Z.shape)
    by_Z = ref.derivative(lambda h: -np.sum(case.terms(Z=case.Z + h * direction)), 1e-3)
    actual = np.sum(gradients[id(model.inducing_variable.Z)] * direction)
    assert_allclose(actual, by_Z, rtol=1e-6)

    def constrained(parameter):
        """Gradient with respect to the value, from that with respect to the variable."""
        slope = parameter.transform.forward_log_det_jacobian(
            parameter.unconstrained_variable, event_ndims=0
        )
        return gradients[id(parameter)] / np.exp(slope)

    by_l = ref.derivative(lambda h: -np.sum(case.terms(lengthscale=1.5 + h)), 5e-3)
    assert_allclose(constrained(model.kernel.lengthscales), by_l, rtol=1e-6)
    u, p = rng.uniform(size=3), case.p
    by_b = ref.derivative(lambda h: -np.sum(case.terms(b=p.b + h * u)), 2e-3)
    assert_allclose(constrained(model.b) @ u, by_b, rtol=1e-6)
    by_s = ref.derivative(lambda h: -np.sum(case.terms(sigma2=p.sigma2 + h * u)), 2e-4)
    assert_allclose(constrained(model.sigma2) @ u, by_s, rtol=1e-6)

    def by_weight_variance(h):
        lam = LAM + h
        prior = -0.5 * (np.log(lam) / 3.0) ** 2
        return -np.sum(case.terms(lam=lam)) - prior

    by_lam = ref.derivative(by_weight_variance, 2e-3)
    assert_allclose(gradients[id(model.weight_variance)] / LAM, by_lam, rtol=1e-6)


@pytest.mark.parametrize("full_cov, full_output_cov", LAYOUTS)
def test_predictions_equal_dense(rng, full_cov, full_output_cov):
    case = Case(rng)
    p, (C, Sigma) = case.p, case.tasks
    posterior = case.model.posterior()
    for name in ("predict_f", "predict_y"):
        mean, cov = getattr(ref, name)(*case.kernels, p.Y, C, Sigma)
        expected = ref.layout(cov, full_cov, full_output_cov)
        for actual in (getattr(thing, name) for thing in (case.model, posterior)):
            m, v = actual(p.Xnew, full_cov=full_cov, full_output_cov=full_output_cov)
            assert_close(m, mean, rtol=1e-7)
            assert_close(v, expected, rtol=1e-7)
    expected = ref.log_density(mean, cov, p.Ynew, full_cov, full_output_cov)
    flags = {"full_cov": full_cov, "full_output_cov": full_output_cov}
    assert_close(case.model.predict_log_density((p.Xnew, p.Ynew), **flags), expected, rtol=1e-7)


def test_conditional_predictions_equal_dense(rng):
    case = Case(rng)
    p, Ynew = case.p, case.p.Ynew.copy()
    Ynew[0, 1:] = Ynew[1, 0] = np.nan
    expected = ref.predict_given(*case.kernels, p.Y, *case.tasks, Ynew)
    mean, cov = case.model.predict_f_given(p.Xnew, Ynew, full_output_cov=True)
    assert_close(mean, expected.f_mean, rtol=1e-7)
    assert_close(cov, expected.f_cov, rtol=1e-7)
    mean, cov = case.model.predict_y_given(p.Xnew, Ynew, full_output_cov=True)
    assert_close(mean, expected.y_mean, rtol=1e-7)
    assert_close(cov, expected.y_cov, rtol=1e-7)


@pytest.mark.slow
def test_samples_have_the_moments_of_the_posterior(rng):
    case = Case(rng)
    mean, cov = ref.predict_f(*case.kernels, case.p.Y, *case.tasks)
    tf.random.set_seed(1)
    draws = case.model.predict_f_samples(case.p.Xnew, 20_000, full_output_cov=True).numpy()
    size = mean.size
    assert_moments(draws.reshape(-1, size), mean.ravel(), cov.reshape(size, size), bound=5.5)


def test_leave_one_out_equals_dense(rng):
    """Of each row, given the others and the same inducing points: Q for K, but k(x, x) itself."""
    case = Case(rng, chunk_rows=5)
    p, Q, (C, Sigma) = case.p, case.Q, case.tasks
    rows = case.model.leave_one_out()
    variances = case.model.leave_one_out(full_output_cov=False).cov
    for i in range(len(p.Y)):
        rest = np.delete(np.arange(len(p.Y)), i)
        one = slice(i, i + 1)
        mean, cov = ref.predict_y(
            Q[np.ix_(rest, rest)], Q[rest, one], p.K[one, one], p.Y[rest], C, Sigma
        )
        assert_close(rows.mean[i], mean[0], rtol=1e-7)
        assert_close(rows.cov[i], cov[0, :, 0, :], rtol=1e-7)
        assert_close(variances[i], np.diag(cov[0, :, 0, :]), rtol=1e-7)
        density = ref.gaussian_log_density(p.Y[i] - mean[0], cov[0, :, 0, :])
        assert_close(rows.log_density[i], density, rtol=1e-7)


# Against CoolMTGP ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("learning", LEARNINGS)
def test_inducing_points_at_all_rows_give_cool(rng, learning):
    case = Case(rng, N=25, learning=learning)
    p = case.p
    sparse = case.make((p.X, p.Y), Z=p.X, chunk_rows=15)
    options = {"learning": learning, "b": p.b, "sigma2": p.sigma2, "weight_variance": LAM}
    dense = CoolMTGP((p.X, p.Y), p.gpflow_kernel(), **options)
    assert_close(sparse.conditional_log_likelihoods(), dense.conditional_log_likelihoods(), 1e-6)
    for s, d in zip(sparse.multitask_parameters(), dense.multitask_parameters(), strict=True):
        assert_close(s, d, rtol=1e-6)
    expected = evaluated(dense).gradients
    with tf.GradientTape() as tape:
        loss = sparse.training_loss()
    for actual in (evaluated(sparse).gradients, tape.gradient(loss, sparse.trainable_variables)):
        for s, d in zip(actual, expected, strict=True):
            assert_close(s, d, rtol=1e-6)
    for name in ("predict_f_full_cov", "predict_y"):
        for s, d in zip(getattr(sparse, name)(p.Xnew), getattr(dense, name)(p.Xnew), strict=True):
            assert_close(s, d, rtol=1e-6)
    s, d = (
        m.multitask_parameters("monte_carlo", num_samples=2000, seed=3).C for m in (sparse, dense)
    )
    assert_close(s, d, rtol=0.1)


def smooth_data(rng, N=60):
    X = rng.uniform(0.0, 6.0, size=(N, 1))
    F = np.hstack([np.sin(X), np.cos(X)])
    return X, F @ np.array([[1.0, 0.5, -0.3], [0.2, 1.0, 0.8]]) + 0.1 * rng.normal(size=(N, 3))


@pytest.mark.slow
def test_fit_ends_where_cool_does(rng):
    X, Y = smooth_data(rng)
    Z = np.linspace(-0.5, 6.5, 20)[:, None]
    sparse = SparseCoolMTGP((X, Y), SE(lengthscales=1.2), Z, chunk_rows=40)
    dense = CoolMTGP((X, Y), SE(lengthscales=1.2))
    losses = [min(m.fit(verbose=0).history["loss"]) for m in (sparse, dense)]
    assert_allclose(*losses, atol=0.05)
    assert_allclose(sparse.predict_f(X)[0], dense.predict_f(X)[0], atol=0.02)  # noise is 0.1


@pytest.mark.slow
def test_trained_inducing_points_lower_the_loss(rng):
    X, Y = smooth_data(rng)
    model = SparseCoolMTGP((X, Y), SE(), InducingPoints(X[:5].copy()))
    kept, before = model.inducing_variable.Z.numpy(), model.training_loss().numpy()
    model.fit(verbose=0, steps=4)
    assert model.training_loss() < before
    assert np.abs(model.inducing_variable.Z.numpy() - kept).max() > 0.01


@pytest.mark.slow
def test_adam_and_tensorboard(rng, tmp_path):
    p = random_problem(rng, 8, 2)
    model = SparseCoolMTGP((p.X, p.Y), SE(), p.X[:3])
    before = model.training_loss().numpy()
    history = model.fit("adam", steps=2, verbose=0, tensorboard=tmp_path / "logs")
    after = history.history["loss"][-1]
    assert after < before
    assert model.fit("scipy", steps=2, verbose=0).history["loss"][-1] < after
    assert any((tmp_path / "logs").rglob("events*"))


@pytest.mark.slow
def test_points_given_as_an_array_stay_where_they_are(rng):
    X, Y = smooth_data(rng)
    model = SparseCoolMTGP((X, Y), SE(), X[:8])
    model.fit(verbose=0, steps=3)
    assert_close(model.inducing_variable.Z, X[:8], rtol=0)
    assert not model.inducing_variable.trainable_variables


# Degenerate ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_duplicates_and_more_points_than_rows_change_nothing(rng):
    case = Case(rng, N=6)
    p = case.p
    once = case.make((p.X, p.Y), Z=p.X)
    twice = case.make((p.X, p.Y), Z=np.vstack([p.X, p.X, p.X[:2]]))
    for s, d in zip(
        (twice.conditional_log_likelihoods(), *twice.predict_f(p.Xnew)),
        (once.conditional_log_likelihoods(), *once.predict_f(p.Xnew)),
        strict=True,
    ):
        assert_close(s, d, rtol=1e-6)
    assert np.isfinite(evaluated(twice).gradients[0]).all()


@pytest.mark.slow
def test_mean_function_is_subtracted_and_trained(rng):
    p = random_problem(rng, 12, 2)
    options = {"learning": "hierarchical", "b": p.b, "sigma2": p.sigma2}

    def mean():
        return gpflow.mean_functions.Linear(np.ones((2, 2)), np.zeros(2))

    sparse = SparseCoolMTGP((p.X, p.Y), p.gpflow_kernel(), p.X, mean(), chunk_rows=5, **options)
    dense = CoolMTGP((p.X, p.Y), p.gpflow_kernel(), mean(), **options)
    assert_close(sparse.predict_f(p.Xnew)[0], dense.predict_f(p.Xnew)[0], rtol=1e-6)
    actual, expected = evaluated(sparse), evaluated(dense)
    for s, d in zip(actual.gradients, expected.gradients, strict=True):
        assert_close(s, d, rtol=1e-6)


@pytest.mark.slow
def test_priors_count(rng):
    case = Case(rng)
    loss = evaluated(case.model).loss
    case.model.kernel.lengthscales.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
    with_prior = evaluated(case.model).loss
    expected = -case.model.kernel.lengthscales.log_prior_density()
    assert_allclose(with_prior - loss, expected, rtol=1e-8)


@pytest.mark.slow
def test_float32(rng):
    p = random_problem(rng, 20, 2)
    double = SparseCoolMTGP((p.X, p.Y), SE(), p.X[:8])
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        single = SparseCoolMTGP((p.X, p.Y), SE(), p.X[:8])
        mean, var = single.predict_f(p.Xnew)
        assert mean.dtype == var.dtype == tf.float32
        single.fit(verbose=0, steps=2)
    assert_close(mean, double.predict_f(p.Xnew)[0], rtol=2e-2)


# Data ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_map_and_datasets_give_the_same(rng, tmp_path):
    case = Case(rng)
    p = case.p
    for name, array in (("X", p.X), ("Y", p.Y)):
        np.save(tmp_path / f"{name}.npy", array)
    dataset = tf.data.Dataset.from_tensor_slices((p.X, p.Y))
    expected = evaluated(case.model)
    for data in (
        tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "XY"),
        dataset,
        dataset.batch(3),
    ):
        model = case.make(data, chunk_rows=4)
        actual = evaluated(model)
        assert_close(actual.loss, expected.loss, rtol=1e-12)
        for a, e in zip(actual.gradients, expected.gradients, strict=True):
            assert_close(a, e, rtol=1e-10)
        with pytest.raises(ValueError, match="does not go into a tf.function"):
            tf.function(model.training_loss)()


def test_names_come_from_a_frame(rng):
    p = random_problem(rng, 6, 2)
    frame = pd.DataFrame(p.Y, columns=["left", "right"])
    assert SparseCoolMTGP((p.X, frame), SE(), p.X).task_names == ("left", "right")


@pytest.mark.parametrize(
    "Z, message",
    [
        (np.zeros((3, 5)), r"inducing points have shape \(3, 5\), but X has 2 columns"),
        (InducingPoints(np.zeros((3, 5))), "but X has 2 columns"),
        (10, r"is a number, .* needed: pass choose_inducing_points\(X, kernel, 10\)\."),
        (np.zeros((3, 5, 2)), "its rows are the inducing points. Pass one row per data point."),
        (np.full((3, 2), np.nan), r"inducing_variable\[0, 0\] is nan"),
    ],
)
def test_other_inducing_points_are_refused(rng, Z, message):
    p = random_problem(rng, 6, 2)
    with pytest.raises(ValueError, match=message):
        SparseCoolMTGP((p.X, p.Y), SE(), Z)


def test_not_a_number_is_refused_at_the_door(rng):
    p = random_problem(rng, 6, 2)
    for row in (0, 5):
        Y = p.Y.copy()
        Y[row, 1] = np.nan
        with pytest.raises(
            ValueError,
            match=rf"Y\[{row}, 1\] is nan.* or use CoolMTGP, which",
        ):
            SparseCoolMTGP((p.X, Y), SE(), p.X, chunk_rows=2)


@pytest.mark.parametrize("strategy", ["mirrored", 2])
def test_a_strategy_is_an_object(rng, strategy):
    X = rng.normal(size=(6, 1))
    with pytest.raises(ValueError, match=f"strategy={strategy!r} must be a tf.distribute.Strategy"):
        SparseCoolMTGP((X, X), gpflow.kernels.SquaredExponential(), X[:2], strategy=strategy)
