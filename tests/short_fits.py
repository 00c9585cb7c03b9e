"""A model whose fit takes a moment, and a callback that records it."""

import gpflow
import numpy as np

from gpflow_cool import CoolMTGP
from gpflow_cool.callbacks import Callback


def make(rng, T=2, mean=False):
    X = rng.uniform(0.0, 5.0, size=(12, 1))
    Y = np.sin(X * [1.0, 1.4, 0.7][:T] + [0.0, 1.0, 2.0][:T]) + 0.2 * rng.normal(size=(12, T))
    mean_function = gpflow.mean_functions.Constant(np.zeros(T)) if mean else None
    return CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=0.3), mean_function)


class Record(Callback):
    """What the model's weights and logs were after every step."""

    def on_train_begin(self, logs):
        self.weights, self.logs = [], []

    def on_epoch_end(self, epoch, logs):
        self.weights.append(np.concatenate([np.ravel(w) for w in self.model.get_weights()]))
        self.logs.append(dict(logs))
