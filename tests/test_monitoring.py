"""What is written is read back by TensorBoard's own reader, and by its server over HTTP."""

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter

import gpflow
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras
from gpflow.monitor import Monitor, ScalarToTensorBoard, ToTensorBoard
from numpy.testing import assert_allclose
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpflow_cool import CoolMTGP, KroneckerMTGP, linalg, monitoring, plotting
from gpflow_cool.callbacks import KerasView
from gpflow_cool.monitoring import TensorBoardCallback, task_matrices, tensorboard_tasks

NAMES = ("heat", "CO2 / ppm", "Größe [m]")
MATRICES = [f"matrices/{name}" for name in ["C", "C_correlation", "Sigma", "Sigma_correlation"]]
PREDICTIONS = [f"predictions/{name}" for name in NAMES]
FLOAT32 = 1e-6


def kernel():
    return gpflow.kernels.SquaredExponential(lengthscales=0.5)


def make_data(D=1, T=3, N=12):
    rng = np.random.default_rng(7)
    X = rng.uniform(size=[N, D])
    phase = np.arange(T)
    return X, np.sin(6 * X[:, :1] + phase) + 0.2 * rng.standard_normal([N, T])


def make_model(D=1, T=3, names=NAMES, mean_function=None):
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(D, 0.5) if D > 1 else 0.5)
    return CoolMTGP(make_data(D, T), kernel, mean_function, task_names=names[:T])


def read(folder):
    """Everything in a folder by tag and step, as TensorBoard reads it."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        tag: {e.step: tf.make_ndarray(e.tensor_proto) for e in events.Tensors(tag)}
        for tag in events.Tags()["tensors"]
    }


def numbers_of(model):
    """What the scalars of a model should be, by tag."""
    values = {"objective/loss": model.training_loss()}
    terms = model.conditional_log_likelihoods().numpy()
    for name, term, b, sigma2 in zip(
        NAMES, terms, model.b.numpy(), model.sigma2.numpy(), strict=True
    ):
        values |= {f"log_likelihood/{name}": term, f"b/{name}": b, f"sigma2/{name}": sigma2}
    for t, name in enumerate(NAMES):
        values[f"mean_function/c[{name}]"] = model.mean_function.c.numpy()[t]
    values["kernel/variance"] = model.kernel.variance.numpy()
    values["kernel/lengthscales"] = model.kernel.lengthscales.numpy()
    return {tag: float(value) for tag, value in values.items()}


def check_picture(png):
    """A PNG of a sensible size that shows something."""
    assert bytes(png).startswith(b"\x89PNG")
    pixels = tf.io.decode_png(png).numpy()
    assert pixels.shape[2] == 3
    assert 250 <= pixels.shape[0] <= 600 and 300 <= pixels.shape[1] <= 800
    assert np.all(pixels[:3] == 255) and np.all(pixels[:, :1] == 255)  # nothing is cut off
    assert pixels.std() > 20 and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
    return pixels


def count_factorisations(monkeypatch):
    calls = Counter()
    lapack_eigh = linalg.lapack_eigh

    def counted(K):
        calls["eigh"] += 1
        return lapack_eigh(K)

    monkeypatch.setattr(linalg, "lapack_eigh", counted)
    return calls


# Hand-written loops --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """Folder of a loop of Adam's over five steps, and what the model had at each."""
    folder = tmp_path_factory.mktemp("tensorboard") / "new" / "loop"
    model = make_model(mean_function=gpflow.mean_functions.Constant(np.zeros(3)))
    optimizer = tf_keras.optimizers.Adam(0.1)
    monitor = Monitor(*tensorboard_tasks(model, folder, evidence_period=2, image_period=4))
    seen = []
    for step in range(5):
        optimizer.minimize(model.training_loss, model.trainable_variables)
        monitor(step)
        seen.append({**numbers_of(model), "evidence": float(model.log_marginal_likelihood())})
    return folder, seen


@pytest.mark.slow
def test_loop_writes_every_number_at_every_step(loop):
    folder, seen = loop
    written = read(folder)
    for step, values in enumerate(seen):
        evidence = values.pop("evidence")
        if step % 2 == 0:
            assert_allclose(written["objective/log_evidence"][step], evidence, rtol=FLOAT32)
        for tag, value in values.items():
            assert_allclose(written[tag][step], value, rtol=FLOAT32, err_msg=tag)
        values["evidence"] = evidence
    assert list(written["objective/log_evidence"]) == [0, 2, 4]
    scalars = set(seen[0]) - {"evidence"} | {"objective/log_evidence"}
    assert set(written) == scalars | set(MATRICES) | set(PREDICTIONS)
    assert all(len(written[tag]) == 5 for tag in scalars - {"objective/log_evidence"})
    assert seen[4]["b/heat"] != pytest.approx(seen[0]["b/heat"], rel=1e-3)  # it did train


