"""Files that are there whole or not at all; nothing here needs TensorFlow."""

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, wait until the disk has it, and rename it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # a temporary file is readable by its owner only
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_with_folders(path: Path, content: bytes) -> None:
    """
    Write a file whole or not at all, and make the folders on the way that are missing; after an
    error they are removed.
    """
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    finally:
        for parent in made:
            with suppress(OSError):  # not empty
                parent.rmdir()


def npz_bytes(arrays: Mapping[str, ArrayLike]) -> bytes:
    """Arrays in NumPy's npz format, not compressed."""
    buffer = BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def writable_folder(value: Any, name: str) -> Path:
    """Return the path of a folder, made if it is missing, if files can be written to it."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name}={value!r} must be the path of a folder, such as 'logs/first'.")
    path = Path(value)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{name}={str(path)!r} is a file: choose a folder, which may be new.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(
            f"{name}={str(path)!r} cannot be written to ({error.strerror}): choose another folder,"
            " or change the rights of this one."
        ) from error
    return path
