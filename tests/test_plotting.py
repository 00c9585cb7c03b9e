"""What is drawn, read back from the artists, against what was to be drawn."""

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool.plotting import (
    CALIBRATION_LEVELS,
    calibration_curves,
    cell_text,
    cluster_order,
    level_curve,
    plot_bands,
    plot_calibration,
    plot_level_curves,
    plot_predicted,
    plot_task_matrix,
)


class StandIn(gpflow.models.GPR):
    """GPflow's own regression with the one property that the figures need besides."""

    task_names = ("a", "b")


@pytest.fixture
def model(rng):
    X = rng.uniform(size=[8, 1])
    Y = np.hstack([np.cos(6 * X), np.sin(6 * X)]) + 0.1 * rng.standard_normal([8, 2])
    kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
    return StandIn((X, Y), kernel, noise_variance=0.05)


def saved(ax, path):
    """Pixels [height, width, 4] of the axes' figure, as written to a file."""
    ax.figure.savefig(path)
    return plt.imread(path)


@pytest.mark.parametrize("T", [1, 2, 8, 9])
def test_heat_map_shows_the_matrix(rng, tmp_path, T):
    A = rng.standard_normal([T, T])
    names = [f"task {t}" for t in range(T)]
    ax = plot_task_matrix(A, names, title="C")
    (image,) = ax.images
    assert_array_equal(image.get_array(), A)
    assert image.norm.vmin == -np.abs(A).max() and image.norm.vmax == np.abs(A).max()
    assert ax.get_title() == "C"
    assert [label.get_text() for label in ax.get_xticklabels()] == names
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    cells = {text.get_position(): text.get_text() for text in ax.texts}
    shown = (
        {(j, i): cell_text(A[i, j], np.abs(A).max()) for i in range(T) for j in range(T)}
        if T <= 8
        else {}
    )
    assert cells == shown
    assert len(ax.figure.axes) == 2  # the colour bar
    assert saved(ax, tmp_path / "matrix.png").std() > 0.05


def test_heat_map_is_white_at_zero_and_legible_at_the_ends():
    ax = plot_task_matrix([[1.0, 0.0], [-1.0, 0.5]], limit=1.0)
    (image,) = ax.images
    assert_allclose(image.to_rgba(0.0)[:3], 1.0, atol=0.05)
    assert image.to_rgba(1.0)[0] > image.to_rgba(1.0)[2]  # positive is red, negative is blue
    assert image.to_rgba(-1.0)[0] < image.to_rgba(-1.0)[2]
    for text, value in zip(ax.texts, [1.0, 0.0, -1.0, 0.5], strict=True):
        contrast = np.mean(to_rgb(text.get_color())) - np.mean(image.to_rgba(value)[:3])
        assert abs(contrast) > 0.4


@pytest.mark.parametrize(
    "value, limit, text",
    [
        (0.1234, 0.5, "0.12"),
        (0.0052, 0.0052, "0.0052"),
        (0.638, 1.0, "0.64"),
        (1.0, 1.0, "1.00"),
        (3.0, 7.2, "3.0"),
        (-0.04, 7.2, "0.0"),
        (-8.6, 71.0, "-9"),
        (9999.0, 9999.0, "9999"),
        (-12300.0, 50000.0, "-1e+04"),
        (2e-5, 2e-5, "2e-05"),
        (0.0, 2e-5, "0"),
    ],
)
def test_cells_show_two_digits_of_the_largest(value, limit, text):
    assert cell_text(value, limit) == text


def test_heat_map_of_zeros_has_a_scale():
    (image,) = plot_task_matrix(np.zeros([3, 3])).images
    assert (image.norm.vmin, image.norm.vmax) == (-1.0, 1.0)


def test_heat_map_refuses_wrong_names():
    with pytest.raises(ValueError, match="names has 1 entries, but the matrix has 2 tasks"):
        plot_task_matrix(np.eye(2), ["only"])


def blocks_of_tasks(rng, T):
    """Correlation of T tasks in three groups, and the group of each, shuffled."""
    group = rng.permutation(np.arange(T) % 3)
    return 0.8 * (group[:, None] == group) + 0.2 * np.eye(T), group


@pytest.mark.parametrize("T", [1, 2, 3, 30, 300])
def test_clusters_stand_together(rng, T):
    R, group = blocks_of_tasks(rng, T)
    order = cluster_order(R)
    assert_array_equal(np.sort(order), np.arange(T))
    assert np.count_nonzero(np.diff(group[order])) == min(T, 3) - 1


