"""What BoTorch offers."""

import numpy as np
from botorch.fit import fit_gpytorch_mll
from botorch.models import KroneckerMultiTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from .fitted import Fitted, Lengthscale
from .torch_methods import fitted, rbf, tensors


def kronecker(
    X: np.ndarray, Y: np.ndarray, lengthscale: Lengthscale, *, full_noise: bool, shared_kernel: bool
) -> Fitted:
    """
    `KroneckerMultiTaskGP`.

    :param shared_kernel: Whether it has everybody's kernel, or BoTorch's own, with a lengthscale
        for each input and a prior.
    """
    Xt, Yt = tensors(X, Y)
    T = Y.shape[1]
    model = KroneckerMultiTaskGP(
        Xt,
        Yt,
        data_covar_module=rbf(lengthscale) if shared_kernel else None,
        likelihood_rank=T if full_noise else 0,
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return fitted(model, T, full_noise=full_noise)
