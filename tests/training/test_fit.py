"""`fit`: the same optimum from every optimiser and every start, and what it leaves alone."""

import gc
import weakref

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp
from fits import Breaking, make, values
from gpflow.keras import tf_keras
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool import CoolMTGP, SparseCoolMTGP
from gpflow_cool.chain.starting import half_median_distance
from gpflow_cool.training import starts
from gpflow_cool.training.profiled import ProfiledChain


@pytest.mark.slow
@pytest.mark.parametrize("learning", ["hierarchical", "approximate"])
def test_profile_and_scipy_and_gpflows_own_loop_end_at_the_same_optimum(data, learning):
    models = [make(data, learning=learning) for _ in range(4)]
    models[0].fit(verbose=0)
    models[1].fit("scipy", verbose=0)
    models[2].fit(gpflow.optimizers.Scipy(), verbose=0)
    own = models[3]
    gpflow.optimizers.Scipy().minimize(own.training_loss, own.trainable_variables)
    losses = [float(model.training_loss()) for model in models]
    assert_allclose(losses, losses[0], atol=1e-3)
    for model in models[1:]:
        for one, other in zip(values(models[0]), values(model), strict=True):
            assert_allclose(one, other, rtol=2e-2)


@pytest.mark.slow
def test_adam_ends_at_the_same_optimum(data):
    best, model = make(data), make(data)
    best.fit(verbose=0)
    model.kernel.lengthscales.assign(best.kernel.lengthscales)
    model.fit(tf_keras.optimizers.Adam(0.1), steps=400, verbose=0)
    assert_allclose(model.training_loss(), best.training_loss(), atol=1e-2)


@pytest.mark.slow
def test_history_tells_what_happened(data):
    model = make(data, task_names=["a", "b", "c"])
    history = model.fit("scipy", verbose=0)
    loss = history.history["loss"]
    terms = [history.history[f"terms/{name}"] for name in "abc"]
    assert_allclose(-np.sum(terms, axis=0), loss, rtol=1e-12)
    assert_allclose(min(loss), model.training_loss(), rtol=1e-12)
    assert np.all(np.diff(history.history["seconds"]) > 0)
    assert history.history["gradient_norm"][-1] < 0.1 * history.history["gradient_norm"][0]
    assert history.epoch == list(range(len(loss)))
    assert history.converged and "CONVERGENCE" in history.message
    assert history.params["optimizer"] == "scipy"


@pytest.mark.slow
def test_restarts_with_a_seed_repeat_themselves(data):
    histories = [make(data).fit("profile", restarts=2, seed=7, verbose=0) for _ in range(2)]
    assert histories[0].history["loss"] == histories[1].history["loss"]
    assert set(histories[0].history["restart"]) == {0.0, 1.0, 2.0}
    other = make(data).fit("profile", restarts=2, seed=8, verbose=0)
    first = [h.history["loss"][h.history["restart"].index(1.0)] for h in (histories[0], other)]
    assert abs(first[0] - first[1]) > 1e-6


@pytest.mark.slow
def test_the_best_restart_wins(data):
    model = make(data)
    history = model.fit(restarts=3, seed=0, verbose=0)
    assert_allclose(model.training_loss(), min(history.history["loss"]), rtol=1e-9)
    assert len(history.attempts) == 4


@pytest.mark.parametrize("lengthscales, is_tried", [(1.0, True), ([1.0, 1.0], False)])
def test_only_a_single_lengthscale_is_started_long(data, monkeypatch, lengthscales, is_tried):
    """One for each input would lose inputs that way: a long one has no gradient to come back by."""
    seen, evaluate = [], ProfiledChain.evaluate

    def spy(profile):
        seen.append(profile.model.kernel.lengthscales.numpy())
        return evaluate(profile)

    monkeypatch.setattr(ProfiledChain, "evaluate", spy)
    model = CoolMTGP(data, gpflow.kernels.SquaredExponential(lengthscales=lengthscales))
    model.fit(steps=1, verbose=0)
    centre = half_median_distance(data[0])
    assert_allclose(seen[1], np.full_like(seen[1], centre))
    assert is_tried == any(np.allclose(tried, starts.LONG_LENGTHSCALE * centre) for tried in seen)


