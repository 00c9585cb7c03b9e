"""CoolMTGP as a citizen of GPflow: parameters, training, copies, files, monitoring, float32."""

import copy
import warnings

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras
from gpflow.kernels import SquaredExponential
from gpflow.utilities import multiple_assign, parameter_dict, print_summary, read_values
from numpy.testing import assert_allclose, assert_array_equal
from problems import LEARNINGS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpflow_cool import CoolMTGP
from gpflow_cool.chain.starting import CHAIN_NOISE_FLOOR
from gpflow_cool.models import cool


@pytest.fixture
def data(rng):
    X = np.sort(rng.uniform(size=(14, 1)), axis=0)
    signal = np.hstack([np.cos(6 * X), np.sin(6 * X), np.cos(9 * X) + np.sin(6 * X)])
    return X, signal + 0.3 * rng.normal(size=(14, 3)) @ [[1, 0.5, 0], [0, 1, 0.5], [0, 0, 1]]


XNEW = np.linspace(0, 1, 5)[:, None]


def build(data, **options):
    return CoolMTGP(data, SquaredExponential(lengthscales=0.3), **options)


def assert_same_predictions(one, other, rtol=1e-10):
    for actual, expected in zip(one.predict_f(XNEW), other.predict_f(XNEW), strict=True):
        assert_allclose(actual, expected, rtol=rtol)
    for actual, expected in zip(one.predict_y(XNEW), other.predict_y(XNEW), strict=True):
        assert_allclose(actual, expected, rtol=rtol)


# Parameters ---------------------------------------------------------------------------------------


def test_summary(data, capsys):
    model = build(data, b=[1.0, 2.0, 3.0], sigma2=0.5)
    model.kernel.lengthscales.assign(0.5)
    model.b.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
    print_summary(model, "plain")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        "name class transform prior trainable shape dtype value".split(),
        "CoolMTGP.kernel.variance Parameter Softplus False () float64 1.0".split(),
        "CoolMTGP.kernel.lengthscales Parameter Softplus True () float64 0.5".split(),
        "CoolMTGP.b Parameter Softplus Gamma True (3,) float64 [1. 2. 3.]".split(),
        "CoolMTGP.sigma2 Parameter Softplus + NoiseFloor True (3,) float64 [0.5 0.5 0.5]".split(),
    ]


def test_summary_of_data_that_may_grow(data, capsys):
    X, Y = data
    variables = (
        tf.Variable(X, shape=[None, 1], trainable=False),
        tf.Variable(Y, shape=[None, 3], trainable=False),
    )
    model = build(variables)
    print_summary(model, "plain")
    assert "CoolMTGP.data[1]" in capsys.readouterr().out
    assert len(model.trainable_variables) == 3  # lengthscales, b, sigma2: not the data


def test_what_is_not_trainable_stays(data):
    model = build(data, b=[1.0, 2.0, 3.0], sigma2=0.5)
    gpflow.set_trainable(model.sigma2, False)
    assert len(model.trainable_variables) == 2
    fit = gpflow.optimizers.Scipy().minimize
    fit(model.training_loss, model.trainable_variables, options={"maxiter": 3})
    assert_allclose(model.sigma2, [0.5, 0.5, 0.5], rtol=1e-12)
    assert np.all(np.abs(model.b.numpy() - [1.0, 2.0, 3.0]) > 1e-3)


def test_priors_add_to_the_loss(data):
    model = build(data, b=[1.0, 2.0, 3.0], sigma2=[0.1, 0.2, 0.3])
    plain = model.training_loss().numpy()
    objective = model.maximum_log_likelihood_objective().numpy()
    assert_allclose(plain, -objective, rtol=1e-12)
    model.b.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.5))
    model.sigma2.prior = tfp.distributions.LogNormal(np.float64(-1.0), np.float64(0.7))
    model.kernel.lengthscales.prior = tfp.distributions.Normal(np.float64(0.5), np.float64(0.2))
    b, s = np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3])
    log_prior = np.sum(2 * np.log(1.5) + np.log(b) - 1.5 * b)
    root = np.sqrt(2 * np.pi)
    log_prior += np.sum(-np.log(s * 0.7 * root) - 0.5 * ((np.log(s) + 1.0) / 0.7) ** 2)
    log_prior += -np.log(0.2 * root) - 0.5 * ((0.3 - 0.5) / 0.2) ** 2
    assert_allclose(model.training_loss(), plain - log_prior, rtol=1e-10)


