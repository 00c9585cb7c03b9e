# %% [markdown]
# # Several quantities on a grid of places and times
#
# At the end you have fitted an exact model to a field that is measured at all places at the same
# times, drawn its map and its course, filled the gaps that clouds leave, and added a new time step.
#
# Rows that are a Cartesian product of places and times have the kernel matrix
#
# $$K = K_\text{place} \otimes K_\text{time},$$
#
# if the kernel is a product of one kernel for places and one for times. Its eigenvalues are
# products of two eigenvalues, its eigenvectors Kronecker products. `CoolMTGP` notices this, and
# decomposes two small matrices in place of a large one.

# %%
import os
import time

import gpflow
import matplotlib.pyplot as plt
import numpy as np

from gpflow_cool import CoolMTGP
from gpflow_cool.grid import complete_grid, find_grid, grid_inputs
from gpflow_cool.metrics import mean_rmse

SMALL = os.environ.get("GPFLOW_COOL_SMALL") == "1"  # set by the tests
SIDE, MONTHS = (5, 8) if SMALL else (9, 20)
QUANTITIES = ["temperature", "humidity", "ozone"]
rng = np.random.default_rng(4)

# %% [markdown]
# ## A simulated field
# `grid_inputs` makes the inputs from the axes. We draw three quantities that mix two smooth
# functions of place and time. Their noise is correlated: what disturbs one instrument disturbs the
# others.

# %%
side, months = np.linspace(0.0, 1.0, SIDE), np.arange(float(MONTHS))
X = grid_inputs(side, side, months)


def kernel():
    place = gpflow.kernels.SquaredExponential(active_dims=[0, 1], lengthscales=0.3)
    return place * gpflow.kernels.Matern52(active_dims=[2], lengthscales=4.0)


root = np.linalg.cholesky(kernel()(X).numpy() + 1e-8 * np.eye(len(X)))
mixing = np.array([[1.0, 0.2], [-0.8, 0.5], [0.6, 0.9]])
noise = 0.35 * np.linalg.cholesky([[1.0, -0.7, 0.5], [-0.7, 1.0, -0.4], [0.5, -0.4, 1.0]])
truth = root @ rng.normal(size=[len(X), 2]) @ mixing.T
Y = truth + rng.normal(size=truth.shape) @ noise.T

# %% [markdown]
# The rows may come in any order. `find_grid` tells which axes a table has.

# %%
order = rng.permutation(len(X))
X, Y, truth = X[order], Y[order], truth[order]
grid = find_grid(X)
print("columns of the axes:", grid.groups, " points:", grid.shape, " rows:", len(X))
assert grid.is_full and grid.shape == (SIDE, SIDE, MONTHS)

# %% [markdown]
# ## The fit
# From 300 rows on the model takes the grid by itself; `engine="grid"` insists, and says why if it
# is not possible. We compare it with the model that decomposes the whole kernel matrix: both find
# the same, and the grid takes less than half of the processor's time.

# %%
seconds = {}
models = {}
for engine in ["grid", "spectral"]:
    models[engine] = CoolMTGP((X, Y), kernel(), engine=engine, task_names=QUANTITIES)
    start = time.process_time()
    models[engine].fit(verbose=0)
    seconds[engine] = time.process_time() - start
model = models["grid"]
print("correlation of the noise:\n", np.round(model.noise_correlation().numpy(), 2))
difference = model.training_loss() - models["spectral"].training_loss()
assert abs(float(difference)) < 1e-3
assert SMALL or seconds["grid"] < 0.5 * seconds["spectral"]

# %% [markdown]
# ## A map and a course
# Predictions are for any points, not only for those of the grid.

# %%
fine = np.linspace(0.0, 1.0, 30)
month = float(MONTHS // 2)
mean, _ = model.predict_f(grid_inputs(fine, fine, [month]))
figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
for t, ax in enumerate(axes):
    picture = ax.pcolormesh(fine, fine, mean.numpy()[:, t].reshape(30, 30).T, cmap="viridis")
    ax.set_title(f"{QUANTITIES[t]}, month {month:.0f}")
    figure.colorbar(picture, ax=ax)

# %%
times = np.linspace(0.0, MONTHS + 2.0, 80)
place = side[[SIDE // 2, 1]]
mean, var = model.predict_y(grid_inputs(place[None, :], times))
here = np.all(X[:, :2] == place, axis=1)
figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
for t, ax in enumerate(axes):
    m, deviation = mean.numpy()[:, t], np.sqrt(var.numpy()[:, t])
    ax.fill_between(times, m - 2 * deviation, m + 2 * deviation, alpha=0.3)
    ax.plot(times, m)
    ax.plot(X[here, 2], Y[here, t], "k.")
    ax.set_title(QUANTITIES[t])
    ax.set_xlabel("month")

# %% [markdown]
# ## Gaps
# Clouds hide half of the map in every fourth month, and one in four ozone measurements fails.
# `complete_grid` brings such a table back to a full grid, with NaN where there is no row. `fit`
# draws what is missing, and `impute` fills it in.

# %%
cloudy = (X[:, 2] % 4 == 1) & (X[:, 0] > 0.5)
seen = Y.copy()
seen[rng.uniform(size=len(X)) < 0.25, 2] = np.nan
X_full, Y_full = complete_grid(X[~cloudy], seen[~cloudy])
hidden = np.isnan(Y_full)
where = np.argsort(find_grid(X).cells)  # rows of X in the order of the completed grid
assert np.array_equal(X_full, X[where])

joint = CoolMTGP((X_full, Y_full), kernel(), engine="grid", task_names=QUANTITIES)
joint.fit(verbose=0, seed=0)
filled = joint.impute()
errors = {"all together": mean_rmse(Y[where][hidden, None], filled.Y.numpy()[hidden, None])}

# %% [markdown]
# One Gaussian process per quantity does not see what the other quantities say about the missing
# one.

# %%
alone = np.empty_like(Y_full)
for t in range(3):
    task = CoolMTGP((X_full, Y_full[:, t : t + 1]), kernel(), engine="grid")
    task.fit(verbose=0, seed=0)
    alone[:, t] = task.impute().Y.numpy()[:, 0]
errors["one by one"] = mean_rmse(Y[where][hidden, None], alone[hidden, None])
print({name: np.round(error, 3) for name, error in errors.items()})
inside = np.abs(Y[where] - filled.Y.numpy())[hidden] < 2 * filled.std.numpy()[hidden]
print("within two standard deviations:", np.round(inside.mean(), 3))
assert errors["all together"] < errors["one by one"]
assert 0.85 < inside.mean() <= 1.0

# %% [markdown]
# ## A new time step
# A new month for all places extends one axis. Train on from the present parameters: start the new
# model from the old kernel and `weight_variance`. `fit` solves for `b` and `sigma2` anyway.

# %%
old = CoolMTGP((X[X[:, 2] < MONTHS - 1], Y[X[:, 2] < MONTHS - 1]), kernel(), engine="grid")
first = old.fit(verbose=0)
new = CoolMTGP(
    (X, Y),
    gpflow.utilities.deepcopy(old.kernel),
    weight_variance=old.weight_variance.numpy(),
    engine="grid",
)
second = new.fit(verbose=0)
print("steps from scratch:", len(first.epoch), " steps with a month more:", len(second.epoch))
assert len(second.epoch) <= (1.0 if SMALL else 0.7) * len(first.epoch)
