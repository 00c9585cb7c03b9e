# %% [markdown]
# # Two objectives, one budget
#
# At the end you have optimised two objectives at once with 30 noisy measurements: no setting is
# best for both, so that the answer is a front of settings. Trieste, the toolbox for Bayesian
# optimisation of the GPflow world, chooses where to measure. `gpflow_cool.trieste` gives it a model
# whose objectives correlate, in their functions and in their noise.
#
# This tutorial needs Trieste (`pip install '.[trieste]'` in a copy of the repository), and with it
# TensorFlow 2.18.

# %%
import os

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from trieste.acquisition.function import (
    BatchMonteCarloExpectedHypervolumeImprovement,
    ExpectedHypervolumeImprovement,
)
from trieste.acquisition.multi_objective import Pareto, non_dominated
from trieste.acquisition.optimizer import generate_continuous_optimizer
from trieste.acquisition.rule import EfficientGlobalOptimization
from trieste.bayesian_optimizer import BayesianOptimizer
from trieste.data import Dataset
from trieste.space import Box

from gpflow_cool import CoolMTGP
from gpflow_cool.trieste import MultitaskRegression

SMALL = os.environ.get("GPFLOW_COOL_SMALL") == "1"  # set by the tests
tf.random.set_seed(0)
np.random.seed(0)

# %% [markdown]
# ## The problem
# Two properties of a product depend on two settings, and both should be small. Each has its best
# setting, at another place. What is measured has noise, and most of it is common to both
# properties, because they are measured on the same batch of material.

# %%
CENTRES = np.array([[0.3, 0.35], [0.7, 0.65]])
NOISE = 0.08**2 * np.array([[1.0, 0.9], [0.9, 1.0]])
space = Box([0.0, 0.0], [1.0, 1.0])
reference = [1.0, 1.0]  # worse than this does not count
rng = np.random.default_rng(1)


def objectives(X):
    """Both properties without noise, [M, 2]."""
    X = np.asarray(X)
    return np.stack([1.0 - np.exp(-9.0 * np.sum((X - c) ** 2, axis=1)) for c in CENTRES], axis=1)


def measure(X):
    """Both properties as they are measured."""
    Y = objectives(X) + rng.multivariate_normal([0.0, 0.0], NOISE, size=len(X))
    return Dataset(X, tf.constant(Y))


def hypervolume(Y):
    """The area between a front and the reference point: larger is better."""
    inside = Y[np.all(Y < reference, axis=1)]
    if not len(inside):
        return 0.0
    corner = tf.constant(reference, tf.float64)
    return float(Pareto(tf.constant(inside)).hypervolume_indicator(corner))


best = hypervolume(objectives(np.linspace(CENTRES[0], CENTRES[1], 200)))
print(f"the best front has a hypervolume of {best:.3f}")

# %% [markdown]
# ## The model
# A `CoolMTGP` inside of `MultitaskRegression`, which speaks Trieste's language. With ten rows there
# is little to learn lengthscales from, so that they get a prior.


# %%
def make_model(data):
    kernel = gpflow.kernels.Matern52(lengthscales=[0.3, 0.3])
    kernel.lengthscales.prior = tfp.distributions.LogNormal(np.log(0.3), np.float64(0.5))
    mean = gpflow.mean_functions.Constant(np.mean(data.observations, axis=0))
    return MultitaskRegression(CoolMTGP(data.astuple(), kernel, mean_function=mean))


start = measure(space.sample_sobol(10, skip=3))
steps = 2 if SMALL else 20

# %% [markdown]
# ## One measurement at a time
# The expected hypervolume improvement (EHVI) says how much a measurement would raise the
# hypervolume. Trieste maximises it, asks for the measurement, updates the model and trains it.

# %%
optimizer = BayesianOptimizer(measure, space)
search = generate_continuous_optimizer(num_initial_samples=1000, num_optimization_runs=4)
one = EfficientGlobalOptimization(ExpectedHypervolumeImprovement(reference), optimizer=search)
result = optimizer.optimize(steps, start, make_model(start), one, track_state=False)
data, model = result.try_get_final_dataset(), result.try_get_final_model()

print("correlation of the noise:", np.round(model.model.noise_correlation()[0, 1], 2), "true 0.9")
print("lengthscales:", np.round(model.get_kernel().lengthscales.numpy(), 2))

# %% [markdown]
# ## Four at a time
# When four measurements run side by side, their points are chosen together. Batch EHVI draws what
# the four would give. Trieste's own sampler draws each output by itself. Ours draws them jointly,
# with the covariance that the model has between them.

