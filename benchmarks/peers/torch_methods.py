"""What GPyTorch offers, the exact models in double precision as BoTorch asks for."""

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultitaskMultivariateNormal

from .fitted import Fitted, Lengthscale, Moments, Training, in_chunks

LEARNING_RATE = 0.1
NO_BATCH = torch.Size([])


class MultitaskGP(gpytorch.models.ExactGP):
    """The model of GPyTorch's tutorial on multitasking, its task covariance of full rank."""

    def __init__(
        self,
        X: torch.Tensor,
        Y: torch.Tensor,
        likelihood: gpytorch.likelihoods.Likelihood,
        kernel: gpytorch.kernels.Kernel,
    ) -> None:
        super().__init__(X, Y, likelihood)
        T = Y.shape[1]
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=T)
        self.covar_module = gpytorch.kernels.MultitaskKernel(kernel, num_tasks=T, rank=T)

    def forward(self, X: torch.Tensor) -> MultitaskMultivariateNormal:
        return MultitaskMultivariateNormal(self.mean_module(X), self.covar_module(X))


class CoregionalizationGP(gpytorch.models.ApproximateGP):
    """The model of GPyTorch's tutorial on variational multitasking, its points shared."""

    def __init__(
        self,
        Z: torch.Tensor,
        lengthscale: float,
        T: int,
        likelihood: gpytorch.likelihoods.Likelihood,
        latents: int,
    ) -> None:
        shape = torch.Size([latents])
        strategy = gpytorch.variational.VariationalStrategy(
            self,
            Z,
            gpytorch.variational.CholeskyVariationalDistribution(len(Z), batch_shape=shape),
            learn_inducing_locations=True,
        )
        super().__init__(
            gpytorch.variational.LMCVariationalStrategy(strategy, num_tasks=T, num_latents=latents)
        )
        self.likelihood = likelihood
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf(lengthscale, shape), batch_shape=shape)

    def forward(self, X: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    def moments(self, X: torch.Tensor) -> Moments:
        """Of observations; the model itself would give a covariance between all rows as well."""
        latent = self.variational_strategy.base_variational_strategy(X)
        W = self.variational_strategy.lmc_coefficients  # [L, T]
        cov = torch.einsum("lt,ln,lu->ntu", W, latent.variance, W)
        noise = torch.diag(self.likelihood.noise + self.likelihood.task_noises)
        return (latent.mean.T @ W).double().numpy(), (cov + noise).double().numpy()


def tensors(X: np.ndarray, Y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)  # the factors of task and noise covariance start at random
    return torch.tensor(X), torch.tensor(Y)


def rbf(lengthscale: Lengthscale, batch_shape: torch.Size = NO_BATCH) -> gpytorch.kernels.Kernel:
    inputs = np.size(lengthscale) if np.ndim(lengthscale) else None
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=inputs, batch_shape=batch_shape)
    kernel.lengthscale = torch.as_tensor(lengthscale)
    return kernel


def fitted(model: gpytorch.models.GP, T: int, *, full_noise: bool) -> Fitted:
    model.eval()
    model.likelihood.eval()
    # With a diagonal task noise the covariance of fast_pred_var is wrong.
    fast = gpytorch.settings.fast_pred_var(full_noise)

    def predict(Xnew: np.ndarray) -> Moments:
        with torch.no_grad(), fast:
            joint = model.likelihood(model(torch.tensor(Xnew)))
            S = joint.covariance_matrix.reshape(len(Xnew), T, len(Xnew), T)
            return joint.mean.numpy(), S.numpy()

    parameters = sum(part.numel() for part in model.parameters() if part.requires_grad)
    return Fitted(lambda Xnew: in_chunks(predict, Xnew, T), parameters)


def multitask(
    X: np.ndarray, Y: np.ndarray, lengthscale: Lengthscale, *, full_noise: bool, steps: int
) -> Fitted:
    """GPyTorch's `MultitaskKernel`, trained by Adam as its tutorial does."""
    Xt, Yt = tensors(X, Y)
    T = Y.shape[1]
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(T, rank=T if full_noise else 0)
    model = MultitaskGP(Xt, Yt, likelihood, rbf(lengthscale)).double()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -evidence(model(Xt), Yt)
        loss.backward()
        optimizer.step()
    return fitted(model, T, full_noise=full_noise)


def coregionalization(
    Z: np.ndarray, lengthscale: float, num_data: int, T: int, *, latents: int, rate: float
) -> Training:
    """GPyTorch's `LMCVariationalStrategy`, in single precision as its tutorials are."""
    torch.manual_seed(0)
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(T)
    likelihood.noise, likelihood.task_noises = 0.05, torch.full((T,), 0.05)
    model = CoregionalizationGP(single(Z), lengthscale, T, likelihood, latents)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=num_data)

    def step(X: np.ndarray, Y: np.ndarray) -> None:
        model.train()
        optimizer.zero_grad()
        loss = -bound(model(single(X)), single(Y))
        loss.backward()
        optimizer.step()

    def predict(Xnew: np.ndarray) -> Moments:
        model.eval()
        with torch.no_grad():
            return model.moments(single(Xnew))

    return Training(step, predict)


def single(A: np.ndarray) -> torch.Tensor:
    return torch.tensor(A, dtype=torch.float32)
