"""What models with data in memory do with missing targets, types and warnings."""

import copy
import os
import signal
import warnings

import gpflow
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf
from gpflow.kernels import SquaredExponential
from gpflow.utilities import parameter_dict, tabulate_module_summary
from numpy.testing import assert_allclose, assert_array_equal

import gpflow_cool
from gpflow_cool import ConvMT, CoolMTGP, IndependentGPs, KroneckerMTGP, SparseCoolMTGP
from gpflow_cool.callbacks import Callback, Checkpoint, load_checkpoint
from gpflow_cool.models.data import separate_pairs
from gpflow_cool.monitoring import parameter_values

MODELS = [CoolMTGP, KroneckerMTGP]


@pytest.fixture(name="holes")
def _holes(rng):
    """Two tasks that follow one function; a third of the targets is missing."""
    X = np.sort(rng.uniform(0.0, 4.0, size=(24, 1)), axis=0)
    Y = np.sin(2.0 * X) * [1.0, -0.8] + 0.1 * rng.normal(size=(24, 2))
    Y[::3, 0] = np.nan
    return X, Y


class Interrupt(Callback):
    """Presses Ctrl-C at a step."""

    def __init__(self, step):
        self.step = step

    def on_epoch_end(self, epoch, logs):
        if epoch == self.step:
            os.kill(os.getpid(), signal.SIGINT)


# Completions are no parameter -----------------------------------------------------------------


@pytest.mark.parametrize("Model", MODELS)
def test_completions_are_not_among_the_parameters(holes, Model):
    full = holes[0], np.nan_to_num(holes[1])
    model, complete = (Model(data, SquaredExponential()) for data in (holes, full))
    assert model.completions.shape == (None, 24, 2)
    assert list(parameter_dict(model)) == list(parameter_dict(complete))
    assert list(parameter_values(model)) == list(parameter_values(complete))
    assert len(model.variables) == len(complete.variables)
    assert "completions" not in tabulate_module_summary(model)


@pytest.mark.slow
@pytest.mark.parametrize("Model", MODELS)
def test_completions_are_copied_saved_and_checkpointed(holes, Model, tmp_path):
    model = Model(holes, SquaredExponential())
    model.fit(rounds=2, steps=3, tolerance=0.0, verbose=0)
    expected = model.predict_y(holes[0])[1].numpy()
    twin = copy.deepcopy(model)
    model.save(tmp_path / "model")
    loaded = gpflow_cool.load(tmp_path / "model")
    for other in (twin, loaded):
        assert other.completions is not model.completions
        assert_array_equal(other.completions, model.completions)
        assert_array_equal(other.predict_y(holes[0])[1], expected)
    twin.completions.assign(0.0 * twin.completions)
    assert np.abs(model.completions).max() > 0.1


@pytest.mark.slow
def test_a_checkpoint_has_the_completions(holes, tmp_path):
    """C and Sigma are recovered from them."""
    model, other = (CoolMTGP(holes, SquaredExponential()) for _ in range(2))
    model.fit(rounds=2, steps=3, verbose=0, callbacks=[Checkpoint(tmp_path / "best.npz")])
    load_checkpoint(other, tmp_path / "best.npz")
    assert len(other.completions.numpy()) == len(np.load(tmp_path / "best.npz")[".completions"])
    assert np.abs(other.completions.numpy()[0] - holes[1])[~np.isnan(holes[1])].max() < 1e-12


def test_graphs_follow_the_completions_and_can_be_exported(holes, tmp_path):
    model = CoolMTGP(holes, SquaredExponential())
    objective = tf.function(model.maximum_log_likelihood_objective, autograph=False)
    first = objective().numpy()
    model.completions.assign(model.completions + 0.5)
    assert_allclose(objective(), model.maximum_log_likelihood_objective(), rtol=1e-9)
    assert abs(objective().numpy() - first) > 1e-3
    module = tf.Module()
    module.model = model
    module.objective = objective
    tf.saved_model.save(module, str(tmp_path))
    again = tf.saved_model.load(str(tmp_path))
    assert_allclose(again.objective(), objective(), rtol=1e-9)


# GPflow's loops -------------------------------------------------------------------------------


