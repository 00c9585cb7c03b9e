"""
What data is cast, and which training data is refused, in which words.

An error must come before work, see `refusals.refused`.
"""

import re
from decimal import Decimal
from typing import NamedTuple

import gpflow
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from gpflow.kernels import SquaredExponential
from numpy.testing import assert_allclose, assert_array_equal
from refusals import D, N, T, exactly, refused

from gpflow_cool import CoolMTGP, checks

# What is cast -------------------------------------------------------------------------------------

INTEGERS = np.array([[3, 1, 4], [1, 5, 9], [2, 6, 5], [3, 5, 8], [9, 7, 9], [3, 2, 3]])

CASTS = {
    "lists": lambda Y: Y.tolist(),
    "tuples": lambda Y: tuple(map(tuple, Y.tolist())),
    "float32": lambda Y: Y.astype(np.float32),
    "integers": lambda Y: Y.astype(np.int32),
    "booleans": lambda Y: Y > 4,
    "objects": lambda Y: Y.astype(object),
    "decimals": lambda Y: np.vectorize(lambda y: Decimal(int(y)))(Y),
    "fortran": np.asfortranarray,
    "frame": lambda Y: pd.DataFrame(Y),
    "nullable frame": lambda Y: pd.DataFrame(Y.astype(int)).convert_dtypes(),
    "mixed frame": lambda Y: pd.DataFrame(
        {"a": Y[:, 0] > 4, "b": Y[:, 1].astype(int), "c": Y[:, 2]}
    ),
    "tensor": lambda Y: tf.constant(Y),
    "float32 tensor": lambda Y: tf.constant(Y, tf.float32),
    "integer tensor": lambda Y: tf.constant(Y, tf.int64),
    "parameter": lambda Y: gpflow.Parameter(Y),
    "unmasked": lambda Y: np.ma.masked_array(Y, mask=False),
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_training_data_is_cast(X, cast):
    given = cast(INTEGERS.astype(float))
    plain = np.array(given).astype(float)
    inputs, targets = checks.regression_data([(10 * X).astype(np.float32).tolist(), given])
    assert inputs.dtype == targets.dtype == tf.float64
    assert_array_equal(inputs, (10 * X).astype(np.float32))
    assert_array_equal(targets, plain)


@pytest.mark.parametrize("name", ["lists", "float32", "integers", "nullable frame"])
def test_models_of_data_that_is_cast(X, name):
    ours = CoolMTGP((X.tolist(), CASTS[name](INTEGERS.astype(float))), SquaredExponential())
    theirs = CoolMTGP((X, INTEGERS.astype(float)), SquaredExponential())
    for actual, expected in zip(ours.predict_y(X), theirs.predict_y(X), strict=True):
        assert_array_equal(actual, expected)


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_test_data_is_cast(cast):
    given = cast(INTEGERS.astype(float))
    for read in [checks.inputs, checks.targets]:
        tensor = read(given, T, tf.float64)
        assert tensor.dtype == tf.float64
        assert_array_equal(tensor, np.array(given).astype(float))


def test_predictions_from_data_that_is_cast(model):
    Xnew, Ynew = INTEGERS[:, :D], INTEGERS
    plain = Xnew.astype(float), Ynew.astype(float)
    frames = pd.DataFrame(Xnew).convert_dtypes(), pd.DataFrame(Ynew)
    for actual, expected in [
        (model.predict_f(Xnew.tolist()), model.predict_f(plain[0])),
        (model.predict_y(Xnew), model.predict_y(plain[0])),
        (model.predict_log_density(frames), model.predict_log_density(plain)),
        (model.predict_f_given(*frames), model.predict_f_given(*plain)),
    ]:
        for one, other in zip(actual, expected, strict=True):
            assert_array_equal(one, other)


def test_a_named_tuple_is_a_pair(X, Y):
    class Split(NamedTuple):
        X: np.ndarray
        Y: np.ndarray

    assert_array_equal(CoolMTGP(Split(X, Y), SquaredExponential()).data[1], Y)


def test_starting_values_are_cast_and_broadcast(X, Y):
    model = CoolMTGP((X, Y), SquaredExponential(), b=[1, 2, 3], sigma2=np.float32(0.5))
    assert_allclose(model.b, [1.0, 2.0, 3.0], rtol=1e-12)
    assert_allclose(model.sigma2, [0.5, 0.5, 0.5], rtol=1e-12)
    again = CoolMTGP((X, Y), SquaredExponential(), b=model.b, sigma2=tf.constant([1.0, 2.0, 4.0]))
    assert_allclose(again.b, [1.0, 2.0, 3.0], rtol=1e-12)
    assert_allclose(again.sigma2, [1.0, 2.0, 4.0], rtol=1e-12)


def test_variables_are_kept(X, Y):
    variables = tf.Variable(X, trainable=False), tf.Variable(Y, trainable=False)
    model = CoolMTGP(variables, SquaredExponential())
    assert model.data[0] is variables[0] and model.data[1] is variables[1]


# Training data that is refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, what",
    [
        (np.ones((2, 3)), "ndarray"),
        (None, "NoneType"),
        ({"X": 1, "Y": 2}, "dict"),
        (pd.DataFrame({"a": [1.0], "b": [2.0]}), "DataFrame"),
        ((1, 2, 3), "tuple of 3 parts"),
        ([np.ones((2, 2))], "list of 1 parts"),
        (tf.ones((2, 2)), "EagerTensor"),
    ],
    ids=str,
)
def test_data_must_be_a_pair(data, what):
    text = f"data must be the pair (X, Y), shapes [N, D] and [N, T], but it is of type {what}."
    refused(exactly(text), data)


