"""
The posterior of the joint model, cached or not: every prediction of every model comes from here.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.base import MeanAndVariance, RegressionData, TensorType
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from gpflow.posteriors import AbstractPosterior, PrecomputeCacheType, PrecomputedValue

from .. import checks
from ..linalg import gaussian_log_density, sample_gaussian, univariate_log_densities
from .kronecker import (
    JointSolution,
    add_rotated_noise,
    condition_on_known,
    predictive_mean,
    rotated_covariance,
    task_layout,
)


def cache_type(value: PrecomputeCacheType | str | None) -> PrecomputeCacheType:
    """GPflow's cache types by object or by name."""
    if value is None:
        return PrecomputeCacheType.NOCACHE
    if isinstance(value, PrecomputeCacheType):
        return value
    names = [kind.value for kind in PrecomputeCacheType]
    return PrecomputeCacheType(checks.option(str(value).lower(), "precompute_cache", names))


class JointPosterior(AbstractPosterior):
    """
    Posterior of T correlated functions given all observations.

    With a cache, nothing of size N x N is factorised again; the cache is that of the parameters and
    data when it was made, until :meth:`update_cache` is called. Without one, each call solves anew.

    :param joint_solution: Solves the joint model at its present parameters and data.
    :param cross_covariance: Takes Xnew [batch..., M, D] to what the solution's `alpha` and `U` are
        for, [R, batch..., M]; by default k(X, Xnew).
    """

    def __init__(
        self,
        kernel: Kernel,
        data: RegressionData,
        mean_function: MeanFunction,
        joint_solution: Callable[[], JointSolution],
        *,
        precompute_cache: PrecomputeCacheType | str | None,
        cross_covariance: Callable[[TensorType], tf.Tensor] | None = None,
    ) -> None:
        X, Y = data
        super().__init__(kernel, X, mean_function=mean_function)
        self.num_tasks = int(Y.shape[1])
        self.num_inputs = int(X.shape[1])
        self.joint_solution = joint_solution
        self.cross_covariance = cross_covariance or self._data_covariance
        self.update_cache(cache_type(precompute_cache))

    def _inputs(self, Xnew: Any) -> tf.Tensor:
        return checks.inputs(Xnew, self.num_inputs)

    def _data_covariance(self, Xnew: TensorType) -> tf.Tensor:
        """[N, batch..., M], k(X, Xnew)."""
        return self.kernel(self.X_data, Xnew)

    def predict_f(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Mean and (co)variance of the functions, mean function included."""
        predict = self.fused_predict_f if self.cache is None else super().predict_f
        return predict(self._inputs(Xnew), full_cov=full_cov, full_output_cov=full_output_cov)

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        rows_change = JointSolution(
            U=(True, True),
            lam=(True,),
            Z=(True, False),
            alpha=(True, False),
            P=(False, False),
            P_inverse=(False, False),
            d=(False,),
            log_det=(),
        )
        return tuple(map(PrecomputedValue, self.joint_solution(), rows_change))

    def solution(self) -> JointSolution:
        """The cached solution, or a new one where there is no cache."""
        return self.joint_solution() if self.cache is None else JointSolution(*self.cache)

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        return self._conditional_with_precompute(
            self.joint_solution(), Xnew, full_cov=full_cov, full_output_cov=full_output_cov
        )

    @inherit_check_shapes
    def _conditional_with_precompute(
        self,
        cache: tuple[tf.Tensor, ...],
        Xnew: TensorType,
        full_cov: bool = False,
        full_output_cov: bool = False,
    ) -> MeanAndVariance:
        solution = JointSolution(*cache)
        mean, q = self._rotated(solution, Xnew, full_cov)
        return mean, task_layout(q, solution.P, full_cov, full_output_cov)

    def _rotated(
        self, solution: JointSolution, Xnew: TensorType, full_cov: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean of the tasks without mean function, and covariances of the rotated tasks."""
        Kmn = self.cross_covariance(Xnew)
        Knn = self.kernel(Xnew, full_cov=full_cov)
        return predictive_mean(solution, Kmn), rotated_covariance(solution, Kmn, Knn, full_cov)

    def _observed(
        self, solution: JointSolution, Xnew: TensorType, full_cov: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean of the tasks, and covariances of the rotated observations, noise included."""
        mean, q = self._rotated(solution, Xnew, full_cov)
        return self._add_mean_function(Xnew, mean), add_rotated_noise(q, full_cov)

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
        solution = self.solution()
        mean, q = self._observed(solution, Xnew, full_cov)
        return mean, task_layout(q, solution.P, full_cov, full_output_cov)

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
        r"""
        Log density of new observations.

        Neither flag: the T marginals of a row, summed, as GPflow does. `full_output_cov`: joint
        over the tasks of a row. `full_cov`: joint over the rows of a task. Both: joint over
        everything, at O(T M^3) in the rotated basis.
        """
        Xnew = self._inputs(Xnew)
        solution = self.solution()
        mean, q = self._observed(solution, Xnew, full_cov)
        residual = Ynew - mean
        if not full_output_cov:
            S = task_layout(q, solution.P, full_cov, full_output_cov)
            if full_cov:
                return gaussian_log_density(tf.linalg.matrix_transpose(residual), S)
            return univariate_log_densities(residual, S)
        Z = tf.matmul(residual, solution.P_inverse, transpose_b=True)  # [..., M, T]
        if not full_cov:
            rows = univariate_log_densities(Z, tf.linalg.matrix_transpose(q))
            return rows - solution.log_det
        num_points = tf.cast(tf.shape(Z)[-2], Z.dtype)
        tasks = gaussian_log_density(tf.linalg.matrix_transpose(Z), q)
        return tf.reduce_sum(tasks, axis=-1) - num_points * solution.log_det

    @check_shapes("Xnew: [batch..., M, D]", "return: [batch..., S, M, T]")
    def predict_samples(
        self,
        Xnew: TensorType,
        num_samples: int,
        full_cov: bool = True,
        full_output_cov: bool = False,
        *,
        noise: bool = False,
    ) -> tf.Tensor:
        """
        Draw functions (or, with `noise`, observations) at the test points.

        Both flags: correlated over points and tasks, from T separate M x M problems.

        :param full_cov: Whether draws correlate over points.
        :param full_output_cov: Whether draws correlate over tasks.
        """
        Xnew = self._inputs(Xnew)
        solution = self.solution()
        mean, q = self._rotated(solution, Xnew, full_cov)
        mean = self._add_mean_function(Xnew, mean)
        q = add_rotated_noise(q, full_cov) if noise else q
        variance = tf.reduce_mean(self.kernel(Xnew, full_cov=False), axis=-1, keepdims=True)
        if full_output_cov:  # independent in the rotated basis
            centred = draw(tf.zeros_like(mean), q, full_cov, num_samples, variance * solution.d)
            return mean[..., None, :, :] + tf.matmul(centred, solution.P, transpose_b=True)
        S = task_layout(q, solution.P, full_cov, False)
        prior = variance * tf.linalg.matvec(tf.square(solution.P), solution.d)  # diagonal of C
        S = S if full_cov else tf.linalg.matrix_transpose(S)
        return draw(mean, S, full_cov, num_samples, prior)

    @check_shapes(
        "Xnew: [batch..., M, D]",
        "Ynew: [batch..., M, T]",
        "return[0]: [batch..., M, T]",
        "return[1]: [batch..., M, T, T]",
    )
    def predict_given(self, Xnew: TensorType, Ynew: TensorType, *, noise: bool) -> MeanAndVariance:
        """
        Mean and covariance of all tasks at each test point, some of them being observed there.

        :param Ynew: What is known; NaN elsewhere.
        :param noise: Whether observations are asked for, or functions. A known observation keeps
            its value, with variance zero.
        """
        Xnew = self._inputs(Xnew)
        solution = self.solution()
        mean, q = self._rotated(solution, Xnew, False)
        mean = self._add_mean_function(Xnew, mean)
        f_cov = task_layout(q, solution.P, False, True)
        y_cov = task_layout(add_rotated_noise(q, False), solution.P, False, True)
        return given_known(mean, f_cov, y_cov, Ynew, noise=noise)


def given_known(
    mean: TensorType, f_cov: TensorType, y_cov: TensorType, Ynew: TensorType, *, noise: bool
) -> MeanAndVariance:
    """
    Condition each test point on what is known there, see :meth:`JointPosterior.predict_given`.

    :param mean: [batch..., M, T].
    :param f_cov: [batch..., M, T, T], covariance of the functions.
    :param y_cov: Covariance of the observations.
    """
    asked = y_cov if noise else f_cov
    mean, cov = condition_on_known(y_cov, asked, asked, mean, Ynew)
    if noise:
        known = tf.math.is_finite(Ynew)
        mean = tf.where(known, Ynew, mean)
        either = known[..., :, None] | known[..., None, :]
        cov = tf.where(either, tf.zeros_like(cov), cov)
    return mean, cov


@check_shapes(
    "mean: [batch..., M, T]",
    "S: [batch..., T, M, M] if full_cov",
    "S: [batch..., T, M] if not full_cov",
    "prior: [batch..., T]",
    "return: [batch..., S, M, T]",
)
def draw(
    mean: TensorType, S: TensorType, full_cov: bool, num_samples: int, prior: TensorType
) -> tf.Tensor:
    """
    Draw T columns independently of each other, each with its covariance over points.

    :param prior: The columns' variances before data were seen.
    """
    if full_cov:
        samples = sample_gaussian(tf.linalg.matrix_transpose(mean), S, num_samples, prior)
        order = tf.concat([tf.range(tf.rank(samples) - 3), tf.rank(samples) + [-2, -1, -3]], axis=0)
        return tf.transpose(samples, order)  # [..., T, S, M] -> [..., S, M, T]
    deviation = tf.sqrt(tf.linalg.matrix_transpose(S))[..., None, :, :]
    shape = tf.concat([tf.shape(mean)[:-2], [num_samples], tf.shape(mean)[-2:]], axis=0)
    return mean[..., None, :, :] + deviation * tf.random.normal(shape, dtype=mean.dtype)
