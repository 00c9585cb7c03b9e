"""
The posterior of the joint model where some targets are missing, imputation, and leave-one-out.

Everything is exact given the observed targets, by systems with their covariance
(:mod:`.observed`): one for all means, T for each point whose covariance is asked for.

Letters: N rows, T tasks, M test points, R rows of the training data that are looked at.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.base import AnyNDArray, MeanAndVariance, RegressionData, TensorType
from gpflow.config import default_jitter
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from gpflow.posteriors import AbstractPosterior, PrecomputeCacheType, PrecomputedValue

from .. import checks
from ..linalg import LOG_2PI, cholesky_with_jitter, log_density_of_layout
from .kronecker import rows_last
from .leave_one_out import LeaveOneOut
from .observed import ObservedSystem, draw_completions, solve
from .posteriors import cache_type, draw, given_known

CHUNK = 2**21
"""How many numbers the right-hand sides may have that are solved for at once."""


class ObservedSolution(NamedTuple):
    """All that predictions need of the observed targets."""

    system: ObservedSystem

    weights: tf.Tensor
    """[N, T], the covariance of the observed targets solved for them, zero elsewhere."""

    @property
    def P(self) -> tf.Tensor:
        """[T, T], a root of the noise covariance, as in the solution of complete data."""
        return tf.matmul(*self._basis()[:2])

    @property
    def d(self) -> tf.Tensor:
        """[T], signal variances in that basis: C = P diag(d) P^T."""
        return self._basis()[2]

    def _basis(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        L = tf.linalg.cholesky(self.system.Sigma)
        half = tf.linalg.triangular_solve(L, self.system.C)
        d, V = tf.linalg.eigh(tf.linalg.triangular_solve(L, tf.transpose(half)))
        return L, V, d


@check_shapes("Y: [N, T]")
def solve_observed(system: ObservedSystem, Y: TensorType) -> ObservedSolution:
    """
    Solve for the observed targets.

    :param Y: With the mean function subtracted; NaN where one is missing.
    """
    return ObservedSolution(system, solve(system, known_or_zero(system, Y)[None])[0])


def known_or_zero(system: ObservedSystem, Y: TensorType) -> tf.Tensor:
    """[N, T] in float64, zero where a target is missing."""
    Y = tf.cast(Y, tf.float64)
    return tf.where(system.mask, Y, tf.zeros_like(Y))


def in_chunks(
    function: Callable[[tf.Tensor], tf.Tensor], items: tf.Tensor, numbers_each: int
) -> tf.Tensor:
    """
    A function of items [M, ...], applied to as many at a time as memory should hold.

    :param numbers_each: How many numbers an item needs.
    """
    limit = max(1, CHUNK // numbers_each)
    if items.shape[0] is not None and items.shape[0] <= limit:
        return function(items)
    count = tf.shape(items)[0]
    size = tf.clip_by_value(count, 1, limit)
    num_chunks = tf.maximum((count + size - 1) // size, 1)
    padding = [[0, num_chunks * size - count]] + [[0, 0]] * (items.shape.rank - 1)
    padded = tf.reshape(
        tf.pad(items, padding), tf.concat([[num_chunks, size], tf.shape(items)[1:]], axis=0)
    )
    result = tf.map_fn(
        function, padded, fn_output_signature=tf.float64, parallel_iterations=1
    )  # [chunks, size, ...]
    return tf.reshape(result, tf.concat([[-1], tf.shape(result)[2:]], axis=0))[:count]


@check_shapes(
    "Kmn: [N, M]", "return: [M, T, M, T] if full_cov", "return: [M, T, T] if not full_cov"
)
def explained_covariance(system: ObservedSystem, Kmn: TensorType, full_cov: bool) -> tf.Tensor:
    r"""
    How much the observed targets take from the prior covariance of the functions.

    .. math:: (k_m \otimes C_t)_o^\top \, S_{oo}^{-1} \, (k_{m'} \otimes C_u)_o
    """
    num_rows, num_tasks = system.mask.shape

    def explain(k: tf.Tensor) -> tf.Tensor:  # [c, N], some of the points
        V = k[:, None, :, None] * system.C[:, None, :]  # [c, T, N, T]
        weights = solve(system, tf.reshape(V, [-1, num_rows, num_tasks]))
        WC = tf.reshape(tf.matmul(weights, system.C), tf.shape(V))
        if full_cov:
            return tf.einsum("nm,ctnu->ctmu", Kmn, WC)
        return tf.einsum("cn,ctnu->ctu", k, WC)

    return in_chunks(explain, tf.transpose(Kmn), num_rows * num_tasks**2)


@check_shapes(
    "Kmn: [N, M]",
    "Knn: [M, M] if full_cov",
    "Knn: [M] if not full_cov",
    "return: [M, T, M, T] if full_cov and full_output_cov",
    "return: [T, M, M] if full_cov and (not full_output_cov)",
    "return: [M, T, T] if (not full_cov) and full_output_cov",
    "return: [M, T] if (not full_cov) and (not full_output_cov)",
)
def function_covariance(
    system: ObservedSystem,
    Kmn: TensorType,
    Knn: TensorType,
    full_cov: bool,
    full_output_cov: bool,
) -> tf.Tensor:
    """Posterior covariance of the functions in GPflow's layouts."""
    explained = explained_covariance(system, Kmn, full_cov)
    if full_cov:
        cov = tf.einsum("mn,tu->mtnu", Knn, system.C) - explained
        cov = 0.5 * (cov + tf.transpose(cov, [2, 3, 0, 1]))
        return cov if full_output_cov else tf.einsum("mtnt->tmn", cov)
    cov = Knn[:, None, None] * system.C - explained
    cov = 0.5 * (cov + tf.linalg.matrix_transpose(cov))
    if full_output_cov:
        return cov
    return tf.nn.relu(tf.linalg.diag_part(cov))


@check_shapes(
    "Sigma: [T, T]",
    "cov: [batch..., M, T, M, T] if full_cov and full_output_cov",
    "cov: [batch..., T, M, M] if full_cov and (not full_output_cov)",
    "cov: [batch..., M, T, T] if (not full_cov) and full_output_cov",
    "cov: [batch..., M, T] if (not full_cov) and (not full_output_cov)",
)
def add_noise(
    Sigma: TensorType, cov: TensorType, full_cov: bool, full_output_cov: bool
) -> tf.Tensor:
    """Noise, where two points are the same observation."""
    if full_cov and full_output_cov:
        eye = tf.eye(tf.shape(cov)[-2], dtype=cov.dtype)
        return cov + tf.einsum("mn,tu->mtnu", eye, Sigma)
    variance = tf.linalg.diag_part(Sigma)
    if full_cov:
        return tf.linalg.set_diag(cov, tf.linalg.diag_part(cov) + variance[:, None])
    return cov + (Sigma if full_output_cov else variance)


class ObservedPosterior(AbstractPosterior):
    """
    Posterior of T correlated functions given the observed targets.

    With a cache, nothing is factorised again; the cache is that of the parameters when it was made,
    until :meth:`update_cache` is called. Without one, each call solves anew.

    :param observed: [N, T], which targets are observed.
    :param observed_solution: Solves the joint model at its present parameters.
    """

    def __init__(
        self,
        kernel: Kernel,
        data: RegressionData,
        mean_function: MeanFunction,
        observed: AnyNDArray,
        observed_solution: Callable[[], ObservedSolution],
        *,
        precompute_cache: PrecomputeCacheType | str | None,
    ) -> None:
        super().__init__(kernel, data[0], mean_function=mean_function)
        self.num_tasks = observed.shape[1]
        self.num_inputs = int(data[0].shape[1])
        self.observed_solution = observed_solution
        self.update_cache(cache_type(precompute_cache))

    def _inputs(self, Xnew: Any) -> tf.Tensor:
        return checks.inputs(Xnew, self.num_inputs)

    def predict_f(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Mean and (co)variance of the functions, mean function included."""
        Xnew = self._inputs(Xnew)
        predict = self.fused_predict_f if self.cache is None else super().predict_f
        return predict(Xnew, full_cov=full_cov, full_output_cov=full_output_cov)

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        solution = self.observed_solution()
        self._form = solution
        tensors = [part for part in tf.nest.flatten(solution) if tf.is_tensor(part)]
        return tuple(PrecomputedValue(part, (False,) * part.shape.rank) for part in tensors)

    def solution(self) -> ObservedSolution:
        """The cached solution, or a new one where there is no cache."""
        return self.observed_solution() if self.cache is None else self._from_cache(self.cache)

    def _from_cache(self, cache: tuple[tf.Tensor, ...]) -> ObservedSolution:
        tensors = iter(cache)
        parts = [
            tf.convert_to_tensor(next(tensors)) if tf.is_tensor(part) else part
            for part in tf.nest.flatten(self._form)
        ]
        return tf.nest.pack_sequence_as(self._form, parts)

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        return self._functions(self.observed_solution(), Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def _conditional_with_precompute(
        self,
        cache: tuple[tf.Tensor, ...],
        Xnew: TensorType,
        full_cov: bool = False,
        full_output_cov: bool = False,
    ) -> MeanAndVariance:
        return self._functions(self._from_cache(cache), Xnew, full_cov, full_output_cov)

    def _functions(
        self,
        solution: ObservedSolution,
        Xnew: TensorType,
        full_cov: bool,
        full_output_cov: bool,
    ) -> MeanAndVariance:
        """Mean without mean function, and covariance, of the functions; batches one by one."""
        Kmn = rows_last(self.kernel(self.X_data, Xnew))  # [..., M, N]
        Knn = self.kernel(Xnew, full_cov=full_cov)
        dtype, batch = Kmn.dtype, tf.shape(Kmn)[:-2]
        Kmn, Knn = tf.cast(Kmn, tf.float64), tf.cast(Knn, tf.float64)
        system, num_rows = solution.system, Kmn.shape[-1]
        alpha = tf.matmul(solution.weights, system.C)
        mean = tf.tensordot(Kmn, alpha, axes=[[-1], [0]])

        def covariance(parts: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            return function_covariance(
                system, tf.transpose(parts[0]), parts[1], full_cov, full_output_cov
            )

        if not full_cov:  # points of all batches alike
            cov = covariance((tf.reshape(Kmn, [-1, num_rows]), tf.reshape(Knn, [-1])))
            cov = tf.reshape(cov, tf.concat([tf.shape(Kmn)[:-1], tf.shape(cov)[1:]], axis=0))
        elif Kmn.shape.rank == 2:
            cov = covariance((Kmn, Knn))
        else:
            size = tf.shape(Knn)[-1]
            flat = (tf.reshape(Kmn, [-1, size, num_rows]), tf.reshape(Knn, [-1, size, size]))
            cov = tf.map_fn(covariance, flat, fn_output_signature=tf.float64)
            cov = tf.reshape(cov, tf.concat([batch, tf.shape(cov)[1:]], axis=0))
        return tf.cast(mean, dtype), tf.cast(cov, dtype)

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
        mean, cov = self._functions(solution, Xnew, full_cov, full_output_cov)
        Sigma = tf.cast(solution.system.Sigma, cov.dtype)
        return (
            self._add_mean_function(Xnew, mean),
            add_noise(Sigma, cov, full_cov, full_output_cov),
        )

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
        """Log density of new observations, see :class:`.posteriors.JointPosterior`."""
        mean, S = self.predict_y(Xnew, full_cov, full_output_cov)
        return log_density_of_layout(Ynew - mean, S, full_cov, full_output_cov)

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

        Both flags: correlated over points and tasks, by Matheron's rule, one system a draw.

        :param full_cov: Whether draws correlate over points.
        :param full_output_cov: Whether draws correlate over tasks.
        """
        Xnew = self._inputs(Xnew)
        solution = self.solution()
        if full_cov and full_output_cov:
            samples = self._joint_samples(solution, Xnew, num_samples, noise)
            shift = self._add_mean_function(Xnew, tf.zeros_like(samples[..., 0, :, :]))
            return samples + shift[..., None, :, :]
        mean, S = self._functions(solution, Xnew, full_cov, full_output_cov)
        mean = self._add_mean_function(Xnew, mean)
        if noise:
            Sigma = tf.cast(solution.system.Sigma, S.dtype)
            S = add_noise(Sigma, S, full_cov, full_output_cov)
        variance = self.kernel(Xnew, full_cov=False)  # [..., M]
        prior = tf.cast(tf.linalg.diag_part(solution.system.C), S.dtype)
        if full_output_cov:
            prior = variance * tf.reduce_mean(prior)
            L = cholesky_with_jitter(S, prior=prior)[..., None, :, :, :]  # [..., 1, M, T, T]
            shape = tf.concat([tf.shape(mean)[:-2], [num_samples], tf.shape(mean)[-2:]], axis=0)
            white = tf.random.normal(shape, dtype=mean.dtype)
            return mean[..., None, :, :] + tf.linalg.matvec(L, white)
        prior *= tf.reduce_mean(variance, axis=-1, keepdims=True)
        S = S if full_cov else tf.linalg.matrix_transpose(S)
        return draw(mean, S, full_cov, num_samples, prior)

    def _joint_samples(
        self, solution: ObservedSolution, Xnew: TensorType, num_samples: int, noise: bool
    ) -> tf.Tensor:
        """[batch..., S, M, T], joint draws without mean function; batches one by one."""

        def samples(X: tf.Tensor) -> tf.Tensor:
            return self._matheron(solution, X, num_samples, noise)

        Xnew = tf.convert_to_tensor(Xnew)
        if Xnew.shape.rank == 2:
            return samples(Xnew)
        flat = tf.reshape(Xnew, tf.concat([[-1], tf.shape(Xnew)[-2:]], axis=0))
        drawn = tf.map_fn(samples, flat, fn_output_signature=Xnew.dtype)
        return tf.reshape(drawn, tf.concat([tf.shape(Xnew)[:-2], tf.shape(drawn)[1:]], axis=0))

    @check_shapes("Xnew: [M, D]", "return: [S, M, T]")
    def _matheron(
        self, solution: ObservedSolution, Xnew: TensorType, num_samples: int, noise: bool
    ) -> tf.Tensor:
        r"""
        Draw all functions without regard to the targets, then correct by what the targets say.

        .. math:: f_* + (C \otimes k_*)^\top_{\cdot o} \, S_{oo}^{-1} (y_o - f_o - e_o)
        """
        system, num_tasks = solution.system, self.num_tasks
        num_rows = system.mask.shape[0]
        X = tf.concat([tf.convert_to_tensor(self.X_data), Xnew], axis=0)
        K = tf.cast(self.kernel(X), tf.float64)
        values, vectors = tf.linalg.eigh(system.C)
        root_C = vectors * tf.sqrt(tf.nn.relu(values))
        root_Sigma = tf.linalg.cholesky(system.Sigma)

        def correlated(num_points: tf.Tensor, root: tf.Tensor) -> tf.Tensor:
            white = tf.random.normal([num_samples, num_points, num_tasks], dtype=tf.float64)
            return tf.matmul(white, root, transpose_b=True)

        precision = np.finfo(Xnew.dtype.as_numpy_dtype).eps  # that of K before it was cast
        size = tf.cast(tf.shape(X)[0], tf.float64)
        relative = tf.maximum(tf.cast(default_jitter(), tf.float64), 4.0 * precision * size)
        f = tf.matmul(cholesky_with_jitter(K, relative), correlated(tf.shape(X)[0], root_C))
        targets = f[:, :num_rows] + correlated(num_rows, root_Sigma)
        weights = tf.matmul(solution.weights - solve(system, targets), system.C)
        new = f[:, num_rows:] + tf.matmul(K[num_rows:, :num_rows], weights)
        if noise:
            new += correlated(tf.shape(Xnew)[0], root_Sigma)
        return tf.cast(new, Xnew.dtype)

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
        mean, f_cov = self._functions(solution, Xnew, False, True)
        y_cov = f_cov + tf.cast(solution.system.Sigma, f_cov.dtype)
        return given_known(self._add_mean_function(Xnew, mean), f_cov, y_cov, Ynew, noise=noise)


# The training rows ---------------------------------------------------------------------------


class Imputation(NamedTuple):
    """The missing targets given all that is observed."""

    Y: tf.Tensor
    """[N, T], the targets, with the means of the missing ones filled in."""

    cov: tf.Tensor
    """[N, T, T], covariance of each row's missing targets; zero for those that are observed."""

    @property
    def std(self) -> tf.Tensor:
        """[N, T], standard deviation of the missing targets; zero for the others."""
        return tf.sqrt(tf.nn.relu(tf.linalg.diag_part(self.cov)))


def impute(
    system: ObservedSystem, X: TensorType, Y: TensorType, mean_function: MeanFunction
) -> Imputation:
    r"""
    Mean and covariance of the missing targets, noise included, given the observed ones.

    .. math:: S_{mo} S_{oo}^{-1} y_o, \qquad S_{mm} - S_{mo} S_{oo}^{-1} S_{om}

    with the covariance only between targets of the same row.
    """
    mean = tf.cast(mean_function(X), tf.float64)
    zero = tf.zeros([1, *system.mask.shape], tf.float64)
    centred = known_or_zero(system, tf.cast(Y, tf.float64) - mean)
    filled = tf.where(system.mask, tf.cast(Y, tf.float64), mean + draw_mean(system, centred, zero))
    rows = np.flatnonzero(~system.mask.all(axis=1))
    missing = tf.constant(~system.mask[rows], tf.float64)
    cov = missing_covariance(system, rows) * missing[:, :, None] * missing[:, None, :]
    shape = [*system.mask.shape, system.mask.shape[1]]
    full = tf.scatter_nd(rows[:, None], cov, shape)
    return Imputation(tf.cast(filled, Y.dtype), tf.cast(full, Y.dtype))


def draw_mean(system: ObservedSystem, centred: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
    """[N, T], the mean completion."""
    return draw_completions(system, centred, zero, zero)[0]


@check_shapes("rows: [R]", "return: [R, T, T]")
def missing_covariance(system: ObservedSystem, rows: AnyNDArray) -> tf.Tensor:
    """Covariance of the targets of single rows given all observed ones, as if it had none."""
    num_rows, num_tasks = system.mask.shape

    def covariance(rows: tf.Tensor) -> tf.Tensor:  # [c]
        k = tf.gather(system.K, rows)  # [c, N]
        here = tf.one_hot(rows, num_rows, dtype=tf.float64)
        V = (
            k[:, None, :, None] * system.C[:, None, :]
            + here[:, None, :, None] * system.Sigma[:, None, :]
        )  # [c, T, N, T]
        weights = solve(system, tf.reshape(V, [-1, num_rows, num_tasks]))
        explained = tf.einsum("ctnu,cvnu->ctv", tf.reshape(weights, tf.shape(V)), V)
        own = tf.gather(tf.linalg.diag_part(system.K), rows)[:, None, None] * system.C
        cov = own + system.Sigma - explained
        return 0.5 * (cov + tf.linalg.matrix_transpose(cov))

    return in_chunks(covariance, tf.constant(rows), num_rows * num_tasks**2)


def leave_one_row_out(
    system: ObservedSystem, X: TensorType, Y: TensorType, mean_function: MeanFunction
) -> LeaveOneOut:
    r"""
    Predict the observed targets of every row from those of all other rows.

    .. math:: y_n - Q_n^{-1} (S_{oo}^{-1} y_o)_n, \qquad \mathrm{cov}_n = Q_n^{-1}, \qquad
              Q_n = (S_{oo}^{-1})_{nn}

    NaN for targets that are not observed; the density is that of those that are.
    """
    num_rows, num_tasks = system.mask.shape
    residual = tf.cast(Y - mean_function(X), tf.float64)
    weights = solve_observed(system, residual).weights  # [N, T]

    def own_block(rows: tf.Tensor) -> tf.Tensor:  # [c]
        here = tf.one_hot(rows, num_rows, dtype=tf.float64)
        units = here[:, None, :, None] * tf.eye(num_tasks, dtype=tf.float64)[:, None, :]
        solved = solve(system, tf.reshape(units, [-1, num_rows, num_tasks]))
        return tf.einsum("cn,ctnu->ctu", here, tf.reshape(solved, tf.shape(units)))

    known = tf.constant(system.mask, tf.float64)
    Q = in_chunks(own_block, tf.range(num_rows), num_rows * num_tasks**2)
    L = tf.linalg.cholesky(Q + tf.linalg.diag(1.0 - known))
    error = tf.linalg.cholesky_solve(L, weights[..., None])[..., 0]
    log_det = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L)), axis=1)
    quadratic = tf.reduce_sum(weights * error, axis=1)
    log_density = log_det - 0.5 * (quadratic + tf.reduce_sum(known, axis=1) * LOG_2PI)
    cov = tf.linalg.cholesky_solve(L, tf.eye(num_tasks, batch_shape=[num_rows], dtype=tf.float64))
    nan = tf.constant(np.nan, tf.float64)
    both = system.mask[:, :, None] & system.mask[:, None, :]
    parts = (
        tf.where(system.mask, tf.cast(Y, tf.float64) - error, nan),
        tf.where(both, cov, nan),
        log_density,
    )
    return LeaveOneOut(*(tf.cast(part, Y.dtype) for part in parts))