@pytest.mark.parametrize("Model", MODELS)
@pytest.mark.parametrize("name", ["training_loss", "training_loss_closure"])
def test_a_loop_of_ones_own_is_warned_once(holes, Model, name):
    model = Model(holes, SquaredExponential())
    with pytest.warns(
        UserWarning, match=r"Train with model\.fit\(\), which draws the missing"
    ) as seen:
        getattr(model, name)()
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_allclose(model.training_loss(), model._training_loss(), rtol=1e-12)
        model.training_loss_closure()


@pytest.mark.slow
def test_nobody_else_is_warned(holes):
    """Not a fit, whatever the optimizer, nor a model whose targets are all there."""
    model = CoolMTGP(holes, SquaredExponential())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(gpflow.optimizers.Scipy(), rounds=1, steps=1, verbose=0)
        CoolMTGP((holes[0], np.nan_to_num(holes[1])), SquaredExponential()).training_loss()


@pytest.mark.slow
def test_a_fit_with_missing_targets_repeats_itself(holes):
    models = [CoolMTGP(holes, SquaredExponential()) for _ in range(3)]
    for model, options in zip(models, [{}, {"seed": 0}, {"seed": 1}], strict=True):
        model.fit(rounds=2, steps=3, tolerance=0.0, verbose=0, **options)
    draws = [model.completions.numpy() for model in models]
    assert_array_equal(draws[0], draws[1])
    assert np.abs(draws[0] - draws[2]).max() > 1e-3
    assert_array_equal(models[0].kernel.lengthscales, models[1].kernel.lengthscales)


# Noise that no row can tell -------------------------------------------------------------------


def test_separate_pairs():
    observed = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0, 1, 1, 0]], bool)
    assert separate_pairs(observed) == [(0, 1), (0, 2), (2, 3)]
    assert separate_pairs(np.ones((1, 3), bool)) == []


def separate(rng, num_tasks):
    """Each row has a target of one task only."""
    X = np.linspace(0.0, 1.0, 6 * num_tasks)[:, None]
    Y = np.where(np.arange(len(X))[:, None] % num_tasks == np.arange(num_tasks), 1.0, np.nan)
    return X, Y * rng.normal(size=Y.shape)


@pytest.mark.parametrize("Model", MODELS)
def test_tasks_never_measured_together_are_named(rng, Model):
    with pytest.warns(
        UserWarning, match="^No row has targets of both task_0 and task_1. No"
    ) as seen:
        model = Model(separate(rng, 2), SquaredExponential())
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if Model is CoolMTGP:
            model.to_exact()  # was told already
    with pytest.warns(UserWarning, match="both a and b; a and c; a and d and 3 more pairs"):
        Model(separate(rng, 4), SquaredExponential(), task_names=list("abcd"))


@pytest.mark.parametrize("noise_rank", [0, "diagonal"])
def test_noise_without_correlations_is_no_matter(rng, noise_rank):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KroneckerMTGP(separate(rng, 2), SquaredExponential(), noise_rank=noise_rank)


# Interrupts -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_independent_processes_stop_at_an_interrupt(rng):
    X = rng.uniform(size=(15, 1))
    model = IndependentGPs((X, rng.normal(size=(15, 3))), SquaredExponential())
    before = model.models[2].kernel.lengthscales.numpy()
    first = model.fit(verbose=0)
    assert len(first) == 3 and not any(history.interrupted for history in first)
    for part in model.models:
        part.kernel.lengthscales.assign(before)
    histories = model.fit(verbose=0, callbacks=[Interrupt(0)])
    assert [history.interrupted for history in histories] == [True]
    assert_allclose(model.models[2].kernel.lengthscales, before, rtol=1e-12)


@pytest.mark.slow
def test_an_interrupt_ends_restarts_and_rounds(holes):
    for restarts in (0, 3):
        history = CoolMTGP(holes, SquaredExponential()).fit(
            restarts=restarts, verbose=0, callbacks=[Interrupt(1)]
        )
        assert history.interrupted and not history.converged
        assert len(history.epoch) == 2
        assert "stopped by Ctrl-C at step 1" in history.message


