"""KroneckerMTGP against dense algebra, GPflow's own models, and CoolMTGP that it refines."""

import copy
import itertools

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from gpflow.kernels import Coregion, SquaredExponential
from gpflow.utilities import multiple_assign, parameter_dict, read_values
from numpy.testing import assert_allclose
from problems import CASES, LAYOUTS, assert_close, assert_moments, random_problem, repeated_rows

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.joint.covariances import NOISE_FLOOR

PARAMETRISATIONS = [
    *itertools.product([None, 0, 1, 3], ["full", "diagonal", 0, 2]),  # T is 3
    (2, 1),
    (2, 3),
]


def random_covariance(rng, T, rank=None):
    A = rng.normal(size=(T, rank or T))
    return A @ A.T + (0.0 if rank else 0.3 * np.eye(T))


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


def perturb(model, rng):
    """Any parameters but those that the model starts from."""
    for variable in model.trainable_variables:
        variable.assign_add(0.3 * rng.normal(size=variable.shape))


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


# The paper's competitors --------------------------------------------------------------------------


def shapes(model):
    """Shapes of the trainable parameters of C and Sigma."""
    return {
        name: tuple(p.shape)
        for name, p in parameter_dict(model).items()
        if p.trainable and name.startswith((".signal", ".noise"))
    }


def test_constructors(rng):
    p = random_problem(rng, 9, 3)
    data = p.X, p.Y
    names = ["a", "b", "c"]
    std = KroneckerMTGP.std_mt(data, p.gpflow_kernel(), rank=2, task_names=names)
    assert std.task_names == ("a", "b", "c")
    assert shapes(std) == {
        ".signal.weights": (3, 2),
        ".signal.diagonal": (),
        ".noise.diagonal": (),
    }
    icm = KroneckerMTGP.icm(data, p.gpflow_kernel())
    assert shapes(icm) == {
        ".signal.weights": (3, 1),
        ".signal.diagonal": (),
        ".noise.diagonal": (),
    }
    sigma = KroneckerMTGP.sigma_mt(data, p.gpflow_kernel(), rank=2)
    assert shapes(sigma) == {
        ".signal.weights": (3, 2),
        ".signal.diagonal": (),
        ".noise.weights": (3, 2),
        ".noise.diagonal": (3,),
    }
    full = KroneckerMTGP(data, p.gpflow_kernel())
    assert shapes(full) == {".signal.factor": (3, 3), ".noise.factor": (3, 3)}
    shared = KroneckerMTGP(data, p.gpflow_kernel(), rank=0, noise_rank="diagonal")
    assert shapes(shared) == {".signal.diagonal": (3,), ".noise.diagonal": (3,)}
    mean_function = gpflow.mean_functions.Constant(np.zeros(3))
    assert KroneckerMTGP.icm(data, p.gpflow_kernel(), mean_function=mean_function).mean_function


def test_starting_values(rng):
    """C from the covariance of Y over the kernel's variance, Sigma a tenth of the variances."""
    X, Y = rng.normal(size=(50, 2)), rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3))
    model = KroneckerMTGP((X, Y), SquaredExponential(variance=2.5))
    expected = 0.9 * np.cov(Y.T, bias=True) / 2.5
    np.fill_diagonal(expected, Y.var(axis=0) / 2.5)
    assert_close(model.task_covariance(), expected)
    assert_close(model.noise_covariance(), np.diag(0.1 * Y.var(axis=0)))
    assert not model.kernel.variance.trainable


def test_given_covariances_are_kept(rng):
    p = random_problem(rng, 6, 3)
    C, Sigma = random_covariance(rng, 3), random_covariance(rng, 3)
    model = KroneckerMTGP(
        (p.X, p.Y), p.gpflow_kernel(), task_covariance=C.tolist(), noise_covariance=Sigma
    )
    assert_close(model.task_covariance(), C, rtol=1e-11)
    assert_close(model.noise_covariance(), Sigma, rtol=1e-11)


