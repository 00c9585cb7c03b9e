"""
What must hold after every fit, whatever the data: one function per law.

Tolerances. Float64 has eps = 2.2e-16. A covariance is compared in units of its prior variances,
C_tt k(x, x) plus noise: a posterior covariance is a difference of numbers of that size, so that its
rounding is some hundred eps of it, and 1e-8 leaves room for other BLAS libraries. What needs
(C (x) K + Sigma (x) I)^-1 is compared with an error that grows with the condition number of that
matrix, scaled to a unit diagonal: no float64 algorithm does better. Where this allows for an error
of 1e-3 nothing is left to compare, and the law is silent.
"""

import itertools
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf

import gpflow_cool
from gpflow_cool import CoolMTGP, CoolMTGPRegressor, IndependentGPs, SparseCoolMTGP
from gpflow_cool.chain.terms import task_problems, task_terms
from gpflow_cool.training.run import TrainingFailed

from .cases import Case, fit, is_stationary, make_data, make_model, new_inputs

EPS = float(np.finfo(np.float64).eps)
LAYOUTS = [(False, False), (True, False), (False, True), (True, True)]
COVARIANCE_ERROR = 1e-8
LARGEST_ERROR = 1e-3
SHIFT_ERROR = 1e-6
"""What a shift of the inputs may change predictions by, in prior deviations."""

SAME_LOSS = 0.1
"""Nats by which `fit("profile")` may end above `fit("scipy")`: nobody would tell the two apart."""

REFIT_ERROR = 1e-2
"""What another unit of the targets may change predictions by, in the targets' deviations. The
optimiser stops where the loss is flat to 1e-10 of its size, after steps that rounding has changed:
parameters then differ by about 1e-5 of themselves, and much more along flat directions."""

ADVICE = re.compile(
    r"\b(pass|use|try|choose|drop|rescale|look|leave|set|standardise|centre|call|fit|give|need"
    r"|needed|create|build|fill|minimum of)\b",
    re.IGNORECASE,
)
"""A word that every message with advice has."""


