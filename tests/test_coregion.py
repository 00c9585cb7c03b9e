"""Models to and from GPflow's coregionalization."""

import warnings

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from coregionalized import augmented, coregion_gpr, sorted_rows
from gpflow.kernels import Coregion, Linear, Matern32, SquaredExponential
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_close, random_problem

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.coregion import from_coregion

# The swapped-in model -----------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [CoolMTGP, KroneckerMTGP])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_swapped_in_model(rng, cls, column):
    """The same as from data in our own layout; its answers are entries of our own."""
    p = random_problem(rng, 7, 3)
    dims = [d for d in range(3) if d != column]
    X_aug, Y_aug = augmented(p.X, p.Y, column, rng.permutation(21))
    base = SquaredExponential(1.3, 1.5, active_dims=dims)
    gpr = coregion_gpr(X_aug, Y_aug, base, 3, column)
    model = cls.from_coregion(gpr, task_names=["a", "b", "c"])
    assert type(model) is cls and model.task_names == ("a", "b", "c")
    expected = cls((p.X, p.Y), p.gpflow_kernel())
    assert_close(model.training_loss(), expected.training_loss())
    Xnew_aug, _ = augmented(p.Xnew, p.Ynew, column, rng.permutation(9))
    tasks = Xnew_aug[:, column].astype(int)
    Xnew = np.delete(Xnew_aug, column, axis=1)
    for noise, predict in [(False, expected.predict_f), (True, expected.predict_y)]:
        actual = model.predict_coregion(Xnew_aug, noise=noise)
        for part, full in zip(actual, predict(Xnew), strict=True):
            assert part.shape == (9, 1)
            assert_close(part[:, 0], full.numpy()[np.arange(9), tasks], rtol=1e-9)
    model.kernel.lengthscales.assign(0.2)
    assert base.lengthscales.numpy() == pytest.approx(1.5, rel=1e-14)
    if cls is CoolMTGP:
        assert_close(
            model.to_exact().predict_coregion(Xnew_aug)[0],
            model.predict_coregion(Xnew_aug)[0],
            rtol=1e-7,
        )


def test_predict_coregion_in_a_graph_and_its_gradient(rng):
    p = random_problem(rng, 6, 2)
    X_aug, Y_aug = augmented(p.X, p.Y)
    base = SquaredExponential(active_dims=[0, 1])
    model = KroneckerMTGP.from_coregion(coregion_gpr(X_aug, Y_aug, base, 2, 2))
    mean, variance = tf.function(model.predict_coregion, autograph=False)(tf.constant(X_aug))
    for a, e in zip((mean, variance), model.predict_coregion(X_aug), strict=True):
        assert_close(a, e, rtol=1e-8)


def test_predict_coregion_errors(rng):
    p = random_problem(rng, 6, 2)
    model = CoolMTGP((p.X, p.Y), p.gpflow_kernel())
    for shape in [(5, 2), (5, 4), (3,), (2, 5, 3)]:
        text = r"X_aug has shape .*, but 2 inputs and the number of the task .* pass \[M, 3\]"
        with pytest.raises(ValueError, match=text):
            model.predict_coregion(np.zeros(shape))
    for task in (2.0, -1.0, 0.5):
        with pytest.raises(ValueError, match=f"Row 1 has task {task}: tasks are numbered 0 to 1"):
            model.predict_coregion(np.array([[0.0, 0.0, 1.0], [0.0, 0.0, task]]))
    with pytest.raises(ValueError, match=r"X_aug\[0, 1\] is nan. Every entry must be finite"):
        model.predict_coregion(np.array([[0.0, np.nan, 1.0]]))


