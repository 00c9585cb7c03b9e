"""Weights between tasks: their priors, the matrices recovered, rows left out, refinement."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import CASES, LEARNINGS, Problem, assert_close, random_problem
from refusals import exactly

from gpflow_cool import CoolMTGP, KroneckerMTGP, SparseCoolMTGP

LAM = 0.6
SOME = ["N1-T1", "N7-T1", "N7-T3", "N2-T5", "repeated_rows", "linear", "copies", "zeros"]


def scaled(p: Problem, **options):
    options = {"weight_variance": LAM, "b": p.b, "sigma2": p.sigma2} | options
    return CoolMTGP((p.X, p.Y), p.gpflow_kernel(), **options)


# Objective and parameters -------------------------------------------------------------------------


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", SOME)
def test_terms_and_gradient_equal_dense(rng, case, learning):
    p = CASES[case](rng)
    model = scaled(p, learning=learning)
    gpflow.set_trainable(model.weight_variance, True)
    expected = ref.conditional_log_likelihoods(*p.chain, learning, LAM)
    assert_close(model.conditional_log_likelihoods(), expected, rtol=1e-8)
    assert_close(model.maximum_log_likelihood_objective(), np.sum(expected), rtol=1e-8)
    parameters = [model.b, model.sigma2, model.weight_variance]
    with tf.GradientTape() as tape:
        loss = model.maximum_log_likelihood_objective()
    variables = [parameter.unconstrained_variable for parameter in parameters]
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    for place, parameter in enumerate(parameters):
        u = rng.normal(size=parameter.shape) * parameter.numpy()

        def along(h, place=place, u=u):
            at = [p.b, p.sigma2, LAM]
            at[place] = at[place] + h * u
            return ref.objective(p.K, p.Y, *at[:2], learning, at[2])

        variable = parameter.unconstrained_variable
        by_value = gradients[place] / np.exp(
            parameter.transform.forward_log_det_jacobian(tf.convert_to_tensor(variable), 0)
        )
        assert_allclose(np.sum(by_value * u), ref.derivative(along, 1e-3), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("prior", ["scaled", "unit"])
def test_units_of_a_target_matter_with_the_prior_of_the_paper_only(rng, prior):
    p = random_problem(rng, 9, 3)
    units = np.array([1.0, 2.0, 0.5])
    losses = [
        CoolMTGP(
            (p.X, p.Y * unit),
            p.gpflow_kernel(),
            weight_prior=prior,
            b=p.b * unit**2,
            sigma2=p.sigma2 * unit**2,
        ).training_loss()
        - 9 * np.sum(np.log(unit))
        for unit in (np.ones(3), units)
    ]
    assert (abs(losses[0] - losses[1]) < 1e-9) == (prior == "scaled")


def test_one_task_has_no_weights_to_learn(rng):
    p = random_problem(rng, 7, 1)
    model = scaled(p)
    assert not model.weight_variance.trainable
    assert_close(model.log_prior_density(), 0.0)
    assert_close(model.training_loss(), -ref.log_evidence(p.K, p.Y, p.b[None], p.sigma2[None]))


def test_hierarchical_learning_keeps_the_weight_variance(rng):
    """It does not charge for the weights: nothing but the prior would hold their variance."""
    model = scaled(random_problem(rng, 7, 3), learning="hierarchical")
    model.fit(verbose=0)
    assert_close(model.weight_variance, LAM)
    assert_close(model.training_loss(), -model.maximum_log_likelihood_objective())


def test_prior_of_the_weight_variance(rng):
    """Log-normal with its mode at 1: the density falls as that of N(log lambda | 0, 3^2)."""
    model = scaled(random_problem(rng, 7, 3))
    u = np.log(LAM)
    expected = -0.5 * (u - 9.0) ** 2 / 9.0 - u - np.log(3.0 * np.sqrt(2 * np.pi))
    assert_close(expected, -0.5 * (u / 3.0) ** 2 - 4.5 - np.log(3.0 * np.sqrt(2 * np.pi)))
    assert_close(model.log_prior_density(), expected)
    value = model.maximum_log_likelihood_objective()
    assert_close(model.training_loss(), -(value + expected))


# Options ------------------------------------------------------------------------------------------

POSITIVE = (
    "weight_variance={} must be one number of at least 1e-08: the prior variance of the weights"
    " between tasks, relative to the noise. By default it starts at 1; 1e-08 is as good as no"
    " weights."
)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"weight_variance": 0.0}, POSITIVE.format("0.0")),
        ({"weight_variance": -1}, POSITIVE.format("-1")),
        ({"weight_variance": np.inf}, POSITIVE.format("inf")),
        ({"weight_variance": [1.0, 2.0]}, POSITIVE.format("[1.0, 2.0]")),
        ({"weight_variance": True}, POSITIVE.format("True")),
        (
            {"weight_variance": 1.0, "weight_prior": "unit"},
            'weight_variance goes with weight_prior="scaled". With "unit" the weights between tasks'
            " have variance 1, as in the paper: leave one of the two out.",
        ),
        (
            {"weight_prior": "uniform"},
            "weight_prior='uniform' is not known. Choose one of: 'scaled', 'unit'.",
        ),
        (
            {"learning": "exact"},
            "learning='exact' is not known. Choose one of: 'hierarchical', 'approximate'.",
        ),
    ],
)
def test_options_that_make_no_sense(rng, options, text):
    p = random_problem(rng, 6, 2)
    data, kernel = (p.X, p.Y), p.gpflow_kernel()
    for make in (CoolMTGP, lambda *args, **kw: SparseCoolMTGP(*args, p.X, **kw)):
        with pytest.raises(ValueError, match=exactly(text)):
            make(data, kernel, **options)


# C and Sigma --------------------------------------------------------------------------------------


@pytest.mark.parametrize("correlation", ["mean", "map"])
@pytest.mark.parametrize("case", SOME)
def test_matrices_equal_dense(rng, case, correlation):
    p = CASES[case](rng)
    model = scaled(p)
    expected = ref.recover_all(*p.chain, LAM, correlation)
    found = model.multitask_parameters(correlation=correlation)
    for name in found._fields:
        assert_close(getattr(found, name), getattr(expected, name), rtol=1e-8)
    C, Sigma = expected.C, expected.Sigma
    if correlation == "mean":  # the default
        assert_close(model.task_covariance(), C, rtol=1e-8)
        assert_close(model.noise_covariance(), Sigma, rtol=1e-8)
        expected = ref.log_evidence(p.K, p.Y, C, Sigma)
        assert_close(model.log_marginal_likelihood(), expected, rtol=1e-8)
        assert_close(model.to_exact().task_covariance(), C, rtol=1e-8)


@pytest.mark.parametrize("case", SOME)
def test_matrices_of_the_paper_equal_dense(rng, case):
    p = CASES[case](rng)
    model = scaled(p, weight_prior="unit", weight_variance=None)
    assert model.weight_variance is None
    C, Sigma = ref.recover(*p.chain)
    assert_close(model.task_covariance(), C, rtol=1e-8)
    assert_close(model.noise_covariance(), Sigma, rtol=1e-8)


def test_monte_carlo_correlations_depend_on_the_seed_alone(rng):
    p = random_problem(rng, 9, 3)
    model = scaled(p)
    first, again, other = (
        model.multitask_parameters(correlation="monte_carlo", seed=seed).B for seed in (0, 0, 1)
    )
    assert_close(first, again, rtol=0)
    assert np.max(np.abs(first - other)) > 1e-3
    assert_close(np.diag(first), p.b)
    with pytest.raises(ValueError, match="correlation='max' is not known"):
        model.multitask_parameters(correlation="max")


# Rows left out ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", ["scaled", "unit"])
@pytest.mark.parametrize("case", ["N7-T1", "N7-T3", "N2-T5", "repeated_rows", "copies", "zeros"])
def test_rows_left_out_equal_deleting_them(rng, case, prior):
    p = CASES[case](rng)
    mean = gpflow.mean_functions.Constant(np.full(p.Y.shape[1], 0.3))
    options = {"weight_prior": prior, "weight_variance": LAM if prior == "scaled" else None}
    model = CoolMTGP((p.X, p.Y + 0.3), p.gpflow_kernel(), mean, b=p.b, sigma2=p.sigma2, **options)
    rows = [np.array([row]) for row in range(len(p.Y))]
    expected = ref.leave_out_log_densities(*p.chain, rows, options["weight_variance"])
    assert_close(model.leave_one_out().log_density, expected)
    assert_close(model.leave_groups_out(np.arange(len(p.Y))), expected)


def test_groups_left_out_equal_deleting_them(rng):
    p = random_problem(rng, 11, 3)
    groups = np.array(list("caabccabbba"))
    found = scaled(p).leave_groups_out(groups)
    rows = [np.flatnonzero(groups == group) for group in "abc"]
    assert_close(found, ref.leave_out_log_densities(*p.chain, rows, LAM))


def test_means_of_rows_left_out_are_those_of_the_joint_model(rng):
    p = random_problem(rng, 7, 3)
    model = scaled(p)
    rows = model.leave_one_out()
    expected = ref.leave_one_out(p.K, p.Y, *ref.recover(*p.chain, LAM))
    assert_close(rows.mean, expected.mean, rtol=1e-8)
    assert_close(rows.cov, expected.cov, rtol=1e-8)
    variances = model.leave_one_out(full_output_cov=False)
    assert_close(variances.cov, np.diagonal(expected.cov, axis1=1, axis2=2), rtol=1e-8)
    assert_close(variances.log_density, rows.log_density)


@pytest.mark.parametrize(
    "groups, text",
    [
        ([0, 1], "groups has shape (2,), but X has 6 rows: pass one group per row, shape (6,)."),
        (
            np.zeros((6, 1)),
            "groups has shape (6, 1), but X has 6 rows: pass one group per row, shape (6,).",
        ),
        (
            ["a"] * 6,
            "All rows are in one group, so that none is left to predict it from: pass the groups of"
            " which each is to be predicted from the others.",
        ),
    ],
)
def test_groups_that_make_no_sense(rng, groups, text):
    with pytest.raises(ValueError, match=exactly(text)):
        scaled(random_problem(rng, 6, 2)).leave_groups_out(groups)


def test_groups_need_all_targets(rng):
    p = random_problem(rng, 6, 2)
    p.Y[1, 1] = np.nan
    with pytest.raises(ValueError, match=r"leave_groups_out needs all targets, .*model.impute\(\)"):
        scaled(p).leave_groups_out(np.arange(6))


# Orders and refinement ----------------------------------------------------------------------------


def signals(rng, N=40, T=4):
    """Two functions behind T tasks, and noise of one factor besides."""
    X = rng.uniform(0.0, 6.0, size=(N, 1))
    F = np.hstack([np.sin(2 * X), np.cos(X)]) @ rng.normal(size=(2, T))
    E = 0.3 * rng.normal(size=(N, 1)) @ rng.normal(size=(1, T)) + 0.2 * rng.normal(size=(N, T))
    return X, F + E


def model_of(data, **options):
    return CoolMTGP(data, gpflow.kernels.SquaredExponential(lengthscales=0.8), **options)


def test_an_average_over_all_orders_does_not_depend_on_the_order(rng):
    X, Y = signals(rng, T=3)
    order = [2, 0, 1]
    averages = [model_of((X, A)).average_over_orders(6) for A in (Y, Y[:, order])]
    for name in ("task_covariance", "noise_covariance"):
        one, other = (getattr(average, name)().numpy() for average in averages)
        assert_close(one[np.ix_(order, order)], other, rtol=1e-8)


def test_the_first_order_is_that_of_the_columns(rng):
    """b and sigma2 solved for on the grid are nearly those of a fit with the kernel kept."""
    model = model_of(signals(rng))
    gpflow.set_trainable(model.kernel, False)
    gpflow.set_trainable(model.weight_variance, False)
    model.fit(verbose=0)
    average = model.average_over_orders(1)
    scale = np.diag(model.noise_covariance())
    assert_allclose(average.noise_covariance(), model.noise_covariance(), atol=0.1 * scale.max())
    gain = average.log_marginal_likelihood() - model.log_marginal_likelihood()
    assert abs(gain) < 0.05 * model.num_rows * model.num_tasks


@pytest.mark.parametrize("missing", [False, True])
def test_refinement_follows_the_data_more_closely(rng, missing):
    """The evidence rises: here the noises correlate unlike the functions."""
    X, Y = signals(rng)
    if missing:
        Y[rng.uniform(size=Y.shape) < 0.15] = np.nan
    model = model_of((X, Y))
    model.fit(verbose=0, **({"rounds": 2} if missing else {}))
    refined = model.refine()
    assert isinstance(refined, KroneckerMTGP)
    assert_close(refined.kernel.lengthscales, model.kernel.lengthscales)
    average = model.average_over_orders(4, seed=0)
    assert refined.log_marginal_likelihood() > average.log_marginal_likelihood()
    for S in (refined.task_covariance(), refined.noise_covariance()):
        assert np.linalg.eigvalsh(S).min() > 0.0
    again = model.refine()
    assert_close(again.task_covariance(), refined.task_covariance(), rtol=0)


def test_a_second_step_changes_less_than_the_first(rng):
    model = model_of(signals(rng))
    C = [model.refine(steps).task_covariance().numpy() for steps in (59, 60, 1, 2)]
    assert np.abs(C[1] - C[0]).max() < 0.2 * np.abs(C[3] - C[2]).max()


def test_averages_and_refinement_are_for_the_scaled_prior(rng):
    model = model_of(signals(rng), weight_prior="unit")
    text = (
        'Averages over orders and refine() are for weight_prior="scaled". With "unit", the paper\'s'
        " prior, model.to_exact() has C and Sigma of the order of Y's columns."
    )
    for call in (model.average_over_orders, model.refine):
        with pytest.raises(ValueError, match=exactly(text)):
            call()
    for call, name in ((model.average_over_orders, "num_orders"), (model.refine, "steps")):
        with pytest.raises(ValueError, match=f"{name}=0 "):
            call(0)