def test_small_noise_of_one_task_is_no_mistake(rng):
    """A noise a hundred million times smaller than another's is no singular matrix."""
    p = random_problem(rng, 6, 2)
    Sigma = np.diag([1.0, 1e-8])
    for noise_rank in ("full", "diagonal"):
        model = KroneckerMTGP(
            (p.X, p.Y * [1.0, 1e-4]),
            p.gpflow_kernel(),
            noise_covariance=Sigma,
            noise_rank=noise_rank,
        )
        assert_allclose(np.diag(model.noise_covariance()), np.diag(Sigma), rtol=1e-9)


def test_ground_truth_is_kept_in_training(rng):
    p = random_problem(rng, 12, 3)
    C, Sigma = random_covariance(rng, 3), random_covariance(rng, 3)
    model = KroneckerMTGP.ground_truth((p.X, p.Y), p.gpflow_kernel(), C, Sigma)
    assert [v.shape for v in model.trainable_variables] == [()]  # the lengthscale
    before = model.training_loss().numpy()
    model.fit(verbose=0)
    assert model.training_loss().numpy() < before
    assert_close(model.task_covariance(), C, rtol=1e-11)
    assert_close(model.noise_covariance(), Sigma, rtol=1e-11)


@pytest.mark.parametrize("T, rank", [(2, 1), (4, 2), (4, 1)])
def test_ground_truth_of_low_rank_is_finite(rng, T, rank):
    """Singular C and Sigma: the noise is lifted a little, as documented, and C is not."""
    p = random_problem(rng, 9, T)
    C, Sigma = random_covariance(rng, T, rank), random_covariance(rng, T, rank)
    Y = p.X @ rng.normal(size=(2, T)) + rng.normal(size=(9, rank)) @ rng.normal(size=(rank, T))
    model = KroneckerMTGP.ground_truth((p.X, Y), p.gpflow_kernel(), C, Sigma)
    assert_close(model.task_covariance(), C, rtol=1e-11)
    lifted = model.noise_covariance().numpy()
    assert_allclose(lifted, Sigma, atol=2.0 * NOISE_FLOOR * np.diag(Sigma).max())
    deviation = np.sqrt(np.diag(Sigma))
    lowest = np.linalg.eigvalsh(lifted / np.outer(deviation, deviation))[: T - rank]
    assert_allclose(lowest, NOISE_FLOOR, rtol=1e-6)
    expected = ref.log_evidence(p.K, Y, C, lifted)
    assert_close(model.log_marginal_likelihood(), expected, rtol=1e-5)
    outputs = [*model.predict_y(p.Xnew, True, True), *model.leave_one_out()]
    outputs.append(model.predict_log_density((p.Xnew, p.Ynew), True, True))
    assert all(np.isfinite(output).all() for output in outputs)


def test_noise_without_variance_is_lifted(rng):
    """A task that is said to have no noise at all gets a little of its targets' variance."""
    p = random_problem(rng, 6, 2)
    model = KroneckerMTGP((p.X, p.Y), p.gpflow_kernel(), noise_covariance=np.diag([0.5, 0.0]))
    expected = np.diag([0.5, NOISE_FLOOR * p.Y[:, 1].var()])
    assert_allclose(model.noise_covariance(), expected, rtol=1e-6, atol=1e-12)


# From and to CoolMTGP -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The standard deviations")
@pytest.mark.parametrize("case", [*SOME, "copies", "combination", "no_signal"])
def test_exact_from_cool_predicts_the_same(rng, case):
    p = CASES[case](rng)
    cool = CoolMTGP((p.X, p.Y), p.gpflow_kernel(), b=p.b, sigma2=p.sigma2)
    exact = cool.to_exact()
    evidence = cool.log_marginal_likelihood()
    assert_close(exact.log_marginal_likelihood(), evidence, rtol=1e-8)
    for a, e in zip(
        exact.predict_y(p.Xnew, True, True), cool.predict_y(p.Xnew, True, True), strict=True
    ):
        assert_close(a, e, rtol=1e-7)
    assert_close(exact.task_covariance(), cool.task_covariance(), rtol=1e-10)
    assert_close(exact.noise_covariance(), cool.noise_covariance(), rtol=1e-10)


