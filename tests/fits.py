"""What the tests of `fit` share: a model, its parameters, and a kernel that breaks."""

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_cool import CoolMTGP


def make(data, **options):
    return CoolMTGP(data, gpflow.kernels.SquaredExponential(), **options)


def values(model):
    return [p.numpy() for p in model.parameters]


class Breaking(gpflow.kernels.SquaredExponential):
    """A kernel that is not finite beyond a lengthscale."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def K(self, X, X2=None):
        infinite = tf.where(self.lengthscales > self.limit, np.inf, 1.0)
        return tf.cast(infinite, X.dtype) * super().K(X, X2)
