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

PRINTED = """
andro  0.74 0.14  0.81 0.15  0.77 0.10  0.75 0.10   0.62 0.10  0.42 0.07  0.46 0.08  0.42 0.07
enb    0.31 0.02  0.31 0.03  0.31 0.02  0.31 0.02   0.30 0.02  0.15 0.02  0.16 0.02  0.13 0.02
edm    0.79 0.05  0.78 0.05  0.78 0.05  0.78 0.05   0.70 0.06  0.73 0.06  0.71 0.06  0.72 0.05
slump  0.68 0.07  0.68 0.07  0.68 0.07  0.67 0.07   0.68 0.11  0.67 0.07  0.61 0.08  0.63 0.07
oes10  0.47 0.17  0.38 0.14  0.35 0.13  0.35 0.13   0.76 0.51  0.85 0.45  1.03 0.43  0.57 0.41
oes97  0.56 0.18  0.41 0.12  0.39 0.11  0.39 0.11   0.80 0.56  0.81 0.51  0.99 0.49  0.63 0.46
atp1d  0.50 0.05  0.49 0.05  0.42 0.07  0.42 0.07   0.49 0.10  0.81 0.12  0.90 0.12  0.41 0.07
atp7d  0.70 0.12  0.64 0.11  0.56 0.07  0.56 0.07   0.94 0.15  0.88 0.14  0.94 0.15  0.56 0.10
scm1d  0.29 0.02  0.27 0.02  0.24 0.02  0.24 0.02   0.26 0.03  0.23 0.02  0.99 0.06  0.22 0.02
scm20d 0.36 0.03  0.36 0.02  0.36 0.02  0.36 0.02   0.33 0.03  0.27 0.03  0.52 0.28  0.28 0.03
"""
"""Mean and spread for each of `METHODS`, with the linear kernel, then with the SE kernel."""

RMSE: dict[str, dict[str, dict[str, Printed]]] = {"linear": {}, "se": {}}
"""Kernel -> data set -> method -> RMSE averaged over tasks, on standardised targets."""

for _name, *_numbers in map(str.split, PRINTED.strip().splitlines()):
    _printed = list(map(Printed, map(float, _numbers[::2]), map(float, _numbers[1::2])))
    RMSE["linear"][_name] = dict(zip(METHODS, _printed[:4], strict=True))
    RMSE["se"][_name] = dict(zip(METHODS, _printed[4:], strict=True))

DATA_SETS = tuple(RMSE["linear"])
"""In the order of the paper's tables."""
