"""What a kernel does to the rows: eigenvectors, features, sums over rows in chunks."""

DEFAULT_POINTS = 300
"""Number M of inducing points where it is not given, or N if that is less. A fit costs N M^2, and
few data sets gain from more points."""
