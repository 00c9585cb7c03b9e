# %% [markdown]
# # Data that arrives
#
# At the end you have followed two sensors row by row: every new row is predicted before it is
# seen, scored, and then taken into the posterior, without training again. Now and then the model
# is trained, from where it was.
#
# At fixed $K$, $C$ and $\Sigma$ the posterior given $q$ more rows needs no new factorisation of
# the $N$ rows that are there: in the basis where $C$ and $\Sigma$ are both diagonal, it is $T$
# systems of size $q$,
#
# $$m_j(x) + q_j(x, X')\, S_j^{-1} (z'_j - m_j(X')),$$
#
# with $S_j = q_j(X', X') + I$.

# %%
import os

import gpflow
import matplotlib.pyplot as plt
import numpy as np

from gpflow_cool import CoolMTGP

SMALL = os.environ.get("GPFLOW_COOL_SMALL") == "1"  # set by the tests
rng = np.random.default_rng(0)

# %% [markdown]
# ## Two sensors, one row at a time
# Both sensors see the same slow wave, and they share a disturbance: their noises correlate. From
# the middle on the waves become faster, which no model can know before.

# %%
N = 90 if SMALL else 240
hours = np.linspace(0.0, 24.0 * N / 240, N)[:, None]
speed = np.where(hours < hours[N // 2], 1.0, 1.8)
phase = np.cumsum(speed * (hours[1] - hours[0]))[:, None]
signal = np.hstack([np.sin(phase), 0.8 * np.cos(phase)])
noise = rng.multivariate_normal([0.0, 0.0], [[0.02, 0.015], [0.015, 0.02]], size=N)
Y = signal + noise

# %% [markdown]
# The model is trained on the first rows. Its posterior is what follows the stream.

# %%
start = 40
model = CoolMTGP((hours[:start], Y[:start]), gpflow.kernels.Matern52(lengthscales=2.0))
history = model.fit(verbose=0)
print(history.message)

# %% [markdown]
# ## Condition, score, train now and then
# `condition_on` returns a new posterior and leaves the old one as it is. Each row is scored one
# step ahead: the log density of both sensors together, before the row is known. `add_rows` takes
# the rows into the model for good, and `fit` then starts from the parameters that it has.


# %%
def follow(model, train_every):
    """Log density of every row after the first ones, before the row is known."""
    densities, waiting = [], []
    posterior = model.posterior()
    for n in range(start, N):
        row = hours[n : n + 1], Y[n : n + 1]
        densities.append(float(posterior.predict_log_density(*row, full_output_cov=True)[0]))
        posterior = posterior.condition_on(*row)
        waiting.append(n)
        if train_every and len(waiting) == train_every:
            model.add_rows(hours[waiting], Y[waiting])
            model.fit(verbose=0)
            posterior, waiting = model.posterior(), []
    return np.array(densities)


def trained_model():
    """The model of the first rows, at the parameters found above."""
    fresh = CoolMTGP((hours[:start], Y[:start]), gpflow.kernels.Matern52())
    gpflow.utilities.multiple_assign(fresh, gpflow.utilities.parameter_dict(model))
    return fresh


never = follow(trained_model(), None)
sometimes = follow(trained_model(), 25)
print(f"never trained again: {never.mean():.2f} nats per row")
print(f"trained every 25 rows: {sometimes.mean():.2f} nats per row")

# %% [markdown]
# Until the waves change, both do the same. Right after the change both get worse, and training
# again does not help yet. Later, training now and then pays.

# %%
window = np.ones(15) / 15
fig, (top, bottom) = plt.subplots(2, 1, figsize=(9, 5.5), sharex=True, layout="constrained")
top.plot(hours, Y, ".", markersize=3, label=["sensor 1", "sensor 2"])
top.set_ylabel("measured")
top.legend(loc="upper right", ncols=2)
for densities, name in [(never, "never trained again"), (sometimes, "trained every 25 rows")]:
    smooth = np.convolve(densities, window, mode="valid")
    bottom.plot(hours[start + 14 :, 0], smooth, label=name)
bottom.axvline(hours[N // 2, 0], color="black", linewidth=0.8, linestyle=":")
bottom.set(xlabel="hours", ylabel="log density, one step ahead\n(mean of 15 rows)")
bottom.legend()
plt.show()

early, late = slice(N // 2 - start), slice(2 * (N - start) // 3, None)  # late: the last third
for when, part in [("before the change", early), ("in the end", late)]:
    print(f"{when}: {never[part].mean():.2f} and {sometimes[part].mean():.2f} nats per row")

# %% [markdown]
# ## It is the exact posterior
# After all rows, the posterior equals that of the exact model with all rows, at the same kernel,
# $C$ and $\Sigma$.

# %%
posterior = model.posterior()
for n in range(start, start + 20):
    posterior = posterior.condition_on(hours[n : n + 1], Y[n : n + 1])
rebuilt = model.to_exact()
rebuilt.add_rows(hours[start : start + 20], Y[start : start + 20])
future = hours[start + 20 : start + 24]
actual, expected = (each.predict_f(future)[0] for each in (posterior, rebuilt))
difference = np.abs(actual - expected).max()
print(f"largest difference of the means: {difference:.1e}")

# %% [markdown]
# ## What if?
# Leading dimensions of the new targets are several outcomes at the same inputs. All of them share
# one factorisation. Here: how would the forecast change if the next measurement of sensor 1 were
# low, as expected, or high, and sensor 2 were not read at all?

# %%
now = start + 20
expected_row = posterior.predict_f(hours[now : now + 1])[0].numpy()
outcomes = np.stack([expected_row + [[shift, np.nan]] for shift in (-0.5, 0.0, 0.5)])  # [3, 1, 2]
forecast = posterior.condition_on(hours[now : now + 1], outcomes).predict_f(hours[now : now + 10])
print("forecasts of sensor 2 for the next row:", np.round(forecast[0][:, 1, 1].numpy(), 2))

fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for sensor, ax in enumerate(axes):
    for mean, name in zip(forecast[0], ["low", "as expected", "high"], strict=True):
        ax.plot(hours[now : now + 10], mean[:, sensor], label=f"sensor 1 {name}")
    ax.set(title=f"forecast of sensor {sensor + 1}", xlabel="hours")
axes[0].legend()
plt.show()

# %% [markdown]
# ## Whole functions
# `sample_functions` draws functions that can be evaluated anywhere, again and again, and
# differentiated: what will the highest value of the next six hours be, and when?

# %%
functions = posterior.sample_functions(200, seed=0)
ahead = np.linspace(hours[now, 0], hours[now, 0] + 6.0, 400)[:, None]
values = functions(ahead).numpy()[:, :, 0]  # sensor 1
highest, when = values.max(axis=1), ahead[values.argmax(axis=1), 0]
print(f"highest value {highest.mean():.2f} +- {highest.std():.2f}")
print(f"when: after {np.median(when) - hours[now, 0]:.1f} hours (median of 200 functions)")

fig, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
ax.plot(ahead, values[:20].T, color="C0", linewidth=0.7, alpha=0.6)
ax.plot(when, highest, ".", color="C3", markersize=4, label="highest values of 200 functions")
ax.set(xlabel="hours", ylabel="sensor 1")
ax.legend()
plt.show()

# %% [markdown]
# ## What we claim
# The posterior that follows the stream is exact. Training now and then pays after the data have
# changed, and hardly matters before. What one sensor says changes the forecast of the other. The
# same drawn functions answer when they are asked again.

# %%
assert difference < 1e-8
assert sometimes[late].mean() > never[late].mean() + 0.1
assert abs(sometimes[early].mean() - never[early].mean()) < 0.1
assert np.ptp(forecast[0][:, 1, 1]) > 0.01
assert np.allclose(functions(ahead[:5])[:, :, 0], values[:, :5])
