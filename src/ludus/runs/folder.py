"""A run is a folder: configuration, identity, journal, policies. Everything else is derived from it."""

import errno
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ludus.runs import limits
from ludus.runs.journal import JOURNAL, Journal, writing
from ludus.runs.limits import MOST_BYTES
from ludus.runs.strict_json import strict
from ludus.runtime import files, secrets
from ludus.runtime.files import IDENTITY
from ludus.types import LudusError

CONFIG = "config.yaml"
LATEST = 1e11
"""No run begins so many seconds after 1970."""


class RunFolder:
    """Writes one run. Folders are private to the user (0700); files appear whole or not at all, the journal grows."""

    def __init__(self, path: str | Path, is_shared: bool = False):
        """Check the place and create nothing yet; a folder that holds something is refused, never overwritten.

        Of a shared one the user's group may read everything, now and later.
        """
        self.path, self.is_shared = Path(path), is_shared
        self.journal = Journal(self.path / JOURNAL)
        self.identity: dict[str, Any] = {"id": uuid.uuid4().hex}
        self.config: dict[str, Any] = {}
        with writing(self.path):
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
        self.path, self.journal = Path(path), Journal(Path(path) / JOURNAL)
        self.identity, self.config = read_identity(path), {}
        self.journal.reopen()
        files.sweep(self.path)
        return self

    def create(self) -> None:
        """Create the folder and the journal; of two runs that try at once, one is refused."""
        with writing(self.path):
            files.make_folder(self.path, 0o750 if self.is_shared else files.PRIVATE)
            files.share(self.path, self.is_shared)
            try:
                self.journal.create()
            except FileExistsError as error:
                raise self._taken() from error

    def _taken(self) -> LudusError:
        return LudusError(
            f"run_dir={self.path}: exists already; choose another folder, remove it, or go on with ludus resume"
        )

    def write_config(self, config: dict[str, Any]) -> None:
        """Save the resolved configuration; YAML knows numbers that are not finite."""
        self.config = strict(config, not_finite=float)
        self._replace(CONFIG, yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True))

    def write_identity(self, **changes: Any) -> None:
        """Save what the run is and how it stands; fields not named keep their value."""
        self.identity |= changes
        self._replace(IDENTITY, json.dumps(strict(self.identity), indent=2, allow_nan=False) + "\n")

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Append rows to the journal, unless the folder is gone."""
        self.check_place()
        self.journal.append(rows)

    def check_place(self) -> None:
        """Raise LudusError if the folder was moved or removed while it is written: no second one is begun there."""
        try:
            if not self.journal.is_moved():
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

    def close(self) -> None:
        """Write what waits, make the journal durable and close it; a later row opens it again."""
        self.journal.close()

    def _replace(self, name: str, text: str) -> None:
        self.check_place()
        with writing(self.path / name):
            files.write_whole(self.path / name, secrets.hidden(text).encode())


def read_config(run: str | Path) -> dict[str, Any]:
    """Read the configuration of a run folder."""
    config = read_settings(Path(run) / CONFIG)
    if not os.path.lexists(Path(run) / IDENTITY):  # without it, `files` does not know where the user's own links end
        raise LudusError(f"{run}: is not a run folder ({IDENTITY}: {os.strerror(errno.ENOENT)})")
    return config


def read_settings(path: Path) -> dict[str, Any]:
    """Read a configuration file, be it of a run or of a model that was made of one."""
    try:
        config = limits.yaml_of(files.read(path, MOST_BYTES).decode())
    except OSError as error:
        raise LudusError(f"{path.parent}: is not a run folder ({path.name}: {error.strerror or error})") from error
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LudusError(f"{path}: is not readable YAML ({limits.reason(error)})") from error
    if not isinstance(config, dict):
        raise LudusError(f"{path}: is not a configuration")
    return config


def flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration by their keys, those of its parts under `part.name`."""
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def read_identity(run: str | Path) -> dict[str, Any]:
    """Read what a run is and how it stands."""
    path = Path(run) / IDENTITY
    try:
        identity = limits.json_of(files.read(path, MOST_BYTES))
    except OSError as error:
        raise LudusError(f"{run}: is not a run folder ({path.name}: {error.strerror or error})") from error
    except ValueError as error:
        raise LudusError(f"{path}: is not readable JSON ({limits.reason(error)})") from error
    if not isinstance(identity, dict) or not isinstance(identity.get("id"), str):
        raise LudusError(f"{path}: says nothing of a run")
    if not isinstance(identity.get("resumed", []), list):
        raise LudusError(f"{path}: says nothing of how the run was resumed")
    return identity


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
