"""
Keras callbacks, a progress bar and checkpoints, for models that are not Keras's own.

Callbacks see one step of an optimiser (an Adam step, an L-BFGS iteration) as an epoch of one batch,
and the model as a :class:`KerasView`. Those of Keras 3 and of tf_keras may be passed.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gpflow.base import AnyNDArray
from gpflow.models import GPModel
from gpflow.utilities import parameter_dict
from tqdm.auto import tqdm

from .saving.files import npz_bytes, write_whole

Logs = Mapping[str, float]

NO_KERAS_MODEL = (
    "Keras's ModelCheckpoint writes Keras models, which this is not: use"
    " gpflow_cool.callbacks.Checkpoint(path) instead."
)


REFUSED = {
    "ModelCheckpoint": NO_KERAS_MODEL,
    "BackupAndRestore": (
        "Keras's BackupAndRestore writes Keras models, which this is not: use"
        " gpflow_cool.callbacks.Checkpoint(path), and load_checkpoint(model, path) before fit."
    ),
    "TensorBoard": (
        "Keras's TensorBoard reads the layers of Keras models, which this has not: use"
        " fit(tensorboard=folder), or gpflow_cool.monitoring.TensorBoardCallback(folder)."
    ),
    "SwapEMAWeights": "Keras's SwapEMAWeights swaps weights of Keras models, which this is not.",
}
"""Callbacks of Keras that need a Keras model, and what to use instead."""


class KerasView:
    """
    What Keras callbacks ask of a model, answered by a GPflow model.

    Weights are the unconstrained variables that are trainable at the start. Any other attribute is
    that of the model.

    :param optimizer: The Keras optimizer that trains, if any; callbacks may set its learning rate.
    """

    def __init__(self, model: GPModel, optimizer: Any = None) -> None:
        self._model = model
        self._variables = model.trainable_variables  # once: looking them up takes milliseconds
        self.optimizer = optimizer

    @property
    def stop_training(self) -> bool:
        return bool(self._model.stop_training)

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self._model.stop_training = bool(value)

    def get_weights(self) -> list[AnyNDArray]:
        return [variable.numpy() for variable in self._variables]

    def set_weights(self, weights: Sequence[AnyNDArray]) -> None:
        for variable, value in zip(self._variables, weights, strict=True):
            variable.assign(value)

    def save(self, *_: Any, **__: Any) -> None:
        raise ValueError(NO_KERAS_MODEL)

    save_weights = save

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


HOOKS = (
    "set_model",
    "set_params",
    "on_train_begin",
    "on_train_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)


def check_callbacks(callbacks: Sequence[Any] | None) -> list[Any]:
    """Return a new list of the callbacks if each of them is a callback; None stands for none."""
    callbacks = () if callbacks is None else callbacks
    callbacks = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    for number, callback in enumerate(callbacks):
        if is_refused(callback):
            raise ValueError(f"callbacks[{number}]: {REFUSED[type(callback).__name__]}")
        if isinstance(callback, type) or not all(hasattr(callback, hook) for hook in HOOKS):
            raise ValueError(
                f"callbacks[{number}] is {callback!r}, which is not a Keras callback object: pass"
                " an instance of keras.callbacks.Callback, for example"
                " keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(logs))."
            )
    return callbacks


def is_refused(callback: Any) -> bool:
    """Whether a callback is one of Keras's own that need a Keras model."""
    kind = type(callback)
    return kind.__name__ in REFUSED and "keras" in kind.__module__


class CallbackList:
    """Calls Keras callbacks around a training run."""

    def __init__(
        self, callbacks: Sequence[Any], view: KerasView, params: Mapping[str, Any]
    ) -> None:
        self.callbacks = check_callbacks(callbacks)
        self.error: Exception | None = None
        """What a callback has raised: an error of its own, and no failure of training."""

        for callback in self.callbacks:
            callback.set_model(view)
            callback.set_params(dict(params))

    def _call(self, hook: str, *args: Any) -> None:
        try:
            for callback in self.callbacks:
                getattr(callback, hook)(*args)
        except Exception as error:
            self.error = error
            raise

    def train_begin(self) -> None:
        self._call("on_train_begin", {})

    def step_begin(self, step: int) -> None:
        self._call("on_epoch_begin", step, {})
        self._call("on_train_batch_begin", 0, {})

    def step_end(self, step: int, logs: Logs) -> dict[str, float]:
        """End a step; returns the logs with what callbacks have added to them."""
        self._call("on_train_batch_end", 0, dict(logs))
        logs = dict(logs)
        self._call("on_epoch_end", step, logs)
        return logs

    def train_end(self, logs: Logs) -> None:
        self._call("on_train_end", dict(logs))