def test_mean_functions_come_along(rng):
    """One of the rows of the augmented layout: constant, linear, and one per task."""
    p = random_problem(rng, 6, 2)
    X_aug, Y_aug = augmented(p.X, p.Y, order=rng.permutation(12))
    A, b = rng.normal(size=(3, 1)), rng.normal(size=1)
    switched = gpflow.mean_functions.SwitchedMeanFunction(
        [gpflow.mean_functions.Constant(1.0), gpflow.mean_functions.Constant(-2.0)]
    )
    for mean_function, expected in [
        (gpflow.mean_functions.Constant(0.7), np.full((3, 2), 0.7)),
        (
            gpflow.mean_functions.Linear(A, b),
            p.Xnew @ A[:2] + b + A[2] * np.arange(2),  # the task is a number to it
        ),
        (switched, np.tile([1.0, -2.0], (3, 1))),
    ]:
        base = SquaredExponential(active_dims=[0, 1])
        gpr = coregion_gpr(X_aug, Y_aug, base, 2, 2, mean_function=mean_function)
        model = CoolMTGP.from_coregion(gpr)
        assert_close(model.mean_function(p.Xnew), expected, rtol=1e-12)
        mean, _ = model.predict_f(1e3 + p.Xnew)  # far from the data nothing else is left
        assert_close(mean, model.mean_function(1e3 + p.Xnew), rtol=1e-9)
    other = CoolMTGP.from_coregion(gpr, mean_function=gpflow.mean_functions.Constant(9.0))
    assert_close(other.mean_function(p.Xnew), np.full((3, 1), 9.0), rtol=1e-12)


def test_variational_model_with_switched_likelihood(rng):
    """Y has a second column there, the number of the likelihood."""
    p = random_problem(rng, 6, 2)
    X_aug, Y_aug = augmented(p.X, p.Y, order=rng.permutation(12))
    likelihood = gpflow.likelihoods.SwitchedLikelihood(
        [gpflow.likelihoods.Gaussian(), gpflow.likelihoods.Gaussian()]
    )
    vgp = gpflow.models.VGP(
        (X_aug, np.hstack([Y_aug, X_aug[:, 2:]])),
        SquaredExponential(active_dims=[0, 1]) * Coregion(2, 1, active_dims=[2]),
        likelihood,
    )
    model = CoolMTGP.from_coregion(vgp)
    assert_array_equal(sorted_rows(*map(np.asarray, model.data)), sorted_rows(p.X, p.Y))


def test_models_that_are_refused(rng):
    with pytest.raises(ValueError, match="is not a GPflow model with a kernel and data, such as"):
        from_coregion("model")
    svgp = gpflow.models.SVGP(
        SquaredExponential(active_dims=[0]) * Coregion(2, 1, active_dims=[1]),
        gpflow.likelihoods.Gaussian(),
        np.zeros((2, 2)),
    )
    with pytest.raises(ValueError, match="is not a GPflow model with a kernel and data, such as"):
        CoolMTGP.from_coregion(svgp)
    X_aug, Y_aug = augmented(np.arange(3.0)[:, None], rng.normal(size=(3, 2)))
    base = SquaredExponential(active_dims=[0])
    with pytest.raises(ValueError, match="No row has task 2, .*output_dim=3: use output_dim=2."):
        CoolMTGP.from_coregion(coregion_gpr(X_aug, Y_aug, base, 3, 1))
    with pytest.raises(ValueError, match="No row has task 1, .*: number the tasks 0 to 1, and use"):
        CoolMTGP.from_coregion(coregion_gpr(X_aug * [1, 2], Y_aug, base, 3, 1))
    X_aug[2, 1] = 0.5
    with pytest.raises(ValueError, match="Row 2 has task 0.5: tasks are numbered 0 to 1"):
        CoolMTGP.from_coregion(coregion_gpr(X_aug, Y_aug, base, 2, 1))


