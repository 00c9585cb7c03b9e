"""Tables as text."""

import numpy as np

from gpflow_cool.studies import text

ROWS = [{"N": 1, "x": 1.0}, {"N": 1, "x": 2.0}, {"N": 2, "x": 6.0}]


def test_markdown_table_is_aligned():
    lines = text.markdown_lines(
        text.TextTable("", ("set", "RMSE"), [("edm", "0.1"), ("a", "12.25")])
    )
    assert lines == ["| set |  RMSE |", "| --- | ----: |", "| edm |   0.1 |", "| a   | 12.25 |"]


def test_table_has_one_line_per_group():
    columns = [
        ("rows", text.count),
        ("mean", text.average("x", 1)),
        ("median", text.average("x", 0, np.median)),
        ("spread", text.spread("x", 1)),
        ("N=2", text.among(text.average("x", 1), N=2)),
    ]
    table = text.text_table("caption", "set", {"all": ROWS, "few": ROWS[:2]}, columns)
    assert table.header == ("set", "rows", "mean", "median", "spread", "N=2")
    assert table.cells == [
        ("all", "3", "3.0", "2", "3.0 ± 2.2", "6.0"),
        ("few", "2", "1.5", "2", "1.5 ± 0.5", "-"),
    ]
