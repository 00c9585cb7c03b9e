r"""
How good predictions are: point errors, predictive densities, coverage.

Letters: M held-out rows, T tasks. ``Y`` holds held-out targets; ``mean``, ``var`` and ``cov`` are
what ``predict_y`` returns. Everything is NumPy; tensors and lists are cast. A NaN in ``Y`` or
``mean`` makes the score NaN, but for :func:`known_log_densities`.
"""

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from numpy.typing import ArrayLike
from scipy.special import erf

LOG_2PI = float(np.log(2.0 * np.pi))


@check_shapes("Y: [M, T]", "mean: [M, T]", "return: [T]")
def rmse(Y: ArrayLike, mean: ArrayLike) -> AnyNDArray:
    r"""
    Root mean square error of each task.

    .. math:: \mathrm{RMSE}_t = \sqrt{\tfrac1M \sum_m (y_{mt} - \mu_{mt})^2}

    >>> rmse([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 2.0]]).round(2)
    array([0.  , 1.41])
    """
    return np.sqrt(np.mean(_residuals(Y, mean) ** 2, axis=0))


@check_shapes("Y: [M, T]", "mean: [M, T]")
def mean_rmse(Y: ArrayLike, mean: ArrayLike) -> float:
    """
    Mean over tasks of :func:`rmse`, the number in the paper's tables.

    >>> round(mean_rmse([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 2.0]]), 2)
    0.71
    """
    return float(np.mean(rmse(Y, mean)))


@check_shapes("Y: [M, T]", "mean: [M, T]", "Y_train: [N, T]", "return: [T]")
def rrmse(Y: ArrayLike, mean: ArrayLike, Y_train: ArrayLike) -> AnyNDArray:
    r"""
    Error of each task relative to predicting the mean of the training targets: 1 is no better.

    .. math:: \mathrm{RRMSE}_t = \mathrm{RMSE}_t \Big/
        \sqrt{\tfrac1M \sum_m (y_{mt} - \bar y^{\mathrm{train}}_t)^2}

    >>> rrmse([[0.0], [4.0]], [[1.0], [3.0]], Y_train=[[1.0], [3.0]])
    array([0.5])
    """
    constant = np.broadcast_to(np.mean(_float(Y_train), axis=0), np.shape(Y))  # [M, T]
    baseline = rmse(Y, constant)
    if np.any(baseline == 0.0):
        t = int(np.flatnonzero(baseline == 0.0)[0])
        raise ValueError(
            f"Task {t}: every held-out target equals the training mean, so that no error can be"
            " relative to it. Drop the task, or use rmse."
        )
    return rmse(Y, mean) / baseline


@check_shapes("Y: [M, T]", "mean: [M, T]", "Y_train: [N, T]")
def arrmse(Y: ArrayLike, mean: ArrayLike, Y_train: ArrayLike) -> float:
    """
    Mean over tasks of :func:`rrmse`, as literature on multi-target regression reports it.

    >>> arrmse([[0.0], [4.0]], [[1.0], [3.0]], Y_train=[[1.0], [3.0]])
    0.5
    """
    return float(np.mean(rrmse(Y, mean, Y_train)))


@check_shapes("Y: [M, T]", "mean: [M, T]", "var: [M, T]", "return: [T]")
def nlpd(Y: ArrayLike, mean: ArrayLike, var: ArrayLike) -> AnyNDArray:
    r"""
    Mean over rows of the negative log predictive density, of each task on its own.

    .. math:: -\tfrac1M \sum_m \log N(y_{mt} \mid \mu_{mt}, v_{mt})

    >>> nlpd([[0.0, 1.0]], mean=[[0.0, 0.0]], var=[[1.0, 1.0]]).round(3)
    array([0.919, 1.419])
    """
    v = _positive_variance(var)
    return 0.5 * np.mean(LOG_2PI + np.log(v) + _residuals(Y, mean) ** 2 / v, axis=0)


