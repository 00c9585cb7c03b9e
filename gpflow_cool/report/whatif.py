r"""
What a page needs to predict by itself: a fitted estimator as plain data.

Means go through all rows X, and deviations through R points Z: rows of the data, or where these are
many a choice of them. A model with inducing points has these in both places.

.. math:: m(x) = k(X, x)^\top \alpha, \qquad
          q_j(x) = d_j k(x, x) - \sum_r w_{rj} (V^\top k(Z, x))_r^2

.. math:: \mathrm{cov}(y(x)) = P \, \mathrm{diag}(q(x) + 1) \, P^\top

The same formulas stand in `predictor.js`, and below in NumPy, which tells the error of the page.
"""

import base64
from typing import Any, NamedTuple

import gpflow
import numpy as np
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel
from scipy.linalg import solve_triangular

from ..joint.kronecker import JointSolution
from ..joint.missing import ObservedSolution
from ..kernels import Laplacian, kernel_matrix
from ..systems.features import InducingFeatures, choose_inducing_points
from ..table.transforms import FAR_AWAY, Warping, quadrature

MAX_POINTS = 500
"""More rows than these are reduced to `REDUCED_POINTS`."""

REDUCED_POINTS = 350

MAX_MEAN_NUMBERS = 200_000
"""Rows with more numbers than these, inputs and targets together, are reduced for the mean too."""

MAX_OBSERVED = 1100
"""Where targets are missing and more than these are observed, there is no panel."""

MAX_TARGETS, MAX_COLUMNS, MAX_INPUTS = 60, 40, 300
"""A page with more targets, columns or inputs (categories apart) than these has no panel."""

CHECKED_ROWS = 50
"""The error of the page is measured at this many rows, and as many places between them."""

STATIONARY = {
    gpflow.kernels.SquaredExponential: "se",
    gpflow.kernels.Exponential: "exponential",
    gpflow.kernels.Matern12: "matern12",
    gpflow.kernels.Matern32: "matern32",
    gpflow.kernels.Matern52: "matern52",
    gpflow.kernels.RationalQuadratic: "rq",
    Laplacian: "laplacian",
}
"""Names of kernels in the page."""