@pytest.mark.slow
def test_a_fit_finds_the_optimum_at_long_lengthscales():
    """A line with a wiggle: a lengthscale of 0.7 fits the wiggle, and a long one fits better."""
    rng = np.random.default_rng(39)
    X = rng.uniform(-3.0, 3.0, size=(25, 1))
    Y = np.hstack([X, -X]) / 1.7 + 0.25 * np.sin(4.0 * X) + 0.2 * rng.normal(size=(25, 2))
    models = [CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=0.3)) for _ in "ab"]
    profile, losses = models[0].profile(), []
    for lengthscale in np.geomspace(0.1, 100.0, 60):
        models[0].kernel.lengthscales.assign(lengthscale)
        losses.append(profile.evaluate().loss)
    models[1].fit(verbose=0)
    assert models[1].training_loss() <= min(losses) + 1e-3
    assert np.sum(np.diff(np.sign(np.diff(losses))) > 0) == 2  # two minima


class Python(gpflow.kernels.SquaredExponential):
    """A kernel that cannot be compiled."""

    def K(self, X, X2=None):
        if self.lengthscales > 0:
            return super().K(X, X2)
        raise ValueError


def bounded():
    kernel = gpflow.kernels.SquaredExponential()
    low, high = np.float64(0.1), np.float64(2.0)
    kernel.lengthscales = gpflow.Parameter(1.0, transform=tfp.bijectors.Sigmoid(low, high))
    return kernel


@pytest.mark.parametrize("kernel", [lambda: Breaking(3.0), Python, bounded])
def test_odd_kernels_end_where_a_plain_one_does(rng, kernel):
    """Long lengthscales, which are tried, may not be allowed, and a kernel may need Python."""
    X = rng.uniform(-2.0, 2.0, size=(40, 2))
    Y = np.hstack([np.sin(2.0 * X), np.cos(X[:, :1])]) + 0.1 * rng.normal(size=(40, 3))
    models = [CoolMTGP((X, Y), k) for k in (kernel(), gpflow.kernels.SquaredExponential())]
    losses = [min(model.fit(verbose=0).history["loss"]) for model in models]
    assert models[1].kernel.lengthscales < 1.9
    assert_allclose(losses[0], losses[1], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_a_model_is_gone_when_nobody_holds_it(data, sparse):
    """TensorFlow keeps functions that a graph calls for ever."""
    kernel = gpflow.kernels.SquaredExponential()
    model = SparseCoolMTGP(data, kernel, data[0][:5]) if sparse else CoolMTGP(data, kernel)
    model.fit(verbose=0)
    held = weakref.ref(model)
    del model, kernel
    gc.collect()
    assert held() is None


@pytest.mark.slow
def test_restarts_repeat_themselves_without_a_seed(data):
    histories = [make(data).fit(restarts=1, verbose=0) for _ in range(2)]
    assert_array_equal(histories[0].history["loss"], histories[1].history["loss"])


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
    for one, other in zip(values(model), before, strict=True):
        assert_array_equal(one, other)


@pytest.mark.slow
def test_a_bad_lengthscale_to_start_from_does_no_harm(data):
    good, bad = make(data), make(data)
    bad.kernel.lengthscales.assign(1e-3)
    good.fit(verbose=0)
    bad.fit(verbose=0)
    assert_allclose(bad.training_loss(), good.training_loss(), atol=1e-3)


@pytest.mark.slow
def test_the_number_of_steps_is_kept(data):
    assert len(make(data).fit("adam", steps=4, verbose=0).epoch) <= 5
    history = make(data).fit("scipy", steps=3, verbose=0)
    assert len(history.epoch) == 3 and not history.converged


@pytest.mark.slow
def test_mean_function_and_lengthscales_of_each_input_train(data):
    X, Y = data
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])
    model = CoolMTGP((X, Y + 3.0), kernel, gpflow.mean_functions.Constant(np.zeros(3)))
    model.fit(verbose=0)
    assert np.all(np.abs(model.mean_function.c.numpy() - 3.0) < 1.5)
    first, second = model.kernel.lengthscales.numpy()
    assert first != second
    other = CoolMTGP(
        (X, Y + 3.0),
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.mean_functions.Constant(np.zeros(3)),
    )
    other.fit("scipy", verbose=0)
    assert_allclose(model.training_loss(), other.training_loss(), atol=2e-2)
