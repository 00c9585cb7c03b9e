"""Ours, and what GPflow offers."""

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras

from gpflow_cool import CoolMTGP, CoolMTGPRegressor

from .fitted import Fitted, Lengthscale, Moments, Training, diagonal, in_chunks

INDUCING = 200
STEPS = 200
"""L-BFGS steps at most, for the models of GPflow; ours has its own limit."""


def kernel(lengthscale: Lengthscale) -> gpflow.kernels.Kernel:
    return gpflow.kernels.SquaredExponential(lengthscales=lengthscale)


def count(model: gpflow.base.Module) -> int:
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


def minimize(model: gpflow.models.BayesianModel, closure: object) -> None:
    optimizer = gpflow.optimizers.Scipy()
    optimizer.minimize(closure, model.trainable_variables, options={"maxiter": STEPS})


def cool(
    X: np.ndarray,
    Y: np.ndarray,
    lengthscale: Lengthscale,
    *,
    learning: str,
    optimizer: str,
    orders: int,
) -> Fitted:
    """CoolMTGP, averaged over orders of the tasks as `CoolMTGPRegressor` does, or not."""
    model = CoolMTGP((X, Y), kernel(lengthscale), learning=learning)
    model.fit(optimizer, verbose=0)
    trained = model if orders == 1 else model.average_over_orders(orders, seed=0)
    posterior = trained.posterior()
    moments = tf.function(lambda Xnew: posterior.predict_y(Xnew, full_output_cov=True))

    def predict(Xnew: np.ndarray) -> Moments:
        mean, cov = moments(tf.constant(Xnew))
        return mean.numpy(), cov.numpy()

    return Fitted(predict, count(model))


def auto(X: np.ndarray, Y: np.ndarray, _: Lengthscale) -> Fitted:
    """`CoolMTGPRegressor` with its defaults: it chooses the kernel and where it starts."""
    regressor = CoolMTGPRegressor(random_state=0).fit(X, Y)

    def predict(Xnew: np.ndarray) -> Moments:
        return regressor.predict(Xnew, return_cov=True)

    return Fitted(predict, count(regressor.model_))


def coregion(X: np.ndarray, Y: np.ndarray, lengthscale: Lengthscale) -> Fitted:
    """GPflow's `GPR` with `Coregion`, rank 2 as its notebook has it."""
    D, T = X.shape[1], Y.shape[1]

    def stack(X: np.ndarray) -> np.ndarray:
        """[M T, D + 1], all tasks of a row, then those of the next."""
        return np.hstack([np.repeat(X, T, axis=0), np.tile(np.arange(T), len(X))[:, None]])

    base = gpflow.kernels.SquaredExponential(lengthscales=lengthscale, active_dims=list(range(D)))
    tasks = gpflow.kernels.Coregion(T, rank=min(2, T), active_dims=[D])
    tasks.W.assign(np.random.default_rng(0).normal(size=tasks.W.shape))  # zero is a saddle point
    gpflow.set_trainable(base.variance, False)  # C has the scale
    model = gpflow.models.GPR((stack(X), Y.reshape(-1, 1)), base * tasks, noise_variance=0.1)
    minimize(model, model.training_loss_closure(compile=True))
    posterior = model.posterior()
    moments = tf.function(lambda Xnew: posterior.predict_f(Xnew, full_cov=True))

    def predict(Xnew: np.ndarray) -> Moments:
        mean, cov = moments(tf.constant(stack(Xnew)))
        S = cov.numpy()[0] + model.likelihood.variance.numpy() * np.eye(len(Xnew) * T)
        return mean.numpy().reshape(-1, T), S.reshape(-1, T, len(Xnew), T)

    return Fitted(lambda Xnew: in_chunks(predict, Xnew, T), count(model))


def svgp(X: np.ndarray, Y: np.ndarray, lengthscale: Lengthscale) -> Fitted:
    """GPflow's `SVGP` with `SharedIndependent`: 200 inducing points, at most half the rows."""
    T = Y.shape[1]
    rows = np.random.default_rng(0).permutation(len(X))[: min(INDUCING, len(X) // 2)]
    points = gpflow.inducing_variables.InducingPoints(X[rows])
    model = gpflow.models.SVGP(
        gpflow.kernels.SharedIndependent(kernel(lengthscale), output_dim=T),
        gpflow.likelihoods.Gaussian(np.full((1, T), 0.1)),
        gpflow.inducing_variables.SharedIndependentInducingVariables(points),
        num_latent_gps=T,
    )
    minimize(model, model.training_loss_closure((X, Y), compile=True))
    posterior = model.posterior()
    moments = tf.function(posterior.predict_f)

    def predict(Xnew: np.ndarray) -> Moments:
        mean, variances = moments(tf.constant(Xnew))
        return mean.numpy(), diagonal(variances.numpy() + model.likelihood.variance.numpy())

    return Fitted(predict, count(model))


def coregionalization(
    Z: np.ndarray, lengthscale: float, num_data: int, T: int, *, latents: int, rate: float
) -> Training:
    """GPflow's `SVGP` with `LinearCoregionalization`: shared points, a noise for each task."""
    W = np.random.default_rng(0).normal(size=(T, latents)) / np.sqrt(latents)
    kernels = [kernel(lengthscale) for _ in range(latents)]
    points = gpflow.inducing_variables.InducingPoints(Z)
    model = gpflow.models.SVGP(
        gpflow.kernels.LinearCoregionalization(kernels, W),
        gpflow.likelihoods.Gaussian(np.full((1, T), 0.1)),
        gpflow.inducing_variables.SharedIndependentInducingVariables(points),
        num_latent_gps=latents,
        num_data=num_data,
    )
    optimizer = tf_keras.optimizers.Adam(rate)
    optimizer.build(model.trainable_variables)  # else the step is traced twice
    rows = [tf.TensorSpec([None, size], tf.float64) for size in (Z.shape[1], T)]

    @tf.function(input_signature=rows, autograph=False)
    def step(X: tf.Tensor, Y: tf.Tensor) -> None:
        optimizer.minimize(lambda: model.training_loss((X, Y)), model.trainable_variables)

    @tf.function(input_signature=rows[:1], autograph=False)
    def moments(Xnew: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, cov = model.predict_f(Xnew, full_output_cov=True)
        return mean, cov + tf.linalg.diag(model.likelihood.variance)

    def predict(Xnew: np.ndarray) -> Moments:
        mean, cov = moments(Xnew)
        return mean.numpy(), cov.numpy()

    return Training(step, predict)


def independent(X: np.ndarray, Y: np.ndarray, lengthscale: Lengthscale) -> Fitted:
    """One GPflow `GPR` per task."""
    models = [
        gpflow.models.GPR((X, y[:, None]), kernel(lengthscale), noise_variance=0.1) for y in Y.T
    ]
    for model in models:
        minimize(model, model.training_loss_closure(compile=True))
    noises = np.array([model.likelihood.variance.numpy() for model in models])
    moments = [tf.function(model.posterior().predict_f) for model in models]

    def predict(Xnew: np.ndarray) -> Moments:
        parts = [one(tf.constant(Xnew)) for one in moments]
        mean, variances = (np.hstack([part[i].numpy() for part in parts]) for i in (0, 1))
        return mean, diagonal(variances + noises)

    return Fitted(predict, sum(map(count, models)))
