"""
All predictions of a posterior, from the moments that its subclass computes.

A posterior that is conditioned on new rows has the same class, more data and another `solve`.
"""

import abc
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.base import MeanAndVariance, RegressionData, TensorType
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from gpflow.posteriors import AbstractPosterior, PrecomputeCacheType

from .. import checks
from ..chain.kernels import kernel_matrix, origin_of, shifted_kernel
from ..linalg import Seed, log_density_of_layout
from .exceedance import WAYS, Exceedance, above, checked_limits, exceedance
from .kronecker import JointSolution, condition_on_known
from .missing import ObservedSolution
from .sampling import Draws, draw_independent_tasks

Solution = TypeVar("Solution", JointSolution, ObservedSolution)


def task_matrices(solution: JointSolution | ObservedSolution) -> tuple[tf.Tensor, tf.Tensor]:
    r"""
    The covariances that a solution was made with.

    .. math:: C = P \, \mathrm{diag}(d) \, P^\top, \qquad \Sigma = P P^\top
    """
    P = solution.P
    return tf.matmul(P * solution.d, P, transpose_b=True), tf.matmul(P, P, transpose_b=True)


def cache_type(value: PrecomputeCacheType | str | None) -> PrecomputeCacheType:
    """GPflow's cache types by object or by name."""
    if value is None:
        return PrecomputeCacheType.NOCACHE
    if isinstance(value, PrecomputeCacheType):
        return value
    names = [kind.value for kind in PrecomputeCacheType]
    return PrecomputeCacheType(checks.option(str(value).lower(), "precompute_cache", names))


