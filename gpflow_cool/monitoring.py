"""
Training seen in TensorBoard: curves of every number, pictures of the matrices and predictions.

`model.fit(tensorboard="logs/first")` writes it all. A hand-written loop uses GPflow's protocol:

>>> import gpflow
>>> from gpflow_cool.monitoring import tensorboard_tasks
>>> monitor = gpflow.monitor.Monitor(*tensorboard_tasks(model, "logs/first"))  # doctest: +SKIP
>>> for step in range(200):  # doctest: +SKIP
...     optimizer.minimize(model.training_loss, model.trainable_variables)
...     monitor(step)

Then run `tensorboard --logdir logs`. Give each run a folder of its own below `logs`: TensorBoard
draws runs of different folders in one chart, but cannot separate two runs in the same folder.

Nothing here needs a display. TensorBoard and matplotlib are imported when something is written.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, MeanAndVariance, RegressionData
from gpflow.monitor import MonitorTaskGroup, ScalarToTensorBoard, ToTensorBoard
from gpflow.utilities import parameter_dict

from . import checks
from .callbacks import Callback, Logs
from .joint.base_posterior import JointPosterior
from .joint.kronecker import JointSolution
from .joint.missing import ObservedSolution
from .joint.model import JointModel
from .joint.solved_posterior import task_matrices
from .kernels import entry_names
from .linalg import correlation_from_covariance
from .saving.files import writable_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CURVES = 50
"""Nobody reads more curves or pictures than this of one kind."""

QUARTILES = ("smallest", "quartile_1", "median", "quartile_3", "largest")

EVIDENCE_PERIOD = 10
"""The evidence is written every so many steps: it takes as long as a step of training."""

IMAGE_PERIOD = 100
"""Pictures are drawn every so many steps: they take a second."""

NUM_POINTS = 200
"""Number of inputs at which predictions are drawn."""


class TensorBoardTasks(NamedTuple):
    """Groups of tasks for `gpflow.monitor.Monitor(*tasks)`."""

    scalars: MonitorTaskGroup
    evidence: MonitorTaskGroup
    pictures: MonitorTaskGroup


def tensorboard_tasks(
    model: JointModel,
    log_dir: str | os.PathLike[str],
    *,
    period: int = 1,
    evidence_period: int = EVIDENCE_PERIOD,
    image_period: int = IMAGE_PERIOD,
) -> TensorBoardTasks:
    """
    Tasks that write a model's training to a folder for TensorBoard; see the head of this module.

    ====================  ======================================================================
    tag                   holds
    ====================  ======================================================================
    objective/            loss, exact joint log evidence; gradient norm if the loop passes it
    log_likelihood/NAME   each term of the objective: a task's conditional log likelihood
    b/NAME, sigma2/NAME   each entry of the parameters with one entry per task, by name
    weight_variance       prior variance of the weights between tasks
    kernel/...            each entry of the kernel's parameters, by the input's name if X is a data
                          frame; mean_function/... likewise
    matrices/             C, Sigma and both as correlations, as pictures
    predictions/NAME      a task's predictions with bands (f dark, y light), if there is one input
    ====================  ======================================================================

    A group of more than 50 curves is told by its smallest, median and largest number and the two
    quartiles, and of more than 50 tasks the first 50 are drawn.

    The terms of the objective are computed each time, which costs about as much as a step. A loop
    that knows them can pass them, `monitor(step, loss=loss, terms=terms)`, and `gradient_norm=...`
    as well. A monitor may also be the `step_callback` of `gpflow.optimizers.Scipy().minimize`.

    >>> import gpflow, numpy as np
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from gpflow_cool import CoolMTGP
    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> model = CoolMTGP((X, np.sin(6 * X)), gpflow.kernels.SquaredExponential())
    >>> with TemporaryDirectory() as folder:
    ...     monitor = gpflow.monitor.Monitor(*tensorboard_tasks(model, folder))
    ...     monitor(0)
    ...     len(list(Path(folder).rglob("events.out.tfevents.*"))) > 0
    True

    :param log_dir: Folder of this run; made if it is missing.
    :param period: Write loss, terms and parameters every so many steps.
    :param evidence_period: Write the evidence every so many steps.
    :param image_period: Draw every so many steps.
    """
    folder = writable_folder(log_dir, "log_dir")
    check_periods(period, evidence_period, image_period)
    close_writer_of_deleted(folder)
    evidence = ScalarToTensorBoard(
        str(folder), lambda **_: model.log_marginal_likelihood(), "objective/log_evidence"
    )
    return TensorBoardTasks(
        MonitorTaskGroup(ScalarsToTensorBoard(str(folder), model), period),
        MonitorTaskGroup(evidence, evidence_period),
        MonitorTaskGroup(PicturesToTensorBoard(str(folder), model), image_period),
    )


def check_periods(period: int, evidence_period: int, image_period: int) -> dict[str, int]:
    """The periods by their names, if each is a positive integer."""
    periods = {"period": period, "evidence_period": evidence_period, "image_period": image_period}
    return {name: checks.positive_integer(value, name) for name, value in periods.items()}


def close_writer_of_deleted(folder: Path) -> None:
    """Close GPflow's writer of a folder whose files were deleted: it would write to a lost file."""
    if str(folder) in ToTensorBoard.writers and not any(folder.glob("events.out.tfevents.*")):
        close_writer(folder)


