"""Training where targets are missing, and tasks measured at different inputs."""

import warnings

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow_probability as tfp
from gpflow.keras import tf_keras
from numpy.testing import assert_array_equal
from patterns import random_joint
from problems import assert_close

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.callbacks import Callback
from gpflow_cool.coregion import pivot
from gpflow_cool.joint import missing

SE = gpflow.kernels.SquaredExponential
FEW_ROUNDS = {"seed": 0, "rounds": 2, "steps": 3, "tolerance": 0.0, "verbose": 0}


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


def build(cls=CoolMTGP, seed=0, **options):
    X, _, _, holes = correlated_data(seed)
    return cls((X, holes), SE(), **options)


def evidence_of(history):
    return [each["evidence"] for each in history.rounds]


@pytest.fixture(scope="module")
def fitted():
    model = build()
    return model, model.fit(seed=0, rounds=20, verbose=0)


@pytest.mark.slow
def test_rounds_stop_when_one_gains_little_and_the_best_is_kept(fitted):
    model, history = fitted
    scores, n = [each["score"] for each in history.rounds], np.count_nonzero(model.observed)
    gains = np.diff(scores)
    assert np.all(gains[1:-1] >= 1e-3 * n) and gains[-1] < 1e-3 * n  # from the third round on
    assert max(scores) > scores[0]
    assert history.converged and "gained less than 0.001 nats per observed" in history.message
    prior = float(model.log_prior_density())
    assert_close(model.log_marginal_likelihood() + prior, max(scores), 1e-10)
    assert_close([each["change"] for each in history.rounds[1:]], gains, 1e-12)
    assert sorted(set(history.history["round"])) == [float(r) for r in range(len(scores))]
    assert len(history.history["loss"]) == len(history.epoch) == len(history.history["round"])


@pytest.mark.slow
def test_the_evidence_is_that_of_the_observed_targets(fitted):
    model, history = fitted
    X, Y = (part.numpy() for part in model.data)
    K = ref.squared_exponential(X, X, 1.0, float(model.kernel.lengthscales.numpy()))
    S = ref.joint_covariance(K, *map(np.asarray, model.multitask_parameters()[1:3]))
    y = Y.ravel(order="F")
    seen = ~np.isnan(y)
    expected = ref.gaussian_log_density(y[seen], S[np.ix_(seen, seen)])
    best = max(history.rounds, key=lambda each: each["score"])
    assert_close(best["evidence"], expected, 1e-8)


@pytest.mark.slow
def test_fills_better_than_independent_processes():
    X, Y, mask, holes = correlated_data(3, N=60)
    model = CoolMTGP((X, holes), SE())
    independent = model.independent_completion()[0].numpy()
    model.fit(seed=0, verbose=0)
    completed = model.impute()
    error = np.sqrt(np.mean(np.square(completed.Y.numpy() - Y)[~mask]))
    assert error < np.sqrt(np.mean(np.square(independent - Y)[~mask]))
    z = (completed.Y.numpy() - Y)[~mask] / completed.std.numpy()[~mask]
    assert np.mean(np.abs(z) < 2.0) > 0.85


@pytest.mark.slow
def test_the_same_seed_gives_the_same_fit_and_options_count():
    changes = {"first": {}, "again": {}, "other": {"seed": 4}, "fewer": {"draws": 4}}
    found = {}
    for name, options in changes.items():
        model = build()
        model.fit(**FEW_ROUNDS | options)
        found[name] = model.task_covariance().numpy()
    assert_array_equal(found["first"], found["again"])
    assert not np.array_equal(found["first"], found["other"])
    assert not np.array_equal(found["first"], found["fewer"])


@pytest.mark.slow
def test_completions_are_draws_in_pairs_around_the_mean(fitted):
    """And what is observed stays in all of them."""
    model, _ = fitted
    drawn, Y = model.completions.numpy(), model.data[1].numpy()
    assert drawn.shape == (16, 30, 3)
    assert all(np.array_equal(each[model.observed], Y[model.observed]) for each in drawn)
    pairs = drawn[:8] + drawn[8:]
    assert_close(pairs, np.broadcast_to(pairs[:1], pairs.shape), 1e-9)
    assert np.all(np.std(drawn[:, ~model.observed], axis=0) > 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [CoolMTGP, KroneckerMTGP])
def test_fitting_again_never_lowers_the_evidence(cls):
    """With few draws rounds go astray; a start that no round surpasses stays as it is."""

    def score():
        return float(model.log_marginal_likelihood()) + float(model.log_prior_density())

    model = build(cls)
    model.fit(seed=0, rounds=3, verbose=0)
    for seed, restarts in [(0, 0), (1, 0), (2, 1)]:
        before, drawn = score(), model.completions.numpy()
        options = {"rounds": 2, "draws": 2, "steps": 2, "restarts": restarts}
        history = model.fit(seed=seed, verbose=0, **options)
        best = max(each["score"] for each in history.rounds)
        assert_close(score(), max(before, best), 1e-9)
        assert ("no round was better than the start" in history.message) == (best <= before)
        assert np.array_equal(model.completions, drawn) == (best <= before)


