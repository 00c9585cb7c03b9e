"""Set before TensorFlow and matplotlib are imported by any test; fixtures that all tests share."""

import gc
import os
from contextlib import ExitStack

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Matrices are tiny here, and two workers share the cores: waking BLAS threads costs 20 times more.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import matplotlib
import numpy as np
import pytest
import quick_protocols  # noqa: F401
from check_shapes import disable_check_shapes
from quick_tensorflow import bijectors_without_cache, graphs_as_traced

matplotlib.use("Agg")

WHOLE = {"integration", "properties", "table", "selection", "report"}
"""
Folders whose tests call whole fits. Shapes are not checked there: tests of what they call do that,
and it takes a fifth of the time.
"""

AS_SEEN = {"test_pages.py", "test_tutorials.py"}
"""They show what a user would see."""

GRAPHS = {"test_graphs.py", "test_cool_graphs.py", "test_estimator_in_use.py"}
"""They look at graphs, at what stays of them, or at what runs on which device."""


@pytest.fixture
def rng():
    """A generator that starts afresh, at the same seed, in every test."""
    return np.random.default_rng(20261116)


@pytest.fixture(scope="session")
def small_regressor():
    """A fitted estimator that tests of tables and of the report look at."""
    import pandas as pd
    from tables import NASTY, make_data

    from gpflow_cool.table.estimator import CoolMTGPRegressor

    X, Y = make_data(2)
    inputs = pd.DataFrame(X, columns=["depth", "lamp"])
    return CoolMTGPRegressor("matern32", ard=True).fit(
        inputs, pd.DataFrame(Y, columns=[NASTY, "b"])
    )


def pytest_collection_modifyitems(items):
    """Whole commands, studies, tutorials, worker processes and random data sets are slow."""
    for item in items:
        if {"integration", "properties"} & set(item.path.parts):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """
    Let Python search for unused objects among new ones only, and less often: TensorFlow's modules
    are a million objects that stay, and to look at them again and again takes a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """
    Run a test with its fixtures; whole fits without checks of shapes, and without what TensorFlow
    does for programs that run long.
    """
    parts = set(item.path.parts)
    with ExitStack() as stack:
        if WHOLE & parts:
            stack.enter_context(disable_check_shapes())
        if not (AS_SEEN | GRAPHS) & parts:
            stack.enter_context(bijectors_without_cache())
        if WHOLE & parts and not (AS_SEEN | GRAPHS) & parts:
            stack.enter_context(graphs_as_traced())
        return (yield)
