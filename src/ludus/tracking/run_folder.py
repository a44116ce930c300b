"""A run is a folder: configuration, identity, journal, policies. Everything else is derived from it."""

import contextlib
import errno
import fcntl
import json
import os
import uuid
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any

import yaml

from ludus import files, withheld
from ludus.files import IDENTITY
from ludus.tracking import reading
from ludus.tracking.reading import MOST_BYTES
from ludus.types import LudusError

CONFIG, JOURNAL = "config.yaml", "metrics.jsonl"
LATEST = 1e11
"""No run begins so many seconds after 1970."""


class RunFolder:
    """Writes one run. Folders are private to the user (0700); files appear whole or not at all, the journal grows.

    A journal that cannot be written, because the disk is full, does not end the run: its rows are kept in memory and
    written when that is possible again. `trouble` says what is wrong meanwhile.
    """

    def __init__(self, path: str | Path, is_shared: bool = False):
        """Check the place and create nothing yet; a folder that holds something is refused, never overwritten.

        Of a shared one the user's group may read everything, now and later.
        """
        self.path, self.is_shared = Path(path), is_shared
        self._journal: int | None = None
        self._pending = b""
        self.rows = self.bytes = 0
        """Rows of the journal, those that wait to be written included, and bytes of those that are written."""
        self.trouble: str | None = None
        self.identity: dict[str, Any] = {"id": uuid.uuid4().hex}
        self.config: dict[str, Any] = {}
        with self._writing(self.path):
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise self._taken()
            ancestor = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
            if not ancestor.is_dir() or not os.access(ancestor, os.W_OK | os.X_OK):
                raise LudusError(
                    f"run_dir={self.path}: cannot be written ({ancestor} is not a folder one can write to)"
                )

    @classmethod
    def reopen(cls, path: str | Path) -> "RunFolder":
        """Go on with a run; LudusError if another process is at it."""
        self = cls.__new__(cls)
        self.path, self._pending, self.trouble = Path(path), b"", None
        self.identity, self.config = read_identity(path), {}
        with self._writing(self.path / JOURNAL):
            self._journal = files.open_file(self.path / JOURNAL, os.O_RDWR | os.O_APPEND)
            self.bytes = os.fstat(self._journal).st_size
        self.rows = 0
        self._lock()
        files.sweep(self.path)
        return self

    def create(self) -> None:
        """Create the folder and the journal; of two runs that try at once, one is refused."""
        with self._writing(self.path):
            files.make_folder(self.path, 0o750 if self.is_shared else files.PRIVATE)
            files.share(self.path, self.is_shared)
            try:
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
                self._journal = files.open_file(self.path / JOURNAL, flags)
            except FileExistsError as error:
                raise self._taken() from error
        self._lock()

    def cut(self, rows: int, size: int) -> None:
        """Take back every row of the journal after the first `rows`, which take `size` bytes."""
        path = self.path / JOURNAL
        with self._writing(path):
            assert self._journal is not None
            with open(self._journal, "rb", closefd=False) as journal:
                journal.seek(0)
                kept = journal.read(size)
            lines = kept.splitlines()
            if len(kept) != size or len(lines) != rows or (kept and not kept.endswith(b"\n")):
                raise LudusError(f"{path}: is shorter or other than it was when the checkpoint was written")
            os.ftruncate(self._journal, size)
            os.fsync(self._journal)
        self.rows, self.bytes = rows, size

    def _taken(self) -> LudusError:
        return LudusError(
            f"run_dir={self.path}: exists already; choose another folder, remove it, or go on with ludus resume"
        )

    def _lock(self) -> None:
        """Make this process the only one that trains here; the system takes the lock back however the process ends."""
        assert self._journal is not None
        _open.add(self)
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._journal)
            self._journal = None
            raise LudusError(f"{self.path}: another process is training here; stop it first") from error

    def write_config(self, config: dict[str, Any]) -> None:
        """Save the resolved configuration."""
        self.config = plain(config)
        self._replace(CONFIG, yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True))

    def write_identity(self, **changes: Any) -> None:
        """Save what the run is and how it stands; fields not named keep their value."""
        self.identity |= changes
        self._replace(IDENTITY, json.dumps(self.identity, indent=2) + "\n")

    def check_place(self) -> None:
        """Raise LudusError if the folder was moved or removed while it is written: no second one is begun there."""
        if self._journal is None:
            return
        try:
            if os.path.samestat((self.path / JOURNAL).lstat(), os.fstat(self._journal)):
                return
            if read_identity(self.path)["id"] == self.identity["id"]:  # file systems that number files anew
                return
        except (FileNotFoundError, NotADirectoryError, LudusError):
            pass
        except OSError:  # nothing is known; whatever is written next will tell
            return
        raise LudusError(
            f"{self.path}: was moved or removed while the run was training, which has stopped; "
            "where the folder is now, if it is, ludus resume goes on from its latest checkpoint"
        )

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Append rows to the journal, each with its sequence number, in one write."""
        self.check_place()
        lines = []
        for row in rows:
            lines.append(json.dumps({"seq": self.rows, **row}, allow_nan=False) + "\n")
            self.rows += 1
        self._pending += withheld.hidden("".join(lines)).encode()
        try:
            self.flush()
        except LudusError as error:
            self.trouble = str(error)

    def flush(self) -> None:
        """Write the rows that wait."""
        path = self.path / JOURNAL
        with self._writing(path):
            journal = self._open_again() if self._journal is None else self._journal
            if self.trouble:
                os.ftruncate(journal, self.bytes)  # half a row that could not be taken back then
            try:
                files.observe("before append", path)
                written = 0
                while written < len(self._pending):
                    written += os.write(journal, self._pending[written:])
                files.observe("after append", path)
            except OSError:
                os.ftruncate(journal, self.bytes)  # no half row stays
                raise
            self.bytes += len(self._pending)
            self._pending, self.trouble = b"", None

    def _open_again(self) -> int:
        """Open the journal that was closed; nobody else may have gone on with it."""
        self._journal = files.open_file(self.path / JOURNAL, os.O_RDWR | os.O_APPEND)
        self._lock()
        if os.fstat(self._journal).st_size < self.bytes:
            raise LudusError(f"{self.path / JOURNAL}: has been cut by another process")
        return self._journal

    def sync(self) -> None:
        """Wait until the journal is on disk."""
        with self._writing(self.path / JOURNAL):
            if self._journal is not None:
                os.fsync(self._journal)

    def close(self) -> None:
        """Write what waits, make the journal durable and close it; a later row opens it again."""
        if self._journal is None:
            return
        try:
            self.flush()
            self.sync()
        finally:
            journal, self._journal = self._journal, None
            os.close(journal)

    def _replace(self, name: str, text: str) -> None:
        self.check_place()
        with self._writing(self.path / name):
            files.write_whole(self.path / name, withheld.hidden(text).encode())

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise LudusError(f"{path}: cannot be written ({error.strerror or error})") from error


_open: "weakref.WeakSet[RunFolder]" = weakref.WeakSet()
"""Folders whose journal may be open."""


def _leave_to_parent() -> None:
    """In a process that was forked, such as an environment's own: the journals, and their locks, are its parent's."""
    for folder in list(_open):
        if folder._journal is not None:
            os.close(folder._journal)
            folder._journal = None


os.register_at_fork(after_in_child=_leave_to_parent)


def read_config(run: str | Path) -> dict[str, Any]:
    """Read the configuration of a run folder."""
    config = read_settings(Path(run) / CONFIG)
    if not os.path.lexists(Path(run) / IDENTITY):  # without it, `files` does not know where the user's own links end
        raise LudusError(f"{run}: is not a run folder ({IDENTITY}: {os.strerror(errno.ENOENT)})")
    return config


def read_settings(path: Path) -> dict[str, Any]:
    """Read a configuration file, be it of a run or of a model that was made of one."""
    try:
        config = reading.yaml_of(files.read(path, MOST_BYTES).decode())
    except OSError as error:
        raise LudusError(f"{path.parent}: is not a run folder ({path.name}: {error.strerror or error})") from error
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LudusError(f"{path}: is not readable YAML ({reading.reason(error)})") from error
    if not isinstance(config, dict):
        raise LudusError(f"{path}: is not a configuration")
    return config


def read_identity(run: str | Path) -> dict[str, Any]:
    """Read what a run is and how it stands."""
    path = Path(run) / IDENTITY
    try:
        identity = reading.json_of(files.read(path, MOST_BYTES))
    except OSError as error:
        raise LudusError(f"{run}: is not a run folder ({path.name}: {error.strerror or error})") from error
    except ValueError as error:
        raise LudusError(f"{path}: is not readable JSON ({reading.reason(error)})") from error
    if not isinstance(identity, dict) or not isinstance(identity.get("id"), str):
        raise LudusError(f"{path}: says nothing of a run")
    if not isinstance(identity.get("resumed", []), list):
        raise LudusError(f"{path}: says nothing of how the run was resumed")
    return identity


def read_journal(run: str | Path) -> list[dict[str, Any]]:
    """Read every complete row of a run's journal; a last line that a crash cut short is left out."""
    path = Path(run) / JOURNAL
    try:
        with os.fdopen(reading.open_journal(path), "rb") as journal:
            return [reading.row_of(line) for line in journal if line.endswith(b"\n")]
    except OSError as error:
        raise LudusError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise LudusError(f"{path}: is not readable JSON ({reading.reason(error)})") from error


