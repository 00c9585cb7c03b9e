"""KroneckerMTGP against dense algebra and GPflow's own models."""

import itertools

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from gpflow.kernels import Coregion, SquaredExponential
from gpflow.utilities import parameter_dict
from numpy.testing import assert_allclose
from problems import (
    CASES,
    LAYOUTS,
    assert_close,
    assert_moments,
    perturb,
    random_covariance,
    random_problem,
)

from gpflow_cool import KroneckerMTGP

PARAMETRISATIONS = [
    *itertools.product([None, 0, 1, 3], ["full", "diagonal", 0, 2]),  # T is 3
    (2, 1),
    (2, 3),
]


def with_covariances(rng, p, mean_function=None, **options):
    """The model at a random C and Sigma, and what the reference's predictions take."""
    T = p.Y.shape[1]
    C, Sigma = random_covariance(rng, T), 0.3 * random_covariance(rng, T)
    model = KroneckerMTGP(
        (p.X, p.Y),
        p.gpflow_kernel(),
        mean_function,
        task_covariance=C,
        noise_covariance=Sigma,
        **options,
    )
    return model, (*p.kernels, p.Y, C, Sigma)


def matrix(covariance):
    """What a covariance of tasks is, from the values of its parameters alone."""
    values = {name: p.numpy() for name, p in parameter_dict(covariance).items()}
    if ".factor" in values:
        return values[".factor"] @ values[".factor"].T + np.diag(covariance.floor)
    diagonal = np.diag(np.broadcast_to(values[".diagonal"], covariance.num_tasks))
    W = values.get(".weights", np.zeros((covariance.num_tasks, 0)))
    return W @ W.T + diagonal


def dense(model):
    """K, Y, C and Sigma of a model with a squared exponential kernel, by NumPy."""
    X, Y = (part.numpy() for part in model.data)
    k, m = model.kernel, model.mean_function
    K = ref.squared_exponential(X, X, k.variance.numpy(), k.lengthscales.numpy())
    mean = X @ m.A.numpy() + m.b.numpy() if hasattr(m, "A") else 0.0
    return K, Y - mean, matrix(model.signal), matrix(model.noise)


# Evidence and gradients ---------------------------------------------------------------------------


def dense_gradients(model):
    """
    Derivatives of the evidence by every trainable parameter, in the order of the model's own.

    dJ = sum G dS, G = 1/2 (a a^T - S^-1), a = S^-1 vec(Y), S = C (x) K + Sigma (x) I.
    """
    K, Y, C, Sigma = dense(model)
    X = model.data[0].numpy()
    N, T = Y.shape
    S = np.kron(C, K) + np.kron(Sigma, np.eye(N))
    a = np.linalg.solve(S, Y.ravel(order="F"))
    G = 0.5 * (np.outer(a, a) - np.linalg.inv(S)).reshape(T, N, T, N)
    by_K = np.einsum("tnum,tu->nm", G, C)
    by_Y = -a.reshape(T, N).T
    squares = np.sum((X[:, None] - X[None]) ** 2, axis=-1)
    lengthscale = model.kernel.lengthscales.numpy()
    expected = {
        ".kernel.lengthscales": np.sum(by_K * K * squares) / lengthscale**3,
        ".mean_function.A": -X.T @ by_Y,
        ".mean_function.b": -by_Y.sum(axis=0),
    }
    for name, by_matrix in [
        (".signal", np.einsum("tnum,nm->tu", G, K)),
        (".noise", np.einsum("tnun->tu", G)),
    ]:
        values = {k: p.numpy() for k, p in parameter_dict(getattr(model, name[1:])).items()}
        if ".factor" in values:
            expected[f"{name}.factor"] = np.tril(2.0 * by_matrix @ values[".factor"])
            continue
        variances = np.diag(by_matrix)
        shared = np.ndim(values[".diagonal"]) == 0
        expected[f"{name}.diagonal"] = variances.sum() if shared else variances
        if ".weights" in values:
            expected[f"{name}.weights"] = 2.0 * by_matrix @ values[".weights"]
    return expected


