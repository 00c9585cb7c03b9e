"""The choice of a kernel: ranking, ties, failures, samples of rows, missing targets."""

import signal
from functools import partial
from types import SimpleNamespace

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp

from gpflow_cool import CoolMTGP, choose_kernel
from gpflow_cool.selection import choice as module
from gpflow_cool.selection.candidates import CANDIDATES, named_candidates
from gpflow_cool.selection.choice import KernelTable, rows_of_choice
from gpflow_cool.selection.comparison import fit_and_score, scored, start_near
from gpflow_cool.selection.ranking import Candidate, Trained, best_of, charged, is_better, surpasses
from gpflow_cool.training.relevance import prior_around

kernels = gpflow.kernels


@pytest.fixture(scope="module")
def data():
    """Two smooth tasks of the first of two inputs."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=[30, 2])
    noise = 0.05 * rng.normal(size=[30, 2])
    return X, np.stack([np.sin(2 * X[:, 0]), np.cos(2 * X[:, 0])], axis=1) + noise


@pytest.fixture(scope="module")
def chosen(data):
    return choose_kernel(data, ["linear", "se", "matern12"], verbose=0)


def trained(name, densities, score=0.0, interpolates=False):
    row = Candidate(name, float(np.mean(densities)), 0.0, 0.0, 1, 0.0, "", score, interpolates)
    return Trained(row, densities=np.asarray(densities, float))


BASE = np.linspace(-1.0, 1.0, 50)
WOBBLE = np.where(np.arange(50) % 2, 0.3, -0.3)  # standard error 0.3 / sqrt(50) = 0.042


def test_smooth_functions_get_the_smooth_kernel_and_a_lengthscale_per_input(chosen):
    table = chosen.table
    assert table.chosen == "se, a lengthscale per input"
    densities = [row.log_density for row in table.candidates]
    assert densities == sorted(densities, reverse=True)
    assert [row.name for row in table.candidates][0] == table.chosen
    assert isinstance(chosen.model.kernel, kernels.SquaredExponential)
    lengthscales = chosen.model.kernel.lengthscales.numpy()
    assert lengthscales[1] > 2 * lengthscales[0]
    assert chosen.history.converged


def test_table_prints_one_line_per_kernel(chosen):
    lines, rows = str(chosen).splitlines(), chosen.table.candidates
    assert lines[1].startswith("* se, a lengthscale per input") and lines[2].startswith("  ")
    for line, row in zip(lines[1:], rows, strict=False):
        assert line[2:].startswith(row.name) and f"{row.log_density:.3f}" in line
        assert ("!" in line) == row.interpolates
    assert (
        lines[1 + len(rows)] == "Every one of 30 rows predicted from all the others; * is chosen."
    )


def test_without_relevance_one_lengthscale_stays(data):
    choice = choose_kernel(data, ["se"], relevance="given", verbose=0)
    assert choice.table.chosen == "se"
    assert choice.model.kernel.lengthscales.shape.rank == 0
    plain = CoolMTGP(data, kernels.SquaredExponential())
    plain.fit(verbose=0)
    np.testing.assert_allclose(choice.model.training_loss(), plain.training_loss(), atol=0.05)


def test_kernels_are_compared_roughly_and_the_best_is_trained_to_the_end():
    rng = np.random.default_rng(5)
    X = rng.normal(size=[60, 1])
    Y = np.hstack([np.sin(X), np.cos(X)]) + 0.1 * rng.normal(size=[60, 2])
    plain = CoolMTGP((X, Y), kernels.RationalQuadratic())
    plain.fit(verbose=0)
    rough = fit_and_score("", kernels.RationalQuadratic(), partial(CoolMTGP, (X, Y)), None)
    choice = choose_kernel((X, Y), ["rq"], verbose=0)
    assert choice.history.converged
    loss = float(choice.model.training_loss())
    assert loss < float(rough.model.training_loss()) + 1e-3
    assert loss == pytest.approx(float(plain.training_loss()), abs=0.05)


def test_of_those_not_clearly_worse_the_highest_score_is_chosen():
    best = trained("best", BASE, score=1.0)
    near = trained("near", BASE + WOBBLE - 0.08, score=2.0)
    clear = trained("clear", BASE + WOBBLE - 0.09, score=3.0)
    assert best_of([clear, near, best]).row.name == "near"
    assert best_of([clear, best]).row.name == "best"
    assert best_of([near._replace(row=near.row._replace(score=0.5)), best]).row.name == "best"
    assert best_of([trained("same", BASE, score=1.0), best]).row.name == "same"


def test_a_kernel_that_passes_through_all_targets_is_taken_if_all_as_good_do():
    sure = trained("sure", BASE, score=5.0, interpolates=True)
    near = trained("near", BASE + WOBBLE - 0.08, score=2.0)
    clear = trained("clear", BASE + WOBBLE - 0.09, score=3.0)
    assert best_of([sure, near, clear]).row.name == "near"
    assert best_of([sure, clear]).row.name == "sure"


def test_lengthscales_per_input_must_be_decided_by_the_data():
    common = trained("common", BASE)._replace(objective=10.0)
    freed = trained("freed", BASE + 0.1)._replace(objective=16.0)
    most = (16.0 - 10.0) / (4.0 + 40.0 / len(BASE))
    assert is_better(freed, common, prior_cost=0.99 * most)
    assert not is_better(freed, common, prior_cost=1.01 * most)
    worse = freed._replace(row=freed.row._replace(log_density=common.row.log_density - 0.1))
    assert not is_better(worse, common, prior_cost=0.0)


@pytest.mark.parametrize("rmse, better", [(0.97, True), (0.985, False), (1.1, False)])
def test_lengthscales_per_input_must_bring_means_closer_to_the_targets(rmse, better):
    common = trained("common", BASE)._replace(objective=10.0)
    freed = trained("freed", BASE + 0.1)._replace(objective=16.0)
    common = common._replace(row=common.row._replace(rmse=1.0))
    freed = freed._replace(row=freed.row._replace(rmse=rmse))
    assert is_better(freed, common, prior_cost=0.1) == better


@pytest.mark.parametrize(
    "change, taken",
    [
        ({}, True),
        ({"score": 1.0}, False),
        ({"log_density": -9.0}, False),
        ({"rmse": 0.985}, False),
        ({"interpolates": True}, False),
    ],
)
def test_another_kernel_with_lengthscales_per_input_must_be_better_in_everything(change, taken):
    first, second = trained("first", BASE, score=2.0), trained("second", BASE + 0.1, score=3.0)
    first = first._replace(row=first.row._replace(rmse=1.0))
    second = second._replace(row=second.row._replace(**{"rmse": 0.97, **change}))
    assert surpasses(second, first) is taken
    both = first._replace(row=first.row._replace(interpolates=True))
    assert surpasses(second, both) is (taken or "interpolates" in change)


def test_the_second_kernel_must_surpass_the_best_one_alone_as_well():
    """Where lengthscales per input do not pay for the best kernel, but for the second one."""
    common = SimpleNamespace(kernel=kernels.SquaredExponential())
    freed = SimpleNamespace(kernel=kernels.SquaredExponential(lengthscales=[0.9, 1.1]))
    best = trained("best", BASE, score=100.0)._replace(model=common, objective=10.0)
    best = best._replace(row=best.row._replace(rmse=1.0))
    own = trained("own", BASE - 1.0)._replace(model=freed, objective=11.0, common=common.kernel)
    other = trained("other", BASE + 0.1, score=60.0)
    other = other._replace(model=freed, objective=16.0, common=kernels.SquaredExponential())
    other = other._replace(row=other.row._replace(rmse=0.97))
    assert module.best_freed([own, other], best) is best
    better = other._replace(row=other.row._replace(score=101.0))
    assert module.best_freed([own, better], best) is better
    failed = other._replace(failure=ValueError())
    assert module.best_freed([failed], best) is best


def test_lengthscales_per_input_that_fail_do_not_lose_the_choice(data):
    """A model that cannot be made with them, for whatever reason, is a row of the table."""

    def make(data, kernel):
        if isinstance(kernel, kernels.SquaredExponential) and kernel.lengthscales.shape.rank:
            raise RuntimeError("no room for that")
        return CoolMTGP(data, kernel)

    choice = module.choose(data, named_candidates(["se"]), make, make, verbose=0)
    assert choice.table.chosen == "se"
    assert choice.table.candidates[-1].error == "no room for that"


def test_kernels_start_from_what_the_same_kernel_or_the_first_has_ended_with():
    ends = [kernels.SquaredExponential(lengthscales=3.0), kernels.Matern32(lengthscales=5.0)]
    done = [trained("", BASE)._replace(model=SimpleNamespace(kernel=kernel)) for kernel in ends]
    failed = Trained(Candidate("", -np.inf, np.nan, np.nan, 0, 0.0), failure=ValueError())
    own = kernels.Matern52(lengthscales=0.2)
    kernel = kernels.Matern32() + kernels.RationalQuadratic() + own + kernels.Linear()
    start_near(kernel, [failed])
    assert [part.lengthscales.numpy() for part in kernel.kernels[:3]] == [1.0, 1.0, 0.2]
    start_near(kernel, [failed, *done])
    assert [part.lengthscales.numpy() for part in kernel.kernels[:3]] == [5.0, 3.0, 0.2]


def test_kernels_whose_lengthscales_cannot_be_exchanged_start_from_their_own(data):
    """One per input, and bounds that leave out what another kernel has ended with."""
    per_input = kernels.SquaredExponential(lengthscales=[2.0, 3.0])
    bounded = kernels.Matern52()
    bounds = tfp.bijectors.Sigmoid(np.float64(0.9), np.float64(1.1))
    bounded.lengthscales = gpflow.Parameter(1.0, transform=bounds)
    candidates = {"per input": per_input, "one": kernels.Matern32(), "bounded": bounded}
    table = choose_kernel(data, candidates, relevance="given", verbose=0).table
    assert not any(row.error for row in table.candidates)
    assert {row.name: row.num_parameters for row in table.candidates}["per input"] == 7


def test_scores_are_those_of_the_model(data):
    """One factorisation gives what leave-one-out, evidence and objective give by themselves."""
    model = CoolMTGP(data, kernels.SquaredExponential() + kernels.Linear())
    model.kernel.kernels[0].lengthscales.prior = prior_around(np.array(1.3))
    result = scored("", model, model.fit(verbose=0), 0.0)
    alone = model.leave_one_out()
    np.testing.assert_allclose(result.densities, alone.log_density, rtol=1e-10)
    errors = (alone.mean - data[1]).numpy()
    errors = np.sqrt(np.mean(errors**2, axis=0))
    assert result.row.rmse == pytest.approx(np.mean(errors))
    assert result.row.log_evidence == pytest.approx(float(model.log_marginal_likelihood()))
    objective = float(model.maximum_log_likelihood_objective())
    assert result.objective == pytest.approx(objective)
    expected = charged(objective, result.row.num_parameters, 30)
    assert result.row.score == pytest.approx(expected)


@pytest.mark.slow
def test_kernels_that_share_a_lengthscale_share_it_after_the_choice(data):
    se, linear = kernels.SquaredExponential(), kernels.Linear()
    twice = se * linear + kernels.SquaredExponential()
    twice.kernels[1].lengthscales = se.lengthscales
    kernel = choose_kernel(data, {"twice": twice}, verbose=0).model.kernel
    product, other = kernel.kernels
    assert product.kernels[0].lengthscales is other.lengthscales
    assert other.lengthscales.shape == [2]


def test_noise_alone_does_not_free_lengthscales():
    """Eight inputs, of which only the sum matters: the data do not contradict the common one."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=[25, 8])
    Y = np.sin(X.sum(axis=1, keepdims=True) / 3) + 0.3 * rng.normal(size=[25, 2])
    table = choose_kernel((X, Y), ["se"], verbose=0).table
    assert table.chosen == "se"
    assert len(table.candidates) == 2
    assert str(table).splitlines()[-1].startswith("Lengthscales per input are not taken")


