"""
All predictions of a posterior, from the moments that its subclass computes.

Outcomes are the leading dimensions of targets that a posterior was conditioned on, see
:meth:`JointPosterior.condition_on`; there are none in the posterior of a model.
"""

import abc
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.base import MeanAndVariance, TensorType

from .. import checks
from ..gaussian import Seed, drawn_seed, log_density_of_layout
from ..graphs import unconverted_method
from .exceedance import WAYS, Exceedance, above, checked_limits, exceedance
from .functions import SampledFunctions
from .kronecker import condition_on_known
from .sampling import Draws, draw_independent_tasks
from .solved_posterior import Solution, SolvedPosterior
from .updating import new_rows


class JointPosterior(SolvedPosterior[Solution]):
    """
    Posterior of T correlated functions given the training data.

    With a cache, nothing is factorised again. The cache belongs to the parameters and data at the
    time it was made, until :meth:`update_cache` is called. Without a cache, each call solves anew;
    a posterior that was conditioned on more rows always has one.
    """

    @abc.abstractmethod
    def _given(self, Xnew: tf.Tensor, Ynew: tf.Tensor) -> "JointPosterior":
        """The posterior given more rows, which are checked."""

    def condition_on(self, Xnew: TensorType, Ynew: TensorType) -> "JointPosterior":
        """
        The posterior given q more rows, at the same kernel, C and Sigma; nothing is trained.

        It equals the posterior of the exact model with all rows, and the rows of the training data
        are not factorised again: O(T q^3 + q N^2). This may be repeated. Where new targets are
        missing, the rows concerned cost O(q^3 T^3).

        >>> import gpflow, numpy as np
        >>> from gpflow_cool import CoolMTGP
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
        >>> model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=0.3))
        >>> posterior = model.posterior()
        >>> later = posterior.condition_on([[1.2]], [[np.sin(7.2), np.nan]])
        >>> before, after = (p.predict_f(np.array([[1.2]]))[1] for p in (posterior, later))
        >>> bool(np.all(after < before))
        True

        Where there are inducing points, the new rows are taken as they are, and not through them.

        :param Xnew: [q, D]. Gradients of predictions with respect to it pass.
        :param Ynew: [q, T], NaN where a target was not measured. Leading dimensions stand for
            several outcomes at the same inputs, and come first in all predictions; what is missing
            must then be the same in all of them. Inside `tf.function`, a posterior of complete data
            must be given complete rows.
        """
        rows = new_rows(Xnew, Ynew, self.num_inputs, self.num_tasks, self.X_data.dtype)
        return self._given(*rows)

    @tf.autograph.experimental.do_not_convert  # the seed is a number, also inside tf.function
    def sample_functions(self, num_samples: int, seed: int | None = None) -> SampledFunctions:
        """
        Draw functions that can be evaluated anywhere, again and again.

        Draws at M points with their covariance, as :meth:`predict_samples` makes them, cost
        O(T M^3). These cost O(M (N + L)), with L = 2048 features per product of stationary kernels.
        Means and the observed targets are met exactly. The covariance between points far from the
        data is approximate: for L features its error is some hundredths of the prior variance.

        >>> import gpflow, numpy as np
        >>> from gpflow_cool import CoolMTGP
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
        >>> model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=0.3))
        >>> functions = model.posterior().sample_functions(100, seed=1)
        >>> functions(np.linspace(0, 2, 1000)[:, None]).shape
        TensorShape([100, 1000, 2])

        Kernels may be squared exponential, Matern, exponential, rational quadratic, linear and
        constant ones, sums and products of these, with one lengthscale or one per input.

        :param seed: Decides the functions; None for others each time, which `tf.random.set_seed`
            decides.
        """
        count = checks.positive_integer(num_samples, "num_samples")
        drawn = self._draw(self.solution(), count, drawn_seed(checks.seed(seed)))
        return self._functions(drawn)

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        return self._moments(self.solve(), Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def _conditional_with_precompute(
        self,
        cache: tuple[tf.Tensor, ...],
        Xnew: TensorType,
        full_cov: bool = False,
        full_output_cov: bool = False,
    ) -> MeanAndVariance:
        return self._moments(self._from_cache(cache), Xnew, full_cov, full_output_cov)

    @unconverted_method
    @check_shapes(
        "Xnew: [batch..., N, D]",
        "return[0]: [outcomes..., batch..., N, P]",
        "return[1]: [outcomes..., batch..., N, P, N, P] if full_cov and full_output_cov",
        "return[1]: [outcomes..., batch..., P, N, N] if full_cov and (not full_output_cov)",
        "return[1]: [outcomes..., batch..., N, P, P] if (not full_cov) and full_output_cov",
        "return[1]: [outcomes..., batch..., N, P] if (not full_cov) and (not full_output_cov)",
    )
    def predict_f(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Mean and (co)variance of the functions, mean function included."""
        return self._predict(Xnew, full_cov, full_output_cov, noise=False)

    @unconverted_method
    @check_shapes(
        "Xnew: [batch..., N, D]",
        "return[0]: [outcomes..., batch..., N, P]",
        "return[1]: [outcomes..., batch..., N, P, N, P] if full_cov and full_output_cov",
        "return[1]: [outcomes..., batch..., P, N, N] if full_cov and (not full_output_cov)",
        "return[1]: [outcomes..., batch..., N, P, P] if (not full_cov) and full_output_cov",
        "return[1]: [outcomes..., batch..., N, P] if (not full_cov) and (not full_output_cov)",
    )
    def predict_y(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Mean and (co)variance of new observations: noise is added where a point meets itself."""
        return self._predict(Xnew, full_cov, full_output_cov, noise=True)

    def _predict(
        self, Xnew: TensorType, full_cov: bool, full_output_cov: bool, *, noise: bool
    ) -> MeanAndVariance:
        """Mean and (co)variance of functions or observations."""
        Xnew = self._inputs(Xnew)
        mean, cov = self._moments(self.solution(), Xnew, full_cov, full_output_cov, noise=noise)
        return self._add_mean_function(Xnew, mean), cov

    @unconverted_method
    @check_shapes("Xnew: [batch..., M, D]", "return: [outcomes..., batch..., M, T]")
    def predict_mean(self, Xnew: TensorType) -> tf.Tensor:
        """Means of the functions, as those of :meth:`predict_f`, without the cost of variances."""
        Xnew = self._inputs(Xnew)
        return self._add_mean_function(Xnew, self._mean(self.solution(), Xnew))

    def _mean(self, solution: Solution, Xnew: TensorType) -> tf.Tensor:
        """[outcomes..., batch..., M, T], without mean function."""
        return self._moments(solution, Xnew, False, False)[0]

    @unconverted_method
    @check_shapes(
        "Xnew: [batch..., M, D]",
        "Ynew: [batch..., M, T]",
        "return: [outcomes..., batch...] if full_cov and full_output_cov",
        "return: [outcomes..., batch..., T] if full_cov and (not full_output_cov)",
        "return: [outcomes..., batch..., M] if not full_cov",
    )
    def predict_log_density(
        self,
        Xnew: TensorType,
        Ynew: TensorType,
        full_cov: bool = False,
        full_output_cov: bool = False,
    ) -> tf.Tensor:
        """
        Log density of new observations.

        With neither flag, the T marginals of each row are summed, as GPflow does. With
        `full_output_cov` it is joint over the tasks of a row, with `full_cov` joint over the rows
        of a task, and with both joint over everything.
        """
        Xnew, Ynew = checks.scored_data(
            (Xnew, Ynew), self.num_inputs, self.num_tasks, self.X_data.dtype
        )
        if full_output_cov:
            return self._joint_log_density(Xnew, Ynew, full_cov)
        return self._log_density(Xnew, Ynew, full_cov, False)

    def _joint_log_density(self, Xnew: TensorType, Ynew: TensorType, full_cov: bool) -> tf.Tensor:
        """Log density that is joint over tasks."""
        return self._log_density(Xnew, Ynew, full_cov, True)

    def _log_density(
        self, Xnew: TensorType, Ynew: TensorType, full_cov: bool, full_output_cov: bool
    ) -> tf.Tensor:
        """Log density from the moments of observations."""
        solution = self.solution()
        mean, S = self._moments(solution, Xnew, full_cov, full_output_cov, noise=True)
        mean = self._add_mean_function(Xnew, mean)
        C, _ = self._task_matrices(solution)
        kernel = self.kernel(Xnew, full_cov=False)[..., None]  # [batch..., M, 1]
        prior = tf.zeros_like(mean) + kernel * tf.cast(tf.linalg.diag_part(C), mean.dtype)
        return log_density_of_layout(Ynew - mean, S, full_cov, full_output_cov, prior)

    @unconverted_method
    @check_shapes("Xnew: [batch..., M, D]", "return: [outcomes..., batch..., S, M, T]")
    def predict_samples(
        self,
        Xnew: TensorType,
        num_samples: int,
        full_cov: bool = True,
        full_output_cov: bool = False,
        *,
        noise: bool = False,
        seed: Seed | None = None,
    ) -> tf.Tensor:
        """
        Draw functions (or, with `noise`, observations) at the test points.

        :param full_cov: Whether draws correlate over points.
        :param full_output_cov: Whether draws correlate over tasks.
        :param seed: Two whole numbers that decide the draws; else `tf.random.set_seed` does.
        """
        Xnew = self._inputs(Xnew)
        solution = self.solution()
        asked = Draws(num_samples, full_cov, noise, seed)
        draw = self._correlated_samples if full_output_cov else self._separate_samples
        samples = draw(solution, Xnew, asked)
        return samples + self.mean_function(Xnew)[..., None, :, :]

    def _separate_samples(self, solution: Solution, Xnew: TensorType, asked: Draws) -> tf.Tensor:
        """[batch..., S, M, T], draws that are independent over tasks, without mean function."""
        num_samples, full_cov, noise, seed = asked
        mean, S = self._moments(solution, Xnew, full_cov, False, noise=noise)
        S = S if full_cov else tf.linalg.matrix_transpose(S)
        C, _ = self._task_matrices(solution)
        prior = self._prior_variances(Xnew, tf.linalg.diag_part(C), mean)
        return draw_independent_tasks(mean, S, full_cov, num_samples, prior, seed)

    @check_shapes("mean: [leading..., M, T]", "return: [leading..., T]")
    def _prior_variances(self, Xnew: TensorType, tasks: TensorType, mean: TensorType) -> tf.Tensor:
        """
        Variances before data were seen, averaged over the points, of draws with this mean.

        :param tasks: [T], those of the tasks where the kernel is one.
        """
        kernel = tf.reduce_mean(self.kernel(Xnew, full_cov=False), axis=-1, keepdims=True)
        nothing = tf.reduce_sum(tf.zeros_like(mean), axis=-2)  # there may be no point
        return nothing + kernel * tf.cast(tasks, mean.dtype)

    @unconverted_method
    @check_shapes(
        "Xnew: [batch..., M, D]",
        "Ynew: [batch..., M, T]",
        "return[0]: [outcomes..., batch..., M, T]",
        "return[1]: [outcomes..., batch..., M, T, T]",
    )
    def predict_given(self, Xnew: TensorType, Ynew: TensorType, *, noise: bool) -> MeanAndVariance:
        """
        Mean and covariance of all tasks at each test point, where some tasks are known.

        :param Ynew: What is known; NaN elsewhere.
        :param noise: Whether observations are asked for, or functions. A known observation keeps
            its value, with variance zero.
        """
        Xnew, Ynew = checks.known_data(
            Xnew, Ynew, self.num_inputs, self.num_tasks, self.X_data.dtype
        )
        solution = self.solution()
        mean, f_cov = self._moments(solution, Xnew, False, True)
        _, Sigma = self._task_matrices(solution)
        y_cov = f_cov + tf.cast(Sigma, f_cov.dtype)
        asked = y_cov if noise else f_cov
        mean = self._add_mean_function(Xnew, mean)
        Ynew = tf.broadcast_to(Ynew, tf.shape(mean))
        mean, cov = condition_on_known(y_cov, asked, asked, mean, Ynew)
        if noise:
            known = tf.math.is_finite(Ynew)
            mean = tf.where(known, Ynew, mean)
            either = known[..., :, None] | known[..., None, :]
            cov = tf.where(either, tf.zeros_like(cov), cov)
        return mean, cov

    @check_shapes("Xnew: [M, D]")
    def probability(
        self, Xnew: TensorType, limits: Any, which: str = "any", *, noise: bool = True
    ) -> Exceedance:
        """
        Probability at each test point that tasks exceed their limits: that any does, that all do,
        [M], or of each on its own, [M, T].

        One limit is answered by the normal distribution. Several are answered by quasi-Monte Carlo,
        the same in every call, with a standard error.

        :param limits: One per task, [T]; NaN for a task that does not count.
        :param which: "any", "all" or "each".
        :param noise: Whether observations are asked about, or functions.
        """
        checks.option(which, "which", WAYS)
        limits = checked_limits(limits, self.num_tasks)
        counts = np.flatnonzero(~np.isnan(limits))
        joint = len(counts) > 1 and which != "each"
        predict = self.predict_y if noise else self.predict_f
        mean, cov = (part.numpy() for part in predict(Xnew, full_output_cov=joint))
        if which == "each":
            return Exceedance(above(limits - mean, np.sqrt(cov)), np.zeros_like(mean))
        if mean.ndim != 2:
            raise ValueError(
                f"Means have shape {mean.shape}, but [M, {self.num_tasks}] is needed: ask about"
                " inputs [M, D], of a posterior that was conditioned on one outcome."
            )
        cov = cov[:, counts][:, :, counts] if joint else cov[:, counts, None]
        return exceedance(mean[:, counts], cov, limits[counts], which)
