"""Small tables, as arrays, frames and files, that several tests share; nothing of the package."""

import csv

import numpy as np
import pandas as pd

NASTY = "<script>alert('a & b')</script>"
"""A name that must be escaped in HTML."""

TARGETS = ["heat", "cold, inside"]


def make_data(num_tasks):
    rng = np.random.default_rng(3)
    X = rng.normal(size=[15, 2]) * [1.0, 0.0] + [0.0, 4.0]
    return X, np.sin(X[:, :1] + np.arange(num_tasks)) * 10 + rng.normal(size=[15, num_tasks])


def make_frame(num_rows=20):
    rng = np.random.default_rng(8)
    x, y = rng.uniform(0, 6, [2, num_rows])
    F = np.stack([np.sin(x), np.sin(x) + 0.2 * y], axis=1) + 0.1 * rng.normal(size=[num_rows, 2])
    return pd.DataFrame(np.column_stack([x, y, F * [1, 50]]), columns=["x", "y", *TARGETS])


def read(path):
    """Rows of a CSV file, by the names of its columns."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))