def test_failed_kernels_are_not_taken():
    failed = Trained(Candidate("failed", -np.inf, np.nan, np.nan, 0, 0.0), failure=ValueError())
    assert best_of([failed, trained("fitted", BASE)]).row.name == "fitted"
    assert best_of([failed]).row.name == "failed"


def test_the_score_is_the_bayesian_information_criterion(chosen):
    """Lengthscales per input are pulled together by their prior, and count as one."""
    assert charged(10.0, 3, 30) == pytest.approx(10.0 - 1.5 * np.log(30))
    rows = {row.name: row for row in chosen.table.candidates}
    one = CoolMTGP(chosen.model.data, kernels.SquaredExponential())
    one.fit(verbose=0)
    moves = np.log(chosen.model.kernel.lengthscales.numpy() / one.kernel.lengthscales.numpy())
    objective = float(chosen.model.maximum_log_likelihood_objective()) - 0.5 * np.sum(moves**2)
    expected = charged(objective, rows["se"].num_parameters, 30)
    assert rows[chosen.table.chosen].score == pytest.approx(expected, abs=0.05)


def one_input_of_four(seed=3, num_rows=40):
    """Two targets that depend on the first input above all."""
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=[num_rows, 4]), 0.25 * rng.normal(size=[4, 2])
    F = np.stack([np.sin(2 * X[:, 0]), np.cos(1.3 * X[:, 0])], axis=1) + 0.5 * np.sin(X @ w)
    return X, F + 0.25 * rng.normal(size=F.shape)


