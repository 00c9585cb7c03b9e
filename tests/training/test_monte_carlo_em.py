"""Training where targets are missing, and tasks measured at different inputs."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras
from patterns import random_joint
from problems import assert_close

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.callbacks import Callback
from gpflow_cool.coregion import pivot
from gpflow_cool.joint import missing


def correlated_data(seed=0, N=30):
    """Three tasks that follow one function, 40% of the targets missing."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0.0, 4.0, size=(N, 1)), axis=0)
    Y = np.sin(2.0 * X) * [1.0, -0.8, 0.6] + 0.2 * rng.normal(size=(N, 3)) @ [
        [1.0, 0.5, 0.0],
        [0.0, 1.0, 0.5],
        [0.0, 0.0, 1.0],
    ]
    mask = rng.uniform(size=Y.shape) > 0.4
    return X, Y, mask, np.where(mask, Y, np.nan)


def cool(**options):
    X, _, _, holes = correlated_data()
    return CoolMTGP((X, holes), gpflow.kernels.SquaredExponential(), **options)


GUESS = []
"""Of the missing targets, for `guessed`."""


def guessed():
    """The same, with a first guess that tests share, since it takes half of the time of a fit."""
    model = cool()
    if not GUESS:
        GUESS.append(model.independent_completion())
    model.independent_completion = lambda: GUESS[0]
    return model


@pytest.mark.slow
def test_evidence_rises_and_rounds_stop():
    model = cool()
    history = model.fit(seed=0, rounds=20, verbose=0)
    evidence = [r["evidence"] for r in history.rounds]
    n = np.count_nonzero(model.observed)
    assert np.all(np.diff(evidence) > -1e-3 * n) and evidence[-1] > evidence[0] + 1.0
    gains = np.diff(evidence) / n
    assert np.all(gains[1:-1] >= 1e-3) and gains[-1] < 1e-3  # the first that gains less, from 2 on
    assert history.converged and "gained less than 0.001 nats per observed" in history.message
    assert len(history.rounds) < 20
    assert_close([r["change"] for r in history.rounds[1:]], np.diff(evidence), 1e-12)
    assert sorted(set(history.history["round"])) == [float(r) for r in range(len(evidence))]
    assert len(history.history["loss"]) == len(history.epoch) == len(history.history["round"])
    assert_close(model.log_marginal_likelihood(), max(evidence), 1e-10)  # the best round is kept


@pytest.mark.slow
def test_fills_better_than_independent_processes():
    X, Y, mask, holes = correlated_data(3, N=60)
    model = CoolMTGP((X, holes), gpflow.kernels.SquaredExponential())
    independent = model.independent_completion()[0].numpy()
    model.fit(seed=0, verbose=0)
    completed = model.impute()
    error = np.sqrt(np.mean(np.square(completed.Y.numpy() - Y)[~mask]))
    assert error < np.sqrt(np.mean(np.square(independent - Y)[~mask]))
    z = (completed.Y.numpy() - Y)[~mask] / completed.std.numpy()[~mask]
    assert np.mean(np.abs(z) < 2.0) > 0.85


@pytest.mark.slow
def test_same_seed_same_result_and_options_count():
    fits = {}
    for name, options in {
        "first": {"seed": 3},
        "again": {"seed": 3},
        "other": {"seed": 4},
        "fewer": {"seed": 3, "draws": 4},
    }.items():
        model = guessed()
        model.fit(rounds=2, steps=3, verbose=0, **options)
        fits[name] = model.task_covariance().numpy(), model.completions.shape
    assert np.array_equal(fits["first"][0], fits["again"][0])
    assert not np.array_equal(fits["first"][0], fits["other"][0])
    assert not np.array_equal(fits["first"][0], fits["fewer"][0])


@pytest.mark.slow
def test_completions_are_draws_in_pairs_around_the_mean():
    model = guessed()
    model.fit(seed=0, rounds=3, tolerance=0.0, verbose=0)
    drawn, Y = model.completions.numpy(), model.data[1].numpy()
    assert drawn.shape == (16, 30, 3)
    assert all(np.array_equal(each[model.observed], Y[model.observed]) for each in drawn)
    pairs = drawn[:8] + drawn[8:]
    assert_close(pairs, np.broadcast_to(pairs[:1], pairs.shape), 1e-9)


