"""
Slow, dense, transparent NumPy: the ground truth of the tests. It imports nothing of the package.

Letters: N rows, D inputs, T tasks, M test points, R features. ``Y`` is [N, T], ``Y_<t`` is
``Y[:, :t]``, kernels are matrices: K [N, N], Ks = k(X, Xnew) [N, M], Kss [M, M]. For task t,
K_x,t = b_t K + s_t I and K_xy,t = K_x,t + Y_<t Y_<t^T, with s = sigma2. ``vec`` stacks columns
(task-major), so the task matrix is the left Kronecker factor: ``np.kron(C, K)`` goes with
``Y.ravel(order="F")``.

Tests say ``import reference as ref``, and find all of it there.
"""

from .chain import *  # noqa: F403
from .gaussians import *  # noqa: F403
from .joint import *  # noqa: F403
from .learning import *  # noqa: F403