def test_one_dimensional_data(X, Y):
    start = "Y has shape (6,), but a matrix is needed"
    refused(exactly(f"{start}: the tasks are the columns of Y. Pass Y[:, None]."), (X, Y[:, 0]))
    start = "X has shape (6,), but a matrix is needed"
    refused(exactly(f"{start}: the inputs are the columns of X. Pass X[:, None]."), (X[:, 0], Y))
    refused(r"Y has shape \(6,\).*Pass Y\[:, None\]", (X, pd.Series(Y[:, 0])))
    refused(r"Y has shape \(6,\).*Pass Y\[:, None\]", (X, tf.Variable(Y[:, 0], trainable=False)))


@pytest.mark.parametrize("shape", [(), (1, N, T)])
def test_data_of_other_ranks(X, shape):
    text = (
        f"Y has shape {shape}, but a matrix is needed: the tasks are the columns of Y. Pass one row"
        " per data point."
    )
    refused(exactly(text), (X, np.zeros(shape)))


@pytest.mark.parametrize(
    "X_shape, Y_shape, start",
    [
        ((0, D), (0, T), "X has shape (0, 2)"),
        ((N, 0), (N, T), "X has shape (6, 0)"),
        ((N, D), (0, T), "Y has shape (0, 3)"),
        ((N, D), (N, 0), "Y has shape (6, 0)"),
    ],
)
def test_empty_data(X_shape, Y_shape, start):
    refused(
        re.escape(start) + ", but a model needs at least one row and one column: the ",
        (np.zeros(X_shape), np.zeros(Y_shape)),
    )


def test_mismatched_rows(X, Y):
    text = "X has 6 rows and Y has 4: row n of Y must hold all the targets observed at row n of X."
    refused(exactly(text), (X, Y[:4]))
    growing = [tf.Variable(A, shape=[None, A.shape[1]], trainable=False) for A in (X, Y[:4])]
    refused(exactly(text), growing)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wrap", [np.asarray, np.ndarray.tolist, pd.DataFrame, tf.constant])
def test_what_is_not_finite_is_named(X, Y, value, wrap):
    Y[3, 1] = value
    if np.isinf(value):  # NaN in Y is a target that is missing
        text = f"Y[3, 1] is {value}. Every entry must be finite: pass NaN where it is not known."
        refused(exactly(text), (X, wrap(Y)))
    X[5, 0] = value
    refused(rf"^X\[5, 0\] is {value}\. Every entry must be finite", (wrap(X), Y))


def test_all_that_is_not_finite_is_counted(X, Y):
    Y[2:4, 1] = np.inf
    refused(r"^Y\[2, 1\] is inf \(2 such entries in all\)\. Every entry", (X, Y))
    refused(r"^Y\[2, 1\] is inf \(2 such", (X, tf.Variable(Y, trainable=False)))
    X[2:4, 1] = np.nan
    refused(r"^X\[2, 1\] is nan \(2 such entries in all\)\. Every entry", (X, Y))


def test_tasks_that_were_never_observed(X, Y):
    observed = np.isfinite([[1.0, np.nan, 2.0], [np.nan, np.nan, 3.0]])
    text = (
        "Target 'b' is NaN in every row: a task that was never observed cannot be learnt. Leave it"
        " out."
    )
    with pytest.raises(ValueError, match=exactly(text)):
        checks.check_observed(observed, [f"Target {name!r}" for name in "abc"])
    checks.check_observed(observed[:, [0, 2]], ["a", "c"])
    Y[:, 2] = np.nan
    refused(r"^Y\[:, 2\] is NaN in every row: a task that was never observed", (X, Y))


