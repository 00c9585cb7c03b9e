"""CoolMTGP: the conditional one-output likelihood formulation for multitask Gaussian processes."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, InputData, RegressionData, TensorData
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction

from .. import checks
from ..chain.leave_out import leave_rows_out
from ..chain.recovery import average_over_orders, some_orders
from ..chain.starting import (
    chain_parameters,
    check_offsets,
    fix_kernel_scale,
    mean_kernel_diagonal,
    mean_squares,
    task_scales,
    warn_of_scales,
)
from ..grid.axes import Grid
from ..grid.kernels import grid_that_is_asked_for
from ..joint.leave_one_out import LeaveOneOut
from ..joint.missing import ObservedSystem, observed_system
from ..joint.refinement import NUM_ORDERS, refined_covariances
from ..joint.sampling import draw_pairs
from ..linalg import threads_for
from ..saving.models import saveable
from ..systems.eigen import EigenSystem
from ..systems.features import LinearFeatures
from .chain import ChainModel, check_chain_options, weight_variance_parameter
from .exact import KroneckerMTGP
from .in_memory import InMemoryModel

ENGINES = ("auto", "spectral", "grid")

MOST_REFINED_TASKS = 200
"""With more tasks refinement is left out: its time grows with the fourth power of their number."""

REFINED_ROUNDS, REFINED_DRAWS = 4, 16
"""Where targets are missing: how often they are drawn during refinement, and how many draws."""


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

    The weights between tasks are integrated out. Their prior variance, relative to the noise and in
    units of the targets' mean squares, is one number for all tasks, `weight_variance`: units of
    targets do not matter. It is learnt with the kernel, unless `learning` is "hierarchical". With
    `weight_prior="unit"` the model is the paper's, with weights of variance one, which assumes
    targets of comparable scale.

    Gradients flow from the objective to kernel, mean function, `b`, `sigma2` and `weight_variance`,
    and from predictions to `Xnew`. Gradients of predictions with respect to parameters are NaN.

    Targets may be missing: NaN in Y. Predictions are then exact given the observed targets, and
    :meth:`fit` is Monte Carlo expectation maximisation.

    :param data: Inputs X [N, D] and targets Y [N, T]: arrays, lists, data frames, or `tf.Variable`.
    :param kernel: Any GPflow kernel over the inputs, shared by all tasks.
    :param mean_function: Any GPflow mean function.
    :param learning: "approximate" (weights between tasks integrated out) or "hierarchical" (taken
        at their maximum, without a charge for them).
    :param weight_prior: Of the weights between tasks: "scaled" to the noise of their task, or
        "unit", the paper's N(0, I).
    :param weight_variance: Where `weight_variance` starts; by default at 1.
    :param b: Prior amplitude of each task; by default the task's variance over the kernel's.
    :param sigma2: Noise variance of each task given the tasks before it; by default a tenth of the
        task's variance.
    :param engine: "spectral" is one eigendecomposition for all tasks. With "auto" a kernel that is
        linear, constant or a sum of such, with fewer features than rows, needs no N x N matrix:
        O(N D^2), and exact. Neither do 300 rows or more that are a grid, if the kernel is a product
        over its axes: see :mod:`gpflow_cool.grid`. "grid" asks for this, and raises an error that
        says why where it is not possible.
    :param task_names: By default the columns of a data frame Y, else task_0, task_1, ...
    """

    def __init__(
        self,
        data: RegressionData,
        kernel: Kernel,
        mean_function: MeanFunction | None = None,
        *,
        learning: str = "approximate",
        weight_prior: str = "scaled",
        weight_variance: TensorData | None = None,
        b: TensorData | None = None,
        sigma2: TensorData | None = None,
        engine: str = "auto",
        task_names: Sequence[str] | None = None,
    ) -> None:
        check_chain_options(learning, weight_prior, weight_variance)
        self.learning, self.weight_prior = learning, weight_prior
        self.engine = checks.option(engine, "engine", ENGINES)
        super().__init__(data, kernel, mean_function, task_names)
        self.warn_of_separate_tasks()
        residual = self.centred_targets().numpy()
        scales = task_scales(residual)
        check_offsets(scales, mean_squares(residual), constant_left=self.constant_left())
        variance = mean_kernel_diagonal(kernel, self.data[0].numpy())
        self.b, self.sigma2 = chain_parameters(b, sigma2, variance, scales)
        self.weight_variance = None
        if weight_prior == "scaled":
            self.weight_variance = weight_variance_parameter(
                weight_variance, self.num_tasks, learning
            )
        else:
            warn_of_scales(scales)
        fix_kernel_scale(kernel)

    def _find_grid(self) -> Grid | None:
        if self.engine == "grid":
            return grid_that_is_asked_for(self.kernel, self.data[0])
        return super()._find_grid() if self.engine == "auto" else None

    @property
    def features(self) -> LinearFeatures | None:
        return super().features if self.engine == "auto" else None

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
        This costs little: the kernel's parameters stay, so that another order permutes what is
        known of the rows, and finds `b` and `sigma2` anew. The first order is that of Y's columns.

        :param num_orders: How many orders; 1 gives that of Y's columns. Where there are no more
            than these, all are used.
        :param seed: Which orders.
        """
        checks.positive_integer(num_orders, "num_orders")
        orders = some_orders(self.num_tasks, num_orders, checks.seed(seed))
        with threads_for(max(tf.shape(self.data[1]).numpy())):
            C, Sigma = self._averaged(orders)
        return KroneckerMTGP.at(self, C, Sigma)

    def _averaged(self, orders: AnyNDArray) -> tuple[tf.Tensor, tf.Tensor]:
        """C and Sigma, averaged over orders of the tasks."""
        if self.weight_variance is None:
            raise ValueError(
                'Averages over orders and refine() are for weight_prior="scaled". With "unit", the'
                " paper's prior, model.to_exact() has C and Sigma of the order of Y's columns."
            )
        return average_over_orders(
            self.system(), orders, self.chain.weight_variance, self.noise_floor, self.learning
        )

    def refine(self, steps: int = 60) -> KroneckerMTGP:
        """
        The exact joint model at C and Sigma that follow the data more closely than the chain's.

        The chain has the same weights between tasks for functions and for noise. Starting at its C
        and Sigma, averaged over orders, expectation maximisation gives each of the two weights of
        its own, with priors as the chain has them. The kernel stays. It helps where functions and
        noises correlate differently, and where few functions drive many tasks: a gap in one task is
        then filled better from the others. With more than 200 tasks it takes longer than a fit, and
        is left out.

        >>> import gpflow, numpy as np
        >>> from gpflow_cool import CoolMTGP
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
        >>> model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=0.3))
        >>> refined = model.refine()
        >>> bool(refined.log_marginal_likelihood() > model.log_marginal_likelihood())
        True

        :param steps: How many steps of expectation maximisation.
        """
        checks.positive_integer(steps, "steps")
        orders = some_orders(self.num_tasks, NUM_ORDERS, 0)
        with threads_for(max(tf.shape(self.data[1]).numpy())):
            C, Sigma = self._averaged(orders)
            if self.num_tasks <= MOST_REFINED_TASKS:
                C, Sigma = self._refined(C, Sigma, orders, steps)
        return KroneckerMTGP.at(self, C, Sigma)

    def _refined(
        self, C: tf.Tensor, Sigma: tf.Tensor, orders: AnyNDArray, steps: int
    ) -> tuple[AnyNDArray, AnyNDArray]:
        """C and Sigma after some steps; missing targets are drawn again in every round of steps."""
        system, rounds = self.system(), 1 if self.observed is None else REFINED_ROUNDS
        for number in range(rounds):
            if self.observed is not None:
                observed = observed_system(system.U, system.spectrum.lam, C, Sigma, self.observed)
                system = EigenSystem(self.kernel_matrix(), self._drawn(observed, seed=number))
            spectrum = system.spectrum
            C, Sigma = refined_covariances(
                spectrum.lam.numpy(),
                spectrum.Yr.numpy(),
                spectrum.G0.numpy(),
                float(spectrum.num_rows),
                np.asarray(C),
                np.asarray(Sigma),
                orders,
                -(-steps // rounds),
            )
        return C, Sigma

    def _drawn(self, system: ObservedSystem, seed: int) -> tf.Tensor:
        """[S, N, T], the targets less the mean function, with those missing drawn."""
        shape = [2, REFINED_DRAWS // 2, *self.data[1].shape]
        signal, noise = np.random.default_rng(seed).normal(size=shape)
        targets = tf.cast(self.centred_targets(), tf.float64)
        return tf.cast(draw_pairs(system, targets, signal, noise), self.dtype)

    def leave_one_out(self, full_output_cov: bool = True) -> LeaveOneOut:
        """
        Mean, covariance and log density of every row, predicted from all the other rows.

        In closed form, at the present parameters: there is no refit. Means and covariances are
        those of the joint model at its C and Sigma, which have seen the row. Densities are the
        chain's, where no target is missing: they charge for what the weights between tasks do not
        know, and tell with many tasks what new rows will see.

        :param full_output_cov: Whether `cov` has T^2 covariances per row, or T variances: with
            many tasks these take a fraction of the time and memory.
        """
        found = super().leave_one_out(full_output_cov)
        if self.observed is not None:
            return found
        rows = [np.array([row]) for row in range(self.num_rows)]
        return found._replace(log_density=self._leave_rows_out(rows))

    def leave_groups_out(self, groups: InputData) -> tf.Tensor:
        """
        Log density of each group of rows, predicted from all rows outside the group.

        In closed form, at the present parameters: blocks of places, of days or of patients cost no
        more than single rows, and there is no refit. The density is joint over rows and tasks.

        >>> import gpflow, numpy as np
        >>> from gpflow_cool import CoolMTGP
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
        >>> model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=0.3))
        >>> days = np.repeat([0, 1, 2, 3], 5)
        >>> model.leave_groups_out(days).shape
        TensorShape([4])

        :param groups: [N], the group of each row: numbers or names.
        :return: One number per group, in the sorted order of `numpy.unique(groups)`.
        """
        members = checks.groups(groups, self.num_rows)
        if self.observed is not None:
            raise ValueError(
                "leave_groups_out needs all targets, and Y has NaN: leave out rows with missing"
                " targets, or fill them with model.impute()."
            )
        return self._leave_rows_out(members)

    def _leave_rows_out(self, rows: list[AnyNDArray]) -> tf.Tensor:
        return tf.cast(leave_rows_out(self.row_system(), self.chain, rows), self.dtype)

    def observed_system(self) -> ObservedSystem:
        assert self.observed is not None
        system = self.system()
        parameters = self._recover(system).matrices()
        lam = system.spectrum.lam
        return observed_system(system.U, lam, parameters.C, parameters.Sigma, self.observed)

    saved_options = ("learning", "weight_prior", "engine")


InMemoryModel.one_task_model = CoolMTGP
