"""`fit`: what its history tells, what its options do, and what it leaves alone."""

import gc
import weakref

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from fits import make, values
from gpflow.keras import tf_keras
from numpy.testing import assert_allclose, assert_array_equal
from problems import smooth_data

from gpflow_cool import CoolMTGP, KroneckerMTGP, SparseCoolMTGP

SE = gpflow.kernels.SquaredExponential

GRID_ERROR = 5e-3
"""Nats by which a loss that is interpolated between ratios may differ from the one at its b and
sigma2."""


@pytest.mark.parametrize("optimizer", ["profile", "scipy", "adam"])
def test_history_tells_what_happened(data, optimizer):
    model = make(data, task_names=["a", "b", "c"])
    history = model.fit(optimizer, steps=4, verbose=0)
    kept, loss = history.history, np.array(history.history["loss"])
    terms = sum(np.array(kept[f"terms/{name}"]) for name in "abc")
    assert set(kept) == {"loss", "gradient_norm", "seconds", "terms/a", "terms/b", "terms/c"}
    assert history.epoch == list(range(len(loss))) and 0 < len(loss) <= 4
    # The rest is the prior of lambda, which is largest at 1.
    prior = 4.5 + np.log(3.0 * np.sqrt(2.0 * np.pi))
    assert np.all(loss + terms >= prior - 1e-9)
    last = -float(np.sum(model.conditional_log_likelihoods())) - float(model.log_prior_density())
    assert_allclose(min(loss), last, atol=GRID_ERROR)
    assert np.all(np.diff([0.0, *kept["seconds"]]) > 0)
    assert history.params["optimizer"] == optimizer and history.params["steps"] == 4
    assert not history.interrupted and history.rounds == []


def test_a_fit_that_has_converged_says_so(data):
    history = make(data).fit("scipy", verbose=0)
    norms = history.history["gradient_norm"]
    assert history.converged and "CONVERGENCE" in history.message
    assert norms[-1] < 0.1 * norms[0]


def gamma(parameter):
    parameter.prior = tfp.distributions.Gamma(np.float64(4.0), np.float64(3.0))


def exact(data):
    return KroneckerMTGP(data, SE())


SOLVED = {
    "plain": (make, True),
    "prior of the kernel": (make, True),
    "hierarchical": (lambda data: make(data, learning="hierarchical"), True),
    "inducing points": (lambda data: SparseCoolMTGP(data, SE(), data[0][:5]), True),
    "unit": (lambda data: make(data, weight_prior="unit"), False),
    "prior of b": (make, False),
    "sigma2 fixed": (make, False),
    "exact": (exact, False),
}


@pytest.mark.parametrize("case", SOLVED)
def test_profile_is_scipy_where_b_and_sigma2_are_not_solved_for(data, case):
    build, is_solved = SOLVED[case]
    model = build(data)
    if case == "prior of the kernel":
        gamma(model.kernel.lengthscales)
    if case == "prior of b":
        gamma(model.b)
    if case == "sigma2 fixed":
        gpflow.set_trainable(model.sigma2, False)
    history = model.fit(steps=1, verbose=0)
    assert history.params["optimizer"] == ("profile" if is_solved else "scipy")


@pytest.mark.parametrize("optimizer", ["profile", "scipy", "adam"])
def test_a_second_fit_does_not_raise_the_loss(rng, optimizer):
    model = make(smooth_data(rng))
    before = float(model.training_loss())
    for _ in range(2):
        model.fit(optimizer, steps=6, verbose=0)
        after = float(model.training_loss())
        assert after <= before + GRID_ERROR
        before = after


