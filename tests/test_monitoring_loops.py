"""Loops of one's own that are monitored: read back by TensorBoard's reader, and by its server."""

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter

import gpflow
import numpy as np
import pytest
from event_files import FLOAT32, MATRICES, NAMES, PREDICTIONS, check_picture, make_model, read
from gpflow.keras import tf_keras
from gpflow.monitor import Monitor
from numpy.testing import assert_allclose

from gpflow_cool import linalg
from gpflow_cool.monitoring import tensorboard_tasks


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
    values["weight_variance"] = model.weight_variance.numpy()
    return {tag: float(value) for tag, value in values.items()}


def count_factorisations(monkeypatch):
    calls = Counter()
    lapack_eigh = linalg.lapack_eigh

    def counted(K):
        calls["eigh"] += 1
        return lapack_eigh(K)

    monkeypatch.setattr(linalg, "lapack_eigh", counted)
    return calls


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
