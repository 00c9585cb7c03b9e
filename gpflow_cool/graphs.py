"""
Compiled functions that leave nothing behind when they are gone.

TensorFlow and TensorFlow Probability each keep what a graph was traced with for ever, and with it
the graph, 0.4 to 0.9 megabytes for one of ours:

* The gradient of every `tf.custom_gradient`, as in the softplus of GPflow's positive parameters, is
  registered under a name of its own.
* Results of bijectors are cached as long as they exist. The cache holds the arguments, these hold
  their graph, and the graph holds the results.

A graph and its operations hold each other, so that only Python's search for such cycles frees it.
Among old objects Python searches when a quarter of all are new, which takes hundreds of fits: to
Python a graph is a few objects, and their memory is TensorFlow's. We ask for it earlier.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tensorflow.python.framework import ops  # the only home of the registry of gradients

unconverted = tf.autograph.experimental.do_not_convert
"""For code of ours: it has no branches for AutoGraph to convert, and to look for them is slow."""

KNOWN_PACKAGES = ("gpflow", "gpflow_cool", "tensorflow", "tensorflow_probability")

MORE_GRAPHS = 16
"""So many more graphs than after the last search for cycles cause another, of some 0.3 seconds."""


class Graphs:
    """The graphs of ours that exist, in use or not."""

    def __init__(self) -> None:
        self.existing: weakref.WeakSet[tf.Graph] = weakref.WeakSet()
        self.in_use = 0

    def add(self, graph: tf.Graph) -> None:
        """Count a graph; if there are many more than before, let Python free what nobody uses."""
        self.in_use = min(self.in_use, len(self.existing))
        self.existing.add(graph)
        if len(self.existing) >= self.in_use + MORE_GRAPHS:
            gc.collect()
            self.in_use = len(self.existing)


GRAPHS = Graphs()


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


def compiled(function: Callable[..., Any], *signature: Any) -> Callable[..., Any]:
    """
    A function as a graph, for one signature. The graph must not be differentiated from outside:
    what is registered for that is removed, once the graph is complete.

    :param signature: A `tf.TensorSpec` or an example of each argument.
    """
    traced = tf.function(function, autograph=False).get_concrete_function(*signature)
    registry = getattr(ops.gradient_registry, "_registry", {})  # private: it may move
    for graph in graphs_within(traced.graph):
        for name in custom_gradients(graph):
            registry.pop(name, None)
    forget_cached_results(set(map(id, graphs_within(traced.graph))))
    GRAPHS.add(traced.graph)
    return traced


def graphs_within(graph: tf.Graph) -> Iterator[tf.Graph]:
    """A graph, and those of the loops and branches inside it."""
    yield graph
    for inner in getattr(graph, "_functions", {}).values():
        if getattr(inner, "graph", None) is not None:
            yield from graphs_within(inner.graph)


def custom_gradients(graph: tf.Graph) -> Iterator[str]:
    """Names under which a graph has registered gradients of its own."""
    for operation in graph.get_operations():
        if operation.type == "IdentityN":
            name = operation.node_def.attr["_gradient_op_type"].s.decode()
            if name.startswith("CustomGradient-"):
                yield name


def forget_cached_results(graphs: set[int]) -> None:
    """Remove from the bijectors' cache what belongs to graphs, given by their ids."""
    storage = getattr(getattr(tfp.bijectors.Bijector, "_cache", None), "storage", {})
    for key in list(storage.keys()):
        if id(getattr(key(), "graph", None)) in graphs:
            storage.pop(key, None)