def unconstrained(parameter, gradient):
    """A derivative by a parameter's value, as one by its variable."""
    if parameter.transform is None:
        return gradient
    variable = parameter.unconstrained_variable
    with tf.GradientTape() as tape:
        value = parameter.transform.forward(tf.convert_to_tensor(variable))
    return tape.gradient(value, variable, output_gradients=tf.constant(gradient))


@pytest.mark.parametrize("rank, noise_rank", PARAMETRISATIONS)
def test_evidence_and_gradients_of_every_parametrisation(rng, rank, noise_rank):
    p = random_problem(rng, 5, 3)
    mean_function = gpflow.mean_functions.Linear(rng.normal(size=(2, 3)), rng.normal(size=3))
    kernel = p.gpflow_kernel()
    model = KroneckerMTGP((p.X, p.Y), kernel, mean_function, rank=rank, noise_rank=noise_rank)
    perturb(model, rng)
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        evidence = model.maximum_log_likelihood_objective()
    gradients = tape.gradient(evidence, variables)
    by_variable = {id(v): g.numpy() for v, g in zip(variables, gradients, strict=True)}
    assert_close(evidence, ref.log_evidence(*dense(model)))
    assert_close(model.task_covariance(), dense(model)[2])
    assert_close(model.noise_covariance(), dense(model)[3])

    parameters = {k: p for k, p in parameter_dict(model).items() if p.trainable}
    expected = dense_gradients(model)
    assert set(parameters) == set(expected)
    for name, parameter in parameters.items():
        actual = by_variable[id(parameter.unconstrained_variable)]
        assert_close(actual, unconstrained(parameter, expected[name]), rtol=1e-7)

    start = [v.numpy() for v in variables]
    directions = [rng.normal(size=v.shape) for v in variables]

    def along(h):
        for variable, value, direction in zip(variables, start, directions, strict=True):
            variable.assign(value + h * direction)
        return ref.log_evidence(*dense(model))

    slope = sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=True))
    assert_close(slope, ref.derivative(along, 1e-3), rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_evidence_equals_dense(rng, case):
    """Also with one row, one task, more tasks than rows, repeated rows, more rows than inputs."""
    p = CASES[case](rng)
    model, (K, _, _, Y, C, Sigma) = with_covariances(rng, p)
    S = np.kron(C, K) + np.kron(Sigma, np.eye(len(K)))  # the order, without a helper
    expected = ref.gaussian_log_density(Y.ravel(order="F"), S)
    assert_close(model.maximum_log_likelihood_objective(), expected)
    assert_close(model.log_marginal_likelihood(), expected)
    assert_close(model.training_loss(), -expected)
    assert_close(model.objective_terms(), [expected])
    assert model.objective_term_names == ("evidence",)
    gradient = tf.GradientTape()
    with gradient:
        loss = model.training_loss()
    for slope in gradient.gradient(loss, model.trainable_variables):
        assert np.isfinite(slope).all()


@pytest.mark.slow
def test_gradient_in_a_graph(rng):
    model, _ = with_covariances(rng, random_problem(rng, 6, 3))

    def loss_and_gradient():
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        return [loss, *tape.gradient(loss, model.trainable_variables)]

    actual = tf.function(loss_and_gradient, autograph=False)()
    for a, e in zip(actual, loss_and_gradient(), strict=True):
        assert_close(a, e, rtol=1e-10)


# Predictions --------------------------------------------------------------------------------------


SOME = ["N1-T1", "N7-T1", "N7-T3", "N2-T5", "repeated_rows", "linear", "zeros", "zero_kernel"]


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME)
def test_predictions_equal_dense(rng, case):
    p = CASES[case](rng)
    model, arguments = with_covariances(rng, p)
    f, y = ref.predict_f(*arguments), ref.predict_y(*arguments)
    for flags in LAYOUTS:
        for predict, (mean, cov) in [(model.predict_f, f), (model.predict_y, y)]:
            actual = predict(p.Xnew, *flags)
            assert_close(actual[0], mean, rtol=1e-8)
            assert_close(actual[1], ref.layout(cov, *flags), rtol=1e-8)
        density = model.predict_log_density((p.Xnew, p.Ynew), *flags)
        assert_close(density, ref.log_density(*y, p.Ynew, *flags), rtol=1e-8)