# GPflow's tutorial --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("D", [1, 10])
def test_tutorial(rng, D):
    """
    GPflow's notebook on coregionalization with inputs shared, and its model lines replaced.

    The replacement's errors are as small as the noise, as those of what it replaces.
    """

    def f(X):
        x = X @ np.full((D, 1), 6.0 if D == 1 else 2.0 / np.sqrt(D))
        return np.hstack([np.sin(x), np.sin(x + 0.7)])

    num_rows = 40
    X = rng.uniform(size=(num_rows, D))
    Y = f(X) + rng.normal(size=(num_rows, 2)) * [0.1, 0.2]
    X_augmented = np.vstack(
        (np.hstack((X, np.zeros((num_rows, 1)))), np.hstack((X, np.ones((num_rows, 1)))))
    )
    Y_augmented = np.vstack((Y[:, :1], Y[:, 1:]))
    Xnew = rng.uniform(size=(200, D))
    Xnew_augmented = np.vstack(
        (np.hstack((Xnew, np.zeros((200, 1)))), np.hstack((Xnew, np.ones((200, 1)))))
    )
    truth = f(Xnew).reshape(-1, 1, order="F")

    k = Matern32(active_dims=list(range(D)))
    coreg = Coregion(output_dim=2, rank=1, active_dims=[D])
    kern = k * coreg
    m = gpflow.models.GPR((X_augmented, Y_augmented), kernel=kern)
    swapped = CoolMTGP.from_coregion(m)  # the model line that replaces the one above

    gpflow.optimizers.Scipy().minimize(
        m.training_loss, m.trainable_variables, options={"maxiter": 100}, method="L-BFGS-B"
    )
    swapped.fit(verbose=0)  # and the optimiser's
    errors = []
    for mean, variance in [
        m.predict_f(Xnew_augmented),
        swapped.predict_coregion(Xnew_augmented),
    ]:
        assert mean.shape == variance.shape == (400, 1)
        errors.append(np.sqrt(np.mean((mean - truth) ** 2)))
        assert np.mean(np.abs(mean - truth) < 3 * np.sqrt(variance)) > 0.9
    assert max(errors) < (0.12 if D == 1 else 0.25)  # the targets' deviations are 0.7 and 0.5
    assert swapped.task_covariance().shape == coreg.output_covariance().shape


