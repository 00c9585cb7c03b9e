# %% [markdown]
# # Reading C and Sigma
#
# What do C and Sigma say, how well does the model recover them, and does the order of the tasks
# matter? At the end you can read the two matrices, and you know what an average over orders gains.
#
# $$ \mathrm{vec}(Y) \sim N(0, C \otimes K + \Sigma \otimes I) $$
#
# $$ \Sigma = A \, \mathrm{diag}(\sigma^2) A^\top, \quad C = A B A^\top $$
#
# with $A = (I - W)^{-1}$. The model is a chain: each task is predicted from the inputs and from the
# tasks before it. $W$ holds the mean weights of the earlier tasks, $\sigma^2$ the noise variance
# that is left at each task, and $B$ the covariance of the signals that the chain adds. What the
# data do not tell about the weights is added to $\sigma^2$ and to the diagonal of $B$.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np

from gpflow_cool import CoolMTGP
from gpflow_cool.linalg import correlation_from_covariance
from gpflow_cool.plotting import plot_task_matrix

# %% [markdown]
# ## Data with a known answer
# There are five tasks. The first three share a signal, and the last two share another. The noises
# of the first and the last task correlate.

# %%
rng = np.random.default_rng(1)
N, T = 200, 5
names = ["a1", "a2", "a3", "b1", "b2"]
X = rng.uniform(-2, 2, size=[N, 2])
loadings = np.array([[1, 0], [0.9, 0.3], [0.8, -0.3], [0, 1], [0.2, 0.9]])
C_true = loadings @ loadings.T + 0.05 * np.eye(T)
Sigma_true = 0.1 * np.eye(T)
Sigma_true[0, 4] = Sigma_true[4, 0] = 0.07
kernel = gpflow.kernels.SquaredExponential(lengthscales=0.8)
K = kernel(X).numpy() + 1e-8 * np.eye(N)
F = np.linalg.cholesky(K) @ rng.normal(size=[N, T]) @ np.linalg.cholesky(C_true).T
Y = F + rng.normal(size=[N, T]) @ np.linalg.cholesky(Sigma_true).T

# %%
model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(), task_names=names)
model.fit(verbose=0)
C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()


def relative_error(learned, true):
    return np.linalg.norm(learned - true) / np.linalg.norm(true)


fig, axes = plt.subplots(2, 2, figsize=(8, 7), layout="constrained")
for row, (label, true, learned) in enumerate([("C", C_true, C), ("Sigma", Sigma_true, Sigma)]):
    for column, (what, matrix) in enumerate([("true", true), ("learned", learned)]):
        correlation = correlation_from_covariance(matrix)
        plot_task_matrix(
            correlation, names, axes[row, column], f"{label}, correlations, {what}", limit=1
        )
error_C, error_Sigma = relative_error(C, C_true), relative_error(Sigma, Sigma_true)
print(f"relative errors: C {error_C:.2f}, Sigma {error_Sigma:.2f}")

# %% [markdown]
# C shows the two groups of signals, and Sigma the one pair of noises. C multiplies the kernel, so
# its scale depends on the kernel's variance.
#
# ## The order of the tasks
# The chain conditions each task on those before it. The paper says that the order has no impact.
# The predicted means hardly depend on it; C and Sigma change somewhat more.


# %%
def fit_in_order(order):
    permuted = CoolMTGP((X, Y[:, order]), gpflow.kernels.SquaredExponential())
    permuted.fit(verbose=0)
    back = np.argsort(order)
    mean = permuted.predict_f(X[:50])[0].numpy()[:, back]
    return permuted.noise_covariance().numpy()[np.ix_(back, back)], mean


orders = [rng.permutation(T) for _ in range(4)]
results = [fit_in_order(order) for order in orders]
Sigmas, means = (np.array(part) for part in zip(*results, strict=True))
spread = np.mean([relative_error(S, Sigmas.mean(axis=0)) for S in Sigmas])
drift = np.sqrt(np.mean((means - means.mean(axis=0)) ** 2)) / np.std(Y)
print(f"over four orders Sigma differs by {100 * spread:.1f} %,")
print(f"and predicted means by {100 * drift:.2f} % of the targets' deviation")
assert drift < 0.05

# %% [markdown]
# ## Averaging it out
# `average_over_orders` keeps the kernel, so another order needs no further eigendecomposition. It
# returns the exact joint model at the mean of C and Sigma, which predicts like any other model. The
# gain is small here.
#
# `model.refine()` starts from the mean over four orders and goes further: C and Sigma then follow
# the data each by itself. The estimator and the command line do this by default.

# %%
averaged = model.average_over_orders(8, seed=0)
error_one = relative_error(Sigma, Sigma_true)
error_mean = relative_error(averaged.noise_covariance().numpy(), Sigma_true)
print(f"error of Sigma: one order {error_one:.3f}, mean of eight {error_mean:.3f}")
assert error_mean < 1.1 * error_one

# %% [markdown]
# ## Two estimates of C: which one to trust
# C is recovered from the signals that the tasks add to the chain. How these signals correlate can
# be estimated in two ways. By default (`correlation="mean"`) the weights of the inputs, of which
# the signals are made, are at the maximum of their posterior. `"monte_carlo"` averages over draws
# from this posterior, which pulls the correlations of these signals towards zero. Here are both
# beside the truth.

# %%
estimates = {
    "truth": C_true,
    "by default": model.multitask_parameters().C,
    "by draws": model.multitask_parameters("monte_carlo", num_samples=200, seed=0).C,
}
correlations = {
    name: np.array(correlation_from_covariance(matrix)) for name, matrix in estimates.items()
}
fig, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
for ax, (name, matrix) in zip(axes, correlations.items(), strict=True):
    plot_task_matrix(matrix, names, ax, f"Correlations of C, {name}", limit=1)
_, by_default, by_draws = correlations.values()
off = ~np.eye(T, dtype=bool)
true = correlations["truth"][off]
error_default, error_draws = (relative_error(R[off], true) for R in (by_default, by_draws))
print(f"relative error of the correlations: default {error_default:.2f}, draws {error_draws:.2f}")

# %% [markdown]
# Trust the default. The draws show the groups much too weakly. Their strongest correlation is that
# of a1 and b2, which is wrong: it is the noises of these two that correlate, and the chain has the
# same weights for signals and noises.
#
# We have compared both on four sets each of such data, with 30, 60 and 200 rows and with little and
# much noise. On average the default was closer to the truth in all six cases. In the noisiest one
# (30 rows, noise as strong as the signals) the two hardly differ, and both are of little use.
#
# ## What we claim
# Sigma is learnt to a third, the default estimate of C shows the two groups and is closer to the
# truth than the draws, and the order of the tasks hardly changes the predicted means: these
# tasks are different functions.

# %%
assert relative_error(Sigma, Sigma_true) < 0.35
assert by_default[:3, :3][off[:3, :3]].min() > 0.5 and by_default[3, 4] > 0.5
assert np.abs(by_default[:3, 3]).max() < 0.6
assert error_default < error_draws
assert drift < 0.05
