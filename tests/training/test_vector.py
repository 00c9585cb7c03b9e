"""Parameters as one vector: round trips and gradients, whatever their transform and shape."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import Parameter
from gpflow.utilities import positive, triangular
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_close

from gpflow_cool.chain.starting import NoiseFloor
from gpflow_cool.training.starts import is_admissible
from gpflow_cool.training.vector import (
    ParameterVector,
    assign,
    constrained,
    has_logarithm,
    log_slope,
    lower_bound,
    softplus_floor,
)

tfb = tfp.bijectors


def noise_floor():
    floor = NoiseFloor(tf.constant([1e-4, 0.3], tf.float64))
    return Parameter([0.7, 0.5], transform=tfb.Chain([floor, positive(lower=0.0)]))


def bounded():
    low, high = np.float64(0.2), np.float64(3.0)
    return Parameter([0.9, 2.2], transform=tfb.Sigmoid(low, high))


def ordered():
    """Increasing and positive: an entry's bound depends on the entries before it."""
    return Parameter([0.5, 1.1, 4.0], transform=tfb.Chain([tfb.Cumsum(), tfb.Softplus()]))


PARAMETERS = {
    "softplus_scalar": lambda: Parameter(0.8, transform=positive()),
    "softplus_vector": lambda: Parameter([0.1, 2.0, 30.0], transform=positive()),
    "shifted": lambda: Parameter([1.1, 1.7], transform=positive(lower=1.0)),
    "softplus_low": lambda: Parameter([0.5, 2.0], transform=tfb.Softplus(low=np.float64(0.1))),
    "noise_floor": noise_floor,
    "exp": lambda: Parameter([[0.4, 3.0], [1.0, 0.01]], transform=tfb.Exp()),
    "identity": lambda: Parameter([-2.0, 0.0, 5.0]),
    "sigmoid": bounded,
    "triangular": lambda: Parameter([[1.0, 0.0], [-0.4, 0.6]], transform=triangular()),
    "ordered": ordered,
    "matrix_of_one": lambda: Parameter([[1.5]], transform=triangular()),
}

BOUNDS = {
    "softplus_scalar": 0.0,
    "softplus_vector": np.zeros(3),
    "shifted": np.ones(2),
    "softplus_low": np.full(2, 0.1),
    "noise_floor": np.array([1e-4, 0.3]),
}
"""Of those whose variable is not their logarithm already."""


def all_parameters():
    return [make() for make in PARAMETERS.values()]


@pytest.mark.parametrize("kind", PARAMETERS)
def test_lower_bounds(kind):
    bound = lower_bound(PARAMETERS[kind]())
    if kind in BOUNDS:
        assert_allclose(bound, BOUNDS[kind], rtol=1e-12)
        assert np.shape(bound) == np.shape(BOUNDS[kind])
    else:
        assert bound is None


def test_a_bound_below_zero_is_none_of_ours():
    parameter = Parameter(0.5, transform=tfb.Chain([tfb.Shift(np.float64(-2.0)), tfb.Softplus()]))
    assert lower_bound(parameter) is None


@pytest.mark.parametrize("logarithms", [False, True])
@pytest.mark.parametrize("kind", PARAMETERS)
def test_the_vector_holds_what_it_says(kind, logarithms):
    parameter = PARAMETERS[kind]()
    if logarithms and kind in BOUNDS:
        expected = np.log(parameter.numpy() - BOUNDS[kind])
    else:
        expected = parameter.unconstrained_variable.numpy()
    x = ParameterVector([parameter], logarithms=logarithms).numpy()
    assert_allclose(x, np.ravel(expected), rtol=1e-12)


@pytest.mark.parametrize("logarithms", [False, True])
def test_round_trip(rng, logarithms):
    parameters = all_parameters()
    vector = ParameterVector(parameters, logarithms=logarithms)
    before = [p.numpy() for p in parameters]
    x = vector.numpy()
    assert x.shape == (vector.size,) and vector.size == 1 + 3 + 2 + 2 + 2 + 4 + 3 + 2 + 3 + 3 + 1
    vector.assign(x)
    for p, value in zip(parameters, before, strict=True):
        assert_allclose(p, value, rtol=1e-12, atol=1e-15)
    moved = x + rng.normal(size=vector.size)
    vector.assign(moved)
    assert_allclose(vector.numpy(), moved, rtol=1e-9, atol=1e-10)


def test_order_is_that_of_the_parameters():
    parameters = [PARAMETERS[kind]() for kind in ("identity", "softplus_scalar", "exp")]
    vector = ParameterVector(parameters, logarithms=True)
    vector.assign(np.arange(8.0))
    assert_allclose(parameters[0], [0.0, 1.0, 2.0])
    assert_allclose(parameters[1], np.exp(3.0), rtol=1e-12)
    assert_allclose(parameters[2], np.exp([[4.0, 5.0], [6.0, 7.0]]), rtol=1e-12)


