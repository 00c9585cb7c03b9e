"""
Writing a model to a folder: JSON and NumPy arrays, nothing that is executed when it is read.

A model is known by its interface here, so that it can offer `save`; :mod:`gpflow_cool.persistence`
reads the folder.
"""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import InducingPoints

from .archive import Content, check_place, write_folder
from .specification import Writer


def save(thing: Any, folder: str | os.PathLike[str], *, force: bool = False) -> Path:
    """
    Save a model, with its data, to a folder that :func:`gpflow_cool.load` reads.

    Parameters, their bounds and whether they are trainable are kept; priors are not, and a warning
    says so. The folder is written whole or not at all.

    >>> model.save("model")  # doctest: +SKIP
    >>> same = gpflow_cool.load("model")  # doctest: +SKIP

    :param thing: A model of this package, or a fitted estimator.
    :param folder: A new folder; those above it are made.
    :param force: Replace a model that was saved there. No other folder is ever replaced.
    """
    check_place(folder, force)  # before the work
    return write_folder(folder, content_of(thing), force=force)


def content_of(thing: Any) -> Content:
    """What is written of a model or a fitted estimator."""
    writer = Writer()
    describe = getattr(thing, "_describe", None)  # an estimator's own
    document = model_document(thing, writer) if describe is None else describe(writer)
    if writer.with_priors:
        warnings.warn(
            f"Priors are not saved, but {writer.with_priors} of the parameters have one:"
            " will be the same, training after loading will not, unless you set them again.",
            stacklevel=3,
        )
    return Content({**document, "parameters": writer.parameters}, writer.arrays)


def model_document(model: Any, writer: Writer) -> dict[str, Any]:
    """A model as plain data, its arrays handed to the writer."""
    name = type(model).__name__
    if name not in PARTICULARS or not type(model).__module__.startswith(__package__ + "."):
        raise ValueError(
            f"{name} cannot be saved, only {', '.join(PARTICULARS)} and a fitted CoolMTGPRegressor"
            " can."
        )
    rows = getattr(model, "rows", None)
    X, Y = model.data if rows is None else rows.arrays()
    return {
        "class": name,
        "float": np.dtype(X.dtype.as_numpy_dtype).name,
        "task_names": list(model.task_names),
        "data": {"X": writer.array("X", X), "Y": writer.array("Y", Y)},
        "data_may_change": [isinstance(part, tf.Variable) for part in (X, Y)],
        **PARTICULARS[name](model, writer),
    }


def joint_particulars(model: Any, writer: Writer) -> dict[str, Any]:
    completions = {}
    if model.completions is not None:  # C and Sigma are recovered from them
        completions = {
            "completions": writer.array("completions", model.completions),
            "has_drawn": bool(model.has_drawn),
        }
    return {
        **completions,
        "task_column": int(model.task_column),
        "kernel": writer.module(model.kernel, "kernel"),
        "mean_function": writer.module(model.mean_function, "mean_function"),
    }


def cool_particulars(model: Any, writer: Writer) -> dict[str, Any]:
    return {
        **joint_particulars(model, writer),
        "options": {"learning": model.learning, "engine": model.engine},
        "b": writer.parameter(model.b),
        "sigma2": writer.parameter(model.sigma2),
    }


def sparse_particulars(model: Any, writer: Writer) -> dict[str, Any]:
    points = model.inducing_variable
    if type(points) is not InducingPoints:
        raise ValueError(
            f"Inducing variables of class {type(points).__name__} cannot be saved, only"
            " InducingPoints can."
        )
    return {
        "kernel": writer.module(model.kernel, "kernel"),
        "mean_function": writer.module(model.mean_function, "mean_function"),
        "inducing_points": writer.parameter(points.Z),
        "options": {"learning": model.learning, "chunk_rows": int(model.rows.chunk_rows)},
        "b": writer.parameter(model.b),
        "sigma2": writer.parameter(model.sigma2),
    }


def exact_particulars(model: Any, writer: Writer) -> dict[str, Any]:
    return {
        **joint_particulars(model, writer),
        "signal": writer.module(model.signal, "covariance"),
        "noise": writer.module(model.noise, "covariance"),
    }


def independent_particulars(model: Any, writer: Writer) -> dict[str, Any]:
    return {"models": [model_document(part, writer) for part in model.models]}


def conv_particulars(model: Any, writer: Writer) -> dict[str, Any]:
    return {
        "kernel": writer.module(model.model.kernel.kernel, "kernel"),
        "num_inducing": int(model.model.inducing_variable.num_inducing),
        "paths": writer.paths(model.model),
    }


PARTICULARS: dict[str, Callable[[Any, Writer], dict[str, Any]]] = {
    "CoolMTGP": cool_particulars,
    "KroneckerMTGP": exact_particulars,
    "SparseCoolMTGP": sparse_particulars,
    "IndependentGPs": independent_particulars,
    "ConvMT": conv_particulars,
}
"""What a class has besides data and names."""
