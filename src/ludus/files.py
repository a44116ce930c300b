"""Files that outlive a crash: the few operations of which everything that must last is made.

Each tells `observe` what it is about to do and what it has done, so that a test can end the process, or let the disk
be full, at every single one of them.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

PIECE = 1 << 20
"""Bytes given to the system in one call."""


def _nobody(operation: str, path: Path) -> None:
    """Watch nothing."""


observe: Callable[[str, Path], None] = _nobody
"""Called with "before write", "after write" and so on, and the path."""


@contextlib.contextmanager
def _operation(name: str, path: Path) -> Generator[None]:
    observe(f"before {name}", path)
    yield
    observe(f"after {name}", path)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, that only the user can read; it may be there already."""
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            with _operation("mkdir", folder):
                folder.mkdir(exist_ok=True, mode=0o700)
            sync_folder(folder.parent)


def write(path: Path, parts: Iterable[Any]) -> None:
    """Write a new file from pieces of bytes and wait until it is on disk; only the user can read it."""
    with _operation("open", path):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for part in parts:
            data = memoryview(part)
            data = data.cast("B") if data.nbytes else data
            while data.nbytes:
                with _operation("write", path):
                    data = data[os.write(file, data[:PIECE]) :]
        with _operation("fsync", path):
            os.fsync(file)
    finally:
        os.close(file)


def read(path: Path, most: int) -> bytes:
    """Return the content of a file of at most so many bytes; a link is not followed. OSError if it is not so."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise OSError(errno.ELOOP, "it is a link") if error.errno == errno.ELOOP else error from error
    with os.fdopen(file, "rb") as handle:
        status = os.fstat(handle.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than the {most:,} it may have")
        return handle.read(status.st_size + 1)  # memory is taken for what is there, not for what may be there


def rename(source: Path, target: Path) -> None:
    """Give a file or folder its final name; one that is there already is replaced."""
    with _operation("rename", target):
        source.replace(target)


def replace(source: Path, target: Path) -> None:
    """Rename, and wait until the folder above knows it."""
    rename(source, target)
    sync_folder(target.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that, whatever happens, there is the old one or the new one and never a part of either."""
    partial = path.with_name(f".{path.name}.partial")
    write(partial, [data])
    replace(partial, path)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on disk."""
    with _operation("fsync", path):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; it may be gone already."""
    with _operation("unlink", path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def free_bytes(path: Path) -> int:
    """Return how much can still be written there."""
    return shutil.disk_usage(path).free
