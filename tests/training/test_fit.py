"""`fit`: the same optimum from every optimiser, and nothing lost whatever happens on the way."""

import gc
import os
import signal
import weakref

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool import CoolMTGP, SparseCoolMTGP
from gpflow_cool.callbacks import Callback
from gpflow_cool.chain import newton
from gpflow_cool.chain.starting import half_median_distance
from gpflow_cool.training import optimizers, starts
from gpflow_cool.training.fit import failure_message
from gpflow_cool.training.profiled import ProfiledChain


@pytest.fixture(name="data")
def _data(rng):
    """Forty rows of three smooth tasks, the last nearly a mixture of the others."""
    X = rng.uniform(-2, 2, size=[40, 2])
    F = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1]), X[:, 0] * X[:, 1] / 2], axis=1)
    shared = rng.normal(size=[40, 1])
    return X, F + 0.2 * shared + 0.2 * rng.normal(size=[40, 3])


def make(data, **options):
    return CoolMTGP(data, gpflow.kernels.SquaredExponential(), **options)


def values(model):
    return [p.numpy() for p in model.parameters]


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


def failing(monkeypatch, attempts):
    """Let L-BFGS fail in some attempts as a factorisation does."""
    original = optimizers.lbfgs

    def lbfgs(vector, unit, run, steps, evaluate):
        if run.restart in attempts:
            raise tf.errors.InvalidArgumentError(None, None, "Cholesky was not successful")
        return original(vector, unit, run, steps, evaluate)

    monkeypatch.setattr(optimizers, "lbfgs", lbfgs)


def test_a_failed_attempt_is_reported_and_the_others_count(data, monkeypatch):
    failing(monkeypatch, {0, 2})
    model = make(data)
    history = model.fit(restarts=2, seed=0, verbose=0)
    assert [text.startswith("failed: Cholesky") for text in history.attempts] == [True, False, True]
    assert "2 of 3 attempts failed" in history.message
    assert_allclose(model.training_loss(), min(history.history["loss"]), rtol=1e-9)


def test_if_all_attempts_fail_the_error_says_what_was_tried(data, monkeypatch):
    failing(monkeypatch, {0, 1})
    model = make(data)
    with pytest.raises(
        RuntimeError, match="failed in every one of 2 attempts(.|\n)*attempt 1: fai"
    ):
        model.fit(restarts=1, seed=0, verbose=0)
    assert np.isfinite(model.training_loss())


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


