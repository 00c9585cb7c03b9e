"""Models of rows on a grid make the same numbers as those that know of no grid."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import Constant, Matern12, Matern52
from gpflow.kernels import SquaredExponential as SE
from gpflow.utilities import multiple_assign, read_values
from numpy.testing import assert_allclose
from problems import LAYOUTS, LEARNINGS, some_known
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import gpflow_cool
from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.grid import grid_inputs
from gpflow_cool.training.losses import loss_of

AXES = {
    "two axes": ([0.0, 0.2, 0.7, 1.0], [0.0, 1.0, 3.0]),
    "an axis of one point": ([0.0, 0.2, 0.7, 1.0], [2.0], [0.0, 1.0, 3.0]),
    "three axes": ([0.0, 0.4, 1.0], [1.0, 2.0], [0.0, 1.0, 1.5, 3.0]),
    "one point": ([0.0], [1.0]),
    "places and times": (np.array([[0.0, 1.0], [1.0, 0.5], [2.0, 0.0]]), [0.0, 1.0, 2.0]),
    "400 rows": (np.linspace(0.0, 5.0, 20), np.linspace(0.0, 8.0, 20)),
}


def kernel_of(num_inputs):
    """A product of two kernels, each with parameters."""
    rest = list(range(num_inputs - 1))
    return Matern52(active_dims=rest, lengthscales=0.6) * SE(
        active_dims=[num_inputs - 1], lengthscales=1.2
    )


def data_of(rng, axes, num_tasks=3, dtype=np.float64):
    X = grid_inputs(*axes)
    X = X[rng.permutation(len(X))]
    signal = np.sin(2.0 * X[:, :1] + X[:, -1:]) * rng.uniform(0.5, 1.5, size=num_tasks)
    return X.astype(dtype), (signal + 0.4 * rng.normal(size=signal.shape)).astype(dtype)


def pair_of(data, kernel=None, **options):
    """The same model by both engines, away from its optimum."""
    models = []
    for engine in ("grid", "spectral"):
        mean = gpflow.mean_functions.Constant(0.2)
        own = kernel_of(data[0].shape[1]) if kernel is None else kernel()
        models.append(CoolMTGP(data, own, mean, engine=engine, **options))
    return models


def loss_and_gradients(model):
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    return loss, tape.gradient(loss, model.trainable_variables)


def assert_same(found, expected, rtol=1e-8, atol=1e-9):
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert_allclose(one, other, rtol=rtol, atol=atol)


@pytest.fixture(name="pair", scope="module")
def _pair():
    return pair_of(data_of(np.random.default_rng(3), AXES["three axes"]))


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("num_tasks", [1, 3])
def test_objective_gradient_and_matrices(rng, name, learning, num_tasks):
    model, dense = pair_of(data_of(rng, AXES[name], num_tasks), learning=learning)
    assert model.is_on_grid
    assert not dense.is_on_grid
    assert_same(loss_and_gradients(model), loss_and_gradients(dense))
    assert_same(model.multitask_parameters(), dense.multitask_parameters())
    assert_same(model.log_marginal_likelihood(), dense.log_marginal_likelihood())


@pytest.mark.parametrize("learning", LEARNINGS)
def test_loss_at_the_best_b_and_sigma2(rng, learning):
    models = pair_of(data_of(rng, AXES["three axes"]), learning=learning)
    for model in models:
        gpflow.set_trainable(model.weight_variance, False)
    found, expected = (loss_of(model, profile=True).evaluate() for model in models)
    assert_same(found, expected)


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("num_tasks", [1, 4])
def test_predictions_and_rows_left_out_on_any_axes(rng, name, num_tasks):
    model, dense = pair_of(data_of(rng, AXES[name], num_tasks))
    Xnew = rng.normal(size=(3, model.data[0].shape[1]))
    assert_same(model.predict_y(Xnew, True, True), dense.predict_y(Xnew, True, True))
    assert_same(model.leave_one_out(), dense.leave_one_out())


@pytest.mark.parametrize("full_cov, full_output_cov", LAYOUTS)
@pytest.mark.parametrize("cache", ["tensor", "variable", "nocache"])
def test_predictions_at_any_points(rng, pair, full_cov, full_output_cov, cache):
    found, expected = (model.posterior(cache) for model in pair)
    layout = rng.normal(size=(4, 3)), full_cov, full_output_cov
    assert_same(found.predict_y(*layout), expected.predict_y(*layout))
    layout = pair[0].data[0][:5], full_cov, full_output_cov
    assert_same(found.predict_f(*layout), expected.predict_f(*layout))
    Xnew, Ynew = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    layout = Xnew, Ynew, full_cov, full_output_cov
    assert_same(found.predict_log_density(*layout), expected.predict_log_density(*layout))


@pytest.mark.parametrize("full_cov", [False, True])
def test_batches_of_points(rng, pair, full_cov):
    layout = rng.normal(size=(2, 3, 3)), full_cov, True
    found, expected = (model.posterior() for model in pair)
    assert_same(found.predict_y(*layout), expected.predict_y(*layout))


def test_points_in_chunks(rng, pair, monkeypatch):
    Xnew = rng.normal(size=(7, 3))
    expected = [pair[1].predict_f(Xnew), pair[1].predict_f(Xnew, full_cov=True)]
    monkeypatch.setattr("gpflow_cool.grid.posterior.CHUNK", 60)
    posterior = pair[0].posterior()
    assert_same(posterior.predict_f(Xnew), expected[0])
    assert_same(posterior.predict_f(Xnew, full_cov=True), expected[1])
    assert_same([posterior.predict_mean(Xnew)], expected[0][:1])
    batch = Xnew[:6].reshape(2, 3, 3)
    assert_same([posterior.predict_mean(batch)], [pair[1].posterior().predict_mean(batch)])


def test_rows_left_out_known_tasks_and_orders(rng, pair):
    model, dense = pair
    assert_same(model.leave_one_out(), dense.leave_one_out())
    Xnew, known = rng.normal(size=(4, 3)), some_known(rng.normal(size=(4, 3)))
    assert_same(model.predict_y_given(Xnew, known), dense.predict_y_given(Xnew, known))
    averages = [each.average_over_orders(4, seed=0) for each in pair]
    averages += [each.refine() for each in pair]
    for grid, other in zip(averages[::2], averages[1::2], strict=True):
        assert_same(grid.task_covariance(), other.task_covariance(), rtol=1e-6)
        assert_same(grid.noise_covariance(), other.noise_covariance(), rtol=1e-6)
    groups = np.arange(model.num_rows) % 5
    assert_same(model.leave_groups_out(groups), dense.leave_groups_out(groups))


def test_rows_that_are_given_later(rng, pair):
    later = []
    for model in pair:
        first = model.posterior().condition_on([[0.3, 1.2, 0.4], [0.9, 1.9, 2.0]], np.ones([2, 3]))
        later.append(first.condition_on([[0.5, 0.5, 0.5]], [[0.1, np.nan, 0.2]]))
    Xnew = rng.normal(size=(4, 3))
    for layout in LAYOUTS:
        found, expected = (posterior.predict_y(Xnew, *layout) for posterior in later)
        assert_same(found, expected)


def test_drawn_functions_meet_data_without_noise(rng):
    X, Y = data_of(rng, AXES["two axes"], 2)
    model = CoolMTGP((X, Y), SE(lengthscales=[0.3, 0.7]), sigma2=1e-8, engine="grid")
    posterior = model.posterior().condition_on([[0.5, 4.0]], [[1.0, 0.5]])
    functions = posterior.sample_functions(3, seed=1)
    assert_allclose(functions(X), np.broadcast_to(Y, [3, *Y.shape]), atol=0.01)
    assert_allclose(functions([[0.5, 4.0]])[:, 0], [[1.0, 0.5]] * 3, atol=0.01)


def test_draws_are_the_same(pair):
    Xnew = np.linspace(0, 1, 12).reshape(4, 3)
    found, expected = (
        model.posterior().predict_samples(Xnew, 3, True, True, noise=True, seed=(1, 2))
        for model in pair
    )
    assert_same(found, expected)


def test_gradients_by_new_points(rng, pair):
    Xnew = tf.constant(rng.normal(size=(3, 3)))
    found = []
    for model in pair:
        with tf.GradientTape() as tape:
            tape.watch(Xnew)
            mean, cov = model.predict_f(Xnew, True, True)
            total = tf.reduce_sum(mean) + tf.reduce_sum(tf.sin(cov))
        found.append(tape.gradient(total, Xnew))
    assert_same(*found)


def test_exact_model(rng, pair):
    model, dense = (each.to_exact() for each in pair)
    assert model.is_on_grid
    assert not dense.is_on_grid
    assert_same(loss_and_gradients(model), loss_and_gradients(dense))
    Xnew = rng.normal(size=(3, 3))
    assert_same(model.predict_y(Xnew), dense.predict_y(Xnew))
    for each in (model, dense):
        each.fit("em", steps=2)
    assert_same(model.task_covariance(), dense.task_covariance())


@pytest.mark.slow
def test_fits_end_at_the_same_loss(rng):
    model, dense = pair_of(data_of(rng, AXES["two axes"], 2))
    for each in (model, dense):
        each.fit(verbose=0)
    assert_allclose(model.training_loss(), dense.training_loss(), atol=0.05)


def test_single_precision(rng):
    data = data_of(rng, AXES["three axes"], dtype=np.float32)
    gpflow.config.set_default_float(np.float32)
    try:
        model, dense = pair_of(data)
        assert_same(loss_and_gradients(model), loss_and_gradients(dense), rtol=1e-3, atol=1e-3)
        Xnew = np.float32(rng.normal(size=(3, 3)))
        assert_same(model.predict_f(Xnew, True), dense.predict_f(Xnew, True), 1e-3, 1e-4)
        assert model.predict_f(Xnew)[0].dtype == tf.float32
    finally:
        gpflow.config.set_default_float(np.float64)


def test_saved_models_predict_the_same(rng, pair, tmp_path):
    model, _ = pair
    model.save(tmp_path / "model")
    loaded = gpflow_cool.load(tmp_path / "model")
    assert loaded.engine == "grid"
    assert loaded.grid.shape == model.grid.shape
    Xnew = rng.normal(size=(3, 3))
    assert_same(loaded.predict_y(Xnew), model.predict_y(Xnew), rtol=0, atol=0)


@pytest.mark.parametrize("engine", ["grid", "spectral", "auto"])
@pytest.mark.parametrize("name", ["two axes", "400 rows"])
@pytest.mark.parametrize("average", [False, True])
def test_saved_exact_models_predict_the_same(rng, tmp_path, engine, name, average):
    """Also where the chain asked for a grid that does not pay, or for none where one does."""
    chain = CoolMTGP(data_of(rng, AXES[name]), kernel_of(2), engine=engine)
    model = chain.average_over_orders(2, seed=0) if average else chain.to_exact()
    model.save(tmp_path / "model")
    loaded = gpflow_cool.load(tmp_path / "model")
    assert chain.is_on_grid == model.is_on_grid == loaded.is_on_grid
    assert model.is_on_grid == (engine == "grid" or (engine == "auto" and name == "400 rows"))
    Xnew = rng.normal(size=(3, 2))
    found, expected = (each.predict_y(Xnew, True, True) for each in (loaded, model))
    assert_same(found, expected, rtol=0, atol=0)
    assert_same(loaded.training_loss(), model.training_loss(), rtol=0, atol=0)


def test_a_new_step_of_time_extends_an_axis(rng):
    X, Y = data_of(rng, ([0.0, 0.5, 1.0], [0.0, 1.0, 2.0, 3.0]), 2)
    past = X[:, 1] < 3.0
    old = CoolMTGP((X[past], Y[past]), SE(lengthscales=[0.5, 1.5]), engine="grid")
    old.fit(steps=3, verbose=0)
    losses = []
    for engine in ("grid", "spectral"):
        kernel = gpflow.utilities.deepcopy(old.kernel)
        new = CoolMTGP((X, Y), kernel, b=old.b, sigma2=old.sigma2, engine=engine)
        assert_same(new.kernel.lengthscales, old.kernel.lengthscales, rtol=0, atol=0)
        assert_same(new.b, old.b)
        losses.append([new.training_loss(), *new.fit("scipy", steps=4, verbose=0).history["loss"]])
    assert_allclose(losses[0][0], losses[1][0], rtol=1e-9)
    assert losses[0][-1] < losses[0][0]


def scalars(folder):
    """All numbers that TensorBoard finds in a folder, by tag."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["tensors"]:
        values = [tf.make_ndarray(event.tensor_proto) for event in events.Tensors(tag)]
        if values[0].dtype.kind == "f":
            found[tag] = np.array(values)
    return found


