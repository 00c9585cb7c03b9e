"""A model for Trieste whose outputs correlate."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import TensorType
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from trieste import logging
from trieste.data import Dataset
from trieste.models.interfaces import (
    FastUpdateModel,
    HasReparamSampler,
    HasTrajectorySampler,
    SupportsGetInternalData,
    SupportsGetKernel,
    SupportsGetMeanFunction,
    SupportsGetObservationNoise,
    SupportsPredictJoint,
    SupportsPredictY,
    TrainableProbabilisticModel,
)
from trieste.models.utils import write_summary_data_based_metrics, write_summary_kernel_parameters

from ..joint.posteriors import CompleteDataPosterior
from ..joint.solved_posterior import task_matrices
from ..models.in_memory import InMemoryModel
from ..training.run import History
from .samplers import FunctionSampler, JointReparametrizationSampler

Moments = tuple[tf.Tensor, tf.Tensor]


class MultitaskRegression(
    TrainableProbabilisticModel,
    SupportsPredictJoint,
    SupportsPredictY,
    SupportsGetKernel,
    SupportsGetMeanFunction,
    SupportsGetObservationNoise,
    SupportsGetInternalData,
    FastUpdateModel,
    HasTrajectorySampler,
    HasReparamSampler,
):
    """
    A :class:`gpflow_cool.CoolMTGP` or :class:`gpflow_cool.KroneckerMTGP` for Trieste.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import CoolMTGP
    >>> from gpflow_cool.trieste import MultitaskRegression
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
    >>> model = MultitaskRegression(CoolMTGP((X, Y), kernel))
    >>> mean, variance = model.predict(X)
    >>> mean.shape
    TensorShape([20, 2])

    Trieste has no place for covariances between outputs in :meth:`predict`, :meth:`predict_joint`,
    :meth:`predict_y` and :meth:`get_observation_noise`: they return variances, and covariances
    between points, per output. Draws (:meth:`sample`, :meth:`reparam_sampler`,
    :meth:`trajectory_sampler`, :meth:`conditional_predict_f_sample`) do correlate between outputs,
    and all conditioning on data uses the full covariances.

    :param model: All its targets must be observed. Its data become `tf.Variable` that grow, so
        that a grid is of no use: `engine="grid"` is refused.
    :param fit_options: Passed to `model.fit` by :meth:`optimize`, for example {"restarts": 2}.
    """

    def __init__(self, model: InMemoryModel, fit_options: Mapping[str, Any] | None = None) -> None:
        if not isinstance(model, InMemoryModel):
            raise ValueError(
                f"The model is a {type(model).__name__}, but CoolMTGP or KroneckerMTGP is needed."
            )
        if model.observed is not None:
            raise ValueError("Y has NaN, but the data of Trieste must be complete.")
        self._model = model
        self._fit_options = {"verbose": 0, **(fit_options or {})}
        self._make_posterior()

    def _make_posterior(self) -> None:
        """Keep data and cache in variables: graphs that Trieste has compiled see their changes."""
        X, Y = (tf.convert_to_tensor(part) for part in self._model.data)
        self._model._hold(
            tuple(
                tf.Variable(part, trainable=False, shape=[None, part.shape[1]]) for part in (X, Y)
            )
        )
        self._posterior = self._model.posterior("variable")

    def __repr__(self) -> str:
        return f"MultitaskRegression({self._model!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: part for name, part in self.__dict__.items() if name != "_posterior"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_posterior()

    @property
    def model(self) -> InMemoryModel:
        """The model of this package: C is `model.task_covariance()`, Sigma `noise_covariance()`."""
        return self._model

    @property
    def posterior(self) -> CompleteDataPosterior:
        """The present posterior, with every prediction of this package."""
        return self._posterior

    # Predictions ---------------------------------------------------------------------------------

    def predict(self, query_points: TensorType) -> Moments:
        """Mean and variance of each output's function, [..., T] each."""
        return self._posterior.predict_f(query_points)

    def predict_joint(self, query_points: TensorType) -> Moments:
        """Mean [..., B, T], and covariance between points of each output, [..., T, B, B]."""
        return self._posterior.predict_f(query_points, full_cov=True)

    def predict_y(self, query_points: TensorType) -> Moments:
        """Mean and variance of each output's observations, [..., T] each."""
        return self._posterior.predict_y(query_points)

    def sample(self, query_points: TensorType, num_samples: int) -> tf.Tensor:
        """Draws of the functions, correlated over points and outputs, [..., S, N, T]."""
        return self._posterior.predict_samples(query_points, num_samples, True, True)

    def covariance_between_points(
        self, query_points_1: TensorType, query_points_2: TensorType
    ) -> tf.Tensor:
        """
        Covariance of each output's function between two sets of points.

        :param query_points_1: [..., N, D].
        :param query_points_2: [M, D].
        :return: [..., T, N, M].
        :raises ValueError: If `query_points_2` has leading dimensions.
        """
        first, second = map(self._posterior._inputs, (query_points_1, query_points_2))
        if second.shape.rank != 2:
            raise ValueError(
                f"query_points_2 has shape {tuple(second.shape)}, but [M, {second.shape[-1]}] is"
                " needed: only query_points_1 may have leading dimensions."
            )
        covariance = self._posterior._covariance_with(self._posterior.solution(), second)
        return tf.einsum("...ntmt->...tnm", covariance(first))

    def rotated_moments(self, query_points: TensorType) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """
        Mean [..., B, T], covariances of the rotated tasks [..., T, B, B], and the rotation P.

        The covariance of the tasks is that of P g, where the g_j are independent.
        """
        solution, X = self._posterior.solution(), self._posterior._inputs(query_points)
        mean, q = self._posterior._rotated_moments(solution, X, True, noise=False)
        return self._posterior._add_mean_function(X, mean), q, solution.P

    # Predictions given more data -----------------------------------------------------------------

    def conditional_predict_f(self, query_points: TensorType, additional_data: Dataset) -> Moments:
        """
        The same as :meth:`predict`, given more data.

        :param query_points: [M, D].
        :param additional_data: Points [..., N, D] and observations [..., N, T].
        :return: [..., M, T] each.
        """
        return self._given(additional_data, lambda given: given.predict_f(query_points))

    def conditional_predict_joint(
        self, query_points: TensorType, additional_data: Dataset
    ) -> Moments:
        """As :meth:`predict_joint`, given more data: [..., M, T] and [..., T, M, M]."""
        return self._given(
            additional_data, lambda given: given.predict_f(query_points, full_cov=True)
        )

    def conditional_predict_y(self, query_points: TensorType, additional_data: Dataset) -> Moments:
        """As :meth:`predict_y`, given more data: [..., M, T] each."""
        return self._given(additional_data, lambda given: given.predict_y(query_points))

    def conditional_predict_f_sample(
        self, query_points: TensorType, additional_data: Dataset, num_samples: int
    ) -> tf.Tensor:
        """Draws given more data, correlated over points and outputs, [..., S, M, T]."""

        def draw(given: Any) -> tuple[tf.Tensor]:
            return (given.predict_samples(query_points, num_samples, True, True),)

        return self._given(additional_data, draw)[0]

    def _given(self, data: Dataset, predict: Callable[[Any], tuple[tf.Tensor, ...]]) -> Any:
        """Predictions of the posteriors given the rows of each batch of points."""
        X, Y = data.query_points, data.observations
        if len(X.shape) == 2:
            return predict(self._posterior.condition_on(X, Y))
        batch = tf.shape(X)[:-2]
        flat = [tf.reshape(part, tf.concat([[-1], tf.shape(part)[-2:]], axis=0)) for part in (X, Y)]
        dtype, count = self._model.dtype, len(predict(self._posterior))

        @tf.autograph.experimental.do_not_convert  # nothing to convert, and it takes seconds
        def predict_given(rows: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            return predict(self._posterior.condition_on(*rows))

        results = tf.map_fn(predict_given, tuple(flat), fn_output_signature=(dtype,) * count)
        return tuple(
            tf.reshape(part, tf.concat([batch, tf.shape(part)[1:]], axis=0)) for part in results
        )

    # Samplers ------------------------------------------------------------------------------------

    def reparam_sampler(self, num_samples: int) -> JointReparametrizationSampler:
        """Draws at batches of points that are smooth in the points, joint over outputs."""
        return JointReparametrizationSampler(num_samples, self)

    def trajectory_sampler(self) -> FunctionSampler:
        """Draws of whole functions, joint over outputs."""
        return FunctionSampler(self)

    # Data and training ---------------------------------------------------------------------------

    def update(self, dataset: Dataset) -> None:
        """
        Replace the data; nothing is trained.

        :raises ValueError: If inputs or outputs are not as many as before, or not finite.
        """
        X, Y = self._model.data
        new = (dataset.query_points, dataset.observations)
        for part, old, name in zip(new, (X, Y), ("query points", "observations"), strict=True):
            if part.shape[-1] != old.shape[-1]:
                raise ValueError(
                    f"The {name} have {part.shape[-1]} columns, but the model has {old.shape[-1]}."
                )
            if hasattr(part, "numpy") and not np.isfinite(part).all():
                raise ValueError(f"The {name} have entries that are not finite: leave out the row.")
        X.assign(tf.cast(new[0], X.dtype))
        Y.assign(tf.cast(new[1], Y.dtype))
        self._posterior.update_cache()

    def optimize(self, dataset: Dataset) -> History:
        """
        Train from the present parameters on the data that :meth:`update` has set.

        :param dataset: The same data, as everywhere in Trieste.
        """
        history = self._model.fit(**self._fit_options)
        self._posterior.update_cache()
        return history

    def get_kernel(self) -> Kernel:
        """The kernel over the inputs, which all outputs share: the factor C comes on top."""
        return self._model.kernel

    def get_mean_function(self) -> MeanFunction:
        """The mean function."""
        return self._model.mean_function

    def get_observation_noise(self) -> tf.Tensor:
        """Noise variances, [T]; the covariances are those of `model.noise_covariance()`."""
        _, Sigma = task_matrices(self._posterior.solution())
        return tf.linalg.diag_part(Sigma)

    def get_internal_data(self) -> Dataset:
        """The data that predictions are given."""
        return Dataset(*(tf.convert_to_tensor(part) for part in self._model.data))

    def log(self, dataset: Dataset | None = None) -> None:
        """
        Write to TensorBoard: the kernel's parameters that are trained, the noise variance of each
        output, and with data the errors of predictions.
        """
        writer = logging.get_tensorboard_writer()
        if writer is None:
            return
        with writer.as_default(step=logging.get_step_number()):
            write_summary_kernel_parameters(self.get_kernel())
            noise = self.get_observation_noise().numpy()
            for name, variance in zip(self._model.task_names, noise, strict=True):
                logging.scalar(f"noise variance/{name}", variance)
            if dataset is not None:
                write_summary_data_based_metrics(dataset=dataset, model=self, prefix="training_")
