"""Draws of targets, and questions of people with limits and maps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray

from .. import checks
from ..joint.exceedance import WAYS, checked_limits
from ..joint.simulation import simulate
from .choices import drawn_seed
from .columns import TargetForm, in_blocks, index_of
from .files import did_you_mean
from .transforms import Warping


class Places:
    """Methods of the estimator about limits, draws and maps."""

    posterior_: Any
    target_names_: tuple[str, ...]
    _targets: Warping
    _form: TargetForm

    def _standardised_inputs(self, X: Any) -> AnyNDArray:
        raise NotImplementedError

    def probability(
        self,
        X: Any,
        limits: Any,
        which: str = "any",
        *,
        include_noise: bool = True,
        return_error: bool = False,
    ) -> Any:
        """
        Probability that targets exceed their limits: that any does, or that all do, [M], or of each
        target on its own, [M, T].

        >>> from gpflow_cool import CoolMTGPRegressor
        >>> X = np.linspace(0, 6, 30)[:, None]
        >>> noise = np.random.default_rng(0).normal(size=[30, 2]) * [0.1, 2.0]
        >>> y = np.hstack([np.sin(X), 100 + 20 * np.cos(X)]) + noise
        >>> regressor = CoolMTGPRegressor("se").fit(X, y)
        >>> p = regressor.probability([[0.0], [1.5], [4.5]], limits=[0.5, 110.0])
        >>> p.round(2).tolist()
        [1.0, 1.0, 0.0]

        One target has the normal distribution. Several are integrated over by quasi-Monte Carlo,
        with their correlations; the answer is the same in every call.

        :param limits: In the targets' units: a mapping of names to limits, or one limit per target
            with NaN for a target that does not count, or one number if there is one target.
        :param which: "any", "all" or "each".
        :param include_noise: Whether new observations are asked about, or functions without noise.
        :param return_error: Also return standard errors; zero where one target counts.
        """
        index, Z = index_of(X), self._standardised_inputs(X)
        checks.option(which, "which", WAYS)
        names = self.target_names_
        values = checked_limits(limits_of(limits, names), len(names))
        c = self._targets.standardised(values[None])[0]

        def ask(Z: tf.Tensor) -> list[tf.Tensor]:
            posterior = self.posterior_
            return list(map(tf.constant, posterior.probability(Z, c, which, noise=include_noise)))

        form = self._form
        parts = zip(in_blocks(ask, [Z]), ["probability", "error"], strict=True)
        probability, error = (
            form.column(values, name, index) if values.ndim == 1 else form.rows(values, index)
            for values, name in parts
        )
        return (probability, error) if return_error else probability

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, *, include_noise: bool = True
    ) -> AnyNDArray:
        """
        Draw from the posterior, correlated over rows and targets. Beyond 2000 rows, functions are
        drawn by random features, at a cost linear in the rows.

        :param random_state: Seed or generator; None for other draws each time.
        :param include_noise: Whether to draw observations, or functions without noise.
        :return: [M, T, n_samples], or [M, n_samples] if y was one-dimensional.
        """
        draws = self._draws(X, n_samples, random_state, include_noise)
        return draws[:, 0] if self._form.kind in ("vector", "series") else draws

    def _draws(self, X: Any, n_samples: int, random_state: Any, noise: bool) -> AnyNDArray:
        """[M, T, n_samples], draws in the targets' units."""
        Z = self._standardised_inputs(X)
        count = checks.positive_integer(n_samples, "n_samples")
        drawn = simulate(self.posterior_, Z, count, drawn_seed(random_state), noise=noise)
        return np.stack([self._targets.values(draw) for draw in drawn], axis=-1)

    def simulate(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> AnyNDArray:
        """
        Draw functions without noise, joint over rows and targets, as for the cells of a map.

        >>> from gpflow_cool import CoolMTGPRegressor
        >>> X = np.linspace(0, 6, 30)[:, None]
        >>> y = np.sin(X + [0.0, 1.5]) + 0.1 * np.random.default_rng(0).normal(size=[30, 2])
        >>> regressor = CoolMTGPRegressor("se").fit(X, y)
        >>> regressor.simulate(X[:5], n_samples=3).shape
        (5, 2, 3)

        :param random_state: Seed or generator; None for other draws each time.
        :return: [M, T, n_samples], in the targets' units.
        """
        return self._draws(X, n_samples, random_state, False)


def limits_of(limits: Any, names: Sequence[str]) -> AnyNDArray:
    """
    Limits in the order of the targets; NaN where there is none.

    >>> limits_of({"zinc": 3.0}, ["lead", "zinc"]).tolist()
    [nan, 3.0]
    """
    if not isinstance(limits, Mapping):
        return np.atleast_1d(checks.numbers(limits, "limits"))
    unknown = [name for name in limits if name not in names]
    if unknown:
        raise ValueError(
            f"limits names {unknown[0]!r}, which is not a target. The targets are:"
            f" {', '.join(names)}.{did_you_mean(unknown[0], names)}"
        )
    return checks.numbers([limits.get(name, np.nan) for name in names], "limits")
