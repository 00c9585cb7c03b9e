"""Cross-validation against fits by hand, and the verdict on the coupling."""

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal, norm

from gpflow_cool.models import CoolMTGP, IndependentGPs
from gpflow_cool.selection.choice import PER_INPUT, KernelTable
from gpflow_cool.table import comparison, evaluation
from gpflow_cool.table.choices import Training, make_kernel
from gpflow_cool.table.comparison import Gain, gain_over
from gpflow_cool.table.evaluation import (
    COOL,
    INDEPENDENT,
    MethodScores,
    check_trainable,
    cross_validate,
)
from gpflow_cool.training.run import History


def make_data():
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 6, size=[18, 1])
    noise = rng.normal(size=[18, 1]) @ [[1.0, 0.95]] + 0.1 * rng.normal(size=[18, 2])
    return X, (np.sin(X) + 0.3 * noise) * [1.0, 100.0] + [5.0, -7.0]


def by_hand(X, Y, train, test):
    """Mean and joint log density of the test rows, in the user's units."""
    mx, sx = X[train].mean(axis=0), X[train].std(axis=0)
    my, sy = Y[train].mean(axis=0), Y[train].std(axis=0)
    data = ((X[train] - mx) / sx, (Y[train] - my) / sy)
    model = CoolMTGP(data, gpflow.kernels.SquaredExponential())
    model.fit(verbose=0)
    model = model.refine()  # as the estimator does
    mean, cov = model.predict_y((X[test] - mx) / sx, full_output_cov=True)
    mean, cov = mean * sy + my, cov.numpy() * np.outer(sy, sy)
    density = [
        multivariate_normal(m, S).logpdf(y) for m, S, y in zip(mean, cov, Y[test], strict=True)
    ]
    return mean.numpy(), np.array(density)


@pytest.fixture(scope="module")
def scores():
    calls = []
    found = cross_validate(
        *make_data(), gpflow.kernels.SquaredExponential(), folds=2, seed=4, progress=calls.append
    )
    assert calls == 2 * list(found)
    return found


@pytest.mark.slow
def test_scores_are_those_by_hand(scores):
    X, Y = make_data()
    mean, nlpd, base = np.empty_like(Y), np.empty(len(Y)), np.empty_like(Y)
    for train, test in evaluation.split_rows(len(X), 2, seed=4):
        mean[test], density = by_hand(X, Y, train, test)
        nlpd[test] = -density
        base[test] = Y[train].mean(axis=0)
    ours = scores[COOL]
    error = np.sqrt(np.mean((Y - mean) ** 2, axis=0))
    assert_allclose(ours.rmse, error, rtol=1e-5)
    assert_allclose(
        ours.arrmse, np.mean(error / np.sqrt(np.mean((Y - base) ** 2, axis=0))), rtol=1e-5
    )
    relative = (Y - mean) / np.sqrt(np.mean((Y - base) ** 2, axis=0))
    assert_allclose(ours.error_rows, np.mean(relative**2, axis=1), rtol=1e-3, atol=1e-6)
    assert_allclose(ours.nlpd_rows, nlpd, rtol=1e-4, atol=1e-5)
    assert_allclose(ours.joint_nlpd, nlpd.mean(), rtol=1e-5)
    gain = scores[INDEPENDENT].nlpd_rows - nlpd
    found = gain_over(scores[INDEPENDENT], scores[COOL])
    assert_allclose(found.mean, gain.mean(), rtol=1e-4)
    assert_allclose(found.standard_error, gain.std(ddof=1) / np.sqrt(len(gain)), rtol=1e-4)


def test_coupling_pays_where_noise_correlates(scores):
    assert gain_over(scores[INDEPENDENT], scores[COOL]).verdict == "better"


def test_comparison_as_json_and_as_text(scores):
    found = comparison.comparison(scores, ["a", "b"], 18, 2)
    gain = gain_over(scores[INDEPENDENT], scores[COOL])
    assert found["gain_in_joint_nlpd"][INDEPENDENT] == {
        "mean": gain.mean,
        "standard_error": gain.standard_error,
        "verdict": "better",
    }
    assert found["scores"][COOL]["rmse"]["b"] == scores[COOL].rmse[1]
    lines = comparison.comparison_lines(found)
    assert lines[0] == "18 rows, 2 folds"
    assert len({len(line) for line in lines[2:6]}) == 1 and len(lines) == 10
    assert lines[9].startswith("Lowest joint NLPD: ")
    assert "RMSE a" in lines[2] and f"{scores[COOL].joint_nlpd:.3f}" in lines[3]
    assert lines[7] == (
        f"Cool-MTGP against independent GPs: better, joint NLPD per row lower by {gain.mean:.3f}"
        f" (standard error {gain.standard_error:.3f})"
    )


