"""Spectra in NumPy arrays that the tests of the chain share."""

import numpy as np

from gpflow_cool.systems.spectrum import Spectrum, exact_spectrum_of_arrays


def exact(K, Y):
    """The spectrum of a dense kernel matrix."""
    lam, U = np.linalg.eigh(K)
    return exact_spectrum_of_arrays(np.maximum(lam, 0.0), U, Y)


def low_rank(F, Y):
    """The spectrum of K = F F^T with R < N columns, section 4b of the mathematics."""
    lam, E = np.linalg.eigh(F.T @ F)
    Yr = (E.T @ F.T @ Y) / np.sqrt(lam)[:, None]
    return Spectrum(lam, Yr, Y.T @ Y - Yr.T @ Yr, float(len(Y)))
