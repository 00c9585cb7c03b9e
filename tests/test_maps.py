"""What maps show, read back from the artists, against predictions at the same places."""

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from gpflow_cool import CoolMTGP, CoolMTGPRegressor
from gpflow_cool.plotting import map_grid, plot_map, plot_maps
from gpflow_cool.plotting.cells import simulate_cells, unit_ratio


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=[25, 3]) * [4.0, 2.0, 1.0]
    Y = 10 + np.stack([np.sin(X[:, 0]) + X[:, 2], np.cos(X[:, 1])], axis=1)
    Y += 0.1 * rng.normal(size=Y.shape)
    Y[3, 1] = np.nan
    return X, Y


@pytest.fixture(scope="module")
def estimator(data):
    X, Y = data
    names = ["lon", "lat", "depth"]
    frame = pd.DataFrame(Y, columns=["Cd", "Cu"])
    return CoolMTGPRegressor("matern52", ard=False).fit(pd.DataFrame(X, columns=names), frame)


@pytest.fixture(scope="module")
def model(data):
    X, Y = data
    Y = np.nan_to_num(Y, nan=10.0) - 10
    return CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(), task_names=["Cd", "Cu"])


def cells_of(ax):
    """x, y and value of each cell that is drawn, and the dots on top."""
    mesh, *dots = ax.collections
    corners = mesh.get_coordinates()  # [H + 1, W + 1, 2]
    centres = (corners[1:, 1:] + corners[:-1, :-1]) / 2
    return centres[..., 0].ravel(), centres[..., 1].ravel(), np.ravel(mesh.get_array()), dots


def test_cells_are_square_and_cover_the_data(data):
    X = data[0]
    grid = map_grid(X, (0, 1), cells=20)
    assert len(grid.x) == 20 and len(grid.points) == len(grid.x) * len(grid.y)
    assert_allclose(np.diff(grid.x)[0], np.diff(grid.y)[0], rtol=0.1)
    step = np.diff(grid.x)[0] / 2
    width = np.ptp(X[:, 0])
    assert_allclose(grid.x[0] - step, X[:, 0].min() - 0.05 * width)
    assert_allclose(grid.x[-1] + step, X[:, 0].max() + 0.05 * width)
    assert_allclose(grid.points[:, 2], X[:, 2].mean())
    assert_allclose(grid.image(grid.points)[3, 5], [grid.x[5], grid.y[3], X[:, 2].mean()])
    other = map_grid(X, (2, 0), cells=(5, 7), at=[9.0, 8.0, 7.0])
    assert (len(other.x), len(other.y)) == (5, 7) and (other.points[:, 1] == 8.0).all()
    assert_allclose(other.x.mean(), (X[:, 2].max() + X[:, 2].min()) / 2)


@pytest.mark.parametrize(
    "names, ratio",
    [
        (("x", "y"), 1.0),
        (("Yloc", "Xloc"), 1.0),
        (("utm_x", "utm_y"), 1.0),
        (("x_m", "z_m"), 1.0),
        (("Northing", "Easting"), 1.0),
        (("x0", "x1"), 1.0),
        (("depth (m)", "reach (m)"), 1.0),
        (("depth (m)", "time (s)"), None),
        (("depth (m)", "depth"), None),
        (("Longitude", "lat"), 0.5),
        (("lat", "lon"), None),  # 500 degrees
        (("temperature", "pressure"), None),
        (("lon", "depth"), None),
        (("max", "min"), None),
        (("x", "x"), 1.0),
    ],
)
def test_units_that_names_tell(names, ratio):
    found = unit_ratio(names, np.array([[500.0, 59.0], [510.0, 61.0]]))
    assert found == (ratio if ratio is None else pytest.approx(ratio))


