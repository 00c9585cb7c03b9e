"""SparseCoolMTGP: the chain on inducing points, for data of any size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow import set_trainable
from gpflow.base import RegressionData, TensorData
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction
from gpflow.posteriors import PrecomputeCacheType
from gpflow.utilities import to_default_float
from typing_extensions import Self

from .. import checks
from ..chain.likelihood import LEARNING
from ..chain.recovery import MultitaskParameters, recover
from ..chain.starting import chain_parameters, fix_kernel_scale
from ..joint.kronecker import JointSolution, chain_task_basis, solve_joint, spectrum_log_evidence
from ..joint.leave_one_out import LeaveOneOut, leave_one_out_of_features
from ..joint.posteriors import CompleteDataPosterior
from ..lowrank.features import InducingFeatures
from ..lowrank.rows import CHUNK_ROWS, ArrayRows, check_chunk, make_rows, summarise
from ..lowrank.statistics import Decomposition, Statistics, decompose, statistics_log_likelihoods
from ..lowrank.streaming import RowSums
from ..saving.models import Document, Given, saveable
from ..saving.modules import Reader, Writer
from ..training.streamed import StreamedLoss
from .base import MultitaskModel


@saveable
class SparseCoolMTGP(MultitaskModel):
    r"""
    :class:`gpflow_cool.CoolMTGP` for many rows: they are seen through M inducing points.

    .. math:: K \approx F F^\top, \qquad F = K_{nm} L^{-\top}, \qquad L L^\top = K_{mm}

    The objective is that of CoolMTGP with :math:`F F^\top` for K, less
    :math:`\tfrac{1}{2} (b_t / \sigma^2_t) \, \mathrm{tr}(K - F F^\top)` for each task: the bound of
    Titsias (2009), a task at a time. With inducing points at all rows it is that of CoolMTGP. It
    needs sums over rows only, so that an evaluation costs O(N M^2) and memory is that of a chunk
    of rows, whatever N; C and Sigma are recovered as ever.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import SparseCoolMTGP, choose_inducing_points
    >>> X = np.linspace(0, 1, 500)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
    >>> model = SparseCoolMTGP((X, Y), kernel, choose_inducing_points(X, kernel, 10))
    >>> mean, var = model.predict_f(X[:3])
    >>> np.abs(mean - Y[:3]).max() < 0.1
    True

    Without a cache every prediction passes over the data: use :meth:`posterior`.

    :param data: Inputs X [N, D] and targets Y [N, T], of which none may be missing: arrays, which
        are read where they are, so that `np.memmap` is fine; or a `tf.data.Dataset` of pairs
        (x, y), of rows or of chunks of rows, which must yield the same in every pass.
    :param kernel: Any GPflow kernel over the inputs, shared by all tasks.
    :param inducing_variable: Points [M, D], see :func:`gpflow_cool.choose_inducing_points`, which
        stay where they are; or a GPflow `InducingVariables`, which is trained if it is trainable.
    :param mean_function: Any GPflow mean function.
    :param learning: "hierarchical" or "approximate", as for CoolMTGP.
    :param b: As for CoolMTGP, and so are `sigma2` and `task_names`.
    :param chunk_rows: Rows of a chunk: memory grows with this times M.
    :param strategy: Spreads the passes over devices or machines, each of which reads its share of
        the chunks; every worker builds the same model on the same data. See docs/scaling.md.

    `data` holds up to 1000 rows, drawn at random, for pictures and starting values.
    """

    def __init__(
        self,
        data: RegressionData | tf.data.Dataset,
        kernel: Kernel,
        inducing_variable: InducingVariables | TensorData,
        mean_function: MeanFunction | None = None,
        *,
        learning: str = "hierarchical",
        b: TensorData | None = None,
        sigma2: TensorData | None = None,
        chunk_rows: int = CHUNK_ROWS,
        strategy: tf.distribute.Strategy | None = None,
        task_names: Sequence[str] | None = None,
    ) -> None:
        self.strategy = strategy
        self.learning = checks.option(learning, "learning", LEARNING)
        rows = make_rows(data, chunk_rows)
        first = next(rows.chunks(), None)
        if first is None:
            raise ValueError("The data has no rows: a tf.data.Dataset must yield some.")
        for part, name in zip(first, "XY", strict=True):
            check_chunk(part.numpy(), name, 0)
        user_data = (None, None) if isinstance(data, tf.data.Dataset) else data
        names = checks.task_names(task_names, user_data, rows.num_tasks)
        super().__init__(first, kernel, mean_function, names)
        self.inducing_variable = as_inducing_variable(inducing_variable, rows.num_inputs)
        self.rows = rows
        summary = summarise(rows, self._centred, self.features.diagonal)
        self.num_rows, self.scales = summary.num_rows, summary.scales
        self.data = (to_default_float(summary.X), to_default_float(summary.Y))
        self.b, self.sigma2 = chain_parameters(b, sigma2, summary.kernel_variance, self.scales)
        fix_kernel_scale(kernel)

    def _centred(self, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        return Y - self.mean_function(X)

    @property
    def features(self) -> InducingFeatures:
        """What the model knows of a row."""
        return InducingFeatures(self.kernel, self.inducing_variable)

    @property
    def num_inducing(self) -> int:
        """M."""
        return int(self.inducing_variable.num_inducing)

    @property
    def objective_term_names(self) -> tuple[str, ...]:
        return self.task_names

    def objective_terms(self) -> tf.Tensor:
        return self.conditional_log_likelihoods()

    @check_shapes("return: [T]")
    def conditional_log_likelihoods(self) -> tf.Tensor:
        """The objective's terms: each task's bound given the tasks before it."""
        return statistics_log_likelihoods(
            self.statistics(), self.b, self.sigma2, learning=self.learning
        )

    def statistics(self) -> Statistics:
        """Sums over all rows at the present parameters, one pass over the data."""
        if not tf.executing_eagerly() and not is_in_memory(self.rows):
            raise ValueError(
                "Data that is read in chunks does not go into a tf.function: call this eagerly, and"
                " train with fit(), whose passes over the data keep no chunk."
            )
        return self._pass(self.features.factor())

    def _pass(self, L: tf.Tensor) -> Statistics:
        sums = RowSums(self.features, self.mean_function, self.rows, self.strategy)
        return sums.statistics(L)

    def profile(self) -> StreamedLoss:
        return StreamedLoss(self, solve=True)

    def streamed_loss(self) -> StreamedLoss:
        return StreamedLoss(self, solve=False)

    def multitask_parameters(
        self, correlation: str = "map", *, num_samples: int = 100, seed: int | None = None
    ) -> MultitaskParameters:
        """
        The joint model's B, C, Sigma and W, as :meth:`gpflow_cool.CoolMTGP.multitask_parameters`.
        """
        checks.option(correlation, "correlation", ["map", "monte_carlo"])
        checks.positive_integer(num_samples, "num_samples")
        known = decompose(self.statistics())
        parameters = self._recover(known, correlation, num_samples, checks.seed(seed))
        return MultitaskParameters(*map(to_default_float, parameters))

    def _recover(self, known: Decomposition, *options: Any) -> MultitaskParameters:
        b, sigma2 = tf.cast(self.b, tf.float64), tf.cast(self.sigma2, tf.float64)
        return recover(known.spectrum, b, sigma2, self.learning, *options)

    def task_covariance(self) -> tf.Tensor:
        """C, [T, T], recovered at the present parameters."""
        return self.multitask_parameters().C

    def noise_covariance(self) -> tf.Tensor:
        """Sigma, [T, T], recovered at the present parameters."""
        return self.multitask_parameters().Sigma

    @check_shapes("return: []")
    def log_marginal_likelihood(self) -> tf.Tensor:
        """Lower bound of the log evidence of the joint model at its present C and Sigma."""
        known = decompose(self.statistics())
        parameters = self._recover(known)
        sigma2 = tf.cast(self.sigma2, tf.float64)
        basis = chain_task_basis(parameters.W, parameters.B, sigma2)
        return to_default_float(spectrum_log_evidence(known.spectrum, basis))

    def joint_solution(self) -> JointSolution:
        r"""
        The joint model at the recovered C and Sigma, solved, for covariances with inducing points.

        With :math:`F^\top F = E \, \mathrm{diag}(\lambda) E^\top`, what stands for the eigenvectors
        of K is :math:`L^{-\top} E \, \mathrm{diag}(\lambda)^{1/2}`.
        """
        L = self.features.factor()
        known = decompose(self._pass(L))
        parameters = self._recover(known)
        basis = chain_task_basis(parameters.W, parameters.B, tf.cast(self.sigma2, tf.float64))
        lam = known.spectrum.lam
        U = tf.linalg.triangular_solve(L, known.E * tf.sqrt(lam), adjoint=True)
        solution = solve_joint(U, lam, known.spectrum.Yr, basis)
        return JointSolution(*map(to_default_float, solution))

    def leave_one_out(self) -> LeaveOneOut:
        """
        Mean, covariance and log density of every row, predicted from all the other rows.

        In closed form, at the present parameters: no refit, and the inducing points stay. The
        result has T^2 numbers a row.
        """
        solution, features = self.joint_solution(), self.features
        parts = [
            leave_one_out_of_features(
                solution, features.cross(X), features.diagonal(X), Y, self._centred(X, Y)
            )
            for X, Y in self.rows.chunks()
        ]
        return LeaveOneOut(*(tf.concat(part, axis=0) for part in zip(*parts, strict=True)))

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> CompleteDataPosterior:
        return CompleteDataPosterior(
            self.kernel,
            self.data,
            self.mean_function,
            self.joint_solution,
            precompute_cache=precompute_cache,
            cross_covariance=self.features.cross,
        )

    def to_document(self, writer: Writer) -> dict[str, Any]:
        points = self.inducing_variable
        if type(points) is not InducingPoints:
            raise ValueError(
                f"Inducing variables of class {type(points).__name__} cannot be saved, only"
                " InducingPoints can."
            )
        return super().to_document(writer) | {
            "inducing_points": writer.parameter(points.Z),
            "options": {"learning": self.learning, "chunk_rows": int(self.rows.chunk_rows)},
            "b": writer.parameter(self.b),
            "sigma2": writer.parameter(self.sigma2),
        }

    @classmethod
    def from_document(cls, saved: Document, reader: Reader, given: Given) -> Self:
        points = reader.parameter(saved["inducing_points"])
        inducing_variable = InducingPoints(points.numpy())
        inducing_variable.Z = points
        options = {key: saved["options"][key] for key in ("learning", "chunk_rows")}
        arguments = cls.saved_arguments(saved, reader, given)
        model = cls(inducing_variable=inducing_variable, **arguments, **options)
        model.b, model.sigma2 = reader.parameter(saved["b"]), reader.parameter(saved["sigma2"])
        return model


def as_inducing_variable(value: Any, num_inputs: int) -> InducingVariables:
    """Points as a GPflow inducing variable that is not trained; such a variable as it is."""
    if isinstance(value, InducingVariables):
        Z = getattr(value, "Z", None)
        if Z is not None and int(Z.shape[-1]) != num_inputs:
            raise ValueError(
                f"The inducing points have shape {tuple(Z.shape)}, but X has {num_inputs} columns:"
                f" pass [M, {num_inputs}]."
            )
        return value
    Z = checks.matrix(value, "inducing_variable", "one inducing point a row")
    points = as_inducing_variable(InducingPoints(np.asarray(Z)), num_inputs)
    set_trainable(points, False)
    return points


def is_in_memory(rows: Any) -> bool:
    """Whether the rows may become constants of a graph."""
    return isinstance(rows, ArrayRows) and not isinstance(rows.X, np.memmap)
