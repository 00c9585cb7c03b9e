"""Which columns are constant to rounding."""

import numpy as np
import pytest

from gpflow_cool.chain.variation import is_constant


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ten_units_of_rounding_are_none(dtype, size):
    eps = np.finfo(dtype).eps
    low = np.array([size, size, -size, -size])
    high = np.array([1 + 9 * eps, 1 + 12 * eps, -1 + 9 * eps, -1 + 12 * eps]) * size
    assert is_constant(low, high, dtype).tolist() == [True, False, True, False]


def test_zeros_are_constant_and_the_smallest_number_beside_zero_is_not():
    assert is_constant(0.0, 0.0)
    assert not is_constant(0.0, 1e-300)
    assert not is_constant(-1e-300, 1e-300)
