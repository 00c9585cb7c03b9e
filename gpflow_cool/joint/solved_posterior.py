"""
What predictions of a posterior are made of: a solution, covariances, and drawn functions.
"""

import abc
import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import MeanAndVariance, RegressionData, TensorType
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from gpflow.posteriors import AbstractPosterior, PrecomputeCacheType
from typing_extensions import Self

from .. import checks
from ..gaussian import Seed, normal
from ..kernels import kernel_matrix, origin_of, shifted_kernel
from .fourier import Features, prior_features
from .functions import Drawn, SampledFunctions, Weighted, by_rows
from .kronecker import JointSolution, rows_last
from .missing import ObservedSolution
from .sampling import Draws

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


def check_has_cache(kind: PrecomputeCacheType | str | None) -> None:
    """
    Refuse another cache than tensors for a posterior that was given more rows: what was computed of
    them are tensors, which neither calls that solve anew nor graphs with variables would update.
    """
    if kind is not None and cache_type(kind) is not PrecomputeCacheType.TENSOR:
        raise ValueError(
            "The posterior was conditioned on more rows, and what was computed of them is part of"
            " its cache: pass PrecomputeCacheType.TENSOR, or condition a posterior of the model"
            " anew."
        )


class SolvedPosterior(AbstractPosterior, Generic[Solution]):
    """
    Base of the posteriors, without their predictions.

    :param solve: Solves the joint model at its present parameters and data.
    :param cross_covariance: Takes Xnew [batch..., M, D] to the covariance [R, batch..., M] that the
        solution is made for; by default k(X, Xnew).
    :param inducing_points: Gives Z [R, D] where that is k(Z, Xnew). Without it, a cross-covariance
        that is given holds features of Xnew.
    """

    mean_function: MeanFunction

    def __init__(
        self,
        kernel: Kernel,
        data: RegressionData,
        mean_function: MeanFunction,
        solve: Callable[[], Solution],
        *,
        precompute_cache: PrecomputeCacheType | str | None,
        cross_covariance: Callable[[TensorType], tf.Tensor] | None = None,
        inducing_points: Callable[[], tf.Tensor] | None = None,
    ) -> None:
        X, Y = data
        super().__init__(kernel, X, mean_function=mean_function)
        self.num_tasks = int(Y.shape[-1])
        self.num_inputs = int(X.shape[1])
        self.solve: Callable[[], Solution] = solve
        self.cross_covariance = cross_covariance or self._data_covariance
        self._has_features = cross_covariance is not None and inducing_points is None
        self._points = inducing_points or self._data_points
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

    @abc.abstractmethod
    def _covariance_with(
        self, solution: Solution, points: tf.Tensor
    ) -> Callable[[TensorType], tf.Tensor]:
        """Takes Xnew to the functions' covariance with those at q points, [..., M, T, q, T]."""

    @abc.abstractmethod
    def _row_weights(self, solution: Solution, prior: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        """
        [S, R, T], factors of cross-covariances that shift functions drawn from the prior.

        :param prior: [S, R, T], the values of these functions at the solution's rows.
        :param noise: [S, R, T], standard normal.
        """

    @abc.abstractmethod
    def _shift(
        self, solution: Solution, drawn: Drawn, points: tf.Tensor, weights: tf.Tensor
    ) -> Drawn:
        """Drawn functions plus their covariance with those at q points, times weights [S, q, T]."""

    def _task_matrices(self, solution: Solution) -> tuple[tf.Tensor, tf.Tensor]:
        """C and Sigma."""
        return task_matrices(solution)

    def solution(self) -> Solution:
        """The cached solution, or a new one where there is no cache."""
        return self.solve() if self.cache is None else self._from_cache(self.cache)

    def _own_options(self) -> dict[str, Any]:
        """Arguments of the constructor that only this class has."""
        return {}

    def _twin(self) -> Self:
        """A posterior with the same solution, to be changed."""
        tasks = tf.zeros([0, self.num_tasks], self.X_data.dtype)
        twin = type(self)(
            self.kernel,
            (self.X_data, tasks),
            self.mean_function,
            self.solution,
            precompute_cache=PrecomputeCacheType.TENSOR,
            cross_covariance=self.cross_covariance,
            inducing_points=None if self._has_features else self._points,
            **self._own_options(),
        )
        twin.solve = self.solve
        return twin

    def _data_points(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.X_data)

    def _data_covariance(self, Xnew: TensorType) -> tf.Tensor:
        """[N, batch..., M], k(X, Xnew)."""
        return kernel_matrix(self.kernel, self.X_data, Xnew)

    @check_shapes("points: [q, D]", "Xnew: [batch..., M, D]", "return: [q, batch..., M]")
    def _covariance_of_points(self, points: TensorType, Xnew: TensorType) -> tf.Tensor:
        """k(points, Xnew)."""
        return shifted_kernel(self.kernel, points, Xnew, origin=origin_of(self.X_data))

    def _prior_covariance(self, Xnew: TensorType, full_cov: bool) -> tf.Tensor:
        """[batch..., M, M], k(Xnew, Xnew); without `full_cov` its diagonal, [batch..., M]."""
        origin = origin_of(self.X_data)
        return shifted_kernel(self.kernel, Xnew, full_cov=full_cov, origin=origin)

    @check_shapes(
        "Xnew: [batch..., D]",
        "mean: [outcomes..., batch..., T]",
        "return: [outcomes..., batch..., T]",
    )
    def _add_mean_function(self, Xnew: TensorType, mean: TensorType) -> tf.Tensor:
        return mean + self.mean_function(Xnew)

    def _inputs(self, Xnew: Any) -> tf.Tensor:
        return checks.inputs(Xnew, self.num_inputs, self.X_data.dtype)

    def _functions(self, drawn: Drawn) -> SampledFunctions:
        terms = [drawn.prior, by_rows(self.cross_covariance, drawn.rows)]
        terms += [
            by_rows(functools.partial(self._covariance_of_points, points), weights)
            for points, weights in drawn.added
        ]
        parameters = [*self.kernel.parameters, *getattr(self.mean_function, "parameters", ())]
        parameters += [self.X_data] if isinstance(self.X_data, tf.Variable) else []
        return SampledFunctions(terms, self.mean_function, self.num_inputs, parameters)

    def _draw(self, solution: Solution, num_samples: int, seed: int) -> Drawn:
        """Functions without mean function; from the prior, and shifted to the observed targets."""
        features = self._prior_features(seed)
        rows = features(tf.convert_to_tensor(self._points()))  # [R, L]
        white = self._normal_numbers(num_samples, int(rows.shape[-1]), (seed, 0))
        P, d = (tf.cast(part, white.dtype) for part in (solution.P, solution.d))
        weights = tf.matmul(white * tf.sqrt(d), P, transpose_b=True)
        prior = weights if self._has_features else tf.matmul(rows, weights)
        noise = self._normal_numbers(num_samples, int(prior.shape[1]), (seed, 1))
        return Drawn(Weighted(features, weights), self._row_weights(solution, prior, noise), [])

    def _prior_features(self, seed: int) -> Features:
        if self._has_features:
            return lambda X: rows_last(self.cross_covariance(X))
        return prior_features(self.kernel, self.num_inputs, origin_of(self.X_data), seed)

    def _normal_numbers(self, num_samples: int, size: int, seed: Seed) -> tf.Tensor:
        return normal([num_samples, size, self.num_tasks], self.X_data.dtype, seed)

    def _residuals(
        self, solution: Solution, drawn: Drawn, X: tf.Tensor, Y: tf.Tensor, seed: int
    ) -> tf.Tensor:
        """[S, q, T], targets of added rows less drawn observations of them."""
        if Y.shape.rank > 2:
            raise ValueError(
                f"The posterior was conditioned on targets of shape {tuple(Y.shape)}: functions can"
                " be drawn for one outcome, so pass condition_on targets of shape"
                f" {tuple(Y.shape[-2:])}."
            )
        F = self._functions(drawn).values(X)
        noise = self._normal_numbers(int(F.shape[0]), int(Y.shape[0]), (seed, 2))
        return Y - F - tf.matmul(noise, tf.cast(solution.P, F.dtype), transpose_b=True)