def close_writer(folder: Path) -> None:
    """Close GPflow's writer of a folder; the next task makes a new one."""
    ToTensorBoard.writers.pop(str(folder)).close()


# Numbers -------------------------------------------------------------------------------------


class ScalarsToTensorBoard(ToTensorBoard):
    """Writes loss, terms of the objective, and every entry of every parameter."""

    def __init__(self, log_dir: str, model: JointModel) -> None:
        super().__init__(log_dir)
        self.model = model

    def run(
        self,
        *,
        loss: Any = None,
        terms: Any = None,
        gradient_norm: Any = None,
        **unused: Any,
    ) -> None:
        """
        :param loss: The loss, if it is known; computed from the terms if not.
        :param terms: The terms of the objective, if they are known.
        :param gradient_norm: Written if it is known.
        """
        model = self.model
        terms = model.objective_terms() if terms is None else terms
        loss = -(tf.reduce_sum(terms) + model.log_prior_density()) if loss is None else loss
        values = {"objective/loss": loss}
        if gradient_norm is not None:
            values["objective/gradient_norm"] = gradient_norm
        for name, term in zip(model.objective_term_names, np.asarray(terms), strict=True):
            values[f"log_likelihood/{name}"] = term
        write_scalars(few_curves({**values, **parameter_values(model)}), self.current_step)


def few_curves(values: Mapping[str, Any]) -> dict[str, float]:
    """
    Numbers by tag. A group with more than `MAX_CURVES` is told by its quartiles.

    >>> few_curves({"b/heat": 2.0, "b/wind": 3.0})
    {'b/heat': 2.0, 'b/wind': 3.0}
    >>> many = few_curves({f"b/task_{t}": float(t) for t in range(101)})
    >>> len(many), many["b/smallest"], many["b/median"], many["b/quartile_3"]
    (5, 0.0, 50.0, 75.0)
    """
    groups: dict[str, dict[str, float]] = {}
    for tag, value in values.items():
        groups.setdefault(tag.partition("/")[0], {})[tag] = float(value)
    few: dict[str, float] = {}
    for name, group in groups.items():
        if len(group) > MAX_CURVES:
            levels = np.quantile(list(group.values()), [0.0, 0.25, 0.5, 0.75, 1.0]).tolist()
            group = {f"{name}/{word}": x for word, x in zip(QUARTILES, levels, strict=True)}
        few.update(group)
    return few


