"""What is told of a fitted estimator, computed again by hand."""

import numpy as np
from numpy.testing import assert_allclose
from tables import NASTY, make_data

from gpflow_cool.table.summary import (
    deviations,
    kernel_parameters,
    leave_one_out_scores,
    lengthscales,
    listed,
    observed_and_predicted,
    score_lines,
    strongest_correlation,
)


def test_scores_by_hand(small_regressor):
    X, Y = make_data(2)
    rows, scores = small_regressor.leave_one_out_, leave_one_out_scores(small_regressor)
    mean, std = np.asarray(rows.mean), np.asarray(rows.std)
    for t, score in enumerate(scores["targets"]):
        error = np.sqrt(np.mean((Y[:, t] - mean[:, t]) ** 2))
        assert score["target"] == [NASTY, "b"][t]
        assert_allclose(score["rmse"], error)
        assert_allclose(score["relative_rmse"], error / np.std(Y[:, t]))
        inside = np.mean(np.abs(Y[:, t] - mean[:, t]) <= 2 * std[:, t])
        assert_allclose(score["coverage"], inside)
    assert_allclose(scores["joint_nlpd"], -np.mean(rows.log_density))
    lines = score_lines(scores)
    assert len({len(line) for line in lines}) == 1 and lines[2].startswith("b ")


def test_deviations_and_parameters(small_regressor):
    X, Y = make_data(2)
    parts = deviations(small_regressor)
    model, s = small_regressor.model_, Y.std(axis=0)
    assert_allclose(parts["noise"], np.sqrt(np.diag(model.noise_covariance())) * s, rtol=1e-8)
    assert_allclose(parts["signal"], np.sqrt(np.diag(model.task_covariance())) * s, rtol=1e-8)
    assert kernel_parameters(small_regressor) == [("variance", "1 (fixed)")]
    assert np.isinf(lengthscales(small_regressor)[1])
    assert_allclose(observed_and_predicted(small_regressor).Y, Y, rtol=1e-12)


def test_the_strongest_correlation_is_told():
    R = [[1.0, 0.1, -0.9], [0.1, 1.0, 0.3], [-0.9, 0.3, 1.0]]
    assert strongest_correlation(R, "xyz") == "The strongest is -0.90, between x and z."
    assert (
        strongest_correlation([[1.0]], "x")
        == "There is one target, and so nothing to correlate with."
    )


def test_of_many_names_the_first_are_listed():
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"x{i}" for i in range(12)]) == (
        "x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, ... (12)"
    )
