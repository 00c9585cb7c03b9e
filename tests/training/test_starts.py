"""Where a fit starts again: lengthscales at which something other than noise is seen."""

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpflow_cool import SparseCoolMTGP
from gpflow_cool.training import starts

NOTE = "everything looks like noise: no target was found to depend on the inputs. Other inputs,"


def noise_around_a_mean(seed):
    """Few inducing points and one lengthscale per input: short ones do not see the mean."""
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(17, 3)), rng.normal(size=(17, 1)) + 0.6
    return SparseCoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=np.ones(3)), X[:6])


@pytest.mark.slow
def test_a_fit_leaves_a_place_where_everything_looks_like_noise(monkeypatch):
    model, other = noise_around_a_mean(6), noise_around_a_mean(6)
    history = model.fit(verbose=0)
    assert NOTE not in history.message
    with monkeypatch.context() as patch:
        patch.setattr(starts, "LADDER", ())
        assert NOTE in other.fit(verbose=0).message
    assert model.training_loss() < other.training_loss() - 0.9
    assert_allclose(min(history.history["loss"]), model.training_loss(), rtol=1e-9)


def test_where_no_lengthscale_sees_more_the_history_says_so():
    model = noise_around_a_mean(10)
    assert NOTE in model.fit(verbose=0).message
    assert np.all(model.b.numpy() < 1e-6 * model.sigma2.numpy())
    profile, loss = model.profile(), model.training_loss()
    for factor in starts.LADDER:
        model.kernel.lengthscales.assign(np.full(3, factor))
        assert profile.evaluate().loss > loss - 1e-3