@pytest.mark.slow
def test_a_second_fit_goes_on_from_the_first():
    model = guessed()
    first = [r["evidence"] for r in model.fit(seed=0, verbose=0).rounds]
    second = [r["evidence"] for r in model.fit(seed=0, verbose=0).rounds]
    assert len(second) == 3 and abs(second[0] - max(first)) < 0.1 * (max(first) - first[0])


@pytest.mark.slow
@pytest.mark.parametrize("cls", [CoolMTGP, KroneckerMTGP])
def test_fitting_again_never_lowers_the_evidence(cls):
    """With few draws rounds go astray; a start that no round surpasses stays as it is."""
    X, _, _, holes = correlated_data()
    model = cls((X, holes), gpflow.kernels.SquaredExponential())
    model.fit(seed=0, verbose=0)
    kept = 0
    for seed in range(4):
        before, drawn = float(model.log_marginal_likelihood()), model.completions.numpy()
        history = model.fit(seed=seed, rounds=2, draws=2, steps=2, verbose=0)
        best = max(round["evidence"] for round in history.rounds)
        assert_close(model.log_marginal_likelihood(), max(before, best), 1e-9)
        assert ("no round was better than the start" in history.message) == (best <= before)
        if best <= before:
            kept += 1
            assert np.array_equal(model.completions, drawn)
    assert kept > 0


@pytest.mark.slow
def test_fits_of_one_round_each_go_on_from_each_other():
    model = cool()
    evidence = []
    for _ in range(3):
        model.fit(seed=0, rounds=1, verbose=0)
        evidence.append(float(model.log_marginal_likelihood()))
    assert evidence[0] + 0.1 < evidence[1] <= evidence[2]


@pytest.mark.slow
def test_a_restart_must_surpass_the_start():
    model = cool()
    model.fit(seed=0, verbose=0)
    before = float(model.log_marginal_likelihood())
    history = model.fit(seed=1, rounds=1, draws=2, steps=1, restarts=1, verbose=0)
    evidence = [round["evidence"] for round in history.rounds]
    assert len(evidence) == 2
    assert_close(model.log_marginal_likelihood(), max(before, *evidence), 1e-9)


@pytest.mark.slow
def test_the_first_fit_has_no_start_to_keep(monkeypatch):
    """First guesses are no draws: nothing is computed of them."""
    asked = []
    monkeypatch.setattr(
        "gpflow_cool.training.monte_carlo_em.Completer._present", lambda *_: asked.append(1)
    )
    model = cool()
    model.fit(seed=0, rounds=2, steps=2, verbose=0)
    assert asked == []
    model.fit(seed=0, rounds=1, steps=2, verbose=0)
    assert asked == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    ["scipy", "adam", gpflow.optimizers.Scipy(), tf_keras.optimizers.Adam(0.05)],
    ids=["scipy", "adam", "gpflow", "keras"],
)
def test_every_optimizer_gains(optimizer):
    model = guessed()
    history = model.fit(optimizer, seed=0, rounds=3, steps=8, tolerance=0.0, verbose=0)
    evidence = [r["evidence"] for r in history.rounds]
    assert len(evidence) == 3 and evidence[-1] > evidence[0]
    assert history.message.startswith("took all 3 rounds; in the last one:")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["em", "scipy"])
def test_exact_model(optimizer):
    X, _, _, holes = correlated_data()
    kernel = gpflow.kernels.SquaredExponential(lengthscales=0.5)
    model = KroneckerMTGP((X, holes), kernel)
    before = float(model.log_marginal_likelihood())
    history = model.fit(optimizer, seed=0, rounds=4, steps=10, tolerance=0.0, verbose=0)
    evidence = [r["evidence"] for r in history.rounds]
    assert np.all(np.diff(evidence) > -0.05) and evidence[-1] > before + 1.0


