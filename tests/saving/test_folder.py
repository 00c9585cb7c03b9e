"""Folders of saved models: written whole or not at all, and read without running code."""

import hashlib
import json
import os
import pickle
import resource
import zipfile

import gpflow
import numpy as np
import pytest

from gpflow_cool.loading import load
from gpflow_cool.models import CoolMTGP, KroneckerMTGP
from gpflow_cool.saving.folder import ARRAYS, CHECKSUM, DOCUMENT, checksum, read_folder

K = gpflow.kernels


# Places ----------------------------------------------------------------------------------------


def test_only_a_saved_model_is_replaced_and_only_by_force(model, data, tmp_path):
    folder = tmp_path / "model"
    model.save(folder)
    other = CoolMTGP(data, K.Matern12())
    with pytest.raises(ValueError, match="exists already: choose .* replace it .force=True"):
        other.save(folder)
    assert isinstance(load(folder).kernel, K.SquaredExponential)
    other.save(folder, force=True)
    assert isinstance(load(folder).kernel, K.Matern12)
    (folder / "notes.txt").write_text("mine")
    for place, why in [
        (folder, "holds 'notes.txt' besides a saved model, so that .*, or move this file."),
        (tmp_path, "is not a saved model, so that it is not replaced: choose another folder."),
    ]:
        with pytest.raises(ValueError, match=f"{place} exists already and {why}"):
            model.save(place, force=True)
    assert (folder / "notes.txt").read_text() == "mine"
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ValueError, match="is not a saved model, so that it is not replaced"):
        model.save(file, force=True)
    assert sorted(os.listdir(tmp_path)) == ["file", "model"]


def test_an_empty_folder_is_filled(model, tmp_path):
    (tmp_path / "model").mkdir()
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").task_names == model.task_names


@pytest.mark.parametrize("folder", ["", 3, None])
def test_no_path(model, folder):
    for function in (model.save, load):
        with pytest.raises(ValueError, match=f"folder={folder!r} must be the path of a folder"):
            function(folder)


def test_a_full_disk_leaves_nothing(model, tmp_path):
    """A limit on the size of files stands in for the disk's end."""
    model.save(tmp_path / "first")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for place, force in [("new/model", False), ("first", True)]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                model.save(tmp_path / place, force=force)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["first"]
    assert load(tmp_path / "first").task_names == model.task_names


# Damage ----------------------------------------------------------------------------------------


def edit(folder, change):
    """Change the JSON document of a saved model, and its checksum, as one with bad intent would."""
    document = json.loads((folder / DOCUMENT).read_text())
    document.pop(CHECKSUM)
    change(document)
    document[CHECKSUM] = checksum(document)
    (folder / DOCUMENT).write_text(json.dumps(document))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-40])