# Back to GPflow -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [None, 1])
def test_export_with_independent_noise_predicts_the_same(rng, rank):
    """C of any rank, noise with one variance a task, a mean function, kernels by columns."""
    p = random_problem(rng, 7, 3)
    A = rng.normal(size=(3, rank or 3))
    C, Sigma = A @ A.T, np.diag([0.1, 0.3, 0.5])
    kernel = SquaredExponential(active_dims=[1]) + Linear(0.3)
    constant = gpflow.mean_functions.Constant([1.0, -2.0, 3.0])
    model = KroneckerMTGP.ground_truth((p.X, p.Y), kernel, C, Sigma, mean_function=constant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpr = model.to_coregion_gpr()
    assert_allclose(
        gpr.maximum_log_likelihood_objective(), model.log_marginal_likelihood(), rtol=1e-6
    )
    Xnew_aug, _ = augmented(p.Xnew, p.Ynew, order=rng.permutation(9))
    for noise, predict in [(False, gpr.predict_f), (True, gpr.predict_y)]:
        for a, e in zip(
            model.predict_coregion(Xnew_aug, noise=noise), predict(Xnew_aug), strict=True
        ):
            assert_allclose(a, e, atol=1e-6)
    # And back again: the same data, kernel and mean.
    back = KroneckerMTGP.from_coregion(gpr, task_covariance=C, noise_covariance=Sigma)
    assert_allclose(back.log_marginal_likelihood(), model.log_marginal_likelihood(), rtol=1e-9)
    gpr.mean_function.inner.c.assign([0.0, 0.0, 0.0])
    assert_array_equal(constant.c, [1.0, -2.0, 3.0])


def test_export_says_that_noise_is_lost(rng):
    p = random_problem(rng, 7, 2)
    C, Sigma = np.eye(2), np.array([[1.0, 0.6], [0.6, 4.0]])
    model = KroneckerMTGP.ground_truth((p.X, p.Y), p.gpflow_kernel(), C, Sigma)
    text = "correlations of up to 0.30 between the noises of two tasks are not carried over"
    with pytest.warns(UserWarning, match=text) as caught:
        gpr = model.to_coregion_gpr()
    assert caught[0].filename == __file__  # points at the user's own line
    expected = ref.log_evidence(p.K, p.Y, C, np.diag([1.0, 4.0]))
    assert_allclose(gpr.maximum_log_likelihood_objective(), expected, rtol=1e-6)


def test_exported_model_trains(rng):
    X = rng.uniform(size=(15, 1))
    Y = np.hstack([np.sin(6 * X), np.cos(6 * X)]) + 0.2 * rng.normal(size=(15, 2))
    model = KroneckerMTGP((X, Y), SquaredExponential(lengthscales=0.3), noise_rank="diagonal")
    gpr = model.to_coregion_gpr()
    before = gpr.training_loss().numpy()
    gpflow.optimizers.Scipy().minimize(
        gpr.training_loss, gpr.trainable_variables, options={"maxiter": 10}
    )
    assert gpr.training_loss().numpy() < before - 0.1


def test_export_in_float32(rng):
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        p = random_problem(rng, 6, 2)
        model = KroneckerMTGP((p.X, p.Y), SquaredExponential(), noise_rank="diagonal")
        gpr = model.to_coregion_gpr()
        assert_close(gpr.log_marginal_likelihood(), model.log_marginal_likelihood(), rtol=1e-3)


def vgp(rng, likelihood):
    """A GPflow model of two tasks with a likelihood for each."""
    X_aug, Y = augmented(rng.uniform(size=(5, 1)), rng.normal(size=(5, 2)))
    Y = np.hstack([Y, X_aug[:, 1:]])  # the number of the likelihood
    kernel = SquaredExponential(active_dims=[0]) * Coregion(2, 1, active_dims=[1])
    return gpflow.models.VGP((X_aug, Y), kernel, likelihood, num_latent_gps=1)


def test_a_likelihood_that_becomes_gaussian_is_named(rng):
    Gaussian, StudentT = gpflow.likelihoods.Gaussian, gpflow.likelihoods.StudentT
    Switched = gpflow.likelihoods.SwitchedLikelihood
    for likelihood in (StudentT(), Switched([Gaussian(), StudentT()])):
        with pytest.warns(UserWarning, match="likelihood, StudentT, becomes Gaussian") as caught:
            CoolMTGP.from_coregion(vgp(rng, likelihood))
        assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CoolMTGP.from_coregion(vgp(rng, Switched([Gaussian(), Gaussian(0.5)])))


@pytest.mark.slow
def test_a_plain_loop_where_targets_are_missing_is_warned_and_fit_reaches_more(rng):
    """Tasks at different inputs: the loop sees the first guess of the missing targets only."""
    x = np.sort(rng.uniform(0.0, 4.0, size=60))
    tasks = np.arange(60) % 2
    X_aug = np.stack([x, tasks], axis=1)
    y = np.sin(3.0 * x) * np.where(tasks, -0.8, 1.0) + 0.05 * rng.normal(size=60)
    gpr = coregion_gpr(X_aug, y[:, None], SquaredExponential(active_dims=[0]), 2, 1)
    with pytest.warns(UserWarning, match="No row has targets of both task_0 and task_1"):
        loop, fitted = (CoolMTGP.from_coregion(gpr) for _ in range(2))
    with pytest.warns(UserWarning, match="Targets are missing, and training_loss sees"):
        gpflow.optimizers.Scipy().minimize(loop.training_loss, loop.trainable_variables)
    fitted.fit(verbose=0)
    assert fitted.log_marginal_likelihood() > loop.log_marginal_likelihood()
