"""A table of two targets in units far apart, which the tests of the estimator share."""

import numpy as np

SHIFT, SCALE = np.array([5.0, -300.0]), np.array([1.0, 40.0])


def make_data():
    """Two targets in units far apart, three inputs of which the last is constant."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=[24, 3]) * [1.0, 1000.0, 0.0] + [0.0, 70.0, 3.0]
    F = np.stack([np.sin(2 * X[:, 0]), np.cos(2 * X[:, 0])], axis=1)
    noise = rng.normal(size=[24, 2]) @ np.linalg.cholesky([[0.04, 0.03], [0.03, 0.04]]).T
    return X, SHIFT + SCALE * (F + noise)


# Two fits of the same data agree to about 1e-7, not to the last bit: threads add up in any order.
X, Y = make_data()
X_NEW = X[:4] + [[0.1, 10.0, 0.0]]