def test_degrees_are_as_long_as_they_are():
    places = np.array([[60.0, 7.0], [60.0, 9.0]])
    assert unit_ratio(("lat", "lon"), places) == pytest.approx(2.0)  # one of latitude is two
    X = np.column_stack([np.linspace(0, 10, 20), np.linspace(57.5, 62.5, 20)])
    Y = np.sin(X)
    frame = pd.DataFrame(X, columns=["lon", "lat"])
    with pytest.warns(UserWarning, match="Beware: sigma2 of every task is at its lower bound"):
        regressor = CoolMTGPRegressor("se", ard=False).fit(frame, Y)
    ax = plot_map(regressor, cells=10)
    assert ax.get_aspect() == pytest.approx(2.0)
    assert ax.collections[0].get_coordinates().shape[:2] == (11, 11)  # 10 * cos(60) = 5 degrees
    assert plot_map(regressor, cells=10, aspect="equal").get_aspect() == 1.0
    wide = plot_map(regressor, cells=10, aspect="auto")
    assert wide.get_aspect() == "auto"
    with pytest.raises(ValueError, match="aspect='wide' is not known"):
        plot_map(regressor, aspect="wide")


def test_a_map_over_time_has_dates_and_stays_at_a_frequent_category(rng):
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(24) * 10, unit="D")
    table = pd.DataFrame({"day": days, "depth": rng.uniform(size=24), "soil": ["clay", *"s" * 23]})
    heat = np.sin(np.arange(24) / 4) + table.depth + 5 * (table.soil == "s")
    with pytest.warns(UserWarning, match="Beware: sigma2 of every task is at its lower bound"):
        regressor = CoolMTGPRegressor("se", ard=False).fit(table, heat.rename("heat"))
    assert regressor.encoded_kinds_ == ["date", "number", "indicator", "indicator"]
    ax = plot_map(regressor, "heat", x="day", y="depth", cells=5)
    assert ax.get_aspect() == "auto"
    ax.figure.canvas.draw()
    shown = [label.get_text() for label in ax.get_xticklabels()]
    assert "2024" in shown or "Mar" in shown
    x, y, values, _ = cells_of(ax)
    rows = pd.DataFrame({"day": pd.to_datetime(x, unit="D"), "depth": y, "soil": "s"})
    assert_allclose(values, regressor.predict(rows), rtol=1e-6)


def test_map_of_an_estimator_is_what_it_predicts(estimator, data, tmp_path):
    X, Y = data
    expected = {}
    for what in ["mean", "deviation", "probability"]:
        limit = 10.5 if what == "probability" else None
        ax = plot_map(estimator, "Cu", what, limit=limit, x="lat", y="depth", cells=6)
        x, y, values, dots = cells_of(ax)
        rows = pd.DataFrame({"lon": X[:, 0].mean(), "lat": x, "depth": y})
        mean, std = (part["Cu"].to_numpy() for part in estimator.predict(rows, return_std=True))
        expected = {"mean": mean, "deviation": std, "probability": norm.sf(10.5, mean, std)}
        assert_allclose(values, expected[what], rtol=1e-9, atol=1e-12)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("lat", "depth")
        known = ~np.isnan(Y[:, 1])
        drawn = dots[0].get_offsets() if what == "mean" else ax.lines[0].get_xydata()
        assert_allclose(drawn, X[known][:, [1, 2]], rtol=1e-12)
        if what == "mean":
            assert_allclose(dots[0].get_array(), Y[known, 1], rtol=1e-12)
            low, high = ax.collections[0].get_clim()
            assert low <= np.nanmin(Y[:, 1]) and high >= np.nanmax(Y[:, 1])
    ax.figure.savefig(tmp_path / "map.png")
    assert plt.imread(tmp_path / "map.png").std() > 0.05


def test_map_of_a_model_is_what_it_predicts(model):
    ax = plot_map(model, 1, "probability", limit=0.2, cells=(5, 4), at=[0, 0, 0.3], data=False)
    x, y, values, dots = cells_of(ax)
    mean, var = model.predict_y(np.stack([x, y, np.full(20, 0.3)], axis=1))
    assert_allclose(values, norm.sf(0.2, mean[:, 1], np.sqrt(var[:, 1])), rtol=1e-9)
    assert dots == [] and len(ax.lines) == 0


