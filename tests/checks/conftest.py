"""Data, and a model of it, that the tests of `checks` share."""

import pytest
from gpflow.kernels import SquaredExponential
from refusals import D, N, T

from gpflow_cool import CoolMTGP


@pytest.fixture
def X(rng):
    return rng.uniform(size=(N, D))


@pytest.fixture
def Y(rng):
    return rng.normal(size=(N, T))


@pytest.fixture
def model(X, Y):
    return CoolMTGP((X, Y), SquaredExponential())
