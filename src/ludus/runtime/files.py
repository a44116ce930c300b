"""Files that outlive a crash: the few operations of which everything that must last is made.

Each tells `observe` what it is about to do and what it has done, so that a test can end the process, or let the disk
be full, at every single one of them.

A run folder may come from a stranger. From the run folder down every folder is opened by its name in the one above, and
a link is refused: nothing is written, cut or removed through it. Links above the run folder are the user's own.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

from ludus.types import LudusError

PIECE = 1 << 20
"""Bytes given to the system in one call."""
IDENTITY = "run.json"
"""A folder that holds this is a run."""
PRIVATE, SHARED = 0o700, 0o2750
"""Modes of a folder that only the user can read, and of one in a run that its group may read: what is made in a folder
with exactly the second one may be read by the group too, whoever makes it."""
PARTIAL = ".partial-"
"""Names of what is not whole yet begin so; what a crash leaves of it is removed by `sweep`."""


class LinkError(LudusError):
    """A link stands in a run folder where ludus would write."""

    def __init__(self, path: Path):
        """Name it."""
        super().__init__(f"{path}: is a link, and nothing is written through links in a run folder; remove it")


def _nobody(operation: str, path: Path) -> None:
    """Watch nothing."""


observe: Callable[[str, Path], None] = _nobody
"""Called with "before write", "after write" and so on, and the path."""


@contextlib.contextmanager
def _operation(name: str, path: Path) -> Generator[None]:
    observe(f"before {name}", path)
    yield
    observe(f"after {name}", path)


def _in_run(folder: Path) -> tuple[str, tuple[str, ...]] | None:
    """Return the run folder that a folder is or is in, and the names from there down to it; None if it is in none.

    Of several it is the outermost, so that nothing that was planted in a run can pass for another.
    """
    parts = folder.absolute().parts
    first = len(parts) - parts[::-1].index("..") if ".." in parts else 1
    path = os.path.join(*parts[:first]).rstrip("/")
    for stop in range(first, len(parts) + 1):
        path = f"{path}/{parts[stop - 1]}" if stop > first else path
        if os.path.lexists(f"{path}/{IDENTITY}"):
            return path or "/", parts[stop:]
    return None


def open_folder(path: Path) -> int:
    """Return a descriptor of a folder; inside a run, no link leads there."""
    place, names = _in_run(path) or (path, ())
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    for depth, name in enumerate(names, 1):
        above = folder
        try:
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        except OSError:
            _refuse_link(Path(place, *names[:depth]), above)
            raise
        finally:
            os.close(above)
    return folder


@contextlib.contextmanager
def _above(path: Path) -> Generator[int]:
    """Give the folder that a file is in."""
    folder = open_folder(path.parent)
    try:
        yield folder
    finally:
        os.close(folder)


def _refuse_link(path: Path, folder: int) -> None:
    """Raise LinkError if a name in a folder is a link."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISLNK(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise LinkError(path)


def refuse_links(run: Path) -> None:
    """Raise LinkError if there is a link anywhere in a run folder."""
    for folder, folders, names in os.walk(run):  # which does not follow them
        for name in (*folders, *names):
            if os.path.islink(path := os.path.join(folder, name)):
                raise LinkError(Path(path))


def make_folder(path: Path, mode: int = PRIVATE) -> None:
    """Make a folder, and those above it; it may be there already. In a shared one, it is shared whatever its mode."""
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            with _operation("mkdir", folder), _above(folder) as above:
                try:
                    os.mkdir(folder.name, PRIVATE, dir_fd=above)
                    if _is_shared(above):
                        share(folder)
                    elif mode != PRIVATE:
                        os.chmod(folder.name, mode, dir_fd=above)  # the user's mask does not count
                except FileExistsError:  # another process was faster
                    _refuse_link(folder, above)
            sync_folder(folder.parent)
    os.close(open_folder(path))


def _is_shared(folder: int) -> bool:
    return stat.S_IMODE(os.fstat(folder).st_mode) == SHARED


def share(path: Path, is_shared: bool = True) -> None:
    """Let the group read a folder and what will be made in it, or only the user; OSError if that cannot be."""
    folder = open_folder(path)
    try:
        if is_shared != _is_shared(folder):
            os.fchmod(folder, SHARED if is_shared else PRIVATE)
        if is_shared != _is_shared(folder):
            raise OSError(errno.EPERM, "its mode cannot be changed")
    finally:
        os.close(folder)


