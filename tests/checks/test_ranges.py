"""Which columns are constant to rounding, and which vary too little or too much."""

import numpy as np
import pytest

from gpflow_cool.variation import check_ranges, is_constant


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


@pytest.mark.parametrize(
    "dtype, small, large", [(np.float64, 1e-49, 1e49), (np.float32, 1e-15, 1e15)]
)
def test_ranges_whose_powers_are_numbers_pass(dtype, small, large):
    zeros = np.zeros(4)
    check_ranges(zeros, np.array([small, 1.0, large, 0.0]), dtype)


@pytest.mark.parametrize(
    "low, high, dtype, text",
    [
        (
            0.0,
            1e-60,
            np.float64,
            r"^Y\[:, 1\] varies by 1e-60 only, .* for float64: stand",
        ),
        (1e-45, 1e-45 + 1e-55, np.float64, r"^Y\[:, 1\] varies by 1e-55 only"),
        (0.0, 1e-17, np.float32, r"^Y\[:, 1\] varies by 1e-17 only, .* for float32"),
        (-1e60, 0.0, np.float64, r"^Y\[:, 1\] has an entry of size 1e\+60, .* too large"),
    ],
)
def test_other_ranges_are_refused(low, high, dtype, text):
    with pytest.raises(ValueError, match=text):
        check_ranges(np.array([0.0, low]), np.array([1.0, high]), dtype)


def test_tiny_constants_have_no_range():
    check_ranges(np.array([1e-200, 0.0]), np.array([1e-200, 0.0]), np.float64)