@pytest.mark.slow
def test_hamiltonian_monte_carlo(data):
    model = build(data)
    for parameter in model.trainable_parameters:
        parameter.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(2.0))
    helper = gpflow.optimizers.SamplingHelper(
        model.log_posterior_density, model.trainable_parameters
    )
    kernel = tfp.mcmc.HamiltonianMonteCarlo(
        target_log_prob_fn=helper.target_log_prob_fn, num_leapfrog_steps=3, step_size=0.03
    )

    @tf.function
    def run_chain():
        return tfp.mcmc.sample_chain(
            num_results=6,
            num_burnin_steps=1,
            current_state=helper.current_state,
            kernel=kernel,
            trace_fn=lambda _, results: (
                results.is_accepted,
                results.accepted_results.target_log_prob,
            ),
            seed=[1, 2],
        )

    samples, (accepted, log_probs) = run_chain()
    assert np.mean(accepted) > 0.5
    assert np.isfinite(log_probs).all()
    names = [name for name, p in parameter_dict(model).items() if p.trainable]
    for name, values in zip(names, helper.convert_to_constrained_values(samples), strict=True):
        assert np.isfinite(values).all() and np.min(values) > 0
        assert np.ptp(values, axis=0).min() > 1e-4, name  # every parameter moves
    for variable, state in zip(helper.current_state, samples, strict=True):
        variable.assign(state[-1])
    assert_allclose(helper.target_log_prob_fn(*helper.current_state), log_probs[-1], rtol=1e-9)
    assert np.isfinite(model.predict_f(XNEW)[0]).all()


# Copies and files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("deepcopy", [copy.deepcopy, gpflow.utilities.deepcopy])
def test_deepcopy(data, deepcopy):
    model = build(data)
    model.training_loss()
    twin = deepcopy(model)
    assert_same_predictions(twin, model, rtol=0)
    before = model.noise_covariance().numpy()
    twin.sigma2.assign([2.0, 2.0, 2.0])
    twin.kernel.lengthscales.assign(0.9)
    assert_array_equal(model.noise_covariance(), before)
    # A likelihood that still asked the original would not see the twin's noise.
    assert_allclose(twin.likelihood.covariance(), twin.noise_covariance(), rtol=0)
    assert_array_equal(model.likelihood.covariance(), before)
    assert np.trace(twin.noise_covariance()) > np.trace(before) + 3.0


def test_frozen_copy(data):
    model = build(data)
    assert_same_predictions(gpflow.utilities.freeze(model), model, rtol=1e-12)


def test_parameter_dictionary(data):
    model = build(data, b=[1.0, 2.0, 3.0], sigma2=[0.1, 0.2, 0.3])
    model.kernel.lengthscales.assign(0.77)
    values = read_values(model)
    assert set(values) == {".kernel.variance", ".kernel.lengthscales", ".b", ".sigma2"}
    other = build(data)
    multiple_assign(other, values)
    assert_allclose(other.training_loss(), model.training_loss(), rtol=1e-12)
    assert_same_predictions(other, model)


def test_parameters_at_their_bound_can_be_assigned(data):
    """Training drives the noise of a copied task to its bound; its values must still go back in."""
    X, Y = data
    Y = np.hstack([Y, Y[:, :1]])
    model = build((X, Y))
    model.sigma2.unconstrained_variable.assign([-2.0, -36.0, -80.0, -1e3])
    assert_allclose(model.sigma2[2:], CHAIN_NOISE_FLOOR * Y[:, 2:].var(axis=0), rtol=1e-12)
    other = build((X, Y))
    multiple_assign(other, read_values(model))
    assert_allclose(other.sigma2, model.sigma2, rtol=1e-12)
    assert_allclose(other.training_loss(), model.training_loss(), rtol=1e-9)