def test_whatever_says_missing_is_missing(X, Y):
    masked = np.ma.masked_array(Y, mask=False)
    masked[4, 2] = np.ma.masked
    nullable = pd.DataFrame(INTEGERS).convert_dtypes()
    nullable.iloc[1, 0] = pd.NA
    with_none = Y.tolist()
    with_none[0][1] = None
    for targets, where in [(masked, (4, 2)), (nullable, (1, 0)), (with_none, (0, 1))]:
        observed = CoolMTGP((X, targets), gpflow.kernels.SquaredExponential()).observed
        assert np.argwhere(~observed).tolist() == [list(where)]
        refused(r"^X\[.* is nan\. Every entry", (targets, Y))


def test_numbers_that_cannot_be_squared(X, Y):
    Y[1, 2] = -1e200
    text = "Y[1, 2] is -1e+200, whose square is too large for float64: rescale the column."
    refused(exactly(text), (X, Y))
    Y[1, 2] = 1e30
    assert np.isfinite(checks.matrix(Y, "Y", "")).all()
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        refused(r"^Y\[1, 2\] is 1e\+30, whose square is too large for float32", (X, Y))


@pytest.mark.parametrize(
    "value, reason",
    [
        (np.array([["a", "b"]]), "its type is <U1"),
        (np.array([["1", "2"]]), "its type is <U1"),
        ([["1", 2]], "its type is <U21"),
        (np.array([[b"1"]]), "its type is |S1"),
        (np.array([[1.0 + 1j]]), "its type is complex128"),
        (np.array([["2026-11-16"]], dtype="datetime64[D]"), "its type is datetime64[D]"),
        (pd.DataFrame({"a": [1.0], "b": ["x"]}), "entry [0, 1] is 'x'"),
        (pd.DataFrame({"a": pd.Categorical(["x"])}), "entry [0, 0] is 'x'"),
        (np.array([[1.0, "2"]], dtype=object), "entry [0, 1] is '2'"),
        (tf.constant([["a"]]), "entry [0, 0] is b'a'"),
        ([[1, 2], [3]], "setting an array element with a sequence"),
        (np.array([[SquaredExponential()]]), "float() argument must be"),
        (pd.DataFrame({"a": [pd.Timestamp("2026-11-16")], "b": [1.0]}), "float() argument must be"),
        (None, "it is of type NoneType"),
        (SquaredExponential(), "it is of type SquaredExponential"),
        ({"a": 1.0}, "it is of type dict"),
        ((y for y in [1.0]), "it is of type generator"),
        (tf.sparse.from_dense([[1.0]]), "it is of type SparseTensor"),
        (tf.ragged.constant([[1.0], [2.0, 3.0]]), "it is of type RaggedTensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_number(X, model, value, reason):
    advice = ". Pass an array, a nested list or a data frame of real numbers."
    start = re.escape(f"Y cannot be read as numbers ({reason}")
    refused(start + r".*\)" + re.escape(advice), (X, value))
    if not isinstance(value, tf.Tensor):
        with pytest.raises(
            ValueError, match=re.escape(f"Xnew cannot be read as numbers ({reason}")
        ):
            model.predict_f(value)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_variables_of_another_type(X, dtype):
    variable = tf.Variable(INTEGERS.astype(dtype), trainable=False)
    text = (
        f"Y is a tf.Variable of {np.dtype(dtype).name}, but GPflow works in float64: create the"
        " variable in that type, or change GPflow's with gpflow.config.set_default_float."
    )
    refused(exactly(text), (X, variable))


@pytest.mark.parametrize("shape", [[None, None], None])
def test_variables_whose_columns_may_change(X, Y, shape):
    shape = tf.TensorShape(shape)
    refused(
        exactly(
            f"Y is a tf.Variable of shape {shape}. Its rows may change, its columns may not: create"
            " it with shape=[None, 3]."
        ),
        (X, tf.Variable(Y, shape=shape, trainable=False)),
    )
    refused(r"^X is a tf.Variable .*shape=\[None, 2\]", (tf.Variable(X, shape=shape), Y))


def test_variables_that_training_would_change(X, Y):
    text = (
        "Y is a trainable tf.Variable, so that an optimizer would change the data: create it with"
        " trainable=False."
    )
    refused(exactly(text), (X, tf.Variable(Y)))


def test_building_inside_a_graph(Y):
    @tf.function
    def build(X):
        CoolMTGP((X, Y), SquaredExponential())

    with pytest.raises(
        ValueError, match="X is a tensor without a value, because the model is built"
    ):
        build(tf.ones([N, D], tf.float64))
