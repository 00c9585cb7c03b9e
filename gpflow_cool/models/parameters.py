"""The chain's parameters b and sigma2, as every model of the chain has them."""

import warnings

import numpy as np
from gpflow import Parameter
from gpflow.base import AnyNDArray, TensorData
from gpflow.utilities import positive

from .. import checks
from ..starting import chain_start, noise_transform

MAX_SCALE_RATIO = 10.0


def chain_parameters(
    b: TensorData | None,
    sigma2: TensorData | None,
    kernel_variance: float,
    scales: AnyNDArray,
) -> tuple[Parameter, Parameter]:
    """
    The parameters b and sigma2, [T] each, from what the user gave, else from the tasks' variances.

    Warns of targets whose scales are far apart.

    :param kernel_variance: Mean of k(x, x).
    :param scales: [T], the tasks' variances.
    """
    ratio = float(np.sqrt(scales.max() / scales.min()))
    if ratio > MAX_SCALE_RATIO:
        warnings.warn(
            f"The standard deviations of the targets differ by a factor of {ratio:.3g}. The"
            " prior of the weights between tasks assumes comparable scales: standardise Y.",
            stacklevel=3,
        )
    start = chain_start(kernel_variance, scales)
    b = checks.positive_vector(start.b if b is None else b, "b", len(scales))
    sigma2 = start.sigma2 if sigma2 is None else sigma2
    sigma2 = checks.positive_vector(sigma2, "sigma2", len(scales))
    return (
        Parameter(b, transform=positive(lower=0.0)),
        Parameter(sigma2, transform=noise_transform(sigma2, scales)),
    )
