"""Small files in the format of the Mulan regression sets."""

import numpy as np


def write_arff(path, num_inputs, num_targets, num_rows=30, seed=0):
    """A small set: smooth targets with correlated noise, and an input that never changes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=[num_rows, num_inputs])
    X[:, 1] = 7.0
    Y = np.sin(X @ rng.normal(size=[num_inputs, num_targets]) / 3)
    Y += 0.2 * rng.normal(size=[num_rows, 1]) + 0.1 * rng.normal(size=Y.shape)
    data = np.hstack([X, 10.0 * Y + 5.0])
    lines = ["@relation tiny"] + [f"@attribute c{i} numeric" for i in range(data.shape[1])]
    lines += ["@data"] + [",".join(f"{v:.6f}" for v in row) for row in data]
    path.write_text("\n".join(lines) + "\n")
    return data


def write_sets(folder):
    """Three of the ten sets, much smaller than the real ones."""
    write_arff(folder / "edm.arff", 4, 2)
    write_arff(folder / "slump.arff", 4, 3, seed=1)
    write_arff(folder / "scm20d.arff", 5, 16, num_rows=60, seed=2)
    return folder
