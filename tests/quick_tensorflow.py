"""
What TensorFlow and TensorFlow Probability do for programs that run long, and tests wait for.

A test runs each of its graphs a few times, and then throws it away. Where a graph is optimised, and
where results of bijectors are looked up in a cache, tests that look at neither take a fifth longer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tensorflow as tf
from tensorflow_probability.python.internal.cache_util import BijectorCache


def compute(
    cache: BijectorCache, value: Any, name: str, name_of_inverse: str, **options: Any
) -> Any:
    """What the cache of a bijector would return, without looking it up."""
    return cache._invoke(value, name, options, {})


@contextmanager
def bijectors_without_cache() -> Iterator[None]:
    """Bijectors compute every value, and remember none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BijectorCache, "_lookup", compute)
        yield


@contextmanager
def graphs_as_traced() -> Iterator[None]:
    """Graphs run as they were traced: to optimise one takes as long as thirty runs of it."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        after = {"disable_meta_optimizer": before.get("disable_meta_optimizer", False)}
        tf.config.optimizer.set_experimental_options(after)
