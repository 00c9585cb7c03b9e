r"""
Skewed targets: a Gaussian process models a transform of each target, answers are in its own units.

With z = g(y), the density of y is that of z times g'(y). Medians and quantiles go through the
inverse of g. Means and covariances are integrals of that inverse, by Gauss-Hermite quadrature. The
power of Yeo and Johnson's transform [1] is between 0 and 2, where it maps all numbers to all
numbers: densities integrate to one, and moments are finite.

[1] Yeo and Johnson (2000), A new family of power transformations to improve normality or symmetry.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import boxcox1p, inv_boxcox1p, ndtri

from .. import checks
from .columns import Scaling, standardising
from .files import did_you_mean

TRANSFORMS = ("none", "log", "yeo-johnson")

NODES = 64
"""Points of the quadrature."""

UNITS = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Units that are tried for Yeo and Johnson's transform, relative to the target's median size."""

POWERS = np.linspace(0.0, 2.0, 21).tolist()
LENGTHSCALES = (0.5, 2.0, 8.0)
"""Lengthscales that are tried, relative to the median distance of two rows."""

PARTS = (0.0, 0.5, 0.9, 0.99, 0.999)
"""Parts of a target's variance that are tried for the function; the rest is noise."""

MAX_ROWS = 500
"""The transform is learned from at most this many rows, evenly over the table."""

FAR_AWAY = float(np.finfo(np.float64).max)
"""Stands for infinity, which JSON does not know."""


class Transform(NamedTuple):
    r"""
    How one target y is transformed: z = g(y), increasing.

    * "none": :math:`z = y`
    * "log": :math:`z = \log y`
    * "yeo-johnson": with :math:`u = y / \text{unit}` and the power :math:`\lambda`,
      :math:`z = ((1 + u)^\lambda - 1) / \lambda` if :math:`u \ge 0`, else
      :math:`z = -((1 - u)^{2 - \lambda} - 1) / (2 - \lambda)`.

    Below `low` and above `high`, the ends of the training data, g goes on as a straight line where
    its inverse would otherwise grow faster than one: predictions outside the data stay sensible.
    """

    kind: str = "none"
    power: float = 1.0
    unit: float = 1.0
    low: float = -FAR_AWAY
    high: float = FAR_AWAY

    def forward(self, y: AnyNDArray) -> AnyNDArray:
        """z, for y of any shape; NaN stays."""
        inside = np.clip(y, self.low, self.high)
        slope = np.where(y == inside, 0.0, np.exp(self.log_slope(inside)))
        return self.curve(inside) + (y - inside) * slope

    def inverse(self, z: AnyNDArray) -> AnyNDArray:
        """y, for z of any shape."""
        if self.kind == "none":
            return z
        ends = np.array([self.low, self.high])
        finite = np.abs(ends) < FAR_AWAY
        low, high = np.where(finite, self.curve(np.where(finite, ends, 1.0)), [-np.inf, np.inf])
        inside = np.clip(z, low, high)
        y = self.inverse_curve(inside)
        return y + (z - inside) * np.exp(-self.log_slope(y))

    def log_slope(self, y: AnyNDArray) -> AnyNDArray:
        r""":math:`\log g'(y)`."""
        if self.kind == "none":
            return np.zeros_like(y)
        inside = np.clip(y, self.low, self.high)
        if self.kind == "log":
            return -logarithm(inside)
        u = inside / self.unit
        return (self.power - 1.0) * np.sign(u) * np.log1p(np.abs(u)) - np.log(self.unit)

    def curve(self, y: AnyNDArray) -> AnyNDArray:
        """g between `low` and `high`."""
        if self.kind == "none":
            return y
        if self.kind == "log":
            return logarithm(y)
        up, down = np.maximum(y, 0.0) / self.unit, np.maximum(-y, 0.0) / self.unit
        return np.asarray(boxcox1p(up, self.power) - boxcox1p(down, 2.0 - self.power))

    def inverse_curve(self, z: AnyNDArray) -> AnyNDArray:
        """The inverse of :meth:`curve`."""
        if self.kind == "log":
            return np.exp(z)
        up, down = np.maximum(z, 0.0), np.maximum(-z, 0.0)
        u = inv_boxcox1p(up, self.power) - inv_boxcox1p(down, 2.0 - self.power)
        return np.asarray(u * self.unit)

    def within(self, y: AnyNDArray) -> "Transform":
        """The same transform, a straight line outside the data [N] where it must be one."""
        y = y[~np.isnan(y)]
        low = float(y.min()) if self.kind == "yeo-johnson" and self.power > 1.0 else -FAR_AWAY
        straight = self.kind == "log" or (self.kind == "yeo-johnson" and self.power < 1.0)
        return self._replace(low=low, high=float(y.max()) if straight else FAR_AWAY)


