"""The numbers that the paper prints."""

from gpflow_cool.studies import paper


def test_printed_numbers_of_the_paper():
    assert str(paper.RMSE["se"]["oes10"]["cool-approximate"]) == "0.57 ± 0.41"
    assert paper.RMSE["linear"]["atp7d"]["independent"] == (0.70, 0.12)
    assert paper.RMSE["se"]["scm20d"]["conv-mt"] == (0.52, 0.28)
    assert len(paper.DATA_SETS) == 10


def test_every_set_has_a_number_for_every_method_and_kernel():
    for kernel in ("linear", "se"):
        assert tuple(paper.RMSE[kernel]) == paper.DATA_SETS
        assert all(tuple(row) == paper.METHODS for row in paper.RMSE[kernel].values())
