"""What TensorBoard shows of a model and of its fit, read back by TensorBoard's own reader."""

import re

import gpflow
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from event_files import (
    FLOAT32,
    MATRICES,
    NAMES,
    PREDICTIONS,
    check_picture,
    kernel,
    make_data,
    make_model,
    read,
)
from gpflow.keras import tf_keras
from gpflow.monitor import Monitor, ScalarToTensorBoard, ToTensorBoard
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGP, KroneckerMTGP, monitoring, plotting
from gpflow_cool.callbacks import KerasView
from gpflow_cool.monitoring import TensorBoardCallback, task_matrices, tensorboard_tasks

# Scalars and pictures ------------------------------------------------------------------------


@pytest.mark.slow
def test_pictures_show_the_models_matrices_and_predictions(tmp_path, monkeypatch):
    model = make_model()
    drawn, bands = {}, {}
    plot_task_matrix, plot_bands = plotting.plot_task_matrix, plotting.plot_bands

    def matrix(values, names, ax, title, **options):
        drawn[title] = (np.asarray(values), names, options)
        return plot_task_matrix(values, names, ax, title, **options)

    def band(predictor, grid, task, ax, **options):
        bands[task] = (predictor, grid)
        return plot_bands(predictor, grid, task, ax, **options)

    monkeypatch.setattr(plotting, "plot_task_matrix", matrix)
    monkeypatch.setattr(plotting, "plot_bands", band)
    tensorboard_tasks(model, tmp_path).pictures(0)
    expected = {
        "task covariance C": model.task_covariance(),
        "noise covariance Sigma": model.noise_covariance(),
        "task correlation": model.task_correlation(),
        "noise correlation": model.noise_correlation(),
    }
    assert set(drawn) == set(expected)
    for title, (values, names, options) in drawn.items():
        assert_allclose(values, expected[title], rtol=1e-8, atol=1e-10)
        assert names == NAMES
        assert options == ({"limit": 1.0} if "correlation" in title else {})
    assert list(bands) == [0, 1, 2]
    for predictor, grid in bands.values():
        X = model.data[0].numpy()
        assert grid.min() < X.min() and grid.max() > X.max()
        for method in ["predict_f", "predict_y"]:
            for actual, wanted in zip(
                getattr(predictor, method)(grid), getattr(model, method)(grid), strict=True
            ):
                assert_allclose(actual, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [make_model, lambda: KroneckerMTGP(make_data(), kernel())])
def test_matrices_of_a_solution(make):
    model = make()
    C, Sigma = task_matrices(model.joint_solution())
    assert_allclose(C, model.task_covariance(), rtol=1e-8, atol=1e-10)
    assert_allclose(Sigma, model.noise_covariance(), rtol=1e-8, atol=1e-10)


def test_two_inputs_have_no_picture_of_predictions_and_a_lengthscale_each(tmp_path):
    model = make_model(D=2, T=2)
    model.kernel.lengthscales.assign([0.5, 0.7])
    Monitor(*tensorboard_tasks(model, tmp_path))(0)
    written = read(tmp_path)
    assert [tag for tag in written if "predictions" in tag] == []
    assert set(MATRICES) <= set(written)
    # As many inputs as tasks: a lengthscale is still no task's.
    assert_allclose(written["kernel/lengthscales[0]"][0], 0.5, rtol=FLOAT32)
    assert_allclose(written["kernel/lengthscales[1]"][0], 0.7, rtol=FLOAT32)


def test_lengthscales_have_the_names_of_the_inputs_that_their_kernel_sees():
    X, Y = make_data(D=3, T=2)
    some = gpflow.kernels.Matern32(lengthscales=[0.5, 0.7], active_dims=[2, 0])
    every = gpflow.kernels.Linear(variance=[0.1, 0.2, 0.3])
    one = gpflow.kernels.SquaredExponential(lengthscales=0.9)
    table = pd.DataFrame(X, columns=["height", "hour", "wind"])
    values = monitoring.parameter_values(CoolMTGP((table, Y), some + every + one))
    assert values["kernel/kernels[0].lengthscales[wind]"] == pytest.approx(0.5)
    assert values["kernel/kernels[0].lengthscales[height]"] == pytest.approx(0.7)
    assert values["kernel/kernels[1].variance[hour]"] == pytest.approx(0.2)
    assert values["kernel/kernels[2].lengthscales"] == pytest.approx(0.9)


