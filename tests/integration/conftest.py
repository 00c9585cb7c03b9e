"""Fixtures of commands, a table and a model fitted to it, and of studies, a folder of data."""

import numpy as np
import pytest
from commands import run
from mulan import write_sets
from tables import TARGETS, make_frame


@pytest.fixture(scope="session")
def frame():
    return make_frame()


@pytest.fixture(scope="session")
def place(tmp_path_factory, frame):
    """A folder with a table, and a model that the command fitted to it."""
    folder = tmp_path_factory.mktemp("cli")
    frame.rename(columns={TARGETS[1]: "cold"}).to_csv(folder / "data.csv", index=False)
    new = frame[["y", "x"]][:3].assign(cold=[60.0, np.nan, 40.0])
    new.to_csv(folder / "new.csv", index=False)
    result = run("fit", folder / "data.csv", "--targets", "heat,cold", "--out", folder / "model")
    assert result.exit_code == 0, result.output
    (folder / "said.txt").write_text(result.stdout)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The data of the studies: a folder with three of the ten sets, much too small."""
    return write_sets(tmp_path_factory.mktemp("mulan"))
