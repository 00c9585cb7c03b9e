"""
Regression problems, ordinary and degenerate, that the tests share; nothing of the package.

Noise variances are at least 0.05 and amplitudes of order one, so that every covariance has a
condition number below 1e4: two routes in float64 then agree to 1e-11 or so, and `assert_close`
leaves room for other BLAS libraries and none for a wrong formula.
"""

from typing import NamedTuple

import gpflow
import numpy as np
import reference as ref
from gpflow.utilities import parameter_dict
from numpy.testing import assert_allclose

LEARNINGS = ["hierarchical", "approximate"]
LAYOUTS = [(False, False), (True, False), (False, True), (True, True)]

VARIANCE, LENGTHSCALE = 1.3, 1.5
SLOPES = 0.7


class Problem(NamedTuple):
    """Data, parameters of the chain, and a kernel by name."""

    X: ref.Array  # [N, D]
    Y: ref.Array  # [N, T]
    Xnew: ref.Array  # [M, D]
    Ynew: ref.Array  # [M, T]
    b: ref.Array  # [T]
    sigma2: ref.Array  # [T]
    kernel: str

    def k(self, X1, X2):
        if self.kernel == "linear":
            return ref.linear(X1, X2, SLOPES)
        return ref.squared_exponential(X1, X2, VARIANCE, LENGTHSCALE)

    @property
    def K(self):
        return self.k(self.X, self.X)

    @property
    def chain(self):
        """What the functions of the conditional model take."""
        return self.K, self.Y, self.b, self.sigma2

    @property
    def kernels(self):
        """K, Ks and Kss, what the functions of the joint model take first."""
        return self.K, self.k(self.X, self.Xnew), self.k(self.Xnew, self.Xnew)

    def gpflow_kernel(self):
        if self.kernel == "linear":
            return gpflow.kernels.Linear(variance=SLOPES)
        return gpflow.kernels.SquaredExponential(variance=VARIANCE, lengthscales=LENGTHSCALE)


def joint_arguments(p):
    """
    What the reference's predictions take: kernels, targets, and C and Sigma as a model recovers
    them that starts with lambda = 1.
    """
    return *p.kernels, p.Y, *ref.recover(*p.chain, 1.0)


def unit_of_variance(K):
    """
    The geometric mean of K's mean variance and of what its largest eigenvalue leaves of it, to
    whole steps of one half of its logarithm.
    """
    mean, largest = np.trace(K) / len(K), np.linalg.norm(K, 2) / len(K)
    typical = np.sqrt(mean * max(mean - largest, 1e-4 * mean)) or 1.0
    return np.exp(0.5 * np.round(2.0 * np.log(typical)))


def rows_left_out(p):
    """[N], log density of each row given the others, by the chain of a model with lambda = 1."""
    return ref.leave_out_log_densities(*p.chain, [[row] for row in range(len(p.Y))], 1.0)


def some_known(Y):
    """Every second entry, counted through all of them; NaN elsewhere."""
    return np.where(np.arange(np.size(Y)).reshape(np.shape(Y)) % 2 == 0, Y, np.nan)


def random_problem(rng, N, T, D=2, M=3, kernel="squared_exponential"):
    return Problem(
        X=rng.normal(size=(N, D)),
        Y=rng.normal(size=(N, T)),
        Xnew=rng.normal(size=(M, D)),
        Ynew=rng.normal(size=(M, T)),
        b=rng.uniform(0.5, 2.0, size=T),
        sigma2=rng.uniform(0.05, 0.5, size=T),
        kernel=kernel,
    )


def with_columns(problem, **columns):
    """The problem with some of its targets replaced: `with_columns(p, t2=y)`."""
    Y = problem.Y.copy()
    for name, y in columns.items():
        Y[:, int(name[1:])] = y
    return problem._replace(Y=Y)


def repeated_rows(rng):
    p = random_problem(rng, 9, 3)
    rows = np.array([0, 1, 2, 0, 1, 0, 3, 3, 3])
    return p._replace(X=p.X[rows], Xnew=np.vstack([p.X[:2], p.Xnew[:2]]), Ynew=p.Y[:4])


def combination(rng):
    p = random_problem(rng, 8, 4)
    return with_columns(p, t1=p.Y[:, 0] - 2.0 * p.Y[:, 2], t3=p.Y[:, 0] + 0.5 * p.Y[:, 2])


def no_signal(rng):
    """The first two tasks are orthogonal to all that a linear kernel can express."""
    p = random_problem(rng, 12, 4, D=2, kernel="linear")
    Y = p.Y - p.X @ np.linalg.lstsq(p.X, p.Y, rcond=None)[0]
    return with_columns(p, t0=Y[:, 0], t1=Y[:, 1])


def more_tasks_than_rows(rng):
    """Targets of comparable scales, which five pairs of normal numbers need not be."""
    p = random_problem(rng, 2, 5)
    return p._replace(Y=rng.uniform(0.5, 1.5, size=(2, 5)) * [[1.0], [-1.0]] + 0.1)


