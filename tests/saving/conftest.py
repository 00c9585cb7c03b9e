"""Fixtures that the tests of saving share."""

import gpflow
import pytest

from gpflow_cool.models import CoolMTGP


@pytest.fixture
def data(rng):
    return rng.normal(size=[9, 2]), rng.normal(size=[9, 3])


@pytest.fixture
def model(data):
    return CoolMTGP(data, gpflow.kernels.SquaredExponential())