def logarithm(y: AnyNDArray) -> AnyNDArray:
    """Logarithms, minus infinity for numbers that are not positive; NaN stays."""
    return np.log(y, out=np.full(np.shape(y), -np.inf), where=~(y <= 0.0))


class Warping(NamedTuple):
    """Targets, each transformed and then standardised, and answers back in the user's units."""

    transforms: tuple[Transform, ...]
    scaling: Scaling
    """Of the transformed targets."""

    @property
    def scale(self) -> AnyNDArray:
        """[T], deviations of the transformed targets."""
        return self.scaling.scale

    @property
    def is_linear(self) -> bool:
        return all(transform.kind == "none" for transform in self.transforms)

    @check_shapes("Y: [N, T]", "return: [N, T]")
    def standardised(self, Y: AnyNDArray) -> AnyNDArray:
        """Targets as the model sees them; NaN stays."""
        return self.scaling.standardised(self._each("forward", Y))

    @check_shapes("Y: [N, T]", "return: [N, T]")
    def known(self, Y: AnyNDArray, names: Sequence[str]) -> AnyNDArray:
        """The same of targets that somebody has measured; raises if one has no logarithm."""
        for transform, y, name in zip(self.transforms, Y.T, names, strict=True):
            check_positive(y, transform.kind, name)
        return self.standardised(Y)

    @check_shapes("Z: [N, T]", "return: [N, T]")
    def values(self, Z: AnyNDArray) -> AnyNDArray:
        """The inverse of :meth:`standardised`."""
        return self._each("inverse", self.scaling.mean(Z))

    def _each(self, method: str, Y: AnyNDArray) -> AnyNDArray:
        """A method of every target's transform, of its column [N, T]."""
        parts = [
            getattr(transform, method)(y) for transform, y in zip(self.transforms, Y.T, strict=True)
        ]
        return np.stack(parts, axis=1)

    @check_shapes("cov: [T, T]", "return: [T, T]")
    def covariance(self, cov: AnyNDArray) -> AnyNDArray:
        """Covariances of the transformed targets."""
        return self.scaling.covariance(cov)

    @check_shapes("log_density: [M]", "Y: [M, T]", "known: [M, T]", "return: [M]")
    def log_density(
        self, log_density: AnyNDArray, Y: AnyNDArray, known: AnyNDArray | None = None
    ) -> AnyNDArray:
        r"""
        Joint log densities of rows in the user's units.

        .. math:: \log p(y) = \log p(z) + \sum_t \log g_t'(y_t) - \sum_t \log s_t

        :param log_density: Of the standardised targets z.
        :param Y: In the user's units.
        :param known: The targets t that each row's density is of; None for all.
        """
        slopes = self._each("log_slope", Y)
        if known is not None:
            slopes = np.where(known, slopes, 0.0)
        impossible = np.isneginf(self._each("forward", Y)).any(axis=1)  # log of what is not above 0
        density = self.scaling.log_density(log_density, known) + slopes.sum(axis=1)
        return np.where(impossible, -np.inf, density)

    @check_shapes("mean: [M, T]", "var: [M, T]", "return: [M, T, Q]")
    def quantiles(
        self, mean: AnyNDArray, var: AnyNDArray, probabilities: Sequence[float]
    ) -> AnyNDArray:
        """Quantiles of each target, from means and variances of the standardised ones."""
        std = np.sqrt(np.maximum(var, 0.0))
        parts = [self.values(mean + std * ndtri(p)) for p in probabilities]
        return np.stack(parts, axis=-1)

    def moments(self, mean: AnyNDArray, cov: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
        """
        Means [M, T] and covariances of the targets, from those of the standardised ones.

        :param cov: [M, T, T], or variances [M, T]; returned in the same form.
        """
        if self.is_linear:
            linear = self.scaling.covariance(cov) if cov.ndim == 3 else cov * self.scale**2
            return self.scaling.mean(mean), linear
        variance = np.diagonal(cov, axis1=1, axis2=2) if cov.ndim == 3 else cov
        std = np.sqrt(np.maximum(variance, 0.0))  # [M, T]
        a = np.stack(
            [
                hermite_coefficients(transform, m * s + c, v * s)
                for transform, m, v, s, c in zip(
                    self.transforms, mean.T, std.T, *self.scaling[::-1], strict=True
                )
            ],
            axis=1,
        )  # [M, T, K]
        if cov.ndim == 2:
            return a[..., 0], np.sum(a[..., 1:] ** 2, axis=-1)
        return a[..., 0], covariance_of_series(a, correlation(cov, std))


@cache
def quadrature() -> tuple[AnyNDArray, AnyNDArray]:
    """Nodes and weights with which means over a standard normal are taken."""
    nodes, weights = hermegauss(NODES)
    return nodes, weights / weights.sum()


@check_shapes("mean: [M]", "std: [M]", "return: [M, K]")
def hermite_coefficients(transform: Transform, mean: AnyNDArray, std: AnyNDArray) -> AnyNDArray:
    r"""
    Coefficients of a target as a series in a standard normal x, with :math:`z = m + s x`.

    .. math:: a_k = E[g^{-1}(m + s x) \, h_k(x)], \qquad y = \sum_k a_k h_k(x)

    :math:`h_k` are Hermite's polynomials, orthonormal, so that :math:`a_0` is the mean of y, and
    its variance is the sum of the other coefficients' squares.
    """
    x, weights = quadrature()
    h = np.ones([NODES, NODES])  # [K, nodes]
    h[1] = x
    for k in range(1, NODES - 1):
        h[k + 1] = (x * h[k] - np.sqrt(k) * h[k - 1]) / np.sqrt(k + 1)
    values = transform.inverse(mean[:, None] + std[:, None] * x)  # [M, nodes]
    return values @ (h * weights).T


@check_shapes("a: [M, T, K]", "R: [M, T, T]", "return: [M, T, T]")
def covariance_of_series(a: AnyNDArray, R: AnyNDArray) -> AnyNDArray:
    r"""
    Covariances of series in standard normals whose correlations are R, by Mehler's formula.

    .. math:: \mathrm{cov}(y_t, y_u) = \sum_{k \ge 1} R_{tu}^k \, a_{tk} \, a_{uk}
    """
    total, power = np.zeros_like(R), np.ones_like(R)
    for k in range(1, a.shape[-1]):
        power = power * R
        total += power * a[:, :, None, k] * a[:, None, :, k]
    return total


@check_shapes("cov: [M, T, T]", "std: [M, T]", "return: [M, T, T]")
def correlation(cov: AnyNDArray, std: AnyNDArray) -> AnyNDArray:
    """Correlations, 1 on the diagonal; 0 with a target that is known exactly."""
    product = std[:, :, None] * std[:, None, :]
    R = np.divide(cov, product, out=np.zeros_like(cov), where=product != 0.0)
    R = np.clip(R, -1.0, 1.0)
    R[:, np.arange(R.shape[1]), np.arange(R.shape[1])] = 1.0
    return R


def checked_probabilities(probabilities: Sequence[float]) -> list[float]:
    """Levels of quantiles, each between 0 and 1."""
    levels = checks.numbers(probabilities, "probabilities")
    if levels.ndim != 1 or not len(levels) or not np.all((levels > 0.0) & (levels < 1.0)):
        raise ValueError(
            f"probabilities={probabilities!r}: give numbers between 0 and 1, as [0.05, 0.5, 0.95]."
        )
    return list(map(float, levels))


# Choosing --------------------------------------------------------------------------------------


def kinds_of(transform: Any, names: Sequence[str]) -> list[str]:
    """
    The transform of every target.

    >>> kinds_of({"rain": "log"}, ["heat", "rain"])
    ['none', 'log']

    :param transform: One for all targets, or names of targets and their transforms.
    """
    if isinstance(transform, Mapping):
        unknown = [name for name in transform if name not in names]
        if unknown:
            raise ValueError(
                f"target_transform names {unknown[0]!r}, but the targets are {', '.join(names)}."
                f"{did_you_mean(unknown[0], names)}"
            )
        chosen = [transform.get(name, "none") for name in names]
    else:
        chosen = [transform] * len(names)
    return [checks.option(kind, "target_transform", TRANSFORMS) for kind in chosen]


def learn_warping(
    X: AnyNDArray,
    Y: AnyNDArray,
    transform: Any,
    names: Sequence[str],
    standardize: bool = True,
) -> Warping:
    """
    How targets [N, T] are transformed and standardised; NaN is ignored.

    :param X: Standardised inputs [N, D].
    """
    kinds = kinds_of(transform, names)
    for y, kind, name in zip(Y.T, kinds, names, strict=True):
        check_positive(y, kind, name)
    transforms = tuple(
        learn_power(X, y) if kind == "yeo-johnson" else Transform(kind).within(y)
        for y, kind in zip(Y.T, kinds, strict=True)
    )
    unscaled = Scaling(np.zeros(Y.shape[1]), np.ones(Y.shape[1]))
    Z = Warping(transforms, unscaled).standardised(Y)
    return Warping(transforms, standardising(Z, 1.0) if standardize else unscaled)


def check_positive(y: AnyNDArray, kind: str, name: str) -> None:
    """Raise if a target [N] has no logarithm, and needs one."""
    rows = np.flatnonzero(y <= 0.0)
    if kind == "log" and len(rows):
        raise ValueError(
            f"Target {name!r} is {y[rows[0]]:g} in row {rows[0]}, and has no logarithm: use the"
            ' transform "yeo-johnson", which takes any number, or "none".'
        )


@check_shapes("X: [N, D]", "y: [N]")
def learn_power(X: AnyNDArray, y: AnyNDArray) -> Transform:
    """
    Yeo and Johnson's transform with the power and unit under which the target is most likely.

    What counts is whether the target is normal given its inputs, not whether it is normal: a target
    that is skewed because an input is skewed needs no transform.
    """
    rows = np.flatnonzero(~np.isnan(y))
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_ROWS)).astype(int)]
    known = y[rows]
    typical = float(np.median(np.abs(known[known != 0.0]))) if np.any(known) else 1.0
    candidates = [Transform("yeo-johnson", 1.0, typical)]
    candidates += [
        Transform("yeo-johnson", power, typical * unit)
        for power in POWERS
        for unit in UNITS
        if power != 1.0
    ]
    Z = np.stack([candidate.forward(known) for candidate in candidates], axis=1)
    slopes = [np.sum(candidate.log_slope(known)) for candidate in candidates]
    best = int(np.argmax(log_evidence(X[rows], Z) + slopes))
    return candidates[best].within(y)