OPTIMIZERS = {
    "profile": (CoolMTGP, lambda: "profile"),
    "scipy": (CoolMTGP, lambda: "scipy"),
    "adam": (CoolMTGP, lambda: "adam"),
    "gpflow": (CoolMTGP, gpflow.optimizers.Scipy),
    "keras": (CoolMTGP, lambda: tf_keras.optimizers.Adam(0.05)),
    "em": (KroneckerMTGP, lambda: "em"),
    "exact": (KroneckerMTGP, lambda: "profile"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_raises_the_evidence(name):
    cls, optimizer = OPTIMIZERS[name]
    model = build(cls)
    before = float(model.log_marginal_likelihood())
    history = model.fit(optimizer(), **FEW_ROUNDS | {"steps": 8})
    evidence = evidence_of(history)
    assert history.message.startswith("took all 2 rounds; in the last one:")
    assert model.log_marginal_likelihood() > before
    scores = [each["score"] for each in history.rounds]
    assert_close(model.log_marginal_likelihood(), evidence[np.argmax(scores)], 1e-9)


@pytest.mark.slow
def test_without_missing_targets_rounds_change_nothing():
    X, Y, _, _ = correlated_data()
    models = [CoolMTGP((X, Y), SE()) for _ in range(2)]
    plain = models[0].fit(verbose=0)
    options = models[1].fit(verbose=0, rounds=3, draws=4, tolerance=0.5)
    assert plain.history["loss"] == options.history["loss"]
    assert "round" not in plain.history and plain.rounds == [] and "rounds" not in plain.params
    assert models[0].completions is None


@pytest.mark.slow
def test_where_targets_are_too_many_for_the_evidence_the_last_round_counts(monkeypatch):
    monkeypatch.setattr(missing, "MAX_DENSE", 0)
    model = build()
    history = model.fit("scipy", **FEW_ROUNDS | {"rounds": 3})
    assert np.isnan(evidence_of(history)).all()
    losses = [each["loss"] for each in history.rounds]
    assert_close([each["change"] for each in history.rounds[1:]], -np.diff(losses), 1e-12)
    last = model.maximum_log_likelihood_objective() + model.log_prior_density()
    assert_close(-last, losses[-1], 1e-9)


@pytest.mark.slow
def test_stopping_keeps_the_best_round():
    model = build()

    class Stop(tf_keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = logs["round"] == 1

    history = model.fit(seed=0, callbacks=[Stop()], tolerance=0.0, verbose=0)
    assert "stopped by a callback" in history.message and len(history.rounds) == 2
    best = max(history.rounds, key=lambda each: each["score"])
    assert_close(model.log_marginal_likelihood(), best["evidence"], 1e-9)


@pytest.mark.slow
def test_tensorboard(tmp_path):
    build().fit(**FEW_ROUNDS, tensorboard=tmp_path / "run")
    assert any((tmp_path / "run").glob("events*"))


@pytest.mark.slow
def test_where_nothing_is_trainable_there_are_draws():
    model = build()
    gpflow.set_trainable(model, False)
    history = model.fit(**FEW_ROUNDS)
    evidence = evidence_of(history)
    assert len(evidence) == 2
    assert len(model.completions.numpy()) == [1, 16][np.argmax(evidence)]
    assert_close(model.log_marginal_likelihood(), max(evidence), 1e-9)


@pytest.mark.slow
def test_a_fit_that_ends_at_once_leaves_no_draws_to_start_from():
    model = build()

    def fail(*_):
        raise KeyError("my own mistake")

    callback = Callback()
    callback.on_epoch_end = fail
    with pytest.raises(KeyError):
        model.fit(seed=0, verbose=0, callbacks=[callback])
    assert not model.has_drawn


@pytest.mark.slow
def test_the_best_round_is_best_with_its_prior():
    model = build()
    model.kernel.lengthscales.prior = tfp.distributions.LogNormal(
        np.float64(np.log(0.05)), np.float64(0.01)
    )
    history = model.fit(seed=0, rounds=3, verbose=0)
    prior = float(model.log_prior_density())
    best = max(each["score"] for each in history.rounds)
    assert_close(model.log_marginal_likelihood() + prior, best, 1e-8)


# Tasks at different inputs -------------------------------------------------------------------


def coregion_gpr(rng, rows, noise=0.2):
    """GPflow's model of two tasks, measured at `rows` (x, task) each."""
    X_aug = np.array(rows, dtype=float)
    Y = rng.normal(size=(len(rows), 1))
    kernel = SE(1.3, 0.7, active_dims=[0]) * gpflow.kernels.Coregion(2, 1, active_dims=[1])
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
        CoolMTGP((X, Y), SE())


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["disjoint", "task_once", "empty_row"])
def test_sparse_patterns_train(rng, pattern):
    """No two tasks in the same row, a task that was measured once, a row without any target."""
    j = random_joint(rng, 9, 3, pattern)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No row has targets of both")
        model = CoolMTGP((j.X, j.with_holes), SE())
    before = float(model.log_marginal_likelihood())
    model.fit(seed=0, rounds=2, verbose=0)
    assert model.log_marginal_likelihood() > before
    completed = model.impute().Y.numpy()
    assert_close(completed[j.mask], j.Y[j.mask])
    assert np.all(np.isfinite(completed)) and np.all(model.predict_y(j.Xnew)[1] > 0.0)
