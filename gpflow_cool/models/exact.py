"""KroneckerMTGP: the exact multitask Gaussian process with explicit task and noise covariances."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow import set_trainable
from gpflow.base import RegressionData, TensorData
from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction

from ..chain.starting import (
    NOISE_FRACTION,
    check_offsets,
    check_shared_scales,
    fix_kernel_scale,
    mean_kernel_diagonal,
    mean_squares,
    task_scales,
    warn_of_scales,
)
from ..grid.kernels import grid_that_is_asked_for
from ..joint.covariances import (
    FullCovariance,
    noise_covariance_of_rank,
    signal_covariance_of_rank,
    signal_start,
)
from ..joint.kronecker import TaskBasis, kronecker_log_likelihood, task_basis
from ..joint.missing import ObservedSystem, observed_system
from ..saving.models import Document, saveable
from ..saving.modules import Reader, Writer
from ..systems.products import decompose
from ..systems.spectrum import System
from ..training.em import ExactEM
from .arguments import check_covariance
from .chain import ChainModel
from .in_memory import InMemoryModel


@saveable
class KroneckerMTGP(InMemoryModel):
    r"""
    The exact multitask Gaussian process, with C and Sigma as parameters.

    .. math:: \mathrm{vec}(Y) \sim N(0, \; C \otimes K + \Sigma \otimes I)

    C and Sigma are diagonalised together, so that an evaluation costs O(N^3 + T^3 + N T^2) and no
    matrix of size N T x N T is formed (Stegle et al. 2011, Rakitsch et al. 2013). The competitors
    of the Cool-MTGP paper are settings of this model:

    ============  =======================================  =======================================
    name          constructor                              settings
    ============  =======================================  =======================================
    Std-MT        ``KroneckerMTGP.std_mt(..., rank=P)``    ``rank=P, noise_rank=0`` (Bonilla 2008)
    ICM           ``KroneckerMTGP.icm(...)``               ``rank=1, noise_rank=0``
    Sigma-MT      ``KroneckerMTGP.sigma_mt(..., rank=P)``  ``rank=P, noise_rank=P`` (Rakitsch 2013)
    ground truth  ``KroneckerMTGP.ground_truth(...)``      C and Sigma given and kept
    ============  =======================================  =======================================

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import KroneckerMTGP
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> model = KroneckerMTGP.std_mt((X, Y), gpflow.kernels.SquaredExponential(), rank=1)
    >>> model.task_covariance().shape
    TensorShape([2, 2])

    The kernel's variance is fixed, C carries the scale; see :class:`gpflow_cool.CoolMTGP`.

    :param data: Inputs X [N, D] and targets Y [N, T], NaN where one is missing.
    :param kernel: Any GPflow kernel over the inputs, shared by all tasks.
    :param mean_function: Any GPflow mean function.
    :param rank: None for a full C; P for :math:`W W^\top + s^2 I` with W [T, P]; 0 for a diagonal
        C, that is, tasks that share only the kernel.
    :param noise_rank: "full"; "diagonal" for one variance per task; 0 for :math:`\sigma^2 I`; P for
        :math:`W W^\top` plus a diagonal.
    :param task_covariance: C to start from, [T, T]; by default from the covariance of Y.
    :param noise_covariance: Sigma to start from, [T, T]; by default a tenth of the variances of Y.
    :param task_names: By default the columns of a data frame Y, else task_0, task_1, ...

    Sigma stays above 1e-6 of the tasks' variances in every direction (of the smallest one, where
    all tasks share one number), or above a tenth of the given start if that is less: without noise
    in some direction the evidence has no maximum.
    """

    def __init__(
        self,
        data: RegressionData,
        kernel: Kernel,
        mean_function: MeanFunction | None = None,
        *,
        rank: int | None = None,
        noise_rank: int | str = "full",
        task_covariance: TensorData | None = None,
        noise_covariance: TensorData | None = None,
        task_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(data, kernel, mean_function, task_names)
        residual = self.centred_targets().numpy()
        scales = task_scales(residual)
        check_offsets(scales, mean_squares(residual), constant_left=self.constant_left())
        self.has_drawn = task_covariance is not None  # from C, not from independent processes
        if task_covariance is None:
            warn_of_scales(scales)
            if rank or noise_rank == 0:
                check_shared_scales(scales, residual.dtype)
            variance = mean_kernel_diagonal(kernel, self.data[0].numpy())
            task_covariance = signal_start(residual, scales) / variance
        C = check_covariance(task_covariance, "task_covariance", self.num_tasks)
        Sigma = np.diag(NOISE_FRACTION * scales) if noise_covariance is None else noise_covariance
        Sigma = check_covariance(Sigma, "noise_covariance", self.num_tasks)
        self.signal = signal_covariance_of_rank(C, rank)
        self.noise = noise_covariance_of_rank(Sigma, noise_rank, scales)
        if noise_covariance is None and noise_rank not in (0, "diagonal"):
            self.warn_of_separate_tasks()
        fix_kernel_scale(kernel)

    @classmethod
    def std_mt(
        cls, data: RegressionData, kernel: Kernel, *, rank: int, **options: Any
    ) -> "KroneckerMTGP":
        """Std-MT of Bonilla et al. (2008): C of rank P plus s^2 I, the same noise for all tasks."""
        return cls(data, kernel, rank=rank, noise_rank=0, **options)

    @classmethod
    def icm(cls, data: RegressionData, kernel: Kernel, **options: Any) -> "KroneckerMTGP":
        """The intrinsic coregionalization model: Std-MT of rank one."""
        return cls(data, kernel, rank=1, noise_rank=0, **options)

    @classmethod
    def sigma_mt(
        cls, data: RegressionData, kernel: Kernel, *, rank: int, **options: Any
    ) -> "KroneckerMTGP":
        """Sigma-MT of Rakitsch et al. (2013): C and Sigma both of rank P plus a diagonal."""
        return cls(data, kernel, rank=rank, noise_rank=rank, **options)

    @classmethod
    def ground_truth(
        cls,
        data: RegressionData,
        kernel: Kernel,
        task_covariance: TensorData,
        noise_covariance: TensorData,
        **options: Any,
    ) -> "KroneckerMTGP":
        """The model with C and Sigma known, and kept in training."""
        options.update(task_covariance=task_covariance, noise_covariance=noise_covariance)
        model = cls(data, kernel, **options)
        set_trainable(model.signal, False)
        set_trainable(model.noise, False)
        return model

    @classmethod
    def from_cool(cls, model: ChainModel) -> "KroneckerMTGP":
        """
        The exact model at the C and Sigma that a :class:`CoolMTGP` has recovered.

        :raises ValueError: If the model is another one.
        """
        if not (isinstance(model, ChainModel) and isinstance(model, InMemoryModel)):
            raise ValueError(
                f"from_cool takes a CoolMTGP, and this is a {type(model).__name__}. Of any model"
                " that has C and Sigma, KroneckerMTGP.ground_truth((X, Y), kernel,"
                " model.task_covariance(), model.noise_covariance(), mean_function=...) makes the"
                " exact one, whose time grows with the cube of the rows: pass some of them where"
                " there are many."
            )
        parameters = model.multitask_parameters()
        return cls.at(model, parameters.C, parameters.Sigma)

    @classmethod
    def at(
        cls, model: InMemoryModel, task_covariance: TensorData, noise_covariance: TensorData
    ) -> "KroneckerMTGP":
        """The exact model with another one's data, kernel and mean function (copied)."""
        exact = cls(
            model.data,
            copy.deepcopy(model.kernel),
            copy.deepcopy(model.mean_function),
            task_covariance=task_covariance,
            noise_covariance=noise_covariance,
            task_names=model.task_names,
        )
        exact.task_column, exact.grid = model.task_column, model.grid
        return exact

    @property
    def objective_term_names(self) -> tuple[str, ...]:
        return ("evidence",)

    def objective_terms(self) -> tf.Tensor:
        """
        The exact log evidence, the only term of the objective. Where targets are missing, its mean
        over their completions.
        """
        system = self.system(python_callback=True)
        evidence = kronecker_log_likelihood(system, self.signal(), self.noise())
        return tf.cast(evidence, self.dtype)[None]

    def log_marginal_likelihood(self) -> tf.Tensor:
        """
        The exact log evidence: the objective, with its gradient. Where targets are missing, the
        evidence of the others, without a gradient.
        """
        if self.observed is not None:
            return super().log_marginal_likelihood()
        return self.maximum_log_likelihood_objective()

    def expectation_maximisation(self) -> ExactEM:
        """EM over full C and Sigma, for `fit("em")`; kernel and mean function stay."""
        if not isinstance(self.signal, FullCovariance) or not isinstance(
            self.noise, FullCovariance
        ):
            raise ValueError(
                'optimizer="em" is for full covariances, rank=None and noise_rank="full": use'
                ' optimizer="scipy".'
            )
        return ExactEM(self, self.signal, self.noise)

    def task_covariance(self) -> tf.Tensor:
        return self.signal()

    def noise_covariance(self) -> tf.Tensor:
        return self.noise()

    def joint_basis(self, system: System) -> TaskBasis:
        return task_basis(tf.cast(self.signal(), tf.float64), tf.cast(self.noise(), tf.float64))

    def observed_system(self) -> ObservedSystem:
        assert self.observed is not None
        lam, U = decompose(self.kernel_matrix())
        return observed_system(U, lam, self.signal(), self.noise(), self.observed)

    def to_document(self, writer: Writer) -> dict[str, Any]:
        return super().to_document(writer) | {
            "signal": writer.module(self.signal, "covariance"),
            "noise": writer.module(self.noise, "covariance"),
            "on_grid": self.is_on_grid,
        }

    def restore_state(self, saved: Document, reader: Reader) -> None:
        super().restore_state(saved, reader)
        self.signal = reader.module(saved["signal"], "covariance")
        self.noise = reader.module(saved["noise"], "covariance")
        on_grid = bool(saved.get("on_grid", self.is_on_grid))  # earlier models lack it
        if on_grid != self.is_on_grid:  # the model that this one came from asked for it
            self.grid = grid_that_is_asked_for(self.kernel, self.data[0]) if on_grid else None
