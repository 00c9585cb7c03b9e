"""Kernels, mean functions and parameters through JSON and back: equal to the last bit."""

import json

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp
from numpy.testing import assert_array_equal
from problems import perturbed

from gpflow_cool.saving.folder import Content
from gpflow_cool.saving.modules import KERNELS, MEAN_FUNCTIONS, Reader, Writer

K = gpflow.kernels
M = gpflow.mean_functions


def round_trip(module, kind):
    """A module through JSON and back."""
    writer = Writer()
    saved = json.loads(json.dumps(writer.module(module, kind)))
    document = json.loads(json.dumps({"parameters": writer.parameters}))
    return Reader(Content(document, writer.arrays)).module(saved, kind)


KERNEL_EXAMPLES = {
    **{
        name: KERNELS[name].make
        for name in KERNELS
        if name not in ("Periodic", "Sum", "Product", "ChangePoints", "Polynomial", "ArcCosine")
    },
    "Polynomial": lambda: K.Polynomial(2, offset=0.5),
    "ArcCosine": lambda: K.ArcCosine(1, weight_variances=[1.0, 2.0]),
    "Periodic": lambda: K.Periodic(K.Matern32(active_dims=[1]), period=2.0),
    "Sum": lambda: K.Matern32(active_dims=[1]) + K.Cosine(active_dims=slice(0, 1)) + K.White(),
    "Product": lambda: K.Matern32(active_dims=[1]) * (K.Linear() + K.Constant()),
    "ChangePoints": lambda: K.ChangePoints(
        [K.Matern12(), K.Linear(), K.Constant()], [0.1, 0.4], steepness=3.0
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_come_back(rng, name):
    kernel = perturbed(KERNEL_EXAMPLES[name](), rng)
    X = rng.normal(size=[5, 1 if name == "ChangePoints" else 2])
    again = round_trip(kernel, "kernel")
    assert type(again) is type(kernel)
    assert_array_equal(kernel(X), again(X))
    assert_array_equal(kernel(X, X[:2] + 0.1), again(X, X[:2] + 0.1))


MEAN_EXAMPLES = {
    "Zero": lambda: M.Zero(3),
    "Constant": lambda: M.Constant(np.ones(3)),
    "Linear": lambda: M.Linear(np.ones([2, 3]), np.zeros(3)),
    "Identity": lambda: M.Identity(2),
    "Polynomial": lambda: M.Polynomial(2, 2, 3),
    "Additive": lambda: M.Constant(np.ones(1)) + M.Linear(np.ones([2, 1])),
    "Product": lambda: M.Constant(np.ones(1)) * M.Linear(np.ones([2, 1])),
}


@pytest.mark.parametrize("name", MEAN_FUNCTIONS)
def test_mean_functions_come_back(rng, name):
    function = perturbed(MEAN_EXAMPLES[name](), rng)
    X = rng.normal(size=[5, 2])
    assert_array_equal(function(X), round_trip(function, "mean_function")(X))


@pytest.mark.parametrize(
    "transform",
    [
        tfp.bijectors.Exp(),
        tfp.bijectors.Sigmoid(np.float64(0.5), np.float64(3.0)),
        gpflow.utilities.positive(lower=0.25),
        tfp.bijectors.Chain([tfp.bijectors.Scale(np.float64(2.0)), tfp.bijectors.Softplus()]),
    ],
    ids=lambda transform: transform.name,
)
def test_bounds_come_back(transform):
    kernel = K.SquaredExponential()
    kernel.lengthscales = gpflow.Parameter(1.1, transform=transform)
    again = round_trip(kernel, "kernel").lengthscales
    assert_array_equal(again.numpy(), kernel.lengthscales.numpy())
    for raw in (-40.0, 0.3, 40.0):
        raw = np.float64(raw)
        assert_array_equal(again.transform.forward(raw), transform.forward(raw))


def test_a_shared_parameter_stays_shared():
    first, second = K.Matern12(), K.Matern52()
    second.lengthscales = first.lengthscales
    again = round_trip(first + second, "kernel")
    assert again.kernels[0].lengthscales is again.kernels[1].lengthscales
    assert again.kernels[0].variance is not again.kernels[1].variance
