"""Laws of what a user fitted, a model or an estimator, and of what the fit said."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gpflow_cool
from gpflow_cool import CoolMTGPRegressor

from .cases import Case, make_data, make_model, new_inputs
from .fitted import (
    COVARIANCE_ERROR,
    EPS,
    OTHER_DIGITS,
    Fitted,
    arrays,
    covariance,
    different,
    joint_models,
    other_last_digits,
    where_not_finite,
)
from .laws import twin

SAME_LOSS = 0.01
"""Nats by which the loss may rise: b and sigma2 are found by interpolation between ratios."""

SAME_TERM = 0.01
"""Nats by which another b and sigma2 may be better, for the same reason."""

FACTORS = (1e-4, 0.1, 0.8, 1.0, 1.25, 10.0, 1e4)
"""What b and sigma2 are multiplied by."""

REFIT_ERROR = 1e-2
"""What another unit of the targets may change predictions by, in the targets' deviations. The
optimiser stops where the loss is flat to 1e-10 of its size, after steps that rounding has changed:
parameters then differ by about 1e-5 of themselves, and much more along flat directions."""

SAME_FIT = 1e-9
"""Nats by which two fits differ that nothing but rounding tells apart."""


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


def loss_does_not_rise(case: Case, thing: Any) -> Iterator[str]:
    """
    A fit leaves a model with a loss that is no higher than that of the starting values.

    Not where targets are missing: completions of them change the loss.
    """
    X, Y = make_data(case)
    if case.model not in RISING or np.isnan(Y).any():
        return
    before, after = make_model(case, (X, Y)), thing
    first, last = loss(before), loss(after)
    if not last <= first + SAME_LOSS + sum(rounding_of_loss(case, m) for m in (before, after)):
        yield f"loss {first:.6g} before the fit, {last:.6g} after it"


RISING = ("cool", "sparse", "kronecker", "kronecker_em", "std_mt", "sigma_mt")
"""Models whose loss before the fit is that of the same thing."""


def loss(model: Any) -> float:
    return -float(model.maximum_log_likelihood_objective() + model.log_prior_density())


def rounding_of_loss(case: Case, model: Any) -> float:
    """A few times what other last digits of the targets change the loss by."""
    fitted, rng = Fitted(case, model), np.random.default_rng(0)
    others = [other_last_digits(fitted.Y, rng) for _ in range(OTHER_DIGITS)]
    changes = [abs(loss(twin(fitted, fitted.X, Y)) - loss(model)) for Y in others]
    return 10.0 * max(changes) + 1e-9 * abs(loss(model))


def signal_and_noise_are_best(case: Case, thing: Any) -> Iterator[str]:
    """With the scaled prior, no other b and sigma2 of a task raise its conditional likelihood."""
    if case.model != "cool" or case.weight_prior != "scaled" or case.missing:
        return
    best = thing.conditional_log_likelihoods().numpy()
    b, sigma2, floor = thing.b.numpy(), thing.sigma2.numpy(), thing.noise_floor
    allowed = SAME_TERM + rounding_of_loss(case, thing)
    try:
        for by, and_by in itertools.product(FACTORS, FACTORS):
            thing.b.assign(b * by)
            thing.sigma2.assign(np.maximum(sigma2 * and_by, floor))
            found = thing.conditional_log_likelihoods().numpy()
            for t in np.flatnonzero(~(found <= best + allowed)):
                yield (
                    f"term {t} is {best[t]:.6g}, but {found[t]:.6g} for {by:g} times b and"
                    f" {and_by:g} times sigma2"
                )
    finally:
        thing.b.assign(b)
        thing.sigma2.assign(np.maximum(sigma2, floor))


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

    Where losses have many optima, as those of a period and few rows, the last digits of the targets
    may decide in which of them a fit ends, and -4 y + c changes them: predictions may then differ.
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
        other = make_model(case, (X, Y)).fit(X, -4.0 * Y + c)
        if is_flat_between(thing, other):
            return
        allowed = 4.0 * REFIT_ERROR * (std + c) + 8 * EPS * np.abs(mean)
        expected = -4.0 * mean + c
        broken = list(different("mean for -4 y + c", expected, other.predict(Xnew), allowed))
        if broken and not last_digits_decide(case, mean, allowed / 4.0):
            yield from broken


def last_digits_decide(case: Case, mean: np.ndarray, allowed: np.ndarray) -> bool:
    """Whether other last digits of the targets move the estimator's means by more than allowed."""
    X, Y = make_data(case)
    rng = np.random.default_rng(0)
    for _ in range(OTHER_DIGITS):
        near = make_model(case, (X, Y)).fit(X, other_last_digits(Y, rng))
        if np.any(np.abs(near.predict(new_inputs(X)) - mean) > allowed):
            return True
    return False


def is_flat_between(one: Any, other: Any) -> bool:
    """
    Whether two fits of the same data, but for rounding, have the same loss with different kernels:
    these data do not tell the kernels apart, as rows at two inputs only do not tell a period.
    """
    losses = [min(each.history_.history["loss"]) for each in (one, other)]
    pairs = zip(one.model_.kernel.parameters, other.model_.kernel.parameters, strict=True)
    moves = [np.max(np.abs(np.log(p.numpy() / q.numpy()))) for p, q in pairs]
    return abs(losses[0] - losses[1]) < SAME_FIT and max(moves) > REFIT_ERROR


OTHER_LAWS: tuple[Callable[[Case, Any], Iterator[str]], ...] = (
    saving,
    loss_does_not_rise,
    signal_and_noise_are_best,
    estimator_answers,
    units_of_targets,
)
