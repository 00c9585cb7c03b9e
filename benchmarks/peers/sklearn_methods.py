"""What scikit-learn offers."""

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from .fitted import Fitted, Lengthscale, Moments, diagonal


def independent(X: np.ndarray, Y: np.ndarray, lengthscale: Lengthscale) -> Fitted:
    """One `GaussianProcessRegressor` per task."""
    models = []
    for y in Y.T:
        kernel = ConstantKernel() * RBF(lengthscale) + WhiteKernel(0.1)
        models.append(GaussianProcessRegressor(kernel).fit(X, y))

    def predict(Xnew: np.ndarray) -> Moments:
        parts = [model.predict(Xnew, return_std=True) for model in models]
        means, deviations = (np.stack([part[i] for part in parts], axis=1) for i in (0, 1))
        return means, diagonal(deviations**2)

    return Fitted(predict, sum(len(model.kernel_.theta) for model in models))
