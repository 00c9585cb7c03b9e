"""The numbers that the paper prints, to stand beside ours."""

from typing import NamedTuple


class Printed(NamedTuple):
    """Mean and standard deviation over ten splits."""

    mean: float
    spread: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.spread:.2f}"


METHODS = ("independent", "std-mt", "conv-mt", "cool-approximate")
"""The columns of the paper's two tables; its Cool-MT is the approximate approach there."""

_LINEAR = {
    "andro": (0.74, 0.14, 0.81, 0.15, 0.77, 0.10, 0.75, 0.10),
    "enb": (0.31, 0.02, 0.31, 0.03, 0.31, 0.02, 0.31, 0.02),
    "edm": (0.79, 0.05, 0.78, 0.05, 0.78, 0.05, 0.78, 0.05),
    "slump": (0.68, 0.07, 0.68, 0.07, 0.68, 0.07, 0.67, 0.07),
    "oes10": (0.47, 0.17, 0.38, 0.14, 0.35, 0.13, 0.35, 0.13),
    "oes97": (0.56, 0.18, 0.41, 0.12, 0.39, 0.11, 0.39, 0.11),
    "atp1d": (0.50, 0.05, 0.49, 0.05, 0.42, 0.07, 0.42, 0.07),
    "atp7d": (0.70, 0.12, 0.64, 0.11, 0.56, 0.07, 0.56, 0.07),
    "scm1d": (0.29, 0.02, 0.27, 0.02, 0.24, 0.02, 0.24, 0.02),
    "scm20d": (0.36, 0.03, 0.36, 0.02, 0.36, 0.02, 0.36, 0.02),
}
_SQUARED_EXPONENTIAL = {
    "andro": (0.62, 0.10, 0.42, 0.07, 0.46, 0.08, 0.42, 0.07),
    "enb": (0.30, 0.02, 0.15, 0.02, 0.16, 0.02, 0.13, 0.02),
    "edm": (0.70, 0.06, 0.73, 0.06, 0.71, 0.06, 0.72, 0.05),
    "slump": (0.68, 0.11, 0.67, 0.07, 0.61, 0.08, 0.63, 0.07),
    "oes10": (0.76, 0.51, 0.85, 0.45, 1.03, 0.43, 0.57, 0.41),
    "oes97": (0.80, 0.56, 0.81, 0.51, 0.99, 0.49, 0.63, 0.46),
    "atp1d": (0.49, 0.10, 0.81, 0.12, 0.90, 0.12, 0.41, 0.07),
    "atp7d": (0.94, 0.15, 0.88, 0.14, 0.94, 0.15, 0.56, 0.10),
    "scm1d": (0.26, 0.03, 0.23, 0.02, 0.99, 0.06, 0.22, 0.02),
    "scm20d": (0.33, 0.03, 0.27, 0.03, 0.52, 0.28, 0.28, 0.03),
}

RMSE: dict[str, dict[str, dict[str, Printed]]] = {
    kernel: {
        name: {m: Printed(*row[2 * i : 2 * i + 2]) for i, m in enumerate(METHODS)}
        for name, row in table.items()
    }
    for kernel, table in (("linear", _LINEAR), ("se", _SQUARED_EXPONENTIAL))
}
"""Kernel -> data set -> method -> RMSE averaged over tasks, on standardised targets."""

DATA_SETS = tuple(_LINEAR)
"""In the order of the paper's tables."""
