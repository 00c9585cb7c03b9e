# %% [markdown]
# # Co-kriging heavy metals
#
# Cadmium is expensive to measure, nickel and zinc are cheap. At the end you have predicted cadmium
# where only the cheap metals were measured, drawn maps of it, of its uncertainty and of the
# probability that it exceeds a limit, and simulated how large the polluted area is.
#
# The design is that of the well-known Jura data: 359 sites on 5 by 6 km of soil, all metals at 259
# of them, and at the other 100 no cadmium. The concentrations here are simulated, so that we know
# the truth. Geostatisticians call
#
# $$\mathrm{vec}(Y) \sim N(0,\; C \otimes K + \Sigma \otimes I)$$
#
# an intrinsic coregionalization model with a nugget. Its usual trouble is that fitted matrices are
# not positive definite, or that sites must be the same for all metals. Here $C$ and $\Sigma$ are
# positive definite by construction, and a missing measurement is a NaN.

# %%
import os

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from pykrige.ok import OrdinaryKriging

from gpflow_cool import CoolMTGPRegressor
from gpflow_cool.plotting import map_grid, plot_map, plot_maps

SMALL = os.environ.get("GPFLOW_COOL_SMALL") == "1"  # set by the tests
rng = np.random.default_rng(3)

# %% [markdown]
# ## A field with three metals
# Concentrations are positive and skewed, so we model their logarithms. (In the units of the data,
# `CoolMTGPRegressor(target_transform="log")` does the same.) Functions and noises of the
# metals correlate.

# %%
metals = ["Cd", "Ni", "Zn"]
num_sites, num_without = (100, 30) if SMALL else (359, 100)
sites = pd.DataFrame(rng.uniform(size=[num_sites, 2]) * [5.0, 6.0], columns=["east", "north"])
C = 0.25 * np.array([[1.0, 0.8, 0.85], [0.8, 1.0, 0.7], [0.85, 0.7, 1.0]])
Sigma = 0.03 * np.array([[1.0, 0.4, 0.5], [0.4, 1.0, 0.3], [0.5, 0.3, 1.0]])
K = gpflow.kernels.Matern32(lengthscales=0.6)(sites.to_numpy()).numpy()
F = np.linalg.cholesky(K + 1e-9 * np.eye(num_sites)) @ rng.normal(size=[num_sites, 3])
F = F @ np.linalg.cholesky(C).T
Y = F + rng.normal(size=[num_sites, 3]) @ np.linalg.cholesky(Sigma).T
logs = pd.DataFrame(Y + np.log([1.0, 20.0, 75.0]), columns=metals)

observed = logs.copy()
observed.loc[: num_without - 1, "Cd"] = np.nan  # sites come in no order: these are as good as any
observed.notna().sum()

# %% [markdown]
# ## Cadmium at the other sites
# Ordinary kriging by PyKrige and a Gaussian process of cadmium alone see cadmium only. Co-kriging
# also sees nickel and zinc, which are known at the sites where cadmium is asked for: `impute` fills
# the gaps from all that was measured.

# %%
without, known = logs.index[:num_without], logs.index[num_without:]
places = sites.loc[known]
kriging = OrdinaryKriging(
    places.east, places.north, logs.Cd[known], variogram_model="spherical", nlags=15
)
kriged, _ = kriging.execute("points", sites.east[without], sites.north[without])

alone = CoolMTGPRegressor("matern32", ard=False).fit(sites.loc[known], logs.Cd[known])
cokriging = CoolMTGPRegressor("matern32", ard=False, random_state=0).fit(sites, observed)
filled = cokriging.impute(observed)

predictions = {
    "mean of cadmium": np.full(num_without, logs.Cd[known].mean()),
    "ordinary kriging (PyKrige)": np.asarray(kriged),
    "Gaussian process of cadmium": alone.predict(sites.loc[without]).to_numpy(),
    "co-kriging": filled.completed.Cd[without].to_numpy(),
}
truth = logs.Cd[without].to_numpy()
errors = {name: np.sqrt(np.mean((p - truth) ** 2)) for name, p in predictions.items()}
pd.Series(errors, name="RMSE of log Cd").to_frame().round(3)

