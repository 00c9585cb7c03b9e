"""Kernels of low rank: features, sums over rows, and data that comes in chunks."""

DEFAULT_POINTS = 300
"""Number M of inducing points where it is not given, or N if that is less. A fit costs N M^2, and
few data sets gain from more points."""