def test_where_one_input_matters_its_lengthscale_is_the_shortest():
    choice = choose_kernel(one_input_of_four(), ["se", "matern32+laplacian"], verbose=0)
    assert choice.table.chosen.endswith(module.PER_INPUT)
    for part in (choice.model.kernel, *choice.model.kernel.submodules):
        if isinstance(part, kernels.Stationary):
            lengthscales = part.lengthscales.numpy()
            assert np.all(lengthscales[1:] > lengthscales[0])
            assert part.lengthscales.prior is None


def test_callbacks_are_told_of_the_chosen_kernel_alone():
    """Its last steps; the others are trained quietly."""
    seen = []
    X, Y = one_input_of_four()
    told = gpflow.keras.tf_keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs["loss"])
    )
    candidates = named_candidates(["se", "matern32+laplacian"])
    make = CoolMTGP
    choice = module.choose((X, Y), candidates, make, make, verbose=0, callbacks=[told])
    assert seen == choice.history.history["loss"]
    assert choice.history.converged


def test_smooth_functions_without_noise_are_passed_through():
    X = np.linspace(0.0, 6.0, 20)[:, None]
    choice = choose_kernel((X, np.hstack([np.sin(X), np.cos(X)])), ["linear", "se"], verbose=0)
    assert choice.table.chosen == "se"
    assert choice.table.candidates[0].interpolates
    assert "!" in str(choice).splitlines()[1]
    assert str(choice).splitlines()[-1].startswith("! passes through every target")


