"""A folder as a place for copies: another disk, or a cloud's folder that the system shows as one.

Such folders lack what a disk has: some cannot rename, some refuse to sync. What cannot be done is left out; what lies
there is compared by its hash like everything else.
"""

import contextlib
import errno
import os
from collections.abc import Generator, Iterator
from pathlib import Path

from ludus.runs.storage.base import PIECE, LocalFile, MissingError, StorageError, Told
from ludus.runtime import files
from ludus.types import LudusError


class MountedFolder:
    """A folder of the file system. It must be there, or the one above: no cloud is mistaken for an empty disk."""

    def __init__(self, path: Path):
        """Touch nothing yet."""
        self.path = path.expanduser().absolute()
        self.name = str(self.path)

    def put(self, path: str, source: LocalFile) -> None:
        """Write beside and rename; where that cannot be, write in place."""
        target = self._full(path)
        with _told_of(self.path):
            self._check_place()
            _make_folder(target.parent)
            try:
                with files.whole(target) as partial:
                    files.write(partial, source.pieces())
            except OSError as error:
                if error.errno not in files.LACKING:
                    raise
                self._overwrite(target, source)

    def _overwrite(self, target: Path, source: LocalFile) -> None:
        file = files.open_file(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for piece in source.pieces():
                data = memoryview(piece)
                while data.nbytes:
                    data = data[os.write(file, data) :]
            with contextlib.suppress(OSError):
                os.fsync(file)
        finally:
            os.close(file)

    def _check_place(self) -> None:
        if not self.path.is_dir() and not self.path.parent.is_dir():
            raise OSError(errno.ENOENT, "neither it nor the folder above is there")

    def told(self, path: str) -> Told:
        """Return the size; the hash must be made by reading."""
        with _told_of(self.path):
            return Told(self._opened(path)[1])

    def pieces(self, path: str, sha256: str | None = None) -> Iterator[bytes]:
        """Read a file."""
        with _told_of(self.path):
            file = self._opened(path, is_kept=True)[0]
            try:
                while piece := os.read(file, PIECE):
                    yield piece
            finally:
                os.close(file)

    def _opened(self, path: str, is_kept: bool = False) -> tuple[int, int]:
        file = files.open_regular(self._full(path), 1 << 62)
        size = os.fstat(file).st_size
        if not is_kept:
            os.close(file)
        return file, size

    def names(self, folder: str) -> list[str]:
        """List a folder; what is still being written is left out."""
        try:
            with _told_of(self.path), os.scandir(self._full(folder)) as entries:
                found = [entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in entries]
        except MissingError:
            return []
        return sorted(name for name in found if not name.startswith(files.PARTIAL))

    def remove(self, path: str) -> None:
        """Remove a file, and its folder if it was the last one in it."""
        with _told_of(self.path):
            files.remove(self._full(path))
            with contextlib.suppress(OSError):
                self._full(path).parent.rmdir()

    def close(self) -> None:
        """Do nothing: nothing is held open."""

    def _full(self, path: str) -> Path:
        return self.path / path if path else self.path


def _make_folder(path: Path) -> None:
    """Make a folder and those above it, though they may not be synced: each attempt makes one at least."""
    for _ in path.parts:
        try:
            return files.make_folder(path)
        except OSError as error:
            if error.errno not in files.LACKING:
                raise
    if not path.is_dir():
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return None


@contextlib.contextmanager
def _told_of(folder: Path) -> Generator[None]:
    """Turn what the system says into what a store says."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if folder.is_dir():
            raise MissingError(f"{folder}: {error.strerror or error}") from error
        raise _absent(folder, error) from error
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror or error}") from error
    except LudusError as error:  # a link, through which nothing is written
        raise StorageError(str(error)) from error


def _absent(folder: Path, error: OSError) -> StorageError:
    if folder.parent.is_dir():
        return MissingError(f"{folder}: {error.strerror or error}")
    return StorageError(f"{folder}: is not there, nor the folder above it; is it mounted?")
