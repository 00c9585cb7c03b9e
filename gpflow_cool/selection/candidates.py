"""Kernels to choose from, by name."""

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gpflow
from gpflow.kernels import Combination, Kernel, Sum

from .. import checks
from ..kernels import Laplacian


def se_and_linear() -> Kernel:
    """A smooth function on top of a plane through the origin."""
    return gpflow.kernels.SquaredExponential() + gpflow.kernels.Linear()


def matern_and_laplacian() -> Kernel:
    """A function of all inputs together, and one in which they act one by one."""
    return gpflow.kernels.Matern32() + Laplacian()


CANDIDATES: dict[str, Callable[[], Kernel]] = {
    "se": gpflow.kernels.SquaredExponential,
    "matern52": gpflow.kernels.Matern52,
    "matern32": gpflow.kernels.Matern32,
    "matern12": gpflow.kernels.Matern12,
    "rq": gpflow.kernels.RationalQuadratic,
    "se+linear": se_and_linear,
    "matern32+laplacian": matern_and_laplacian,
    "linear": gpflow.kernels.Linear,
}
"""What :func:`gpflow_cool.choose_kernel` compares if nothing else is asked for, from simple to less
simple, and the kernels that the estimator knows by name."""


def named_candidates(candidates: Any) -> dict[str, Kernel]:
    """
    Kernels to compare, by name, each a new object.

    :param candidates: None for all of `CANDIDATES`; names of them and GPflow kernels in a list; or
        kernels by names of one's own.
    """
    if candidates is None:
        candidates = list(CANDIDATES)
    if isinstance(candidates, Mapping):
        given = {str(name): make_candidate(kernel) for name, kernel in candidates.items()}
    elif isinstance(candidates, str | Kernel) or not isinstance(candidates, Sequence):
        raise ValueError(
            f"candidates={candidates!r} is not a list: pass names ({', '.join(CANDIDATES)}) and"
            " GPflow kernels in a list, or kernels by names of your own in a dict."
        )
    else:
        kernels = [make_candidate(kernel) for kernel in candidates]
        names = [c if isinstance(c, str) else kernel_name(c) for c in candidates]
        given = dict(zip(different(names), kernels, strict=True))
    if not given:
        raise ValueError("candidates is empty: pass at least one kernel, or None for all.")
    return given


def make_candidate(kernel: Any) -> Kernel:
    """A new kernel by name, or a copy of the user's."""
    if isinstance(kernel, str):
        return CANDIDATES[checks.option(kernel, "candidates", tuple(CANDIDATES))]()
    return copy.deepcopy(checks.kernel(kernel))


def kernel_name(kernel: Kernel) -> str:
    """
    A short name for a kernel of the user's.

    >>> from gpflow.kernels import Linear, Matern32, White
    >>> kernel_name(Matern32() * Linear() + White())
    'Matern32 * Linear + White'
    """
    if not isinstance(kernel, Combination):
        return type(kernel).__name__
    sign = " + " if isinstance(kernel, Sum) else " * "
    names = [kernel_name(part) for part in kernel.kernels]
    nested = [isinstance(part, Sum) and sign == " * " for part in kernel.kernels]
    return sign.join(f"({n})" if inner else n for n, inner in zip(names, nested, strict=True))


def different(names: Sequence[str]) -> list[str]:
    """
    Names with a number behind those that come twice.

    >>> different(["se", "RBF", "se"])
    ['se', 'RBF', 'se (2)']
    """
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result