def test_checkpoint(data, tmp_path):
    model = build(data, b=[1.0, 2.0, 3.0], sigma2=[0.1, 0.2, 0.3])
    model.kernel.lengthscales.assign(0.77)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "model"))
    other = build(data)
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    assert_allclose(other.b, [1.0, 2.0, 3.0], rtol=1e-12)
    assert_same_predictions(other, model, rtol=0)


# Training -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("learning", LEARNINGS)
def test_scipy_and_adam_find_the_same_optimum(data, learning):
    """Both written as in GPflow's tutorials."""
    model = build(data, learning=learning)
    start = model.training_loss().numpy()
    opt = gpflow.optimizers.Scipy()
    result = opt.minimize(model.training_loss, model.trainable_variables)
    assert result.success
    assert result.fun < start - 1.0
    assert_allclose(model.training_loss(), result.fun, rtol=1e-12)

    other = build(data, learning=learning)
    adam = tf_keras.optimizers.Adam(learning_rate=0.1)

    @tf.function
    def step():
        adam.minimize(other.training_loss, other.trainable_variables)

    for _ in range(1000):
        step()
    assert_allclose(other.training_loss(), result.fun, atol=2e-3)
    assert_allclose(other.kernel.lengthscales, model.kernel.lengthscales, rtol=0.02)
    assert_allclose(other.predict_f(XNEW)[0], model.predict_f(XNEW)[0], atol=0.02)


@pytest.mark.slow
def test_the_optimum_is_one(data):
    """No parameter can be moved by one per cent without raising the loss."""
    model = build(data)
    gpflow.optimizers.Scipy().minimize(model.training_loss, model.trainable_variables)
    lowest = model.training_loss().numpy()
    for variable in model.trainable_variables:
        value = variable.numpy()
        for factor in [0.99, 1.01]:
            variable.assign(value * factor)
            assert model.training_loss().numpy() > lowest - 1e-6
        variable.assign(value)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_learning(data, learning):
    X, Y = data
    model = build(data, learning=learning, b=[1.0, 2.0, 3.0], sigma2=[0.1, 0.2, 0.3])
    K = ref.squared_exponential(X, X, 1.0, 0.3)
    b, sigma2 = np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3])
    terms = ref.conditional_log_likelihoods(K, Y, b, sigma2, learning)
    assert_allclose(model.conditional_log_likelihoods(), terms, rtol=1e-9)
    assert_allclose(model.maximum_log_likelihood_objective(), sum(terms), rtol=1e-9)


def test_hierarchical_is_the_default(data):
    default, named = build(data), build(data, learning="hierarchical")
    assert_allclose(default.training_loss(), named.training_loss(), rtol=0)
    other = build(data, learning="approximate").training_loss().numpy()
    assert abs(default.training_loss().numpy() - other) > 0.1


@pytest.mark.parametrize("engine", ["spectral", "cholesky"])
def test_auto_takes_the_engine_that_the_rule_names(data, monkeypatch, engine):
    """Only the spectral engine calls back into Python for LAPACK, so the graph tells them apart."""
    monkeypatch.setattr(cool, "choose_engine", lambda *_, **__: engine)
    model = build(data, engine="auto")
    graph = tf.function(model.training_loss).get_concrete_function().graph
    operations = {operation.type for operation in graph.get_operations()}
    assert ("PyFunc" in operations) == (engine == "spectral")
    assert "Cholesky" in operations
    assert_allclose(model.training_loss(), build(data, engine=engine).training_loss(), rtol=1e-12)


def test_engines_agree_by_default(data):
    engines = [engine for engine in cool.ENGINES if engine != "grid"]  # the rows are none
    losses = [build(data, engine=engine).training_loss() for engine in engines]
    assert_allclose(losses, losses[0], rtol=1e-11)


# Scales, floats, monitoring -----------------------------------------------------------------------


def test_scales_that_differ_are_warned_of(data):
    X, Y = data
    Y = (Y - Y.mean(axis=0)) / Y.std(axis=0)
    text = "^The standard deviations of the targets differ by a factor of 20. .* standardise Y.$"
    with pytest.warns(UserWarning, match=text) as caught:
        build((X, Y * [1.0, 20.0, 2.0]))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build((X, Y * [1.0, 9.9, 2.0]))


