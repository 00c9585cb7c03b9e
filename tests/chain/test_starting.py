"""Starting values, the bound on the noise, and which parameters fix the kernel's scale."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import kernels
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import pdist

from gpflow_cool import CoolMTGP, KroneckerMTGP, SparseCoolMTGP
from gpflow_cool.chain.starting import (
    CHAIN_NOISE_FLOOR,
    fix_kernel_scale,
    half_median_distance,
    mean_kernel_diagonal,
    noise_transform,
    scale_parameters,
    task_scales,
)

# Scales of tasks ----------------------------------------------------------------------------------


def test_scales_are_variances(rng):
    Y = rng.normal(size=(50, 3)) * [1.0, 20.0, 1e-3] + [0.0, 5.0, 0.0]
    expected = [sum((y - sum(y) / 50) ** 2) / 50 for y in Y.T]
    assert_allclose(task_scales(Y), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("N", [1, 7, 1001])
def test_scales_of_tasks_that_do_not_vary(N, dtype):
    Y = np.tile(np.array([0.1, -300.0, 0.0], dtype), [N, 1])
    assert_allclose(task_scales(Y), [0.01, 9e4, 1.0], rtol=1e-5)


def test_a_large_offset_does_not_make_a_task_constant(rng):
    y = rng.normal(size=200)
    assert_allclose(task_scales(1e7 + y[:, None]), [np.var(y)], rtol=1e-6)


# The noise's lower bound --------------------------------------------------------------------------


def test_noise_cannot_fall_below_its_bound(rng):
    scales = np.array([1.0, 4.0, 100.0])
    transform = noise_transform(0.1 * scales, scales)
    for x in [-1e300, -1e3, -50.0]:
        assert_allclose(transform.forward(np.full(3, x)), CHAIN_NOISE_FLOOR * scales, rtol=1e-12)
    x = rng.normal(size=3)
    assert_allclose(
        transform.forward(x), CHAIN_NOISE_FLOOR * scales + np.log1p(np.exp(x)), rtol=1e-12
    )


def test_a_small_start_is_honoured():
    scales = np.array([1.0, 4.0])
    sigma2 = np.array([1e-7, 0.4])
    parameter = gpflow.Parameter(sigma2, transform=noise_transform(sigma2, scales))
    assert_allclose(parameter, sigma2, rtol=1e-12)
    bound = parameter.transform.forward(np.full(2, -1e3))
    assert_allclose(bound, [1e-8, 4.0 * CHAIN_NOISE_FLOOR], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_value_at_its_bound_can_be_assigned_again(dtype):
    scales = np.array([1.0, 4.0], dtype)
    parameter = gpflow.Parameter(
        0.1 * scales, dtype=dtype, transform=noise_transform(dtype(0.1) * scales, scales)
    )
    parameter.unconstrained_variable.assign([-800.0, 0.5])
    value = parameter.numpy()
    assert value[0] == dtype(CHAIN_NOISE_FLOOR)
    parameter.assign(value)
    assert_allclose(parameter, value, rtol=20 * np.finfo(dtype).eps)
    with pytest.raises(tf.errors.InvalidArgumentError, match="incompatible with this parameter's"):
        parameter.assign(0.9 * value)


def test_the_bound_of_a_model_is_relative_to_its_tasks(rng):
    X, Y = rng.normal(size=(12, 1)), rng.normal(size=(12, 2)) * [1.0, 3.0]
    model = CoolMTGP((X, Y), kernels.Matern32())
    model.sigma2.unconstrained_variable.assign([-900.0, -900.0])
    assert_allclose(model.sigma2, CHAIN_NOISE_FLOOR * Y.var(axis=0), rtol=1e-12)
    small = CoolMTGP((X, Y), kernels.Matern32(), sigma2=1e-9)
    assert_allclose(small.sigma2, [1e-9, 1e-9], rtol=1e-10)


def test_starting_values_of_a_model(rng):
    X, Y = rng.normal(size=(12, 1)), rng.normal(size=(12, 2)) * [1.0, 3.0] + 1.0
    kernel = kernels.SquaredExponential(variance=2.0) + kernels.Linear(variance=3.0)
    model = CoolMTGP((X, Y), kernel, gpflow.mean_functions.Constant(1.0))
    assert_allclose(model.sigma2, 0.1 * Y.var(axis=0), rtol=1e-10)
    assert_allclose(model.b, Y.var(axis=0) / np.mean(2.0 + 3.0 * X**2), rtol=1e-10)


def test_mean_kernel_diagonal(rng):
    X = rng.normal(size=(9, 2))
    kernel = kernels.Matern52(variance=0.7) + kernels.Linear(variance=[2.0, 3.0])
    expected = np.mean([0.7 + 2.0 * x[0] ** 2 + 3.0 * x[1] ** 2 for x in X])
    assert_allclose(mean_kernel_diagonal(kernel, X), expected, rtol=1e-12)
    assert mean_kernel_diagonal(kernels.Linear(), np.zeros((4, 2))) == 1.0


# Lengthscale --------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_half_median_distance_by_a_loop(rng, offset):
    X = np.repeat(rng.normal(size=(6, 2)), 2, axis=0) + offset  # equal rows do not count
    distances = [
        np.sqrt(sum((X[i] - X[j]) ** 2)) for i in range(12) for j in range(i) if any(X[i] != X[j])
    ]
    assert_allclose(half_median_distance(X), 0.5 * np.median(distances), rtol=1e-12)
    blocks = [sum(abs(X[i] - X[j])) for i in range(12) for j in range(i) if any(X[i] != X[j])]
    actual = half_median_distance(X, metric="cityblock")
    assert_allclose(actual, 0.5 * np.median(blocks), rtol=1e-12)


@pytest.mark.parametrize("X", [np.ones((1, 2)), np.ones((5, 2)), np.zeros((3, 1))])
def test_half_median_distance_without_different_rows(X):
    assert half_median_distance(X) == 1.0


def test_half_median_distance_of_many_rows(rng):
    X = rng.normal(size=(3000, 2))
    exact = 0.5 * np.median(pdist(X))
    assert_allclose(half_median_distance(X), exact, rtol=0.05)
    assert half_median_distance(X) == half_median_distance(X) != half_median_distance(X, seed=1)


# The scale shared by b and the kernel -------------------------------------------------------------

SE = kernels.SquaredExponential
RAMP = np.linspace(-1.3, 1.9, 9)[:, None] * [1.0, -0.4] + [[0.0, 0.3], [0.5, -0.2], [-0.1, 0.1]] * 3


def variances(*leaves):
    return [leaf.variance for leaf in leaves]


def single(kernel):
    return kernel, variances(kernel)


def nested():
    a, b, c, d = SE(), kernels.Linear(), kernels.Matern12(), kernels.Cosine()
    return a * (b + c) + d, variances(a, b)


def sum_of_products():
    a, b, c = kernels.Linear(), SE(), kernels.White()
    return a * b + c, variances(a, b)


def sum_without_a_first_scale():
    a, b = kernels.Linear([1.0, 2.0]), SE()
    return a + b, variances(b)


def change_points():
    a, b = SE(), kernels.Matern32()
    return kernels.ChangePoints([a, b], [0.2], 3.0), variances(a)


def periodic():
    base = kernels.RationalQuadratic(lengthscales=0.7)
    return kernels.Periodic(base, period=2.3), variances(base)


KINDS = {
    "SquaredExponential": lambda: single(SE()),
    "ARD": lambda: single(SE(lengthscales=[1.0, 2.0])),
    "Matern32": lambda: single(kernels.Matern32()),
    "RationalQuadratic": lambda: single(kernels.RationalQuadratic()),
    "Cosine": lambda: single(kernels.Cosine()),
    "Linear": lambda: single(kernels.Linear()),
    "Polynomial": lambda: single(kernels.Polynomial(degree=3)),
    "Constant": lambda: single(kernels.Constant()),
    "White": lambda: single(kernels.White()),
    "Periodic": periodic,
    "ChangePoints": change_points,
    "sum": lambda: (lambda a, b: (a + b, variances(a)))(SE(), kernels.Linear()),
    "product": lambda: (lambda a, b: (a * b, variances(a, b)))(SE(), kernels.Linear()),
    "nested": nested,
    "sum of products": sum_of_products,
    "sum without a first scale": sum_without_a_first_scale,
}


def scaled_kernel_rank(kernel):
    """
    Number of parameters of b k(x, x'), and in how many directions it changes with them.

    Fewer directions than parameters: some parameters are redundant.
    """
    X = tf.constant(RAMP[:, :1] if isinstance(kernel, kernels.ChangePoints) else RAMP)
    columns = [kernel(X).numpy().ravel()]  # the derivative with respect to log b
    for variable in kernel.trainable_variables:
        start = variable.numpy()
        for index in np.ndindex(start.shape):
            step = np.zeros_like(start)
            step[index] = 1e-4
            variable.assign(start + step)
            up = kernel(X).numpy()
            variable.assign(start - step)
            columns.append((up - kernel(X).numpy()).ravel() / 2e-4)
        variable.assign(start)
    J = np.stack(columns, axis=1)
    singular = np.linalg.svd(J / np.linalg.norm(J, axis=0), compute_uv=False)
    return J.shape[1], int(np.sum(singular > 1e-6 * singular[0]))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_scale_is_fixed_and_nothing_else(kind):
    kernel, fixed = kind()
    free = len(kernel.trainable_parameters)
    assert list(map(id, scale_parameters(kernel))) == list(map(id, fixed))
    fix_kernel_scale(kernel)
    assert not any(parameter.trainable for parameter in fixed)
    assert len(kernel.trainable_parameters) == free - len(fixed)
    size, rank = scaled_kernel_rank(kernel)
    assert size == rank  # no parameter is left that another one could replace
    for parameter in fixed:
        gpflow.set_trainable(parameter, True)
    assert scaled_kernel_rank(kernel) == (size + len(fixed), rank)  # and the fixed ones add nothing


def test_kernels_without_a_scale_of_their_own():
    for kernel in [kernels.Linear([1.0, 2.0]), kernels.Polynomial(variance=[1.0, 2.0])]:
        assert scale_parameters(kernel) == []
        before = len(kernel.trainable_parameters)
        fix_kernel_scale(kernel)
        assert len(kernel.trainable_parameters) == before

    class Own(kernels.Kernel):
        variance = None

        def K(self, X, X2=None): ...

        def K_diag(self, X): ...

    assert scale_parameters(Own()) == []


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine(order):
    kernel = kernels.ArcCosine(order=order)
    _, rank = scaled_kernel_rank(kernel)
    fix_kernel_scale(kernel)
    assert not kernel.variance.trainable
    assert kernel.weight_variances.trainable and kernel.bias_variance.trainable
    assert scaled_kernel_rank(kernel)[1] == rank


def test_a_variance_with_a_prior_is_left_alone():
    a, b = SE(), kernels.Linear()
    a.variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(2.0))
    fix_kernel_scale(a * b)
    assert a.variance.trainable and not b.variance.trainable


def test_a_variance_that_was_fixed_stays_fixed():
    kernel = SE(variance=1.7)
    gpflow.set_trainable(kernel.variance, False)
    fix_kernel_scale(kernel)
    assert not kernel.variance.trainable
    assert_allclose(kernel.variance, 1.7, rtol=1e-12)


def test_the_fixed_scale_is_visible(rng, capsys):
    X, Y = rng.normal(size=(8, 1)), rng.normal(size=(8, 2))
    gpflow.utilities.print_summary(CoolMTGP((X, Y), SE()))
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if "CoolMTGP" in line]
    trainable = {row[1].strip(): row[5].strip() for row in rows}
    assert trainable == {
        "CoolMTGP.kernel.variance": "False",
        "CoolMTGP.kernel.lengthscales": "True",
        "CoolMTGP.b": "True",
        "CoolMTGP.sigma2": "True",
        "CoolMTGP.weight_variance": "True",
    }


def test_the_objective_sees_only_the_product(rng):
    X, Y = rng.normal(size=(8, 1)), rng.normal(size=(8, 2))
    one = CoolMTGP((X, Y), SE(variance=1.0), b=[2.0, 3.0], sigma2=0.1)
    other = CoolMTGP((X, Y), SE(variance=4.0), b=[0.5, 0.75], sigma2=0.1)
    assert_allclose(one.training_loss(), other.training_loss(), rtol=1e-12)
    assert_allclose(4.0 * other.task_covariance(), one.task_covariance(), rtol=1e-9)
    assert_array_equal(one.kernel.variance.trainable, False)


# Warnings -----------------------------------------------------------------------------------------


MODELS = [
    CoolMTGP,
    KroneckerMTGP,
    lambda data, kernel, *mean: SparseCoolMTGP(data, kernel, data[0][:5], *mean, chunk_rows=7),
]


@pytest.mark.parametrize("build", MODELS)
def test_targets_far_from_zero_are_told(rng, build):
    X, Y = rng.normal(size=(20, 1)), rng.normal(size=(20, 2))
    build((X, Y + 90.0 * Y.std(axis=0)), kernels.Matern32())
    build((X, np.hstack([Y, np.full((20, 1), 3.0)])), kernels.Matern32())  # constant: no deviation
    far = Y + [0.0, 1e4]
    build((X, far), kernels.Matern32(), gpflow.mean_functions.Constant([0.0, 1e4]))
    factor = np.sqrt(np.mean(far[:, 1] ** 2)) / np.std(far[:, 1])
    text = f"^The targets of task 1 are {factor:.3g} times as far from zero .* mean_function="
    with pytest.warns(UserWarning, match=text.replace("+", "[+]")) as caught:
        build((X, far), kernels.Matern32())
    assert caught[0].filename == __file__


@pytest.mark.parametrize("build", MODELS)
def test_targets_too_far_from_zero_are_refused(rng, build):
    X, Y = rng.normal(size=(20, 1)), rng.normal(size=(20, 2)) + [0.0, 1e6]
    with pytest.raises(ValueError, match="^The targets of task 1 .* would be lost .* Subtract"):
        build((X, Y), kernels.Matern32())


def test_linear_features_take_targets_as_far_as_they_are(rng):
    X, Y = rng.normal(size=(20, 1)), rng.normal(size=(20, 2)) + [0.0, 1e8]
    for Model in (CoolMTGP, KroneckerMTGP):
        with pytest.warns(UserWarning, match="^The targets of task 1 .* follow the offset"):
            Model((X, Y), kernels.Linear() + kernels.Constant())
        with pytest.raises(ValueError, match="^The targets of task 1 .* would be lost .* Subtract"):
            Model((X, Y), kernels.Linear())  # which has no constant


@pytest.mark.parametrize(
    "options", [{}, {"rank": 0, "noise_rank": "diagonal"}, {"rank": 1}, {"noise_rank": 0}]
)
def test_the_exact_model_warns_of_scales_as_well(rng, options):
    data = rng.normal(size=(20, 1)), rng.normal(size=(20, 2)) * [1.0, 40.0]
    with pytest.warns(UserWarning, match="standard deviations of the targets differ") as caught:
        KroneckerMTGP(data, kernels.Matern32(), **options)
    assert caught[0].filename == __file__