@pytest.mark.slow
def test_one_row_and_one_task_can_be_drawn(tmp_path):
    model = CoolMTGP(([[0.5]], [[1.0]]), kernel())
    Monitor(*tensorboard_tasks(model, tmp_path))(0)
    written = read(tmp_path)
    assert_allclose(written["b/task_0"][0], model.b.numpy()[0], rtol=FLOAT32)
    for tag in [*MATRICES, "predictions/task_0"]:
        assert tf.io.decode_png(written[tag][0][2]).numpy().std() > 20


def test_many_tasks_make_no_huge_picture(tmp_path):
    names = [f"task number {t}" for t in range(60)]
    ax = monitoring.matrix_axes(names)
    assert tuple(ax.figure.get_size_inches() * ax.figure.dpi) == (1080, 900)


def test_many_tasks_make_few_curves(tmp_path):
    names = [f"task_{t}" for t in range(60)]
    model = make_model(T=60, names=names)
    model.b.assign(np.linspace(1.0, 2.0, 60))
    tensorboard_tasks(model, tmp_path).scalars(0)
    written = read(tmp_path)
    assert len(written) < 30
    expected = {"smallest": 1.0, "quartile_1": 1.25, "median": 1.5, "largest": 2.0}
    for word, value in expected.items():
        assert_allclose(written[f"b/{word}"][0], value, rtol=1e-6)
    terms = model.conditional_log_likelihoods().numpy()
    assert_allclose(written["log_likelihood/median"][0], np.median(terms), rtol=1e-6)


def test_loss_contains_the_prior(tmp_path):
    model = make_model()
    one = np.float64(1.0)
    model.kernel.lengthscales.prior = tfp.distributions.LogNormal(one, one)
    tensorboard_tasks(model, tmp_path).scalars(3)
    loss = read(tmp_path)["objective/loss"]
    assert_allclose(loss[3], model.training_loss(), rtol=FLOAT32)
    assert abs(loss[3] + model.maximum_log_likelihood_objective()) > 0.1


def test_exact_model_has_its_own_terms_and_parameters(tmp_path):
    model = KroneckerMTGP(make_data(), kernel(), noise_rank="diagonal", task_names=NAMES)
    tensorboard_tasks(model, tmp_path).scalars(0)
    written = read(tmp_path)
    evidence = model.log_marginal_likelihood()
    assert_allclose(written["log_likelihood/evidence"][0], evidence, rtol=FLOAT32)
    for t, name in enumerate(NAMES):
        variance = model.noise.diagonal.numpy()[t]
        assert_allclose(written[f"noise/diagonal[{name}]"][0], variance, rtol=FLOAT32)
        for u in range(3):
            entry = model.signal.factor.numpy()[t, u]
            assert_allclose(written[f"signal/factor[{t},{u}]"][0], entry, rtol=FLOAT32)


def test_deleted_folder_is_written_anew(tmp_path):
    folder = tmp_path / "run"
    model = make_model()
    for step in range(2):
        tensorboard_tasks(model, folder).scalars(step)
        assert list(read(folder)["objective/loss"]) == [step]
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_drawing_leaves_pyplot_alone(tmp_path):
    backend, figures = matplotlib.get_backend(), plt.get_fignums()
    tensorboard_tasks(make_model(T=1), tmp_path).pictures(0)
    assert matplotlib.get_backend() == backend and plt.get_fignums() == figures


