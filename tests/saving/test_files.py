"""A file is there whole or not at all."""

import io
import os

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gpflow_cool.saving.files import npz_bytes, write_whole


def test_a_file_is_written_and_replaced(tmp_path):
    for content in (b"first", b"second"):
        write_whole(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "other").write_bytes(b"")
    write_whole(tmp_path / "file", b"")
    modes = [(tmp_path / name).stat().st_mode for name in ("file", "other")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("function", ["os.fsync", "os.replace"])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch, function):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(function, full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_arrays_come_back():
    arrays = {".kernel.variance": np.array(2.5), "X": np.arange(6.0).reshape(2, 3)}
    with np.load(io.BytesIO(npz_bytes(arrays)), allow_pickle=False) as found:
        assert list(found) == list(arrays)
        for name, array in arrays.items():
            assert_array_equal(found[name], array)