class Callback:
    """
    A callback with nothing to do, in Keras's form, without importing Keras.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import CoolMTGP
    >>> class Losses(Callback):
    ...     def on_epoch_end(self, epoch, logs):
    ...         losses.append(logs["loss"])
    >>> losses = []
    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> model = CoolMTGP((X, np.sin(6 * X)), gpflow.kernels.SquaredExponential())
    >>> _ = model.fit("adam", steps=3, callbacks=[Losses()], verbose=0)
    >>> len(losses)
    3
    """

    model: KerasView
    params: Mapping[str, Any]

    def set_model(self, model: KerasView) -> None:
        self.model = model

    def set_params(self, params: Mapping[str, Any]) -> None:
        self.params = params

    def on_train_begin(self, logs: Logs) -> None: ...
    def on_train_end(self, logs: Logs) -> None: ...
    def on_epoch_begin(self, epoch: int, logs: Logs) -> None: ...
    def on_epoch_end(self, epoch: int, logs: Logs) -> None: ...
    def on_train_batch_begin(self, batch: int, logs: Logs) -> None: ...
    def on_train_batch_end(self, batch: int, logs: Logs) -> None: ...


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel, which shows a bar although it is no terminal."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython else False


class ProgressBar(Callback):
    """
    A bar with loss and gradient norm, and with the round where targets are missing. It is shown in
    a terminal or a notebook only.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import CoolMTGP
    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> model = CoolMTGP((X, np.sin(6 * X)), gpflow.kernels.SquaredExponential())
    >>> history = model.fit("adam", steps=2, callbacks=[ProgressBar()], verbose=0)
    >>> len(history.epoch)
    2
    """

    def on_train_begin(self, logs: Logs) -> None:
        self.bar = tqdm(
            total=self.params["epochs"],
            unit="step",
            desc=f"fit ({self.params['optimizer']})",
            disable=False if in_notebook() else None,
            dynamic_ncols=True,
        )

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        place = ""
        if "round" in logs:
            place = f"round {logs['round'] + 1:.0f} of {self.params['rounds']}, "
        self.bar.set_postfix_str(
            f"{place}loss {logs['loss']:.6g}, gradient {logs['gradient_norm']:.2g}", refresh=False
        )
        self.bar.update()

    def on_train_end(self, logs: Logs) -> None:
        if not self.model.stop_training:
            self.bar.total = self.bar.n  # fewer steps than allowed were enough
        self.bar.close()


class Checkpoint(Callback):
    """
    Write the parameters to a file whenever the loss is the best so far.

    The file is NumPy's npz, with one array per parameter under its path in the model. It is written
    whole or not at all. Read it with :func:`load_checkpoint`.

    >>> from gpflow_cool.callbacks import Checkpoint
    >>> model.fit(callbacks=[Checkpoint("best.npz")])  # doctest: +SKIP

    :param path: Must not exist yet, unless `overwrite`.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.overwrite = overwrite
        self.best = np.inf
        self._check_path()

    def _check_path(self) -> None:
        written = np.isfinite(self.best)
        if self.path.exists() and not (self.overwrite or written):
            raise ValueError(f"{self.path} exists already: choose another name, or overwrite=True.")
        if not self.path.parent.is_dir():
            raise ValueError(f"{self.path.parent} is not a folder: create it first.")

    def on_train_begin(self, logs: Logs) -> None:
        self._check_path()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if logs["loss"] < self.best:
            self.best = logs["loss"]
            values = {name: p.numpy() for name, p in checkpointed(self.model._model).items()}
            write_whole(self.path, npz_bytes(values))


def checkpointed(model: GPModel) -> dict[str, Any]:
    """Parameters by their paths, and what C and Sigma depend on where targets are missing."""
    completions = getattr(model, "completions", None)
    parameters = dict(parameter_dict(model))
    return parameters if completions is None else parameters | {".completions": completions}


def load_checkpoint(model: GPModel, path: str | os.PathLike[str]) -> None:
    """
    Set the parameters of a model to those of a :class:`Checkpoint`.

    >>> import gpflow, numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> from gpflow_cool import CoolMTGP
    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> first, second = (
    ...     CoolMTGP((X, np.sin(6 * X)), gpflow.kernels.SquaredExponential()) for _ in range(2)
    ... )
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "best.npz"
    ...     _ = first.fit("adam", steps=5, callbacks=[Checkpoint(path)], verbose=0)
    ...     load_checkpoint(second, path)
    >>> np.allclose(first.sigma2, second.sigma2)
    True
    """
    if not Path(path).is_file():
        raise ValueError(
            f"{path} is not a file: a Checkpoint writes one at the first step that lowers the loss."
            " Give the path that it was given."
        )
    parameters = checkpointed(model)
    with np.load(path, allow_pickle=False) as values:
        if set(values) != set(parameters):
            raise ValueError(
                f"{path} holds {sorted(values)}, but the model has {sorted(parameters)}: build the"
                " model with the same kernel, mean function and tasks."
            )
        for name, parameter in parameters.items():
            if not parameter.shape.is_compatible_with(values[name].shape):
                raise ValueError(
                    f"{path} holds {name} of shape {values[name].shape}, but the model's has shape"
                    f" {tuple(parameter.shape)}: build the model with as many tasks and inputs."
                )
        for name, parameter in parameters.items():
            parameter.assign(values[name])
