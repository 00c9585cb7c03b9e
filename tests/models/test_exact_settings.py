"""KroneckerMTGP as the paper's competitors, and as the refinement of CoolMTGP."""

import gpflow
import numpy as np
import pytest
import reference as ref
from gpflow.kernels import SquaredExponential
from gpflow.utilities import parameter_dict
from numpy.testing import assert_allclose
from problems import (
    CASES,
    assert_close,
    random_covariance,
    random_problem,
)

from gpflow_cool import CoolMTGP, KroneckerMTGP, SparseCoolMTGP
from gpflow_cool.chain.starting import EXACT_NOISE_FLOOR


def shapes(model):
    """Shapes of the trainable parameters of C and Sigma."""
    return {
        name: tuple(p.shape)
        for name, p in parameter_dict(model).items()
        if p.trainable and name.startswith((".signal", ".noise"))
    }


def test_constructors(rng):
    p = random_problem(rng, 9, 3)
    data = p.X, p.Y
    names = ["a", "b", "c"]
    std = KroneckerMTGP.std_mt(data, p.gpflow_kernel(), rank=2, task_names=names)
    assert std.task_names == ("a", "b", "c")
    assert shapes(std) == {
        ".signal.weights": (3, 2),
        ".signal.diagonal": (),
        ".noise.diagonal": (),
    }
    icm = KroneckerMTGP.icm(data, p.gpflow_kernel())
    assert shapes(icm) == {
        ".signal.weights": (3, 1),
        ".signal.diagonal": (),
        ".noise.diagonal": (),
    }
    sigma = KroneckerMTGP.sigma_mt(data, p.gpflow_kernel(), rank=2)
    assert shapes(sigma) == {
        ".signal.weights": (3, 2),
        ".signal.diagonal": (),
        ".noise.weights": (3, 2),
        ".noise.diagonal": (3,),
    }
    full = KroneckerMTGP(data, p.gpflow_kernel())
    assert shapes(full) == {".signal.factor": (3, 3), ".noise.factor": (3, 3)}
    shared = KroneckerMTGP(data, p.gpflow_kernel(), rank=0, noise_rank="diagonal")
    assert shapes(shared) == {".signal.diagonal": (3,), ".noise.diagonal": (3,)}
    mean_function = gpflow.mean_functions.Constant(np.zeros(3))
    assert KroneckerMTGP.icm(data, p.gpflow_kernel(), mean_function=mean_function).mean_function


def test_starting_values(rng):
    """C from the covariance of Y over the kernel's variance, Sigma a tenth of the variances."""
    X, Y = rng.normal(size=(50, 2)), rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3))
    model = KroneckerMTGP((X, Y), SquaredExponential(variance=2.5))
    expected = 0.9 * np.cov(Y.T, bias=True) / 2.5
    np.fill_diagonal(expected, Y.var(axis=0) / 2.5)
    assert_close(model.task_covariance(), expected)
    assert_close(model.noise_covariance(), np.diag(0.1 * Y.var(axis=0)))
    assert not model.kernel.variance.trainable


def test_given_covariances_are_kept(rng):
    p = random_problem(rng, 6, 3)
    C, Sigma = random_covariance(rng, 3), random_covariance(rng, 3)
    model = KroneckerMTGP(
        (p.X, p.Y), p.gpflow_kernel(), task_covariance=C.tolist(), noise_covariance=Sigma
    )
    assert_close(model.task_covariance(), C, rtol=1e-11)
    assert_close(model.noise_covariance(), Sigma, rtol=1e-11)


def test_small_noise_of_one_task_is_no_mistake(rng):
    """A noise a hundred million times smaller than another's is no singular matrix."""
    p = random_problem(rng, 6, 2)
    Sigma = np.diag([1.0, 1e-8])
    for noise_rank in ("full", "diagonal"):
        with pytest.warns(UserWarning, match="The standard deviations of the targets differ"):
            model = KroneckerMTGP(
                (p.X, p.Y * [1.0, 1e-4]),
                p.gpflow_kernel(),
                noise_covariance=Sigma,
                noise_rank=noise_rank,
            )
        assert_allclose(np.diag(model.noise_covariance()), np.diag(Sigma), rtol=1e-9)


@pytest.mark.slow
def test_ground_truth_is_kept_in_training(rng):
    p = random_problem(rng, 12, 3)
    C, Sigma = random_covariance(rng, 3), random_covariance(rng, 3)
    model = KroneckerMTGP.ground_truth((p.X, p.Y), p.gpflow_kernel(), C, Sigma)
    assert [v.shape for v in model.trainable_variables] == [()]  # the lengthscale
    before = model.training_loss().numpy()
    model.fit(verbose=0)
    assert model.training_loss().numpy() < before
    assert_close(model.task_covariance(), C, rtol=1e-11)
    assert_close(model.noise_covariance(), Sigma, rtol=1e-11)


