"""Kernels of low rank: features, sums over rows, and data that comes in chunks."""

DEFAULT_POINTS = 300
"""Inducing points where their number is not given, or as many as there are rows: a fit costs
N M^2, and beyond this few data sets gain."""
