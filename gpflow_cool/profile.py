r"""
Profiled training of the chain ("variable projection"): b and sigma2 solved for, the rest trained.

For fixed kernel and mean parameters :math:`\theta` the best b and sigma2 cost next to nothing once
K is decomposed (:mod:`gpflow_cool.inner`). What is left is a function of :math:`\theta` alone, and
its gradient is that of the objective at the inner optimum (envelope theorem): L-BFGS needs about
ten eigendecompositions for it. With no trainable :math:`\theta`, one eigendecomposition is the fit.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray, RegressionData
from gpflow.kernels import Kernel

from . import inner
from .chain import spectral_terms
from .linalg import eigh
from .outer import lower_bound
from .spectrum import Spectrum, exact_spectrum
from .starting import chain_start, task_scales

B_RANGE = 1e10
"""b may go this far below and above its default."""

STARTS = np.array([[1.0, 1.0], [10.0, 1e-3], [0.1, 5.0]])
"""Where to start the inner problem, relative to the default of b and sigma2: of 1400 random tasks,
24 were missed by more than 1e-4 nats with the first and a tenth of its noise, none with these."""

GRID, GRID_NOISE = 12, (0.1, 1e-3)
"""Numbers of b, and sigma2 over the task's variance, that :func:`spectral_start` looks at."""

ABOVE_FLOOR = 1.0 + 1e-6
"""sigma2 stays this much above its bound, where the transform still has an inverse."""


class ChainModel(Protocol):
    """What profiled training needs of a model."""

    b: Parameter
    sigma2: Parameter
    kernel: Kernel
    learning: str
    data: RegressionData

    def centred_completions(self) -> tf.Tensor: ...
    def log_prior_density(self) -> tf.Tensor: ...
    @property
    def trainable_parameters(self) -> tuple[Parameter, ...]: ...


class Evaluation(NamedTuple):
    """Loss, its gradient with respect to the outer variables, and the objective's terms."""

    loss: float
    gradients: list[AnyNDArray]
    terms: AnyNDArray


