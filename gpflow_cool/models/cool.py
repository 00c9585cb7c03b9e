"""CoolMTGP: the conditional one-output likelihood formulation for multitask Gaussian processes."""

from collections.abc import Sequence

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, RegressionData, TensorData
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction

from .. import checks
from ..chain.likelihood import LEARNING
from ..chain.objective import ENGINES, choose_engine, conditional_log_likelihoods
from ..chain.products import KroneckerProduct
from ..chain.recovery import average_over_orders, some_orders
from ..chain.starting import (
    chain_parameters,
    check_offsets,
    completion_scales,
    fix_kernel_scale,
    mean_kernel_diagonal,
    mean_squares,
    task_scales,
)
from ..grid.axes import Grid
from ..grid.kernels import grid_that_is_asked_for
from ..joint.missing import ObservedSystem, observed_system
from ..linalg import threads_for
from ..lowrank.features import LinearFeatures
from ..lowrank.statistics import statistics_log_likelihoods
from ..saving.models import saveable
from ..training.profiled import ProfiledChain
from ..training.streamed import StreamedLoss
from .chain import ChainModel
from .exact import KroneckerMTGP
from .in_memory import InMemoryModel


@saveable
class CoolMTGP(ChainModel, InMemoryModel):
    r"""
    Multitask Gaussian process with full task and noise covariances, learnt from 2 T parameters.

    .. math:: \mathrm{vec}(Y) \sim N(0, \; C \otimes K + \Sigma \otimes I)

    The likelihood is factorised into T one-output Gaussian processes, each conditioned on the tasks
    before it, with one shared kernel. Only the kernel's parameters and two numbers per task, `b`
    and `sigma2`, are learnt. `task_covariance()` and `noise_covariance()` are recovered from them,
    positive (semi)definite by construction, with no rank to choose.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import CoolMTGP
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=0.3))
    >>> mean, cov = model.predict_f_full_cov(X[:3])
    >>> mean.shape, cov.shape
    (TensorShape([3, 2]), TensorShape([3, 2, 3, 2]))

    Only the product of `b` and the kernel's own variance matters. Therefore `b` is learnt, and the
    variance is fixed (`gpflow.utilities.print_summary` shows it as not trainable). Undo this with
    `gpflow.set_trainable(model.kernel.variance, True)`.

    `sigma2` stays above 1e-4 of the task's variance, or a tenth of the given start if that is less.

    The prior of the weights between tasks is N(0, I), as in the paper, which assumes targets of
    comparable scale: standardise them if their deviations differ much.

    Gradients flow from the objective to kernel, mean function, `b` and `sigma2`, and from
    predictions to `Xnew`. Gradients of predictions with respect to parameters are NaN.

    Targets may be missing: NaN in Y. Predictions are then exact given the observed targets, and
    :meth:`fit` is Monte Carlo expectation maximisation (hierarchical learning, spectral engine).

    :param data: Inputs X [N, D] and targets Y [N, T]: arrays, lists, data frames, or `tf.Variable`.
    :param kernel: Any GPflow kernel over the inputs, shared by all tasks.
    :param mean_function: Any GPflow mean function.
    :param learning: "hierarchical" (weights between tasks at their maximum) or "approximate"
        (integrated out).
    :param b: Prior amplitude of each task; by default the task's variance over the kernel's.
    :param sigma2: Noise variance of each task given the tasks before it; by default a tenth of the
        task's variance.
    :param engine: "spectral" (one eigendecomposition for all tasks), "cholesky" (one Cholesky
        factorisation per task), or "auto", see :func:`gpflow_cool.chain.objective.choose_engine`.
        With "auto" a kernel that is linear, constant or a sum of such, with fewer features than
        rows, needs no N x N matrix: O(N D^2), and exact. Neither do 300 rows or more that are a
        grid, if the kernel is a product over its axes: see :mod:`gpflow_cool.grid`. "grid" asks for
        this, and raises an error that says why where it is not possible.
    :param task_names: By default the columns of a data frame Y, else task_0, task_1, ...
    """

    def __init__(
        self,
        data: RegressionData,
        kernel: Kernel,
        mean_function: MeanFunction | None = None,
        *,
        learning: str = "hierarchical",
        b: TensorData | None = None,
        sigma2: TensorData | None = None,
        engine: str = "auto",
        task_names: Sequence[str] | None = None,
    ) -> None:
        self.learning = checks.option(learning, "learning", LEARNING)
        self.engine = checks.option(engine, "engine", ENGINES)
        super().__init__(data, kernel, mean_function, task_names)
        if self.observed is not None and learning == "approximate":
            raise ValueError(
                "Y has NaN, and the approximate objective has no mean over missing targets: use"
                ' learning="hierarchical".'
            )
        self.warn_of_separate_tasks()
        residual = self.centred_targets().numpy()
        scales = task_scales(residual)
        check_offsets(scales, mean_squares(residual), constant_left=self.constant_left())
        variance = mean_kernel_diagonal(kernel, self.data[0].numpy())
        self.b, self.sigma2 = chain_parameters(b, sigma2, variance, scales)
        fix_kernel_scale(kernel)

    def _find_grid(self) -> Grid | None:
        if self.engine == "grid":
            return grid_that_is_asked_for(self.kernel, self.data[0])
        return super()._find_grid() if self.engine == "auto" else None

    def profile(self) -> ProfiledChain:
        return ProfiledChain(self) if self.features is None else StreamedLoss(self, solve=True)

    @property
    def features(self) -> LinearFeatures | None:
        return super().features if self.engine == "auto" else None

    @property
    def scales(self) -> AnyNDArray:
        return completion_scales(self.centred_completions().numpy())

    @check_shapes("return: [T]")
    def conditional_log_likelihoods(self) -> tf.Tensor:
        """The objective's terms: each task's likelihood given the tasks before it."""
        features = self.features
        if features is not None:
            return statistics_log_likelihoods(
                self.feature_statistics(features),
                self.b,
                self.sigma2,
                learning=self.learning,
                decomposition=self.feature_decomposition(features, python_callback=True),
            )
        K = self.kernel_matrix()
        engine = choose_engine(self.num_tasks) if self.engine == "auto" else self.engine
        if self.observed is not None or isinstance(K, KroneckerProduct):
            engine = "spectral"
        return conditional_log_likelihoods(
            K,
            self.centred_completions(),
            self.b,
            self.sigma2,
            learning=self.learning,
            engine=engine,
        )

    def to_exact(self) -> KroneckerMTGP:
        """
        The exact model at the recovered C and Sigma. It makes the same predictions, and `fit("em")`
        or `fit("scipy")` refines it by the exact evidence.

        Refinement has T^2 parameters instead of 2 T: docs/exact.md tells when that helps.
        """
        return KroneckerMTGP.from_cool(self)

    def average_over_orders(self, num_orders: int = 8, *, seed: int | None = None) -> KroneckerMTGP:
        """
        The exact joint model at C and Sigma averaged over orders of the tasks.

        C and Sigma depend somewhat on the order in which the tasks are conditioned on each other.
        This costs little: the kernel's parameters stay, so that another order reuses the
        eigendecomposition and solves only for b and sigma2. Of these, one that is not trainable or
        has a prior stays too. The first order is that of Y's columns. It is left out of the average
        if its noise is more than three times that of the others: where columns are neighbours from
        left to right, say, errors add up along the line.

        :param num_orders: How many orders; 1 gives that of Y's columns. Where there are no more
            than these, all are used.
        :param seed: Which orders.
        """
        checks.positive_integer(num_orders, "num_orders")
        _, spectrum = self.spectral()
        profile = ProfiledChain(self)
        box = profile.inner_box(spectrum.numpy(), self.scales, profile.present().numpy())
        orders = some_orders(self.num_tasks, num_orders, checks.seed(seed))
        with threads_for(max(tf.shape(self.data[1]).numpy())):
            C, Sigma = average_over_orders(spectrum, orders, box, self.learning)
        return KroneckerMTGP.at(self, C, Sigma)

    def observed_system(self) -> ObservedSystem:
        assert self.observed is not None
        U, spectrum = self.spectral()
        parameters = self._recover(spectrum)
        return observed_system(U, spectrum.lam, parameters.C, parameters.Sigma, self.observed)

    saved_options = ("learning", "engine")


InMemoryModel.one_task_model = CoolMTGP