@pytest.mark.parametrize("logarithms", [False, True])
@pytest.mark.parametrize("kind", PARAMETERS)
def test_gradient_equals_finite_differences(rng, kind, logarithms):
    parameters = [Parameter(0.3), PARAMETERS[kind](), Parameter(0.4, transform=positive())]
    weights = [rng.normal(size=p.shape) for p in parameters]
    vector = ParameterVector(parameters, logarithms=logarithms)

    def function():
        """Something smooth of the constrained values."""
        parts = [tf.reduce_sum(w * p**2) for w, p in zip(weights, parameters, strict=True)]
        return tf.add_n(parts)

    variables = [p.unconstrained_variable for p in parameters]
    with tf.GradientTape() as tape:
        value = function()
    gradient = vector.gradient([g.numpy() for g in tape.gradient(value, variables)])
    x = vector.numpy()

    def along(unit):
        def line(h):
            vector.assign(x + h * unit)
            return float(function())

        return ref.derivative(line, 1e-3)

    assert_close(gradient, [along(unit) for unit in np.eye(len(x))], rtol=1e-9)


@pytest.mark.parametrize("logarithms", [False, True])
def test_no_parameters(logarithms):
    vector = ParameterVector([], logarithms=logarithms)
    assert vector.size == 0
    assert_array_equal(vector.numpy(), np.zeros(0))
    assert_array_equal(vector.gradient([]), np.zeros(0))
    vector.assign(np.zeros(0))


def test_an_empty_parameter_between_others():
    parameters = [Parameter(1.0), Parameter(np.zeros(0)), Parameter([2.0, 3.0])]
    vector = ParameterVector(parameters)
    assert_array_equal(vector.numpy(), [1.0, 2.0, 3.0])
    vector.assign(np.array([4.0, 5.0, 6.0]))
    assert_array_equal(parameters[0], 4.0)
    assert_array_equal(parameters[2], [5.0, 6.0])


def test_a_parameter_at_its_bound_stays_finite():
    """Rounding lets a value reach its bound, where the logarithm of the excess would be -inf."""
    parameter = noise_floor()
    parameter.unconstrained_variable.assign([-800.0, 0.5])
    vector = ParameterVector([parameter], logarithms=True)
    value = parameter.numpy()
    assert value[0] == 1e-4
    assert np.all(np.isfinite(vector.numpy()))
    assert np.all(np.isfinite(vector.gradient([np.array([0.0, 1.0])])))
    vector.assign(vector.numpy())
    assert_allclose(parameter, value, rtol=1e-12)


@pytest.mark.parametrize("value", [1e10, 1e30])
def test_the_gradient_of_a_large_variance(value):
    """Of 2 x / value by log x: units in which inputs are 1e15 have variances such as these."""
    parameter = Parameter(value, dtype=tf.float64, transform=positive())
    vector = ParameterVector([parameter], logarithms=True)
    assert_allclose(vector.gradient([np.array(2.0 / value)]), [2.0])


def test_float32_parameters_in_a_float64_vector():
    parameter = Parameter([0.5, 2.0], dtype=tf.float32, transform=positive())
    for logarithms in (False, True):
        vector = ParameterVector([parameter], logarithms=logarithms)
        x = vector.numpy()
        assert x.dtype == np.float64
        vector.assign(x)
        assert_allclose(parameter, [0.5, 2.0], rtol=1e-6)
        assert vector.gradient([np.ones(2, np.float32)]).dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("value", [1e-30, 1e-8, 0.3, 1.0, 40.0, 1e30])
def test_softplus_in_numpy_is_that_of_tensorflow_probability(value, dtype):
    """GPflow's positive parameters, from next to nothing to far beyond where exp overflows."""
    parameter = Parameter(np.array([value, 1.0]), transform=positive(), dtype=dtype)
    vector = ParameterVector([parameter], logarithms=True)
    u = parameter.unconstrained_variable.numpy()
    transform, tolerance = parameter.transform, 10 * np.finfo(dtype).eps
    assert_allclose(
        vector.numpy(), np.log([value, 1.0]), rtol=1e-5 if dtype == np.float32 else 1e-9
    )
    slope = np.exp(transform.forward_log_det_jacobian(u, event_ndims=0).numpy().astype(float))
    expected = np.array([value, 1.0]) / slope  # d u / d log value is value / slope
    assert_allclose(
        vector.gradient([np.ones(2)]), expected, rtol=2e-4 if dtype == np.float32 else 1e-9
    )
    vector.assign(np.log([2.0 * value, 3.0]))
    assert_allclose(
        parameter.numpy(),
        transform.forward(transform.inverse(dtype([2.0 * value, 3.0]))),
        rtol=100 * tolerance,
    )


