"""Parameters as one vector for an optimiser."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import Parameter
from gpflow.base import AnyNDArray

from ..chain.starting import NoiseFloor

MAX_LOG_RATIO = 50.0

LARGEST_LOGARITHM = 80.0
"""Logarithms beyond this are clipped to it, so that nothing overflows."""


def lower_bound(parameter: Parameter) -> AnyNDArray | None:
    """
    The lower bound that a parameter's transform sets, if it is at least zero and there is no upper
    bound; else None.
    """
    variable = parameter.unconstrained_variable
    transform = parameter.transform
    if transform is None or transform.forward_min_event_ndims > 0:
        return None
    if has_logarithm(parameter):
        return None
    floor = softplus_floor(parameter)
    if floor is not None and np.ndim(floor) <= variable.shape.rank:
        low = np.array(np.broadcast_to(floor, variable.shape), dtype=np.float64)
        return low if np.all(low >= 0) else None
    ends = tf.constant([-np.inf, np.inf], variable.dtype)
    ends = tf.reshape(ends, [2] + [1] * variable.shape.rank)
    ends = tf.broadcast_to(ends, [2, *variable.shape])
    low, high = transform.forward(ends).numpy()
    if low.shape == variable.shape and np.all(low >= 0) and np.all(np.isposinf(high)):
        return np.asarray(low, dtype=np.float64)
    return None


def has_logarithm(parameter: Parameter) -> bool:
    """Whether the parameter's variable is its logarithm already."""
    return type(parameter.transform) is tfp.bijectors.Exp


def softplus_floor(parameter: Parameter) -> AnyNDArray | float | None:
    """
    The constant c of a parameter c + log(1 + exp(u)) of its variable u, as positive ones of
    GPflow's and sigma2 are; None for any other.

    NumPy computes that in microseconds. TensorFlow Probability takes two milliseconds, which is
    more than the rest of an evaluation with few rows.
    """
    transform: Any = parameter.transform
    floor: AnyNDArray | float = 0.0
    if type(transform) is tfp.bijectors.Chain and len(transform.bijectors) == 2:
        shift, transform = transform.bijectors
        if type(shift) not in (tfp.bijectors.Shift, NoiseFloor) or not is_constant(shift.shift):
            return None
        floor = np.asarray(shift.shift)
    plain = type(transform) is tfp.bijectors.Softplus and all(
        getattr(transform, name) is None for name in ("hinge_softness", "low")
    )
    return floor if plain else None


def is_constant(bound: Any) -> bool:
    """Whether a bound stays as it is: a variable, and a parameter, may be trained as well."""
    return isinstance(bound, tf.Tensor) and hasattr(bound, "numpy")


def rounding_at(floor: Any, dtype: tf.DType) -> Any:
    """A value below the floor by no more than this counts as one above it, as `NoiseFloor` does."""
    return 10.0 * np.finfo(dtype.as_numpy_dtype).eps * abs(floor)


def assign(parameter: Parameter, value: AnyNDArray) -> None:
    """Set a parameter, whose bounds allow the value."""
    floor = softplus_floor(parameter)
    if floor is None:
        parameter.assign(value)
        return
    variable = parameter.unconstrained_variable
    least = rounding_at(floor, variable.dtype)
    with np.errstate(all="ignore"):
        excess = value - floor
        excess = np.where(excess < -least, np.nan, np.maximum(excess, least))
        u = excess + np.log(-np.expm1(-excess))
    if not np.isfinite(u).all():
        raise FloatingPointError(f"a parameter became {value}")
    variable.assign(u)


def constrained(parameter: Parameter) -> AnyNDArray:
    """The value of a parameter."""
    floor = softplus_floor(parameter)
    if floor is None:
        return np.asarray(parameter.numpy())
    u = parameter.unconstrained_variable.numpy()
    return np.asarray(floor + np.logaddexp(0.0, u), dtype=u.dtype)


def log_slope(parameter: Parameter) -> AnyNDArray:
    """Logarithm of the derivative of a parameter by its variable."""
    if softplus_floor(parameter) is not None:
        return -np.logaddexp(0.0, -parameter.unconstrained_variable.numpy())
    transform: Any = parameter.transform
    u = tf.convert_to_tensor(parameter.unconstrained_variable)
    return np.asarray(transform.forward_log_det_jacobian(u, event_ndims=0).numpy())


def log_excess(parameter: Parameter, bound: AnyNDArray) -> AnyNDArray:
    """Logarithm of a parameter minus its bound; finite, although rounding may make them equal."""
    value = constrained(parameter)
    limits = np.finfo(value.dtype)
    return np.log(np.maximum(value - bound, np.maximum(limits.eps * bound, limits.tiny)))


class ParameterVector:
    """
    Parameters as one vector x: their unconstrained variables, as GPflow has them.

    :param logarithms: Whether a parameter with a lower bound is `bound + exp(x)` instead: a
        lengthscale that is far from its optimum then needs fewer steps.
    """

    def __init__(self, parameters: Sequence[Parameter], *, logarithms: bool = False) -> None:
        self.parameters = list(parameters)
        self.bounds = [lower_bound(p) if logarithms else None for p in self.parameters]
        self.shapes = [tuple(p.unconstrained_variable.shape) for p in self.parameters]
        self.ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        self.size = int(self.ends[-1]) if self.parameters else 0
        flags = [
            np.full(int(np.prod(shape)), bound is not None or has_logarithm(p))
            for p, bound, shape in zip(self.parameters, self.bounds, self.shapes, strict=True)
        ]
        self.is_logarithm = np.concatenate([np.zeros(0, bool), *flags])

    def _split(self, x: AnyNDArray) -> list[AnyNDArray]:
        pieces = np.split(x, self.ends)[:-1]
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def numpy(self) -> AnyNDArray:
        """The vector at the present parameters."""
        parts = [
            p.unconstrained_variable.numpy() if bound is None else log_excess(p, bound)
            for p, bound in zip(self.parameters, self.bounds, strict=True)
        ]
        return np.concatenate([np.zeros(0), *map(np.ravel, parts)]).astype(np.float64)

    def assign(self, x: AnyNDArray) -> None:
        """Set the parameters."""
        for p, bound, value in zip(self.parameters, self.bounds, self._split(x), strict=True):
            if bound is None:
                p.unconstrained_variable.assign(value)
            else:
                value = np.clip(value, -LARGEST_LOGARITHM, LARGEST_LOGARITHM)
                assign(p, bound + np.exp(value))

    def gradient(self, gradients: Sequence[AnyNDArray]) -> AnyNDArray:
        """Gradient with respect to x from those with respect to the unconstrained variables."""
        parts = []
        for p, bound, g in zip(self.parameters, self.bounds, gradients, strict=True):
            if bound is not None and p.transform is not None:
                # At the bound the slope underflows, and so does g: any finite ratio will do.
                excess = log_excess(p, bound)
                ratio = np.minimum(excess - log_slope(p), np.maximum(excess, MAX_LOG_RATIO))
                g = g * np.exp(ratio)
            parts.append(np.ravel(g))
        return np.concatenate([np.zeros(0), *parts]).astype(np.float64)