@pytest.mark.parametrize("case", ["N1-T1", "N7-T3", "N2-T5", "repeated_rows", "linear", "zeros"])
def test_leave_one_out_and_given_equal_dense(rng, case):
    p = CASES[case](rng)
    model, arguments = with_covariances(rng, p)
    K, *_, C, Sigma = arguments
    actual, expected = model.leave_one_out(), ref.leave_one_out(K, p.Y, C, Sigma)
    for name in expected._fields:
        assert_close(getattr(actual, name), getattr(expected, name), rtol=1e-8)
    Ynew = np.where(np.arange(p.Ynew.size).reshape(p.Ynew.shape) % 3 == 0, np.nan, p.Ynew)
    given = ref.predict_given(*arguments, Ynew)
    f_mean, f_cov = model.predict_f_given(p.Xnew, Ynew, full_output_cov=True)
    y_mean, y_cov = model.predict_y_given(p.Xnew, Ynew, full_output_cov=True)
    for a, e in zip((f_mean, f_cov, y_mean, y_cov), given, strict=True):
        assert_close(a, e, rtol=1e-8)


@pytest.mark.parametrize("rank, noise_rank", [(0, 0), (1, "diagonal"), (2, 1), (3, 3)])
def test_predictions_of_other_parametrisations(rng, rank, noise_rank):
    p = random_problem(rng, 7, 3)
    model = KroneckerMTGP((p.X, p.Y), p.gpflow_kernel(), rank=rank, noise_rank=noise_rank)
    perturb(model, rng)
    model.kernel.lengthscales.assign(1.5)
    mean, cov = ref.predict_y(*p.kernels, p.Y, matrix(model.signal), matrix(model.noise))
    for flags in LAYOUTS:
        actual = model.predict_y(p.Xnew, *flags)
        assert_close(actual[0], mean, rtol=1e-8)
        assert_close(actual[1], ref.layout(cov, *flags), rtol=1e-8)


def test_samples_have_the_exact_moments(rng):
    p = random_problem(rng, 6, 2)
    model, arguments = with_covariances(rng, p)
    for sample, predict in [
        (model.predict_f_samples, ref.predict_f),
        (model.predict_y_samples, ref.predict_y),
    ]:
        mean, cov = predict(*arguments)
        tf.random.set_seed(5)
        draws = sample(p.Xnew, 20_000, full_cov=True, full_output_cov=True).numpy()
        assert_moments(draws.reshape(-1, 6), mean.ravel(), cov.reshape(6, 6))


def test_mean_function_and_cached_posterior(rng):
    p = random_problem(rng, 7, 3)
    offset = np.array([1.0, -2.0, 3.0])
    model, arguments = with_covariances(
        rng, p._replace(Y=p.Y + offset), gpflow.mean_functions.Constant(offset)
    )
    expected = ref.predict_y(*arguments[:3], p.Y, *arguments[4:])
    posterior = model.posterior()
    for actual in (model.predict_y(p.Xnew, True, True), posterior.predict_y(p.Xnew, True, True)):
        assert_close(actual[0], expected[0] + offset, rtol=1e-8)
        assert_close(actual[1], expected[1], rtol=1e-8)
    C = 2.0 * arguments[4]
    model.signal.assign(C)
    assert_close(posterior.predict_y(p.Xnew, True, True)[1], expected[1], rtol=1e-8)
    posterior.update_cache()
    expected = ref.predict_y(*arguments[:3], p.Y, C, arguments[5])
    assert_close(posterior.predict_y(p.Xnew, True, True)[1], expected[1], rtol=1e-8)


