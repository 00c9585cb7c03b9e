"""A fitted estimator that several test files look at."""

import pandas as pd
import pytest
from tables import NASTY, make_data

from gpflow_cool.table.estimator import CoolMTGPRegressor


@pytest.fixture(scope="session")
def small_regressor():
    X, Y = make_data(2)
    inputs = pd.DataFrame(X, columns=["depth", "lamp"])
    return CoolMTGPRegressor("matern32", ard=True).fit(
        inputs, pd.DataFrame(Y, columns=[NASTY, "b"])
    )
