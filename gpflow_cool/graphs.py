"""Functions as TensorFlow graphs: one per process, or one per model."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

unconverted = tf.autograph.experimental.do_not_convert
"""For code of ours: it has no branches for AutoGraph to convert, and to look for them is slow."""

KNOWN_PACKAGES = ("gpflow", "gpflow_cool", "tensorflow", "tensorflow_probability")


def unconverted_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """
    A method of a model or a posterior that users wrap in `tf.function`, which AutoGraph leaves
    alone; unless the kernel or the mean function is a user's own, and may branch on tensors.
    """
    plain = unconverted(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = plain if all(map(is_known, (self.kernel, self.mean_function))) else method
        return chosen(self, *args, **kwargs)

    return call


def is_known(module: Any) -> bool:
    """Whether all of a kernel or a mean function comes from packages that we know."""
    parts = (module, *getattr(module, "submodules", ()))
    return all(type(part).__module__.split(".")[0] in KNOWN_PACKAGES for part in parts)


def shared_graph(*signature: tf.TensorSpec) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Decorator of a function of tensors alone: one graph for all models of a process, traced at its
    first call.

    Tracing takes as long as a fit of few rows, and TensorFlow takes tens of microseconds for every
    operation outside of a graph.

    :param signature: Of the arguments, with None for sizes.
    """
    return lambda function: tf.function(function, autograph=False, input_signature=signature)


def compiled(function: Callable[..., Any], *signature: Any) -> Callable[..., Any]:
    """
    A function as a graph, for one signature.

    :param signature: A `tf.TensorSpec` or an example of each argument.
    """
    return tf.function(function, autograph=False).get_concrete_function(*signature)
