"""Where the real sets are looked for, and how they are read."""

import pytest
from mulan import write_arff, write_sets
from numpy.testing import assert_allclose

from gpflow_cool import studies
from gpflow_cool.studies import StudyError, partition


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sets(tmp_path_factory.mktemp("mulan"))


def test_where_data_are_looked_for(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPFLOW_COOL_DATA", raising=False)
    assert partition.data_folder(None) is None
    with pytest.raises(StudyError, match="--data FOLDER or the environment variable GPFLOW_COOL"):
        studies.run("runtime", out=tmp_path)
    monkeypatch.setenv("GPFLOW_COOL_DATA", str(data))
    assert partition.data_folder(None) == data
    with pytest.raises(StudyError, match="nowhere is not a folder"):
        partition.data_folder("nowhere")


@pytest.mark.parametrize("name", ["real", "runtime"])
def test_error_says_where_the_files_come_from_and_what_the_folder_holds(
    tmp_path, monkeypatch, name
):
    monkeypatch.delenv("GPFLOW_COOL_DATA", raising=False)
    with pytest.raises(StudyError) as error:
        studies.run(name, out=tmp_path)
    text = str(error.value)
    assert "Mulan project or OpenML" in text
    assert "--data FOLDER or the environment variable GPFLOW_COOL_DATA" in text
    assert "one ARFF file per set: andro.arff, enb.arff" in text and "\n" not in text


def test_named_sets_of_the_study_of_orders_need_a_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("GPFLOW_COOL_DATA", raising=False)
    with pytest.raises(StudyError, match="This needs the Mulan regression sets"):
        studies.run("permutation", out=tmp_path, sets="synthetic,slump")


def test_no_folder_beside_the_working_directory_is_taken(tmp_path, monkeypatch):
    monkeypatch.delenv("GPFLOW_COOL_DATA", raising=False)
    (tmp_path / "shared" / "data" / "mulan").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert partition.data_folder(None) is None


def test_preferred_sets_count_as_far_as_they_are_there(data):
    assert list(partition.load_sets(None, data, preferred=("andro", "slump"))) == ["slump"]
    assert list(partition.load_sets("edm", data, preferred=("slump",))) == ["edm"]


def test_large_sets_are_cut_to_their_first_rows(tmp_path):
    content = write_arff(tmp_path / "enb.arff", 3, 2, num_rows=1001)
    assert_allclose(partition.load_set("enb", tmp_path).Y, content[:400, 3:], atol=1e-6)
    assert len(partition.load_set("enb", tmp_path, max_rows=700).X) == 700