# %%
inside = np.abs(predictions["co-kriging"] - truth) < 2 * filled.std.Cd[without]
print(f"{inside.mean():.0%} of the sites lie within two standard deviations")
assert errors["co-kriging"] < 0.85 * errors["ordinary kriging (PyKrige)"]
assert errors["co-kriging"] < 0.85 * errors["Gaussian process of cadmium"]
assert inside.mean() > 0.85

# %% [markdown]
# The model has learned how the metals vary together over space, and how their noises do:

# %%
cokriging.task_correlation_.round(2)

# %%
cokriging.noise_correlation_.round(2)

# %% [markdown]
# ## Maps
# The mean with the measurements on top, the deviation of a new measurement, and the probability of
# exceeding a limit. The same from the command line:
# `gpflow-cool map model --x east --y north --limits Cd=0.3,Zn=4.6 --out map.png`.

# %%
limits = {"Cd": 0.3, "Zn": 4.6}
cells = 15 if SMALL else 100
fig, axes = plt.subplots(2, 3, figsize=(11, 7.5), layout="constrained")
for row, (metal, limit) in zip(axes, limits.items(), strict=True):
    plot_map(cokriging, metal, "mean", row[0], cells=cells)
    plot_map(cokriging, metal, "deviation", row[1], cells=cells)
    plot_map(cokriging, metal, "probability", row[2], limit=limit, cells=cells)

# %% [markdown]
# ## Both limits at once
# Metals correlate, so the probability that both exceed their limits is no product of two
# probabilities. `probability` integrates over their joint distribution.

# %%
somewhere = pd.DataFrame({"east": [1.0, 2.5, 4.0], "north": [1.0, 3.0, 5.0]})
answer = pd.DataFrame(
    {
        "Cd": cokriging.probability(somewhere, {"Cd": limits["Cd"]}),
        "Zn": cokriging.probability(somewhere, {"Zn": limits["Zn"]}),
        "any": cokriging.probability(somewhere, limits, which="any"),
        "all": cokriging.probability(somewhere, limits, which="all"),
    }
)
assert np.allclose(answer["any"] + answer["all"], answer["Cd"] + answer["Zn"], atol=2e-3)
answer["product"] = answer["Cd"] * answer["Zn"]
answer.round(3)

# %% [markdown]
# ## How large is the polluted area?
# No map of probabilities tells this: neighbouring cells are polluted together. Simulations draw
# whole maps of all metals. Each gives an area, and together they give its distribution.

# %%
grid = map_grid(sites.to_numpy(), cells=20 if SMALL else 36)
cell_frame = pd.DataFrame(grid.points, columns=sites.columns)
draws = cokriging.simulate(cell_frame, n_samples=100, random_state=1)  # [cells, metals, draws]
area = (draws[:, 0] > limits["Cd"]).mean(axis=0)
p = cokriging.probability(cell_frame, {"Cd": limits["Cd"]}, include_noise=False)
independent = np.sqrt((p * (1 - p)).sum()) / len(p)
print(f"polluted: {area.mean():.1%} of the land, standard deviation {area.std():.1%}")
print(f"as if cells were independent: {p.mean():.1%}, standard deviation {independent:.1%}")
assert abs(area.mean() - p.mean()) < 4 * area.std() / 10
assert area.std() > 1.5 * independent

# %%
plot_maps(cokriging, metals, ["mean"], simulations=2, seed=1, cells=20 if SMALL else 36)

# %% [markdown]
# ## Blocks
# The mean over a block of land is more certain than a single place, but not as certain as if its
# cells were independent. The simulations tell how certain.

# %%
east, north = cell_frame.east.clip(0, 4.9), cell_frame.north.clip(0, 5.9)
block = north.floordiv(3).map({0: "south", 1: "north"}) + east.floordiv(2.5).map(
    {0: "west", 1: "east"}
)
means = pd.DataFrame(draws[:, 0]).groupby(block.to_numpy()).mean()  # [blocks, draws]
spread = pd.DataFrame(draws[:, 0]).std(axis=1).groupby(block.to_numpy()).mean()
blocks = pd.DataFrame(
    {
        "cells": block.value_counts().sort_index(),
        "mean of log Cd": means.mean(axis=1),
        "deviation": means.std(axis=1),
        "deviation of a cell": spread,
    }
)
print(blocks.round(3))
certain = blocks["deviation"] / blocks["deviation of a cell"]
assert (certain < 1).all()
assert (certain > 1 / np.sqrt(blocks["cells"])).all()
