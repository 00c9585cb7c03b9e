r"""
Shrunk relevance: one lengthscale per input, pulled towards a common one.

.. math:: \log l_d \sim N(\log l_0, \tau^2), \qquad d = 1, \dots, D

:math:`l_0` is the common lengthscale that fits best. Without the prior, many lengthscales overfit
where rows are few. With it, an input that the data say nothing about keeps the common lengthscale.
"""

import numpy as np
import tensorflow_probability as tfp
from gpflow import Parameter
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel, Stationary

RELEVANCE = ("given", "shrunk")

SPREAD = 1.0
"""tau: the standard deviation of a lengthscale's logarithm around that of the common one."""


def kernels_with_lengthscales(kernel: Kernel) -> list[Stationary]:
    """
    The kernels inside sums, products and periodic kernels whose lengthscales may be shrunk: those
    that are trained, and that have no prior of the user's own.
    """
    parts = (part for part in (kernel, *kernel.submodules) if isinstance(part, Stationary))
    return [
        part
        for part in parts
        if isinstance(getattr(part, "lengthscales", None), Parameter)
        and part.lengthscales.trainable
        and part.lengthscales.prior is None
    ]


def lengthscales_and_owners(kernel: Kernel) -> list[tuple[Parameter, list[Stationary]]]:
    """The lengthscales that may be shrunk, each with the kernels inside that share it."""
    parts = kernels_with_lengthscales(kernel)
    different = {id(part.lengthscales): part.lengthscales for part in parts}
    return [(p, [part for part in parts if part.lengthscales is p]) for p in different.values()]


def replace_lengthscales(owners: list[Stationary], old: Parameter, values: AnyNDArray) -> Parameter:
    """Give kernels that share their lengthscales others, which they share as well."""
    new = Parameter(values, transform=old.transform)
    for part in owners:
        part.lengthscales = new
    return new


def share_lengthscales(kernel: Kernel) -> None:
    """Give every kernel inside one lengthscale for all inputs, the geometric mean of its own."""
    for own, owners in lengthscales_and_owners(kernel):
        if own.shape.rank > 0:
            replace_lengthscales(owners, own, np.exp(np.mean(np.log(own.numpy()))))


def free_lengthscales(kernel: Kernel, num_columns: int) -> list[Parameter]:
    """
    Give every kernel inside one lengthscale per input that it sees, with a log-normal prior whose
    mode is its present, common lengthscale. Variances of terms of a sum get such a prior as well:
    otherwise one term may vanish while the lengthscales of the others adapt, and never return.
    Kernels that share a lengthscale share those per input, and keep the common one if they see
    different numbers of inputs.

    :return: The parameters that have a prior now; none, where every kernel sees a single input.
    """
    freed = []
    for common, owners in lengthscales_and_owners(kernel):
        size, *others = {num_active(part, num_columns) for part in owners}
        if size > 1 and not others:
            own = replace_lengthscales(owners, common, np.full(size, common.numpy()))
            freed.append((own, common.numpy()))
    if freed:
        freed += [(variance, variance.numpy()) for variance in trained_variances(kernel)]
    for parameter, centre in freed:
        parameter.prior = prior_around(centre)
    return [parameter for parameter, _ in freed]


def trained_variances(kernel: Kernel) -> list[Parameter]:
    """Variances of kernels inside that are trained, and that have no prior of the user's own."""
    found = (getattr(part, "variance", None) for part in (kernel, *kernel.submodules))
    different = {id(p): p for p in found if isinstance(p, Parameter)}
    return [p for p in different.values() if p.trainable and p.prior is None]


def num_active(kernel: Kernel, num_columns: int) -> int:
    """How many of the columns a kernel sees."""
    dims = kernel.active_dims
    return len(range(num_columns)[dims]) if isinstance(dims, slice) else len(dims)


def prior_around(common: AnyNDArray) -> tfp.distributions.LogNormal:
    r"""
    The log-normal density with its mode at the common lengthscale :math:`l_0`, up to a constant

    .. math:: -\frac{(\log l - \log l_0)^2}{2 \tau^2}

    (The mode of a log-normal density is at :math:`e^{\mu - \tau^2}`.)
    """
    spread = np.asarray(SPREAD, common.dtype)
    return tfp.distributions.LogNormal(np.log(common) + spread**2, spread)


def prior_cost(kernel: Kernel, common: Kernel) -> float:
    r"""
    What the prior takes off the objective,
    :math:`\sum_d (\log l_d - \log l_0)^2 / (2 \tau^2)`, and the same for variances.

    :param common: The same kernel with the common lengthscales :math:`l_0`.
    """
    moves = [np.log(own.numpy() / centre) for own, centre in freed_parameters(kernel, common)]
    return float(sum(np.sum(np.square(move)) for move in moves) / (2.0 * SPREAD**2))


def freed_parameters(kernel: Kernel, common: Kernel) -> list[tuple[Parameter, AnyNDArray]]:
    """
    The parameters to which :func:`free_lengthscales` gives a prior, each with its mode; none, where
    no kernel has several lengthscales in place of a common one.
    """
    parts = kernels_with_lengthscales(kernel), kernels_with_lengthscales(common)
    freed = {
        id(own.lengthscales): (own.lengthscales, shared.lengthscales.numpy())
        for own, shared in zip(*parts, strict=True)
        if own.lengthscales.shape.rank > shared.lengthscales.shape.rank
    }
    variances = zip(trained_variances(kernel), trained_variances(common), strict=True)
    return [*freed.values(), *((own, shared.numpy()) for own, shared in variances)] if freed else []