@check_shapes("X: [N, D]", "Z: [N, P]", "return: [P]")
def log_evidence(X: AnyNDArray, Z: AnyNDArray) -> AnyNDArray:
    r"""
    Log evidence of each column as a Gaussian process with noise, up to a constant.

    .. math:: \max_{\ell, a, s} \log N(z \mid \bar z, s (a K_\ell + (1 - a) I))

    The squared exponential kernel's lengthscale and the part a of its variance are the best of a
    few; the scale s is the best one.
    """
    N = len(X)
    squared = squared_distances(X)
    typical = np.median(squared[np.triu_indices(N, 1)]) if N > 1 else 1.0
    best = np.full(Z.shape[1], -np.inf)
    centred = Z - Z.mean(axis=0)
    for factor in LENGTHSCALES:
        K = np.exp(-0.5 * squared / (factor**2 * max(typical, np.finfo(float).tiny)))
        d, U = np.linalg.eigh(K)
        S = (U.T @ centred) ** 2  # [N, P]
        for part in PARTS:
            v = part * np.maximum(d, 0.0) + 1.0 - part
            scale = np.maximum(np.mean(S / v[:, None], axis=0), np.finfo(float).tiny)
            best = np.maximum(best, -0.5 * (N * np.log(scale) + np.sum(np.log(v))))
    return best


@check_shapes("X: [N, D]", "return: [N, N]")
def squared_distances(X: AnyNDArray) -> AnyNDArray:
    """Squared distances between rows, from inner products."""
    norms = np.sum(X**2, axis=1)
    return np.maximum(norms[:, None] + norms[None] - 2.0 * X @ X.T, 0.0)
