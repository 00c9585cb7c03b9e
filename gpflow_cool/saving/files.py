"""Files that are there whole or not at all; nothing here needs TensorFlow."""

import os
import tempfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

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


def npz_bytes(arrays: Mapping[str, ArrayLike]) -> bytes:
    """Arrays in NumPy's npz format, not compressed."""
    buffer = BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()
