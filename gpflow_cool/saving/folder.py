"""
A folder with a JSON document and NumPy arrays, which holds a saved model.

Nothing in it is ever executed: no pickle, no code. A folder is written under another name and then
renamed, so that it is there whole or not at all.
"""

import hashlib
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

from .files import npz_bytes, write_whole

FORMAT = "gpflow_cool"
FORMAT_VERSION = 1
DOCUMENT = "model.json"
ARRAYS = "arrays.npz"
NUMBER_KINDS = "biuf"
"""Kinds of NumPy arrays that are read: numbers, and no objects."""


class Content(NamedTuple):
    """What a folder holds."""

    document: dict[str, Any]
    """Anything that JSON can express."""

    arrays: dict[str, AnyNDArray]


# Writing -------------------------------------------------------------------------------------


def write_folder(folder: str | os.PathLike[str], content: Content, *, force: bool = False) -> Path:
    """
    Write a folder, whole or not at all.

    :param force: Replace a folder that this function wrote. No other is ever touched.
    :raises ValueError: If something is there already.
    :raises OSError: If it cannot be written; then nothing is left behind.
    """
    path = check_place(folder, force)
    with beside(path) as temporary:
        arrays = npz_bytes(content.arrays)
        digest = hashlib.sha256(arrays).hexdigest()
        head = {"format": FORMAT, "format_version": FORMAT_VERSION, "arrays_sha256": digest}
        text = json.dumps({**head, **content.document}, indent=1, allow_nan=False)
        write_whole(temporary / ARRAYS, arrays)
        write_whole(temporary / DOCUMENT, text.encode())
        replace_folder(temporary, path)
    return path


def check_place(folder: str | os.PathLike[str], force: bool) -> Path:
    """Return the path if a folder may be written there."""
    if not isinstance(folder, str | os.PathLike) or str(folder) == "":
        raise ValueError(f"folder={folder!r} must be the path of a folder, for example 'model'.")
    path = Path(os.path.abspath(folder))
    is_empty = path.is_dir() and not any(path.iterdir())
    if is_empty or not (path.exists() or path.is_symlink()):
        return path
    if not is_saved(path):
        raise ValueError(
            f"{folder} exists already and is no saved model, so that it is not replaced: choose"
            " another folder."
        )
    if not force:
        raise ValueError(
            f"{folder} exists already: choose another folder, or replace it (force=True; on the"
            " command line --force)."
        )
    return path


def is_saved(path: Path) -> bool:
    """Whether a folder holds just what :func:`write_folder` writes."""
    return (
        path.is_dir()
        and not path.is_symlink()
        and {file.name for file in path.iterdir()} <= {DOCUMENT, ARRAYS}
        and (path / DOCUMENT).is_file()
    )


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A new folder with another name in the same place; removed if an error occurs."""
    made = [parent for parent in path.parents if not parent.exists()]
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        raise


def replace_folder(new: Path, path: Path) -> None:
    """Put a folder in the place of another, or of none."""
    if not path.exists() or not any(path.iterdir()):
        os.replace(new, path)  # also replaces an empty folder
        return
    old = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
    os.replace(path, old)
    try:
        os.replace(new, path)
    except BaseException:
        os.replace(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


# Reading -------------------------------------------------------------------------------------


def read_folder(folder: str | os.PathLike[str]) -> Content:
    """
    Read a folder that :func:`write_folder` wrote.

    :raises ValueError: If it is something else, is damaged, or comes from a newer version.
    """
    path = Path(folder)
    if not path.is_dir():
        what = "is a file, no folder" if path.exists() else "is not there"
        raise ValueError(f"{folder} {what}: pass the folder that a model was saved to.")
    document = read_document(path, folder)
    try:
        raw = (path / ARRAYS).read_bytes()
    except OSError as error:
        raise damaged(folder, f"{ARRAYS} cannot be read, {error.strerror}") from error
    if hashlib.sha256(raw).hexdigest() != document.pop("arrays_sha256", None):
        raise damaged(folder, f"{ARRAYS} is not what was written")
    return Content(document, read_arrays(raw, folder))


def read_document(path: Path, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON document of a folder, without its head."""
    try:
        document = json.loads((path / DOCUMENT).read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"{folder} holds no saved model: there is no {DOCUMENT} in it.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(folder, f"{DOCUMENT} cannot be read") from error
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise ValueError(f"{folder} holds no saved model: its {DOCUMENT} is not of this package.")
    version = document.pop("format_version", None)
    if not isinstance(version, int) or version < 1:
        raise damaged(folder, f"format_version is {version!r}")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{folder} was written in format {version} by a newer gpflow_cool, but this one reads"
            f" format {FORMAT_VERSION} at most: upgrade gpflow_cool."
        )
    return document


def read_arrays(raw: bytes, folder: str | os.PathLike[str]) -> dict[str, AnyNDArray]:
    """Arrays of numbers; refuses compressed ones, which could grow to any size."""
    try:
        with zipfile.ZipFile(BytesIO(raw)) as file:
            if any(member.compress_type != zipfile.ZIP_STORED for member in file.infolist()):
                raise ValueError("an array is compressed")
        with np.load(BytesIO(raw), allow_pickle=False) as arrays:
            found = {name: np.asarray(arrays[name]) for name in arrays}
    except (ValueError, OSError, EOFError, MemoryError, KeyError, zipfile.BadZipFile) as error:
        raise damaged(folder, f"{ARRAYS} cannot be read, {error}") from error
    if any(array.dtype.kind not in NUMBER_KINDS for array in found.values()):
        raise damaged(folder, f"{ARRAYS} holds something that is no number")
    return found


def damaged(folder: str | os.PathLike[str], what: str) -> ValueError:
    """The error for a folder that is not as it was written."""
    return ValueError(f"{folder} is damaged ({what}): save the model again, or get a new copy.")
