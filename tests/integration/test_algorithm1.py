"""The paper's Algorithm 1, an alternation, ends where L-BFGS on one objective ends."""

import gpflow
import numpy as np
import reference as ref
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGP


def kernel_matrix(X, theta):
    return ref.squared_exponential(X, X, 1.0, np.exp(theta))


def test_alternation_and_lbfgs_end_at_one_optimum(rng):
    X = np.sort(rng.uniform(-3, 3, size=(12, 1)), axis=0)
    f = np.sin(2 * X)
    Y = np.hstack([f, f + 0.5 * np.cos(X)]) + 0.3 * rng.normal(size=(12, 2))
    b, sigma2 = np.ones(2), np.full(2, 0.1)
    alternation = ref.hierarchical_alternation(
        X, Y, kernel_matrix, np.zeros(1), b, sigma2, steps=2000, rate=0.025
    )
    model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(), b=b, sigma2=sigma2)
    start = model.maximum_log_likelihood_objective()
    assert_allclose(start, ref.objective(kernel_matrix(X, 0.0), Y, b, sigma2, "hierarchical"))
    options = {"ftol": 1e-14, "gtol": 1e-8}
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options=options
    )
    assert_allclose(np.log(model.kernel.lengthscales), alternation.theta[0], rtol=1e-4, atol=1e-5)
    assert_allclose(model.b, alternation.b, rtol=1e-4)
    assert_allclose(model.sigma2, alternation.sigma2, rtol=1e-4)
    K = kernel_matrix(X, alternation.theta)
    end = ref.objective(K, Y, alternation.b, alternation.sigma2, "hierarchical")
    assert_allclose(model.maximum_log_likelihood_objective(), end, rtol=1e-9)
    assert end > start + 1.0  # they went somewhere
    W, expected = model.multitask_parameters().W, ref.weights(K, Y, *alternation[1:])
    assert_allclose(W, expected, atol=1e-4)
