"""
Rows on a grid: inputs made from axes, and the axes of a table.

Where the rows are a Cartesian product of axes, and the kernel a product of kernels of these axes,
the kernel matrix is a Kronecker product. :class:`gpflow_cool.CoolMTGP` and
:class:`gpflow_cool.KroneckerMTGP` notice that, and form nothing of size N x N.
"""

from .axes import Grid, complete_grid, find_grid, grid_inputs

__all__ = ["Grid", "complete_grid", "find_grid", "grid_inputs"]