class Breaking(gpflow.kernels.SquaredExponential):
    """A kernel that is not finite beyond a lengthscale."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def K(self, X, X2=None):
        infinite = tf.where(self.lengthscales > self.limit, np.inf, 1.0)
        return tf.cast(infinite, X.dtype) * super().K(X, X2)


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


@pytest.mark.parametrize("optimizer", ["profile", "scipy"])
def test_a_kernel_without_a_finite_matrix_is_told(data, optimizer):
    model = CoolMTGP(data, Breaking(1.5), engine="spectral")
    model.kernel.lengthscales.assign(2.0)
    gpflow.set_trainable(model.kernel.lengthscales, False)
    with pytest.raises(ValueError, match="attempt 0: failed: The kernel matrix has entries"):
        model.fit(optimizer, verbose=0)


def test_a_mistake_in_the_inner_problem_is_not_taken_for_a_failed_fit(data, monkeypatch):
    def mistake(*args):
        raise ValueError("shapes do not match")

    monkeypatch.setattr(newton, "task_terms", mistake)
    with pytest.raises(ValueError, match="shapes do not match"):
        make(data).fit(verbose=0)


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


def test_a_failure_is_told_without_tensorflows_words():
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.debugging.check_numerics(tf.constant(np.nan), "S has no factor: give more noise.")
    assert failure_message(caught.value) == "S has no factor: give more noise."


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["profile", "scipy", "adam"])
@pytest.mark.parametrize("restarts", [0, 2])
def test_an_error_of_a_callback_stays_what_it_is(data, optimizer, restarts):
    """Not "Training failed", and no restart."""
    calls = []

    class Mistake(Callback):
        def on_epoch_end(self, epoch, logs):
            calls.append(epoch)
            raise np.linalg.LinAlgError("my own mistake")

    with pytest.raises(np.linalg.LinAlgError, match="^my own mistake$"):
        make(data).fit(optimizer, restarts=restarts, verbose=0, callbacks=[Mistake()])
    assert calls == [0]


@pytest.mark.slow
def test_restarts_repeat_themselves_without_a_seed(data):
    histories = [make(data).fit(restarts=1, verbose=0) for _ in range(2)]
    assert_array_equal(histories[0].history["loss"], histories[1].history["loss"])


@pytest.mark.parametrize("sparse", [False, True])
def test_a_model_built_inside_a_strategy_is_refused(data, sparse):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        kernel = gpflow.kernels.SquaredExponential()
        model = SparseCoolMTGP(data, kernel, data[0][:5]) if sparse else CoolMTGP(data, kernel)
    with pytest.raises(ValueError, match="built inside the scope of a tf.distribute.Strategy"):
        model.fit(verbose=0)


def test_a_loss_that_is_no_number_leaves_the_best_parameters(data):
    model = make(data)
    before = float(model.training_loss())
    with pytest.raises(RuntimeError, match="the loss became nan"):
        model.fit(tf_keras.optimizers.SGD(1e300), steps=5, verbose=0)
    assert np.isfinite(model.training_loss()) and model.training_loss() <= before


@pytest.mark.parametrize("optimizer", ["profile", "scipy", "adam"])
def test_interrupt_stops_after_the_step_and_keeps_the_best(data, optimizer):
    model = make(data)

    class Interrupt(tf_keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    history = model.fit(optimizer, callbacks=[Interrupt()], verbose=0)
    assert len(history.epoch) <= 3
    assert "Ctrl-C" in history.message and not history.converged and history.interrupted
    assert_allclose(model.training_loss(), min(history.history["loss"]), rtol=1e-6)
    assert signal.getsignal(signal.SIGINT) is before


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


@pytest.mark.parametrize(
    "options, text",
    [
        ({"optimizer": "newton"}, "optimizer='newton' is not known"),
        ({"optimizer": 3}, "optimizer=3 is not known"),
        ({"steps": 0}, "steps=0 must be a whole number"),
        ({"steps": -3}, "steps=-3 must be a whole number"),
        ({"restarts": -1}, "restarts=-1 must be a whole number"),
        ({"callbacks": [print]}, r"callbacks\[0\] is .* not a Keras callback object"),
        ({"seed": "x"}, "seed"),
        ({"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ({"tolerance": None}, "tolerance=None must be a number of at least 0"),
        ({"tolerance": "small"}, "tolerance='small' must be a number"),
    ],
)
def test_bad_input_is_refused_at_once(data, options, text):
    model = make(data)
    before = values(model)
    with pytest.raises(ValueError, match=text):
        model.fit(verbose=0, **options)
    for one, other in zip(values(model), before, strict=True):
        assert_array_equal(one, other)


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


def test_noise_at_its_bound_is_told_in_the_history(rng):
    X = np.linspace(0, 6, 20)[:, None]
    exact = np.hstack([np.sin(X), np.cos(X)])
    for Y, at_bound in ((exact, True), (exact + 0.3 * rng.normal(size=exact.shape), False)):
        history = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential()).fit(verbose=0)
        assert ("; sigma2 of every task is at its lower bound" in history.message) is at_bound


def test_tasks_that_others_explain_without_noise_are_named_in_the_history(rng):
    """Ten rows of eight tasks: the last tasks are sums of the first ones."""
    X = rng.normal(size=(10, 1))
    first = rng.normal(size=(10, 3))
    Y = np.hstack([first, first @ rng.normal(size=(3, 5))])
    model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential())
    message = model.fit(verbose=0).message
    bound = model.sigma2.transform.forward(np.full(8, -1e9)).numpy()
    first, *others = np.flatnonzero(model.sigma2.numpy() <= 1.01 * bound)
    assert 2 < len(others) < 7
    assert f"; the noise, sigma2, of task_{first}, " in message
    assert f" and {len(others) - 2} more is at its lower bound" in message
    assert "too many for so few rows" in message


def test_a_task_without_noise_among_many_rows(rng):
    """A constant target has a message of its own, and is not counted here."""
    X = rng.normal(size=(30, 1))
    Y = np.hstack([rng.normal(size=(30, 1)), X, np.ones((30, 1))])
    data = tuple(tf.Variable(part, trainable=False) for part in (X, Y))  # as Trieste has them
    message = CoolMTGP(data, gpflow.kernels.SquaredExponential()).fit(verbose=0).message
    assert "; the noise, sigma2, of task_1 is at its lower bound" in message
    assert "so few rows" not in message


def test_data_that_teach_nothing_are_told_in_the_history(rng):
    X, Y = rng.normal(size=(5, 1)), np.tile([1.0, 2.0, 0.0], (5, 1))
    Y[:, 0] = [1.0, -0.5, 0.3, -1.2, 0.8]
    for rows, text in [
        (5, "; the targets of task_1, task_2 never change, and nothing can be learnt from them"),
        (1, "; there is one row, which cannot tell noise from signal: more rows are needed"),
    ]:
        model = CoolMTGP((X[:rows], Y[:rows]), gpflow.kernels.SquaredExponential())
        assert text in model.fit(verbose=0, steps=2).message
    assert "never" not in CoolMTGP((X, Y[:, :1]), model.kernel).fit(verbose=0, steps=2).message