class Violation(NamedTuple):
    """A law that does not hold, and what was seen instead."""

    law: str
    text: str


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
        )


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
    By how many units of rounding kernels multiply that of their inputs: how many periods they span,
    since the phase is known to eps of that.
    """
    parts = (kernel, *kernel.submodules)
    periods = [k.period.numpy() for k in parts if hasattr(k, "period")]
    spread = np.max(np.ptp(np.vstack([X, Xnew]), axis=0))
    return float(max((np.max(spread / period) for period in periods), default=0.0))


def arrays(tensors: Any) -> Any:
    return tuple(np.array(tensor) for tensor in tensors)


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


# Laws of a joint model ----------------------------------------------------------------------------


def finite_parameters(fitted: Fitted) -> Iterator[str]:
    """Parameters, and the loss that they give."""
    named = {f"parameter {n}": p.numpy() for n, p in enumerate(fitted.model.parameters)}
    yield from where_not_finite(**named, loss=fitted.model.maximum_log_likelihood_objective())


def task_covariances(fitted: Fitted) -> Iterator[str]:
    """C and Sigma are covariances."""
    for name, S in [("C", fitted.C), ("Sigma", fitted.Sigma)]:
        yield from not_a_covariance(name, S, np.diag(S))


def variances(fitted: Fitted) -> Iterator[str]:
    """Means are finite, variances not negative, and larger with noise."""
    (mean, f), (_, y) = fitted.f, fitted.y
    yield from where_not_finite(mean=mean, variance=f, noisy_variance=y)
    if np.min(f) < 0:
        yield f"a variance is {np.min(f):.3g}"
    if np.any(y < f) or np.any(y < (1 - 1e-6) * np.diag(fitted.Sigma)):
        yield "a variance is smaller with noise than without, or smaller than the noise's"
    if np.any(f > (1 + 1e-6) * fitted.prior):
        yield f"a variance is {np.max(f / fitted.prior):.3g} of what it was before the data"


def layouts(fitted: Fitted) -> Iterator[str]:
    """
    Full covariances are covariances, and agree with each other in every layout.

    Where a periodic kernel spans many periods its phases are rounded, each for itself.
    """
    p = fitted.prior
    error = COVARIANCE_ERROR + EPS * rounding_units(fitted.model.kernel, fitted.X, fitted.Xnew)
    for name, predict in [("f", fitted.posterior.predict_f), ("y", fitted.posterior.predict_y)]:
        S = {layout: np.asarray(predict(fitted.Xnew, *layout)[1]) for layout in LAYOUTS}
        M, T = p.shape
        full = S[True, True].reshape(M * T, M * T)
        yield from not_a_covariance(f"full covariance of {name}", full, p.ravel(), error)
        yield from not_a_covariance(f"{name} over inputs", S[True, False], p.T, error)
        yield from not_a_covariance(f"{name} over tasks", S[False, True], p)
        own = in_units(S[True, True].reshape(M * T, M * T), p.ravel()).reshape(M, T, M, T)
        over_inputs = np.einsum("mtnt->tmn", own)
        over_tasks = np.einsum("mtmu->mtu", own)
        diagonal = np.einsum("mtmt->mt", own)
        pairs = [
            ("over inputs", over_inputs, in_units(S[True, False], p.T)),
            ("over tasks", over_tasks, in_units(S[False, True], p)),
            ("diagonal", diagonal, S[False, False] / np.where(p > 0, p, 1.0)),
        ]
        for which, a, b in pairs:
            yield from different(f"{name} {which}", a, b, COVARIANCE_ERROR)


def samples(fitted: Fitted) -> Iterator[str]:
    """Draws are finite, unless a periodic kernel spans so many periods that no phase is left."""
    if EPS * rounding_units(fitted.model.kernel, fitted.X, fitted.Xnew) > LARGEST_ERROR:
        return
    tf.random.set_seed(0)
    for noise, layout in itertools.product([False, True], LAYOUTS):
        drawn = fitted.posterior.predict_samples(fitted.Xnew, 3, *layout, noise=noise)
        yield from where_not_finite(**{f"draws, {noise=}, {layout=}": drawn})


def densities(fitted: Fitted) -> Iterator[str]:
    """Leave-one-out, evidence and log densities are finite, and none is impossibly high."""
    rows = fitted.model.leave_one_out()
    known = fitted.observed
    both = known[:, :, None] & known[:, None, :]
    evidence = float(fitted.model.log_marginal_likelihood())
    data = fitted.Xnew, fitted.f[0]
    yield from where_not_finite(
        leave_one_out_mean=np.asarray(rows.mean)[known],
        leave_one_out_cov=np.asarray(rows.cov)[both],
        leave_one_out_density=np.asarray(rows.log_density)[known.any(axis=1)],
        evidence=evidence,
        log_density=fitted.model.predict_log_density(data, full_output_cov=True),
    )
    highest = highest_evidence(fitted)
    if evidence > highest + 1e-6 * abs(highest):
        yield f"evidence {evidence:.6g}, but the noise alone allows for {highest:.6g} at most"


def highest_evidence(fitted: Fitted) -> float:
    """-1/2 log |2 pi Sigma| for each row: C (x) K + Sigma (x) I is larger than Sigma (x) I."""
    total = 0.0
    for known in fitted.observed:
        S = 2 * np.pi * fitted.Sigma[np.ix_(known, known)]
        deviation = np.sqrt(np.diag(S))
        total -= np.sum(np.log(deviation)) + 0.5 * np.linalg.slogdet(in_units(S, np.diag(S)))[1]
    return float(total)


def dense_algebra(fitted: Fitted) -> Iterator[str]:
    """Evidence and means are those of dense algebra, as far as float64 has digits."""
    dense = fitted.dense
    if dense is not None:
        evidence = float(fitted.model.log_marginal_likelihood())
        allowed = dense.error * dense.terms + 1e-8
        yield from different("evidence and dense evidence", evidence, dense.evidence, allowed)
        allowed = dense.error * dense.size + 1e-9 * np.sqrt(fitted.prior)
        yield from different("mean and dense mean", fitted.f[0], dense.mean, allowed)


def cached_posterior(fitted: Fitted) -> Iterator[str]:
    """Predictions from a cache are those without."""
    mean, variance = arrays(fitted.posterior.predict_f(fitted.Xnew))
    allowed = 1e-9 * (np.abs(mean) + np.sqrt(fitted.prior))
    yield from different("mean and cached mean", fitted.f[0], mean, allowed)
    allowed = COVARIANCE_ERROR * fitted.prior
    yield from different("variance and cached variance", fitted.f[1], variance, allowed)


def order_of_rows(fitted: Fitted) -> Iterator[str]:
    """
    With the rows in another order, and the same parameters, predictions stay.

    The error that is allowed is that of dense algebra, and a hundred times more for the chain,
    which recovers C and Sigma from the targets first. Not where targets are missing: there C and
    Sigma also depend on completions, which no public name sets.
    """
    if not fitted.observed.all():
        return
    order = np.random.default_rng(0).permutation(len(fitted.X))
    other = twin(fitted, fitted.X[order], fitted.Y[order])
    yield from same_predictions("another order of rows", fitted, other, fitted.Xnew)


def shift_of_inputs(fitted: Fitted) -> Iterator[str]:
    """A stationary kernel does not see where the inputs' origin is."""
    case = fitted.case
    if not is_stationary(case.kernel) or not fitted.observed.all():
        return
    origin = fitted.X[0]
    if np.any(np.abs(origin) > 10.0 * np.ptp(fitted.X, axis=0)):
        other = twin(fitted, fitted.X - origin, fitted.Y)
        yield from same_predictions(
            "inputs centred", fitted, other, fitted.Xnew - origin, SHIFT_ERROR, 10.0
        )