def is_training(run: str | Path) -> bool:
    """Tell whether a process of this machine trains in a run folder now: whether its journal is locked."""
    try:
        journal = os.open(Path(run) / JOURNAL, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is not waited for
    except OSError:
        return False
    try:
        fcntl.flock(journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks: nothing is known
        return False
    finally:
        os.close(journal)
    return False


def begun(run: Path, identity: dict[str, Any]) -> float:
    """Return when a run began, in seconds; if it does not say, when its configuration was written."""
    seconds = identity.get("started")
    if isinstance(seconds, int | float) and 0 < seconds < LATEST:
        return float(seconds)
    return (run / CONFIG).stat().st_mtime


def trackers_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a configuration says of trackers."""
    wanted = config.get("tracking")
    return wanted if isinstance(wanted, dict) else {}


def is_timing(name: str) -> bool:
    """Whether a figure of the journal says how long something took: those alone differ when a run is made again."""
    return name in ("elapsed_seconds", "steps_per_second") or name.startswith("seconds/")


def plain(value: Any) -> Any:
    """Return the value as what YAML knows: NumPy and JAX numbers become Python's, anything strange its text."""
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value if type(value).__module__ == "builtins" else value.item()
    return value.item() if getattr(value, "ndim", None) == 0 else str(value)