@pytest.mark.parametrize("restarts", [0, 2])
def test_two_fits_of_the_same_model_are_the_same(data, restarts):
    """Also without a seed, and with one."""
    for seed in (None, 7):
        fits = [make(data).fit(restarts=restarts, seed=seed, verbose=0) for _ in "ab"]
        assert_array_equal(fits[0].history["loss"], fits[1].history["loss"])


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_a_model_is_gone_when_nobody_holds_it(data, sparse):
    """TensorFlow keeps functions that a graph calls for ever."""
    kernel = SE()
    model = SparseCoolMTGP(data, kernel, data[0][:5]) if sparse else CoolMTGP(data, kernel)
    model.fit(verbose=0)
    held = weakref.ref(model)
    del model, kernel
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("optimizer", ["profile", "scipy", "adam"])
def test_frozen_parameters_stay_to_the_last_bit(data, optimizer):
    model = make(data, sigma2=[0.1, 0.2, 0.3])
    gpflow.set_trainable(model.sigma2, False)
    gpflow.set_trainable(model.kernel.lengthscales, False)
    sigma2, b = model.sigma2.numpy(), model.b.numpy()
    model.fit(optimizer, steps=5, verbose=0)
    assert_array_equal(model.sigma2, sigma2)
    assert_array_equal(model.kernel.lengthscales, 1.0)
    assert np.all(model.b.numpy() != b)


def test_nothing_trainable_is_nothing_to_do(data):
    model = make(data)
    gpflow.set_trainable(model, False)
    before = values(model)
    history = model.fit(verbose=0)
    assert "nothing to do" in history.message
    assert_allclose(history.history["loss"], [model.training_loss()])
    for one, other in zip(values(model), before, strict=True):
        assert_array_equal(one, other)


def test_b_and_sigma2_alone_are_solved_for_at_once(data):
    """Then no other parameters do better, wherever they start."""
    model = make(data)
    gpflow.set_trainable(model.kernel, False)
    gpflow.set_trainable(model.weight_variance, False)
    history = model.fit(verbose=0)
    assert history.converged and len(history.epoch) == 1 and "solved" in history.message
    solved = float(model.training_loss())
    model.b.assign(np.full(3, 0.5)), model.sigma2.assign(np.full(3, 0.3))
    model.fit("scipy", verbose=0)
    assert solved <= model.training_loss() + GRID_ERROR


@pytest.mark.parametrize("optimizer", ["profile", "scipy", "adam"])
def test_the_number_of_steps_is_kept(data, optimizer):
    history = make(data).fit(optimizer, steps=2, verbose=0)
    assert len(history.epoch) == 2 and not history.converged


@pytest.mark.parametrize("optimizer", ["profile", "scipy"])
def test_where_no_step_is_better_the_start_is_the_only_step(data, optimizer):
    """Every parameter is fixed but one that nothing depends on."""
    model = make(data)
    gpflow.set_trainable(model, False)
    model.idle = gpflow.Parameter(3.0)
    before = float(model.training_loss())
    history = model.fit(optimizer, verbose=0)
    assert_allclose(history.history["loss"], [before])
    assert_array_equal(model.idle, 3.0)


def gradients_of(model):
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    return [g.numpy() for g in tape.gradient(loss, model.trainable_variables)]


def test_an_optimizer_of_keras_is_used_as_it_is(data):
    """Plain gradient descent: each step moves the variables by the rate times the gradient."""
    model = make(data)
    gpflow.set_trainable(model.kernel, False)  # so that there is one start
    gpflow.set_trainable(model.weight_variance, False)
    before = [variable.numpy() for variable in model.trainable_variables]
    history = model.fit(tf_keras.optimizers.SGD(1e-3), steps=1, verbose=0)
    moved = [v.numpy() - b for v, b in zip(model.trainable_variables, before, strict=True)]
    other = make(data)
    gpflow.set_trainable(other.kernel, False)
    gpflow.set_trainable(other.weight_variance, False)
    gradients = gradients_of(other)
    for actual, gradient in zip(moved, gradients, strict=True):
        assert_allclose(actual, -1e-3 * gradient, rtol=1e-7, atol=1e-12)
    assert history.params["optimizer"] == "sgd"