def test_clusters_are_turned_towards_each_other():
    x = np.random.default_rng(0).permutation(40) / 40  # correlation falls with the distance
    order = cluster_order(np.exp(-3 * np.abs(x[:, None] - x)))
    steps = np.diff(x[order])
    assert np.mean(np.abs(steps)) < 1.6 / 40  # 1 / 40 at best, a third by chance


def test_unknown_correlations_count_as_none(rng):
    R, group = blocks_of_tasks(rng, 12)
    R[R == 0] = np.nan
    assert np.count_nonzero(np.diff(group[cluster_order(R)])) == 2


def test_heat_map_in_another_order(rng):
    A = rng.standard_normal([3, 3])
    ax = plot_task_matrix(A, ["a", "b", "c"], order=[2, 0, 1])
    assert_array_equal(ax.images[0].get_array(), A[[2, 0, 1]][:, [2, 0, 1]])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["c", "a", "b"]
    with pytest.raises(ValueError, match="must have each of the tasks 0 to 2 once"):
        plot_task_matrix(A, order=[0, 0, 1])
    with pytest.raises(ValueError, match="order has 2 entries, but the matrix has 3 tasks"):
        plot_task_matrix(A, order=[0, 1])


def test_labels_of_many_tasks_are_thinned(tmp_path):
    T, names = 400, [f"task {t}" for t in range(400)]
    ax = plot_task_matrix(np.eye(T), names)
    pixels = saved(ax, tmp_path / "many.png")
    labels = ax.get_yticklabels()
    step = int(ax.get_yticks()[1])
    assert [label.get_text() for label in labels] == names[::step]
    assert ax.get_xlabel() == f"400 tasks, one in {step} is named"
    tops = np.array([label.get_window_extent().bounds for label in labels])  # x, y, width, height
    assert (np.abs(np.diff(tops[:, 1])) >= tops[1:, 3]).all()  # none on top of another
    assert pixels.std() > 0.02


@pytest.mark.parametrize("task, t", [(0, 0), (1, 1), ("b", 1)])
def test_bands_are_mean_and_two_sigma(model, rng, tmp_path, task, t):
    Xnew = rng.permutation(np.linspace(0, 1, 11))[:, None]
    ax = plot_bands(model, Xnew, task)
    x = np.sort(Xnew[:, 0])
    expected = {}
    for symbol, predict in [("y", model.predict_y), ("f", model.predict_f)]:
        mean, var = (a.numpy()[:, t] for a in predict(x[:, None]))
        expected[symbol] = (mean - 2 * var**0.5, mean + 2 * var**0.5)
    for band, symbol in zip(ax.collections, ["y", "f"], strict=True):
        assert band.get_label() == rf"${symbol}$ $\pm$ 2 sigma"
        vertices = band.get_paths()[0].vertices
        low, high = (np.column_stack([x, side]) for side in expected[symbol])
        assert_allclose(unique_rows(vertices), unique_rows(np.vstack([low, high])), atol=1e-12)
    line, dots = ax.lines
    assert_array_equal(line.get_xdata(), x)
    assert_allclose(line.get_ydata(), sum(expected["f"]) / 2, atol=1e-12)
    assert_array_equal(dots.get_xdata(), model.data[0].numpy()[:, 0])
    assert_array_equal(dots.get_ydata(), model.data[1].numpy()[:, t])
    assert ax.get_title() == "ab"[t]
    assert saved(ax, tmp_path / "bands.png").std() > 0.05


def unique_rows(points):
    """Rows in order, without repetitions and rounded so that equal ones compare equal."""
    return np.unique(np.round(points, 10), axis=0)


def test_bands_draw_given_data_and_width(model):
    X, Y = [[0.1], [0.2]], [[1.0, 2.0], [3.0, 4.0]]
    ax = plot_bands(model, [[0.5]], 1, data=(X, Y), num_sigma=1.0, legend=False)
    assert_array_equal(ax.lines[1].get_xydata(), [[0.1, 2.0], [0.2, 4.0]])
    _, var = model.predict_y(np.array([[0.5]]))
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert_allclose(np.ptp(heights), 2 * var.numpy()[0, 1] ** 0.5, rtol=1e-12)
    assert ax.get_legend() is None


def test_bands_refuse_what_cannot_be_drawn(model):
    with pytest.raises(ValueError, match="Xnew has 2 columns: bands can be drawn over one input"):
        plot_bands(model, np.zeros([3, 2]), 0)
    with pytest.raises(ValueError, match="task='c' is not known. Choose one of: a, b"):
        plot_bands(model, [[0.0]], "c")
    with pytest.raises(ValueError, match="task=2, but the model has tasks 0 to 1"):
        plot_bands(model, [[0.0]], 2)