def parameter_values(model: JointModel) -> dict[str, float]:
    """Every entry of every parameter of a model, by its tag."""
    values: dict[str, float] = {}
    for path, parameter in parameter_dict(model).items():
        array = parameter.numpy()
        inputs = entry_names(model.kernel, parameter, model.input_names)
        tags = parameter_tags(path, array.shape, model.task_names, inputs)
        values.update(zip(tags, np.ravel(array), strict=True))
    return values


def parameter_tags(
    path: str,
    shape: tuple[int, ...],
    task_names: Sequence[str],
    input_names: Sequence[str] | None = None,
) -> list[str]:
    """
    Tags of a parameter's entries: TensorBoard groups by what stands before the slash.

    >>> parameter_tags(".b", (2,), ("heat", "wind"))
    ['b/heat', 'b/wind']
    >>> parameter_tags(".mean_function.c", (2,), ("heat", "wind"))
    ['mean_function/c[heat]', 'mean_function/c[wind]']

    Entries of a kernel's parameter belong to inputs, even where there are as many tasks:

    >>> parameter_tags(".kernel.kernels[0].lengthscales", (2,), ("heat", "wind"))
    ['kernel/kernels[0].lengthscales[0]', 'kernel/kernels[0].lengthscales[1]']
    >>> parameter_tags(".kernel.lengthscales", (2,), ("heat", "wind"), ("height", "hour"))
    ['kernel/lengthscales[height]', 'kernel/lengthscales[hour]']

    :param input_names: Names of the entries, where they belong to inputs with names.
    """
    owner, _, name = path.lstrip(".").partition(".")
    if input_names is not None:
        entries = list(input_names)
    elif shape == (len(task_names),) and owner != "kernel":
        entries = list(task_names)
    else:
        entries = [",".join(map(str, where)) for where in np.ndindex(*shape)]
    if shape == ():
        return [f"{owner}/{name}" if name else owner]
    return [f"{owner}/{name}[{entry}]" if name else f"{owner}/{entry}" for entry in entries]


def write_scalars(values: Mapping[str, Any], step: tf.Tensor) -> None:
    """Write numbers in one record, ten times faster than one `tf.summary.scalar` for each."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb

    summary = Summary()
    for tag, value in values.items():
        summary.MergeFrom(scalar_pb(tag, float(value)))
    tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)


# Pictures ------------------------------------------------------------------------------------


class PicturesToTensorBoard(ToTensorBoard):
    """Draws C, Sigma, both correlations and, for one input, every task's predictions."""

    def __init__(self, log_dir: str, model: JointModel) -> None:
        super().__init__(log_dir)
        self.model = model

    def run(self, **unused: Any) -> None:
        posterior = self.model.posterior()  # one factorisation for all the pictures
        for tag, ax in draw_matrices(posterior.solution(), self.model.task_names):
            write_picture(tag, ax, self.current_step)
        if self.model.data[0].shape[1] == 1:
            for tag, ax in draw_predictions(self.model, posterior):
                write_picture(tag, ax, self.current_step)


def draw_matrices(
    solution: JointSolution | ObservedSolution, names: Sequence[str]
) -> Iterator[tuple[str, "Axes"]]:
    """Tags, and axes with a heat map of C, Sigma, and both as correlations."""
    from .plotting import plot_task_matrix  # not at the top: a model is imported without figures

    C, Sigma = task_matrices(solution)
    for letter, word, S in [("C", "task", C), ("Sigma", "noise", Sigma)]:
        R = correlation_from_covariance(S)
        ax, title = matrix_axes(names), f"{word} covariance {letter}"
        yield f"matrices/{letter}", plot_task_matrix(S, names, ax, title)
        ax, title = matrix_axes(names), f"{word} correlation"
        yield f"matrices/{letter}_correlation", plot_task_matrix(R, names, ax, title, limit=1.0)


def matrix_axes(names: Sequence[str]) -> "Axes":
    """Axes of a new figure with room for the cells and for the names of the tasks."""
    from .plotting import MAX_TASKS_WITH_NUMBERS

    cell = 0.45 if len(names) <= MAX_TASKS_WITH_NUMBERS else 0.2
    side = float(np.clip(cell * len(names) + 0.08 * max(map(len, names)) + 0.6, 2.9, 9.0))
    return new_axes(1.2 * side, side)


