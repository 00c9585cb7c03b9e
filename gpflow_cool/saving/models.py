"""
Models to folders and back.

A class that can be saved derives from :class:`Saveable`, defines `to_document` and its inverse
`from_document`, and is registered with :func:`saveable`. Loading looks up the name of the class
among those that are registered; nothing in a folder is ever executed.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from gpflow.base import RegressionData
from gpflow.config import default_float
from typing_extensions import Self

from .folder import Content, check_place, write_folder
from .modules import CustomModule, Reader, Writer

Document = Mapping[str, Any]
"""A model as plain data, with the names of its arrays and the numbers of its parameters."""

Given = Mapping[str, Any]
"""The user's own kernel and mean function, None where the saved one is wanted."""

REGISTRY: dict[str, type["Saveable"]] = {}


class Saveable:
    """A model or estimator that can be saved to a folder."""

    def to_document(self, writer: Writer) -> dict[str, Any]:
        """The object as plain data; the writer gets its arrays and parameters."""
        raise NotImplementedError

    @classmethod
    def from_document(cls, saved: Document, reader: Reader, given: Given) -> Self:
        """The inverse of :meth:`to_document`."""
        raise NotImplementedError

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> Path:
        """
        Save the model, with its data, to a folder that :func:`gpflow_cool.load` reads.

        Parameters, their bounds and whether they are trainable are saved. Priors are not, and a
        warning says so. The folder holds JSON and NumPy arrays, and is written whole or not at all.

        >>> model.save("model")  # doctest: +SKIP
        >>> same = gpflow_cool.load("model")  # doctest: +SKIP

        :param folder: A new folder; missing folders above it are made.
        :param force: Replace a model that was saved there. No other folder is ever replaced.
        """
        check_place(folder, force)  # before the work
        return write_folder(folder, content_of(self), force=force)


Class = TypeVar("Class", bound=type[Saveable])


def saveable(cls: Class) -> Class:
    """Register a class, so that its objects can be saved and loaded."""
    REGISTRY[cls.__name__] = cls
    return cls


def content_of(thing: Saveable) -> Content:
    """What is written for a model or a fitted estimator."""
    writer = Writer()
    document = document_of(thing, writer)
    if writer.with_priors:
        warnings.warn(
            f"Priors are not saved, and {writer.with_priors} of the parameters have one. After"
            " loading, predictions are the same. Training is not, unless you set the priors again.",
            stacklevel=3,
        )
    if writer.custom:
        parts = ", ".join(f"{what} of the {kind}" for kind, what in writer.custom.items())
        arguments = ", ".join(f"{kind}=..." for kind in writer.custom)
        warnings.warn(
            f"Code is not saved, and {parts} is not GPflow's. To load the model, pass an object of"
            f" the same structure: gpflow_cool.load(folder, {arguments}).",
            stacklevel=3,
        )
    return Content({**document, "parameters": writer.parameters}, writer.arrays)


def document_of(thing: Any, writer: Writer) -> dict[str, Any]:
    """An object of a registered class as plain data, with the name of its class."""
    name = type(thing).__name__
    if REGISTRY.get(name) is not type(thing):
        raise ValueError(f"{name} cannot be saved, only {', '.join(sorted(REGISTRY))} can.")
    return {"class": name, **thing.to_document(writer)}


def restore(saved: Document, reader: Reader, given: Given) -> Any:
    """The inverse of :func:`document_of`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user saw them when the model was first made
        thing = REGISTRY[saved["class"]].from_document(saved, reader, given)
    reader.restore_flags()
    return thing


def plain(value: Any) -> Any:
    """A setting as JSON; None for what JSON cannot express, as a generator of random numbers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return value if isinstance(value, bool | int | float | str) else None


# What models share ---------------------------------------------------------------------------


def data_document(
    data: RegressionData, task_names: tuple[str, ...], writer: Writer
) -> dict[str, Any]:
    """Data and names of tasks."""
    X, Y = data
    return {
        "float": np.dtype(X.dtype.as_numpy_dtype).name,
        "task_names": list(task_names),
        "data": {"X": writer.array("X", X), "Y": writer.array("Y", Y)},
        "data_may_change": [isinstance(part, tf.Variable) for part in (X, Y)],
    }


def saved_data(saved: Document, reader: Reader) -> RegressionData:
    """X and Y; as variables where they were variables."""
    if saved["float"] != np.dtype(default_float()).name:
        raise CustomModule(
            f"it was saved in {saved['float']}, but GPflow works in"
            f" {np.dtype(default_float()).name}: call"
            f" gpflow.config.set_default_float(np.{saved['float']}) first"
        )
    parts = []
    for name, may_change in zip("XY", saved["data_may_change"], strict=True):
        array = reader.array(saved["data"][name])
        if may_change:
            array = tf.Variable(array, trainable=False, shape=[None, array.shape[1]])
        parts.append(array)
    reader.num_columns = max(part.shape[1] for part in parts)
    return parts[0], parts[1]
