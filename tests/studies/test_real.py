"""Verdicts and sentences on the real sets."""

import pytest

from gpflow_cool.studies import real


def test_checks_tell_a_claim_that_fails():
    def rows(rmse):
        common = {"dataset": "enb", "split": 0, "method": "cool-hierarchical"}
        return [{**common, "kernel": kernel, "rmse": rmse} for kernel in ("se", "linear")]

    assert [c.holds for c in real.checks(rows(0.14))] == [True, False]
    assert [c.holds for c in real.checks(rows(0.32))] == [False, True]


@pytest.mark.parametrize("ours, word", [(0.60, None), (0.80, "worse by 0.17"), (0.5, "better by")])
def test_remark_on_a_difference(ours, word):
    sentence = real.difference("se", "slump", "cool-approximate", ours)
    assert (sentence is None) if word is None else (word in sentence)


def test_table_divides_the_joint_density_by_the_number_of_tasks():
    row = {"dataset": "enb", "kernel": "se", "method": "std-mt", "split": 0, "tasks": 2}
    scores = {"rmse": 0.25, "arrmse": 0.3, "joint_nlpd": 3.0, "fit_seconds": 0.5}
    rmse, arrmse, density, seconds = real.tables([{**row, **scores}])
    assert rmse.cells == [("enb", "0.25 ± 0.00", "0.15 ± 0.02")]
    assert rmse.caption.endswith("squared exponential kernel; 1 splits")
    assert (arrmse.cells, density.cells) == ([("enb", "0.300")], [("enb", "1.50")])
    assert seconds.cells == [("enb", "0.5")]
