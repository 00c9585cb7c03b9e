"""Kernels, mean functions and covariances that a model takes, and what a user is told of others."""

import gpflow
import numpy as np
import pytest
from gpflow.kernels import SquaredExponential
from numpy.testing import assert_allclose, assert_array_equal
from refusals import D, N, T, exactly, refused

from gpflow_cool import CoolMTGP
from gpflow_cool.models.arguments import check_covariance, summary

X = np.random.default_rng(0).uniform(size=(N, D))
Y = np.random.default_rng(1).normal(size=(N, T))


@pytest.mark.parametrize("kernel", ["rbf", SquaredExponential, [SquaredExponential()], 3.0])
def test_what_is_no_kernel(kernel):
    text = (
        f"kernel is {kernel!r}, but a gpflow.kernels.Kernel object is needed, for example"
        " gpflow.kernels.SquaredExponential()."
    )
    refused(exactly(text), (X, Y), kernel)


SE = SquaredExponential
MULTI_OUTPUT = {
    "SharedIndependent": lambda: gpflow.kernels.SharedIndependent(SE(), T),
    "SeparateIndependent": lambda: gpflow.kernels.SeparateIndependent([SE() for _ in range(T)]),
    "LinearCoregionalization": lambda: gpflow.kernels.LinearCoregionalization(
        [SE()], np.ones((T, 1))
    ),
}


@pytest.mark.parametrize("name", MULTI_OUTPUT)
@pytest.mark.parametrize("inside", [lambda k: k, lambda k: SE() + k, lambda k: SE() * k])
def test_multi_output_kernels(name, inside):
    text = (
        f"{name} is a multi-output kernel. This model learns the covariance between tasks itself:"
        " pass the kernel over inputs that all tasks share, for example"
        " gpflow.kernels.SquaredExponential()."
    )
    refused(exactly(text), (X, Y), inside(MULTI_OUTPUT[name]()))


@pytest.mark.parametrize(
    "inside",
    [
        lambda k: k,
        lambda k: SE(active_dims=[0]) * k,
        lambda k: SE() + SE(active_dims=[0]) * k,
        lambda k: gpflow.kernels.ChangePoints([SE(), k], [0.5]),
    ],
    ids=["alone", "product", "nested", "change points"],
)
def test_coregion_kernels(inside):
    text = (
        "The kernel contains Coregion. This model learns the covariance between tasks itself: pass"
        " the base kernel alone, without the task column in X, and one column of Y per task."
    )
    coregion = gpflow.kernels.Coregion(output_dim=2, rank=1, active_dims=[1])
    refused(exactly(text), (X, Y), inside(coregion))


@pytest.mark.parametrize("inside", [lambda k: k, lambda k: SE() * k])
def test_kernels_over_other_columns(inside):
    text = (
        "SquaredExponential has active_dims=[1 2], but X has 2 columns: they are counted from 0 to"
        " 1."
    )
    refused(exactly(text), (X, Y), inside(SE(active_dims=[1, 2])))
    refused(
        "active_dims=slice.2, None, None.*counted from 0 to 1",
        (X, Y),
        SE(active_dims=slice(2, None)),
    )
    text = (
        "SquaredExponential has 3 lengthscales, but it sees 2 columns of X: pass one number, or one"
        " per column."
    )
    refused(exactly(text), (X, Y), inside(SE(lengthscales=[1.0, 1.0, 1.0])))
    refused("has 2 lengthscales, but it sees 1 columns", (X[:, :1], Y), SE(lengthscales=[1.0, 1.0]))
    refused("Linear has 3 variance, but it sees 2", (X, Y), gpflow.kernels.Linear([1.0, 1.0, 1.0]))
    arc = gpflow.kernels.ArcCosine(weight_variances=[1.0, 1.0, 1.0])
    refused("ArcCosine has 3 weight_variances, but it sees 2 columns", (X, Y), arc)


def test_kernels_that_fail_or_give_something_else():
    class Broken(SquaredExponential):
        def __init__(self, result):
            super().__init__()
            self.result = result

        def K(self, X, X2=None):
            return self.result(X)

    def fails(X):
        raise KeyError("no such thing")

    text = (
        "The kernel fails at the first row of X, 2 columns of float64 ('no such thing'). Look at"
        " its parameters, active_dims and data type."
    )
    refused(exactly(text), (X, Y), Broken(fails))
    text = (
        "At the first row of X the kernel gives [[nan]], but one finite number, shape (1, 1), is"
        " needed. Look at its parameters and at the scale of X."
    )
    refused(exactly(text), (X, Y), Broken(lambda X: X[:, :1] * np.nan))
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        kernel = SquaredExponential()
    refused("^The kernel fails at the first row of X, 2 columns of float64 .*float", (X, Y), kernel)


