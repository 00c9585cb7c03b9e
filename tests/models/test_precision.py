"""Float64 beside decimal numbers of 100 digits, where noise is small or inputs are far away."""

from typing import NamedTuple

import extended as judge
import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGP, KroneckerMTGP, SparseCoolMTGP

KERNELS = {"se": gpflow.kernels.SquaredExponential, "matern12": gpflow.kernels.Matern12}
RATIO = 1e9
"""b / sigma2: a rounding error of K, relative to its diagonal, counts so many times."""


class Problem(NamedTuple):
    kernel: str
    X: np.ndarray
    Y: np.ndarray
    b: np.ndarray
    sigma2: np.ndarray
    lengthscale: float = 0.3

    @property
    def options(self):
        return {"b": self.b, "sigma2": self.sigma2}

    def gpflow_kernel(self):
        return KERNELS[self.kernel](lengthscales=self.lengthscale)

    def matrix(self):
        """K, in decimal numbers."""
        X = judge.exact(self.X)
        return judge.kernel(self.kernel, X, X, self.lengthscale)


@pytest.fixture(params=["se", "matern12"])
def kernel(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["rows", "repeated rows"])
def problem(request, kernel):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(16, 1))
    X = X[rng.integers(8, size=16)] if request.param else X
    Y = np.sin(6 * X + np.arange(3)) + 1e-4 * rng.normal(size=(16, 3))
    b = np.array([1.0, 0.5, 2.0])
    return Problem(kernel, X, Y, b, b / RATIO)


def parameters(model):
    """b and sigma2 as the model has them, which its transforms may have rounded."""
    return model.b.numpy(), model.sigma2.numpy()


@pytest.mark.parametrize("learning", ["hierarchical", "approximate"])
def test_objective_with_little_noise(problem, learning):
    """Six digits are left: a ratio of 1e9 times the rounding of eigenvalues that are zero."""
    model = CoolMTGP(
        (problem.X, problem.Y),
        problem.gpflow_kernel(),
        learning=learning,
        weight_prior="unit",
        **problem.options,
    )
    expected = judge.objective(
        problem.matrix(), judge.exact(problem.Y), *parameters(model), learning
    )
    assert_allclose(model.maximum_log_likelihood_objective(), float(expected), rtol=1e-6)


def test_evidence_with_little_noise(problem):
    A = np.array([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.3, 0.2, 0.9]])
    model = KroneckerMTGP(
        (problem.X, problem.Y),
        problem.gpflow_kernel(),
        task_covariance=A @ A.T,
        noise_covariance=np.eye(3) / RATIO,
    )
    expected = judge.evidence(
        problem.matrix(),
        judge.exact(problem.Y),
        model.task_covariance().numpy(),
        model.noise_covariance().numpy(),
    )
    assert_allclose(model.log_marginal_likelihood(), float(expected), rtol=1e-6)


def test_bound_with_little_noise(problem):
    for M in (6, 16):
        model = SparseCoolMTGP(
            (problem.X, problem.Y),
            problem.gpflow_kernel(),
            problem.X[:M],
            learning="hierarchical",
            weight_prior="unit",
            **problem.options,
        )
        K = problem.matrix()
        expected = judge.bound(
            K[:M, :M], K[:M], np.trace(K), judge.exact(problem.Y), *parameters(model)
        )
        actual = model.maximum_log_likelihood_objective()
        assert_allclose(actual, float(expected), rtol=1e-5, err_msg=f"{M} points")


@pytest.mark.slow
@pytest.mark.parametrize("offset", [1e4, 1e9, -1.7e9])
def test_evidence_of_inputs_far_from_zero(kernel, offset):
    """The inputs lose digits when they are moved; differences of what is left are exact."""
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(8, 1)) + offset
    Y = rng.normal(size=(8, 2))
    p = Problem(kernel, X, Y, np.array([1.0, 2.0]), np.array([0.1, 0.2]))
    model = CoolMTGP((X, Y), p.gpflow_kernel(), weight_prior="unit", **p.options)
    C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()
    expected = judge.evidence(p.matrix(), judge.exact(Y), C, Sigma)
    assert_allclose(model.log_marginal_likelihood(), float(expected), rtol=1e-11)
    expected = judge.objective(p.matrix(), judge.exact(Y), *parameters(model), model.learning)
    assert_allclose(model.maximum_log_likelihood_objective(), float(expected), rtol=1e-11)
