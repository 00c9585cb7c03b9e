"""Other people's models behind our interface: the same numbers as GPflow's, in our shapes."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from gpflow.kernels import SquaredExponential
from numpy.testing import assert_allclose
from problems import LAYOUTS, assert_close, random_problem

from gpflow_cool import ConvMT, IndependentGPs, KroneckerMTGP


def separate_gprs(model):
    """GPflow's own model of each task, at the parameters of ours."""
    return [
        gpflow.models.GPR(
            one.data,
            SquaredExponential(one.b.numpy()[0], one.kernel.lengthscales.numpy()),
            noise_variance=one.sigma2.numpy()[0],
        )
        for one in model.models
    ]


def block_diagonal(covs):
    """T covariances [M, M] as one [M, T, M, T]."""
    T, M = len(covs), len(covs[0])
    full = np.zeros((M, T, M, T))
    for t, cov in enumerate(covs):
        full[:, t, :, t] = cov
    return full


def assert_predictions(model, p, mean, f_cov, noise):
    """All layouts of f and y, and all densities, from one mean and covariance [M, T, M, T]."""
    y_cov = f_cov.copy()
    for m in range(len(p.Xnew)):
        y_cov[m, :, m, :] += np.diag(noise)
    for flags in LAYOUTS:
        for predict, cov in [(model.predict_f, f_cov), (model.predict_y, y_cov)]:
            actual_mean, actual_cov = predict(p.Xnew, *flags)
            assert_close(actual_mean, mean, rtol=1e-8)
            assert_close(actual_cov, ref.layout(cov, *flags), rtol=1e-8)
        density = model.predict_log_density((p.Xnew, p.Ynew), *flags)
        assert_close(density, ref.log_density(mean, y_cov, p.Ynew, *flags), rtol=1e-8)


# Independent --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("N, T", [(1, 1), (2, 3)])
def test_independent_equals_separate_gprs(rng, N, T):
    p = random_problem(rng, N, T)
    model = IndependentGPs((p.X, p.Y), SquaredExponential())
    for one in model.models:
        one.kernel.lengthscales.assign(rng.uniform(0.5, 2.0))
        one.b.assign(rng.uniform(0.5, 2.0, size=1))
        one.sigma2.assign(rng.uniform(0.1, 0.5, size=1))
    gprs = separate_gprs(model)
    evidence = sum(gpr.maximum_log_likelihood_objective().numpy() for gpr in gprs)
    assert_close(model.maximum_log_likelihood_objective(), evidence)
    moments = [gpr.predict_f(p.Xnew, full_cov=True) for gpr in gprs]
    mean = np.hstack([m.numpy() for m, _ in moments])
    f_cov = block_diagonal([S.numpy()[0] for _, S in moments])
    assert_predictions(model, p, mean, f_cov, [gpr.likelihood.variance.numpy() for gpr in gprs])


@pytest.mark.slow
def test_independent_trains_as_gpr_does(rng):
    X = np.sort(rng.uniform(size=(25, 1)), axis=0)
    Y = np.hstack([np.sin(6 * X), np.cos(9 * X)]) + 0.2 * rng.normal(size=(25, 2))
    model = IndependentGPs((X, Y), SquaredExponential(lengthscales=0.3), task_names=["a", "b"])
    histories = model.fit(verbose=0)
    assert all(history.converged for history in histories)
    assert model.task_names == ("a", "b")
    assert [one.task_names for one in model.models] == [("a",), ("b",)]
    for t, one in enumerate(model.models):
        gpr = gpflow.models.GPR(
            (X, Y[:, t : t + 1]), SquaredExponential(lengthscales=0.3), noise_variance=0.1
        )
        gpflow.optimizers.Scipy().minimize(gpr.training_loss, gpr.trainable_variables)
        assert_allclose(one.training_loss(), gpr.training_loss(), atol=1e-3)
        assert_allclose(one.predict_f(X)[0], gpr.predict_f(X)[0], atol=0.01)
    expected = sum(-one.training_loss().numpy() for one in model.models)
    assert_allclose(model.maximum_log_likelihood_objective(), expected, rtol=1e-12)
    assert len({float(one.kernel.lengthscales.numpy()) for one in model.models}) == 2


def test_independent_copies_the_kernel(rng):
    p = random_problem(rng, 6, 2)
    kernel = SquaredExponential(lengthscales=0.7)
    model = IndependentGPs((p.X, p.Y), kernel)
    model.fit(verbose=0, steps=2)
    assert kernel.lengthscales.numpy() == pytest.approx(0.7, rel=1e-14)
    assert kernel.variance.trainable


def test_one_shared_kernel_is_a_setting_of_the_exact_model(rng):
    """Tasks that share a kernel and nothing else, as the documentation says."""
    p = random_problem(rng, 8, 3)
    model = KroneckerMTGP((p.X, p.Y), p.gpflow_kernel(), rank=0, noise_rank="diagonal")
    b, sigma2 = rng.uniform(0.5, 2.0, size=3), rng.uniform(0.1, 0.5, size=3)
    model.signal.diagonal.assign(b)
    model.noise.diagonal.assign(sigma2)
    evidence = sum(
        ref.gaussian_log_density(p.Y[:, t], b[t] * p.K + sigma2[t] * np.eye(8)) for t in range(3)
    )
    assert_close(model.log_marginal_likelihood(), evidence)


