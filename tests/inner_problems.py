"""Targets, and bounds of b and sigma2, that the tests of the inner problem share."""

import numpy as np

from gpflow_cool.chain.search import Box

WIDE = Box(np.log([[1e-10, 1e-4]]), np.log([[1e10, 1e10]]))


def boxes(box, T):
    return Box(*(np.tile(side, (T, 1)) for side in box))


def smooth_targets(rng, N, T):
    """Functions of one input that share noise, of unit variance; the last one is noise."""
    x = np.sort(rng.uniform(0.0, 6.0, size=N))
    F = np.stack([np.sin(x + 0.7 * t) for t in range(T)], axis=1)
    F[:, -1] = 0.0
    Y = F + 0.4 * rng.normal(size=(N, T)) @ np.triu(np.ones((T, T)))
    return x[:, None], (Y - Y.mean(axis=0)) / Y.std(axis=0)
