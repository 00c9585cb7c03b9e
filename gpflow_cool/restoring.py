"""Models out of what :mod:`gpflow_cool.saving` has written of them."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import RegressionData
from gpflow.config import default_float
from gpflow.inducing_variables import InducingPoints
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction

from .models.competitors import ConvMT, IndependentGPs
from .models.cool import CoolMTGP
from .models.exact import KroneckerMTGP
from .models.sparse import SparseCoolMTGP
from .specification import CustomModule, Reader

Given = Mapping[str, Any]
"""The user's own kernel and mean function, None where the saved one is wanted."""


def restore_model(
    saved: Mapping[str, Any],
    reader: Reader,
    *,
    kernel: Kernel | None = None,
    mean_function: MeanFunction | None = None,
) -> Any:
    """
    A model, as it was saved.

    :param kernel: Takes the saved values; needed for a kernel of the user's own class.
    :param mean_function: Likewise.
    """
    if saved["float"] != np.dtype(default_float()).name:
        raise CustomModule(
            f"it was saved in {saved['float']}, but GPflow works in"
            f" {np.dtype(default_float()).name}: call"
            f" gpflow.config.set_default_float(np.{saved['float']}) first"
        )
    given = {"kernel": kernel, "mean_function": mean_function}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there was to say was said at the first construction
        model = RESTORERS[saved["class"]](saved, reader, given)
    reader.restore_flags()
    return model


def data_of(saved: Mapping[str, Any], reader: Reader) -> RegressionData:
    """X and Y; as variables where they may change."""
    parts = []
    for name, may_change in zip("XY", saved["data_may_change"], strict=True):
        array = reader.array(saved["data"][name])
        if may_change:
            array = tf.Variable(array, trainable=False, shape=[None, array.shape[1]])
        parts.append(array)
    return parts[0], parts[1]


def common(saved: Mapping[str, Any], reader: Reader, given: Given) -> dict[str, Any]:
    """Arguments that the constructors of the joint models share."""
    return {
        "data": data_of(saved, reader),
        "kernel": reader.module(saved["kernel"], "kernel", given["kernel"]),
        "mean_function": reader.module(
            saved["mean_function"], "mean_function", given["mean_function"]
        ),
        "task_names": saved["task_names"],
    }


def restore_cool(saved: Mapping[str, Any], reader: Reader, given: Given) -> CoolMTGP:
    options = {key: saved["options"][key] for key in ("learning", "engine")}
    model = CoolMTGP(**common(saved, reader, given), **options)
    model.b, model.sigma2 = reader.parameter(saved["b"]), reader.parameter(saved["sigma2"])
    restore_joint(model, saved, reader)
    return model


def restore_sparse(saved: Mapping[str, Any], reader: Reader, given: Given) -> SparseCoolMTGP:
    points = reader.parameter(saved["inducing_points"])
    inducing_variable = InducingPoints(points.numpy())
    inducing_variable.Z = points
    options = {key: saved["options"][key] for key in ("learning", "chunk_rows")}
    model = SparseCoolMTGP(
        **common(saved, reader, given), inducing_variable=inducing_variable, **options
    )
    model.b, model.sigma2 = reader.parameter(saved["b"]), reader.parameter(saved["sigma2"])
    return model


def restore_exact(saved: Mapping[str, Any], reader: Reader, given: Given) -> KroneckerMTGP:
    model = KroneckerMTGP(**common(saved, reader, given))
    model.signal = reader.module(saved["signal"], "covariance")
    model.noise = reader.module(saved["noise"], "covariance")
    restore_joint(model, saved, reader)
    return model


def restore_joint(
    model: CoolMTGP | KroneckerMTGP, saved: Mapping[str, Any], reader: Reader
) -> None:
    """Set what the joint models share besides the arguments of their constructors."""
    model.task_column = int(saved["task_column"])
    if model.completions is not None:
        model.completions.assign(reader.array(saved["completions"]))
        model.has_drawn = bool(saved["has_drawn"])


def restore_independent(saved: Mapping[str, Any], reader: Reader, given: Given) -> IndependentGPs:
    first = reader.module(saved["models"][0]["kernel"], "kernel", given["kernel"])
    model = IndependentGPs(data_of(saved, reader), first, task_names=saved["task_names"])
    model.models = [
        # A custom kernel is copied for each task, and has been given its values in the copy.
        restore_cool(part, reader, {**given, "kernel": given["kernel"] and each.kernel})
        for part, each in zip(saved["models"], model.models, strict=True)
    ]
    return model


def restore_conv(saved: Mapping[str, Any], reader: Reader, given: Given) -> ConvMT:
    model = ConvMT(
        data_of(saved, reader),
        reader.module(saved["kernel"], "kernel", given["kernel"]),
        num_inducing=int(saved["num_inducing"]),
        task_names=saved["task_names"],
    )
    reader.assign(model.model, saved["paths"], "model")
    return model


RESTORERS: dict[str, Callable[[Mapping[str, Any], Reader, Given], Any]] = {
    "CoolMTGP": restore_cool,
    "KroneckerMTGP": restore_exact,
    "SparseCoolMTGP": restore_sparse,
    "IndependentGPs": restore_independent,
    "ConvMT": restore_conv,
}
