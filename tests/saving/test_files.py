"""A file is there whole or not at all."""

import io
import os

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from refusals import exactly

from gpflow_cool.saving.files import (
    npz_bytes,
    writable_folder,
    write_whole,
    write_with_folders,
)


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


def test_missing_folders_are_made_and_after_an_error_removed(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "b" / "c" / "file"
    with monkeypatch.context() as crowded:
        crowded.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_with_folders(path, b"new")
    assert os.listdir(tmp_path) == ["a"] and os.listdir(tmp_path / "a") == []
    for content in (b"new", b"newer"):
        write_with_folders(path, content)
        assert path.read_bytes() == content


def test_arrays_come_back():
    arrays = {".kernel.variance": np.array(2.5), "X": np.arange(6.0).reshape(2, 3)}
    with np.load(io.BytesIO(npz_bytes(arrays)), allow_pickle=False) as found:
        assert list(found) == list(arrays)
        for name, array in arrays.items():
            assert_array_equal(found[name], array)


def test_folders(tmp_path):
    assert writable_folder(str(tmp_path / "a" / "b"), "log_dir") == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    file = tmp_path / "file"
    file.write_text("")
    bad = {
        "log_dir=3 must be the path of a folder, such as 'logs/first'.": 3,
        f"log_dir='{file}' is a file: choose a folder, which may be new.": file,
        f"log_dir='{file}/new' cannot be written to (Not a directory): choose another folder, or"
        " change the rights of this one.": file / "new",
    }
    for text, value in bad.items():
        with pytest.raises(ValueError, match=exactly(text)):
            writable_folder(value, "log_dir")
