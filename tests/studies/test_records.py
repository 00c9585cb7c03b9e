"""Rows of a CSV file, and how they are chosen."""

import numpy as np
import pytest

from gpflow_cool.studies import records
from gpflow_cool.studies.records import Columns, RunTable, StudyError

COLUMNS = Columns(identity=("method", "P"), effort=("steps",), settings=("rows",), values=("mse",))


def row(method, P=None, steps=None, rows=10, mse=0.5, status="ok"):
    key = {"method": method, "P": P, "steps": steps, "rows": rows}
    return {**key, "mse": mse, "seconds": 1.0, "status": status}


def test_rows_survive_in_the_file(tmp_path):
    table = RunTable(tmp_path / "a.csv", COLUMNS)
    table.append(row("std", P=3, mse=0.1 + 0.2))
    table.append(row("cool", status="failed: no\nway"))
    again = RunTable(tmp_path / "a.csv", COLUMNS)
    assert [r["mse"] for r in again.rows] == [0.3, 0.5]
    assert again.rows[1]["status"] == "failed: no way" and np.isnan(again.rows[1]["P"])
    assert row("std", P=3) in again
    assert row("std", P=4) not in again and row("std", P=3, steps=5) not in again
    assert row("cool") not in again  # it failed


def test_line_that_was_cut_off_does_not_count(tmp_path):
    path = tmp_path / "a.csv"
    RunTable(path, COLUMNS).append(row("std"))
    whole = path.read_text()
    path.write_text(whole + "cool,,")
    assert len(RunTable(path, COLUMNS).rows) == 1
    assert path.read_text() == whole


def test_line_with_too_few_cells_is_named(tmp_path):
    path = tmp_path / "a.csv"
    RunTable(path, COLUMNS).append(row("std"))
    path.write_text(path.read_text() + "cool,,\n")
    with pytest.raises(StudyError, match="line 3: 3 cells, but 7 columns"):
        RunTable(path, COLUMNS)


def test_latest_row_of_each_identity_is_selected():
    rows = [
        row("std", P=3, steps=5, mse=1.0),
        row("cool", mse=2.0),
        row("std", P=3, steps=9, mse=3.0),
        row("std", P=3, rows=20, mse=4.0),
        row("cool", mse=5.0, status="failed: no"),
    ]
    found = records.select(rows, COLUMNS, {"rows": 10})
    assert [r["mse"] for r in found] == [3.0, 2.0]


def test_rows_by_value():
    rows = [row("std", P=3, mse=1.0), row("cool", P=np.nan, mse=2.0), row("std", P=10, mse=4.0)]
    assert records.where(rows, method="std", P=10) == [rows[2]]
    assert records.where(rows, P=None) == [rows[1]]
    found = records.grouped(rows, "method", ("truth", "cool", "std"))
    assert found == {"cool": [rows[1]], "std": [rows[0], rows[2]]}
    assert list(found) == ["cool", "std"]
    assert records.distinct(rows, "method") == ["cool", "std"]
    assert records.mean_of(found["std"], "mse") == 2.5
    assert np.isnan(records.mean_of([], "mse"))