class Broken(kernels.Matern32):
    """A kernel whose matrix of more than one row cannot be had."""

    def K(self, X, X2=None):
        if X.shape[0] == 1:
            return super().K(X, X2)
        raise RuntimeError("no luck")


def test_a_kernel_that_fails_is_named_and_does_not_stop_the_rest(data):
    candidates = {"matern32": Broken(), "se": kernels.SquaredExponential()}
    choice = choose_kernel(data, candidates, relevance="given", verbose=0)
    assert choice.table.chosen == "se"
    assert choice.table.candidates[-1].name == "matern32"
    assert "matern32  failed: no luck" in str(choice)
    with pytest.raises(RuntimeError, match="No kernel could be fitted:\n  matern32: no luck"):
        choose_kernel(data, {"matern32": Broken()}, verbose=0)


class Interrupting(kernels.SquaredExponential):
    """A kernel during whose first matrix of several rows the user presses Ctrl-C."""

    pressed = False

    def K(self, X, X2=None):
        if X.shape[0] != 1 and not Interrupting.pressed:
            Interrupting.pressed = True
            signal.raise_signal(signal.SIGINT)
        return super().K(X, X2)


def test_interrupt_ends_the_choice(data):
    Interrupting.pressed = False
    with pytest.raises(KeyboardInterrupt, match="stopped by Ctrl-C"):
        choose_kernel(data, {"first": Interrupting(), "se": kernels.SquaredExponential()})


