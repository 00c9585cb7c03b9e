"""One folder in the place of another: programs that are killed, or save at the same time."""

import os

import numpy as np
import pytest
from savers import kill_savers, start_saver

from gpflow_cool.saving.folder import Content, is_saved, read_folder, write_folder
from gpflow_cool.saving.replacing import put_in_place, remove_abandoned, workshop


def write(path, number):
    return write_folder(path, Content({"class": str(number)}, {"X": np.ones(3)}), force=True)


@pytest.mark.slow
def test_killed_savers_lose_no_model_and_leave_nothing(tmp_path):
    assert len(kill_savers(tmp_path, 5)) == 5


@pytest.mark.slow
def test_savers_to_one_folder_do_not_disturb_each_other(tmp_path):
    processes = [start_saver(tmp_path / "model", number, 60) for number in range(3)]
    outputs = [process.communicate() for process in processes]
    assert outputs == [("done\n", "")] * 3
    assert read_folder(tmp_path / "model").document["class"] in "012"
    assert os.listdir(tmp_path) == ["model"]


def abandon(tmp_path, name):
    """What a saver leaves that is killed between the two halves of an exchange."""
    inside = tmp_path / ".model.01234567.tmp"
    inside.mkdir()
    os.replace(tmp_path / "model", inside / name)


def test_a_model_on_its_way_out_comes_back(tmp_path):
    for use in (read_folder, lambda path: write(path, 2)):
        write(tmp_path / "model", 1)
        abandon(tmp_path, "old.89abcdef")
        use(tmp_path / "model")
        assert is_saved(tmp_path / "model")
    assert read_folder(tmp_path / "model").document["class"] == "2"
    assert os.listdir(tmp_path) == ["model"]


def test_a_model_that_comes_back_is_replaced_by_force_only(tmp_path):
    write(tmp_path / "model", 1)
    abandon(tmp_path, "old.89abcdef")
    with pytest.raises(ValueError, match="exists already: choose another folder"):
        write_folder(tmp_path / "model", Content({"class": "2"}, {}))
    assert read_folder(tmp_path / "model").document["class"] == "1"


def test_an_unfinished_model_does_not_come_back(tmp_path):
    write(tmp_path / "model", 1)
    abandon(tmp_path, "new")
    with pytest.raises(ValueError, match="is not there"):
        read_folder(tmp_path / "model")


def test_only_own_folders_without_a_living_program_are_removed(tmp_path):
    names = [
        ".model.0123456.tmp",
        ".model.01234567.tmp",
        ".model.01234567.old",
        ".other.01234567.tmp",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    with workshop(tmp_path / "model") as inside:
        remove_abandoned(tmp_path / "model")
        assert sorted(os.listdir(tmp_path)) == sorted([inside.name, names[0], names[3]])
    assert sorted(os.listdir(tmp_path)) == [names[0], names[3]]


def test_what_may_not_be_replaced_stays(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "file").write_text("mine")
    with workshop(tmp_path / "place") as inside:
        (inside / "new").mkdir()
        assert not put_in_place(inside, tmp_path / "place", lambda old: False)
    assert (tmp_path / "place" / "file").read_text() == "mine"
    assert os.listdir(tmp_path) == ["place"]


def test_an_interrupt_on_the_way_puts_the_folder_back(tmp_path, monkeypatch):
    write(tmp_path / "model", 1)
    replace, calls = os.replace, []

    def interrupt(source, target):
        calls.append(target)
        if str(source).endswith("new"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "model", 2)
    assert read_folder(tmp_path / "model").document["class"] == "1"
    assert os.listdir(tmp_path) == ["model"]
