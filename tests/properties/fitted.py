"""
A fitted model, the same by dense algebra, and how the laws compare arrays.

Tolerances. Float64 has eps = 2.2e-16. A covariance is compared in units of its prior variances,
C_tt k(x, x) plus noise: a posterior covariance is a difference of numbers of that size, so that its
rounding is some hundred eps of it, and 1e-8 leaves room for other BLAS libraries. What needs
(C (x) K + Sigma (x) I)^-1 is compared with an error that grows with the condition number of that
matrix, scaled to a unit diagonal: no float64 algorithm does better. Where this allows for an error
of 1e-3 nothing is left to compare, and the law is silent.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import gpflow
import numpy as np

from gpflow_cool import CoolMTGPRegressor, IndependentGPs, SparseCoolMTGP

from .cases import Case, new_inputs

EPS = float(np.finfo(np.float64).eps)
LAYOUTS = [(False, False), (True, False), (False, True), (True, True)]
COVARIANCE_ERROR = 1e-8
LARGEST_ERROR = 1e-3

OTHER_DIGITS = 3
"""How often the last digits of the targets are changed, where a law seems to be broken."""


class Fitted:
    """A joint model after its fit, and what the laws share of it."""

    def __init__(self, case: Case, model: Any) -> None:
        self.case = case
        self.model = model
        self.X, self.Y = (np.asarray(part) for part in model.data)
        self.Xnew = new_inputs(self.X)
        self.is_sparse = isinstance(model, SparseCoolMTGP)
        self.observed = ~np.isnan(self.Y)

    @cached_property
    def C(self) -> np.ndarray:
        return np.asarray(self.model.task_covariance())

    @cached_property
    def Sigma(self) -> np.ndarray:
        return np.asarray(self.model.noise_covariance())

    @cached_property
    def f(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the functions at the test inputs."""
        return arrays(self.model.predict_f(self.Xnew))

    @cached_property
    def y(self) -> tuple[np.ndarray, np.ndarray]:
        """The same of observations."""
        return arrays(self.model.predict_y(self.Xnew))

    @cached_property
    def posterior(self) -> Any:
        """The model with its factorisation cached: laws that ask often ask this."""
        return self.model.posterior()

    @cached_property
    def prior(self) -> np.ndarray:
        """[M, T], variances before anything was observed, noise included."""
        diagonal = np.asarray(self.model.kernel(self.Xnew, full_cov=False))
        return diagonal[:, None] * np.diag(self.C) + np.diag(self.Sigma)

    @cached_property
    def dense(self) -> "Dense | None":
        """The same model by dense algebra; None where float64 has no digits for it."""
        return None if self.is_sparse else Dense.of(self)


class Dense(NamedTuple):
    """The joint model solved as one Gaussian of all targets, in NumPy."""

    evidence: float
    terms: float
    """Sum of what the evidence is a sum of, without signs: what its rounding is relative to."""

    mean: np.ndarray  # [M, T]
    size: np.ndarray  # [M, T], what the mean's rounding is relative to
    error: float  # relative
    by_tasks: np.ndarray  # [M, T], what the rounding of C, whitened by Sigma, changes the mean by

    @classmethod
    def of(cls, fitted: Fitted) -> "Dense | None":
        """See :class:`Dense`; `vec` stacks columns."""
        C, Sigma, kernel = fitted.C, fitted.Sigma, fitted.model.kernel
        K, Ks = (covariance(kernel, fitted.X, X, fitted.X[0]) for X in (fitted.X, fitted.Xnew))
        o = fitted.observed.ravel(order="F")
        S = (np.kron(C, K) + np.kron(Sigma, np.eye(len(K))))[np.ix_(o, o)]
        if not np.isfinite(S).all() or np.any(np.diag(S) <= 0):
            return None
        deviation = np.sqrt(np.diag(S))
        lam, U = np.linalg.eigh(S / np.outer(deviation, deviation))
        rounding = EPS * (1.0 + rounding_units(kernel, fitted.X, fitted.Xnew))
        error = 100 * rounding * lam[-1] / lam[0] if lam[0] > 0 else np.inf
        if error > LARGEST_ERROR:
            return None
        z = U.T @ (fitted.Y.ravel(order="F")[o] / deviation)
        terms = np.concatenate([np.log(2 * np.pi * lam), 2 * np.log(deviation), z**2 / lam])
        cross = np.kron(C, Ks)[o] / deviation[:, None]  # [observed, T M]
        alpha = U @ (z / lam)
        shape = C.shape[0], len(fitted.Xnew)
        size = np.linalg.norm(cross, axis=0) * np.linalg.norm(alpha)
        return cls(
            evidence=-0.5 * float(np.sum(terms)),
            terms=float(np.sum(np.abs(terms))),
            mean=(cross.T @ alpha).reshape(shape).T,
            size=size.reshape(shape).T,
            error=max(error, 1e-10),
            by_tasks=rounding_by_tasks(fitted, np.linalg.norm(Ks, axis=0)),
        )


def rounding_by_tasks(fitted: Fitted, norms: np.ndarray) -> np.ndarray:
    r"""
    How much the mean changes by the rounding of C's eigenvalues d, whitened by Sigma.

    .. math:: \epsilon \, d_{\max} \sqrt{\Sigma_{tt}} \, \|k_*\| \, \|Z\|_F, \qquad
              \|Z\|_F^2 = \sum_n y_n^\top \Sigma^{-1} y_n

    LAPACK knows all of them to eps of the largest one. One task may be all signal, d = 1e7, beside
    others without any: theirs is rounding.

    :param norms: [M], those of the cross-covariances k_*.
    """
    Y, deviation = np.where(fitted.observed, fitted.Y, 0.0), np.sqrt(np.diag(fitted.Sigma))
    V = whitener(fitted.Sigma)
    length = float(np.linalg.norm(Y / deviation @ V)) if np.isfinite(V).all() else 1.0
    return EPS * signal_to_noise(fitted) * np.outer(norms, deviation) * length