def test_a_parameter_that_is_not_finite_is_refused():
    parameter = Parameter(1.0, transform=positive())
    with pytest.raises(FloatingPointError, match="a parameter became nan"):
        ParameterVector([parameter], logarithms=True).assign(np.array([np.nan]))
    assert parameter.numpy() == 1.0


@pytest.mark.parametrize("make", [PARAMETERS["shifted"], noise_floor])
def test_a_shifted_softplus_in_numpy_is_that_of_tensorflow_probability(make):
    """Also next to its bound, where what is left above it may be rounding."""
    for excess in (1e-30, 1e-17, 1e-8, 0.3, 40.0):
        ours, theirs = make(), make()
        bound = lower_bound(ours)
        ParameterVector([ours], logarithms=True).assign(np.log([excess, 2.0]))
        lifted = np.maximum([excess, 2.0], 1e-15 * bound)
        theirs.assign(bound + lifted)
        assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-14)
        assert np.all(ours.numpy() >= bound)
        u = tf.constant(ours.unconstrained_variable)
        expected = theirs.transform.forward_log_det_jacobian(u, event_ndims=0)
        assert_allclose(log_slope(ours), expected, rtol=1e-12)
        assert_allclose(constrained(ours), ours.numpy(), rtol=1e-15)


@pytest.mark.parametrize("logarithms", [False, True])
def test_which_entries_are_logarithms(logarithms):
    """A line search is cautious with these."""
    parameters = all_parameters()
    vector = ParameterVector(parameters, logarithms=logarithms)
    expected = [
        np.full(p.numpy().size if kind != "triangular" else 3, kind == "exp")
        | (logarithms and kind in BOUNDS)
        for kind, p in zip(PARAMETERS, parameters, strict=True)
    ]
    assert_array_equal(vector.is_logarithm, np.concatenate(expected))
    assert [has_logarithm(p) for p in parameters] == [kind == "exp" for kind in PARAMETERS]


# Read and set without TensorFlow Probability ------------------------------------------------------


@pytest.mark.parametrize("kind", PARAMETERS)
def test_what_is_read_is_what_gpflow_reads(kind):
    parameter = PARAMETERS[kind]()
    assert_allclose(constrained(parameter), parameter.numpy(), rtol=2e-15)


@pytest.mark.parametrize("value", [0.7, [0.7, 0.5]])
def test_what_is_read_in_single_precision(value):
    floor = NoiseFloor(tf.constant(0.25 * np.ones_like(value), tf.float32))
    parameter = Parameter(value, transform=tfb.Chain([floor, tfb.Softplus()]), dtype=tf.float32)
    assert constrained(parameter).dtype == np.float32
    assert_allclose(constrained(parameter), value, rtol=5e-7)


@pytest.mark.parametrize("kind", PARAMETERS)
def test_what_is_set_is_what_gpflow_sets(kind):
    parameter, other = PARAMETERS[kind](), PARAMETERS[kind]()
    value = 1.01 * parameter.numpy()
    other.assign(value)
    assign(parameter, value)
    actual, expected = (p.unconstrained_variable for p in (parameter, other))
    assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("value", [[0.5, 0.29], [0.5, np.nan], [np.inf, 0.5], [0.0, 0.5]])
def test_what_the_bounds_forbid_is_refused(value):
    parameter = noise_floor()
    before = parameter.numpy()
    assert not is_admissible(parameter, np.array(value))
    with pytest.raises(FloatingPointError, match="a parameter became"):
        assign(parameter, np.array(value))
    assert_array_equal(parameter.numpy(), before)


def test_a_value_at_the_bound_of_the_noise_is_one_just_above_it():
    parameter = noise_floor()
    for value in ([1e-4, 0.3], [1e-4 * (1 - 1e-15), 0.3 * (1 + 1e-15)]):
        assert is_admissible(parameter, np.array(value))
        assign(parameter, np.array(value))
        assert_allclose(parameter, [1e-4, 0.3], rtol=1e-14)
        assert np.isfinite(parameter.unconstrained_variable).all()


def test_a_bound_that_is_trained_is_no_constant():
    bound = Parameter(1e-2, transform=positive())
    for shift in (bound, tf.Variable(1e-2, dtype=tf.float64)):
        parameter = Parameter([0.1], transform=tfb.Chain([tfb.Shift(shift), tfb.Softplus()]))
        assert softplus_floor(parameter) is None
        shift.assign(0.05)
        assert_allclose(constrained(parameter), parameter.numpy(), rtol=1e-15)
        assign(parameter, np.array([0.2]))
        assert_allclose(parameter, [0.2], rtol=1e-12)
        shift.assign(0.01)
        assert_allclose(constrained(parameter), [0.16], rtol=1e-12)