def test_mean_functions():
    for function in [3.0, gpflow.mean_functions.Constant]:
        text = (
            f"mean_function is {function!r}, but a gpflow.mean_functions.MeanFunction object is"
            " needed, for example gpflow.mean_functions.Constant()."
        )
        refused(exactly(text), (X, Y), mean_function=function)
    wide = gpflow.mean_functions.Linear(np.ones((D, 2)), np.zeros(2))
    text = (
        "The mean function gives shape (6, 2) at X, but one number per row, shape (6, 1), or one"
        " per task, shape (6, 3), is needed."
    )
    refused(exactly(text), (X, Y), mean_function=wide)
    tall = gpflow.mean_functions.Linear(np.ones((5, 1)), np.zeros(1))
    refused(
        r"^The mean function fails at X of shape \(6, 2\) \(.*\)\. It must give shape \(N, 1\) or"
        r" \(N, 3\) in float64\.$",
        (X, Y),
        mean_function=tall,
    )
    refused(
        r"^The mean function at X, \[0, 0\] is inf .*: look at its parameters\.$",
        (X, Y),
        mean_function=lambda X: X[:, :1] / 0.0,
    )


def test_a_plain_function_serves_as_mean_function():
    model = CoolMTGP((X, Y), SquaredExponential(), lambda X: 3.0 * X[..., :1])
    assert_allclose(model.centred_targets(), Y - 3.0 * X[:, :1], rtol=1e-12)


def test_errors_are_summarised():
    error = ValueError("{{function_node __wrapped__X}}  Cannot\n multiply  a b")
    assert summary(error) == "Cannot multiply a b"
    assert summary(KeyError()) == "KeyError"
    assert len(summary(ValueError("x" * 1000))) == 200


def test_covariances():
    S = np.array([[2.0, -1.0], [-1.0, 2.0]])
    assert_array_equal(check_covariance(S.tolist(), "C", 2), S)
    assert_array_equal(check_covariance(np.ones((2, 2)), "C", 2), np.ones((2, 2)))  # singular
    nearly = S + [[0.0, 1e-9], [0.0, 0.0]]
    assert_allclose(check_covariance(nearly, "C", 2), S + [[0.0, 5e-10], [5e-10, 0.0]], rtol=1e-15)
    bad = {
        "C has shape (2, 2), but Y has 3 tasks: pass (3, 3).": (S, 3),
        "C[0, 1] is nan. Every entry must be finite: look at how it was computed.": (
            [[1.0, np.nan], [0.0, 1.0]],
            2,
        ),
        "C is not symmetric: 0.5 at [0, 1], but 0.25 at [1, 0].": ([[1.0, 0.5], [0.25, 1.0]], 2),
        "C is not a covariance: its smallest eigenvalue is -1, but none may be negative, nor all of"
        " them zero.": ([[1.0, 2.0], [2.0, 1.0]], 2),
        "C is not a covariance: its smallest eigenvalue is 0, but none may be negative, nor all of"
        " them zero.": (np.zeros((2, 2)), 2),
    }
    for text, (value, num_tasks) in bad.items():
        with pytest.raises(ValueError, match=exactly(text)):
            check_covariance(value, "C", num_tasks)


@pytest.mark.parametrize("base", [gpflow.kernels.Matern32, gpflow.kernels.Matern52])
def test_periodic_matern_kernels_of_several_columns_are_refused(base, rng):
    """The reason is shown: at few points that are far from special, K has a negative eigenvalue."""
    X, Y = rng.uniform(0, 4, size=(40, 3)), rng.normal(size=(40, 1))
    kernel = gpflow.kernels.Periodic(base(lengthscales=5.0), period=2.0)
    assert np.linalg.eigvalsh(kernel(X))[0] < -1e-5
    message = (
        rf"Periodic\({base.__name__}\(\)\) of 3 columns is not positive definite, .*product of"
    )
    with pytest.raises(ValueError, match=message):
        CoolMTGP((X, Y), kernel + gpflow.kernels.Linear())
    with pytest.raises(ValueError, match="of 2 columns is not positive definite"):
        CoolMTGP((X[:, :2], Y), kernel)
    kernel = gpflow.kernels.Periodic(base(active_dims=[1]))  # of one column it is
    assert np.linalg.eigvalsh(kernel(X))[0] > -1e-12
    CoolMTGP((X, Y), kernel)