def test_nearly_singular_noise_is_carried_over(rng):
    """A tenth of a given noise is the floor, not what is usual."""
    p = random_problem(rng, 8, 3)
    Y = np.hstack([p.Y[:, :2], p.Y[:, :1] - p.Y[:, 1:2]])
    cool = CoolMTGP((p.X, Y), p.gpflow_kernel(), b=1.0, sigma2=[0.1, 0.1, 1e-7])
    exact = KroneckerMTGP.from_cool(cool)
    assert_close(exact.noise_covariance(), cool.noise_covariance(), rtol=1e-10)
    assert_allclose(exact.log_marginal_likelihood(), cool.log_marginal_likelihood(), rtol=1e-6)


def test_exact_from_cool_is_a_model_of_its_own(rng):
    p = random_problem(rng, 8, 3)
    mean_function = gpflow.mean_functions.Constant(0.3)
    names = ["x", "y", "z"]
    cool = CoolMTGP((p.X, p.Y), p.gpflow_kernel(), mean_function, task_names=names)
    cool.task_column = 1
    cool.kernel.lengthscales.assign(0.8)
    exact = cool.to_exact()
    assert exact.task_names == ("x", "y", "z")
    assert exact.task_column == 1
    expected = cool.predict_f(p.Xnew)
    assert_close(exact.predict_f(p.Xnew)[0], expected[0], rtol=1e-8)
    exact.kernel.lengthscales.assign(0.1)
    exact.mean_function.c.assign(5.0)
    exact.signal.assign(np.eye(3))
    assert_close(cool.predict_f(p.Xnew)[0], expected[0], rtol=1e-12)


# Training -----------------------------------------------------------------------------------------


@pytest.fixture
def data(rng):
    X = np.sort(rng.uniform(size=(20, 1)), axis=0)
    F = np.hstack([np.cos(6 * X), np.sin(6 * X), np.cos(6 * X) - np.sin(6 * X)])
    return X, F + 0.3 * rng.normal(size=(20, 3)) @ [[1, 0.5, 0], [0, 1, 0.5], [0, 0, 1]]


def build(data, **options):
    return KroneckerMTGP(data, SquaredExponential(lengthscales=0.3), **options)


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


def test_refinement_raises_the_exact_evidence(data):
    cool = CoolMTGP(data, SquaredExponential(lengthscales=0.3))
    cool.fit(verbose=0)
    evidence = cool.log_marginal_likelihood().numpy()
    refined = cool.to_exact()
    refined.fit("em", verbose=0, steps=20)
    by_em = refined.log_marginal_likelihood().numpy()
    refined.fit("scipy", verbose=0, steps=20)
    by_scipy = refined.log_marginal_likelihood().numpy()
    assert evidence < by_em - 0.01 < by_scipy


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
    floor = NOISE_FLOOR * Y.var(axis=0)
    excess = np.linalg.eigvalsh(model.noise_covariance().numpy() - np.diag(floor))
    assert excess[0] >= -1e-12
    assert np.isfinite(model.predict_y(X, full_output_cov=True)[1]).all()


@pytest.mark.parametrize("N, T", [(1, 1), (1, 3), (2, 5), (6, 1)])
def test_training_at_degenerate_sizes(rng, N, T):
    p = random_problem(rng, N, T)
    model = KroneckerMTGP((p.X, p.Y), p.gpflow_kernel())
    before = model.training_loss().numpy()
    model.fit("scipy", verbose=0, steps=15)
    assert np.isfinite(model.training_loss()) and model.training_loss().numpy() <= before
    for part in model.predict_y(p.Xnew, True, True):
        assert np.isfinite(part).all()


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