# %%
batch = EfficientGlobalOptimization(
    BatchMonteCarloExpectedHypervolumeImprovement(32, reference),
    optimizer=generate_continuous_optimizer(num_initial_samples=300, num_optimization_runs=2),
    num_query_points=4,
)
result = optimizer.optimize(1 if SMALL else 5, start, make_model(start), batch, track_state=False)
batch_data = result.try_get_final_dataset()

# %% [markdown]
# ## What the budget bought
# Hypervolumes are those of the values without noise at the points that were measured, which nobody
# knows in practice. Points at random are the yardstick.


# %%
def progress(X):
    """Hypervolume after each measurement."""
    Y = objectives(X)
    return np.array([hypervolume(Y[: n + 1]) for n in range(len(Y))])


total = len(data)
repeats = 3 if SMALL else 30
random = np.stack([progress(space.sample(total, seed=seed)) for seed in range(repeats)])
one_by_one, in_batches = progress(data.query_points), progress(batch_data.query_points)

fig, ax = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
count = np.arange(1, 1 + max(total, len(in_batches)))
ax.fill_between(count[:total], *np.quantile(random, [0.1, 0.9], axis=0), color="0.85")
ax.plot(
    count[:total], random.mean(axis=0), color="0.5", label=f"at random (mean and 80% of {repeats})"
)
ax.plot(count[:total], one_by_one, label="EHVI, one at a time")
ax.plot(count[: len(in_batches)], in_batches, label="batch EHVI, four at a time")
ax.axhline(best, color="black", linewidth=0.8, linestyle=":", label="best front")
ax.axvline(len(start), color="black", linewidth=0.8)
ax.text(len(start) - 0.2, 0.55, "the model chooses\nfrom here on", ha="right", fontsize=9)
ax.set(xlabel="measurements", ylabel="hypervolume", xlim=(1, total), ylim=(0, None))
ax.legend(loc="lower right", fontsize=9)
plt.show()

# %% [markdown]
# ## The front
# What can be reported are the points that the model holds for undominated: those of its posterior
# means at the measured points, where noise is smoothed away. A measurement that looks best by luck
# of the noise does not count.

# %%
mean, _ = model.predict(data.query_points)
_, is_front = non_dominated(mean)
means, values = mean.numpy()[is_front], objectives(data.query_points)[is_front]
order = np.argsort(means[:, 0])
print("settings to choose from, and what the model expects of them:")
for setting, expected in zip(data.query_points.numpy()[is_front][order], means[order], strict=True):
    print(np.round(setting, 2), np.round(expected, 2))

line = objectives(np.linspace(CENTRES[0], CENTRES[1], 200))
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.plot(*line.T, color="black", linewidth=0.8, linestyle=":", label="best front")
left.plot(*data.observations.numpy().T, ".", color="0.7", label="measured")
left.plot(*means[order].T, "o-", color="C0", markersize=4, label="front of the means")
left.plot(*values.T, "x", color="C3", label="the same without noise")
left.set(xlabel="first objective", ylabel="second objective")
left.legend(fontsize=9)
right.plot(*CENTRES.T, color="black", linewidth=0.8, linestyle=":", label="best settings")
points = data.query_points.numpy()
right.plot(*points[: len(start)].T, ".", color="0.7", label="start")
right.plot(*points[len(start) :].T, ".", color="C1", label="chosen")
right.plot(*points[is_front].T, "o", color="C0", fillstyle="none", label="on the front")
right.set(xlabel="setting 1", ylabel="setting 2", xlim=(0, 1), ylim=(0, 1))
right.legend(fontsize=9)
plt.show()

# %% [markdown]
# ## What correlations are good for here
# Trieste's `predict` has no place for covariances between outputs, and EHVI treats the objectives
# at a new point as independent. The model's correlations enter before that: they decide what the
# measurements say. A shared disturbance that pushes both objectives up is known as noise. And they
# enter wherever draws are used, as in batch EHVI.
#
# With both strategies, the budget bought more than points at random do.

# %%
at_random = random[:, -1].mean()
print(f"EHVI {one_by_one[-1]:.3f}, batch EHVI {in_batches[-1]:.3f}, at random {at_random:.3f}")
assert SMALL or min(one_by_one[-1], in_batches[-1]) > at_random
assert one_by_one[-1] > one_by_one[len(start) - 1]  # what the model chose is an improvement
