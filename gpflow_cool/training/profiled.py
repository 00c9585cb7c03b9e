r"""
Profiled training of the chain ("variable projection"): b and sigma2 solved for, the rest trained.

For fixed kernel and mean parameters :math:`\theta` the best b and sigma2 cost next to nothing once
K is decomposed (:mod:`gpflow_cool.chain.newton`). What is left is a function of :math:`\theta`
alone, and its gradient is that of the objective at the inner optimum (envelope theorem): L-BFGS
needs about ten eigendecompositions for it. With no trainable :math:`\theta`,
one eigendecomposition is the fit.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray

from ..chain.compression import compressed, dual_vectors
from ..chain.eigenbasis import KernelGradient, leave_eigenbasis
from ..chain.newton import InnerSolution, solve, unsolved
from ..chain.products import (
    Eigenvectors,
    KernelMatrix,
    KroneckerProduct,
    KroneckerVectors,
    kernel_tensors,
    outer_product,
)
from ..chain.search import Box, together
from ..chain.spectrum import EPSILON, Spectrum, exact_spectrum, exact_spectrum_of_arrays
from ..chain.starting import completion_scales, inner_box
from ..chain.terms import TaskProblems, kernel_gradient, task_problems
from ..graphs import compiled
from ..linalg import lapack_eigh, prefers_device
from .model import Evaluation, Loss, TrainableChain
from .vector import assign_tensor, constrained_tensor, log_slope, lower_bound

ABOVE_FLOOR = 1.0 + 1e-6
"""sigma2 stays above this times its bound, where the transform still has an inverse."""


Computation = Callable[[], tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]]
"""A function of a loss, its gradients and its terms."""


class ProfiledChain(Loss):
    """
    The loss with b and sigma2 solved for, as a function of the other parameters.

    Evaluating it sets `b` and `sigma2` of the model to their best values. One that is not trainable
    stays. One with a prior, or with bounds that the inner problem does not know, is not solved for:
    it is trained like the others.

    :param device_eigh: Whether TensorFlow decomposes K, so that nothing of size N x N leaves the
        device; LAPACK is the retry if that fails. By default see :func:`.linalg.prefers_device`.
    """

    def __init__(self, model: TrainableChain, *, device_eigh: bool | None = None) -> None:
        self.model = model
        self.device_eigh = device_eigh
        bound_b, bound_sigma2 = lower_bound(model.b), lower_bound(model.sigma2)
        self.solves_b = is_free(model.b) and bound_b is not None and not np.any(bound_b)
        self.solves_sigma2 = is_free(model.sigma2) and bound_sigma2 is not None
        solved = [model.b] * self.solves_b + [model.sigma2] * self.solves_sigma2
        self.parameters = [
            p for p in model.trainable_parameters if all(p is not other for other in solved)
        ]
        no_bound = np.zeros(model.sigma2.shape)
        self.floor = no_bound if bound_sigma2 is None else bound_sigma2 * ABOVE_FLOOR
        self.has_prior = any(p.prior is not None for p in model.trainable_parameters)
        self.num_decompositions = 0
        self.last: InnerSolution | None = None
        self.best: InnerSolution | None = None
        self.lowest = np.inf
        self.anew = False
        self.rounding = 0.0
        self.held = False
        self.by_inner = no_bound
        self.failure: Exception | None = None

    def unsolved(self) -> Loss:
        return UnsolvedChain(self)

    def evaluate(self) -> Evaluation:
        """Solve for b and sigma2; the loss there, and its gradient by the other parameters."""
        if self.device_eigh is None:
            X, _ = self.model.data
            self.device_eigh = not self.model.is_on_grid and prefers_device(X.shape[0], X.dtype)
        if self.device_eigh:
            with suppress(tf.errors.OpError, np.linalg.LinAlgError):
                return self._evaluate(self._compute_on_device)
        return self._evaluate(self._compute)

    def evaluate_anew(self) -> Evaluation:
        """
        As :meth:`evaluate`, with a search of all b and sigma2, not from the last ones alone: for
        parameters that are far from the last ones. The next solution starts from the best so far.
        """
        self.anew = True
        try:
            return self.evaluate()
        finally:
            self.anew = False

    def evaluate_held(self) -> Evaluation:
        """
        As :meth:`evaluate`, at the present b and sigma2, which are not solved for; `by_inner` has
        the gradient of the terms by them. What the next solution starts from is not changed.
        """
        kept = self.last, self.best, self.lowest
        self.held = True
        try:
            return self.evaluate()
        finally:
            self.held = False
            self.last, self.best, self.lowest = kept

    def _evaluate(self, compute: Computation) -> Evaluation:
        with self.numpy_failures():
            loss, gradients, terms = compute()
        assert self.last is not None
        self.last = self.next_start(self.last, float(loss))
        gradients = [g.numpy() for g in gradients]
        return Evaluation(float(loss), gradients, terms.numpy(), self.rounding)

    @cached_property
    def _compute(self) -> Computation:
        """The computation, K decomposed by LAPACK."""
        return compiled_if_possible(partial(self._computation, self._solved_by_lapack))

    @cached_property
    def _compute_on_device(self) -> Computation:
        """The computation, K decomposed on the device."""
        return compiled_if_possible(partial(self._computation, self._solved_on_device))

    @contextmanager
    def numpy_failures(self) -> Iterator[None]:
        """Raise what NumPy raised, in place of TensorFlow's error about it."""
        self.failure = None
        try:
            yield
        except tf.errors.OpError:
            if self.failure is not None:
                raise self.failure from None
            raise

    def in_numpy(
        self,
        method: Callable[..., Any],
        arguments: list[tf.Tensor],
        types: tf.DType | list[tf.DType],
    ) -> Any:
        """
        Call a method of this object, which computes with NumPy, from a graph.

        TensorFlow never frees a Python function that a graph calls. That function therefore holds
        this object, and with it the model, by weak references only.
        """
        weak_self, weak_method = weakref.ref(self), weakref.WeakMethod(method)

        def call(*values: AnyNDArray) -> Any:
            loss, method = weak_self(), weak_method()
            assert loss is not None and method is not None
            try:
                return method(*values)
            except Exception as failure:
                loss.failure = failure
                raise

        return tf.numpy_function(call, arguments, types)

    def _solved_by_lapack(
        self, K: KernelMatrix, Y: tf.Tensor, present: tf.Tensor
    ) -> tuple[Eigenvectors, list[tf.Tensor]]:
        """Eigenvectors of K, and what :meth:`solve_spectrum_of` returns, in a graph."""
        if isinstance(K, KroneckerProduct):
            return self._solved_on_grid(K, Y, present)
        U, *parts = self.in_numpy(self.solve, [K, Y, present], [K.dtype] + [tf.float64] * 7)
        return U, parts

    def _solved_on_grid(
        self, K: KroneckerProduct, Y: tf.Tensor, present: tf.Tensor
    ) -> tuple[Eigenvectors, list[tf.Tensor]]:
        """The same for a Kronecker product, of whose matrices each is decomposed."""
        types = [part.dtype for part in K.matrices]
        inputs = [Y, present, K.rows, *K.matrices]
        found = self.in_numpy(self.solve_on_grid, inputs, types * 2 + [tf.float64] * 7)
        shaped = zip(found, [part.shape for part in K.matrices], strict=False)
        vectors = tuple(tf.ensure_shape(part, shape) for part, shape in shaped)
        shaped = zip(found[len(types) :], [part.shape[:1] for part in K.matrices], strict=False)
        values = tuple(tf.ensure_shape(part, shape) for part, shape in shaped)
        return KroneckerVectors(vectors, values, K.rows), found[2 * len(types) :]

    def _solved_on_device(
        self, K: KernelMatrix, Y: tf.Tensor, present: tf.Tensor
    ) -> tuple[Eigenvectors, list[tf.Tensor]]:
        """The same: K and its eigenvectors stay on the device, N x T numbers go to NumPy."""
        lam, U = tf.linalg.eigh(K)
        Yr = exact_spectrum(lam, U, Y).Yr
        inputs = [lam, Yr, Y, present]
        return U, self.in_numpy(self.solve_decomposed, inputs, [tf.float64] * 7)

    def _computation(
        self,
        solve: Callable[[KernelMatrix, tf.Tensor, tf.Tensor], tuple[Eigenvectors, list[tf.Tensor]]],
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        """
        Loss, its gradients by the variables that are not solved for, and terms.

        It sets b and sigma2. TensorFlow computes kernel and mean function with their gradients.
        LAPACK and NumPy do the rest, which would take longer to compile than to run.
        """
        model = self.model
        variables = [p.unconstrained_variable for p in self.parameters]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            K, Y = model.kernel_matrix(), model.centred_completions()
            present = self.present()
            prior = model.log_prior_density() if self.has_prior else tf.zeros([], Y.dtype)
        U, parts = solve(K, Y, present)
        best, terms, by_present, *by_kernel = (tf.cast(part, Y.dtype) for part in parts)
        self.assign(tf.ensure_shape(best, present.shape))
        *by_K, by_Y = leave_eigenbasis(KernelGradient(*by_kernel), U, Y)
        sources = [*kernel_tensors(K), Y, present]
        upstream = zip([*by_K, by_Y, by_present], sources, strict=True)
        gradients = tape.gradient(
            [*sources, prior],
            variables,
            output_gradients=[
                *(-tf.ensure_shape(by, source.shape) for by, source in upstream),
                -tf.ones_like(prior),
            ],
            unconnected_gradients="zero",
        )
        gradients = [tf.convert_to_tensor(g) for g in gradients]  # some kernels gather
        return -(tf.reduce_sum(terms) + prior), gradients, terms

    def solve(self, K: AnyNDArray, Y: AnyNDArray, present: AnyNDArray) -> tuple[AnyNDArray, ...]:
        """
        The inner optimum for a kernel matrix, and what the gradient needs.

        :param present: [T, 2], b and sigma2.
        :return: Eigenvectors [N, N]; the best b and sigma2 [T, 2]; the terms there [T], and their
            gradient by b and sigma2 [T, 2]; the parts of the :class:`.KernelGradient`.
        """
        lam, U = lapack_eigh(K)
        spectrum = exact_spectrum_of_arrays(np.maximum(lam, 0.0), U, Y)
        return U, *self.solve_spectrum_of(spectrum, Y, present)

    def solve_on_grid(
        self, Y: AnyNDArray, present: AnyNDArray, rows: AnyNDArray, *matrices: AnyNDArray
    ) -> tuple[AnyNDArray, ...]:
        """As :meth:`solve`, for a Kronecker product: eigenvectors and eigenvalues of each axis."""
        parts = [lapack_eigh(part) for part in matrices]
        U = KroneckerVectors(
            tuple(vectors for _, vectors in parts),
            tuple(np.maximum(values, 0.0) for values, _ in parts),
            rows,
        )
        spectrum = exact_spectrum_of_arrays(outer_product(U.values), U, Y)
        return *U.vectors, *U.values, *self.solve_spectrum_of(spectrum, Y, present)

    def solve_decomposed(
        self, lam: AnyNDArray, Yr: AnyNDArray, Y: AnyNDArray, present: AnyNDArray
    ) -> tuple[AnyNDArray, ...]:
        """As :meth:`solve`, without the eigenvectors, from the eigenvalues and U^T Y."""
        if not np.isfinite(lam).all():
            raise np.linalg.LinAlgError("The device's eigendecomposition is not finite.")
        spectrum = Spectrum(
            lam=np.maximum(lam, 0.0).astype(np.float64),
            Yr=Yr,
            G0=np.zeros([Y.shape[-1]] * 2),
            num_rows=float(len(lam)),
            precision=float(np.finfo(lam.dtype).eps),
        )
        return self.solve_spectrum_of(spectrum, Y, present)

    def solve_spectrum_of(
        self, spectrum: Spectrum, Y: AnyNDArray, present: AnyNDArray
    ) -> tuple[AnyNDArray, ...]:
        """What :meth:`solve` returns after the eigenvectors, which are N x T numbers at most."""
        self.num_decompositions += 1
        problems = task_problems(spectrum, self.model.learning)
        scales, present = completion_scales(Y), present.astype(np.float64)
        best = self.solve_inner(compressed(problems), scales, present)
        A = dual_vectors(problems, best.parameters, best.W)
        gradient = kernel_gradient(problems, best.parameters, best.W, A)
        return best.parameters, best.values, best.gradients, *gradient

    def solve_inner(
        self, problems: TaskProblems, scales: AnyNDArray, present: AnyNDArray
    ) -> InnerSolution:
        """
        The best b and sigma2 for this spectrum; one that is not solved for stays.

        :param scales: [T], the tasks' variances.
        """
        if self.held:
            self.last = best = unsolved(problems, present)
        else:
            box = self.inner_box(problems.spectrum, scales, present)
            self.last = best = solve(problems, box, self.last, anew=self.anew)
        self.by_inner = best.gradients
        parameters = np.where([self.solves_b, self.solves_sigma2], best.parameters, present)
        self.rounding = rounding_of_loss(problems.spectrum, parameters)
        return best._replace(parameters=parameters)

    def next_start(self, found: InnerSolution, loss: float) -> InnerSolution:
        """
        Where the next solution starts: at the maxima of this one and, where its loss is higher, at
        those of the best one so far. A line search that went too far returns there, and may have
        lost a maximum meanwhile. Places that were looked at anew are left for the best one.
        """
        if self.best is None or loss <= self.lowest:
            self.best, self.lowest = found, loss
            return found
        if self.anew:
            return self.best
        return found._replace(maxima=together(found.maxima, self.best.maxima))

    def inner_box(self, spectrum: Spectrum, scales: AnyNDArray, present: AnyNDArray) -> Box:
        """Bounds of the inner problem, which fix what is not solved for."""
        box = inner_box(spectrum, scales, self.floor)
        for column, solved in enumerate([self.solves_b, self.solves_sigma2]):
            if not solved:
                box.lower[:, column] = box.upper[:, column] = np.log(present[:, column])
        return box

    def present(self) -> tf.Tensor:
        """[T, 2], b and sigma2."""
        pair = self.model.b, self.model.sigma2
        return tf.stack([constrained_tensor(p) for p in pair], axis=1)

    def assign(self, best: tf.Tensor) -> None:
        """Set those of b and sigma2, [T, 2], that are solved for, without a check of the values."""
        pair = self.model.b, self.model.sigma2
        solved = self.solves_b, self.solves_sigma2
        for parameter, value, is_solved in zip(pair, tf.unstack(best, axis=1), solved, strict=True):
            if is_solved:
                assign_tensor(parameter, value)


class UnsolvedChain(Loss):
    """The loss of a :class:`ProfiledChain` as a function of all parameters, b and sigma2 too."""

    def __init__(self, profile: ProfiledChain) -> None:
        self.profile = profile
        model, solves = profile.model, (profile.solves_b, profile.solves_sigma2)
        pairs = enumerate(zip((model.b, model.sigma2), solves, strict=True))
        self.solved = {column: p for column, (p, is_solved) in pairs if is_solved}
        known = {id(p) for p in (*profile.parameters, *self.solved.values())}
        self.parameters = [p for p in model.trainable_parameters if id(p) in known]

    def evaluate(self) -> Evaluation:
        evaluation, by_inner = self.profile.evaluate_held(), self.profile.by_inner
        names = map(id, self.profile.parameters)
        gradients = dict(zip(names, evaluation.gradients, strict=True))
        for column, p in self.solved.items():
            gradients[id(p)] = -by_inner[:, column] * np.exp(log_slope(p))
        return evaluation._replace(gradients=[gradients[id(p)] for p in self.parameters])


def compiled_if_possible(computation: Computation) -> Computation:
    """A computation as a graph; as it is, if its kernel cannot be compiled."""
    try:
        return compiled(computation)
    except (tf.errors.OperatorNotAllowedInGraphError, NotImplementedError):
        return computation


def is_free(parameter: Parameter) -> bool:
    """Whether a parameter is trained for the likelihood alone."""
    return parameter.trainable and parameter.prior is None


def rounding_of_loss(spectrum: Spectrum, parameters: AnyNDArray) -> float:
    r"""
    About how much the rounding of the eigenvalues and of the slack changes the loss.

    .. math:: \tfrac{1}{2} \sum_t \Big[ \sum_n \log^2 \Big( 1
              + \frac{b_t u}{b_t \lambda_n + \sigma^2_t} \Big) \Big]^{1/2}
              + \tfrac{1}{2} \sum_t \frac{b_t}{\sigma^2_t} \frac{R \epsilon}{2} \mathrm{tr} K,
              \qquad u = \epsilon \lambda_{\max}

    An eigenvalue is known to u, which moves the log determinant of a task by one of these
    logarithms; N of them add up like random numbers. The slack is the difference of two traces,
    one of which has the rounding of K_mm, multiplied by its inverse.

    :param parameters: [T, 2], b and sigma2.
    """
    b, sigma2 = parameters.T
    changes = np.log1p(b * spectrum.unit / (spectrum.lam[:, None] * b + sigma2))  # [R, T]
    trace = float(np.sum(spectrum.lam) + spectrum.slack) if spectrum.slack > 0 else 0.0
    by_slack = float(np.sum(b / sigma2)) * 0.5 * float(spectrum.rank) * EPSILON * trace
    return 0.5 * (float(np.sum(np.linalg.norm(changes, axis=0))) + by_slack)
