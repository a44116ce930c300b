"""Bringing a run back from its copy: everything is compared with the marker before it is a run folder.

What lies in a store may have been written by anybody. Paths that leave the folder, more files or bytes than there is
room for, and contents with another hash are refused; nothing is followed and nothing executed.
"""

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

from ludus.runs.folder import CONFIG, JOURNAL, read_identity
from ludus.runs.storage.base import MissingError, RemoteStore, StorageError
from ludus.runs.storage.ledger import LedgerFile
from ludus.runs.storage.marker import SLOTS, Content, Marker, is_path, read_marker, spare
from ludus.runs.storage.places import joined, opened
from ludus.runtime import files
from ludus.runtime.files import IDENTITY
from ludus.types import LudusError

MEMBERS = (IDENTITY, CONFIG, JOURNAL)
"""Files without which a folder is no run."""
TRIES = 5
"""How often a file is asked for that cannot be had, or is being replaced."""
FIRST_PAUSE, MOST_WAIT = 0.25, 30.0
MOST_RUNS = 10_000
SPARE = 1 << 26
"""Bytes of the disk that are left free."""

Wanted = Callable[[str], bool]
Answer = TypeVar("Answer")


def pull(url: str, into: Path, key_file: str | None = None, wanted: Wanted = lambda path: True) -> int:
    """Restore a run into a new folder; return the number of its files. LudusError, and no folder, if it is not whole.

    With `wanted` only files of some paths are brought, which is enough to look at a run, not to go on with it.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise LudusError(f"{into}: exists already; give another folder with --into, or remove it")
    with _told(), contextlib.closing(opened(url, key_file)) as store:
        marker = _marker(store, url)
        partial = into.with_name(f"{files.PARTIAL}{secrets.token_hex(8)}-{into.name}")
        try:
            files.make_folder(into.parent)
            files.make_folder(partial)
            count = Restoring(store, "", partial, wanted).bring(marker)
            if read_identity(partial)["id"] != marker.run:
                raise LudusError(f"{url}: its run.json is of another run than its marker")
            place, _, folder = url.rstrip("/").rpartition("/")
            if all(map(wanted, marker.files)):
                LedgerFile(partial).restored(place, folder, marker)
            files.replace(partial, into)
        except BaseException:
            files.remove(partial)
            raise
    return count


@contextlib.contextmanager
def _told() -> Generator[None]:
    """Turn what a store or the system says into one line."""
    try:
        yield
    except StorageError as error:
        raise LudusError(str(error)) from error
    except OSError as error:
        raise LudusError(f"{error.filename or 'the copy'}: cannot be written ({error.strerror})") from error


def name_in(url: str) -> str:
    """Return the name of a run in the URL of its copy; LudusError if it is none that a folder here can have."""
    name = url.rstrip("/").rpartition("/")[2]
    if not is_path(name) or name.endswith(":"):
        raise LudusError(f"{url}: names no run, as in gdrive://Folder/NAME")
    return name


def is_copy(folder: Path) -> bool:
    """Tell whether a folder holds the copy of a run, and not a run that can be gone on with there."""
    return any((folder / slot).is_file() for slot in SLOTS)


def restored(url: str, key_file: str | None = None) -> Path:
    """Restore a run into runs/NAME, to go on with it."""
    into = Path("runs") / name_in(url)
    if into.exists():
        raise LudusError(
            f"{into}: exists already; go on with ludus resume {into}, or restore it elsewhere by ludus pull"
        )
    pull(url, into, key_file)
    return into


def glance(url: str, into: Path, key_file: str | None = None) -> list[str]:
    """Bring what tells how runs stand, of every run at a place, into a folder; return what is wrong with others."""
    problems = []
    with _told(), contextlib.closing(opened(url, key_file)) as store:
        marker = _patiently(lambda: read_marker(store, ""))
        for name in [""] if marker is not None else list(_runs(store)):
            folder = into / (name or url.rstrip("/").rpartition("/")[2])
            try:
                marker = _patiently(lambda: read_marker(store, name))  # noqa: B023
                if marker is not None:
                    files.make_folder(folder)
                    Restoring(store, name, folder, MEMBERS.__contains__).bring(marker)
            except (LudusError, StorageError) as error:
                files.remove(folder)
                problems.append(str(error))
    return problems


def _marker(store: RemoteStore, url: str) -> Marker:
    marker = _patiently(lambda: read_marker(store, ""))
    if marker is None:
        names = [name for name, _ in zip(_runs(store), range(10), strict=False)]
        hint = f"; it holds the copies of {', '.join(names)}" if names else ""
        raise LudusError(f"{url}: is not the copy of a run (neither {' nor '.join(SLOTS)} is there){hint}")
    if missing := [name for name in MEMBERS if name not in marker.files]:
        raise LudusError(f"{url}: is not the copy of a run ({missing[0]} is not in it)")
    return marker


def _runs(store: RemoteStore) -> Iterator[str]:
    """Yield the names of the folders that hold the copy of a run."""
    for name in _patiently(lambda: store.names(""))[:MOST_RUNS]:
        inside = name.removesuffix("/")
        if name.endswith("/") and is_path(inside) and any(slot in store.names(inside) for slot in SLOTS):
            yield inside


class Restoring:
    """Brings the files of one copy into a folder."""

    def __init__(self, store: RemoteStore, folder: str, into: Path, wanted: Wanted):
        """Bring nothing yet."""
        self.store, self.folder, self.into, self.wanted = store, folder, into, wanted

    def bring(self, marker: Marker) -> int:
        """Bring all files that are wanted; return how many there are."""
        chosen = {path: contents for path, contents in marker.files.items() if self.wanted(path)}
        size, free = sum(content.size for content in chosen.values()), files.free_bytes(self.into)
        if size > free - SPARE:
            raise LudusError(f"{self.into}: the run has {size:,} bytes, and {free:,} are free there")
        for path in sorted(chosen, key=lambda path: path != IDENTITY):  # it makes the folder a run, without links
            self._bring(path, chosen[path])
        return len(chosen)

    def _bring(self, path: str, content: Content) -> None:
        target = self.into / path
        try:
            files.make_folder(target.parent)
            problem = ""
            for attempt in range(TRIES):
                if attempt:
                    time.sleep(FIRST_PAUSE * 2**attempt)
                for place in (path, spare(content)):
                    try:
                        return self._write(place, target, content)
                    except StorageError as error:
                        problem = problem or str(error)
                        files.remove(target)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise LudusError(f"{self.store.name}/{path}: is both a file and a folder") from error
        raise LudusError(f"{problem}; nothing was restored")

    def _write(self, path: str, target: Path, content: Content) -> None:
        """Write a file while it is hashed; StorageError if its first bytes are not what the marker says."""
        digest, size = hashlib.sha256(), 0

        def pieces() -> Iterator[bytes]:
            nonlocal size
            for piece in self.store.pieces(joined(self.folder, path), content.sha256):
                piece = piece[: content.size - size]  # more is not wanted, whatever lies there
                digest.update(piece)
                size += len(piece)
                yield piece
                if size == content.size:
                    return

        files.write(target, pieces())
        if size != content.size or digest.hexdigest() != content.sha256:
            raise StorageError(f"{self.store.name}/{path}: is not what was copied (its size or SHA-256 is another)")


def _patiently(question: Callable[[], Answer]) -> Answer:
    """Ask a store that may be away for a moment."""
    for attempt in range(TRIES - 1):
        try:
            return question()
        except MissingError:
            raise
        except StorageError as error:
            time.sleep(max(FIRST_PAUSE * 2**attempt, min(error.wait, MOST_WAIT)))
    return question()