# fit -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("optimizer, steps", [("profile", None), ("adam", 11)])
def test_fit_writes_its_history(tmp_path, optimizer, steps):
    model = make_model()
    folder = tmp_path / "runs" / optimizer
    history = model.fit(optimizer, steps=steps, verbose=0, tensorboard=folder).history
    written = read(folder)
    tags = {"objective/loss": "loss", "objective/gradient_norm": "gradient_norm"}
    tags |= {f"log_likelihood/{name}": f"terms/{name}" for name in NAMES}
    for tag, name in tags.items():
        assert list(written[tag]) == list(range(len(history[name])))
        assert_allclose(list(written[tag].values()), history[name], rtol=FLOAT32)
    assert str(folder) not in ToTensorBoard.writers  # or open files would pile up


@pytest.mark.slow
def test_fit_ends_with_the_parameters_that_are_left(tmp_path):
    model = make_model(T=1)
    b = []
    callback = TensorBoardCallback(tmp_path, evidence_period=2, image_period=3)
    record = tf_keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: b.append(model.b.numpy()[0])
    )
    # At this rate the best parameters are not the last ones.
    adam = tf_keras.optimizers.Adam(1.5)
    loss = model.fit(adam, steps=5, verbose=0, callbacks=[callback, record]).history["loss"]
    assert np.argmin(loss) < 4
    written = read(tmp_path)
    evidence = written["objective/log_evidence"]
    assert list(evidence) == [0, 2, 4, 5]
    assert_allclose(evidence[5], model.log_marginal_likelihood(), rtol=FLOAT32)
    assert_allclose(list(written["b/heat"].values()), b, rtol=FLOAT32)
    for tag in [*MATRICES, PREDICTIONS[0]]:
        assert list(written[tag]) == [0, 3, 5]
        check_picture(written[tag][5][2])


@pytest.mark.slow
def test_fit_shares_a_folder_with_the_users_tasks(tmp_path):
    model = make_model(T=1)
    task = ScalarToTensorBoard(str(tmp_path), lambda: 1.5, "mine")
    task(0)
    model.fit(steps=1, verbose=0, tensorboard=str(tmp_path))
    task(1)
    assert read(tmp_path)["mine"] == {0: 1.5, 1: 1.5}


def test_step_without_a_number_is_recorded_and_not_drawn(tmp_path):
    model = make_model()
    callback = TensorBoardCallback(tmp_path)
    callback.set_model(KerasView(model))
    callback.on_train_begin({})
    model.kernel.lengthscales.unconstrained_variable.assign(np.nan)
    terms = {f"terms/{name}": np.nan for name in NAMES}
    callback.on_epoch_end(0, {"loss": np.nan, "gradient_norm": np.nan, **terms})
    callback.on_train_end({})
    written = read(tmp_path)
    assert np.isnan(written["objective/loss"][0])
    assert not set(written) & {"objective/log_evidence", *MATRICES}


# Refusals ------------------------------------------------------------------------------------


def test_fit_refuses_a_file_at_once(tmp_path):
    model = make_model()
    before = [variable.numpy() for variable in model.trainable_variables]
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    message = f"tensorboard={str(path)!r} is a file: choose a folder, which may be new."
    with pytest.raises(ValueError, match=re.escape(message)):
        model.fit(verbose=0, tensorboard=path)
    assert path.read_text() == "mine"
    for variable, value in zip(model.trainable_variables, before, strict=True):
        assert np.array_equal(variable.numpy(), value)


@pytest.mark.parametrize("value", [True, 3, ["logs"]])
def test_fit_refuses_what_is_no_path(value):
    with pytest.raises(ValueError, match=r"tensorboard=.* must be the path of a folder, such as"):
        make_model().fit(verbose=0, tensorboard=value)


def test_tasks_refuse_a_folder_below_a_file(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ValueError, match=r"log_dir='.*run' cannot be written to \(.*\): choose"):
        tensorboard_tasks(make_model(), tmp_path / "notes" / "run")


@pytest.mark.parametrize("name", ["period", "evidence_period", "image_period"])
@pytest.mark.parametrize("make", [lambda path, **k: tensorboard_tasks(None, path, **k), None])
def test_periods_must_be_positive(tmp_path, name, make):
    make = make or TensorBoardCallback
    with pytest.raises(ValueError, match=f"^{name}=0 must be a whole number of at least 1"):
        make(tmp_path, **{name: 0})


# What is imported ----------------------------------------------------------------------------