class ProfiledChain:
    """
    The loss as a function of the parameters outside the inner problem.

    Evaluating it sets `b` and `sigma2` of the model to their best values. A frozen one stays; one
    with a prior, or with bounds that the inner problem does not know, is an outer parameter.
    """

    def __init__(self, model: ChainModel) -> None:
        self.model = model
        bound_b, bound_sigma2 = lower_bound(model.b), lower_bound(model.sigma2)
        self.solves_b = is_free(model.b) and bound_b is not None and not np.any(bound_b)
        self.solves_sigma2 = is_free(model.sigma2) and bound_sigma2 is not None
        inside = [model.b] * self.solves_b + [model.sigma2] * self.solves_sigma2
        self.parameters = [
            p for p in model.trainable_parameters if all(p is not solved for solved in inside)
        ]
        self.floor = sigma2_floor(model.sigma2)
        self.has_prior = any(p.prior is not None for p in model.trainable_parameters)
        self.num_decompositions = 0
        self.solved = np.zeros(0), np.zeros(0)
        """What b and sigma2 were last set to, unconstrained and as they are."""

    def evaluate(self) -> Evaluation:
        """Solve the inner problem at the present outer parameters; loss and envelope gradient."""
        terms, by_parts = self.solve()
        prior, gradients = self.chain_rule(by_parts)
        loss = -float(tf.reduce_sum(terms) + prior)
        return Evaluation(loss, [-g.numpy() for g in gradients], terms.numpy())

    def solve(self) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """The terms at the inner optimum, and gradients of their sum by K, Y, b and sigma2."""
        model = self.model
        K, Y = model.kernel(model.data[0]), model.centred_completions()
        lam, U = eigh(K)
        self.num_decompositions += 1
        spectrum = exact_spectrum(lam, U, Y)
        best = self.solve_inner(spectrum, completion_scales(Y.numpy()), *self.given())
        terms, gradient = spectral_terms(spectrum, U, Y, *best, model.learning)
        return terms, gradient(tf.ones_like(terms))

    def chain_rule(self, by_parts: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """
        The log prior density, and the gradient of the objective by the outer variables.

        K is computed once more: what a kernel keeps for its gradient is several N x N matrices,
        which shall not stand beside the eigendecomposition. What was solved for has no gradient.
        """
        model = self.model
        with tf.GradientTape() as tape:
            parts = (model.kernel(model.data[0]), model.centred_completions(), *self.given())
            prior = model.log_prior_density() if self.has_prior else tf.zeros([], parts[0].dtype)
        known = [pair for pair in zip(parts, by_parts, strict=True) if pair[0] is not None]
        targets, weights = zip(*known, (prior, tf.ones_like(prior)), strict=True)
        variables = [p.unconstrained_variable for p in self.parameters]
        gradients = tape.gradient(
            targets, variables, output_gradients=weights, unconnected_gradients="zero"
        )
        return prior, gradients

    def given(self) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        """b and sigma2, or None where one is solved for."""
        return (
            None if self.solves_b else tf.convert_to_tensor(self.model.b),
            None if self.solves_sigma2 else tf.convert_to_tensor(self.model.sigma2),
        )

    def solve_inner(
        self,
        spectrum: Spectrum,
        scales: AnyNDArray,
        b: tf.Tensor | None,
        sigma2: tf.Tensor | None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """
        Set b and sigma2 of the model to their best values for this spectrum.

        :param scales: [T], the tasks' variances.
        :param b: Its value if it is not solved for; so is `sigma2`.
        :return: b and sigma2.
        """
        if b is not None and sigma2 is not None:
            return b, sigma2
        solution = inner.solve(
            inner.inner_spectrum(*spectrum.arrays()),
            *self.inner_problem(spectrum, scales),
            self.model.learning,
        )
        if b is None:
            b = self.set(self.model.b, solution.b)
        if sigma2 is None:
            sigma2 = self.set(self.model.sigma2, solution.sigma2)
        self.solved = self.raw(), np.stack([b.numpy(), sigma2.numpy()], axis=1)
        return b, sigma2

    def inner_problem(self, spectrum: Spectrum, scales: AnyNDArray) -> tuple[AnyNDArray, inner.Box]:
        """Starting points, the present one first, and bounds: what is not solved for stays."""
        warm = self.present()
        starts, box = inner_problem(spectrum, scales, self.floor)
        for column, solved in enumerate([self.solves_b, self.solves_sigma2]):
            if not solved:
                box.lower[:, column] = box.upper[:, column] = np.log(warm[:, column])
        return np.concatenate([warm[None], starts]), box

    def raw(self) -> AnyNDArray:
        """[2, T], the unconstrained b and sigma2."""
        model = self.model
        return np.stack([p.unconstrained_variable.numpy() for p in (model.b, model.sigma2)])

    def present(self) -> AnyNDArray:
        """[T, 2], b and sigma2; as set here, unless changed since: reading them takes long."""
        raw, values = self.solved
        if not np.array_equal(self.raw(), raw):
            values = np.stack([self.model.b.numpy(), self.model.sigma2.numpy()], axis=1)
        return values.astype(np.float64)

    @staticmethod
    def set(parameter: Parameter, value: AnyNDArray) -> tf.Tensor:
        """Assign a value that needs no check."""
        constant = tf.constant(value, parameter.dtype)
        inverse = parameter.transform.inverse(constant) if parameter.transform else constant
        parameter.unconstrained_variable.assign(inverse)
        return constant


def is_free(parameter: Parameter) -> bool:
    """Whether a parameter is trained for the likelihood alone."""
    return parameter.trainable and parameter.prior is None


def sigma2_floor(sigma2: Parameter) -> AnyNDArray:
    """[T], the bound of sigma2, and a little more, where its transform still has an inverse."""
    bound = lower_bound(sigma2)
    return np.zeros(sigma2.shape) if bound is None else bound * ABOVE_FLOOR


def completion_scales(Y: AnyNDArray) -> AnyNDArray:
    """[T], variances of the tasks, from Y [N, T] or completions of it, [S, N, T]."""
    return task_scales(Y.reshape(-1, Y.shape[-1]))


def inner_problem(
    spectrum: Spectrum, scales: AnyNDArray, floor: AnyNDArray
) -> tuple[AnyNDArray, inner.Box]:
    """
    Starting points [4, T, 2] and bounds of the inner problem.

    A warm start alone may sit in "all noise"; the default does not, but a task may have an optimum
    with hardly any noise or hardly any signal besides: see `STARTS`. Where one direction holds most
    of K and nothing of the targets, only :func:`spectral_start` is near the optimum.

    :param scales: [T], the tasks' variances.
    :param floor: [T], what sigma2 must stay above.
    """
    kernel_variance = float(tf.reduce_sum(spectrum.lam) / spectrum.num_rows)
    start = chain_start(kernel_variance, scales)
    default = np.stack(start, axis=1).astype(np.float64)  # [T, 2]
    floor = np.maximum(floor, default[:, 1] / B_RANGE)
    lower = np.log(np.stack([default[:, 0] / B_RANGE, floor], axis=1))
    informed = spectral_start(spectrum, scales)
    upper = np.log(B_RANGE * np.maximum(default, informed * [1.0, 0.0]))
    return np.concatenate([default * STARTS[:, None], informed[None]]), inner.Box(lower, upper)


def spectral_start(spectrum: Spectrum, scales: AnyNDArray) -> AnyNDArray:
    r"""
    (b, sigma2) of each task, [T, 2]: the best of a coarse grid, as if the task were the only one.

    .. math:: -\tfrac{1}{2} \sum_n \left[ y_n^2 / (b \lambda_n + \sigma^2)
              + \log (b \lambda_n + \sigma^2) \right]

    The grid of b is that at which each of the eigenvalues, from the largest to the smallest that is
    not rounding, would have the task's variance.
    """
    lam, Yr, G0, num_rows, slack = spectrum.arrays()
    energy = np.sum(np.square(Yr).reshape(-1, len(lam), Yr.shape[1]), axis=0).T  # [T, R]
    useful = lam[lam > float(spectrum.rounding)]
    sizes = np.geomspace(useful.min(), useful.max(), GRID) if len(useful) else np.ones(1)
    ratio = np.stack(np.meshgrid(1.0 / sizes, GRID_NOISE, indexing="ij"), axis=-1).reshape(-1, 2)
    v = ratio[:, :1] * lam + ratio[:, 1:]  # [G, R], for a task of variance 1
    noise = ratio[:, 1]
    outside = np.diag(G0) / scales  # [T]
    values = -0.5 * (
        (energy / scales[:, None]) @ (1.0 / v).T
        + outside[:, None] / noise
        + np.sum(np.log(v), axis=1)
        + (num_rows - len(lam)) * np.log(noise)
        + slack * ratio[:, 0] / noise
    )
    return scales[:, None] * ratio[np.argmax(values, axis=1)]