def twin(fitted: Fitted, X: np.ndarray, Y: np.ndarray) -> Any:
    """The same kind of model with the same parameters, on other data."""
    model = fitted.model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(model, SparseCoolMTGP):
            Z = model.inducing_variable.Z.numpy() + (X[0] - fitted.X[0]) * (Y is fitted.Y)
            other = SparseCoolMTGP((X, Y), model.kernel, Z, learning=model.learning)
        elif isinstance(model, CoolMTGP):
            options = {"learning": model.learning, "engine": model.engine}
            other = CoolMTGP((X, Y), model.kernel, **options)
        else:
            other = type(model).at(model, fitted.C, fitted.Sigma)
            other.data = (tf.constant(X), tf.constant(Y))
            return other
    other.b.unconstrained_variable.assign(model.b.unconstrained_variable)
    other.sigma2.unconstrained_variable.assign(model.sigma2.unconstrained_variable)
    return other


def same_predictions(
    what: str,
    fitted: Fitted,
    other: Any,
    Xnew: np.ndarray,
    least: float = COVARIANCE_ERROR,
    factor: float = 100.0,
) -> Iterator[str]:
    """Whether another model predicts the same, to some times its error by dense algebra."""
    mean, variance = arrays(other.predict_y(Xnew))
    deviation = np.sqrt(fitted.prior)
    dense = Fitted(fitted.case, other).dense
    if dense is None and not fitted.is_sparse:
        return
    if fitted.is_sparse:
        least += rounding_of_squares(fitted.Y)
    if least > LARGEST_ERROR:
        return
    allowed = least * (np.abs(fitted.y[0]) + deviation)
    if dense is not None:
        allowed = allowed + factor * dense.error * dense.size
    yield from different(f"mean with {what}", fitted.y[0], mean, allowed)
    allowed = (least + factor * (dense.error if dense else 0.0)) * fitted.prior
    yield from different(f"variance with {what}", fitted.y[1], variance, allowed)


def rounding_of_squares(Y: np.ndarray) -> float:
    r"""
    What sums of squared targets, to which inducing points reduce the rows, are known to, relative
    to how the targets vary.

    .. math:: 2 N \epsilon \, \max_t \frac{\sum_n y_{nt}^2}{\sum_n (y_{nt} - \bar{y}_t)^2}

    A sum of N squares is rounded by :math:`N \epsilon / 2` of itself at most. The residual is the
    difference of two such sums, and two orders of the rows are compared.
    """
    deviation = np.std(Y, axis=0)
    varies = deviation > 20 * EPS * np.max(np.abs(Y), axis=0)
    squares = np.mean(np.square(Y[:, varies] / deviation[varies]), axis=0)
    return 2 * len(Y) * EPS * float(np.max(squares, initial=0.0))


JOINT_LAWS: tuple[Callable[[Fitted], Iterator[str]], ...] = (
    finite_parameters,
    task_covariances,
    variances,
    layouts,
    samples,
    densities,
    dense_algebra,
    cached_posterior,
    order_of_rows,
    shift_of_inputs,
)

FUNDAMENTAL = (finite_parameters, task_covariances)
"""Where one of these is broken nothing else can hold, and is not worth telling."""


# Laws of what the user fitted ---------------------------------------------------------------------