@check_shapes("Y: [M, T]", "mean: [M, T]", "cov: [M, T, T]")
def joint_nlpd(Y: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> float:
    r"""
    Mean over rows of the negative log predictive density, joint over the tasks of a row.

    .. math:: -\tfrac1M \sum_m \log N(y_m \mid \mu_m, S_m)

    >>> Y, mean = [[1.0, 1.0]], [[0.0, 0.0]]  # both errors have the same sign
    >>> round(joint_nlpd(Y, mean, [[[1.0, 0.0], [0.0, 1.0]]]), 3)
    2.838
    >>> round(joint_nlpd(Y, mean, [[[1.0, 0.8], [0.8, 1.0]]]), 3)  # as the model expected
    1.883

    :param cov: Predictive covariance S of the tasks at each row, positive definite.
    """
    residuals = _residuals(Y, mean)
    L = _cholesky(_float(cov))  # [M, T, T]
    z = np.linalg.solve(L, residuals[..., None])[..., 0]  # [M, T]
    log_det = 2.0 * np.sum(np.log(np.diagonal(L, axis1=1, axis2=2)), axis=1)  # [M]
    return float(0.5 * np.mean(z.shape[1] * LOG_2PI + log_det + np.sum(z**2, axis=1)))


@check_shapes("Y: [M, T]", "mean: [M, T]", "cov: [M, T, T]", "return: [M]")
def known_log_densities(Y: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> AnyNDArray:
    r"""
    Log density of each row, joint over those of its targets that are known, not NaN; 0 if none is.

    .. math:: \log N(y_{mo} \mid \mu_{mo}, S_{m,oo})

    >>> nan = float("nan")
    >>> cov = np.eye(2)[None].repeat(2, axis=0)
    >>> known_log_densities([[0.0, nan], [nan, nan]], np.zeros([2, 2]), cov).round(3)
    array([-0.919,  0.   ])
    """

    def log_density(y: AnyNDArray, m: AnyNDArray, S: AnyNDArray) -> float:
        o = ~np.isnan(y)
        return -joint_nlpd(y[None, o], m[None, o], S[None, o][:, :, o]) if o.any() else 0.0

    rows = zip(_float(Y), _float(mean), _float(cov), strict=True)
    return np.array([log_density(*row) for row in rows])


@check_shapes("Y: [M, T]", "mean: [M, T]", "var: [M, T]", "return: [T]")
def coverage(Y: ArrayLike, mean: ArrayLike, var: ArrayLike, num_sigma: float = 2.0) -> AnyNDArray:
    r"""
    Fraction of each task's targets within so many standard deviations of the mean.

    .. math:: \tfrac1M \, \#\{m : |y_{mt} - \mu_{mt}| \le k \sqrt{v_{mt}}\}

    To be compared with :func:`nominal_coverage`.

    >>> coverage([[0.5], [3.0]], mean=[[0.0], [0.0]], var=[[1.0], [1.0]], num_sigma=2.0)
    array([0.5])

    :param num_sigma: The number k of standard deviations.
    """
    residuals, v = _residuals(Y, mean), _positive_variance(var)
    inside = np.abs(residuals) <= num_sigma * np.sqrt(v)
    return np.mean(np.where(np.isnan(residuals), np.nan, inside), axis=0)


def nominal_coverage(num_sigma: float = 2.0) -> float:
    r"""
    Coverage of a normal predictive distribution that is right.

    .. math:: P(|z| \le k) = \mathrm{erf}(k / \sqrt 2)

    >>> round(nominal_coverage(2.0), 4)
    0.9545
    """
    return float(erf(num_sigma / np.sqrt(2.0)))


def _float(values: ArrayLike) -> AnyNDArray:
    """Values as an array of float64: densities lose too many digits in float32."""
    return np.asarray(values, dtype=np.float64)


def _residuals(Y: ArrayLike, mean: ArrayLike) -> AnyNDArray:
    """Y - mean; refuses to average over no rows."""
    residuals = _float(Y) - _float(mean)
    if residuals.size == 0:
        raise ValueError(
            f"Y has shape {residuals.shape}: a score needs at least one row and one task."
        )
    return residuals


def _positive_variance(var: ArrayLike) -> AnyNDArray:
    """Variances as an array, all of them positive."""
    v = _float(var)
    bad = np.argwhere(~(v > 0.0))  # so that NaN is bad, too
    if len(bad):
        m, t = bad[0]
        raise ValueError(
            f"var[{m}, {t}] is {v[m, t]}: a variance must be positive. Pass what predict_y returns,"
            " which includes the noise."
        )
    return v


def _cholesky(cov: AnyNDArray) -> AnyNDArray:
    """Lower Cholesky factors [M, T, T]; names the first row that has none."""
    try:
        return np.linalg.cholesky(cov)
    except np.linalg.LinAlgError as error:
        bad = next(m for m, S in enumerate(cov) if not _has_cholesky(S))
        raise ValueError(
            f"cov[{bad}] is not positive definite. Pass what predict_y(full_output_cov=True)"
            " returns, which includes the noise."
        ) from error


def _has_cholesky(S: AnyNDArray) -> bool:
    """Whether a matrix is positive definite to working precision."""
    try:
        np.linalg.cholesky(S)
    except np.linalg.LinAlgError:
        return False
    return True