@pytest.mark.slow
def test_independent_batches_and_errors(rng):
    p = random_problem(rng, 6, 2)
    model = IndependentGPs((p.X, p.Y), p.gpflow_kernel())
    Xnew = rng.normal(size=(2, 4, 2))
    for flags in LAYOUTS:
        together = model.predict_y(Xnew, *flags)
        for i in range(2):
            for a, e in zip(together, model.predict_y(Xnew[i], *flags), strict=True):
                assert_close(a[i], e, rtol=1e-10)
    with pytest.raises(ValueError, match=r"Xnew has shape \(3, 5\), but .* on 2 input columns"):
        model.predict_f(np.zeros((3, 5)))
    with pytest.raises(ValueError, match=r"Ynew has shape \(3, 3\), but the model has 2 tasks"):
        model.predict_log_density((p.Xnew, np.zeros((3, 3))))
    with pytest.raises(ValueError, match="task_names has 1 names, but Y has 2 columns"):
        IndependentGPs((p.X, p.Y), p.gpflow_kernel(), task_names=["a"])


@pytest.mark.slow
def test_independent_writes_a_folder_a_task(rng, tmp_path):
    p = random_problem(rng, 5, 2)
    model = IndependentGPs((p.X, p.Y), SquaredExponential())
    model.fit(steps=1, verbose=0, tensorboard=tmp_path / "runs")
    events = sorted(path.parent.name for path in (tmp_path / "runs").rglob("events*"))
    assert events == ["0", "1"]


# Conv-MT ------------------------------------------------------------------------------------------


def conv_mt(rng, p, **options):
    """The model at a variational distribution that is not the prior."""
    model = ConvMT((p.X, p.Y), p.gpflow_kernel(), **options)
    model.model.q_mu.assign(rng.normal(size=model.model.q_mu.shape))
    q_sqrt = model.model.q_sqrt.numpy()
    model.model.q_sqrt.assign(q_sqrt * rng.uniform(0.3, 0.9) + 0.1 * np.tril(np.ones_like(q_sqrt)))
    model.model.likelihood.variance.assign(0.3)
    return model


def test_conv_mt_equals_dense(rng):
    """u ~ N(L m, L S S^T L^T) at the inducing points Z, L = chol(Kzz), for each task."""
    p = random_problem(rng, 8, 3)
    model = conv_mt(rng, p)
    svgp = model.model
    Z = svgp.inducing_variable.inducing_variables[0].Z.numpy()
    assert len(Z) == 4 and {tuple(z) for z in Z} <= {tuple(x) for x in p.X}
    Kzz = p.k(Z, Z) + gpflow.config.default_jitter() * np.eye(4)
    L = np.linalg.cholesky(Kzz)
    A = np.linalg.solve(L, p.k(Z, p.Xnew))  # [4, M]
    Kss = p.k(p.Xnew, p.Xnew)
    mean = A.T @ svgp.q_mu.numpy()
    covs = [Kss - A.T @ (np.eye(4) - S @ S.T) @ A for S in svgp.q_sqrt.numpy()]
    assert_predictions(model, p, mean, block_diagonal(covs), np.full(3, 0.3))


def test_conv_mt_inducing_points(rng):
    p = random_problem(rng, 9, 2)

    def points(**options):
        model = ConvMT((p.X, p.Y), p.gpflow_kernel(), **options)
        return model.model.inducing_variable.inducing_variables[0].Z.numpy()

    assert len(points()) == 4
    assert len(points(num_inducing=7)) == 7
    assert_allclose(points(seed=3), points(seed=3), rtol=0)
    assert np.abs(points(seed=3) - points(seed=4)).max() > 0
    one = ConvMT((p.X[:1], p.Y[:1]), p.gpflow_kernel())
    assert np.isfinite(one.predict_y(p.Xnew)[1]).all()
    with pytest.raises(ValueError, match="num_inducing=0 must be a whole number of at least 1"):
        points(num_inducing=0)


@pytest.mark.slow
def test_conv_mt_trains(rng):
    X = np.linspace(0, 1, 16)[:, None]
    Y = np.hstack([np.sin(6 * X), np.cos(6 * X)]) + 0.1 * rng.normal(size=(16, 2))
    model = ConvMT((X, Y), SquaredExponential(lengthscales=0.3), task_names=["a", "b"])
    before = model.model.training_loss(model.data).numpy()
    model.fit(steps=40)
    assert model.model.training_loss(model.data).numpy() < before - 5.0
    assert np.sqrt(np.mean((model.predict_f(X)[0] - Y) ** 2)) < 0.2
    assert model.task_names == ("a", "b")
    with pytest.raises(ValueError, match="steps=0 must be a whole number of at least 1"):
        model.fit(steps=0)
    batch = tf.constant(rng.uniform(size=(2, 3, 1)))
    for flags in LAYOUTS:
        together = model.predict_y(batch, *flags)
        for a, e in zip(together, model.predict_y(batch[1], *flags), strict=True):
            assert_close(a[1], e, rtol=1e-8)