def open_file(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file; a link is refused. Only the user can read a new one, as with a folder."""
    with _above(path) as folder:
        try:
            file = os.open(path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=folder)
        except OSError:
            _refuse_link(path, folder)
            raise
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "it is not a regular file")
        if flags & os.O_CREAT and status.st_size == 0 and status.st_nlink == 1 and _is_shared(folder):
            os.fchmod(file, 0o640)
    return file


def write(path: Path, parts: Iterable[Any]) -> None:
    """Write a file that is not there yet, from pieces of bytes, and wait until it is on disk."""
    with _operation("open", path):
        file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
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


def cut(path: Path, size: int) -> None:
    """Shorten a file to so many bytes."""
    file = open_file(path, os.O_WRONLY)
    try:
        os.ftruncate(file, size)
    finally:
        os.close(file)


def open_regular(path: Path, most: int) -> int:
    """Return a descriptor of a file of at most so many bytes, to read it. OSError if it is not so, or a link.

    Nothing is waited for: a pipe that nobody writes to would be waited for without end.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        told = {errno.ELOOP: "it is a link", errno.ENXIO: "it is not a regular file"}.get(error.errno or 0)
        raise OSError(error.errno, told) if told else error from error
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file")
    if status.st_size > most:
        os.close(file)
        raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than the {most:,} it may have")
    return file


def read(path: Path, most: int) -> bytes:
    """Return the content of a file of at most so many bytes; a link is not followed. OSError if it is not so."""
    with os.fdopen(open_regular(path, most), "rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        return handle.read(size + 1)  # memory is taken for what is there, not for what may be there


def rename(source: Path, target: Path) -> None:
    """Give a file or folder its final name; one that is there already is replaced."""
    with _operation("rename", target), _above(source) as before, _above(target) as after:
        if _in_run(target.parent):
            _refuse_link(target, after)
        os.replace(source.name, target.name, src_dir_fd=before, dst_dir_fd=after)


def replace(source: Path, target: Path) -> None:
    """Rename, and wait until the folder above knows it."""
    rename(source, target)
    sync_folder(target.parent)


@contextlib.contextmanager
def whole(path: Path) -> Generator[Path]:
    """Give a path to write to, which nobody can guess; what is written there gets its name if nothing went wrong."""
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(8)}-{path.name}")
    try:
        yield partial
        replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError, LudusError), _above(partial) as folder:
            os.unlink(partial.name, dir_fd=folder)
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that, whatever happens, there is the old one or the new one and never a part of either."""
    with whole(path) as partial:
        write(partial, [data])


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on disk."""
    with _operation("fsync", path):
        folder = open_folder(path)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; it may be gone already."""
    with _operation("unlink", path), contextlib.suppress(FileNotFoundError), _above(path) as folder:
        kind = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(kind) and _in_run(path.parent):
            raise LinkError(path)
        if stat.S_ISDIR(kind):
            shutil.rmtree(path.name, ignore_errors=True, dir_fd=folder)
        else:
            os.unlink(path.name, dir_fd=folder)


def sweep(folder: Path) -> None:
    """Remove what a crash has left half written in a folder, if it can be; only the one that writes there may."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{PARTIAL}*"):
            remove(path)


LACKING = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EIO, errno.EXDEV, errno.ENOLCK)
"""The errors of file systems that cannot sync, rename or lock."""


def lacking(folder: Path) -> str | None:
    """Return what the file system of a folder cannot do of what a run needs, found out by trying; None if nothing.

    The folder need not be there yet. What cannot be tried says nothing.
    """
    above = next((place for place in (folder, *folder.absolute().parents) if place.is_dir()), None)
    trial, done = Path(above or "/") / f"{PARTIAL}{secrets.token_hex(8)}", "written to"
    try:
        file = os.open(trial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return None
    try:
        done = "locked"
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = "synced"
        os.fsync(file)
        done = "renamed"
        os.replace(trial, again := trial.with_name(f"{trial.name}-2"))
        trial = again
    except OSError as error:
        return done if error.errno in LACKING else None
    finally:
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(trial)
    return None


def free_bytes(path: Path) -> int:
    """Return how much can still be written there."""
    return shutil.disk_usage(path).free
