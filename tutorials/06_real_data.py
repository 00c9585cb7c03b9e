# %% [markdown]
# # Real data, end to end
#
# The data are 178 wines, which come with scikit-learn (`load_wine`): ten measured properties are
# the inputs, three more are the targets. At the end you have compared kernels by leave-one-out,
# seen which inputs matter, checked the calibration, and predicted two targets from the third.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

from gpflow_cool import CoolMTGP, IndependentGPs
from gpflow_cool.metrics import coverage, joint_nlpd, mean_rmse, rmse

wine = load_wine()
inputs, targets = wine.feature_names[:10], wine.feature_names[10:]
rows = np.random.default_rng(0).permutation(len(wine.data))
train, test = rows[:130], rows[130:]
X, Y = wine.data[:, :10], wine.data[:, 10:]
X = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
Y = (Y - Y[train].mean(axis=0)) / Y[train].std(axis=0)
print("inputs:", ", ".join(inputs))
print("targets:", ", ".join(targets))

# %% [markdown]
# ## Which kernel? Leave-one-out tells, without a test set
# `leave_one_out()` predicts each row from all the others, in closed form and without training
# again.

# %%
kernels = {
    "linear": gpflow.kernels.Linear() + gpflow.kernels.Constant(),
    "squared exponential": gpflow.kernels.SquaredExponential(),
    "Matern 3/2": gpflow.kernels.Matern32(),
    "squared exponential, ARD": gpflow.kernels.SquaredExponential(lengthscales=np.full(10, 3.0)),
}
models = {}
for name, kernel in kernels.items():
    model = models[name] = CoolMTGP((X[train], Y[train]), kernel, task_names=targets)
    model.fit(verbose=0)
    density = float(np.mean(model.leave_one_out().log_density))
    print(f"{name:25s} mean log density of a row left out {density:.3f}")

# %% [markdown]
# ## Which inputs matter?
# With one lengthscale per input (ARD), a short one means that the targets change fast along that
# input.

# %%
model = models["squared exponential, ARD"]
relevance = 1.0 / model.kernel.lengthscales.numpy()
order = np.argsort(relevance)
fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
ax.barh(np.array(inputs)[order], relevance[order])
ax.set_xlabel("1 / lengthscale (inputs standardised)")

# %% [markdown]
# ## Is it calibrated?
# The histograms show the errors of leave-one-out, divided by the predicted standard deviations.
# They should look like the standard normal density.

# %%
loo = model.leave_one_out()
deviations = np.sqrt(np.diagonal(loo.cov, axis1=1, axis2=2))
standard = (Y[train] - loo.mean) / deviations
fig, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained", sharey=True)
z = np.linspace(-4, 4, 100)
for task, ax in enumerate(axes):
    ax.hist(standard[:, task], bins=20, range=(-4, 4), density=True, alpha=0.6)
    ax.plot(z, np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi), "k")
    ax.set_title(targets[task], fontsize="small")
within = np.mean(np.abs(standard) < 2, axis=0)
print("within two sigma:", np.round(within, 2))
assert np.all(within > 0.88)

# %% [markdown]
# ## Does the coupling pay?
# Here is the model on the test rows, beside one Gaussian process per target. On these data both
# predict equally well, in the errors of the means and in the joint density. The next section shows
# what the coupling adds.

# %%
independent = IndependentGPs((X[train], Y[train]), gpflow.kernels.SquaredExponential())
independent.fit(verbose=0)
coupled = models["squared exponential"]
scores = {}
for name, candidate in [("independent", independent), ("CoolMTGP", coupled)]:
    mean, cov = candidate.predict_y(X[test], full_output_cov=True)
    scores[name] = joint_nlpd(Y[test], mean, cov)
    covered = np.mean(coverage(Y[test], mean, np.diagonal(cov, axis1=1, axis2=2)))
    error = mean_rmse(Y[test], mean)
    print(
        f"{name:12s} RMSE {error:.3f}, joint NLPD {scores[name]:.3f}, within 2 sigma {covered:.2f}"
    )
assert scores["CoolMTGP"] < scores["independent"] + 0.05

# %% [markdown]
# ## Predict some targets from others
# If the first target has been measured at a test row, the predictions of the others improve.

# %%
known = np.where([True, False, False], Y[test], np.nan)
mean_alone, _ = coupled.predict_y(X[test])
mean_given, _ = coupled.predict_y_given(X[test], known)
alone, given = rmse(Y[test], mean_alone), rmse(Y[test], mean_given)
for task in (1, 2):
    print(f"{targets[task]:30s} RMSE {alone[task]:.3f}, with {targets[0]} known {given[task]:.3f}")