@pytest.mark.slow
def test_many_rows_are_sampled_for_the_choice_and_all_are_fitted(data):
    choice = choose_kernel(data, ["se", "linear"], max_rows=20, seed=1, verbose=0)
    assert choice.table.num_rows == 20
    assert choice.model.num_rows == 30
    assert choice.model.kernel.lengthscales.prior is None
    assert choice.model.kernel.lengthscales.shape == (2,)
    mean, _ = choice.model.predict_f(data[0])
    assert np.abs(mean - data[1]).max() < 0.3


def test_rows_of_the_choice():
    Y = np.zeros([200, 2])
    assert rows_of_choice(Y, 1000, 0).tolist() == list(range(200))
    sample = rows_of_choice(Y, 60, 0)
    assert len(set(sample)) == 60 and (np.diff(sample) > 0).all()
    assert sample.tolist() != rows_of_choice(Y, 60, 1).tolist()
    Y[:120, 0] = np.nan
    assert rows_of_choice(Y, 1000, 0).tolist() == list(range(120, 200))  # enough are complete
    Y[:160, 0] = np.nan
    assert rows_of_choice(Y, 1000, 0).tolist() == list(range(200))


@pytest.mark.slow
def test_missing_targets(data):
    X, Y = data[0], data[1].copy()
    Y[::3, 1] = np.nan
    choice = choose_kernel((X, Y), ["se"], verbose=0, seed=0)
    assert choice.table.num_rows == 30
    mean, _ = choice.model.predict_f(X)
    assert np.median(np.abs(mean.numpy()[::3, 1] - data[1][::3, 1])) < 0.15


def test_candidates_by_name_object_and_dictionary():
    own = kernels.Matern32() * kernels.Linear()
    found = named_candidates(["se", own, own])
    assert list(found) == ["se", "Matern32 * Linear", "Matern32 * Linear (2)"]
    assert found["Matern32 * Linear"] is not own
    assert list(named_candidates(None)) == list(CANDIDATES)
    assert list(named_candidates({"mine": own})) == ["mine"]
    with pytest.raises(ValueError, match="candidates='cubic' is not known"):
        named_candidates(["cubic"])
    with pytest.raises(ValueError, match="is not a list"):
        named_candidates("se")
    with pytest.raises(ValueError, match="is empty"):
        named_candidates([])


def test_a_table_of_failures_and_successes():
    rows = (Candidate("se", -1.0, 0.5, -10.0, 3, 0.1), Candidate("rq", -np.inf, 0, 0, 0, 0, "bad"))
    assert "  rq  failed: bad" in str(KernelTable(rows, "se", 12))


def test_a_kernel_with_lengthscales_of_its_own_is_compared_with_one(data):
    own = kernels.SquaredExponential(lengthscales=[0.5, 2.0])
    table = choose_kernel(data, {"own": own}, verbose=0).table
    assert sorted(row.num_parameters for row in table.candidates) == [6, 7]
    assert own.lengthscales.numpy().tolist() == [0.5, 2.0]
