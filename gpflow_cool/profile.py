r"""
Profiled training of the chain ("variable projection"): b and sigma2 solved for, the rest trained.

For fixed kernel and mean parameters :math:`\theta` the best b and sigma2 cost next to nothing once
K is decomposed (:mod:`gpflow_cool.inner`). What is left is a function of :math:`\theta` alone, and
its gradient is that of the objective at the inner optimum (envelope theorem): L-BFGS needs about
ten eigendecompositions for it. With no trainable :math:`\theta`, one eigendecomposition is the fit.
"""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray, RegressionData
from gpflow.kernels import Kernel

from . import inner
from .chain import conditional_log_likelihoods
from .linalg import eigh
from .outer import lower_bound
from .spectrum import Spectrum, exact_spectrum
from .starting import chain_start, task_scales

B_RANGE = 1e10
"""b may go this far below and above its default."""

STARTS = np.array([[1.0, 1.0], [10.0, 1e-3], [0.1, 5.0]])
"""Where to start the inner problem, relative to the default of b and sigma2: of 1400 random tasks,
24 were missed by more than 1e-4 nats with the first and a tenth of its noise, none with these."""

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
        self.num_decompositions = 0

    def evaluate(self) -> Evaluation:
        """Solve the inner problem at the present outer parameters; loss and envelope gradient."""
        model = self.model
        K, Y = model.kernel(model.data[0]), model.centred_completions()
        decomposition = eigh(K)
        self.num_decompositions += 1
        b, sigma2 = self.solve_inner(exact_spectrum(*decomposition, Y), Y.numpy())
        parts = [tf.convert_to_tensor(part) for part in (K, Y, b, sigma2)]
        with tf.GradientTape() as tape:
            tape.watch(parts)
            terms = conditional_log_likelihoods(
                *parts, learning=model.learning, engine="spectral", decomposition=decomposition
            )
            loss = -tf.reduce_sum(terms)
        by_parts = tape.gradient(loss, parts)
        del K, decomposition, parts
        prior, gradients = self._chain_rule(b, sigma2, by_parts)
        return Evaluation(float(loss - prior), gradients, terms.numpy())

    def _chain_rule(
        self, b: tf.Tensor, sigma2: tf.Tensor, by_parts: list[tf.Tensor]
    ) -> tuple[tf.Tensor, list[AnyNDArray]]:
        """
        The log prior density, and the gradient of the loss with respect to the outer variables.

        K is computed once more: what a kernel keeps for its gradient is several matrices N x N,
        which are not kept beside the eigendecomposition.

        :param by_parts: Gradient of the loss, without prior, with respect to K, Y, b and sigma2.
        """
        model = self.model
        variables = [p.unconstrained_variable for p in self.parameters]
        with tf.GradientTape() as tape:
            K, Y = model.kernel(model.data[0]), model.centred_completions()
            prior = model.log_prior_density()
            parts = [*(tf.convert_to_tensor(part) for part in (K, Y, b, sigma2)), prior]
        gradients = tape.gradient(
            parts,
            variables,
            output_gradients=[*by_parts, -tf.ones_like(prior)],
            unconnected_gradients="zero",
        )
        return prior, [g.numpy() for g in gradients]

    def solve_inner(
        self, spectrum: Spectrum, Y: AnyNDArray
    ) -> tuple[Parameter | tf.Tensor, Parameter | tf.Tensor]:
        """
        Set b and sigma2 to their best values for this spectrum of the targets Y.

        :return: b and sigma2; what was solved for as a constant, because reading a parameter takes
            milliseconds and the gradient with respect to it is zero.
        """
        model = self.model
        if not (self.solves_b or self.solves_sigma2):
            return model.b, model.sigma2
        warm = np.stack([model.b.numpy(), model.sigma2.numpy()], axis=1).astype(np.float64)
        starts, box = inner_problem(spectrum, Y, self.floor)
        for column, solved in enumerate([self.solves_b, self.solves_sigma2]):
            if not solved:
                box.lower[:, column] = box.upper[:, column] = np.log(warm[:, column])
        solution = inner.solve(
            inner.inner_spectrum(*spectrum.arrays()),
            np.concatenate([warm[None], starts]),
            box,
            model.learning,
        )
        b, sigma2 = model.b, model.sigma2
        if self.solves_b:
            b = tf.constant(solution.b, model.b.dtype)
            model.b.assign(b)
        if self.solves_sigma2:
            sigma2 = tf.constant(solution.sigma2, model.sigma2.dtype)
            model.sigma2.assign(sigma2)
        return b, sigma2


def is_free(parameter: Parameter) -> bool:
    """Whether a parameter is trained for the likelihood alone."""
    return parameter.trainable and parameter.prior is None


def sigma2_floor(sigma2: Parameter) -> AnyNDArray:
    """[T], the bound of sigma2, and a little more, where its transform still has an inverse."""
    bound = lower_bound(sigma2)
    return np.zeros(sigma2.shape) if bound is None else bound * ABOVE_FLOOR


def inner_problem(
    spectrum: Spectrum, Y: AnyNDArray, floor: AnyNDArray
) -> tuple[AnyNDArray, inner.Box]:
    """
    Starting points [3, T, 2] and bounds of the inner problem.

    A warm start alone may sit in "all noise"; the default does not, but a task may have an optimum
    with hardly any noise or hardly any signal besides: see `STARTS`.

    :param Y: [N, T], or completions of it, [S, N, T].
    :param floor: [T], what sigma2 must stay above.
    """
    kernel_variance = float(tf.reduce_sum(spectrum.lam) / spectrum.num_rows)
    start = chain_start(kernel_variance, task_scales(Y.reshape(-1, Y.shape[-1])))
    default = np.stack(start, axis=1).astype(np.float64)  # [T, 2]
    floor = np.maximum(floor, default[:, 1] / B_RANGE)
    lower = np.log(np.stack([default[:, 0] / B_RANGE, floor], axis=1))
    return default * STARTS[:, None], inner.Box(lower, np.log(default * B_RANGE))
