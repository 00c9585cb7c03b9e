"""A model that is monitored, and what TensorBoard's own reader finds in its files."""

import gpflow
import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpflow_cool import CoolMTGP

NAMES = ("heat", "CO2 / ppm", "Größe [m]")
MATRICES = [f"matrices/{name}" for name in ["C", "C_correlation", "Sigma", "Sigma_correlation"]]
PREDICTIONS = [f"predictions/{name}" for name in NAMES]
FLOAT32 = 1e-6


def kernel():
    return gpflow.kernels.SquaredExponential(lengthscales=0.5)


def make_data(D=1, T=3, N=12):
    rng = np.random.default_rng(7)
    X = rng.uniform(size=[N, D])
    phase = np.arange(T)
    return X, np.sin(6 * X[:, :1] + phase) + 0.2 * rng.standard_normal([N, T])


def make_model(D=1, T=3, names=NAMES, mean_function=None):
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(D, 0.5) if D > 1 else 0.5)
    return CoolMTGP(make_data(D, T), kernel, mean_function, task_names=names[:T])


def read(folder):
    """Everything in a folder by tag and step, as TensorBoard reads it."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        tag: {e.step: tf.make_ndarray(e.tensor_proto) for e in events.Tensors(tag)}
        for tag in events.Tags()["tensors"]
    }


def check_picture(png):
    """A PNG of a sensible size that shows something."""
    assert bytes(png).startswith(b"\x89PNG")
    pixels = tf.io.decode_png(png).numpy()
    assert pixels.shape[2] == 3
    assert 250 <= pixels.shape[0] <= 600 and 300 <= pixels.shape[1] <= 800
    assert np.all(pixels[:3] == 255) and np.all(pixels[:, :1] == 255)  # nothing is cut off
    assert pixels.std() > 20 and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
    return pixels
