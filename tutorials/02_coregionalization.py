# %% [markdown]
# # Swapping in for coregionalization
#
# At the end you have replaced the model in a GPflow coregionalization script and kept the rest of
# the script. You have seen what changes: a loss costs less, and noises may correlate.
#
# GPflow models several outputs with a column that holds the number of the output and a kernel
# `base * Coregion`. The covariance of all observations is then one matrix of size $NT \times NT$.
# If the outputs are measured at the same inputs, so large a matrix is not needed.

# %%
import textwrap
import time
import warnings

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from gpflow_cool import CoolMTGP
from gpflow_cool.metrics import rmse

rng = np.random.default_rng(0)
N = 60
X = np.sort(rng.uniform(size=[N, 1]), axis=0)
shared = 0.3 * rng.normal(size=[N, 1])  # noise that both outputs see
Y = np.hstack([np.sin(6 * X), np.sin(6 * X + 0.7)]) + shared + 0.1 * rng.normal(size=[N, 2])

# %% [markdown]
# ## What you have
# The outputs are stacked, with their number in the last column. The rows may come in any order.

# %%
X_aug = np.vstack([np.hstack([X, np.full([N, 1], task)]) for task in (0.0, 1.0)])
Y_aug = Y.T.reshape(-1, 1)
order = rng.permutation(2 * N)
X_aug, Y_aug = X_aug[order], Y_aug[order]

base = gpflow.kernels.SquaredExponential(active_dims=[0], lengthscales=0.3)
coregion = gpflow.kernels.Coregion(output_dim=2, rank=1, active_dims=[1])
coregion.W.assign([[1.0], [0.5]])
gpr = gpflow.models.GPR((X_aug, Y_aug), base * coregion, noise_variance=0.1)
gpflow.optimizers.Scipy().minimize(gpr.training_loss, gpr.trainable_variables)

# %% [markdown]
# ## What you get
# `from_coregion` takes the base kernel, the task column and the data from the model that you have.

# %%
model = CoolMTGP.from_coregion(gpr, task_names=["first", "second"])
model.fit(verbose=0)

# %% [markdown]
# Code that uses the stacked layout keeps working: `predict_coregion` takes it and returns [M, 1]
# arrays.

# %%
grid = np.linspace(0, 1, 100)
grid_aug = np.stack([np.tile(grid, 2), np.repeat([0.0, 1.0], 100)], axis=1)
truth = np.concatenate([np.sin(6 * grid), np.sin(6 * grid + 0.7)])[:, None]
mean_gpr, var_gpr = gpr.predict_f(grid_aug)
mean_cool, var_cool = model.predict_coregion(grid_aug)
error_gpr, error_cool = (rmse(truth, mean)[0] for mean in (mean_gpr, mean_cool))
print(f"RMSE: GPR with Coregion {error_gpr:.3f}, CoolMTGP {error_cool:.3f}")

# %%
fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
for task, color in enumerate(["C0", "C1"]):
    rows = slice(100 * task, 100 * (task + 1))
    ax.plot(X[:, 0], Y[:, task], ".", color=color, alpha=0.5)
    ax.plot(grid, mean_gpr[rows, 0], "--", color=color, label=f"output {task}, GPR with Coregion")
    ax.plot(grid, mean_cool[rows, 0], color=color, label=f"output {task}, CoolMTGP")
ax.set_xlabel("x")
ax.legend(fontsize="small")

# %% [markdown]
# ## What correlated noise adds
# Both outputs saw the same disturbance. `GPR` has independent noise with one variance. `CoolMTGP`
# learns how the noises correlate.

# %%
learned = float(model.noise_correlation()[0, 1])
true = 0.3**2 / (0.3**2 + 0.1**2)
print(f"correlation of the noises: learned {learned:.2f}, true {true:.2f}")

# %% [markdown]
# ## What it costs
# With two outputs at sixty inputs both train in a moment. A loss with its gradient costs $(NT)^3$
# for GPflow's model and $N^3$ for ours, as here with five outputs at 200 inputs.

# %%
X_more = rng.uniform(size=[200, 1])
Y_more = np.sin(6 * X_more + np.arange(5)) + 0.1 * rng.normal(size=[200, 5])
tasks = np.repeat(np.arange(5.0), 200)
X_long = np.stack([np.tile(X_more[:, 0], 5), tasks], axis=1)
coregion = gpflow.kernels.Coregion(output_dim=5, rank=1, active_dims=[1])
long = gpflow.models.GPR((X_long, Y_more.T.reshape(-1, 1)), base * coregion)
wide = CoolMTGP((X_more, Y_more), gpflow.kernels.SquaredExponential(lengthscales=0.3))


def seconds(model):
    """The processor's time for one loss and its gradient, the shortest of three."""

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        return tape.gradient(loss, model.trainable_variables)

    gradients()  # TensorFlow compiles it
    times = []
    for _ in range(3):
        start = time.process_time()
        gradients()
        times.append(time.process_time() - start)
    return min(times)


ratio = seconds(long) / seconds(wide)
print(f"GPR with Coregion takes {ratio:.0f} times as long as CoolMTGP")

# %% [markdown]
# ## And back
# `to_coregion_gpr` makes a GPflow `GPR` with the learnt C. It has no place for the correlation of
# the noises, and a warning says so.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exported = model.to_coregion_gpr()
print(textwrap.fill(str(caught[0].message), 90))
C_exported = exported.kernel.kernels[1].output_covariance().numpy()
print("C of the exported model:", np.round(C_exported, 3), sep="\n")
print("C of ours:", np.round(model.task_covariance(), 3), sep="\n")

# %% [markdown]
# ## What we claim
# A loss of `CoolMTGP` takes less time, it predicts the functions as well, and learns how the noises
# correlate. The exported model has the same C, and the warning tells what it has lost.

# %%
assert ratio > 1
assert error_cool < 1.2 * error_gpr
assert abs(learned - true) < 0.15
np.testing.assert_allclose(C_exported, model.task_covariance(), rtol=1e-3, atol=1e-3)
assert "noise" in str(caught[0].message)