def saving(case: Case, thing: Any) -> Iterator[str]:
    """What is loaded predicts the same to the last bit."""
    with tempfile.TemporaryDirectory() as folder:
        thing.save(Path(folder) / "model")
        other = gpflow_cool.load(Path(folder) / "model")
    X, _ = make_data(case)
    Xnew = new_inputs(X)
    if isinstance(thing, CoolMTGPRegressor):
        before, after = (each.predict(Xnew, return_cov=True) for each in (thing, other))
    else:
        before, after = (each.predict_y(Xnew, full_output_cov=True) for each in (thing, other))
    for name, a, b in zip(["mean", "covariance"], arrays(before), arrays(after), strict=True):
        if not np.array_equal(a, b, equal_nan=True):
            yield f"the {name} of the loaded model differs by {np.max(np.abs(a - b)):.3g}"


def warns_of_indefinite_kernels(case: Case, thing: Any, said: list[str]) -> Iterator[str]:
    """A kernel matrix that is none is told of, if not refused."""
    for model in joint_models(thing):
        X = np.asarray(model.data[0])
        lam = np.linalg.eigvalsh(covariance(model.kernel, X, X, X[0]))
        if lam[0] < -1e-6 * lam[-1] and not any("kernel" in text for text in said):
            yield f"K has eigenvalues from {lam[0]:.3g} to {lam[-1]:.3g}, and nobody says so"
            return


def profile_is_no_worse(case: Case, thing: Any) -> Iterator[str]:
    """
    Solving for b and sigma2 inside ends no higher than L-BFGS over everything.

    The loss is written twice, in TensorFlow, which "scipy" minimises, and in NumPy, which "profile"
    minimises. Where targets are far from zero the two differ by their rounding: a fit must be worse
    by both of them. Inducing points reduce the rows to sums of N squared targets, each of which is
    rounded by N eps / 2 of itself.
    """
    data = make_data(case)
    if case.model not in ("cool", "sparse") or np.isnan(data[1]).any():
        return
    other = make_model(case, data)
    try:
        fit(case, other, data, "scipy")
    except (RuntimeError, ValueError):  # where "scipy" fails, anything is no worse
        return
    ours, theirs = (-float(m.maximum_log_likelihood_objective()) for m in (thing, other))
    allowed = SAME_LOSS
    if case.model == "sparse":
        squares = np.sum(np.square(data[1]), axis=0)
        forms = [np.sum(squares / np.asarray(m.sigma2)) for m in (thing, other)]
        allowed += 0.5 * len(data[0]) * EPS * sum(forms)
    if ours > theirs + allowed and numpy_loss(thing) > numpy_loss(other) + allowed:
        yield f"loss {ours:.6g} after fit('profile'), {theirs:.6g} after fit('scipy')"


def numpy_loss(model: Any) -> float:
    """The loss as profiled training computes it."""
    _, spectrum = model.spectral()
    problems = task_problems(spectrum.numpy(), model.learning)
    points = np.column_stack([model.b.numpy(), model.sigma2.numpy()])
    return -float(np.sum(task_terms(problems, np.arange(len(points)), points).values))


def estimator_answers(case: Case, thing: Any) -> Iterator[str]:
    """Predictions, deviations, draws and leave-one-out of the estimator are finite."""
    if not isinstance(thing, CoolMTGPRegressor):
        return
    X, Y = make_data(case)
    Xnew, known = new_inputs(X), ~np.isnan(Y)
    mean, std, cov = thing.predict(Xnew, return_std=True, return_cov=True)
    _, without = thing.predict(Xnew, return_std=True, include_noise=False)
    left_out = thing.leave_one_out_
    yield from where_not_finite(
        mean=mean,
        std=std,
        cov=cov,
        draws=thing.sample_y(Xnew, 2),
        task_covariance=thing.task_covariance_,
        noise_covariance=thing.noise_covariance_,
        leave_one_out_mean=left_out.mean[known],
        leave_one_out_density=left_out.log_density[known.any(axis=1)],
    )
    if np.any(std < without) or np.any(without < 0):
        yield "a deviation is negative, or smaller with noise than without"
    allowed = COVARIANCE_ERROR * (std**2 + np.diag(thing.task_covariance_))
    yield from different("variance and covariance", std**2, np.einsum("mtt->mt", cov), allowed)