def signal_to_noise(fitted: Fitted) -> float:
    """The largest eigenvalue of C, whitened by Sigma; infinite where Sigma is singular."""
    V = whitener(fitted.Sigma)
    if not np.isfinite(V).all():
        return np.inf
    return float(np.linalg.eigvalsh(V.T @ in_units(fitted.C, np.diag(fitted.Sigma)) @ V)[-1])


def whitener(Sigma: np.ndarray) -> np.ndarray:
    """V with V^T R V = I for the correlations R of Sigma; not finite where these are singular."""
    lam, V = np.linalg.eigh(in_units(Sigma, np.diag(Sigma)))
    return V / np.sqrt(lam) if lam[0] > 0 else np.full_like(V, np.inf)


def covariance(kernel: Any, X: np.ndarray, X2: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """
    k(X, X2) from differences of inputs, which GPflow computes as x^2 - 2 x x' + x'^2.

    Of that no digit is left at 1e9, nor for neighbours where lengthscales are tiny. Kernels that
    are neither linear nor a function of the distance see inputs relative to an origin.
    """
    if isinstance(kernel, gpflow.kernels.Combination):
        parts = [covariance(part, X, X2, origin) for part in kernel.kernels]
        combine = np.add if isinstance(kernel, gpflow.kernels.Sum) else np.multiply
        return combine.reduce(parts)
    if isinstance(kernel, gpflow.kernels.IsotropicStationary):
        scaled = (X[:, None, :] - X2[None, :, :]) / kernel.lengthscales.numpy()
        r2 = np.sum(scaled**2, axis=-1)
        if isinstance(kernel, gpflow.kernels.RationalQuadratic):  # the power rounds by alpha eps
            alpha = kernel.alpha.numpy()
            return np.asarray(kernel.variance * np.exp(-alpha * np.log1p(0.5 * r2 / alpha)))
        return np.asarray(kernel.K_r2(r2))
    if not isinstance(kernel, gpflow.kernels.Linear):
        X, X2 = X - origin, X2 - origin
    return np.asarray(kernel(X, X2))


def rounding_units(kernel: Any, X: np.ndarray, Xnew: np.ndarray) -> float:
    """
    By how many units of rounding kernels multiply that of their inputs: the angle that they span
    in radians, as the phase of a periodic kernel is known to eps of that.
    """
    parts = (kernel, *kernel.submodules)
    periods = [k.period.numpy() for k in parts if hasattr(k, "period")]
    spread = np.max(np.ptp(np.vstack([X, Xnew]), axis=0))
    return 2.0 * np.pi * float(max((np.max(spread / period) for period in periods), default=0.0))


def arrays(tensors: Any) -> Any:
    return tuple(np.array(tensor) for tensor in tensors)


def other_last_digits(Y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Targets, each changed by one or two units in the last digit."""
    return Y * (1.0 + EPS * rng.choice([-1.0, 1.0], size=Y.shape))


def where_not_finite(**named: Any) -> Iterator[str]:
    """Names of arrays that are not finite."""
    for name, value in named.items():
        value = np.asarray(value)
        if not np.isfinite(value).all():
            yield f"{name} has {np.sum(~np.isfinite(value))} of {value.size} entries not finite"


def in_units(S: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """A covariance as if these variances were 1."""
    deviation = np.sqrt(np.where(variances > 0, variances, 1.0))
    return S / deviation[..., :, None] / deviation[..., None, :]


def not_a_covariance(
    name: str, S: np.ndarray, variances: np.ndarray, error: float = COVARIANCE_ERROR
) -> Iterator[str]:
    """
    What is wrong with covariances [..., P, P], in units of the variances [..., P].

    :param error: How far an entry may be off.
    """
    yield from where_not_finite(**{name: S})
    if np.isfinite(S).all():
        R = in_units(S, variances)
        asymmetry = float(np.max(np.abs(R - np.swapaxes(R, -1, -2))))
        smallest = float(np.min(np.linalg.eigvalsh(0.5 * (R + np.swapaxes(R, -1, -2)))))
        if asymmetry > COVARIANCE_ERROR:
            yield f"{name} is not symmetric, by {asymmetry:.2g} of the variances"
        if smallest < -error * R.shape[-1]:
            yield f"{name} has an eigenvalue of {smallest:.2g} of the variances"


def different(name: str, a: Any, b: Any, allowed: Any) -> Iterator[str]:
    """Where two arrays differ by more than is allowed."""
    a, b = np.asarray(a), np.asarray(b)
    bad = ~(np.abs(a - b) <= allowed)
    if bad.any():
        n = tuple(np.argwhere(bad)[0])
        limit = float(np.broadcast_to(allowed, a.shape)[n])
        yield f"{name} differs: {a[n]:.6g} and {b[n]:.6g}, {limit:.2g} is allowed"


def joint_models(thing: Any) -> list[Any]:
    """The joint models inside of what was fitted; of independent ones, the first and the last."""
    if isinstance(thing, CoolMTGPRegressor):
        return [thing.model_]
    if isinstance(thing, IndependentGPs):
        return thing.models[:: max(1, len(thing.models) - 1)]
    return [thing]
