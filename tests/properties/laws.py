"""Laws of a joint model after every fit, whatever the data: one function per law."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_cool import CoolMTGP, SparseCoolMTGP

from .cases import is_stationary
from .fitted import (
    COVARIANCE_ERROR,
    EPS,
    LARGEST_ERROR,
    LAYOUTS,
    OTHER_DIGITS,
    Fitted,
    arrays,
    covariance,
    different,
    in_units,
    not_a_covariance,
    other_last_digits,
    rounding_units,
    signal_to_noise,
    where_not_finite,
)

SHIFT_ERROR = 1e-6
"""What a shift of the inputs may change predictions by, in prior deviations."""


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
        allowed = dense.error * dense.size + dense.by_tasks + 1e-9 * np.sqrt(fitted.prior)
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
            other = SparseCoolMTGP((X, Y), model.kernel, Z, **chain_options(model))
        elif isinstance(model, CoolMTGP):
            other = CoolMTGP((X, Y), model.kernel, **chain_options(model))
        else:
            # A copy: a model that is made of C and Sigma has them lifted from zero.
            other = gpflow.utilities.deepcopy(model)
            other.data = (tf.constant(X), tf.constant(Y))
            return other
    other.b.unconstrained_variable.assign(model.b.unconstrained_variable)
    other.sigma2.unconstrained_variable.assign(model.sigma2.unconstrained_variable)
    return other


def chain_options(model: Any) -> dict[str, Any]:
    """Arguments of a chain, of which lambda may have been trained."""
    options = {"learning": model.learning, "weight_prior": model.weight_prior}
    if model.weight_variance is not None:
        options["weight_variance"] = model.weight_variance.numpy()
    return options


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
        least += rounding_of_squares(fitted.Y) + rounding_of_systems(fitted)
    if least > LARGEST_ERROR:
        return
    error = factor * dense.error if dense is not None else 0.0
    by_mean = least * (np.abs(fitted.y[0]) + deviation)
    by_mean = by_mean + (error * dense.size if dense is not None else 0.0)
    allowed = by_mean, (least + error) * fitted.prior
    moved = list(moved_beyond(what, fitted, (mean, variance), allowed))
    yield from where_not_finite(**{f"mean with {what}": mean, f"variance with {what}": variance})
    if moved and isinstance(fitted.model, CoolMTGP | SparseCoolMTGP):  # C comes from the targets
        undecided = decided_by_last_digits(fitted)
        allowed = allowed[0] + factor * undecided[0], allowed[1] + factor * undecided[1]
        moved = list(moved_beyond(what, fitted, (mean, variance), allowed))
    yield from moved


def moved_beyond(
    what: str,
    fitted: Fitted,
    predicted: tuple[np.ndarray, np.ndarray],
    allowed: tuple[np.ndarray, np.ndarray],
) -> Iterator[str]:
    """Where means and variances of observations are further from the model's than is allowed."""
    for number, name in enumerate(["mean", "variance"]):
        pair = fitted.y[number], predicted[number]
        yield from different(f"{name} with {what}", *pair, allowed[number])


def decided_by_last_digits(fitted: Fitted) -> tuple[np.ndarray, np.ndarray]:
    """
    [T] and [T], how much means and variances change at most with the last digits of the targets, in
    `OTHER_DIGITS` draws of them: where tasks depend on each other linearly, as those without noise
    may, or nearly so, nothing else decides some entries of C.
    """
    rng = np.random.default_rng(0)
    changes = []
    for _ in range(OTHER_DIGITS):
        other = twin(fitted, fitted.X, other_last_digits(fitted.Y, rng))
        pairs = zip(arrays(other.predict_y(fitted.Xnew)), fitted.y, strict=True)
        changes.append([np.max(np.abs(a - b), axis=0) for a, b in pairs])
    finite = np.where(np.isfinite(changes), changes, 0.0)  # what is infinite excuses nothing
    mean, variance = np.max(finite, axis=0)
    return mean, variance


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


def rounding_of_systems(fitted: Fitted) -> float:
    r"""
    What systems with features are solved to: a hundred units of rounding, as for dense algebra,
    times the condition number :math:`1 + d_{\max} \lambda_{\max}` of a kernel matrix with noise.
    """
    kernel, X = fitted.model.kernel, fitted.X
    largest = float(np.linalg.eigvalsh(covariance(kernel, X, X, X[0]))[-1])
    units = 1.0 + rounding_units(kernel, X, fitted.Xnew)
    return 100 * EPS * units * (1.0 + signal_to_noise(fitted) * largest)


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
