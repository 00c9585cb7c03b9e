"""
Tables that do not fit into memory: a `pyarrow.dataset`, read in chunks, once per pass.

The first pass finds how columns are scaled and draws some rows, with which a kernel is chosen and
trained. :class:`~gpflow_cool.SparseCoolMTGP` goes on with all rows, and keeps sums over them.
"""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel
from tqdm.auto import tqdm

from .. import checks
from ..callbacks import in_notebook
from ..models.sparse import SparseCoolMTGP
from ..systems import DEFAULT_POINTS
from ..systems.features import choose_inducing_points
from ..systems.rows import Chunk, Rows
from ..systems.summary import Moments, Sample
from ..training.remarks import warn_of_remarks
from ..variation import is_constant
from .choices import Training, choose_model, seed_of_fit, train_model, with_input_names
from .columns import Scaling, TargetForm
from .files import TableError
from .parquet import place_of, read_batches, stream_columns
from .transforms import Transform, Warping

CHUNK_ROWS = 2048
SAMPLE_ROWS = 1000
"""Rows with which a kernel is chosen, and its lengthscales are found before all rows are read."""

CANDIDATE_ROWS = 5000
"""Rows among which the inducing points are chosen."""


class StreamRows(Rows):
    """
    Rows of a dataset in chunks; scaled, once `scalings` is set.

    :param progress: Whether each pass shows a bar, in a terminal or a notebook.
    """

    def __init__(
        self,
        dataset: Any,
        columns: tuple[Sequence[str], Sequence[str]],
        *,
        progress: bool = False,
    ) -> None:
        self.dataset, self.columns, self.progress = dataset, columns, progress
        self.scalings: tuple[Scaling, Scaling] | None = None
        self.num_inputs, self.num_tasks = map(len, columns)
        self.chunk_rows, self.dtype = CHUNK_ROWS, tf.float64
        self.num_passes = 0
        self.total = int(dataset.count_rows())

    def arrays(self) -> Chunk:
        """Raise: a stream may not fit into memory."""
        raise ValueError("The rows are a stream, which is not kept: model.keep_sums() keeps sums.")

    def first(self) -> Chunk | None:
        pairs = self.batches()
        return next(((tf.constant(X), tf.constant(Y)) for X, Y in pairs), None)

    def chunks(self, num_shards: int = 1, shard: int = 0) -> Iterator[Chunk]:
        self.num_passes += 1
        bar = tqdm(
            total=self.total,
            unit="row",
            unit_scale=True,
            desc=f"pass {self.num_passes}",
            leave=False,
            disable=(False if in_notebook() else None) if self.progress else True,
        )
        with bar:
            for number, (X, Y) in enumerate(self.batches()):
                bar.update(len(X))
                if number % num_shards == shard:
                    yield tf.constant(X), tf.constant(Y)

    def batches(self) -> Iterator[tuple[AnyNDArray, AnyNDArray]]:
        """X and Y of each chunk."""
        names = [*self.columns[0], *self.columns[1]]
        for batch in read_batches(self.dataset, names, self.chunk_rows):
            if batch.num_rows:
                parts = [as_numbers(column) for column in batch.columns]
                values = np.stack(parts, axis=1)
                pair = values[:, : self.num_inputs], values[:, self.num_inputs :]
                yield pair if self.scalings is None else self.scaled(*pair)

    def scaled(self, X: AnyNDArray, Y: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
        """Rows as the model sees them."""
        assert self.scalings is not None
        inputs, targets = self.scalings
        return inputs.standardised(X), targets.standardised(Y)


def as_numbers(column: Any) -> AnyNDArray:
    """A column of a batch in float64, NaN where it is null."""
    return np.asarray(column.cast("float64").to_numpy(zero_copy_only=False), dtype=np.float64)


class Scanned(NamedTuple):
    """What the first pass over a dataset finds: how columns are scaled, and some rows."""

    scalings: tuple[Scaling, Scaling]
    sample: tuple[AnyNDArray, AnyNDArray]
    """Rows drawn at random, as the model sees them."""


def scan(rows: StreamRows, standardize: bool) -> Scanned:
    """Check all rows, find their scale and draw some: one pass."""
    moments = [Moments(rows.num_inputs), Moments(rows.num_tasks)]
    sample, count = Sample(CANDIDATE_ROWS), 0
    for chunk in rows.chunks():
        X, Y = (part.numpy() for part in chunk)
        for part, columns, names in zip(moments, (X, Y), rows.columns, strict=True):
            check_cells(rows.dataset, columns, names, count)
            part.add(columns)
        sample.add(X, Y)
        count += len(X)
    if count < 2:
        raise TableError(f"The dataset has {count} rows: a model needs at least two.")
    constants = (np.inf, 1.0)
    inputs, targets = (
        scaling_of(part, constant, standardize)
        for part, constant in zip(moments, constants, strict=True)
    )
    X, Y = sample.parts
    return Scanned((inputs, targets), (inputs.standardised(X), targets.standardised(Y)))


def check_cells(dataset: Any, cells: AnyNDArray, names: Sequence[str], before: int) -> None:
    """
    Raise if a cell is not finite, with its place.

    :param before: Number of rows before these.
    """
    bad = np.argwhere(~np.isfinite(cells))
    if len(bad):
        row, column = bad[0]
        what = "the cell is empty" if np.isnan(cells[row, column]) else "the number is infinite"
        raise TableError(
            f"{place_of(dataset, before + int(row))}, column {names[column]!r}: {what}. A stream"
            " has no gaps: drop the row, or fill the cell. A table in memory may have some."
        )


def scaling_of(moments: Moments, constant_scale: float, standardize: bool) -> Scaling:
    """The scaling of columns; see :func:`.columns.standardising`."""
    if not standardize:
        return Scaling(np.zeros_like(moments.mean), np.ones_like(moments.mean))
    deviation = np.sqrt(moments.squares / moments.count)
    constant = is_constant(moments.low, moments.high)
    centre = np.where(constant, moments.low, moments.mean)
    return Scaling(centre, np.where(constant, constant_scale, deviation))


def fit_dataset(
    estimator: Any, dataset: Any, targets: Any, callbacks: Sequence[Any] | None, tensorboard: Any
) -> Any:
    """Train an estimator on a dataset; see :meth:`.CoolMTGPRegressor.fit`."""
    if isinstance(targets, dict) or not np.ndim(targets) <= 1 or targets is None:
        raise ValueError("Pass the names of the targets as y: fit(dataset, ['heat', 'cold']).")
    if estimator.target_transform != "none" or estimator.missing_inputs != "refuse":
        raise ValueError(
            "A dataset is streamed as it is: target_transform and missing_inputs are for tables in"
            " memory. Transform its columns, or fill its gaps, beforehand."
        )
    columns = stream_columns(dataset, targets)
    progress = bool(estimator.verbose)
    rows = StreamRows(dataset, columns, progress=progress)
    found = scan(rows, estimator.standardize)
    rows.scalings = found.scalings
    form = TargetForm("series" if isinstance(targets, str) else "frame", tuple(columns[1]))
    started = train_on_sample(estimator, found.sample, form)
    model = sparse_model(estimator, rows, found.sample, started.model.kernel, form)
    with_input_names(model, columns[0])
    estimator.history_ = model.fit(
        restarts=estimator.restarts,
        seed=seed_of_fit(estimator.random_state),
        callbacks=callbacks,
        tensorboard=tensorboard,
        verbose=estimator.verbose,
    )
    if estimator.history_.interrupted:
        raise KeyboardInterrupt(estimator.history_.message)
    model.keep_sums()
    estimator.chain_, estimator.kernel_choice_ = model, started.table
    estimator._index, estimator._encoding = None, None
    estimator._inputs = found.scalings[0]
    estimator._targets = Warping((Transform(),) * len(form.names), found.scalings[1])
    estimator.n_features_in_ = len(columns[0])
    estimator.feature_names_in_ = np.array(columns[0], dtype=object)
    warn_of_remarks(estimator.history_.message, stacklevel=3)
    return estimator._set_model(model, form)


def train_on_sample(
    estimator: Any, sample: tuple[AnyNDArray, AnyNDArray], form: TargetForm
) -> Training:
    """The exact model of some rows, whose kernel all rows start from."""
    make = partial(choose_model, learning=estimator.learning, task_names=form.names, inducing=0)
    few = tuple(part[:SAMPLE_ROWS] for part in shuffled(sample))
    return train_model(
        few,
        estimator.kernel,
        estimator.ard,
        lambda data, kernel, **_: make(data, kernel),
        inducing=0,
        restarts=0,
        seed=0,
        callbacks=(),
        verbose=0,
        tensorboard=None,
    )


def shuffled(parts: tuple[AnyNDArray, AnyNDArray]) -> list[AnyNDArray]:
    """Rows in random order, always the same."""
    order = np.random.default_rng(0).permutation(len(parts[0]))
    return [part[order] for part in parts]


def sparse_model(
    estimator: Any,
    rows: Rows,
    sample: tuple[AnyNDArray, AnyNDArray],
    kernel: Kernel,
    form: TargetForm,
) -> SparseCoolMTGP:
    """The model of all rows, not trained yet."""
    points = DEFAULT_POINTS if estimator.inducing is None else estimator.inducing
    if checks.whole_number(points, "inducing") == 0:
        raise ValueError("inducing=0: the exact model cannot read a stream. Leave inducing out.")
    kernel = copy.deepcopy(kernel)
    Z = choose_inducing_points(sample[0], kernel, points)
    return SparseCoolMTGP(rows, kernel, Z, learning=estimator.learning, task_names=form.names)
