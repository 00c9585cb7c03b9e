"""Linear kernels by their features, against dense algebra on K."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import LAYOUTS, assert_close, random_problem

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.joint.kronecker import kronecker_log_likelihood
from gpflow_cool.systems.features import LinearFeatures, linear_features
from gpflow_cool.systems.statistics import FeatureSystem, row_statistics

Linear, Constant = gpflow.kernels.Linear, gpflow.kernels.Constant

KERNELS = {
    "linear": lambda: Linear(0.7),
    "ard": lambda: Linear([0.7, 1.3, 0.2]),
    "columns": lambda: Linear([0.7, 1.3], active_dims=[2, 0]),
    "slice": lambda: Linear(0.4, active_dims=slice(1, 3)),
    "constant": lambda: Constant(0.6),
    "sum": lambda: Linear([0.7, 1.3, 0.2]) + Constant(0.6),
    "nested": lambda: (Linear(0.7, active_dims=[0]) + Constant(0.6)) + Linear(0.3),
}


def problem(rng, N=14, T=3):
    return random_problem(rng, N, T, D=3)


@pytest.mark.parametrize("name", KERNELS)
def test_features_give_the_kernel(rng, name):
    kernel, X = KERNELS[name](), rng.normal(size=(4, 14, 3))
    features = linear_features(kernel, X[0])
    F = features(X)
    assert F.shape == (4, 14, features.num_features)
    for part, expected in zip(F, X, strict=True):
        assert_close(tf.matmul(part, part, transpose_b=True), kernel(expected))
        assert_close(features.diagonal(expected), np.diag(kernel(expected)))
    assert_close(features.cross(X), np.moveaxis(F, -1, 0), rtol=0)


@pytest.mark.parametrize(
    "kernel",
    [
        gpflow.kernels.SquaredExponential(),
        gpflow.kernels.Polynomial(),
        Linear() + gpflow.kernels.White(),
        Linear() * Constant(),
    ],
)
def test_other_kernels_have_none(rng, kernel):
    assert linear_features(kernel, rng.normal(size=(14, 3))) is None


def test_features_are_for_more_rows_than_there_are_of_them(rng):
    assert linear_features(Linear(), rng.normal(size=(3, 3))) is None
    X = tf.Variable(rng.normal(size=(3, 3)), shape=[None, 3], trainable=False)
    assert isinstance(linear_features(Linear(), X), LinearFeatures)


def models(p, name, **options):
    """By features, and by the dense kernel matrix."""
    found = []
    for engine in ("auto", "spectral"):
        model = CoolMTGP(
            (p.X, p.Y), KERNELS[name](), b=p.b, sigma2=p.sigma2, engine=engine, **options
        )
        assert (model.features is None) == (engine == "spectral")
        found.append(model)
    return found


def loss_and_gradients(model):
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    return loss, tape.gradient(loss, model.trainable_variables)


def assert_same_gradients(one, other):
    """Of the loss, which is the same as well."""
    (loss, gradients), (expected, others) = map(loss_and_gradients, (one, other))
    assert_close(loss, expected)
    for a, e in zip(gradients, others, strict=True):
        assert_close(a, e, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, learning",
    [*((name, "hierarchical") for name in KERNELS), ("ard", "approximate"), ("sum", "approximate")],
)
def test_objective_gradient_and_covariances_equal_dense(rng, name, learning):
    p = problem(rng)
    model, dense = models(p, name, learning=learning)
    K = KERNELS[name]()(p.X).numpy()
    expected = ref.conditional_log_likelihoods(K, p.Y, p.b, p.sigma2, learning, 1.0)
    assert_close(model.conditional_log_likelihoods(), expected, rtol=1e-8)
    C, Sigma = ref.recover(K, p.Y, p.b, p.sigma2, 1.0)
    assert_close(model.task_covariance(), C, rtol=1e-8)
    assert_close(model.noise_covariance(), Sigma, rtol=1e-8)
    assert_close(model.log_marginal_likelihood(), ref.log_evidence(K, p.Y, C, Sigma), rtol=1e-8)
    for m in (model, dense):
        gpflow.set_trainable(m.kernel, True)
    assert_same_gradients(model, dense)


@pytest.mark.parametrize("full_cov, full_output_cov", LAYOUTS)
@pytest.mark.parametrize("cls", [CoolMTGP, KroneckerMTGP])
def test_predictions_equal_dense(rng, cls, full_cov, full_output_cov):
    p = problem(rng)
    kernel = KERNELS["sum"]()
    model = cls((p.X, p.Y), kernel)
    assert model.features is not None
    C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()
    K, Ks, Kss = (kernel(A, B).numpy() for A, B in ((p.X,) * 2, (p.X, p.Xnew), (p.Xnew,) * 2))
    mean, cov = ref.predict_y(K, Ks, Kss, p.Y, C, Sigma)
    for thing in (model, model.posterior()):
        m, v = thing.predict_y(p.Xnew, full_cov=full_cov, full_output_cov=full_output_cov)
        assert_close(m, mean, rtol=1e-8)
        assert_close(v, ref.layout(cov, full_cov, full_output_cov), rtol=1e-8)


@pytest.mark.parametrize("cls", [CoolMTGP, KroneckerMTGP])
@pytest.mark.parametrize("name", ["linear", "sum", "constant"])
def test_leave_one_out_equals_dense(rng, cls, name):
    p = problem(rng)
    mean = gpflow.mean_functions.Constant(np.full(3, 0.3))
    model = cls((p.X, p.Y), KERNELS[name](), mean)
    C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()
    rows = model.leave_one_out()
    expected = ref.leave_one_out(model.kernel(p.X).numpy(), p.Y - 0.3, C, Sigma)
    assert_close(rows.mean, expected.mean + 0.3, rtol=1e-8)
    assert_close(rows.cov, expected.cov, rtol=1e-8)
    densities = expected.log_density
    if cls is CoolMTGP:  # the chain's own, also of groups
        chain = model.kernel(p.X).numpy(), p.Y - 0.3, model.b.numpy(), model.sigma2.numpy()
        singles, pairs = np.arange(len(p.Y))[:, None], np.arange(len(p.Y)) // 2
        densities = ref.leave_out_log_densities(*chain, singles, 1.0)
        groups = [np.flatnonzero(pairs == group) for group in np.unique(pairs)]
        expected = ref.leave_out_log_densities(*chain, groups, 1.0)
        assert_close(model.leave_groups_out(pairs), expected, rtol=1e-8)
    assert_close(rows.log_density, densities, rtol=1e-8)


@pytest.mark.parametrize("N, T", [(1, 1), (9, 3), (4, 5)])
def test_joint_evidence_of_statistics_and_its_gradient(rng, N, T):
    F, Y = rng.normal(size=(N, 2)), rng.normal(size=(N, T))
    A, B = rng.normal(size=(2, T, T))
    C, Sigma = A @ A.T + 0.1 * np.eye(T), B @ B.T + 0.3 * np.eye(T)
    rest = 0.4

    def dense(F, Y, rest, C, Sigma):
        slack = 0.5 * rest * np.trace(np.linalg.solve(Sigma, C))
        return ref.log_evidence(F @ F.T, Y, C, Sigma) - slack

    arrays = [F, Y, np.float64(rest), C, Sigma]
    tensors = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        tF, tY, trest, tC, tSigma = tensors
        diagonal = tf.reduce_sum(tf.square(tF), axis=1) + trest / N
        system = FeatureSystem(row_statistics(tF, tY, diagonal))
        value = kronecker_log_likelihood(system, tC, tSigma)
    assert_close(value, dense(*arrays), rtol=1e-9)
    for i, actual in enumerate(tape.gradient(value, tensors)):
        u = rng.normal(size=arrays[i].shape)
        u = u + u.T if i >= 3 else u

        def along(h, i=i, u=u):
            return dense(*(a + h * u if i == j else a for j, a in enumerate(arrays)))

        assert_allclose(np.sum(actual * u), ref.derivative(along, 5e-4), rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_fit_ends_where_the_dense_one_does(rng):
    p = problem(rng, N=40)
    Y = p.X @ rng.normal(size=(3, 3)) + 0.3 * p.Y
    model, dense = (
        CoolMTGP((p.X, Y), Linear([1.0, 1.0, 1.0]), engine=engine)
        for engine in ("auto", "spectral")
    )
    for each in (model, dense):
        each.fit(verbose=0)
    assert_allclose(model.training_loss(), dense.training_loss(), atol=0.05)
    assert_allclose(model.predict_f(p.Xnew)[0], dense.predict_f(p.Xnew)[0], atol=0.05)


def test_kronecker_objective_and_gradient_equal_dense(rng):
    p = problem(rng)
    model = KroneckerMTGP((p.X, p.Y), Linear([0.7, 1.3, 0.2]))
    dense = KroneckerMTGP((p.X, p.Y), Linear([0.7, 1.3, 0.2]) + gpflow.kernels.White(1e-14))
    gpflow.set_trainable(dense.kernel.kernels[1], False)
    assert model.features is not None and dense.features is None
    assert_same_gradients(model, dense)


def test_rows_may_change(rng):
    p = problem(rng)
    X, Y = (tf.Variable(array[:6], shape=[None, 3], trainable=False) for array in (p.X, p.Y))
    model = CoolMTGP((X, Y), Linear(0.7), b=p.b, sigma2=p.sigma2)
    posterior = model.posterior("variable")
    X.assign(p.X)
    Y.assign(p.Y)
    posterior.update_cache()
    expected = models(p, "linear")[1]
    assert_close(model.training_loss(), expected.training_loss(), rtol=1e-9)
    assert_close(posterior.predict_f(p.Xnew)[0], expected.predict_f(p.Xnew)[0], rtol=1e-8)


def test_missing_targets_keep_the_kernel_matrix(rng):
    p = problem(rng)
    Y = p.Y.copy()
    Y[3, 1] = np.nan
    assert CoolMTGP((p.X, Y), Linear()).features is None