def scored(arrmse, nlpd, errors):
    rows = np.array(nlpd), np.array(errors)
    return MethodScores(np.ones(1), arrmse, float(rows[0].mean()), *rows, 1.0)


@pytest.mark.parametrize("other, clear", [([3.1, 2.9, 3.0], False), ([5.0, 5.1, 4.9], True)])
def test_one_target_has_nothing_to_couple(other, clear):
    scores = {COOL: scored(0.4, [3.0, 3.1, 2.9], [0.1] * 3)}
    scores[INDEPENDENT] = scored(0.3, other, [0.1] * 3)
    lines = comparison.comparison_lines(comparison.comparison(scores, ["a"], 3, 2))
    assert lines.count("There is one target, and so nothing to couple.") == 1
    lowest = "Lowest joint NLPD: Cool-MTGP. Lowest aRRMSE: independent GPs."
    assert (lines[-1] == lowest) is clear
    assert any(line.startswith("Lowest") for line in lines) is clear


def test_a_transform_is_judged_by_densities_and_by_means():
    scores = {
        COOL: scored(0.4, [3.0, 3.1, 2.9, np.nan], [0.1, 0.2, 0.1, np.nan]),
        f"{COOL}, log": scored(0.5, [1.0, 1.2, 0.8, np.nan], [0.3, 0.5, 0.2, np.nan]),
    }
    found = comparison.comparison(scores, ["a"], 4, 2, transform="log")
    told = found["transform"][f"{COOL}, log"]
    assert (told["density"]["verdict"], told["mean"]["verdict"]) == ("better", "worse")
    assert told["density"]["mean"] == pytest.approx(2.0)
    assert told["mean"]["mean"] == pytest.approx(-0.2)
    assert told["mean"]["standard_error"] == pytest.approx(0.1 / np.sqrt(3))
    (line,) = comparison.transform_lines(found["transform"])
    assert "densities and intervals better (joint NLPD per row lower by 2.000, standard" in line
    assert "means worse (aRRMSE 0.400 -> 0.500). For probabilities and intervals use the" in line
    assert line in comparison.comparison_lines(found)
    assert comparison.comparison(scores, ["a"], 4, 2)["transform"] == {}


def test_means_of_rows_skip_gaps():
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [1.0, 3.0]])
    assert_allclose(evaluation.mean_of_known(values), [1.0, np.nan, 2.0])


def test_a_failed_fit_is_tried_again():
    class Stubborn:
        calls = []

        def fit(self, **options):
            self.calls.append(options)
            raise RuntimeError("Training failed")

    evaluation.fit_or_restart(Stubborn(), "shrunk")
    once = {"verbose": 0, "seed": 0, "relevance": "shrunk"}
    assert Stubborn.calls == [once, {**once, "restarts": 3}]


def test_an_interrupted_fit_has_no_score():
    class Stub:
        def __init__(self, *interrupted):
            self.histories = [History({}, interrupted=each) for each in interrupted]

        def fit(self, **options):
            return self.histories if len(self.histories) > 1 else self.histories[0]

    for stopped in (Stub(True), Stub(False, True)):
        with pytest.raises(KeyboardInterrupt):
            evaluation.fit_or_restart(stopped, "given")
    for trained in (Stub(False), Stub(False, False)):
        evaluation.fit_or_restart(trained, "given")


