"""White noise on the way to and from GPflow's coregionalization: what changes is told."""

import warnings

import gpflow
import numpy as np
import pytest
import reference as ref
from coregionalized import augmented
from gpflow.kernels import Coregion, Matern32, SquaredExponential, White
from numpy.testing import assert_allclose
from problems import random_problem

from gpflow_cool import CoolMTGP, KroneckerMTGP

V = 0.5
C, SIGMA = np.array([[1.0, 0.8], [0.8, 1.0]]), np.diag([0.1, 0.3])
SUMS = {
    "sum": lambda base, dims: base + White(V, active_dims=dims),
    "nested": lambda base, dims: (
        base + White(V, active_dims=dims) * gpflow.kernels.Constant(1.0, active_dims=dims)
    ),
}


def coregion_gpr(X, Y, base):
    """GPflow's model at C, with a noise variance of 0.1."""
    coregion = Coregion(2, 2, active_dims=[2])
    coregion.W.assign(np.linalg.cholesky(C - 1e-9 * np.eye(2)))
    coregion.kappa.assign([1e-9, 1e-9])
    return gpflow.models.GPR(augmented(X, Y), base * coregion, noise_variance=0.1)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("cls", [CoolMTGP, KroneckerMTGP])
def test_white_that_comes_along_is_told(rng, name, cls):
    p = random_problem(rng, 6, 2)
    gpr = coregion_gpr(p.X, p.Y, SUMS[name](SquaredExponential(active_dims=[0, 1]), [0, 1]))
    with pytest.warns(UserWarning, match="White.*independent.*here.*Leave White out") as caught:
        cls.from_coregion(gpr)
    assert len(caught) == 1 and caught[0].filename == __file__


@pytest.mark.parametrize("name", SUMS)
def test_evidence_on_both_sides_is_what_the_warnings_say(rng, name):
    """White adds v C to the noise of a row here, and the diagonal of v C in GPflow's layout."""
    p = random_problem(rng, 6, 2)
    kernel = SUMS[name](p.gpflow_kernel(), [0, 1])
    model = KroneckerMTGP.ground_truth((p.X, p.Y), kernel, C, SIGMA)
    assert_allclose(
        model.log_marginal_likelihood(), ref.log_evidence(p.K, p.Y, C, SIGMA + V * C), rtol=1e-9
    )
    with pytest.warns(UserWarning, match="White.*by up to 0.80.*not carried over") as caught:
        gpr = model.to_coregion_gpr()
    assert len(caught) == 1 and caught[0].filename == __file__
    expected = ref.log_evidence(p.K, p.Y, C, SIGMA + V * np.diag(np.diag(C)))
    assert_allclose(gpr.log_marginal_likelihood(), expected, rtol=1e-6)
    with pytest.warns(UserWarning, match="this is another model"):
        back = KroneckerMTGP.from_coregion(gpr, task_covariance=C, noise_covariance=SIGMA)
    assert_allclose(back.log_marginal_likelihood(), model.log_marginal_likelihood(), rtol=1e-9)


def test_nothing_is_said_where_nothing_changes(rng):
    """No White, tasks that do not correlate, or one task."""
    p = random_problem(rng, 6, 2)
    white = SUMS["sum"](p.gpflow_kernel(), [0, 1])
    y = p.Y[:, :1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CoolMTGP.from_coregion(coregion_gpr(p.X, p.Y, Matern32(active_dims=[0, 1])))
        KroneckerMTGP.ground_truth((p.X, p.Y), p.gpflow_kernel(), C, SIGMA).to_coregion_gpr()
        apart = KroneckerMTGP.ground_truth((p.X, p.Y), white, np.eye(2), SIGMA)
        gpr = apart.to_coregion_gpr()
        one = KroneckerMTGP.ground_truth((p.X, y), white, [[2.0]], [[0.1]]).to_coregion_gpr()
        again = KroneckerMTGP.from_coregion(one, task_covariance=[[2.0]], noise_covariance=[[0.1]])
    assert_allclose(gpr.log_marginal_likelihood(), apart.log_marginal_likelihood(), rtol=1e-6)
    assert_allclose(again.log_marginal_likelihood(), one.log_marginal_likelihood(), rtol=1e-6)
