"""A small model of two correlated outputs, which the tests with Trieste share."""

import gpflow
import numpy as np

from gpflow_cool import KroneckerMTGP

C = np.array([[1.0, 1.0], [1.0, 1.5]])
SIGMA = np.array([[0.10, 0.05], [0.05, 0.20]])


def data(rng, N=8):
    return rng.uniform(size=(N, 2)), rng.normal(size=(N, 2))


def kernel():
    return gpflow.kernels.SquaredExponential(1.2, lengthscales=0.5)


def exact(X, Y):
    mean = gpflow.mean_functions.Constant(0.3)
    return KroneckerMTGP.ground_truth((X, Y), kernel(), C, SIGMA, mean_function=mean)
