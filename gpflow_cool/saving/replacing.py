"""
One folder in the place of another, at once; nothing is lost where a program is killed on the way.

A folder is made in a workshop, a hidden folder beside its place, which holds "new" and, during the
exchange, "old". The workshop is locked while its program lives. A workshop without a lock is
abandoned: if its "old" was on the way out and nothing has come in, it is put back; all else of it
is removed by the next save to the same place.
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    from fcntl import LOCK_EX, LOCK_NB, flock

    CAN_LOCK = True
except ImportError:  # Windows: there, nothing counts as abandoned
    CAN_LOCK = False

ATTEMPTS = 100
"""How often an exchange is tried while other programs save to the same place."""

TAKEN = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
"""What an exchange fails with if another program exchanges the same folder."""


@contextmanager
def workshop(path: Path) -> Iterator[Path]:
    """
    A new, locked folder beside a path. In the end it is removed; after an error, so are folders
    above it that were not there before.
    """
    made = [parent for parent in path.parents if not parent.exists()]
    lock, inside = None, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while inside is None or not inside.is_dir():  # removed before it was locked: once more
            inside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
            inside.mkdir()
            lock = locked(inside, wait=True)
        yield inside
    finally:
        if inside is not None:
            shutil.rmtree(inside, ignore_errors=True)
        if lock is not None:
            os.close(lock)
        for parent in made:
            with suppress(OSError):  # not empty
                parent.rmdir()


def locked(folder: Path, *, wait: bool) -> int | None:
    """A descriptor that holds the lock of a folder until it is closed; None if it has none."""
    if not CAN_LOCK:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        flock(descriptor, LOCK_EX if wait else LOCK_EX | LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def put_in_place(inside: Path, path: Path, may_replace: Callable[[Path], bool]) -> bool:
    """
    Put "new" of a workshop in the place of a folder, or of none.

    What is there is moved into the workshop first, so that no other program can change it.

    :param may_replace: Whether a folder that was there may be replaced.
    :return: False if it may not; then it is where it was.
    """
    for _ in range(ATTEMPTS):
        old = inside / f"old.{secrets.token_hex(4)}"
        try:
            if not is_free(path):
                os.replace(path, old)
                if not may_replace(old):
                    put_back(old, path)
                    return False
            os.replace(inside / "new", path)  # also replaces an empty folder
            return True
        except BaseException as error:
            put_back(old, path)
            if not (isinstance(error, OSError) and error.errno in TAKEN):
                raise
    raise OSError(None, "other programs save to it all the time", str(path))


def is_free(path: Path) -> bool:
    """Whether nothing is there, or an empty folder."""
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return not path.is_symlink()
    except NotADirectoryError:
        return False


def put_back(old: Path, path: Path) -> None:
    """Put a folder back where it was, unless another has come there."""
    with suppress(OSError):
        os.replace(old, path)


def abandoned(path: Path) -> Iterator[Path]:
    """Workshops beside a path whose programs were killed; each is locked while it is looked at."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.(tmp|old)")
    if not path.parent.is_dir():
        return
    for found in sorted(path.parent.iterdir()):
        if pattern.fullmatch(found.name) and found.is_dir() and not found.is_symlink():
            lock = locked(found, wait=False)
            if lock is not None:
                try:
                    yield found
                finally:
                    os.close(lock)


def recover(path: Path, is_good: Callable[[Path], bool]) -> None:
    """Put a folder back that was on its way out when a program was killed, if none is there."""
    with suppress(OSError):  # a folder that may not be read or changed stays as it is
        if path.exists():
            return
        for found in abandoned(path):
            for old in (found, *found.glob("old.*")):
                if old.suffix != ".tmp" and is_good(old):
                    put_back(old, path)
                    return


def remove_abandoned(path: Path) -> None:
    """Remove what killed programs have left of their saves to this place."""
    with suppress(OSError):
        for found in abandoned(path):
            shutil.rmtree(found, ignore_errors=True)