DAMAGES = {
    "cut document": (lambda f: truncate(f / DOCUMENT), "model.json cannot be read"),
    "cut arrays": (lambda f: truncate(f / ARRAYS), "arrays.npz is not what was written"),
    "no arrays": (lambda f: (f / ARRAYS).unlink(), "arrays.npz cannot be read"),
    "deep document": (
        lambda f: (f / DOCUMENT).write_text("[" * 10**6),
        "model.json cannot be read",
    ),
    "no version": (lambda f: edit(f, lambda d: d.pop("format_version")), "format_version is None"),
    "a class": (lambda f: edit(f, lambda d: d.update({"class": "os"})), "its class is 'os'"),
    "no kernel": (lambda f: edit(f, lambda d: d.pop("kernel")), "KeyError: 'kernel'"),
    "a kernel": (
        lambda f: edit(f, lambda d: d["kernel"]["tree"].update({"class": "Popen"})),
        "KeyError: 'Popen'",
    ),
    "a fact": (
        lambda f: edit(f, lambda d: d["kernel"]["tree"]["facts"].update(shell=True)),
        "TypeError: .*shell",
    ),
    "a transform": (
        lambda f: edit(f, lambda d: d["parameters"][0]["transform"].update({"class": "eval"})),
        "KeyError: 'eval'",
    ),
    "an array": (lambda f: edit(f, lambda d: d["data"].update(X="Z")), "KeyError: 'Z'"),
    "an option": (
        lambda f: edit(f, lambda d: d["options"].update(learning="magic")),
        "ValueError: learning='magic' is not known",
    ),
    "swapped": (
        lambda f: edit(f, lambda d: d["parameters"][2].update(value=d["parameters"][3]["value"])),
        "ValueError: parameter 2 and its unconstrained value disagree",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told(model, tmp_path, name):
    do, message = DAMAGES[name]
    model.save(tmp_path / "model")
    do(tmp_path / "model")
    with pytest.raises(ValueError, match=f"model is damaged \\({message}"):
        load(tmp_path / "model")


def test_what_is_no_saved_model(model, tmp_path):
    with pytest.raises(ValueError, match="nowhere is not there: pass the folder that a model was"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no saved model: there is no model.json in it"):
        load(tmp_path)
    (tmp_path / DOCUMENT).write_text('{"weights": []}')
    with pytest.raises(ValueError, match="holds no saved model: its model.json is not of this"):
        load(tmp_path)
    with pytest.raises(ValueError, match="model.json is a file, not a folder"):
        load(tmp_path / DOCUMENT)


def test_a_newer_format_asks_for_an_upgrade(model, tmp_path):
    model.save(tmp_path / "model")
    edit(tmp_path / "model", lambda d: d.update(format_version=99))
    with pytest.raises(ValueError, match="format 99 by a newer gpflow_cool.*upgrade gpflow_cool"):
        load(tmp_path / "model")


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_loading_runs_no_code(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save("model")
    arrays = {"X": np.array([Bomb()], dtype=object)}
    np.savez(tmp_path / "bomb.npz", allow_pickle=True, **arrays)
    for raw in ((tmp_path / "bomb.npz").read_bytes(), pickle.dumps(Bomb())):
        (tmp_path / "model" / ARRAYS).write_bytes(raw)
        trust(tmp_path / "model", raw)
        with pytest.raises(ValueError, match="model is damaged"):
            load("model")
    assert not os.path.exists("exploded")


def trust(folder, raw):
    """Make the document vouch for other arrays, as somebody with bad intent would."""
    edit(folder, lambda d: d.update(arrays_sha256=hashlib.sha256(raw).hexdigest()))


def test_compressed_arrays_are_refused(model, tmp_path):
    folder = tmp_path / "model"
    model.save(folder)
    with np.load(folder / ARRAYS) as arrays:
        np.savez_compressed(folder / ARRAYS, **arrays)
    assert zipfile.ZipFile(folder / ARRAYS).infolist()[0].compress_type == zipfile.ZIP_DEFLATED
    trust(folder, (folder / ARRAYS).read_bytes())
    with pytest.raises(ValueError, match="an array is compressed"):
        load(folder)


# Limits ----------------------------------------------------------------------------------------


def exact_model(data):
    return KroneckerMTGP.std_mt(data, K.SquaredExponential(), rank=1)


def many_tasks(document):
    document["noise"]["tree"]["facts"]["num_tasks"] = 30_000


def test_a_document_cannot_ask_for_more_tasks_than_the_data_have(data, tmp_path):
    exact_model(data).save(tmp_path / "model")
    edit(tmp_path / "model", many_tasks)
    with pytest.raises(ValueError, match="num_tasks is for 30000 columns, the data have 3"):
        load(tmp_path / "model")


def test_a_polynomial_cannot_have_more_terms_than_weights(data, tmp_path):
    mean = gpflow.mean_functions.Polynomial(2, input_dim=2, output_dim=3)
    CoolMTGP(data, K.SquaredExponential(), mean).save(tmp_path / "model")
    assert load(tmp_path / "model").mean_function.w.shape == (3, 6)
    facts = lambda d: d["mean_function"]["tree"]["facts"]  # noqa: E731
    for degree in (3, 10**9):
        edit(tmp_path / "model", lambda d, n=degree: facts(d).update(degree=n))
        with pytest.raises(ValueError, match=f"degree {degree} does not have 6 terms"):
            load(tmp_path / "model")


@pytest.mark.parametrize("name", [DOCUMENT, ARRAYS])
def test_a_pipe_does_not_block(model, tmp_path, name):
    model.save(tmp_path / "model")
    (tmp_path / "model" / name).unlink()
    os.mkfifo(tmp_path / "model" / name)
    with pytest.raises(ValueError, match=f"{name} cannot be read, it is not a regular file"):
        load(tmp_path / "model")


def test_a_huge_document_is_not_read(model, tmp_path):
    model.save(tmp_path / "model")
    os.truncate(tmp_path / "model" / DOCUMENT, 2**40)  # a hole: it takes no place on the disk
    with pytest.raises(ValueError, match=r"it has 1099511627776 bytes, more than 67108864"):
        load(tmp_path / "model")


# Checksum --------------------------------------------------------------------------------------


def test_no_flipped_bit_gives_another_model(model, rng, tmp_path):
    model.save(tmp_path / "model")
    file, refused = tmp_path / "model" / DOCUMENT, 0
    raw = file.read_bytes()
    for place in rng.choice(len(raw), 60, replace=False):
        changed = bytearray(raw)
        changed[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        try:
            content = read_folder(tmp_path / "model")
        except ValueError:
            refused += 1
        else:  # a space between two parts has become another one, or the checksum lost its name
            document = {**content.document, "format": "gpflow_cool", "format_version": 1}
            kept = {key: value for key, value in json.loads(raw).items() if key in document}
            assert {key: document[key] for key in kept} == kept and len(kept) >= 8
    assert refused > 40


def test_a_folder_of_an_earlier_version_has_no_checksum(model, tmp_path):
    model.save(tmp_path / "model")
    document = json.loads((tmp_path / "model" / DOCUMENT).read_text())
    del document[CHECKSUM]
    (tmp_path / "model" / DOCUMENT).write_text(json.dumps(document))
    assert load(tmp_path / "model").task_names == model.task_names


# What is there already -------------------------------------------------------------------------


def test_a_foreign_folder_with_a_model_json_is_not_replaced(model, tmp_path):
    (tmp_path / DOCUMENT).write_text('{"architecture": "a network of somebody else"}')
    with pytest.raises(ValueError, match="is not a saved model, so that it is not replaced"):
        model.save(tmp_path, force=True)
    assert "somebody else" in (tmp_path / DOCUMENT).read_text()
