"""Units of work."""

from gpflow_cool.studies import runner
from gpflow_cool.studies.runner import ArrayStore, Outcome, Unit


def test_estimate_weighs_units(capsys):
    unit = Unit({"a": 1}, lambda: Outcome({}), 30.0, {})
    runner.print_estimate([(unit, {})] * 4, 5)
    assert "4 of 5 units to do, 1 are there already: about 2 minutes" in capsys.readouterr().out


def test_work_is_called_with_identity_and_effort(tmp_path):
    unit = Unit(
        identity={"a": 2},
        effort={"steps": 5},
        work=lambda a, steps: Outcome({"product": a * steps}),
        guess=1.0,
    )
    row = runner.do(unit, ArrayStore(tmp_path, "x", {}))
    assert (row["product"], row["status"]) == (10, "ok")


def test_failure_becomes_a_status(tmp_path):
    def fail():
        raise ValueError("first line\nsecond line")

    row = runner.do(Unit({}, fail, 1.0, {}), ArrayStore(tmp_path, "x", {}))
    assert row["status"] == "failed: ValueError: first line"


def test_arrays_are_kept_for_these_settings_only(tmp_path, rng):
    C = rng.normal(size=[2, 2])
    store = ArrayStore(tmp_path / "arrays", "study", {"seed": 0})
    store.save({"R": 3, "P": None}, {"C": C})
    assert (store.load({"R": 3, "P": None})["C"] == C).all()
    assert store.load({"R": 4, "P": None}) is None
    assert ArrayStore(tmp_path / "arrays", "study", {"seed": 1}).load({"R": 3, "P": None}) is None
