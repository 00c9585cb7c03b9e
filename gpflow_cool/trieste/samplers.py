"""Draws for Trieste's acquisition functions: joint over points, and over outputs as well."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from gpflow.base import TensorType
from trieste.models.interfaces import (
    ReparametrizationSampler,
    TrajectoryFunctionClass,
    TrajectorySampler,
)
from trieste.utils import DEFAULTS

from ..joint.posteriors import CompleteDataPosterior


class JointReparametrizationSampler(ReparametrizationSampler[Any]):
    """
    Draws that are smooth functions of the points, because their random numbers stay.

    Trieste's own sampler sees one covariance matrix per output, and so draws outputs independently.
    This one draws the rotated tasks, which are independent, and rotates them back.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import CoolMTGP
    >>> from gpflow_cool.trieste import MultitaskRegression
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
    >>> model = MultitaskRegression(CoolMTGP((X, Y), kernel))
    >>> JointReparametrizationSampler(100, model).sample(X[:3]).shape
    TensorShape([100, 3, 2])

    :param sample_size: Number of draws.
    :param model: A :class:`gpflow_cool.trieste.MultitaskRegression`.
    """

    def __init__(self, sample_size: int, model: Any) -> None:
        super().__init__(sample_size, model)
        if not hasattr(model, "rotated_moments"):  # a stack asks for the samplers of its models
            raise NotImplementedError(
                f"The model is a {type(model).__name__}, but draws that are joint over outputs need"
                " one MultitaskRegression with all outputs. Make one model of all outputs, or stack"
                " other models."
            )
        self._white: tf.Variable | None = None

    def sample(self, at: TensorType, *, jitter: float = DEFAULTS.JITTER) -> tf.Tensor:
        """
        Draw functions at points; the same ones until :meth:`reset_sampler` is called.

        :param at: [..., B, D], with the same B in every call.
        :param jitter: What is added to variances before they are factorised.
        :return: [..., S, B, T].
        """
        tf.debugging.assert_rank_at_least(at, 2)
        tf.debugging.assert_greater_equal(jitter, 0.0)
        tf.debugging.assert_positive(at.shape[-2])
        mean, q, P = self._model.rotated_moments(at)  # [..., B, T], [..., T, B, B], [T, T]
        white = self._numbers([P.shape[0], at.shape[-2], self._sample_size], q.dtype)
        L = tf.linalg.cholesky(q + jitter * tf.eye(at.shape[-2], dtype=q.dtype))
        rotated = tf.einsum("...tbc,tcs->...sbt", L, white)
        return mean[..., None, :, :] + tf.matmul(rotated, P, transpose_b=True)

    def _numbers(self, shape: list[int], dtype: tf.DType) -> tf.Variable:
        """[T, B, S], standard normal numbers, drawn at the first call and after a reset."""
        if self._white is None:
            with tf.init_scope():
                start = tf.random.normal(shape, dtype=dtype)
                self._white = tf.Variable(start, trainable=False, shape=[None, None, shape[2]])
                self._initialized.assign(True)
        white = self._white
        tf.cond(
            self._initialized,
            lambda: white,
            lambda: white.assign(tf.random.normal(shape, dtype=dtype)),
        )
        self._initialized.assign(True)
        tf.debugging.assert_equal(
            tf.shape(white)[1],
            shape[1],
            message=f"{type(self).__name__} requires the same number of points in every call.",
        )
        return white


class Trajectories(TrajectoryFunctionClass):
    """
    Drawn functions in the shape that Trieste asks for: the b-th at the points of the b-th batch.

    :param draw: Takes a number of functions to their values, [B, N, D] -> [B, N, T].
    """

    def __init__(self, draw: Callable[[int], Callable[[TensorType], tf.Tensor]]) -> None:
        self._draw = draw
        self._batch_size = 0
        self._values: Callable[[TensorType], tf.Tensor] | None = None

    @tf.autograph.experimental.do_not_convert
    def __call__(self, x: TensorType) -> tf.Tensor:
        """
        Values of the functions, which the first call draws.

        :param x: [N, B, D], with the same B in every call.
        :return: [N, B, T].
        """
        x = tf.convert_to_tensor(x)
        tf.debugging.assert_rank(x, 3, message="A trajectory takes points [N, B, D].")
        if self._values is None:
            self._batch_size = int(x.shape[1])
            with tf.init_scope():  # the functions outlive a graph that calls them first
                self._values = self._draw(self._batch_size)
        if x.shape[1] != self._batch_size:
            raise ValueError(
                f"This trajectory has {self._batch_size} functions, and the points are for"
                f" {x.shape[1]}: get another trajectory from the sampler."
            )
        return tf.transpose(self._values(tf.transpose(x, [1, 0, 2])), [1, 0, 2])


class FunctionSampler(TrajectorySampler[Any]):
    """
    Whole functions of all outputs: those of the posterior's `sample_functions`.

    After the model was updated, a trajectory must be updated too, as everywhere in Trieste.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import CoolMTGP
    >>> from gpflow_cool.trieste import MultitaskRegression
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
    >>> model = MultitaskRegression(CoolMTGP((X, Y), kernel))
    >>> trajectory = FunctionSampler(model).get_trajectory()
    >>> trajectory(X[:, None, :]).shape  # one function, at twenty points
    TensorShape([20, 1, 2])

    :param model: A :class:`gpflow_cool.trieste.MultitaskRegression`.
    """

    def get_trajectory(self) -> Trajectories:
        """Functions [N, B, D] -> [N, B, T]; the first call decides B."""
        return Trajectories(lambda count: self._posterior.sample_functions(count).each)

    @property
    def _posterior(self) -> CompleteDataPosterior:
        return self._model.posterior
