"""How tests assert that a user's mistake is refused, by its text and before any work."""

import re

import pytest
import tensorflow as tf
from gpflow.kernels import SquaredExponential

from gpflow_cool import CoolMTGP

N, D, T = 6, 2, 3


class CountingKernel(SquaredExponential):
    """Remembers the most rows that it has given a matrix for; its diagonal is no work."""

    most_rows = 0

    def __call__(self, X, X2=None, *, full_cov=True, presliced=False):
        if full_cov:
            self.most_rows = max(self.most_rows, int(tf.shape(X)[0]))
        return super().__call__(X, X2, full_cov=full_cov, presliced=presliced)


def refused(match, data, kernel=None, **options):
    """Assert that the model is refused with a ValueError of this text, before any work."""
    counting = CountingKernel()
    with pytest.raises(ValueError, match=match) as caught:
        CoolMTGP(data, counting if kernel is None else kernel, **options)
    assert counting.most_rows <= 1
    assert str(caught.value).endswith(".")


def exactly(text):
    return f"^{re.escape(text)}$"