def test_training_on_a_grid_is_logged_with_its_evidence(rng, tmp_path):
    losses = []
    for model in pair_of(data_of(rng, AXES["two axes"], 2)):
        model.fit("scipy", steps=2, verbose=0, tensorboard=tmp_path / model.engine)
        losses.append(scalars(tmp_path / model.engine))
    assert losses[0] and losses[0].keys() == losses[1].keys()
    for name, values in losses[0].items():
        if "seconds" not in name:
            assert_allclose(values, losses[1][name], rtol=1e-5, atol=1e-7)


def test_auto_takes_the_grid_where_it_pays(rng):
    data = data_of(rng, (np.arange(20.0), np.arange(16.0)), 2)
    model = CoolMTGP(data, SE(lengthscales=[2.0, 3.0]))
    assert model.is_on_grid
    assert not CoolMTGP(data, SE(), engine="spectral").is_on_grid
    assert not CoolMTGP(data, Matern12()).is_on_grid
    assert not CoolMTGP((tf.Variable(data[0], trainable=False), data[1]), SE()).is_on_grid
    assert KroneckerMTGP(data, SE() * Constant(2.0)).is_on_grid
    dense = CoolMTGP(data, SE(lengthscales=[2.0, 3.0]), engine="spectral")
    multiple_assign(dense, read_values(model))
    assert_same(model.training_loss(), dense.training_loss())


