"""
A folder with a JSON document and NumPy arrays, which holds a saved model.

Nothing in it is ever executed: no pickle, no code. A folder is written elsewhere and then renamed,
so that it is there whole or not at all; see :mod:`gpflow_cool.saving.replacing`.
"""

import hashlib
import json
import os
import stat
import time
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .files import npz_bytes, write_whole
from .replacing import is_free, put_in_place, recover, remove_abandoned, workshop

FORMAT = "gpflow_cool"
FORMAT_VERSION = 1
DOCUMENT = "model.json"
ARRAYS = "arrays.npz"
NUMBER_KINDS = "biuf"
"""Kinds of NumPy arrays that are read: numbers, and no objects."""

DOCUMENT_BYTES = 2**26
"""The largest document that is read, 64 MB; that of an ordinary model has some kilobytes."""

CHECKSUM = "document_sha256"
"""Checksum of the rest of the document; folders of earlier versions have none."""


class Content(NamedTuple):
    """What a folder holds."""

    document: dict[str, Any]
    """Anything that JSON can express."""

    arrays: dict[str, NDArray[Any]]


# Writing -------------------------------------------------------------------------------------


def write_folder(folder: str | os.PathLike[str], content: Content, *, force: bool = False) -> Path:
    """
    Write a folder, whole or not at all.

    :param force: Replace a folder that this function wrote. No other is ever touched.
    :raises ValueError: If something is there already.
    :raises OSError: If it cannot be written; then nothing is left behind.
    """
    recover(Path(os.path.abspath(folder)), is_saved)
    path = check_place(folder, force)
    with workshop(path) as inside:
        new = inside / "new"
        new.mkdir()
        arrays = npz_bytes(content.arrays)
        write_whole(new / ARRAYS, arrays)
        write_whole(new / DOCUMENT, document_bytes(content.document, arrays))
        if not put_in_place(inside, path, lambda old: force and is_saved(old)):
            check_place(folder, force)
            raise ValueError(f"{folder} was changed by another program: save again.")
    remove_abandoned(path)
    return path


def document_bytes(document: dict[str, Any], arrays: bytes) -> bytes:
    """The document as JSON, with its head and its checksum."""
    digest = hashlib.sha256(arrays).hexdigest()
    head = {"format": FORMAT, "format_version": FORMAT_VERSION, "arrays_sha256": digest}
    whole = {**head, **document}
    return json.dumps({**whole, CHECKSUM: checksum(whole)}, indent=1, allow_nan=False).encode()


def checksum(document: dict[str, Any]) -> str:
    """A number that changes with anything in a document; spaces and the order do not count."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def check_place(folder: str | os.PathLike[str], force: bool) -> Path:
    """Return the path if a folder may be written there."""
    path = Path(os.path.abspath(checked_path(folder)))
    if is_free(path):
        return path
    if not is_saved(path) and not exchanged(path):
        others = other_files(path)
        what = f"holds {others[0]!r} besides a saved model" if others else "is not a saved model"
        raise ValueError(
            f"{folder} exists already and {what}, so that it is not replaced: choose another"
            f" folder{', or move this file' if others else ''}."
        )
    if not force:
        raise ValueError(
            f"{folder} exists already: choose another folder, or replace it (force=True; on the"
            " command line --force)."
        )
    return path


def checked_path(folder: Any) -> str | os.PathLike[str]:
    """Return what is given as a folder if it is a path."""
    if not isinstance(folder, str | os.PathLike) or str(folder) == "":
        raise ValueError(f"folder={folder!r} must be the path of a folder, for example 'model'.")
    return folder


def other_files(path: Path) -> list[str]:
    """What a folder holds besides a saved model; nothing if it holds none."""
    if not path.is_dir() or path.is_symlink() or not has_document(path):
        return []
    return sorted(file.name for file in path.iterdir() if file.name not in (DOCUMENT, ARRAYS))


def exchanged(path: Path) -> bool:
    """Whether a folder becomes a saved model, or free, within a moment: a program replaces it."""
    time.sleep(0.05)
    return is_free(path) or is_saved(path)


def is_saved(path: Path) -> bool:
    """Whether a folder holds what :func:`write_folder` writes, and nothing else."""
    if not path.is_dir() or path.is_symlink():
        return False
    try:
        names = {file.name for file in path.iterdir()}
    except OSError:
        return False
    return names <= {DOCUMENT, ARRAYS} and has_document(path)


def has_document(path: Path) -> bool:
    """Whether a folder holds a document of ours."""
    try:
        document = json.loads(read_regular(path / DOCUMENT, DOCUMENT_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


# Reading -------------------------------------------------------------------------------------


def read_folder(folder: str | os.PathLike[str]) -> Content:
    """
    Read a folder that :func:`write_folder` wrote.

    :raises ValueError: If it is something else, is damaged, or comes from a newer version.
    """
    path = Path(checked_path(folder))
    recover(Path(os.path.abspath(path)), is_saved)
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "is not there"
        raise ValueError(f"{folder} {what}: pass the folder that a model was saved to.")
    document = read_document(path, folder)
    try:
        raw = read_regular(path / ARRAYS)
    except OSError as error:
        raise damaged(folder, f"{ARRAYS} cannot be read, {error.strerror}") from error
    if hashlib.sha256(raw).hexdigest() != document.pop("arrays_sha256", None):
        raise damaged(folder, f"{ARRAYS} is not what was written")
    return Content(document, read_arrays(raw, folder))


def read_document(path: Path, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON document of a folder, without its head and its checksum."""
    try:
        document = json.loads(read_regular(path / DOCUMENT, DOCUMENT_BYTES))
        digest = document.pop(CHECKSUM, None) if isinstance(document, dict) else None
        changed = digest is not None and digest != checksum(document)
    except FileNotFoundError as error:
        raise ValueError(f"{folder} holds no saved model: there is no {DOCUMENT} in it.") from error
    except (OSError, ValueError, RecursionError) as error:
        why = f", {error.strerror}" if isinstance(error, OSError) else ""
        raise damaged(folder, f"{DOCUMENT} cannot be read{why}") from error
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
    if changed:
        raise damaged(folder, f"{DOCUMENT} is not what was written")
    return document


def read_regular(path: Path, limit: int | None = None) -> bytes:
    """
    Content of a regular file. A pipe or a device, which could block or never end, is refused.

    :param limit: The largest number of bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(None, "it is not a regular file", str(path))
        if limit is not None and found.st_size > limit:
            raise OSError(None, f"it has {found.st_size} bytes, more than {limit}", str(path))
        return file.read()


def read_arrays(raw: bytes, folder: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
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
        raise damaged(folder, f"{ARRAYS} holds something that is not a number")
    return found


def damaged(folder: str | os.PathLike[str], what: str) -> ValueError:
    """The error for a folder that is not as it was written."""
    return ValueError(f"{folder} is damaged ({what}): save the model again, or get a new copy.")