@pytest.mark.slow
def test_without_missing_targets_rounds_change_nothing():
    X, Y, _, _ = correlated_data()
    models = [CoolMTGP((X, Y), gpflow.kernels.SquaredExponential()) for _ in range(2)]
    plain = models[0].fit(verbose=0)
    options = models[1].fit(verbose=0, rounds=3, draws=4, tolerance=0.5)
    assert plain.history["loss"] == options.history["loss"]
    assert "round" not in plain.history and plain.rounds == [] and "rounds" not in plain.params
    assert models[0].completions is None


@pytest.mark.slow
def test_too_many_for_the_evidence(monkeypatch):
    monkeypatch.setattr(missing, "MAX_DENSE", 0)
    model = guessed()
    history = model.fit(seed=0, rounds=3, tolerance=0.0, verbose=0)
    assert np.isnan([r["evidence"] for r in history.rounds]).all()
    losses = [r["loss"] for r in history.rounds]
    assert_close([r["change"] for r in history.rounds[1:]], -np.diff(losses), 1e-12)
    assert_close(-model.maximum_log_likelihood_objective(), losses[-1], 1e-9)  # the last one counts


@pytest.mark.slow
def test_restarts_keep_the_best_attempt():
    model = guessed()
    history = model.fit(seed=0, rounds=2, restarts=1, tolerance=0.0, verbose=0)
    assert [r["restart"] for r in history.rounds] == [0, 0, 1, 1]
    best = max(r["evidence"] for r in history.rounds)
    assert_close(model.log_marginal_likelihood(), best, 1e-9)


@pytest.mark.slow
def test_stopping_keeps_the_best_round():
    model = guessed()

    class Stop(tf_keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = logs["round"] == 1

    history = model.fit(seed=0, callbacks=[Stop()], tolerance=0.0, verbose=0)
    assert "stopped by a callback" in history.message and len(history.rounds) == 2
    best = max(r["evidence"] for r in history.rounds)
    assert_close(model.log_marginal_likelihood(), best, 1e-9)


@pytest.mark.slow
def test_tensorboard(tmp_path):
    guessed().fit(seed=0, rounds=2, steps=2, verbose=0, tensorboard=tmp_path / "run")
    assert any((tmp_path / "run").glob("events*"))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"rounds": 0}, "rounds=0 must be a whole number of at least 1"),
        ({"draws": 3}, "draws=3 must be even: draws come in pairs"),
        ({"tolerance": -1.0}, "tolerance=-1.0 must be a number of at least 0"),
        ({"tolerance": None}, "tolerance=None must be a number of at least 0"),
        ({"tolerance": "small"}, "tolerance='small' must be a number of at least 0"),
    ],
)
def test_options_are_checked(options, text):
    with pytest.raises(ValueError, match=text):
        cool().fit(verbose=0, **options)


@pytest.mark.slow
def test_everything_frozen_still_draws():
    model = cool()
    gpflow.set_trainable(model, False)
    history = model.fit(seed=0, rounds=2, tolerance=0.0, verbose=0)
    evidence = [each["evidence"] for each in history.rounds]
    assert len(evidence) == 2
    assert len(model.completions.numpy()) == [1, 16][np.argmax(evidence)]
    assert_close(model.log_marginal_likelihood(), max(evidence), 1e-9)


# Tasks at different inputs -------------------------------------------------------------------


def coregion_gpr(rng, rows, noise=0.2):
    """GPflow's model of two tasks, measured at `rows` (x, task) each."""
    X_aug = np.array(rows, dtype=float)
    Y = rng.normal(size=(len(rows), 1))
    kernel = gpflow.kernels.SquaredExponential(1.3, 0.7, active_dims=[0]) * gpflow.kernels.Coregion(
        2, 1, active_dims=[1]
    )
    kernel.kernels[1].W.assign(rng.normal(size=(2, 1)))
    kernel.kernels[1].kappa.assign([0.3, 0.6])
    return gpflow.models.GPR((X_aug, Y), kernel, noise_variance=noise)


ROWS = {
    "disjoint": [(0.1, 0), (0.5, 1), (0.9, 0), (1.4, 1), (2.0, 1)],
    "overlapping": [(0.5, 1), (0.1, 0), (0.5, 0), (0.9, 0), (2.0, 1)],
    "repeated": [(0.5, 1), (0.5, 1), (0.5, 0), (0.9, 0), (0.9, 1), (0.1, 1)],
}


