"""The demo, run as a user runs it: its numbers computed again, its figures looked into."""

import re
from pathlib import Path

import commands
import matplotlib.pyplot as plt
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from gpflow_cool.cli import demo
from gpflow_cool.datasets import clustered_two_task, uniform_two_task

SEED = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder and printed text of one run."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "figures"
    result = commands.run("demo", "--out", folder, "--seed", SEED)
    assert result.exit_code == 0, result.output
    return folder, result.stdout


@pytest.fixture(scope="module")
def model():
    return demo.fit(clustered_two_task(seed=SEED))


def numbers(text, start):
    """The numbers in the line of the text that starts so, after that start."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return [float(word) for word in re.findall(r"-?\d+\.\d+", line.strip().removeprefix(start))]


def test_matrices_are_the_models_and_the_truth(run, model):
    lines = run[1].splitlines()
    head = next(i for i, line in enumerate(lines) if "learned C" in line)
    assert lines[head].split() == ["learned", "C", "learned", "Sigma", "true", "Sigma"]
    printed = np.array([[float(word) for word in line.split()] for line in lines[head + 1 :][:2]])
    assert_allclose(printed[:, :2], model.task_covariance(), atol=1e-3)
    assert_allclose(printed[:, 2:4], model.noise_covariance(), atol=1e-3)
    assert_allclose(printed[:, 4:], [[0.1, 0.05], [0.05, 0.1]])
    Sigma = model.noise_covariance().numpy()
    correlation = Sigma[0, 1] / np.sqrt(Sigma[0, 0] * Sigma[1, 1])
    assert_allclose(numbers(run[1], "Noise correlation"), [correlation, 0.5], atol=1e-3)


def test_scores_equal_loops_over_held_out_rows(run, model):
    data = uniform_two_task(seed=SEED + 1)
    x = 2 * np.pi * data.X[:, 0]
    truth = np.column_stack([np.cos(x), np.sin(x)])
    mean, cov = (a.numpy() for a in model.predict_y(data.X, full_output_cov=True))
    noise = np.tile([[0.1, 0.05], [0.05, 0.1]], [len(x), 1, 1])
    errors, inside, density = [], {1: [], 2: []}, []
    for m, S in [(mean, cov), (truth, noise)]:
        r = data.Y - m
        errors.extend(np.sqrt(np.mean(r**2, axis=0)))
        for k, fractions in inside.items():
            z = r / np.sqrt([np.diag(s) for s in S])
            fractions.extend(np.mean(np.abs(z) <= k, axis=0))
        rows = zip(data.Y, m, S, strict=True)
        density.append(-np.mean([multivariate_normal(c, s).logpdf(y) for y, c, s in rows]))
    assert_allclose(numbers(run[1], "RMSE"), errors, atol=1e-3)
    assert_allclose(numbers(run[1], "coverage at 1 sigma"), [0.683, *inside[1]], atol=2e-3)
    assert_allclose(numbers(run[1], "coverage at 2 sigma"), [0.954, *inside[2]], atol=2e-3)
    assert_allclose(numbers(run[1], "joint NLPD"), density, atol=1e-3)


def test_model_beats_the_constant_and_not_the_truth(run):
    cos, sin, *best = numbers(run[1], "RMSE")
    assert best[0] <= cos < 0.7 and best[1] <= sin < 0.7  # a constant has sqrt(1/2 + 0.1) = 0.77


def test_figures_are_written_where_it_says(run):
    folder, text = run
    assert f"Figures in {folder}: confidence_bands.png, level_curves.png" in text
    assert sorted(file.name for file in folder.iterdir()) == [
        "confidence_bands.png",
        "level_curves.png",
    ]
    for file in folder.iterdir():
        pixels = plt.imread(file)
        assert pixels.shape[0] > 500 and pixels.shape[1] > 1500
        assert pixels[..., :3].std() > 0.05 and np.ptp(pixels[..., 0] - pixels[..., 2]) > 0.5


def test_bands_show_the_true_function(model):
    for ax, true in zip(demo.bands_figure(model).axes, [np.cos, np.sin], strict=True):
        (line,) = [line for line in ax.lines if line.get_label() == "true function"]
        x = line.get_xdata()
        assert_allclose(line.get_ydata(), true(2 * np.pi * x), atol=1e-12)
        assert (x[0], x[-1]) == (0.0, 1.0)


def test_level_curves_are_of_the_model_and_the_truth(model):
    axes = demo.level_curves_figure(model, seed=0).axes
    mean, cov = (
        a.numpy() for a in model.predict_y(np.array([[0], [0.25], [0.5]]), full_output_cov=True)
    )
    truths = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    for i, (ax, title) in enumerate(zip(axes, ["0", "0.25", "0.5"], strict=True)):
        assert ax.get_title() == f"$x^* = {title}$"
        first = {line.get_label(): line.get_xydata() for line in ax.lines}
        for label, centre, S in [
            ("Cool-MTGP", mean[i], cov[i]),
            ("true law", truths[i], np.array([[0.1, 0.05], [0.05, 0.1]])),
        ]:
            r = first[label] - centre
            assert_allclose(np.einsum("pi,ij,pj->p", r, np.linalg.inv(S), r), 1.0, rtol=1e-8)
        draws = first["draws of the true law"]
        assert_allclose(draws.mean(axis=0), truths[i], atol=0.1)  # over four standard errors
        assert_allclose(np.cov(draws.T), [[0.1, 0.05], [0.05, 0.1]], atol=0.05)


def test_nothing_is_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "level_curves.png").write_text("mine")
    (tmp_path / "out_1").write_text("a file of mine")
    assert demo.fresh_folder(Path("out")) == Path("out_2")
    assert demo.fresh_folder(Path("out")) == Path("out_3")
    assert demo.fresh_folder(Path(".")) == Path("demo_output")
    assert demo.fresh_folder(Path(".")) == Path("demo_output_1")
    assert (tmp_path / "out" / "level_curves.png").read_text() == "mine"
    assert (tmp_path / "out_1").read_text() == "a file of mine"


@pytest.mark.parametrize(
    "seed, message",
    [
        ("-1", "'-1' is not a whole number of at least 0"),
        ("one", "'one' is not a whole number of at least 0"),
        ("0.5", "'0.5' is not a whole number of at least 0"),
    ],
)
def test_bad_seed_is_refused(seed, message):
    assert message in commands.mistake("demo", "--seed", seed)


def test_impossible_folder_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    line = commands.mistake("demo", "--out", tmp_path / "file" / "figures")
    assert "file is not a folder: choose another place" in line