def test_level_curves_are_at_their_distance(rng, tmp_path):
    A = rng.standard_normal([2, 3])
    mean, cov = rng.standard_normal(2), A @ A.T
    ax = plot_level_curves(mean, cov, label="law", names=("a", "b"))
    *curves, centre = ax.lines
    for level, curve in zip([1.0, 2.0, 3.0], curves, strict=True):
        r = curve.get_xydata() - mean
        distance = np.einsum("pi,ij,pj->p", r, np.linalg.inv(cov), r)
        assert_allclose(distance, level**2, rtol=1e-8)
        assert_allclose(r[0], r[-1], atol=1e-12)
        steps = np.diff(np.unwrap(np.arctan2(r[:, 1], r[:, 0])))
        assert_allclose(abs(steps.sum()), 2 * np.pi)  # once around
    assert_array_equal(centre.get_xydata(), [mean])
    assert ax.get_legend_handles_labels()[1] == ["law"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "b")
    assert saved(ax, tmp_path / "levels.png").std() > 0.05


def test_level_curve_of_a_singular_covariance_is_a_segment():
    points = level_curve([1.0, 2.0], [[1.0, 1.0], [1.0, 1.0]], level=2.0)
    assert_allclose(points[:, 1] - points[:, 0], 1.0, atol=1e-7)
    assert_allclose([points[:, 0].min(), points[:, 0].max()], [-1.0, 3.0], atol=1e-3)


def test_calibration_is_the_fraction_inside(rng, tmp_path):
    mean, var = rng.normal(size=[50, 2]), rng.uniform(0.5, 2.0, size=[50, 2])
    Y = mean + np.sqrt(var) * rng.normal(size=[50, 2]) * [1.0, 3.0]
    ax = plot_calibration(Y, mean, var, ["good", "too sure"])
    diagonal, *curves = ax.lines
    assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    half = 0.6744897501960817  # of a normal distribution is within so many deviations
    for t, curve in enumerate(curves):
        x, y = curve.get_data()
        inside = np.mean(np.abs(Y[:, t] - mean[:, t]) <= half * np.sqrt(var[:, t]))
        assert_array_equal(x, CALIBRATION_LEVELS)
        assert y[np.isclose(x, 0.5)] == inside and y[0] == 0 and y[-1] == 1
        assert curve.get_label() == ["good", "too sure"][t]
    assert curves[1].get_ydata()[20] < curves[0].get_ydata()[20]
    assert_array_equal(
        calibration_curves(Y, mean, var, [0.5])[0], [c.get_ydata()[20] for c in curves]
    )
    assert plot_calibration(Y, mean, var, legend=False).get_legend() is None
    assert saved(ax, tmp_path / "calibration.png").std() > 0.05


@pytest.mark.parametrize("num_points", [7, 600])
def test_predictions_against_observations(rng, tmp_path, num_points):
    y, std = rng.normal(size=num_points), rng.uniform(0.1, 0.2, size=num_points)
    mean = y + std
    ax = plot_predicted(y, mean, std, title="task", num_sigma=3.0)
    diagonal, dots = ax.lines
    assert_array_equal(dots.get_xydata(), np.column_stack([y, mean]))
    assert_allclose(diagonal.get_xdata(), [y.min(), mean.max()])
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("observed", "predicted", "task")
    if num_points < 100:
        bars = np.array(ax.collections[0].get_segments())  # [N, 2, 2]
        assert_allclose(np.sort(bars[:, 1, 1] - bars[:, 0, 1]), np.sort(6 * std), rtol=1e-12)
    else:
        assert not ax.collections  # too many for bars
    assert saved(ax, tmp_path / "predicted.png").std() > 0.02


def test_given_axes_are_used_and_pyplot_keeps_nothing(model):
    open_before = plt.get_fignums()
    for draw in (
        lambda ax: plot_task_matrix(np.eye(2), ax=ax),
        lambda ax: plot_bands(model, [[0.0], [1.0]], 0, ax),
        lambda ax: plot_level_curves(np.zeros(2), np.eye(2), ax),
        lambda ax: plot_calibration(np.eye(2), np.zeros([2, 2]), np.ones([2, 2]), ax=ax),
        lambda ax: plot_predicted(np.arange(3), np.ones(3), np.ones(3), ax),
    ):
        draw(None)
        assert plt.get_fignums() == open_before
        figure, ax = plt.subplots()
        assert draw(ax) is ax and ax.has_data()
        plt.close(figure)