def test_a_figure_of_maps(estimator):
    limits = {"Cd": 10.0, "Cu": 9.5}
    what = ["deviation", "probability"]
    figure = plot_maps(estimator, ["Cu", "Cd"], what, limits=limits, simulations=2, cells=5)
    axes = [ax for ax in figure.axes if ax.get_title()]
    titles = ["Cu, deviation", "Cd, deviation", "P(Cu > 9.5)", "P(Cd > 10)"]
    titles += [f"{name}, simulation {s}" for s in (1, 2) for name in ("Cu", "Cd")]
    assert [ax.get_title() for ax in axes] == titles
    x, y, values, _ = cells_of(axes[7])
    grid = map_grid(estimator.training_data()[0], cells=5)
    assert_allclose(values, simulate_cells(estimator, grid.points, 2)[1, :, 0], rtol=1e-12)
    alone = cells_of(plot_map(estimator, "Cd", "probability", limit=10.0, cells=5))[2]
    assert_allclose(cells_of(axes[3])[2], alone, rtol=1e-12)


def test_places_of_tasks_without_a_limit_stay_empty(estimator):
    what = ["mean", "probability"]
    figure = plot_maps(estimator, what=what, limits={"Cu": 9.5}, cells=5)
    axes = np.reshape(figure.axes[:4], [2, 2])
    assert [ax.get_title() for ax in axes.flat] == ["Cd", "Cu", "", "P(Cu > 9.5)"]
    assert [ax.get_visible() for ax in axes.flat] == [True, True, False, True]
    assert [ax.get_xlabel() for ax in axes.flat] == ["lon", "", "", "lon"]
    assert [ax.get_ylabel() for ax in axes.flat] == ["lat", "", "", "lat"]
    alone = cells_of(plot_map(estimator, "Cu", "probability", limit=9.5, cells=5))[2]
    assert_allclose(cells_of(axes[1, 1])[2], alone, rtol=1e-12)


def test_simulations_have_the_posteriors_moments(estimator, data):
    rows = pd.DataFrame([[1.0, 1.0, 0.5], [1.2, 1.0, 0.5]], columns=["lon", "lat", "depth"])
    mean, cov = estimator.predict(rows, return_cov=True, include_noise=False)
    draws = estimator.simulate(rows, 4000, random_state=1)  # [2, 2, S]
    error = np.sqrt(np.diagonal(np.asarray(cov).reshape(2, 2, 2), axis1=1, axis2=2) / 4000)
    assert (np.abs(draws.mean(axis=2) - mean) < 4 * error).all().all()
    expected = np.asarray(cov).reshape(2, 2, 2)[1]
    assert_allclose(np.cov(draws[1]), expected, rtol=0.15, atol=0.05 * expected.max())


def test_mistakes_are_told(estimator):
    with pytest.raises(ValueError, match="task 'Pb' is not known. Choose one of: Cd, Cu"):
        plot_map(estimator, "Pb")
    with pytest.raises(ValueError, match="task 2 is not known: there are 0 to 1"):
        plot_map(estimator, 2)
    with pytest.raises(ValueError, match="input 'east' is not known. Choose one of: lon, lat"):
        plot_map(estimator, x="east")
    with pytest.raises(ValueError, match="x and y are both 'lat': a map needs two inputs"):
        plot_map(estimator, x="lat", y="lat")
    with pytest.raises(ValueError, match="what='median' is not known"):
        plot_map(estimator, what="median")
    with pytest.raises(ValueError, match="A map of probabilities needs a limit."):
        plot_maps(estimator, what=["probability"], limits={})
    with pytest.raises(ValueError, match='limit belongs to what="probability", not to .mean.'):
        plot_map(estimator, limit=1.0)
    with pytest.raises(ValueError, match="Input 1 never varies in the data"):
        map_grid([[0.0, 1.0], [1.0, 1.0]])


def test_given_axes_are_used_and_pyplot_keeps_nothing(model):
    before = plt.get_fignums()
    plot_map(model, cells=3)
    plot_maps(model, cells=3)
    assert plt.get_fignums() == before
    figure, ax = plt.subplots()
    assert plot_map(model, ax=ax, cells=3) is ax and ax.has_data()
    plt.close(figure)