def units_of_targets(case: Case, thing: Any) -> Iterator[str]:
    """
    The estimator's predictions follow y -> a y + c.

    With a = -4 and c = 0 to the last bit, as multiplication by a power of two is exact; where
    targets are missing with a = 4, as draws come in pairs on both sides of the mean, and another
    sign exchanges the two in sums, which then round differently. With a = -4 and c the targets'
    spread to `REFIT_ERROR`; not where targets are missing, as the number of rounds may change by
    rounding. Targets that never vary are left aside, as the estimator warns
    that their deviations mean little; beside them the others agree to 1e-9.
    """
    if not isinstance(thing, CoolMTGPRegressor):
        return
    X, Y = make_data(case)
    Xnew = new_inputs(X)
    mean, std = thing.predict(Xnew, return_std=True)
    a = 4.0 if np.isnan(Y).any() else -4.0
    other = make_model(case, (X, Y)).fit(X, a * Y)
    scaled, wider = other.predict(Xnew, return_std=True)
    varies = np.nanmax(Y, axis=0) - np.nanmin(Y, axis=0) > 20 * EPS * np.nanmax(np.abs(Y), axis=0)
    allowed = 0.0 if varies.all() else 1e-9 * (np.abs(mean) + std)[:, varies]
    yield from different(f"mean for {a:g} y", a * mean[:, varies], scaled[:, varies], allowed)
    yield from different(f"deviation for {a:g} y", 4.0 * std[:, varies], wider[:, varies], allowed)
    if not np.isnan(Y).any():
        c = np.std(Y, axis=0)
        shifted = make_model(case, (X, Y)).fit(X, -4.0 * Y + c).predict(Xnew)
        allowed = 4.0 * REFIT_ERROR * (std + c) + 8 * EPS * np.abs(mean)
        yield from different("mean for -4 y + c", -4.0 * mean + c, shifted, allowed)


OTHER_LAWS: tuple[Callable[[Case, Any], Iterator[str]], ...] = (
    saving,
    profile_is_no_worse,
    estimator_answers,
    units_of_targets,
)


# All of it ----------------------------------------------------------------------------------------


class Examination(NamedTuple):
    """What came of a case."""

    violations: list[Violation]
    refusal: str = ""
    """The message, where the case was refused with advice."""


def joint_models(thing: Any) -> list[Any]:
    """The joint models inside of what was fitted; of independent ones, the first and the last."""
    if isinstance(thing, CoolMTGPRegressor):
        return [thing.model_]
    if isinstance(thing, IndependentGPs):
        return thing.models[:: max(1, len(thing.models) - 1)]
    return [thing]


def examine(case: Case) -> Examination:
    """Fit the case's model, and see which laws do not hold."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            data = make_data(case)
            thing = fit(case, make_model(case, data), data)
        except Exception as error:
            return refused(error)
        said = [str(warning.message) for warning in caught]
        found = list(violations_of(case, thing, said))
    return Examination(found + list(noise_of_numpy(caught)))


def refused(error: Exception) -> Examination:
    """A refusal with advice is right; any other exception is a violation."""
    text = str(error)
    if type(error) in (ValueError, TrainingFailed) and ADVICE.search(text):
        return Examination([], text)
    return Examination([exception("fit", error)])


def exception(where: str, error: Exception) -> Violation:
    """An exception as a violation, with the line of the package that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "gpflow_cool" in f.filename and "tests" not in f.filename]
    at = f" in {Path(ours[-1].filename).name}, {ours[-1].name}" if ours else ""
    text = " ".join(str(error).split())[:160]
    return Violation(f"{where}: {type(error).__name__}", f"{type(error).__name__}{at}: {text}")


def violations_of(case: Case, thing: Any, said: list[str]) -> Iterator[Violation]:
    """What is wrong with something that was fitted."""
    for model in joint_models(thing):
        fitted = Fitted(case, model)
        for law in JOINT_LAWS:
            found = list(broken(law, fitted))
            yield from found
            if found and law in FUNDAMENTAL:
                return
    for other_law in OTHER_LAWS:
        yield from broken(other_law, case, thing)
    yield from broken(warns_of_indefinite_kernels, case, thing, said)


def broken(law: Callable[..., Iterator[str]], *arguments: Any) -> Iterator[Violation]:
    """How a law is broken; an exception breaks it as well."""
    try:
        for text in law(*arguments):
            yield Violation(law.__name__, text)
    except Exception as error:
        yield exception(law.__name__, error)


def noise_of_numpy(caught: list[warnings.WarningMessage]) -> Iterator[Violation]:
    """Warnings of overflow and the like from inside the package: users cannot act on them."""
    for warning in caught:
        if issubclass(warning.category, RuntimeWarning) and "gpflow_cool/" in warning.filename:
            where = f"{Path(warning.filename).name}:{warning.lineno}"
            yield Violation("numpy_warnings", f"{where}: {warning.message}")
            return