@pytest.mark.parametrize("T, rank", [(2, 1), (4, 2), (4, 1)])
def test_ground_truth_of_low_rank_is_finite(rng, T, rank):
    """Singular C and Sigma: the noise is lifted a little, as documented, and C is not."""
    p = random_problem(rng, 9, T)
    C, Sigma = random_covariance(rng, T, rank), random_covariance(rng, T, rank)
    Y = p.X @ rng.normal(size=(2, T)) + rng.normal(size=(9, rank)) @ rng.normal(size=(rank, T))
    model = KroneckerMTGP.ground_truth((p.X, Y), p.gpflow_kernel(), C, Sigma)
    assert_close(model.task_covariance(), C, rtol=1e-11)
    lifted = model.noise_covariance().numpy()
    assert_allclose(lifted, Sigma, atol=2.0 * EXACT_NOISE_FLOOR * np.diag(Sigma).max())
    deviation = np.sqrt(np.diag(Sigma))
    lowest = np.linalg.eigvalsh(lifted / np.outer(deviation, deviation))[: T - rank]
    assert_allclose(lowest, EXACT_NOISE_FLOOR, rtol=1e-6)
    expected = ref.log_evidence(p.K, Y, C, lifted)
    assert_close(model.log_marginal_likelihood(), expected, rtol=1e-5)
    outputs = [*model.predict_y(p.Xnew, True, True), *model.leave_one_out()]
    outputs.append(model.predict_log_density((p.Xnew, p.Ynew), True, True))
    assert all(np.isfinite(output).all() for output in outputs)


def test_noise_without_variance_is_lifted(rng):
    """A task that is said to have no noise at all gets a little of its targets' variance."""
    p = random_problem(rng, 6, 2)
    model = KroneckerMTGP((p.X, p.Y), p.gpflow_kernel(), noise_covariance=np.diag([0.5, 0.0]))
    expected = np.diag([0.5, EXACT_NOISE_FLOOR * p.Y[:, 1].var()])
    assert_allclose(model.noise_covariance(), expected, rtol=1e-6, atol=1e-12)


# From and to CoolMTGP -----------------------------------------------------------------------------


SOME = ["N1-T1", "N7-T1", "N7-T3", "N2-T5", "repeated_rows", "linear", "zeros", "zero_kernel"]


@pytest.mark.filterwarnings("ignore:The standard deviations")
@pytest.mark.parametrize("case", [*SOME, "copies", "combination", "no_signal"])
def test_exact_from_cool_predicts_the_same(rng, case):
    p = CASES[case](rng)
    cool = CoolMTGP((p.X, p.Y), p.gpflow_kernel(), b=p.b, sigma2=p.sigma2)
    exact = cool.to_exact()
    evidence = cool.log_marginal_likelihood()
    assert_close(exact.log_marginal_likelihood(), evidence, rtol=1e-8)
    for a, e in zip(
        exact.predict_y(p.Xnew, True, True), cool.predict_y(p.Xnew, True, True), strict=True
    ):
        assert_close(a, e, rtol=1e-7)
    assert_close(exact.task_covariance(), cool.task_covariance(), rtol=1e-10)
    assert_close(exact.noise_covariance(), cool.noise_covariance(), rtol=1e-10)


def test_nearly_singular_noise_is_carried_over(rng):
    """A tenth of a given noise is the floor, not what is usual."""
    p = random_problem(rng, 8, 3)
    Y = np.hstack([p.Y[:, :2], p.Y[:, :1] - p.Y[:, 1:2]])
    cool = CoolMTGP((p.X, Y), p.gpflow_kernel(), b=1.0, sigma2=[0.1, 0.1, 1e-7])
    exact = KroneckerMTGP.from_cool(cool)
    assert_close(exact.noise_covariance(), cool.noise_covariance(), rtol=1e-10)
    assert_allclose(exact.log_marginal_likelihood(), cool.log_marginal_likelihood(), rtol=1e-6)


def test_exact_from_cool_is_a_model_of_its_own(rng):
    p = random_problem(rng, 8, 3)
    mean_function = gpflow.mean_functions.Constant(0.3)
    names = ["x", "y", "z"]
    cool = CoolMTGP((p.X, p.Y), p.gpflow_kernel(), mean_function, task_names=names)
    cool.task_column = 1
    cool.kernel.lengthscales.assign(0.8)
    exact = cool.to_exact()
    assert exact.task_names == ("x", "y", "z")
    assert exact.task_column == 1
    expected = cool.predict_f(p.Xnew)
    assert_close(exact.predict_f(p.Xnew)[0], expected[0], rtol=1e-8)
    exact.kernel.lengthscales.assign(0.1)
    exact.mean_function.c.assign(5.0)
    exact.signal.assign(np.eye(3))
    assert_close(cool.predict_f(p.Xnew)[0], expected[0], rtol=1e-12)


def test_exact_from_another_model_is_refused_with_advice(rng):
    p = random_problem(rng, 8, 3)
    sparse = SparseCoolMTGP((p.X, p.Y), p.gpflow_kernel(), p.X)
    exact = KroneckerMTGP((p.X, p.Y), p.gpflow_kernel())
    for model in (sparse, exact):
        name = type(model).__name__
        with pytest.raises(ValueError, match=f"a CoolMTGP, and this is a {name}.*ground_truth"):
            KroneckerMTGP.from_cool(model)
    C, Sigma = sparse.task_covariance(), sparse.noise_covariance()
    advised = KroneckerMTGP.ground_truth((p.X, p.Y), sparse.kernel, C, Sigma)
    for a, e in zip(advised.predict_y(p.Xnew), sparse.predict_y(p.Xnew), strict=True):
        assert_close(a, e, rtol=1e-6)
