# %% [markdown]
# # Quickstart: two tasks in five minutes
#
# At the end you have a model of two outputs. It knows how their signals correlate and how their
# noises correlate, and you have used that knowledge to predict one output from the other.
#
# The data are the paper's: $\cos 2\pi x$ and $\sin 2\pi x$, with noise of variance 0.1 each and a
# correlation of 0.5 between the two noises.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np

from gpflow_cool import CoolMTGP
from gpflow_cool.datasets import clustered_two_task, uniform_two_task
from gpflow_cool.metrics import coverage, joint_nlpd, mean_rmse
from gpflow_cool.plotting import plot_bands, plot_task_matrix

X, Y, true_noise = clustered_two_task(num_rows=80, seed=3)
print(X.shape, Y.shape)

# %% [markdown]
# ## Fit
# All tasks share one kernel over the inputs. There is no rank to choose and no index column to
# add.

# %%
model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(), task_names=["cos", "sin"])
history = model.fit(verbose=0)
print(history.message)
for name, parameter in gpflow.utilities.parameter_dict(model).items():
    trained = "" if parameter.trainable else "(not trained)"
    print(f"{name:21s} {np.round(parameter.numpy(), 3)} {trained}")

# %% [markdown]
# The model has learnt two parameters per task, `b` and `sigma2`, one lengthscale, and how large the
# weights between tasks may be (`weight_variance`). The kernel's variance is not trained: `b`
# multiplies it, so one of the two must be fixed. As with any GPflow model,
# `gpflow.utilities.print_summary(model)` tells more.
#
# ## What it learnt
# The model is $\mathrm{vec}(Y) \sim N(0, C \otimes K + \Sigma \otimes I)$. It recovers the
# covariance $C$ of the signals and the covariance $\Sigma$ of the noises from these parameters.

# %%
fig, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
plot_task_matrix(
    model.task_correlation(), model.task_names, axes[0], "Correlation of the signals", limit=1
)
plot_task_matrix(
    model.noise_correlation(), model.task_names, axes[1], "Correlation of the noises", limit=1
)
noise_correlation = float(model.noise_correlation()[0, 1])
print(f"noise correlation {noise_correlation:.2f}, true 0.50")
assert 0.2 < noise_correlation < 0.8

# %% [markdown]
# ## Predict
# `predict_f` predicts the functions, `predict_y` new observations. The training inputs lie around
# 0.25 and 0.75, and the bands widen elsewhere.

# %%
grid = np.linspace(0, 1, 101)[:, None]
fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
for task, ax in zip(model.task_names, axes, strict=True):
    plot_bands(model, grid, task, ax, data=(X, Y))
    ax.set_title(task)

# %% [markdown]
# How good are the predictions? Here are new data with inputs all over (0, 1):

# %%
X_test, Y_test, _ = uniform_two_task(num_rows=500, seed=4)
mean, cov = model.predict_y(X_test, full_output_cov=True)  # [500, 2] and [500, 2, 2]
variances = np.diagonal(cov, axis1=1, axis2=2)
print(f"RMSE {mean_rmse(Y_test, mean):.3f}, joint NLPD {joint_nlpd(Y_test, mean, cov):.3f}")
print(f"within two sigma: {coverage(Y_test, mean, variances, 2.0)}")
assert np.all(coverage(Y_test, mean, variances, 2.0) > 0.8)

# %% [markdown]
# ## Predict one task from the other
# If one output is measured at a new point, the prediction of the other improves. NaN marks the
# output that you want to predict.

# %%
known = np.where([True, False], Y_test, np.nan)  # the cosine is known, the sine is asked for
given, _ = model.predict_y_given(X_test, known)
alone = np.sqrt(np.mean((mean[:, 1] - Y_test[:, 1]) ** 2))
together = np.sqrt(np.mean((given[:, 1] - Y_test[:, 1]) ** 2))
print(f"RMSE of the sine: {alone:.3f} from x alone, {together:.3f} with the cosine known")
assert together < alone