class PageForm(NamedTuple):
    """A posterior in the form of the page, in standardised units."""

    X: AnyNDArray
    """[N, D], points of the mean."""

    alpha: AnyNDArray
    """[N, T]."""

    Z: AnyNDArray
    """[R, D], points of the deviations; often the same."""

    V: AnyNDArray
    """[R, r], from cross-covariances to eigenvectors."""

    w: AnyNDArray
    """[r, T]."""

    d: AnyNDArray
    """[T]."""

    P: AnyNDArray
    """[T, T]."""

    def predict(self, kernel: Kernel, X: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
        """Means [M, T] and covariances [M, T, T] of observations, as the page computes them."""
        k, c = (np.asarray(kernel_matrix(kernel, part, X)) for part in (self.Z, self.X))
        prior = np.outer(np.asarray(kernel(X, full_cov=False)), self.d)
        q = np.maximum(prior - np.square(k.T @ self.V) @ self.w, 0.0) + 1.0
        return c.T @ self.alpha, np.einsum("tj,mj,uj->mtu", self.P, q, self.P)


class ObservedForm(NamedTuple):
    r"""
    A posterior given n observed targets, where others are missing, in the form of the page.

    .. math:: \mathrm{cov}(y(x)) = k(x, x) C + \Sigma - G^\top G, \qquad
              G_{it} = \sum_{o \le i} (L^{-1})_{io} \, k(x_{n_o}, x) \, C_{t u_o}

    where the observed target o is that of row :math:`n_o` and task :math:`u_o`, and
    :math:`S_{oo} = L L^\top`.
    """

    X: AnyNDArray
    """[N, D]."""

    alpha: AnyNDArray
    """[N, T]."""

    A: AnyNDArray
    """[n (n + 1) / 2], rows of the inverse of L up to its diagonal."""

    entries: AnyNDArray
    """[n, 2], row and task of each observed target."""

    C: AnyNDArray
    Sigma: AnyNDArray

    def predict(self, kernel: Kernel, X: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
        """Means [M, T] and covariances [M, T, T] of observations, as the page computes them."""
        k = np.asarray(kernel_matrix(kernel, self.X, X))  # [N, M]
        rows, tasks = self.entries.astype(int).T
        A = np.zeros([len(rows), len(rows)])
        A[np.tril_indices(len(rows))] = self.A
        G = np.einsum("io,om,ot->mit", A, k[rows], self.C[tasks], optimize=True)
        prior = np.asarray(kernel(X, full_cov=False))[:, None, None] * self.C
        return k.T @ self.alpha, prior + self.Sigma - G.transpose(0, 2, 1) @ G


def kernel_document(kernel: Kernel, num_inputs: int) -> dict[str, Any] | None:
    """
    A kernel as plain data; None if the page does not know it.

    >>> kernel_document(gpflow.kernels.Matern32(lengthscales=2.0), 1)
    {'kind': 'matern32', 'dims': [0], 'variance': 1.0, 'scales': [2.0]}
    """
    if type(kernel) in (gpflow.kernels.Sum, gpflow.kernels.Product):
        parts = [kernel_document(part, num_inputs) for part in kernel.kernels]
        kind = type(kernel).__name__.lower()
        return None if None in parts else {"kind": kind, "parts": parts}
    if type(kernel) is gpflow.kernels.Constant:
        return {"kind": "constant", "variance": float(kernel.variance.numpy())}
    if not hasattr(kernel, "active_dims"):
        return None
    active = kernel.active_dims
    dims = (
        list(range(num_inputs)[active]) if isinstance(active, slice) else np.array(active).tolist()
    )
    if type(kernel) is gpflow.kernels.Linear:
        variance = np.broadcast_to(kernel.variance.numpy(), len(dims)).tolist()
        return {"kind": "linear", "dims": dims, "scales": variance}
    if type(kernel) not in STATIONARY:
        return None
    document = {
        "kind": STATIONARY[type(kernel)],
        "dims": dims,
        "variance": float(kernel.variance.numpy()),
        "scales": np.broadcast_to(kernel.lengthscales.numpy(), len(dims)).tolist(),
    }
    if type(kernel) is gpflow.kernels.RationalQuadratic:
        document["alpha"] = float(kernel.alpha.numpy())
    return document


def page_form(model: Any, solution: JointSolution) -> PageForm:
    """The posterior of complete data in the form of the page; reduced where rows are many."""
    features = model.features
    if isinstance(features, InducingFeatures):
        return form_of_solution(np.asarray(features.inducing_variable.Z), solution)
    X = np.asarray(model.data[0])
    if features is not None:  # k(Z, x) = F_Z f(x): rows Z stand for the features
        Z = choose_inducing_points(X, model.kernel, min(len(X), features.num_features))
        inverse = np.linalg.pinv(np.asarray(features(Z)))  # [R, rows]
        return form_of_solution(Z, solution, inverse.T)
    if len(X) <= MAX_POINTS:
        return form_of_solution(X, solution)
    return reduced_form(model, solution)


def observed_form(model: Any, solution: ObservedSolution) -> ObservedForm:
    """The posterior given the observed targets in the form of the page."""
    system = solution.system
    L = np.asarray(system.L)
    inverse = solve_triangular(L, np.eye(len(L)), lower=True)
    C, Sigma = np.asarray(system.C), np.asarray(system.Sigma)
    return ObservedForm(
        np.asarray(model.data[0]),
        np.asarray(solution.weights) @ C,
        inverse[np.tril_indices(len(L))],
        system.entries().astype(np.float64),
        C,
        Sigma,
    )


def form_of_solution(
    Z: AnyNDArray, solution: JointSolution, change: AnyNDArray | None = None
) -> PageForm:
    r"""
    The form of a solution, :math:`w_{rj} = d_j^2 / (\lambda_r d_j + 1)`.

    :param change: [R, F], from the solution's cross-covariances to those with Z; None if they are
        the same.
    """
    U, alpha, d = (np.asarray(part) for part in (solution.U, solution.alpha, solution.d))
    if change is not None:
        U, alpha = change @ U, change @ alpha
    w = np.asarray(solution.seen_shrinkage) * np.square(d)
    return PageForm(Z, alpha, Z, U, w, d, np.asarray(solution.P))


def reduced_form(model: Any, solution: JointSolution) -> PageForm:
    r"""
    The posterior with the kernel matrix of its deviations, and where rows are very many that of its
    mean, replaced by one of low rank.

    .. math:: K \approx F F^\top, \qquad F = k(X, Z) W, \qquad W W^\top = k(Z, Z)^{-1}, \qquad
              F^\top F = E \Lambda E^\top, \qquad V = W E \Lambda^{1/2}
    """
    X, Y = (np.asarray(part) for part in model.data)
    Z = choose_inducing_points(X, model.kernel, REDUCED_POINTS)
    features = InducingFeatures(model.kernel, gpflow.inducing_variables.InducingPoints(Z))
    W = np.asarray(features.whitening())
    F = W.T @ np.asarray(features.cross(X))  # [R, N]
    lam, E = np.linalg.eigh(F @ F.T)
    lam = np.maximum(lam, 1e-12 * lam[-1])
    V = W @ (E * np.sqrt(lam))
    exact = form_of_solution(X, solution)
    shrunk = 1.0 / (lam[:, None] * exact.d + 1.0)
    w = shrunk * np.square(exact.d)
    if X.size + Y.size <= MAX_MEAN_NUMBERS:
        return exact._replace(Z=Z, V=V, w=w)
    rotated = (E / np.sqrt(lam)).T @ F @ Y @ np.asarray(solution.P_inverse).T  # [R, T]
    alpha = V @ (rotated * exact.d * shrunk) @ exact.P.T
    return PageForm(Z, alpha, Z, V, w, exact.d, exact.P)


def page_error(regressor: Any, form: PageForm | ObservedForm) -> float:
    """
    The largest difference between the page and `predict`, in standard deviations.

    It is measured at rows of the data and halfway between two of them.
    """
    X = np.asarray(regressor.model_.rows.arrays()[0])
    rng = np.random.default_rng(0)
    rows = X[rng.permutation(len(X))[: 2 * CHECKED_ROWS]]
    rows = np.concatenate([rows[:CHECKED_ROWS], 0.5 * (rows + rows[::-1])[:CHECKED_ROWS]])
    mean, cov = (
        part.numpy() for part in regressor.posterior_.predict_y(rows, full_output_cov=True)
    )
    found, S = form.predict(regressor.model_.kernel, rows)
    std = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    shift = np.abs(found - mean) / std
    spread = np.abs(np.sqrt(np.diagonal(S, axis1=1, axis2=2)) - std) / std
    return float(np.nanmax([shift, spread]))


def what_if_document(regressor: Any) -> dict[str, Any] | str:
    """The estimator as plain data, or a sentence that says why there is none."""
    model, solution = regressor.model_, regressor.posterior_.solution()
    inputs = regressor._inputs
    kernel = kernel_document(model.kernel, len(inputs.centre))
    reason = reason_against(regressor, solution)
    if kernel is None:
        reason = "The page does not know this kernel: use `gpflow-cool predict`."
    if reason is not None:
        return reason
    exact = isinstance(solution, JointSolution)
    form = page_form(model, solution) if exact else observed_form(model, solution)
    stored = type(form)(*(stored_digits(part) for part in form))
    parts = form._asdict()
    if isinstance(form, PageForm) and form.X is form.Z:
        del parts["X"]
    return {
        "kernel": kernel,
        "inputs": {"centre": inputs.centre.tolist(), "inverse": (1.0 / inputs.scale).tolist()},
        "targets": target_document(regressor._targets),
        **{name: encoded(part) for name, part in parts.items()},
        "points": len(form.Z) if isinstance(form, PageForm) else len(form.X),
        "error": page_error(regressor, stored),
    }


def target_document(targets: Warping) -> dict[str, Any]:
    """How standardised targets become the user's: scaling, transforms, quadrature of the mean."""
    nodes, weights = quadrature()
    document: dict[str, Any] = {
        name: part.tolist() for name, part in targets.scaling._asdict().items()
    }
    document["transforms"] = [
        {**t._asdict(), "low": finite_end(t.low), "high": finite_end(t.high)}
        for t in targets.transforms
    ]
    if not targets.is_linear:
        document["quadrature"] = {"nodes": nodes.tolist(), "weights": weights.tolist()}
    return document


def finite_end(end: float) -> float | None:
    """Where a transform becomes a straight line; None if nowhere."""
    return end if abs(end) < FAR_AWAY else None


def reason_against(regressor: Any, solution: JointSolution | ObservedSolution) -> str | None:
    """Why a page does not predict by itself; None if it does."""
    num_targets, num_inputs = len(regressor.target_names_), len(regressor._inputs.centre)
    instead = "use `gpflow-cool predict`."
    if num_targets > MAX_TARGETS or regressor.n_features_in_ > MAX_COLUMNS:
        return f"There are more than {MAX_TARGETS} targets or {MAX_COLUMNS} inputs: {instead}"
    if num_inputs > MAX_INPUTS:
        return f"The inputs have more than {MAX_INPUTS} categories: {instead}"
    if isinstance(solution, ObservedSolution) and np.sum(solution.system.mask) > MAX_OBSERVED:
        return f"Targets are missing, and more than {MAX_OBSERVED} are observed: {instead}"
    return None


MAX_DOUBLES = 100_000
"""Arrays with more numbers than these are stored with seven digits."""


def stored_digits(array: AnyNDArray) -> AnyNDArray:
    """An array as the page will read it."""
    return array.astype(stored_type(array)).astype(np.float64)


def stored_type(array: AnyNDArray) -> str:
    return "<f8" if array.size <= MAX_DOUBLES else "<f4"


def encoded(array: AnyNDArray) -> dict[str, Any]:
    """
    An array as text.

    >>> encoded(np.array([[1.0, 2.0]]))
    {'shape': [1, 2], 'type': 'f8', 'data': 'AAAAAAAA8D8AAAAAAAAAQA=='}
    """
    kind = stored_type(array)
    data = base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode()
    return {"shape": list(array.shape), "type": kind.lstrip("<"), "data": data}
