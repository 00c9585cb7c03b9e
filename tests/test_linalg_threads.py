"""Small matrices get one thread, and others what they had."""

from concurrent.futures import ThreadPoolExecutor

import gpflow
import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from gpflow_cool import CoolMTGP
from gpflow_cool.linalg import SMALL_MATRIX, threads_for


@pytest.fixture
def num_threads():
    """How many threads each BLAS has; two, whatever the environment says."""
    blas = ThreadpoolController().select(user_api="blas")
    with blas.limit(limits=2):
        yield lambda: {library["num_threads"] for library in blas.info()}


@pytest.mark.parametrize("size, expected", [(1, 1), (SMALL_MATRIX, 1), (SMALL_MATRIX + 1, 2)])
def test_small_matrices_get_one_thread(num_threads, size, expected):
    assert num_threads() == {2}
    with threads_for(size):
        assert num_threads() == {expected}
        with threads_for(1):
            assert num_threads() == {1}
        assert num_threads() == {expected}
    assert num_threads() == {2}


def test_errors_leave_it_as_it_was(num_threads):
    with pytest.raises(ZeroDivisionError), threads_for(1):
        1 / 0  # noqa: B018
    assert num_threads() == {2}


def test_a_fit_of_few_rows_has_one_thread(num_threads, rng):
    seen = []

    class Look(gpflow.keras.tf_keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(num_threads())

    X = rng.normal(size=(8, 1))
    CoolMTGP((X, np.hstack([X, X**2])), gpflow.kernels.Matern52()).fit(callbacks=[Look()])
    assert seen and all(found == {1} for found in seen)
    assert num_threads() == {2}


def test_other_threads_leave_it_as_it_is(num_threads):
    """They may overlap: the last one to leave would restore what the first one had set."""

    def inside():
        with threads_for(1):
            return num_threads()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(inside).result() == {2}