@pytest.mark.slow
def test_others_take_the_kernel_that_was_chosen_in_the_fold(monkeypatch):
    """Trained anew, with lengthscales of their own."""
    x, Y = make_data()
    X = np.hstack([x, x[::-1] ** 2])
    train, test = np.arange(12), np.arange(12, 18)

    def chooses(data, kernel, ard, make, **_):
        assert (kernel, ard) == ("auto", "shrunk")
        model = make(data, gpflow.kernels.Matern32())
        return Training(model, History({}), KernelTable((), f"matern32{PER_INPUT}", 12))

    monkeypatch.setattr(evaluation, "train_model", chooses)
    candidates = evaluation.candidates_of({"auto": "auto"}, 2, "hierarchical", ard="shrunk")
    assert list(candidates) == [COOL, INDEPENDENT, "Std-MT, rank 2"]
    del candidates["Std-MT, rank 2"]
    found = evaluation.score_candidates(X, Y, candidates, [(train, test), (test, train)])
    mx, sx, my, sy = (f(A[train], axis=0) for A in (X, Y) for f in (np.mean, np.std))
    model = IndependentGPs(((X[train] - mx) / sx, (Y[train] - my) / sy), gpflow.kernels.Matern32())
    model.fit(verbose=0, relevance="shrunk")
    mean, var = (part.numpy() for part in model.predict_y((X[test] - mx) / sx))
    density = norm(mean * sy + my, np.sqrt(var) * sy).logpdf(Y[test]).sum(axis=1)
    assert_allclose(found[INDEPENDENT].nlpd_rows[test], -density, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ard, relevance, size", [("shrunk", "shrunk", ()), (True, "given", (2,))])
def test_others_have_a_kernel_that_was_named(ard, relevance, size):
    recipe = evaluation.recipe_of("matern52", ard, None, 2)
    assert isinstance(recipe.kernel, gpflow.kernels.Matern52) and recipe.relevance == relevance
    assert recipe.kernel.lengthscales.shape == size
    given = gpflow.kernels.SquaredExponential(lengthscales=3.0)
    recipe = evaluation.recipe_of(given, "shrunk", None, 2)
    assert recipe.relevance == "given" and recipe.kernel.lengthscales.numpy() == 3.0
    recipe = evaluation.recipe_of("auto", "shrunk", KernelTable((), "linear", 9), 2)
    assert isinstance(recipe.kernel, gpflow.kernels.Linear) and recipe.relevance == "given"


@pytest.mark.parametrize(
    "mean, error, verdict",
    [(0.3, 0.1, "better"), (-0.3, 0.1, "worse"), (0.2, 0.1, "no clear difference")],
)
def test_verdicts(mean, error, verdict):
    assert Gain(mean, error).verdict == verdict


def test_every_row_is_held_out_once():
    parts = list(evaluation.split_rows(11, 3, seed=0))
    assert_array_equal(np.sort(np.concatenate([test for _, test in parts])), np.arange(11))
    assert all(len(np.intersect1d(*part)) == 0 and len(np.union1d(*part)) == 11 for part in parts)


@pytest.mark.parametrize("folds, rows", [(1, 9), (10, 9), (2, 3)])
def test_impossible_folds_are_refused(folds, rows):
    with pytest.raises(ValueError, match=f"folds={folds} is not possible for {rows} rows"):
        evaluation.check_folds(folds, rows)


def data_with_gaps():
    """24 rows, of which some lack one target, and row 4 lacks both."""
    rng = np.random.default_rng(8)
    x = np.sort(rng.uniform(0, 6, 24))
    Y = np.sin(x)[:, None] * [1.0, 50.0] + 0.1 * rng.normal(size=[24, 2]) * [1, 50]
    Y[[1, 4, 9], 0] = np.nan
    Y[[4, 7, 13, 20], 1] = np.nan
    return x[:, None], Y


@pytest.mark.slow
def test_evaluation_scores_what_is_known():
    X, Y = data_with_gaps()
    missing = np.isnan(Y)
    candidate = evaluation.Candidate(IndependentGPs, make_kernel("se", False, 1))
    parts = list(evaluation.split_rows(24, 2, 0))
    score = evaluation.score_candidates(X, Y, {"GPs": candidate}, parts)["GPs"]
    mean, density = np.empty_like(Y), np.empty(24)
    for train, test in parts:
        for t in range(2):
            o = train[~missing[train, t]]
            mx, sx = X[train].mean(), X[train].std()
            my, sy = Y[o, t].mean(), Y[o, t].std()
            data = (X[o] - mx) / sx, (Y[o, t : t + 1] - my) / sy
            model = CoolMTGP(data, make_kernel("se", False, 1))
            model.fit(verbose=0)
            m, v = (part.numpy()[:, 0] for part in model.predict_y((X[test] - mx) / sx))
            mean[test, t] = m * sy + my
            own = norm(mean[test, t], np.sqrt(v) * sy).logpdf(Y[test, t])
            density[test] = np.nan_to_num(own) + (density[test] if t else 0.0)
    density[4] = np.nan  # nothing is known of this row
    assert_allclose(score.rmse, np.sqrt(np.nanmean((mean - Y) ** 2, axis=0)), rtol=1e-4)
    assert_allclose(score.nlpd_rows, -density, rtol=1e-3, atol=1e-4)
    assert score.joint_nlpd == pytest.approx(-np.nanmean(density), rel=1e-4)
    found = gain_over(score, score)
    assert found.mean == found.standard_error == 0.0


def test_a_fold_without_numbers_is_refused():
    Y = np.where(np.arange(24)[:, None] == [3, 3], 1.0, np.nan)
    with pytest.raises(ValueError, match="Target 'a' has 1 known rows, and none to train on"):
        check_trainable(Y, ["a", "b"], list(evaluation.split_rows(24, 2, 0)))