def new_axes(width: float, height: float) -> "Axes":
    """
    Axes of a new figure, in inches of a hundred pixels, with room for labels.

    TensorBoard shows pictures some 350 pixels wide and scales without smoothing: letters are
    readable only in a picture that is not much larger.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100, layout="compressed").subplots()


class Predictions(NamedTuple):
    """A posterior with its model's data, for :func:`gpflow_cool.plotting.plot_bands`."""

    data: RegressionData
    task_names: tuple[str, ...]
    predict_f: Callable[..., MeanAndVariance]
    predict_y: Callable[..., MeanAndVariance]


def draw_predictions(model: JointModel, posterior: JointPosterior) -> Iterator[tuple[str, "Axes"]]:
    """Tags, and axes with the predictions of each of the first tasks over the one input."""
    from .plotting import plot_bands

    predict = posterior.predict_f, posterior.predict_y
    predictions = Predictions(model.data, model.task_names, *predict)
    grid = input_grid(np.asarray(model.data[0]))
    for task, name in enumerate(model.task_names[:MAX_CURVES]):
        ax = plot_bands(predictions, grid, task, new_axes(4.4, 2.9), legend=False)
        yield f"predictions/{name}", ax


@check_shapes("X: [N, 1]", "return: [M, 1]")
def input_grid(X: AnyNDArray) -> AnyNDArray:
    """Points from a little before the first input to a little after the last."""
    margin = 0.05 * float(np.ptp(X)) or 1.0
    return np.linspace(X.min() - margin, X.max() + margin, NUM_POINTS)[:, None]


def write_picture(tag: str, ax: "Axes", step: tf.Tensor) -> None:
    """Write the figure of some axes, with no display and no `pyplot`."""
    buffer = BytesIO()
    ax.figure.canvas.print_figure(buffer, format="png")
    image = tf.io.decode_png(buffer.getvalue(), channels=3)
    tf.summary.image(tag, image[None], step=step)


# For fit -------------------------------------------------------------------------------------


class TensorBoardCallback(Callback):
    """
    Writes a fit to a folder for TensorBoard: what `fit(tensorboard=...)` uses.

    At the end it writes pictures and evidence once more, as one more step, for the parameters that
    the model is left with. Pass it as a callback to choose how often it writes.

    >>> from gpflow_cool.monitoring import TensorBoardCallback
    >>> callback = TensorBoardCallback("logs/first", image_period=20)  # doctest: +SKIP
    >>> model.fit("adam", callbacks=[callback])  # doctest: +SKIP

    See :func:`tensorboard_tasks` for what is written, and for the parameters.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        *,
        period: int = 1,
        evidence_period: int = EVIDENCE_PERIOD,
        image_period: int = IMAGE_PERIOD,
    ) -> None:
        self.folder = writable_folder(log_dir, "tensorboard")
        self.periods = check_periods(period, evidence_period, image_period)

    def on_train_begin(self, logs: Logs) -> None:
        self.shared = str(self.folder) in ToTensorBoard.writers  # with tasks of the user's own
        self.tasks = tensorboard_tasks(self.model._model, self.folder, **self.periods)
        self.num_steps = 0
        self.has_solution = False

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.num_steps = epoch + 1
        terms = [logs[f"terms/{name}"] for name in self.model.objective_term_names]
        self.tasks.scalars(
            epoch, loss=logs["loss"], terms=terms, gradient_norm=logs["gradient_norm"]
        )
        if np.isfinite(logs["loss"]):
            self.has_solution = True
            self.tasks.evidence(epoch)
            self.tasks.pictures(epoch)

    def on_train_end(self, logs: Logs) -> None:
        if self.has_solution:
            for task in [*self.tasks.evidence.tasks, *self.tasks.pictures.tasks]:
                task(self.num_steps)
        if not self.shared:
            close_writer(self.folder)
