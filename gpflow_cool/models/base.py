"""What all our models share, wherever their data is: predictions, evidence, training, saving."""

import abc
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import InputData, MeanAndVariance, RegressionData
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from gpflow.posteriors import PrecomputeCacheType
from typing_extensions import Self

from .. import checks
from ..graphs import unconverted_method
from ..joint.base_posterior import JointPosterior
from ..joint.kronecker import JointSolution, TaskBasis, solve_joint, spectrum_log_evidence
from ..joint.leave_one_out import LeaveOneOut, leave_one_out_of_features
from ..joint.likelihood import CorrelatedGaussian
from ..joint.posteriors import CompleteDataPosterior
from ..saving.models import Document, Given, Saveable, data_document, saved_data
from ..saving.modules import Reader, Writer
from ..systems.rows import Chunk
from ..systems.spectrum import System
from ..training import fit as training
from ..training.model import TrainableModel
from .arguments import check_kernel, check_mean_function


class MultitaskModel(Saveable, TrainableModel):
    """
    Base of the models of vec(Y) ~ N(mean, C (x) K + Sigma (x) I).

    A model adds its parameters, its objective, :meth:`system` and :meth:`joint_basis`.

    :param data: X [N, D] and Y [N, T], checked; some of the rows, where they are read in chunks.
    """

    fit = training.fit

    def __init__(
        self,
        data: RegressionData,
        kernel: Kernel,
        mean_function: MeanFunction | None,
        task_names: tuple[str, ...],
    ) -> None:
        X, Y = data
        num_tasks = int(Y.shape[1])
        self.task_names = task_names
        super().__init__(
            check_kernel(kernel, X),
            CorrelatedGaussian(num_tasks, self.noise_covariance),
            check_mean_function(mean_function, X, num_tasks),
            num_latent_gps=num_tasks,
        )
        self.data = data

    @abc.abstractmethod
    def joint_basis(self, system: System) -> TaskBasis:
        """The tasks' basis at the present parameters, in float64."""

    def joint_solution(self) -> JointSolution:
        """Solve the joint model at the present parameters and data, of which none is missing."""
        system = self.system()
        spectrum, is_exact = system.spectrum, self.features is None
        unit = spectrum.precision * tf.reduce_max(spectrum.lam) if is_exact else 0.0
        return solve_joint(system.U, spectrum, self.joint_basis(system), unit=unit)

    @unconverted_method
    @check_shapes("return: []")
    def log_marginal_likelihood(self) -> tf.Tensor:
        """
        Log evidence of the joint model at its present C and Sigma, of the observed targets.

        It is exact, or a lower bound where there are inducing points. Where targets are missing,
        the cost is cubic in the number of the others.
        """
        system = self.system()
        evidence = spectrum_log_evidence(system.spectrum, self.joint_basis(system))
        return tf.cast(evidence, self.dtype)

    def leave_one_out(self, full_output_cov: bool = True) -> LeaveOneOut:
        """
        Mean, covariance and log density of every row, predicted from all the other rows.

        In closed form, at the present parameters: there is no refit, and inducing points stay.
        Targets of a row that are missing are NaN in its mean and covariance, and its density is
        that of the others.

        :param full_output_cov: Whether `cov` has T^2 covariances per row, or T variances: with
            many tasks these take a fraction of the time and memory.
        """
        solution, features = self.joint_solution(), self.features
        assert features is not None
        parts = [
            leave_one_out_of_features(
                solution,
                features.cross(X),
                features.diagonal(X),
                Y,
                self._centred(X, Y),
                full_output_cov,
            )
            for X, Y in self.shown_chunks()
        ]
        return LeaveOneOut(*(tf.concat(part, axis=0) for part in zip(*parts, strict=True)))

    def shown_chunks(self) -> Iterable[Chunk]:
        """The rows that :meth:`leave_one_out` is about, in chunks."""
        return self.rows.chunks()

    def _centred(self, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        return Y - self.mean_function(X)

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> JointPosterior:
        features = self.features
        return CompleteDataPosterior(
            self.kernel,
            self.data,
            self.mean_function,
            self.joint_solution,
            precompute_cache=precompute_cache,
            cross_covariance=None if features is None else features.cross,
            inducing_points=None if features is None else features.points,
        )

    # Predictions ---------------------------------------------------------------------------------

    def _uncached(self) -> JointPosterior:
        return self.posterior(PrecomputeCacheType.NOCACHE)

    @property
    def dtype(self) -> tf.DType:
        """The type of the data, in which inputs and results are, whatever GPflow's default is."""
        return self.data[0].dtype

    @property
    def _num_inputs(self) -> int:
        """D."""
        return int(self.data[0].shape[1])

    def _inputs(self, Xnew: Any) -> tf.Tensor:
        return checks.inputs(Xnew, self._num_inputs, self.dtype)

    @unconverted_method
    def predict_f(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """
        Mean and (co)variance of the functions at `Xnew`.

        :return: Mean [M, T] and covariance: [M, T]; [T, M, M] with `full_cov`; [M, T, T] with
            `full_output_cov`; [M, T, M, T] with both. Batches [..., M, D] are allowed.
        """
        return self._uncached().fused_predict_f(
            self._inputs(Xnew), full_cov=full_cov, full_output_cov=full_output_cov
        )

    def predict_f_full_cov(self, Xnew: InputData) -> MeanAndVariance:
        """Mean [M, T] and joint covariance [M, T, M, T] of the functions at `Xnew`."""
        return self.predict_f(Xnew, full_cov=True, full_output_cov=True)

    @unconverted_method
    def predict_y(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """
        Mean and (co)variance of new observations at `Xnew`, in the shapes of :meth:`predict_f`.

        Noise is added where the two points are the same observation, correlated between tasks.
        """
        return self._uncached().predict_y(self._inputs(Xnew), full_cov, full_output_cov)

    @unconverted_method
    def predict_log_density(
        self, data: RegressionData, full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """
        Log density of new observations.

        :param data: Inputs [M, D] and targets [M, T].
        :return: [M], the T marginals of a row summed, as GPflow does; [M], joint over the tasks of
            a row, with `full_output_cov`; [T], joint over the rows of a task, with `full_cov`; [],
            joint over everything, with both.
        """
        Xnew, Ynew = checks.scored_data(data, self._num_inputs, self.num_tasks, self.dtype)
        return self._uncached().predict_log_density(Xnew, Ynew, full_cov, full_output_cov)

    @unconverted_method
    def predict_f_samples(
        self,
        Xnew: InputData,
        num_samples: int | None = None,
        full_cov: bool = True,
        full_output_cov: bool = False,
    ) -> tf.Tensor:
        """
        Draw functions at `Xnew`; `tf.random.set_seed` makes draws repeatable.

        :param full_cov: Whether draws correlate over points.
        :param full_output_cov: Whether draws correlate over tasks. With both, T problems of size
            M x M are solved, never one of size M T x M T.
        :return: [S, M, T], or [M, T] if `num_samples` is None.
        """
        return self._samples(Xnew, num_samples, full_cov, full_output_cov, noise=False)

    @unconverted_method
    def predict_y_samples(
        self,
        Xnew: InputData,
        num_samples: int | None = None,
        full_cov: bool = True,
        full_output_cov: bool = True,
    ) -> tf.Tensor:
        """Draw observations at `Xnew`, like :meth:`predict_f_samples`; correlated by default."""
        return self._samples(Xnew, num_samples, full_cov, full_output_cov, noise=True)

    def _samples(
        self,
        Xnew: InputData,
        num_samples: int | None,
        full_cov: bool,
        full_output_cov: bool,
        *,
        noise: bool,
    ) -> tf.Tensor:
        count = 1 if num_samples is None else checks.positive_integer(num_samples, "num_samples")
        samples = self._uncached().predict_samples(
            self._inputs(Xnew), count, full_cov, full_output_cov, noise=noise
        )
        return samples[..., 0, :, :] if num_samples is None else samples

    @unconverted_method
    def predict_f_given(
        self, Xnew: InputData, Ynew: InputData, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """
        Mean and variance of the functions where some tasks have been observed at the test points.

        :param Ynew: [M, T], numbers where a task is known, NaN where it is asked for. Each test
            point is conditioned on what is known at that point.
        :return: [M, T] and [M, T], or [M, T, T] with `full_output_cov`.
        """
        return self._given(Xnew, Ynew, full_output_cov, noise=False)

    @unconverted_method
    def predict_y_given(
        self, Xnew: InputData, Ynew: InputData, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """
        Like :meth:`predict_f_given`, of the observations: a known one keeps its value, with
        variance zero.
        """
        return self._given(Xnew, Ynew, full_output_cov, noise=True)

    def _given(
        self, Xnew: InputData, Ynew: InputData, full_output_cov: bool, *, noise: bool
    ) -> MeanAndVariance:
        Xnew, Ynew = checks.known_data(Xnew, Ynew, self._num_inputs, self.num_tasks, self.dtype)
        mean, cov = self._uncached().predict_given(Xnew, Ynew, noise=noise)
        return mean, cov if full_output_cov else tf.linalg.diag_part(cov)

    # Saving --------------------------------------------------------------------------------------

    def to_document(self, writer: Writer) -> dict[str, Any]:
        """What all models share; a model adds what is its own."""
        return {
            **data_document(self.rows.arrays(), self.task_names, writer),
            "kernel": writer.module(self.kernel, "kernel"),
            "mean_function": writer.module(self.mean_function, "mean_function"),
        }

    @classmethod
    def from_document(cls, saved: Document, reader: Reader, given: Given) -> Self:
        model = cls(**cls.saved_arguments(saved, reader, given))
        model.restore_state(saved, reader)
        return model

    @classmethod
    def saved_arguments(cls, saved: Document, reader: Reader, given: Given) -> dict[str, Any]:
        """Arguments of the constructor that :meth:`to_document` has kept."""
        return {
            "data": saved_data(saved, reader),
            "kernel": reader.module(saved["kernel"], "kernel", given["kernel"]),
            "mean_function": reader.module(
                saved["mean_function"], "mean_function", given["mean_function"]
            ),
            "task_names": saved["task_names"],
        }

    def restore_state(self, saved: Document, reader: Reader) -> None:
        """Set what is saved besides the arguments of the constructor."""