@pytest.mark.slow
def test_loop_writes_pictures(loop):
    written = read(loop[0])
    pictures = {}
    for tag in MATRICES + PREDICTIONS:
        assert list(written[tag]) == [0, 4]
        for step, (width, height, png) in written[tag].items():
            pixels = pictures[tag, step] = check_picture(png)
            assert pixels.shape[:2] == (int(height), int(width))
        assert np.any(pictures[tag, 0] != pictures[tag, 4])  # the model has changed
    assert np.any(pictures["matrices/C", 4] != pictures["matrices/Sigma", 4])


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


@pytest.mark.slow
def test_what_the_loop_knows_is_not_computed(tmp_path, monkeypatch):
    model = make_model()
    tasks = tensorboard_tasks(model, tmp_path)
    calls = count_factorisations(monkeypatch)
    tasks.scalars(0, loss=12.5, terms=[1.0, 2.0, 3.0], gradient_norm=0.25)
    assert calls["eigh"] == 0
    tasks.evidence(0, loss=12.5)
    assert calls["eigh"] == 1
    tasks.pictures(0, loss=12.5)
    assert calls["eigh"] == 2  # one for all seven pictures
    written = read(tmp_path)
    assert written["objective/loss"][0] == 12.5
    assert written["objective/gradient_norm"][0] == 0.25
    assert [float(written[f"log_likelihood/{name}"][0]) for name in NAMES] == [1.0, 2.0, 3.0]


@pytest.mark.slow
def test_monitor_serves_as_step_callback_of_scipy(tmp_path):
    model = make_model()
    monitor = Monitor(tensorboard_tasks(model, tmp_path, period=2).scalars)
    gpflow.optimizers.Scipy().minimize(
        model.training_loss,
        model.trainable_variables,
        step_callback=monitor,
        options={"maxiter": 4},
    )
    loss = read(tmp_path)["objective/loss"]
    assert list(loss) == [0, 2]
    assert loss[2] < loss[0]


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


# TensorBoard itself --------------------------------------------------------------------------


def get(url):
    """What a loopback address answers, without any proxy of the environment."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return answer.read()


def wait_for(condition, what, seconds=180):
    """First true value of the condition, asked again until then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"no {what} within {seconds} seconds")


@pytest.fixture(scope="module")
def server(loop, tmp_path_factory):
    """Address of a TensorBoard server of the folder above the loop's."""
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(loop[0].parent)]
    command += ["--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)

    def address():
        assert process.poll() is None, log.read_text()
        return re.search(r"http://127\.0\.0\.1:\d+", log.read_text())

    try:
        yield wait_for(address, "address of a server").group()
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_server_gives_scalars_and_pictures(server, loop):
    def tags(plugin, wanted):
        known = json.loads(get(f"{server}/data/plugin/{plugin}/tags")).get("loop", {})
        return known if wanted <= set(known) else None

    def ask(plugin, what, tag):
        query = urllib.parse.urlencode({"run": "loop", "tag": tag, "sample": 0})
        return json.loads(get(f"{server}/data/plugin/{plugin}/{what}?{query}"))

    folder, seen = loop
    written = read(folder)
    scalars = set(seen[0]) - {"evidence"} | {"objective/log_evidence"}
    pictures = set(MATRICES + PREDICTIONS)
    assert set(wait_for(lambda: tags("scalars", scalars), "scalars")) == scalars
    assert set(wait_for(lambda: tags("images", pictures), "pictures")) == pictures
    for tag in ["objective/loss", *(f"b/{name}" for name in NAMES), "kernel/lengthscales"]:
        steps, values = zip(*((s, v) for _, s, v in ask("scalars", "scalars", tag)), strict=True)
        assert steps == (0, 1, 2, 3, 4)
        assert_allclose(values, [numbers[tag] for numbers in seen], rtol=FLOAT32)
    for tag in pictures:
        entries = ask("images", "images", tag)
        assert [entry["step"] for entry in entries] == [0, 4]
        png = get(f"{server}/data/plugin/images/individualImage?{entries[1]['query']}")
        assert png == written[tag][4][2]
    assert b"<title>TensorBoard</title>" in get(server)


@pytest.mark.slow
def test_importing_the_package_imports_neither_tensorboard_nor_matplotlib():
    code = (
        "import sys, gpflow; before = set(sys.modules); import gpflow_cool;"
        " print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = set(run.stdout.split())
    assert "gpflow_cool" in new and not new & {"tensorboard", "matplotlib", "pandas", "sklearn"}
