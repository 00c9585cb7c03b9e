"""A small table that tests of summaries and of the report share; nothing of the package."""

import numpy as np

NASTY = "<script>alert('a & b')</script>"
"""A name that must be escaped in HTML."""


def make_data(num_tasks):
    rng = np.random.default_rng(3)
    X = rng.normal(size=[15, 2]) * [1.0, 0.0] + [0.0, 4.0]
    return X, np.sin(X[:, :1] + np.arange(num_tasks)) * 10 + rng.normal(size=[15, num_tasks])
