"""
Draw the first picture of README and site: `python docs/draw_home.py`.

README shows both panels in one picture. The site has one picture per panel, which stand below each
other in a narrow window.
"""

from pathlib import Path

import gpflow
import matplotlib.pyplot as plt
import numpy as np

from gpflow_cool import CoolMTGP, half_median_distance

NAMES = ["first task", "second task"]
GAP = (0.35, 0.85)
IMAGES = Path(__file__).parent / "images"


def signals(x):
    """Two functions that resemble each other, [len(x), 2]."""
    wave = np.sin(9 * x) + 0.6 * np.sin(17 * x)
    return np.stack([wave, 0.8 * wave + 0.35 * np.cos(5 * x)], axis=1)


def draw_data(rng, rows=70):
    """Rows of both tasks with noises that correlate; the second is lost where the gap is."""
    x = np.sort(rng.uniform(size=rows))
    noise = 0.12 * rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=rows)
    Y = signals(x) + noise
    Y[(x > GAP[0]) & (x < GAP[1]), 1] = np.nan
    return x[:, None], Y


def fitted(X, Y, task_names):
    kernel = gpflow.kernels.SquaredExponential(lengthscales=half_median_distance(X))
    model = CoolMTGP((X, Y), kernel, task_names=task_names)
    model.fit(verbose=0)
    return model


def show(ax, grid, mean, var, truth, color, name):
    deviation = np.sqrt(var)
    ax.fill_between(grid, mean - 2 * deviation, mean + 2 * deviation, color=color, alpha=0.2, lw=0)
    ax.plot(grid, mean, color=color, label=f"{name}: mean and two sigma")
    ax.plot(grid, truth, "k--", lw=1, label="truth" if name == NAMES[1] else None)


def main():
    X, Y = draw_data(np.random.default_rng(3))
    known = np.isfinite(Y[:, 1])
    grid = np.linspace(0, 1, 200)
    together = fitted(X, Y, NAMES)
    alone = [fitted(X, Y[:, :1], NAMES[:1]), fitted(X[known], Y[known, 1:], NAMES[1:])]
    mean, var = (part.numpy() for part in together.predict_f(grid[:, None]))
    panels = {
        "One Gaussian process per task": [
            [part.numpy()[:, 0] for part in model.predict_f(grid[:, None])] for model in alone
        ],
        "CoolMTGP, both tasks together": [[mean[:, t], var[:, t]] for t in (0, 1)],
    }
    fig, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained", sharey=True)
    for ax, (title, predictions) in zip(axes, panels.items(), strict=True):
        draw_panel(ax, title, predictions, (X, Y), grid)
    fig.savefig(IMAGES / "home.png", dpi=110)
    for name, (title, predictions) in zip(["alone", "together"], panels.items(), strict=True):
        fig, ax = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
        draw_panel(ax, title, predictions, (X, Y), grid)
        fig.savefig(IMAGES / f"home_{name}.png", dpi=130)


def draw_panel(ax, title, predictions, data, grid):
    X, Y = data
    truth = signals(grid)
    ax.axvspan(*GAP, color="0.94", zorder=0)
    for t, (m, v) in enumerate(predictions):
        show(ax, grid, m, v, truth[:, t], f"C{t}", NAMES[t])
        ax.plot(X[:, 0], Y[:, t], ".", color=f"C{t}", ms=4)
    error = np.sqrt(np.mean((predictions[1][0] - truth[:, 1])[in_gap(grid)] ** 2))
    ax.set(title=f"{title}: RMSE in the gap {error:.2f}", xlabel="x", ylim=(-2.4, 2.4))
    ax.text(np.mean(GAP), 2.1, "second task not measured here", ha="center", size=9)
    ax.legend(fontsize="small", loc="lower left")


def in_gap(x):
    return (x > GAP[0]) & (x < GAP[1])


if __name__ == "__main__":
    main()