@pytest.mark.slow
def test_a_sparse_variational_model_stops_at_an_interrupt(rng, monkeypatch):
    X = rng.uniform(size=(10, 1))
    model = ConvMT((X, rng.normal(size=(10, 2))), SquaredExponential(), num_inducing=4)
    minimize, calls = scipy.optimize.minimize, []

    def interrupted(function, *args, **options):
        def evaluate(x):
            calls.append(x)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return function(x)

        return minimize(evaluate, *args, **options)

    monkeypatch.setattr(scipy.optimize, "minimize", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore Ctrl-C
    try:
        with pytest.raises(KeyboardInterrupt):
            model.fit(steps=50)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(calls) == 3 and np.isfinite(model.predict_y(X)[0]).all()


# Types ----------------------------------------------------------------------------------------


def make(name, data, kernel):
    if name == "sparse":
        return SparseCoolMTGP(data, kernel, data[0][::3])
    if name == "linear":
        return CoolMTGP(data, gpflow.kernels.Linear() + gpflow.kernels.Constant())
    return {"cool": CoolMTGP, "exact": KroneckerMTGP, "independent": IndependentGPs}[name](
        data, kernel
    )


@pytest.mark.parametrize("dtypes", [(np.float64, np.float32), (np.float32, np.float64)])
@pytest.mark.parametrize("name", ["cool", "exact", "sparse", "linear", "independent", "missing"])
def test_a_model_keeps_the_type_of_its_data(rng, holes, name, dtypes):
    X, Y = holes[0], holes[1] if name == "missing" else np.nan_to_num(holes[1])
    with gpflow.config.as_context(gpflow.config.Config(float=dtypes[0])):
        model = make("cool" if name == "missing" else name, (X, Y), SquaredExponential())
        expected = model.predict_y(X, full_cov=True)[1].numpy()
        densities = model.predict_log_density((X, np.nan_to_num(Y))).numpy()
    assert expected.dtype == dtypes[0]
    with gpflow.config.as_context(gpflow.config.Config(float=dtypes[1])):
        for given in (X, tf.constant(X, tf.float32), X.astype(np.float32).tolist()):
            covariance = model.predict_y(given, full_cov=True)[1].numpy()
            assert covariance.dtype == dtypes[0]
            assert_allclose(covariance, expected, rtol=1e-4, atol=1e-4)
        assert_array_equal(model.predict_log_density((X, np.nan_to_num(Y))), densities)
        if name != "independent":
            assert model.posterior().predict_y(X)[0].dtype == dtypes[0]
            assert model.task_covariance().dtype == dtypes[0]
            assert model.log_marginal_likelihood().dtype == dtypes[0]


# Scales ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "Model, options", [(CoolMTGP, {"weight_prior": "unit"}), (KroneckerMTGP, {})]
)
def test_scales_far_apart_are_warned_of(rng, Model, options):
    X, Y = rng.uniform(size=(10, 1)), rng.normal(size=(10, 2))
    with pytest.warns(UserWarning, match="differ by a factor of .*: standardise Y") as seen:
        model = Model((X, Y * [1.0, 1e6]), SquaredExponential(), **options)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Model((X, Y * [1.0, 2.0]), SquaredExponential(), **options)
        if Model is CoolMTGP:
            model.to_exact()  # was told already


@pytest.mark.parametrize("make", [*MODELS, IndependentGPs, ConvMT, "sparse"])
@pytest.mark.parametrize("factor, text", [(1e-160, "varies by"), (1e160, "too large")])
def test_scales_that_no_float_can_square_are_refused(rng, make, factor, text):
    X, Y = rng.uniform(size=(10, 1)), rng.normal(size=(10, 2))
    make = (lambda data, kernel: SparseCoolMTGP(data, kernel, X[:3])) if make == "sparse" else make
    with pytest.raises(ValueError, match=text):
        make((X, Y * factor), SquaredExponential())


@pytest.mark.parametrize("factor", [1e-49, 1e49])
def test_extreme_scales_that_are_allowed_train(rng, factor):
    X = rng.uniform(size=(20, 1))
    Y = np.sin(6.0 * X) + 0.1 * rng.normal(size=(20, 2))
    models = [CoolMTGP((X, Y * scale), SquaredExponential()) for scale in (1.0, factor)]
    for model in models:
        model.fit(verbose=0)
    means = [model.predict_y(X)[0].numpy() for model in models]
    assert_allclose(means[1] / factor, means[0], atol=0.02)  # a fifth of the noise