def variables(data):
    """The same data, which may change from now on."""
    return tuple(tf.Variable(part, trainable=False, shape=[None, part.shape[1]]) for part in data)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("num_rows", [320, 321])
def test_rows_that_change_are_no_grid(rng, exact, by_hand, num_rows):
    rows = data_of(rng, (np.arange(20.0), np.arange(16.0)), 2)
    model = CoolMTGP(rows, SE(lengthscales=[2.0, 3.0]))
    model = model.to_exact() if exact else model
    assert model.is_on_grid
    if by_hand:
        model.data = variables(rows)
    else:
        model._hold(variables(rows))
    posterior = model.posterior("variable")
    other = rng.uniform(0.0, 15.0, size=(num_rows, 2)), rng.normal(size=(num_rows, 2))
    for held, new in zip(model.data, other, strict=True):
        held.assign(new)
    posterior.update_cache()
    kernel = SE(lengthscales=[2.0, 3.0])
    if exact:
        C, Sigma = model.task_covariance(), model.noise_covariance()
        dense = KroneckerMTGP.ground_truth(other, kernel, C, Sigma)
    else:
        dense = CoolMTGP(other, kernel, b=model.b, sigma2=model.sigma2, engine="spectral")
    Xnew = rng.uniform(0.0, 15.0, size=(4, 2))
    assert_same(posterior.predict_y(Xnew), dense.predict_y(Xnew))
    assert_same(model.predict_y(Xnew), dense.predict_y(Xnew))
    assert_same(model.training_loss(), dense.training_loss())


def test_a_grid_that_is_asked_for_must_not_change(pair):
    model, _ = pair
    before = model.data
    with pytest.raises(ValueError, match='the grid must not change.*in Trieste, use engine="auto"'):
        model._hold(variables(before))
    assert model.data is before and model.is_on_grid


@pytest.mark.parametrize(
    "kernel, X, text",
    [
        (SE(), np.arange(6.0).reshape(3, 2), "the 3 rows of X are not a grid"),
        (Matern12(), grid_inputs([0.0, 1.0], [0.0, 1.0]), "Matern12 sees columns of several axes"),
        (SE(), np.zeros([3, 2]), "Rows 0 and 1 of X have the same inputs"),
        (
            SE(),
            tf.Variable(np.zeros([3, 2]), trainable=False),
            "X is a tf.Variable, and the grid must not change",
        ),
    ],
)
def test_engine_grid_is_refused_where_there_is_no_grid(rng, kernel, X, text):
    with pytest.raises(ValueError, match=text):
        CoolMTGP((X, rng.normal(size=(X.shape[0], 2))), kernel, engine="grid")
