"""SparseCoolMTGP: the chain on inducing points, for data of any size."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow import set_trainable
from gpflow.base import AnyNDArray, InputData, RegressionData, TensorData
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction

from .. import checks
from ..chain.starting import chain_parameters, check_offsets, fix_kernel_scale, warn_of_scales
from ..joint.kronecker import JointSolution
from ..joint.updating import new_rows
from ..saving.models import Document, Given, saveable
from ..saving.modules import Reader, Writer
from ..systems.features import InducingFeatures
from ..systems.rows import CHUNK_ROWS, ArrayRows, Chunk, Rows, make_rows
from ..systems.statistics import FeatureSystem, Statistics
from ..systems.streaming import RowSums
from ..systems.summary import Summary, check_chunk, summarise
from ..systems.summed import SummedRows, Witness
from .arguments import input_names
from .chain import ChainModel, check_chain_options, weight_variance_parameter

SHOWN_ROWS = 1000
"""Rows that `data` holds."""


@saveable
class SparseCoolMTGP(ChainModel):
    r"""
    :class:`gpflow_cool.CoolMTGP` for many rows, which it sees through M inducing points.

    .. math:: K \approx F F^\top, \qquad F = K_{nm} W, \qquad W W^\top = K_{mm}^{-1}

    The objective is that of CoolMTGP with :math:`F F^\top` for K, less
    :math:`\tfrac{1}{2} (b_t / \sigma^2_t) \, \mathrm{tr}(K - F F^\top)` for each task: the bound of
    Titsias (2009), applied to each task in turn. With inducing points at all rows it is that of
    CoolMTGP. It needs only sums over rows, so that an evaluation costs O(N M^2) and the memory of
    one chunk of rows, whatever N is. C and Sigma are recovered as in CoolMTGP.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import SparseCoolMTGP, choose_inducing_points
    >>> X = np.linspace(0, 1, 500)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
    >>> model = SparseCoolMTGP((X, Y), kernel, choose_inducing_points(X, kernel, 10))
    >>> mean, var = model.predict_f(X[:3])
    >>> np.abs(mean - Y[:3]).max() < 0.1
    True

    Every prediction of the model passes over the data once; those of its :meth:`posterior` do not.

    :param data: Inputs X [N, D] and targets Y [N, T], of which none may be missing: arrays, which
        are read where they are, so that `np.memmap` is fine; or a `tf.data.Dataset` of pairs
        (x, y), of rows or of chunks of rows, which must yield the same in every pass.
    :param kernel: Any GPflow kernel over the inputs, shared by all tasks.
    :param inducing_variable: Points [M, D], see :func:`gpflow_cool.choose_inducing_points`, which
        stay fixed; or a GPflow `InducingVariables`, which is trained if it is trainable.
    :param mean_function: Any GPflow mean function.
    :param learning: As for CoolMTGP, and so are `weight_prior`, `weight_variance`, `b`, `sigma2`
        and `task_names`.
    :param chunk_rows: Number of rows per chunk: memory grows with this times M.
    :param strategy: Spreads the passes over devices or machines, each of which reads its share of
        the chunks. Every worker builds the same model on the same data; see docs/scaling.md.

    `data` holds up to 1000 rows, drawn at random, for pictures and starting values.
    """

    def __init__(
        self,
        data: RegressionData | tf.data.Dataset | Rows,
        kernel: Kernel,
        inducing_variable: InducingVariables | TensorData,
        mean_function: MeanFunction | None = None,
        *,
        learning: str = "approximate",
        weight_prior: str = "scaled",
        weight_variance: TensorData | None = None,
        b: TensorData | None = None,
        sigma2: TensorData | None = None,
        chunk_rows: int = CHUNK_ROWS,
        strategy: tf.distribute.Strategy | None = None,
        task_names: Sequence[str] | None = None,
    ) -> None:
        self.strategy = checks.strategy(strategy)
        check_chain_options(learning, weight_prior, weight_variance)
        self.learning, self.weight_prior = learning, weight_prior
        rows = make_rows(data, chunk_rows)
        first = rows.first()
        if first is None:
            raise ValueError("The data has no rows: a tf.data.Dataset must yield some.")
        for part, name in zip(first, "XY", strict=True):
            check_chunk(part.numpy(), name, 0)
        has_names = not isinstance(data, Rows | tf.data.Dataset)
        user_data: Any = data if has_names else (None, None)
        names = checks.task_names(task_names, user_data, rows.num_tasks)
        super().__init__(first, kernel, mean_function, names)
        self.input_names = input_names(user_data[0])
        self.inducing_variable = as_inducing_variable(inducing_variable, rows.num_inputs)
        summary = self._take(rows)
        check_offsets(summary.scales, summary.mean_squares)
        self.b, self.sigma2 = chain_parameters(b, sigma2, summary.kernel_variance, self.scales)
        self.weight_variance = None
        if weight_prior == "scaled":
            self.weight_variance = weight_variance_parameter(
                weight_variance, self.num_tasks, learning
            )
        else:
            warn_of_scales(self.scales)
        fix_kernel_scale(kernel)

    def _take(self, rows: Rows) -> Summary:
        """Make these the rows of the model, if they are as they should be."""
        summary = summarise(rows, self._centred, self.features.diagonal, self.strategy)
        self._rows = rows
        self._num_rows, self._scales = summary.num_rows, summary.scales
        self._sample = summary.sample
        self.data = tuple(map(tf.constant, summary.sample.smallest(SHOWN_ROWS)))
        return summary

    def add_rows(self, X: InputData, Y: InputData) -> None:
        """
        Take rows into the model for good, at the end of the others. Nothing is trained: a
        :meth:`fit` that follows starts from the present parameters and inducing points.

        >>> import gpflow, numpy as np
        >>> from gpflow_cool import SparseCoolMTGP
        >>> X = np.linspace(0, 1, 500)[:, None]
        >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
        >>> kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
        >>> model = SparseCoolMTGP((X[:400], Y[:400]), kernel, X[::50])
        >>> model.add_rows(X[400:], Y[400:])
        >>> model.num_rows
        500

        Arrays are copied, and a `tf.data.Dataset` is continued. Arrays that are mapped from a file
        are refused. Posteriors made before do not know the rows. Where new rows lie far from all
        inducing points, choose these anew and build another model.

        :param X: [q, D].
        :param Y: [q, T], without missing targets.
        """
        X, Y = new_rows(X, Y, self._num_inputs, self.num_tasks, self.dtype)
        if Y.shape.rank != 2:
            raise ValueError(f"Ynew has shape {tuple(Y.shape)}: pass [q, {self.num_tasks}].")
        self._take(self.rows.with_more(X.numpy(), Y.numpy()))

    reads_chunks = True

    @property
    def rows(self) -> Rows:
        return self._rows

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @property
    def scales(self) -> AnyNDArray:
        return self._scales

    @property
    def features(self) -> InducingFeatures:
        return InducingFeatures(self.kernel, self.inducing_variable)

    @property
    def chunk_rows(self) -> int:
        """Number of rows per chunk."""
        return int(self.rows.chunk_rows)

    @property
    def num_inducing(self) -> int:
        """M."""
        return int(self.inducing_variable.num_inducing)

    def conditional_log_likelihoods(self) -> tf.Tensor:
        """The objective's terms, [T]: each task's bound given the tasks before it."""
        if not tf.executing_eagerly() and not is_in_memory(self.rows):
            raise ValueError(
                "Data that is read in chunks does not go into a tf.function: call this eagerly, and"
                " train with fit(), whose passes over the data keep no chunk."
            )
        return super().conditional_log_likelihoods()

    def _sums(self) -> tuple[tf.Tensor, Statistics]:
        """The whitening of the inducing variables, and sums over all rows that belong to it."""
        if isinstance(self.rows, SummedRows):
            with tf.init_scope():  # of a graph when it is traced
                self.rows.check(self._witness)
            return self.rows.W, self.rows.sums
        W = self.features.whitening(python_callback=True)
        sums = RowSums(self.features, self.mean_function, self.rows, self.strategy)
        return W, sums.statistics(W)

    def keep_sums(self) -> None:
        """
        Forget the rows, and keep their sums at the present parameters: one pass.

        The model then predicts without the rows, and is saved with the sums and the rows of `data`.
        :meth:`leave_one_out` gives the latter, each predicted from all the other rows. Where the
        parameters that the sums belong to have changed, calls are refused; a graph is when it is
        traced.
        """
        W, sums = self._sums()
        X, Y = (part.numpy() for part in self.data)
        self._rows = SummedRows(X, Y, self.chunk_rows, sums, W, self._witness)

    def _witness(self, X: tf.Tensor, Y: tf.Tensor) -> Witness:
        parts = self.features.variance(), self.features.cross(X), self._centred(X, Y)
        return Witness(*(part.numpy() for part in parts))

    def shown_chunks(self) -> Iterable[Chunk]:
        return [self.rows.arrays()] if isinstance(self.rows, SummedRows) else self.rows.chunks()

    def system(self, *, python_callback: bool = False) -> FeatureSystem:
        r"""
        What the inducing points tell of the rows: one pass over the data.

        With :math:`F^\top F = E \, \mathrm{diag}(\lambda) E^\top`, what takes covariances with
        inducing points to the eigenbasis is :math:`W E \, \mathrm{diag}(\lambda)^{1/2}`.
        """
        W, sums = self._sums()
        system = FeatureSystem(sums, python_callback=python_callback)
        system.U = tf.matmul(W, system.E * tf.sqrt(system.spectrum.lam))
        return system

    def joint_solution(self) -> JointSolution:
        return JointSolution(*(tf.cast(part, self.dtype) for part in super().joint_solution()))

    saved_options = ("learning", "weight_prior", "chunk_rows")

    def to_document(self, writer: Writer) -> dict[str, Any]:
        points = self.inducing_variable
        if type(points) is not InducingPoints:
            raise ValueError(
                f"Inducing variables of class {type(points).__name__} cannot be saved, only"
                " InducingPoints can."
            )
        document = super().to_document(writer) | {"inducing_points": writer.parameter(points.Z)}
        if isinstance(self.rows, SummedRows):
            W, sums = self._sums()  # which checks that they belong to these parameters
            document["scales"] = writer.array("scales", self.scales)
            document["whitening"] = writer.array("whitening", W.numpy())
            named = zip(Statistics._fields, sums, strict=True)
            document["sums"] = [writer.array(f"sums_{name}", part.numpy()) for name, part in named]
        return document

    @classmethod
    def saved_arguments(cls, saved: Document, reader: Reader, given: Given) -> dict[str, Any]:
        points = reader.parameter(saved["inducing_points"])
        inducing_variable = InducingPoints(points.numpy())
        inducing_variable.Z = points
        arguments = super().saved_arguments(saved, reader, given)
        return arguments | {"inducing_variable": inducing_variable}

    def restore_state(self, saved: Document, reader: Reader) -> None:
        super().restore_state(saved, reader)
        if "sums" not in saved:
            return
        sums = Statistics(*(tf.constant(reader.array(name)) for name in saved["sums"]))
        W = reader.array(saved["whitening"])
        X, Y = (part.numpy() for part in self.rows.arrays())
        self._rows = SummedRows(X, Y, self.chunk_rows, sums, W, self._witness)
        self._num_rows, self._scales = int(sums.num_rows), reader.array(saved["scales"])


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
    if checks.is_whole(value):
        raise ValueError(
            f"inducing_variable={value} is a number, but inducing points are needed: pass"
            f" choose_inducing_points(X, kernel, {value})."
        )
    Z = checks.matrix(value, "inducing_variable", "its rows are the inducing points")
    points = as_inducing_variable(InducingPoints(np.asarray(Z)), num_inputs)
    set_trainable(points, False)
    return points


def is_in_memory(rows: Any) -> bool:
    """Whether the rows may become constants of a graph."""
    return isinstance(rows, ArrayRows) and not isinstance(rows.X, np.memmap)
