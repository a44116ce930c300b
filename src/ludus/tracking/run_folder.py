"""A run is a folder: configuration, identity, journal, policies. Everything else is derived from it."""

import contextlib
import json
import os
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any, TextIO

import yaml

from ludus.types import LudusError

CONFIG, IDENTITY, JOURNAL = "config.yaml", "run.json", "metrics.jsonl"


class RunFolder:
    """Writes one run. Folders are private to the user (0700); files appear whole or not at all, the journal grows."""

    def __init__(self, path: str | Path):
        """Check the place and create nothing yet; a folder that holds something is refused, never overwritten."""
        self.path = Path(path)
        self._journal: TextIO | None = None
        self._sequence = 0
        self.identity: dict[str, Any] = {"id": uuid.uuid4().hex}
        with self._writing(self.path):
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise self._taken()
            ancestor = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
            if not ancestor.is_dir() or not os.access(ancestor, os.W_OK | os.X_OK):
                raise LudusError(
                    f"run_dir={self.path}: cannot be written ({ancestor} is not a folder one can write to)"
                )

    def create(self) -> None:
        """Create the folder and the journal; of two runs that try at once, one is refused."""
        with self._writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                (self.path / JOURNAL).open("x").close()
            except FileExistsError as error:
                raise self._taken() from error

    def _taken(self) -> LudusError:
        return LudusError(f"run_dir={self.path}: exists already; choose another folder or remove it")

    def write_config(self, config: dict[str, Any]) -> None:
        """Save the resolved configuration."""
        self._replace(CONFIG, yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True))

    def write_identity(self, **changes: Any) -> None:
        """Save what the run is and how it stands; fields not named keep their value."""
        self.identity |= changes
        self._replace(IDENTITY, json.dumps(self.identity, indent=2) + "\n")

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Append rows to the journal, each with its sequence number, in one write."""
        lines = []
        for row in rows:
            lines.append(json.dumps({"seq": self._sequence, **row}, allow_nan=False) + "\n")
            self._sequence += 1
        with self._writing(self.path / JOURNAL):
            self._journal = self._journal or (self.path / JOURNAL).open("a", encoding="utf-8")
            self._journal.write("".join(lines))
            self._journal.flush()

    def close(self) -> None:
        """Make the journal durable and close it; a later row opens it again."""
        if self._journal is None:
            return
        journal, self._journal = self._journal, None
        with self._writing(self.path / JOURNAL), journal:
            journal.flush()
            os.fsync(journal.fileno())

    def _replace(self, name: str, text: str) -> None:
        target, partial = self.path / name, self.path / f".{name}.partial"
        with self._writing(target):
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise LudusError(f"{path}: cannot be written ({error.strerror or error})") from error


def read_config(run: str | Path) -> dict[str, Any]:
    """Read the configuration of a run folder."""
    path = Path(run) / CONFIG
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LudusError(f"{run}: is not a run folder ({path.name}: {error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LudusError(f"{path}: is not readable YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(config, dict):
        raise LudusError(f"{path}: is not a configuration")
    return config


def read_journal(run: str | Path) -> list[dict[str, Any]]:
    """Read every complete row of a run's journal; a last line that a crash cut short is left out."""
    path = Path(run) / JOURNAL
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LudusError(f"{path}: cannot be read ({error.strerror})") from error
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _plain(value: Any) -> Any:
    """Return the value as what YAML knows: NumPy and JAX numbers become Python's, anything strange its text."""
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value if type(value).__module__ == "builtins" else value.item()
    return value.item() if getattr(value, "ndim", None) == 0 else str(value)
