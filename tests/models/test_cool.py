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
from gpflow.utilities import multiple_assign, print_summary, read_values
from numpy.testing import assert_allclose, assert_array_equal
from problems import LEARNINGS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpflow_cool import CoolMTGP
from gpflow_cool.chain.starting import CHAIN_NOISE_FLOOR


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
        "CoolMTGP.weight_variance Parameter Exp LogNormal True () float64 1.0".split(),
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
    assert len(model.trainable_variables) == 4  # of kernel and chain: not the data


def test_what_is_not_trainable_stays(data):
    model = build(data, b=[1.0, 2.0, 3.0], sigma2=0.5)
    gpflow.set_trainable(model.sigma2, False)
    assert len(model.trainable_variables) == 3
    fit = gpflow.optimizers.Scipy().minimize
    fit(model.training_loss, model.trainable_variables, options={"maxiter": 3})
    assert_allclose(model.sigma2, [0.5, 0.5, 0.5], rtol=1e-12)
    assert np.all(np.abs(model.b.numpy() - [1.0, 2.0, 3.0]) > 1e-3)


def test_priors_add_to_the_loss(data):
    start = {"b": [1.0, 2.0, 3.0], "sigma2": [0.1, 0.2, 0.3]}
    model = build(data, weight_prior="unit", **start)
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
    """Over kernel, b, sigma2 and the weights' variance; its target is the posterior density."""
    model = build(data)
    own = [model.kernel.lengthscales, model.b, model.sigma2]
    for parameter in own:
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
    for values in helper.convert_to_constrained_values(samples):
        assert np.isfinite(values).all() and np.min(values) > 0
        assert np.ptp(values, axis=0).min() > 1e-4  # every parameter moves
    for variable, state in zip(helper.current_state, samples, strict=True):
        variable.assign(state[-1])

    X, Y = data
    K = ref.squared_exponential(X, X, 1.0, model.kernel.lengthscales.numpy())
    lam = model.weight_variance.numpy()
    at = model.b.numpy(), model.sigma2.numpy(), model.learning, lam
    # The density of log lambda, where that of lambda has its mode at 1.
    expected = ref.objective(K, Y, *at) - 0.5 * ((np.log(lam) - 9.0) / 3.0) ** 2
    expected -= np.log(3.0 * np.sqrt(2 * np.pi))
    for parameter in own:  # the density of log(exp(v) - 1), Gamma(2, 2) for v
        v = parameter.numpy()
        u = parameter.unconstrained_variable.numpy()
        expected += np.sum(np.log(4.0 * v) - 2.0 * v - np.log1p(np.exp(-u)))
    assert_allclose(log_probs[-1], expected, rtol=1e-8)
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
    model.weight_variance.assign(0.3)
    values = read_values(model)
    kernel = {".kernel.variance", ".kernel.lengthscales"}
    assert set(values) == kernel | {".b", ".sigma2", ".weight_variance"}
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
@pytest.mark.parametrize("prior", ["scaled", "unit"])
@pytest.mark.parametrize("learning", LEARNINGS)
def test_loops_of_gpflow_end_where_fit_does(data, learning, prior):
    """Both written as in GPflow's tutorials; Scipy refuses variables without a gradient."""
    options = {"learning": learning, "weight_prior": prior}
    fitted = build(data, **options)
    fitted.fit(verbose=0)
    model = build(data, **options)
    start = model.training_loss().numpy()
    opt = gpflow.optimizers.Scipy()
    result = opt.minimize(model.training_loss, model.trainable_variables)
    assert result.fun < start - 1.0
    assert_allclose(model.training_loss(), result.fun, rtol=1e-12)

    other = build(data, **options)
    adam = tf_keras.optimizers.Adam(learning_rate=0.1)

    @tf.function
    def step():
        adam.minimize(other.training_loss, other.trainable_variables)

    for _ in range(600):
        step()
    noise = np.sqrt(np.diag(fitted.noise_covariance()))
    for route in (model, other):
        assert_allclose(route.training_loss(), fitted.training_loss(), atol=0.05)
        error = np.abs(route.predict_f(XNEW)[0] - fitted.predict_f(XNEW)[0])
        assert np.all(error < 0.2 * noise)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_learning_of_the_paper(data, learning):
    X, Y = data
    b, sigma2 = np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3])
    model = build(data, learning=learning, weight_prior="unit", b=b, sigma2=sigma2)
    K = ref.squared_exponential(X, X, 1.0, 0.3)
    terms = ref.conditional_log_likelihoods(K, Y, b, sigma2, learning)
    assert_allclose(model.conditional_log_likelihoods(), terms, rtol=1e-9)
    assert_allclose(model.maximum_log_likelihood_objective(), sum(terms), rtol=1e-9)
    assert_allclose(model.training_loss(), -sum(terms), rtol=1e-9)


def test_what_is_the_default(data):
    default = build(data)
    named = build(data, learning="approximate", weight_prior="scaled", weight_variance=1.0)
    assert_allclose(default.training_loss(), named.training_loss(), rtol=0)
    for options in ({"learning": "hierarchical"}, {"weight_prior": "unit"}):
        other = build(data, **options)
        assert abs(default.training_loss() - other.training_loss()) > 0.1


# Scales, floats, monitoring -----------------------------------------------------------------------


def test_scales_that_differ_are_warned_of_with_the_prior_of_the_paper(data):
    X, Y = data
    Y = (Y - Y.mean(axis=0)) / Y.std(axis=0)
    text = "^The standard deviations of the targets differ by a factor of 20. .* standardise Y.$"
    with pytest.warns(UserWarning, match=text) as caught:
        build((X, Y * [1.0, 20.0, 2.0]), weight_prior="unit")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build((X, Y * [1.0, 9.9, 2.0]), weight_prior="unit")
        build((X, Y * [1.0, 1e4, 2.0]))


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
def test_float32(data):
    """Trains in single precision, and ends where double precision ends."""
    exact = build(data)
    exact.fit(verbose=0)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-5)):
        model = build(data)
        assert_allclose(model.training_loss(), build(data).training_loss(), rtol=1e-4)
        model.fit(verbose=0)
        mean, cov = model.predict_y(XNEW, full_output_cov=True)
        outputs = [model.training_loss(), mean, cov, *model.multitask_parameters()]
        outputs += [model.log_marginal_likelihood(), *model.leave_one_out()]
        outputs += [model.leave_groups_out(np.arange(14) // 5), model.predict_y_samples(XNEW, 2)]
        outputs += [model.refine().task_covariance()]
    assert {value.dtype for value in outputs} == {tf.float32}
    assert_allclose(outputs[0], exact.training_loss(), atol=0.05)
    expected_mean, expected_cov = exact.predict_y(XNEW, full_output_cov=True)
    assert_allclose(mean, expected_mean, atol=0.05)
    assert_allclose(cov, expected_cov, atol=0.05)


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
