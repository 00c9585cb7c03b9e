"""What every joint model offers, wherever its data is: training, predictions, saving."""

import abc
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import InputData, MeanAndVariance, RegressionData
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from gpflow.models import GPModel
from gpflow.models.training_mixins import InternalDataTrainingLossMixin
from gpflow.posteriors import PrecomputeCacheType

from .. import checks
from ..joint.base_posterior import JointPosterior
from ..joint.likelihood import CorrelatedGaussian
from ..linalg import correlation_from_covariance
from ..saving.models import Document, Given, Saveable, data_document, saved_data
from ..saving.modules import Reader, Writer
from ..training.fit import fit
from ..training.monte_carlo_em import DRAWS, ROUNDS, TOLERANCE
from ..training.optimizers import Profile
from ..training.run import History


class MultitaskModel(Saveable, GPModel, InternalDataTrainingLossMixin, abc.ABC):
    """
    Base of the models of vec(Y) ~ N(0, C (x) K + Sigma (x) I), by their posterior.

    :param data: X [N, D] and Y [N, T], checked; of data that is elsewhere, some rows.
    """

    observed: Any = None
    """[N, T], which targets are observed; None where all are."""

    completions: tf.Variable | None = None
    has_drawn = False

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
            checks.single_output_kernel(kernel, X),
            CorrelatedGaussian(num_tasks, self.noise_covariance),
            checks.mean_function(mean_function, X, num_tasks),
            num_latent_gps=num_tasks,
        )
        self.data = data

    @abc.abstractmethod
    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> JointPosterior:
        """
        The posterior with its factorisations cached: predictions from it cost milliseconds.

        As in GPflow, after a change of parameters or data call its `update_cache()`: it shares the
        model's kernel and mean function, but not what was computed from them.

        :param precompute_cache: "tensor", "variable" or "nocache", as in GPflow.
        """

    @property
    def num_tasks(self) -> int:
        """T."""
        return int(self.num_latent_gps)

    @property
    @abc.abstractmethod
    def objective_term_names(self) -> tuple[str, ...]:
        """Names of the objective's terms."""

    @abc.abstractmethod
    def objective_terms(self) -> tf.Tensor:
        """The terms that the objective is the sum of."""

    @inherit_check_shapes
    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        return tf.reduce_sum(self.objective_terms())

    def fit(
        self,
        optimizer: Any = "profile",
        *,
        steps: int | None = None,
        callbacks: Sequence[Any] = (),
        restarts: int = 0,
        seed: int | None = None,
        verbose: int = 1,
        tensorboard: str | os.PathLike[str] | None = None,
        rounds: int = ROUNDS,
        draws: int = DRAWS,
        tolerance: float = TOLERANCE,
    ) -> History:
        """
        Train the model, and leave it with the best parameters seen.

        Where targets are missing this is Monte Carlo expectation maximisation: in each round the
        missing targets are drawn given all that is observed, and the optimizer takes some steps on
        the mean of the objective over the draws. The first round starts from what one Gaussian
        process a task fills in.

        :param optimizer: "profile" solves for b and sigma2 inside and runs L-BFGS over the rest,
            with about ten eigendecompositions; "scipy" is L-BFGS over everything, which "profile"
            also is where nothing can be solved for; "adam" is Adam; "em" is expectation
            maximisation over full C and Sigma, for :class:`gpflow_cool.KroneckerMTGP`. A
            `gpflow.optimizers.Scipy` or a Keras optimizer is used as it is.
        :param steps: How many steps at most; in each round, where targets are missing.
        :param callbacks: Keras callbacks; a step is an epoch to them. Setting `stop_training` of
            the model ends training with any optimizer.
        :param restarts: How many times to start again from random parameters; the best loss wins.
        :param seed: Seed of the restarts, and of the draws of missing targets.
        :param verbose: 1 for a progress bar where there is a terminal or a notebook, 0 for none.
        :param tensorboard: Folder to write the training to, one a fit, for `tensorboard --logdir`:
            loss, terms and evidence, every parameter, and pictures of C, Sigma, their correlations
            and, for one input, the predictions; see :mod:`gpflow_cool.monitoring`.
        :param rounds: How many rounds at most, where targets are missing.
        :param draws: How many completions of the missing targets, an even number: they come in
            pairs on both sides of the mean.
        :param tolerance: Training ends when a round raises the log evidence of the observed targets
            by less than this for each one; if they are too many for that, when it changes the
            objective by less.
        :return: Loss, terms, gradient norm and seconds of every step, and how it ended.
        """
        return fit(
            self,
            optimizer,
            steps=steps,
            callbacks=callbacks,
            restarts=restarts,
            seed=seed,
            verbose=verbose,
            tensorboard=tensorboard,
            rounds=rounds,
            draws=draws,
            tolerance=tolerance,
        )

    def profile(self) -> Profile | None:
        """The loss with some of its parameters solved for; None where nothing can be."""
        return None

    def streamed_loss(self) -> Profile | None:
        """The loss and its gradient over data in chunks; None where one graph computes them."""
        return None

    def expectation_maximisation(self) -> Any:
        """Expectation maximisation, for `fit("em")`."""
        raise ValueError(f'{type(self).__name__} has no optimizer="em": use "profile".')

    @abc.abstractmethod
    def task_covariance(self) -> tf.Tensor:
        """C, [T, T]."""

    @abc.abstractmethod
    def noise_covariance(self) -> tf.Tensor:
        """Sigma, [T, T]."""

    def task_correlation(self) -> tf.Tensor:
        """C as correlations, [T, T]."""
        return correlation_from_covariance(self.task_covariance())

    def noise_correlation(self) -> tf.Tensor:
        """Sigma as correlations, [T, T]."""
        return correlation_from_covariance(self.noise_covariance())

    def _uncached(self) -> JointPosterior:
        return self.posterior(PrecomputeCacheType.NOCACHE)

    @property
    def _num_inputs(self) -> int:
        """D."""
        return int(self.data[0].shape[1])

    def _inputs(self, Xnew: Any) -> tf.Tensor:
        return checks.inputs(Xnew, self._num_inputs)

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

    def predict_y(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """
        Mean and (co)variance of new observations at `Xnew`, in the shapes of :meth:`predict_f`.

        Noise is added where the two points are the same observation, correlated between tasks.
        """
        return self._uncached().predict_y(self._inputs(Xnew), full_cov, full_output_cov)

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
        Xnew, Ynew = checks.scored_data(data, self._num_inputs, self.num_tasks)
        return self._uncached().predict_log_density(Xnew, Ynew, full_cov, full_output_cov)

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
        Xnew, Ynew = checks.known_data(Xnew, Ynew, self._num_inputs, self.num_tasks)
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

    @staticmethod
    def saved_arguments(saved: Document, reader: Reader, given: Given) -> dict[str, Any]:
        """Arguments of the constructor that :meth:`to_document` has kept."""
        return {
            "data": saved_data(saved, reader),
            "kernel": reader.module(saved["kernel"], "kernel", given["kernel"]),
            "mean_function": reader.module(
                saved["mean_function"], "mean_function", given["mean_function"]
            ),
            "task_names": saved["task_names"],
        }