class JointPosterior(AbstractPosterior, Generic[Solution]):
    """
    Posterior of T correlated functions given the training data.

    With a cache, nothing is factorised again. The cache belongs to the parameters and data at the
    time it was made, until :meth:`update_cache` is called. Without a cache, each call solves anew.

    :param solve: Solves the joint model at its present parameters and data.
    :param cross_covariance: Takes Xnew [batch..., M, D] to the covariance [R, batch..., M] that the
        solution is made for; by default k(X, Xnew).
    """

    def __init__(
        self,
        kernel: Kernel,
        data: RegressionData,
        mean_function: MeanFunction,
        solve: Callable[[], Solution],
        *,
        precompute_cache: PrecomputeCacheType | str | None,
        cross_covariance: Callable[[TensorType], tf.Tensor] | None = None,
    ) -> None:
        X, Y = data
        super().__init__(kernel, X, mean_function=mean_function)
        self.num_tasks = int(Y.shape[1])
        self.num_inputs = int(X.shape[1])
        self.solve: Callable[[], Solution] = solve
        self.cross_covariance = cross_covariance or self._data_covariance
        self.update_cache(cache_type(precompute_cache))

    @abc.abstractmethod
    def _from_cache(self, cache: tuple[tf.Tensor, ...]) -> Solution:
        """The solution whose tensors :meth:`_precompute` has given."""

    @abc.abstractmethod
    def _moments(
        self,
        solution: Solution,
        Xnew: TensorType,
        full_cov: bool,
        full_output_cov: bool,
        *,
        noise: bool = False,
    ) -> MeanAndVariance:
        """Mean without mean function, and covariance in GPflow's layouts."""

    @abc.abstractmethod
    def _correlated_samples(self, solution: Solution, Xnew: TensorType, asked: Draws) -> tf.Tensor:
        """[batch..., S, M, T], draws that correlate over tasks, without mean function."""

    def _task_matrices(self, solution: Solution) -> tuple[tf.Tensor, tf.Tensor]:
        """C and Sigma."""
        return task_matrices(solution)

    def solution(self) -> Solution:
        """The cached solution, or a new one where there is no cache."""
        return self.solve() if self.cache is None else self._from_cache(self.cache)

    def _data_covariance(self, Xnew: TensorType) -> tf.Tensor:
        """[N, batch..., M], k(X, Xnew)."""
        return kernel_matrix(self.kernel, self.X_data, Xnew)

    def _prior_covariance(self, Xnew: TensorType, full_cov: bool) -> tf.Tensor:
        """[batch..., M, M], k(Xnew, Xnew); without `full_cov` its diagonal, [batch..., M]."""
        origin = origin_of(self.X_data)
        return shifted_kernel(self.kernel, Xnew, full_cov=full_cov, origin=origin)

    def _inputs(self, Xnew: Any) -> tf.Tensor:
        return checks.inputs(Xnew, self.num_inputs, self.X_data.dtype)

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        return self._moments(self.solve(), Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def _conditional_with_precompute(
        self,
        cache: tuple[tf.Tensor, ...],
        Xnew: TensorType,
        full_cov: bool = False,
        full_output_cov: bool = False,
    ) -> MeanAndVariance:
        return self._moments(self._from_cache(cache), Xnew, full_cov, full_output_cov)

    def predict_f(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Mean and (co)variance of the functions, mean function included."""
        predict = self.fused_predict_f if self.cache is None else super().predict_f
        return predict(self._inputs(Xnew), full_cov=full_cov, full_output_cov=full_output_cov)

    @check_shapes(
        "Xnew: [batch..., N, D]",
        "return[0]: [batch..., N, P]",
        "return[1]: [batch..., N, P, N, P] if full_cov and full_output_cov",
        "return[1]: [batch..., P, N, N] if full_cov and (not full_output_cov)",
        "return[1]: [batch..., N, P, P] if (not full_cov) and full_output_cov",
        "return[1]: [batch..., N, P] if (not full_cov) and (not full_output_cov)",
    )
    def predict_y(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Mean and (co)variance of new observations: noise is added where a point meets itself."""
        Xnew = self._inputs(Xnew)
        mean, cov = self._moments(self.solution(), Xnew, full_cov, full_output_cov, noise=True)
        return self._add_mean_function(Xnew, mean), cov

    @check_shapes(
        "Xnew: [batch..., M, D]",
        "Ynew: [batch..., M, T]",
        "return: [batch...] if full_cov and full_output_cov",
        "return: [batch..., T] if full_cov and (not full_output_cov)",
        "return: [batch..., M] if not full_cov",
    )
    def predict_log_density(
        self,
        Xnew: TensorType,
        Ynew: TensorType,
        full_cov: bool = False,
        full_output_cov: bool = False,
    ) -> tf.Tensor:
        """
        Log density of new observations.

        With neither flag, the T marginals of each row are summed, as GPflow does. With
        `full_output_cov` it is joint over the tasks of a row, with `full_cov` joint over the rows
        of a task, and with both joint over everything.
        """
        if full_output_cov:
            return self._joint_log_density(self._inputs(Xnew), Ynew, full_cov)
        mean, S = self.predict_y(Xnew, full_cov)
        return log_density_of_layout(Ynew - mean, S, full_cov, False)

    def _joint_log_density(self, Xnew: TensorType, Ynew: TensorType, full_cov: bool) -> tf.Tensor:
        """Log density that is joint over tasks."""
        mean, S = self.predict_y(Xnew, full_cov, full_output_cov=True)
        return log_density_of_layout(Ynew - mean, S, full_cov, True)

    @check_shapes("Xnew: [batch..., M, D]", "return: [batch..., S, M, T]")
    def predict_samples(
        self,
        Xnew: TensorType,
        num_samples: int,
        full_cov: bool = True,
        full_output_cov: bool = False,
        *,
        noise: bool = False,
        seed: Seed | None = None,
    ) -> tf.Tensor:
        """
        Draw functions (or, with `noise`, observations) at the test points.

        :param full_cov: Whether draws correlate over points.
        :param full_output_cov: Whether draws correlate over tasks.
        :param seed: Two whole numbers that decide the draws; else `tf.random.set_seed` does.
        """
        Xnew = self._inputs(Xnew)
        solution = self.solution()
        if full_output_cov:
            asked = Draws(num_samples, full_cov, noise, seed)
            samples = self._correlated_samples(solution, Xnew, asked)
        else:
            mean, S = self._moments(solution, Xnew, full_cov, False, noise=noise)
            S = S if full_cov else tf.linalg.matrix_transpose(S)
            C, _ = self._task_matrices(solution)
            prior = self._mean_variance(Xnew) * tf.cast(tf.linalg.diag_part(C), S.dtype)
            samples = draw_independent_tasks(mean, S, full_cov, num_samples, prior, seed)
        shift = self._add_mean_function(Xnew, tf.zeros_like(samples[..., 0, :, :]))
        return samples + shift[..., None, :, :]

    @check_shapes("Xnew: [batch..., M, D]", "return: [batch..., 1]")
    def _mean_variance(self, Xnew: TensorType) -> tf.Tensor:
        """The kernel's variance before data were seen, averaged over the points."""
        return tf.reduce_mean(self.kernel(Xnew, full_cov=False), axis=-1, keepdims=True)

    @check_shapes(
        "Xnew: [batch..., M, D]",
        "Ynew: [batch..., M, T]",
        "return[0]: [batch..., M, T]",
        "return[1]: [batch..., M, T, T]",
    )
    def predict_given(self, Xnew: TensorType, Ynew: TensorType, *, noise: bool) -> MeanAndVariance:
        """
        Mean and covariance of all tasks at each test point, where some tasks are known.

        :param Ynew: What is known; NaN elsewhere.
        :param noise: Whether observations are asked for, or functions. A known observation keeps
            its value, with variance zero.
        """
        Xnew = self._inputs(Xnew)
        solution = self.solution()
        mean, f_cov = self._moments(solution, Xnew, False, True)
        _, Sigma = self._task_matrices(solution)
        y_cov = f_cov + tf.cast(Sigma, f_cov.dtype)
        asked = y_cov if noise else f_cov
        mean = self._add_mean_function(Xnew, mean)
        mean, cov = condition_on_known(y_cov, asked, asked, mean, Ynew)
        if noise:
            known = tf.math.is_finite(Ynew)
            mean = tf.where(known, Ynew, mean)
            either = known[..., :, None] | known[..., None, :]
            cov = tf.where(either, tf.zeros_like(cov), cov)
        return mean, cov

    @check_shapes("Xnew: [M, D]")
    def probability(
        self, Xnew: TensorType, limits: Any, which: str = "any", *, noise: bool = True
    ) -> Exceedance:
        """
        Probability at each test point that tasks exceed their limits: that any does, that all do,
        [M], or of each on its own, [M, T].

        One limit is answered by the normal distribution. Several are answered by quasi-Monte Carlo,
        the same in every call, with a standard error.

        :param limits: One per task, [T]; NaN for a task that does not count.
        :param which: "any", "all" or "each".
        :param noise: Whether observations are asked about, or functions.
        """
        checks.option(which, "which", WAYS)
        limits = checked_limits(limits, self.num_tasks)
        counts = np.flatnonzero(~np.isnan(limits))
        joint = len(counts) > 1 and which != "each"
        predict = self.predict_y if noise else self.predict_f
        mean, cov = (part.numpy() for part in predict(Xnew, full_output_cov=joint))
        if which == "each":
            return Exceedance(above(limits - mean, np.sqrt(cov)), np.zeros_like(mean))
        cov = cov[:, counts][:, :, counts] if joint else cov[:, counts, None]
        return exceedance(mean[:, counts], cov, limits[counts], which)
