"""CoolMTGP with every kernel and mean function of GPflow, and on degenerate data."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from gpflow import kernels, mean_functions
from numpy.testing import assert_allclose
from problems import LAYOUTS, LEARNINGS, assert_close

from gpflow_cool import CoolMTGP

SE = kernels.SquaredExponential

KERNELS = {
    "SquaredExponential": lambda: SE(lengthscales=0.7),
    "ARD": lambda: SE(lengthscales=[0.7, 1.9]),
    "Matern12": lambda: kernels.Matern12(),
    "Matern32": lambda: kernels.Matern32(),
    "Matern52": lambda: kernels.Matern52(lengthscales=[0.5, 2.0]),
    "RationalQuadratic": lambda: kernels.RationalQuadratic(alpha=0.8),
    "Linear": lambda: kernels.Linear(variance=[0.5, 2.0]),
    "Polynomial": lambda: kernels.Polynomial(degree=2),
    "Periodic": lambda: kernels.Periodic(SE(), period=[1.5, 2.5]),
    "ArcCosine": lambda: kernels.ArcCosine(order=1),
    "Constant": lambda: kernels.Constant(),
    "White": lambda: kernels.White(),
    "sum": lambda: SE() + kernels.Linear() + kernels.White(variance=0.1),
    "product": lambda: SE() * kernels.Linear() * kernels.Periodic(SE()),
    "nested": lambda: (SE() + kernels.Constant()) * kernels.Matern32(),
    "active_dims": lambda: SE(active_dims=[1]) + kernels.Linear(active_dims=slice(0, 1)),
    "ChangePoints": lambda: kernels.ChangePoints([SE(), kernels.Matern32()], [0.1], 2.0),
}


def data_for(name, rng, N=9, T=3):
    X = rng.normal(size=(N, 1 if name == "ChangePoints" else 2))
    return X, rng.normal(size=(N, T)) + X[:, :1]


def loss_and_gradients(model):
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    gradients = tape.gradient(loss, model.trainable_variables)
    return loss.numpy(), [gradient.numpy() for gradient in gradients]


def directional_derivative(model, direction, step=1e-5):
    """Central difference of the loss along a direction of all trainable variables."""
    start = [variable.numpy() for variable in model.trainable_variables]
    losses = []
    for sign in [1.0, -1.0]:
        for variable, value, part in zip(model.trainable_variables, start, direction, strict=True):
            variable.assign(value + sign * step * part)
        losses.append(model.training_loss().numpy())
    for variable, value in zip(model.trainable_variables, start, strict=True):
        variable.assign(value)
    return (losses[0] - losses[1]) / (2 * step)


def assert_gradients_are_right(rng, model, gradients):
    direction = [rng.normal(size=gradient.shape) for gradient in gradients]
    expected = directional_derivative(model, direction)
    actual = sum(np.sum(g * d) for g, d in zip(gradients, direction, strict=True))
    assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def assert_loss(model, loss, residual):
    """Equal to that of the reference, and the prior's density."""
    at = model.b.numpy(), model.sigma2.numpy(), model.learning, model.weight_variance.numpy()
    objective = ref.objective(model.kernel(model.data[0]).numpy(), residual, *at)
    assert_allclose(loss, -objective - model.log_prior_density(), rtol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel(rng, name):
    """Loss as the reference gives it; gradients as differences of the loss."""
    X, Y = data_for(name, rng)
    model = CoolMTGP((X, Y), KERNELS[name]())
    loss, gradients = loss_and_gradients(model)
    assert_loss(model, loss, Y)
    assert_gradients_are_right(rng, model, gradients)


@pytest.mark.parametrize("name", KERNELS)
def test_predictions_with_every_kernel(rng, name):
    X, Y = data_for(name, rng)
    Xnew = data_for(name, rng, N=3)[0]
    model = CoolMTGP((X, Y), KERNELS[name]())
    _, C, Sigma, _ = (part.numpy() for part in model.multitask_parameters())
    blocks = [model.kernel(X), model.kernel(X, Xnew), model.kernel(Xnew)]
    mean, cov = ref.predict_f(*(block.numpy() for block in blocks), Y, C, Sigma)
    actual_mean, actual_cov = model.predict_f(Xnew, full_cov=True, full_output_cov=True)
    assert_close(actual_mean, mean, rtol=1e-8)
    prior = np.max(np.diag(C)) * np.max(blocks[2])
    assert_allclose(actual_cov, ref.layout(cov, True, True), atol=1e-9 * prior)


# Mean functions -----------------------------------------------------------------------------------


def own_mean_function():
    class Wave(mean_functions.MeanFunction):
        def __init__(self):
            super().__init__()
            self.amplitude = gpflow.Parameter([0.5, 1.0, -1.0])

        def __call__(self, X):
            return self.amplitude * tf.sin(X[..., :1])

    return Wave()


MEAN_FUNCTIONS = {
    "Constant": lambda: mean_functions.Constant(0.3),
    "Constant a task": lambda: mean_functions.Constant([0.3, -0.5, 2.0]),
    "Linear": lambda: mean_functions.Linear(np.ones((2, 3)), np.zeros(3)),
    "Polynomial": lambda: mean_functions.Polynomial(2, 2, 3),
    "sum": lambda: mean_functions.Constant(0.3) + mean_functions.Linear(np.ones((2, 1))),
    "own": own_mean_function,
}


@pytest.mark.parametrize("name", MEAN_FUNCTIONS)
def test_gradients_reach_mean_functions(rng, name):
    X, Y = rng.normal(size=(9, 2)), rng.normal(size=(9, 3))
    mean = MEAN_FUNCTIONS[name]()
    model = CoolMTGP((X, Y), SE(), mean)
    loss, gradients = loss_and_gradients(model)
    assert_loss(model, loss, Y - mean(X).numpy())
    assert_gradients_are_right(rng, model, gradients)
    names = [variable.ref() for variable in model.trainable_variables]
    reached = [gradients[names.index(v.ref())] for v in mean.trainable_variables]
    assert all(np.abs(gradient).max() > 1e-6 for gradient in reached)


def test_mean_functions_train(rng):
    """Far from zero, a mean function finds the offset and the slope, and predicts with them."""
    X = rng.uniform(-1, 1, size=(30, 1))
    Y = np.hstack([5.0 + 2.0 * X, -3.0 - 1.0 * X]) + 0.1 * rng.normal(size=(30, 2))
    mean = mean_functions.Linear(np.zeros((1, 2)), np.zeros(2))
    model = CoolMTGP((X, Y), SE(lengthscales=0.3), mean)
    gpflow.set_trainable(model.kernel.lengthscales, False)
    fit = gpflow.optimizers.Scipy().minimize
    fit(model.training_loss, model.trainable_variables, options={"maxiter": 60})
    assert_allclose(mean.b, [5.0, -3.0], atol=0.1)
    assert_allclose(mean.A, [[2.0, -1.0]], atol=0.2)
    far = np.array([[200.0]])  # where only the mean function is left
    assert_allclose(model.predict_f(far)[0], mean(far), rtol=1e-12)


# Degenerate data ----------------------------------------------------------------------------------


def copies(rng):
    y = rng.normal(size=(8, 1))
    return rng.normal(size=(8, 2)), np.hstack([y, y, y])


def combinations(rng):
    A = rng.normal(size=(8, 2))
    return rng.normal(size=(8, 2)), np.hstack([A, A @ rng.normal(size=(2, 2))])


def no_noise_line(rng):
    X = np.linspace(0, 1, 10)[:, None]
    return X, np.hstack([X, 2.0 * X, 1.0 - X])


DEGENERATE = {
    "copies": copies,
    "combinations": combinations,
    "constant targets": lambda rng: (rng.normal(size=(6, 2)), np.tile([1.0, 2.0, -3.0], [6, 1])),
    "a zero task": lambda rng: (rng.normal(size=(6, 2)), rng.normal(size=(6, 3)) * [1.0, 0.0, 1.0]),
    "all zero": lambda rng: (rng.normal(size=(6, 2)), np.zeros((6, 2))),
    "more tasks than rows": lambda rng: (rng.normal(size=(3, 2)), rng.normal(size=(3, 6))),
    "one row": lambda rng: (rng.normal(size=(1, 2)), rng.normal(size=(1, 3))),
    "one number": lambda rng: (np.ones((1, 1)), np.ones((1, 1))),
    "equal rows": lambda rng: (np.ones((7, 2)), rng.normal(size=(7, 3))),
    "exact line": no_noise_line,
}


def assert_all_finite(*values):
    for value in values:
        assert np.isfinite(np.asarray(value)).all()


def assert_psd(S):
    assert_allclose(S, S.T, rtol=0, atol=0)
    lowest = np.linalg.eigvalsh(S)[0]
    assert lowest >= -1e-12 * np.trace(S), lowest


def assert_sound(model, Xnew):
    """Everything is finite, covariances are covariances, and the evidence is the dense one."""
    loss, gradients = loss_and_gradients(model)
    assert_all_finite(loss, *gradients)
    parameters = model.multitask_parameters()
    assert_all_finite(*parameters, *model.leave_one_out(), model.task_correlation())
    C, Sigma = parameters.C.numpy(), parameters.Sigma.numpy()
    assert_psd(C)
    assert_psd(Sigma)
    posterior = model.posterior()
    for full_cov, full_output_cov in LAYOUTS:
        mean, var = posterior.predict_f(Xnew, full_cov, full_output_cov)
        assert_all_finite(mean, var, *posterior.predict_y(Xnew, full_cov, full_output_cov))
        assert_all_finite(posterior.predict_log_density(Xnew, mean, full_cov, full_output_cov))
        assert full_cov or full_output_cov or np.all(var.numpy() >= 0)
    assert_all_finite(model.predict_y_samples(Xnew, 2))
    X, Y = (part.numpy() for part in model.data)
    evidence = ref.log_evidence(model.kernel(X).numpy(), Y, C, Sigma)
    assert_allclose(model.log_marginal_likelihood(), evidence, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_data(rng, name):
    """At the start, and where training goes with such data: noise at its bound, no amplitude."""
    X, Y = DEGENERATE[name](rng)
    model = CoolMTGP((X, Y), SE())
    Xnew = np.vstack([X[:1], rng.normal(size=(2, X.shape[1]))])
    assert_sound(model, Xnew)
    model.sigma2.unconstrained_variable.assign(np.full(model.num_tasks, -40.0))
    assert_sound(model, Xnew)
    amplitudes = model.b.unconstrained_variable
    amplitudes.assign(np.where(np.arange(model.num_tasks) > 0, -40.0, amplitudes))
    for model.learning in LEARNINGS:
        assert_all_finite(*loss_and_gradients(model)[1], *model.multitask_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a zero task", "more tasks than rows"])
def test_degenerate_data_trains(rng, name):
    X, Y = DEGENERATE[name](rng)
    model = CoolMTGP((X, Y), SE())
    before = model.training_loss().numpy()
    fit = gpflow.optimizers.Scipy().minimize
    fit(model.training_loss, model.trainable_variables, options={"maxiter": 40})
    assert model.training_loss().numpy() < before
    assert_sound(model, X[:2])


def test_leaving_out_the_only_row_leaves_the_prior(rng):
    X, Y = rng.normal(size=(1, 2)), rng.normal(size=(1, 3))
    model = CoolMTGP((X, Y), SE(variance=1.5))
    left_out = model.leave_one_out()
    C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()
    assert_allclose(left_out.mean, np.zeros((1, 3)), atol=1e-9)
    assert_allclose(left_out.cov, [1.5 * C + Sigma], rtol=1e-8)


def test_copies_are_predicted_alike(rng):
    X, Y = copies(rng)
    model = CoolMTGP((X, Y), SE())
    fit = gpflow.optimizers.Scipy().minimize
    fit(model.training_loss, model.trainable_variables, options={"maxiter": 100})
    mean = model.predict_f(rng.normal(size=(4, 2)))[0].numpy()
    assert_allclose(mean[:, 1:], mean[:, :1] * np.ones((1, 2)), rtol=0.02, atol=0.02)
    assert np.min(model.noise_correlation()) > 0.9
