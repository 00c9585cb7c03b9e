"""Kernel matrices of inputs that are far from zero, and the Laplacian kernel against loops."""

from decimal import Decimal

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from extended import distances, exact

from gpflow_cool import (
    CoolMTGP,
    KroneckerMTGP,
    Laplacian,
    SparseCoolMTGP,
    choose_inducing_points,
)
from gpflow_cool.kernels import (
    city_block_distances,
    covariance_at,
    is_translation_invariant,
    kernel_matrix,
    shifted_kernel,
    squared_distances,
    weighted_distances,
)

k = gpflow.kernels

FAR = [1e8, 1.7e9]
"""Where float64 still holds seven digits behind the point: the second is a Unix time."""

INVARIANT = {
    "se": lambda: k.SquaredExponential(lengthscales=[1.0, 2.0]),
    "matern12": k.Matern12,
    "laplacian": lambda: k.SquaredExponential() + Laplacian(lengthscales=[1.0, 2.0]),
    "white": lambda: k.SquaredExponential() + k.White(0.1),
    "periodic": lambda: k.Periodic(k.SquaredExponential(active_dims=[0]), period=4.0),
    "nested": lambda: (k.SquaredExponential() + k.Matern32()) * k.RationalQuadratic(),
    "constant": lambda: k.Matern52(active_dims=[1]) + k.Constant(),
}


class Warped(k.SquaredExponential):
    """A user's kernel that is derived from a stationary one, but is not stationary."""

    def K(self, X, X2=None):
        return super().K(tf.exp(X), None if X2 is None else tf.exp(X2))


class OwnFunction(k.IsotropicStationary):
    """A user's function of the distance."""

    def K_r2(self, r2):
        return self.variance * tf.exp(-r2)


@pytest.mark.parametrize(
    "kernel, expected",
    [
        (k.SquaredExponential(), True),
        (k.Cosine(), True),
        (Laplacian(), True),
        (k.White(), True),
        (k.Periodic(k.Matern12()), True),
        (OwnFunction(), True),
        (k.Periodic(OwnFunction()), True),
        (Warped(), False),
        (k.Periodic(Warped()), False),
        (k.Linear(), False),
        (k.Polynomial(), False),
        (k.ArcCosine(), False),
    ],
)
def test_translation_invariant_kernels_are_known(kernel, expected):
    assert is_translation_invariant(kernel) is expected


@pytest.mark.parametrize("make", [*INVARIANT.values(), lambda: k.Linear() * k.Matern32(), Warped])
def test_shift_does_not_change_an_ordinary_kernel_matrix(make, rng):
    X, X2, kernel = rng.normal(size=(6, 2)), rng.normal(size=(3, 4, 2)), make()
    origin = X.mean(axis=0)
    for args in ([X], [X, X2], [X2]):
        shifted = shifted_kernel(kernel, *args, origin=origin)
        np.testing.assert_allclose(shifted, kernel(*args), rtol=1e-12, atol=1e-13)
    diagonal = shifted_kernel(kernel, X2, full_cov=False, origin=origin)
    np.testing.assert_allclose(diagonal, kernel(X2, full_cov=False), rtol=1e-12)


@pytest.mark.parametrize("shift", FAR)
@pytest.mark.parametrize("make", INVARIANT.values(), ids=INVARIANT)
def test_kernel_matrix_and_gradient_far_from_zero_are_those_near_zero(make, shift, rng):
    X = rng.uniform(0, 10, size=(8, 2)) + shift
    weights = rng.normal(size=(8, 8))
    values, gradients = [], []
    for inputs, matrix in ((X, kernel_matrix), (X - shift, lambda kernel, X: kernel(X))):
        kernel = make()
        with tf.GradientTape() as tape:
            K = matrix(kernel, inputs)
            total = tf.reduce_sum(weights * K)
        values.append(K)
        found = tape.gradient(total, kernel.trainable_variables, unconnected_gradients="zero")
        gradients.append(np.concatenate([np.ravel(part) for part in found]))
    np.testing.assert_allclose(*values, atol=1e-12)
    np.testing.assert_allclose(*gradients, atol=1e-10)


def test_linear_part_of_a_sum_sees_the_inputs_themselves(rng):
    X = rng.normal(size=(5, 1)) + 1e3
    K = kernel_matrix(k.Linear() + k.SquaredExponential(), X)
    distances = np.square(X - X.T)
    np.testing.assert_allclose(K, X @ X.T + np.exp(-0.5 * distances), rtol=1e-13)


