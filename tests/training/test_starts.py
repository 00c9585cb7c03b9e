"""Where a fit starts: variances that balance the terms of a sum, and constants."""

import warnings

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGP
from gpflow_cool.training import optimizers, starts


def se_and_linear():
    """Inputs far from zero: the linear term is as large as their square."""
    X = np.array([[101.81396071], [98.88298861], [100.29669476], [100.99677204]])
    Y = np.array([[-0.96729908, -1.42231063, -1.49932075, -1.07940843], [1.33, 2.08, 2.38, 1.76]]).T
    return CoolMTGP((X, Y), gpflow.kernels.SquaredExponential() + gpflow.kernels.Linear())


@pytest.mark.slow
def test_a_small_term_of_a_sum_is_not_overlooked(monkeypatch):
    """One descent over all parameters, after training, would find it as well."""
    monkeypatch.setattr(optimizers, "descend_unsolved", lambda *_: None)
    model, other = se_and_linear(), se_and_linear()
    model.fit(verbose=0)
    monkeypatch.setattr(starts, "UNBALANCED", np.inf)
    other.fit(verbose=0)
    assert model.training_loss() < other.training_loss() - 0.5


def test_terms_of_a_sum_are_balanced_where_one_is_far_larger():
    model = se_and_linear()
    kernel, X = model.kernel, model.data[0].numpy()
    ((which, variance),) = starts.balanced_variances(kernel, X).items()
    assert which == id(kernel.kernels[1].variance)
    assert_allclose(variance * np.mean(X**2), 1.0, rtol=1e-12)
    assert starts.balanced_variances(kernel, X - 100.0) == {}
    assert starts.balanced_variances(kernel.kernels[1], X) == {}
    gpflow.set_trainable(kernel.kernels[1].variance, False)
    assert starts.balanced_variances(kernel, X) == {}


def test_constants_start_at_the_size_of_the_means(rng):
    """A default fit is as good as one that starts with the right constant, to 0.1 nats."""
    X = rng.normal(size=(30, 2))
    Y = X @ rng.normal(size=(2, 2)) + 0.3 * rng.normal(size=(30, 2)) + 1e8
    linear, losses = gpflow.kernels.Linear, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # targets far from zero
        for constant in (1.0, 1e16, 3e16):
            model = CoolMTGP((X, Y), linear() + gpflow.kernels.Constant(constant))
            if constant == 1.0:
                ((which, value),) = starts.constants_for_means(model).items()
                assert which == id(model.kernel.kernels[1].variance)
                ratio = np.max(np.mean(Y**2, axis=0) / np.var(Y, axis=0))
                assert_allclose(value, ratio * np.mean(np.sum(X**2, axis=1)), rtol=1e-6)
            model.fit(verbose=0)
            losses.append(float(model.training_loss()))
    assert losses[0] < min(losses[1:]) + 0.1
    near = CoolMTGP((X, Y - 1e8), linear() + gpflow.kernels.Constant())
    assert starts.constants_for_means(near) == {}
    alone = CoolMTGP((X, Y - 1e8 + 20.0), linear())
    assert starts.constants_for_means(alone) == {}


def test_a_number_beyond_single_precision_may_be_a_start():
    """`random_case(80819)`: inputs at 1e12 and targets at 1e9 ask for a constant of 1e42."""
    parameter = gpflow.Parameter(1.0, transform=gpflow.utilities.positive())
    assert starts.is_admissible(parameter, 1e42)
    assert not starts.is_admissible(parameter, -1.0)
