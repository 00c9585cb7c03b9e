"""Set before TensorFlow and matplotlib are imported by any test; fixtures that all tests share."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Matrices are tiny here, and two workers share the cores: waking BLAS threads costs 20 times more.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import matplotlib
import numpy as np
import pytest
from check_shapes import disable_check_shapes

matplotlib.use("Agg")

WHOLE = {"integration", "properties", "table", "selection", "report"}
"""
Folders whose tests call whole fits. Shapes are not checked there: tests of what they call do that,
and it takes a fifth of the time.
"""


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run a test with its fixtures; those of whole fits without checks of shapes."""
    if WHOLE & set(item.path.parts):
        with disable_check_shapes():
            return (yield)
    return (yield)