def test_a_linear_kernel_in_float32_recovers_what_it_does_in_float64(rng):
    """Zero eigenvalues are then rounding of float32, which must not be taken for a signal."""
    X = rng.normal(size=(200, 3))
    Y = X @ rng.normal(size=(3, 3)) + 0.5 * rng.normal(size=(200, 3))
    recovered = []
    for dtype in (np.float64, np.float32):
        with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
            model = CoolMTGP((X, Y), gpflow.kernels.Linear(), b=np.ones(3), sigma2=np.full(3, 0.01))
            recovered.append([np.asarray(part) for part in model.multitask_parameters()])
    for double, single in zip(*recovered, strict=True):
        assert_allclose(single, double, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["spectral", "cholesky"])
def test_float32(data, engine):
    """Trains in single precision, and ends where double precision ends."""
    fit = gpflow.optimizers.Scipy().minimize
    exact = build(data, engine=engine)
    fit(exact.training_loss, exact.trainable_variables)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-5)):
        model = build(data, engine=engine)
        assert_allclose(model.training_loss(), build(data).training_loss(), rtol=1e-4)
        fit(model.training_loss, model.trainable_variables)
        mean, cov = model.predict_y(XNEW, full_output_cov=True)
        outputs = [model.training_loss(), mean, cov, *model.multitask_parameters()]
        outputs += [model.log_marginal_likelihood(), *model.leave_one_out()]
        outputs += [model.predict_y_samples(XNEW, 2)]
    assert {value.dtype for value in outputs} == {tf.float32}
    assert_allclose(outputs[0], exact.training_loss(), atol=0.02)
    expected_mean, expected_cov = exact.predict_y(XNEW, full_output_cov=True)
    assert_allclose(mean, expected_mean, atol=0.02)
    assert_allclose(cov, expected_cov, atol=0.02)


def test_monitoring(data, tmp_path):
    model = build(data, b=[1.0, 2.0, 3.0], sigma2=[0.1, 0.2, 0.3])
    task = gpflow.monitor.ModelToTensorBoard(
        str(tmp_path), model, max_size=-1, keywords_to_monitor=["*"]
    )
    monitor = gpflow.monitor.Monitor(gpflow.monitor.MonitorTaskGroup(task))
    lengthscales = []

    def callback(step, _variables, _values):
        lengthscales.append(model.kernel.lengthscales.numpy())
        monitor(step)

    gpflow.optimizers.Scipy().minimize(
        model.training_loss,
        model.trainable_variables,
        step_callback=callback,
        options={"maxiter": 4},
    )
    task.file_writer.flush()
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()

    def written(tag):
        return [tf.make_ndarray(event.tensor_proto) for event in events.Tensors(tag)]

    assert_allclose(written("kernel.lengthscales"), lengthscales, rtol=1e-6)
    assert len(lengthscales) == 4
    for t in range(3):
        assert_allclose(written(f"b[{t}]")[-1], model.b[t], rtol=1e-6)
        assert_allclose(written(f"sigma2[{t}]")[-1], model.sigma2[t], rtol=1e-6)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("dtype, sigma2", [(np.float32, 1e-4), (np.float64, 1e-12)])
def test_samples_where_little_variance_is_left(rng, dtype, sigma2, missing):
    """What is left of the prior is then smaller than the prior's rounding."""
    X = rng.uniform(-2.0, 2.0, size=(30, 1))
    Y = np.sin(X * [1.0, 1.4])
    if missing:
        Y[3, 0] = np.nan
    Xnew = np.linspace(-1.5, 1.5, 20)[:, None]
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        model = CoolMTGP(
            (X, Y), gpflow.kernels.SquaredExponential(), sigma2=np.full(2, sigma2), b=np.ones(2)
        )
        mean = model.predict_f(Xnew)[0].numpy()
        for flags in [(True, False), (True, True), (False, True)]:
            samples = model.predict_f_samples(Xnew, 5, *flags).numpy()
            assert_allclose(samples, np.broadcast_to(mean, samples.shape), atol=0.2)