# GPflow's own models ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_equals_coregionalization(rng, rank):
    """GPR with Coregion on the augmented layout, its rows shuffled, at equal parameters."""
    p = random_problem(rng, 8, 3)
    model = KroneckerMTGP.std_mt((p.X, p.Y), p.gpflow_kernel(), rank=rank)
    perturb(model, rng)
    lengthscales = model.kernel.lengthscales.numpy()

    coregion = Coregion(3, rank, active_dims=[2])
    coregion.W.assign(model.signal.weights)
    coregion.kappa.assign(np.full(3, model.signal.diagonal.numpy()))
    base = SquaredExponential(p.gpflow_kernel().variance, lengthscales, active_dims=[0, 1])
    X_aug = np.vstack([np.insert(p.X, 2, t, axis=1) for t in range(3)])
    order = rng.permutation(24)
    gpr = gpflow.models.GPR(
        (X_aug[order], p.Y.reshape(-1, 1, order="F")[order]),
        base * coregion,
        noise_variance=model.noise.diagonal.numpy(),
    )
    assert_allclose(
        model.log_marginal_likelihood(), gpr.maximum_log_likelihood_objective(), rtol=1e-6
    )
    slopes = []
    for each, variable in [
        (model, model.kernel.lengthscales.unconstrained_variable),
        (gpr, base.lengthscales.unconstrained_variable),
    ]:
        with tf.GradientTape() as tape:
            loss = each.training_loss()
        slopes.append(tape.gradient(loss, variable).numpy())
    assert_allclose(slopes[0], slopes[1], rtol=1e-6)

    Xnew_aug = np.vstack([np.insert(p.Xnew, 2, t, axis=1) for t in range(3)])
    mean, cov = gpr.predict_f(Xnew_aug, full_cov=True)
    actual_mean, actual_cov = model.predict_f(p.Xnew, full_cov=True, full_output_cov=True)
    assert_allclose(actual_mean.numpy().ravel(order="F"), mean[:, 0], atol=1e-6)
    task_major = tf.transpose(actual_cov, [1, 0, 3, 2]).numpy().reshape(9, 9)
    assert_allclose(task_major, cov[0], atol=1e-6)
    for noise, expected in [(False, gpr.predict_f(Xnew_aug)), (True, gpr.predict_y(Xnew_aug))]:
        for a, e in zip(model.predict_coregion(Xnew_aug, noise=noise), expected, strict=True):
            assert_allclose(a, e, atol=1e-6)


def test_identity_and_the_same_noise_equal_separate_gprs(rng):
    p = random_problem(rng, 8, 3)
    model = KroneckerMTGP(
        (p.X, p.Y),
        p.gpflow_kernel(),
        noise_rank=0,
        task_covariance=np.eye(3),
        noise_covariance=0.2 * np.eye(3),
    )
    gpflow.set_trainable(model.signal, False)
    assert_close(model.task_covariance(), np.eye(3), rtol=1e-12)
    gpr = gpflow.models.GPR((p.X, p.Y), p.gpflow_kernel(), noise_variance=0.2)  # T outputs
    single = [
        gpflow.models.GPR((p.X, p.Y[:, t : t + 1]), p.gpflow_kernel(), noise_variance=0.2)
        for t in range(3)
    ]
    evidence = sum(m.maximum_log_likelihood_objective().numpy() for m in single)
    assert_close(gpr.maximum_log_likelihood_objective(), evidence)
    assert_close(model.log_marginal_likelihood(), evidence)
    mean, cov = model.predict_f(p.Xnew, full_cov=True)
    _, variance = model.predict_y(p.Xnew)
    for t, m in enumerate(single):
        expected_mean, expected_cov = m.predict_f(p.Xnew, full_cov=True)
        assert_close(mean[:, t : t + 1], expected_mean, rtol=1e-8)
        assert_close(cov[t], expected_cov[0], rtol=1e-8)
        assert_close(variance[:, t : t + 1], m.predict_y(p.Xnew)[1], rtol=1e-8)


@pytest.mark.filterwarnings("ignore:The standard deviations of the targets differ")
@pytest.mark.parametrize("options", [{"rank": 1}, {"noise_rank": 0}, {"rank": 2, "noise_rank": 2}])
def test_units_too_far_apart_for_a_shared_variance_are_refused(rng, options):
    X, Y = rng.normal(size=(6, 1)), rng.normal(size=(6, 3))
    KroneckerMTGP((X, Y * [1.0, 1.0, 1e6]), SquaredExponential(), **options)
    far = X, Y * [1.0, 1.0, 1e9]
    with pytest.raises(ValueError, match="differ by a factor of .*e.09, but a low-rank C"):
        KroneckerMTGP(far, SquaredExponential(), **options)
    KroneckerMTGP(far, SquaredExponential())  # each task has its own variances here
    KroneckerMTGP(far, SquaredExponential(), task_covariance=np.eye(3), **options)