@pytest.mark.parametrize("rows", ROWS)
def test_evidence_and_predictions_equal_coregionalization(rng, rows):
    gpr = coregion_gpr(rng, ROWS[rows])
    C = gpr.kernel.kernels[1].output_covariance().numpy()
    model = KroneckerMTGP.from_coregion(gpr, task_covariance=C, noise_covariance=0.2 * np.eye(2))
    assert_close(model.log_marginal_likelihood(), gpr.log_marginal_likelihood(), 1e-6)
    X_aug = np.array([[0.3, 0], [0.3, 1], [1.0, 0], [5.0, 1]])
    for noise in (False, True):
        expected = gpr.predict_y(X_aug) if noise else gpr.predict_f(X_aug)
        for a, e in zip(model.predict_coregion(X_aug, noise=noise), expected, strict=True):
            assert_close(a, e, 1e-6)
    back = model.to_coregion_gpr()
    assert_close(back.log_marginal_likelihood(), gpr.log_marginal_likelihood(), 1e-5)


def test_pivot_to_the_union_of_inputs():
    X_aug = np.array([[2.0, 1], [0.0, 0], [2.0, 0], [1.0, 1], [2.0, 1], [-0.0, 1]])
    X, Y = pivot(X_aug, np.arange(6.0)[:, None], 2, 1)
    assert np.array_equal(X, [[0.0], [2.0], [1.0], [2.0]])
    assert np.array_equal(Y, [[1, 5], [2, 0], [np.nan, 3], [np.nan, 4]], equal_nan=True)


def test_a_task_that_is_never_measured_is_refused(rng):
    gpr = coregion_gpr(rng, [(0.1, 0), (0.5, 0)])
    with pytest.raises(ValueError, match="No row has task 1, .* use output_dim=1"):
        CoolMTGP.from_coregion(gpr)
    X, Y = np.zeros([3, 1]), np.array([[1.0, np.nan]] * 3)
    with pytest.raises(ValueError, match=r"Y\[:, 1\] is NaN in every row"):
        CoolMTGP((X, Y), gpflow.kernels.SquaredExponential())


@pytest.mark.slow
def test_swapped_in_model_trains_at_disjoint_inputs(rng):
    gpr = coregion_gpr(rng, [(x, int(x > 1.0)) for x in np.linspace(0, 2, 9)])
    with pytest.warns(UserWarning, match="No row has targets of both task_0 and task_1"):
        model = CoolMTGP.from_coregion(gpr)
    history = model.fit(seed=0, rounds=3, verbose=0)
    assert np.isfinite([r["evidence"] for r in history.rounds]).all()
    assert np.isfinite(model.predict_coregion(gpr.data[0].numpy())[1]).all()


@pytest.mark.slow
def test_task_observed_once_and_row_never(rng):
    for pattern in ("task_once", "empty_row"):
        j = random_joint(rng, 8, 3, pattern)
        model = CoolMTGP((j.X, j.with_holes), gpflow.kernels.SquaredExponential())
        model.fit(seed=0, rounds=2, verbose=0)
        assert np.isfinite(model.predict_y(j.Xnew)[1]).all()
        assert tf.reduce_all(tf.math.is_finite(model.impute().Y))


@pytest.mark.slow
def test_a_fit_that_ends_at_once_leaves_no_draws_to_start_from(rng):
    model = cool()

    def fail(*_):
        raise KeyError("my own mistake")

    callback = Callback()
    callback.on_epoch_end = fail
    with pytest.raises(KeyError):
        model.fit(seed=0, verbose=0, callbacks=[callback])
    assert not model.has_drawn


@pytest.mark.slow
def test_the_best_round_is_best_with_its_prior():
    model = cool()
    model.kernel.lengthscales.prior = tfp.distributions.LogNormal(
        np.float64(np.log(0.05)), np.float64(0.01)
    )
    history = model.fit(seed=0, rounds=3, verbose=0)
    prior = float(model.log_prior_density())
    best = max(range(len(history.rounds)), key=lambda n: history.rounds[n]["score"])
    assert_close(model.log_marginal_likelihood() + prior, history.rounds[best]["score"], 1e-8)