def test_squared_distances_of_batches_agree_with_differences(rng):
    X, X2 = rng.normal(size=(2, 5, 3)), rng.normal(size=(3, 4, 3))
    both = np.square(X[:, :, None, None] - X2[None, None]).sum(axis=-1)
    np.testing.assert_allclose(squared_distances(X, X2), both, rtol=1e-13)
    own = np.square(X[:, :, None] - X[:, None]).sum(axis=-1)
    np.testing.assert_allclose(squared_distances(X), own, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_equal_rows_have_no_distance_and_neighbours_keep_theirs(dtype, rng):
    """Equal rows are computed beside others, where their rounding differs."""
    X = (1e7 * rng.normal(size=(40, 5))).astype(dtype)
    r2 = np.asarray(squared_distances(X, X[::-1]))[:, ::-1]
    np.testing.assert_array_equal(np.diag(r2), 0.0)
    near = X[:1] * (1 + 100 * np.finfo(dtype).eps ** 0.5)
    expected = np.square(near.astype(np.float64) - X[:1]).sum()
    np.testing.assert_allclose(squared_distances(X[:1], near), [[expected]], rtol=0.01)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_that_differ_by_less_than_the_rounding_of_their_squares_keep_their_distance(dtype):
    X = np.array([[1e9], [1e9 + 8192], [1e9], [0.0]]).astype(dtype) / dtype(1024)
    near, far = 64.0, (1e9 / 1024) ** 2
    expected = [[0, near, 0, far], [near, 0, near, far], [0, near, 0, far], [far, far, far, 0]]
    np.testing.assert_allclose(squared_distances(1024 * X), np.multiply(expected, 1024**2), 1e-4)
    batches = squared_distances(np.stack([X, 1024 * X]), 1024 * X[None])
    np.testing.assert_allclose(batches[1, :, 0], np.multiply(expected, 1024**2), 1e-4)
    np.testing.assert_allclose(squared_distances(np.stack([1024 * X, X]))[1], expected, 1e-4)


def test_gradients_of_distances_that_are_subtracted_one_by_one():
    X = tf.constant([[1e9, 0.0], [1e9 + 3.0, 4.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(X)
        r2 = squared_distances(X)[0, 1]
    np.testing.assert_allclose(tape.gradient(r2, X), [[-6.0, -8.0], [6.0, 8.0]], rtol=1e-12)


@pytest.mark.parametrize("kernel", [k.Matern12(lengthscales=0.1), k.SquaredExponential(1.0, 1e-7)])
def test_a_row_is_correlated_with_its_copy_as_with_itself(kernel, rng):
    """GPflow saw rows apart: by 1e-8 with Matern 1/2, by 1e-2 with a tiny lengthscale."""
    X = rng.normal(size=(7, 4))
    np.testing.assert_array_equal(np.diag(kernel_matrix(kernel, X)), 1.0)
    K = kernel_matrix(kernel, X, np.vstack([rng.normal(size=(3, 4)), X]))
    np.testing.assert_array_equal(np.diag(K[:, 3:]), 1.0)


def toy_data(shift):
    """Two columns, of which the first is shifted; as float64 holds it, and shifted back."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, size=(30, 2)) + [shift, 0.0]
    near = X - [shift, 0.0]
    Y = np.stack([np.sin(near[:, 0]), np.sin(near[:, 0]) + near[:, 1]], axis=1)
    return X, near, Y + 0.1 * rng.normal(size=Y.shape)


MODELS = {
    "cool": CoolMTGP,
    "exact": KroneckerMTGP,
    "sparse": lambda data, kernel: SparseCoolMTGP(data, kernel, data[0][::5]),
}
KERNELS = {
    "se": k.SquaredExponential,
    "with linear": lambda: k.SquaredExponential(active_dims=[0]) + k.Linear(active_dims=[1]),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_predictions_far_from_zero_are_those_near_zero(build, kernel):
    X, near, Y = toy_data(FAR[1])
    found = []
    for inputs in (X, near):
        model, new = build((inputs, Y), kernel()), inputs[:5] + 0.25
        full = model.predict_f_full_cov(new)[1]
        assert np.isfinite(model.predict_f_samples(new, 2)).all()
        found.append([*model.predict_y(new), full, model.log_marginal_likelihood()])
    for far, expected in zip(*found, strict=True):
        np.testing.assert_allclose(far, expected, rtol=1e-6, atol=1e-7)


def test_missing_targets_far_from_zero():
    X, near, Y = toy_data(1.7e9)
    Y[3, 0] = Y[7, 1] = np.nan
    found = []
    for inputs in (X, near):
        model = CoolMTGP((inputs, Y), k.SquaredExponential(lengthscales=2.0))
        assert np.isfinite(model.predict_f_samples(inputs[:4], 2, full_output_cov=True)).all()
        found.append([*model.predict_f(inputs[:4] + 0.25, full_cov=True), *model.impute()])
    for far, expected in zip(*found, strict=True):
        np.testing.assert_allclose(far, expected, atol=1e-8)


@pytest.mark.parametrize("method", ["greedy", "k-means"])
def test_inducing_points_far_from_zero(method):
    X, near, _ = toy_data(1.7e9)
    kernel = k.SquaredExponential()
    far, expected = (choose_inducing_points(x, kernel, 8, method=method) for x in (X, near))
    np.testing.assert_allclose(far - [1.7e9, 0.0], expected, atol=1e-6)


def test_neighbours_in_float32_stay_apart():
    """Rows 1/3000 of the range apart: a distance of zero would make K indefinite."""
    X = np.linspace(0.0, 1.0, 3000, dtype=np.float32)[:40, None] - np.float32(0.5)
    r2 = squared_distances(X).numpy()
    exact_r2 = np.square(X.astype(float) - X.T.astype(float))
    assert r2.dtype == np.float32
    np.testing.assert_allclose(r2, exact_r2, rtol=1e-5)


def test_squared_distances_where_a_graph_knows_no_shape(rng):
    X = rng.normal(size=(5, 1))
    graph = tf.function(
        squared_distances, input_signature=[tf.TensorSpec([None, None], tf.float64)]
    )
    np.testing.assert_allclose(graph(X), np.square(X - X.T), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32])
def test_a_rational_quadratic_kernel_whose_alpha_has_underflowed_is_constant(dtype):
    kernel = k.RationalQuadratic()
    kernel.alpha = gpflow.Parameter(1.0, transform=gpflow.utilities.positive(), dtype=dtype)
    kernel.variance = gpflow.Parameter(1.0, dtype=dtype)
    kernel.alpha.unconstrained_variable.assign(-1000.0)
    with tf.GradientTape() as tape:
        r2 = tf.Variable([0.0, 0.5, 1e4], dtype=dtype)
        values = covariance_at(kernel, r2)
    gradients = tape.gradient(values, [r2, kernel.alpha.unconstrained_variable])
    np.testing.assert_allclose(values, 1.0, rtol=1e-5)
    assert all(np.isfinite(part).all() for part in gradients)


@pytest.mark.parametrize("alpha", [0.3, 1e6])
def test_a_rational_quadratic_kernel_keeps_its_digits_where_alpha_is_large(alpha, rng):
    """GPflow's own power is wrong by alpha times the rounding: 1e-10 at 1e6."""
    X = rng.normal(size=(5, 2))
    kernel = k.RationalQuadratic(variance=1.7, lengthscales=0.8, alpha=alpha)
    lengthscale, alpha = (
        Decimal(float(part.numpy())) for part in (kernel.lengthscales, kernel.alpha)
    )
    r2 = distances(exact(X), exact(X)) ** 2 / lengthscale**2
    logs = np.vectorize(lambda part: -alpha * (1 + part / (2 * alpha)).ln(), otypes=[object])(r2)
    expected = 1.7 * np.vectorize(Decimal.exp, otypes=[object])(logs).astype(float)
    np.testing.assert_allclose(kernel_matrix(kernel, X), expected, rtol=1e-14)
    np.testing.assert_allclose(kernel_matrix(kernel, X, X[:3]), expected[:, :3], rtol=1e-14)


def test_jacobians_and_vectorized_maps_of_distances(rng):
    X, X2 = tf.constant(rng.normal(size=(3, 2))), tf.constant(rng.normal(size=(4, 2)))
    with tf.GradientTape() as tape:
        tape.watch(X)
        r2 = squared_distances(X, X2)
    expected = np.zeros([3, 4, 3, 2])
    for i in range(3):
        expected[i, :, i] = 2.0 * (X[i] - X2)
    np.testing.assert_allclose(tape.jacobian(r2, X), expected, rtol=1e-12)
    mapped = tf.vectorized_map(lambda x: squared_distances(x[None], X2)[0], X)
    np.testing.assert_allclose(mapped, r2, rtol=1e-12)


def two_groups(rng, far):
    """Rows in two groups that are so many lengthscales apart."""
    return np.vstack([rng.uniform(0.0, 5.0, size=(12, 2)), far + rng.uniform(0.0, 5.0, (12, 2))])


@pytest.mark.parametrize("make", [k.SquaredExponential, k.Matern12, k.RationalQuadratic])
@pytest.mark.parametrize("far", [1e4, 1e8])
def test_two_groups_far_apart_keep_the_distances_within_them(make, far, rng):
    """Squares are 1e20 there, and distances 1. The inputs themselves have a last digit."""
    kernel, X = make(), two_groups(rng, far)
    expected = kernel.K_r2(tf.constant(np.square(X[:, None] - X).sum(axis=-1)))
    allowed = 3e-8 + np.finfo(float).eps * far
    np.testing.assert_allclose(kernel_matrix(kernel, X), expected, atol=allowed)
    np.testing.assert_allclose(kernel_matrix(kernel, X, X[:5]), expected[:, :5], atol=allowed)
    assert np.linalg.eigvalsh(kernel_matrix(kernel, X))[0] > -1e-8


def test_gradients_of_two_groups_far_apart(rng):
    X, weights = tf.Variable(two_groups(rng, 2.0**30)), rng.normal(size=(24, 24))
    found = []
    for make in (squared_distances, lambda X: tf.reduce_sum(tf.square(X[:, None] - X), axis=-1)):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(weights * k.SquaredExponential().K_r2(make(X)))
        found.append(tape.gradient(total, X))
    np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-8)


def test_two_campaigns_years_apart_are_predicted_like_two_hours_apart():
    """Seconds, within a minute each: K was indefinite."""
    inside = np.arange(0.0, 60.0, 2.0)
    w = np.tile(inside, 2)[:, None]
    Y = np.hstack([np.sin(w / 5), np.cos(w / 5) + 0.1 * np.sin(w)])
    found = []
    for gap in (7200.0, 3.2e8):
        t = np.concatenate([inside, gap + inside])[:, None]
        model = CoolMTGP((t, Y), k.SquaredExponential(lengthscales=5.0))
        found.append([*model.predict_f(t[::3] + 1.0), model.training_loss()])
    for hours, years in zip(*found, strict=True):
        np.testing.assert_allclose(years, hours, rtol=1e-5, atol=1e-5)


def test_forward_differentiation_of_distances(rng):
    X, X2 = tf.constant(rng.normal(size=(3, 2))), tf.constant(rng.normal(size=(4, 2)))
    with tf.autodiff.ForwardAccumulator(X, tf.ones_like(X)) as forward:
        r2 = squared_distances(X, X2)
    expected = 2.0 * np.sum(X[:, None] - X2, axis=-1)
    np.testing.assert_allclose(forward.jvp(r2), expected, rtol=1e-12)


# The Laplacian kernel -----------------------------------------------------------------------------


def by_loops(X, X2, variance, lengthscales):
    """[N, N2], entry by entry."""
    lengthscales = np.broadcast_to(lengthscales, X.shape[1])
    K = np.empty([len(X), len(X2)])
    for n, x in enumerate(X):
        for m, z in enumerate(X2):
            K[n, m] = variance * np.exp(-sum(np.abs(x - z) / lengthscales))
    return K


@pytest.mark.parametrize("N, D", [(1, 1), (5, 1), (4, 3), (2, 7)])
@pytest.mark.parametrize("ard", [False, True])
def test_kernel_equals_loops(rng, N, D, ard):
    X, X2 = rng.normal(size=[N, D]), rng.normal(size=[3, D])
    lengthscales = rng.uniform(0.5, 2.0, size=D) if ard else 0.7
    kernel = Laplacian(variance=1.3, lengthscales=lengthscales)
    np.testing.assert_allclose(kernel(X), by_loops(X, X, 1.3, lengthscales), rtol=1e-13)
    np.testing.assert_allclose(kernel(X, X2), by_loops(X, X2, 1.3, lengthscales), rtol=1e-13)
    np.testing.assert_allclose(kernel(X, full_cov=False), np.full(N, 1.3), rtol=1e-13)


def test_kernel_sees_its_columns_only(rng):
    X = rng.normal(size=[4, 3])
    kernel = Laplacian(lengthscales=[0.5, 2.0], active_dims=[2, 0])
    np.testing.assert_allclose(
        kernel(X), by_loops(X[:, [2, 0]], X[:, [2, 0]], 1.0, [0.5, 2.0]), rtol=1e-13
    )


def test_kernel_is_a_product_of_matern_kernels(rng):
    X = rng.normal(size=[6, 2])
    product = k.Matern12(lengthscales=0.4, active_dims=[0]) * k.Matern12(active_dims=[1])
    np.testing.assert_allclose(Laplacian(lengthscales=[0.4, 1.0])(X), product(X), rtol=1e-12)


def test_equal_rows_are_fully_correlated(rng):
    X = np.repeat(rng.normal(size=[1, 4]), 3, axis=0)
    kernel = Laplacian(1.7, lengthscales=1e-3)
    np.testing.assert_array_equal(kernel(X), np.full([3, 3], kernel.variance.numpy()))


def test_batches(rng):
    X, X2 = rng.normal(size=[2, 4, 3]), rng.normal(size=[5, 2, 3])
    kernel = Laplacian(lengthscales=[0.5, 1.0, 2.0])
    own, cross = kernel(X).numpy(), kernel(X, X2).numpy()
    assert own.shape == (2, 4, 4) and cross.shape == (2, 4, 5, 2)
    for a in range(2):
        np.testing.assert_allclose(own[a], by_loops(X[a], X[a], 1.0, [0.5, 1.0, 2.0]), rtol=1e-13)
        for c in range(5):
            expected = by_loops(X[a], X2[c], 1.0, [0.5, 1.0, 2.0])
            np.testing.assert_allclose(cross[a, :, c], expected, rtol=1e-13)


@pytest.mark.parametrize("lengthscales", [0.5, [0.5, 2.0]])
def test_no_rows_and_unknown_shapes(rng, lengthscales):
    kernel, X = Laplacian(lengthscales=lengthscales), rng.normal(size=[3, 2])
    np.testing.assert_array_equal(kernel(X[:0], X), np.zeros([0, 3]))
    unknown = tf.TensorSpec([None, None], tf.float64)
    compiled = tf.function(lambda A, B: kernel(A, B), input_signature=[unknown, unknown])
    np.testing.assert_allclose(
        compiled(X, X[:2]), by_loops(X, X[:2], 1.0, lengthscales), rtol=1e-13
    )


def naive(X, Z, rates):
    return tf.reduce_sum(tf.abs(X[:, None] - Z[None]) * rates, axis=-1)


@pytest.mark.parametrize("N, M, D", [(1, 1, 1), (4, 3, 2), (2, 5, 6)])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_equals_that_of_all_differences_at_once(rng, N, M, D, compiled):
    inputs = [rng.normal(size=[N, D]), rng.normal(size=[M, D]), rng.uniform(0.5, 2.0, size=D)]
    inputs = [tf.constant(part) for part in inputs]
    weights = tf.constant(rng.normal(size=[N, M]))

    def gradients(distances):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(weights * tf.sin(distances(*inputs)))
        return tape.gradient(loss, inputs)

    ours = tf.function(gradients) if compiled else gradients
    for actual, expected in zip(ours(weighted_distances), gradients(naive), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def test_gradient_of_one_matrix_with_itself(rng):
    """X comes in twice, and both of its gradients count."""
    X, rates = tf.constant(rng.normal(size=[5, 3])), tf.constant([0.5, 1.0, 2.0], tf.float64)
    weights = tf.constant(rng.normal(size=[5, 5]))

    def gradient(distances):
        with tf.GradientTape() as tape:
            tape.watch(X)
            loss = tf.reduce_sum(weights * tf.exp(-distances(X)))
        return tape.gradient(loss, X)

    actual = gradient(lambda X: city_block_distances(X, None, rates))
    expected = gradient(lambda X: naive(X, X, rates))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("ard", [False, True])
def test_no_array_has_a_matrix_per_input(rng, ard):
    """Of all tensors in the graph of a gradient, none is larger than N x N."""
    N, D = 30, 40
    X = tf.constant(rng.normal(size=[N, D]))
    kernel = Laplacian(lengthscales=np.full(D, 9.0) if ard else 9.0)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(kernel(X)))
        return tape.gradient(loss, kernel.trainable_variables)

    graph = gradient.get_concrete_function().graph
    graphs = [graph, *(function.graph for function in graph._functions.values())]
    outputs = [out for each in graphs for op in each.get_operations() for out in op.outputs]
    sizes = [out.shape.num_elements() or 0 for out in outputs]
    assert len(sizes) > 50 and max(sizes) == max(N * N, N * D)