def trap_for_a_single_start(rng):
    """
    Waves that a kernel of long lengthscale explains only with a large b: their energy lies where
    its eigenvalues are below their mean, so that a little b makes "all noise" worse.
    """
    x = np.linspace(0.0, 6.0, 30)
    F = np.stack([np.sin(2 * x), np.cos(2 * x), np.sin(2 * x + 0.5)], axis=1)
    Y = F + 0.05 * rng.normal(size=F.shape)
    return ref.squared_exponential(x[:, None], x[:, None], 1.0, 2.0), Y / Y.std(axis=0)


def smooth_data(rng, N=20, T=3, D=1):
    """Different waves with shared noise: every b and sigma2 has its optimum inside the bounds."""
    X = rng.uniform(0.0, 5.0, size=(N, D))
    phases = np.array([0.0, 1.6, 3.5, 5.0])[:T]
    F = np.sin(X.sum(axis=1, keepdims=True) * [1.3, 0.9, 1.7, 0.6][:T] + phases)
    E = rng.normal(size=(N, T)) @ (np.eye(T) + 0.4 * np.triu(np.ones((T, T)), 1))
    Y = F + 0.25 * E
    return X, (Y - Y.mean(axis=0)) / Y.std(axis=0)


CASES = {
    "N1-T1": lambda rng: random_problem(rng, 1, 1),
    "N7-T1": lambda rng: random_problem(rng, 7, 1),
    "N7-T3": lambda rng: random_problem(rng, 7, 3),
    "N2-T5": more_tasks_than_rows,
    "N12-T4": lambda rng: random_problem(rng, 12, 4),
    "D9-N4": lambda rng: random_problem(rng, 4, 3, D=9),
    "repeated_rows": repeated_rows,
    "linear": lambda rng: random_problem(rng, 12, 4, kernel="linear"),
    "linear_one_input": lambda rng: random_problem(rng, 7, 3, D=1, kernel="linear"),
    "copies": lambda rng: with_columns(p := random_problem(rng, 7, 3), t1=p.Y[:, 0], t2=p.Y[:, 0]),
    "combination": combination,
    "zeros": lambda rng: with_columns(random_problem(rng, 7, 4), t1=0.0),
    "zeros_first": lambda rng: with_columns(random_problem(rng, 7, 2), t0=0.0),
    "constants": lambda rng: with_columns(random_problem(rng, 7, 3), t0=0.7, t1=0.7, t2=-1.1),
    "no_signal": no_signal,
    "zero_kernel": lambda rng: random_problem(rng, 7, 3, kernel="linear")._replace(
        X=np.zeros((7, 2))
    ),
}


def assert_close(actual, expected, rtol=1e-9):
    """Equal to `rtol` of the largest entry: a small entry is a difference of large ones."""
    expected = np.asarray(expected)
    scale = np.max(np.abs(expected), initial=0.0)
    assert_allclose(np.asarray(actual), expected, rtol=rtol, atol=rtol * scale + 1e-13)


def assert_moments(draws, mean, cov, bound=5.0):
    """
    Mean and covariance of S draws [S, K] within `bound` standard errors, entry by entry.

    The mean's standard error is sqrt(V_ii / S), the covariance's sqrt((V_ii V_jj + V_ij^2) / S);
    five of them happen by chance once in 1.7 million entries, and the draws are seeded.
    """
    S = len(draws)
    E = np.asarray(draws) - mean
    v = np.diag(cov)
    assert np.all(np.abs(E.mean(axis=0)) <= bound * np.sqrt(v / S) + 1e-12)
    error = np.sqrt((np.outer(v, v) + cov**2) / S)
    assert np.all(np.abs(E.T @ E / S - cov) <= bound * error + 1e-12)


def perturbed(model, rng):
    """Every parameter somewhere else, so that no value is a default."""
    for parameter in parameter_dict(model).values():
        raw = parameter.unconstrained_variable
        raw.assign(raw + 0.3 * rng.normal(size=raw.shape))
    return model


def random_covariance(rng, T, rank=None):
    """A covariance between tasks: positive definite, or of a rank."""
    A = rng.normal(size=(T, rank or T))
    return A @ A.T + (0.0 if rank else 0.3 * np.eye(T))


def perturb(model, rng):
    """Any parameters but those that the model starts from."""
    for variable in model.trainable_variables:
        variable.assign_add(0.3 * rng.normal(size=variable.shape))


def values(model):
    """Parameters by their names."""
    return {name: p.numpy() for name, p in parameter_dict(model).items()}


def minimise_plainly(model):
    """GPflow's own L-BFGS on the whole loss, to a tight tolerance."""
    gpflow.optimizers.Scipy().minimize(
        model.training_loss,
        model.trainable_variables,
        tf_fun_args={"autograph": False},
        options={"maxiter": 500, "ftol": 1e-13, "gtol": 1e-6},
    )
    return float(model.training_loss())
