"""The memory of copying a run, in the run folder: what has arrived, so that a restart sends only the rest.

A file that arrived and was verified is written down with the signs of the local one. Everything that a run folder holds
and that is not here is the queue.
"""

import json
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.runs.checkpoint.format import is_hash
from ludus.runs.limits import json_of
from ludus.runs.storage.contents import Stamp
from ludus.runs.storage.marker import MOST_FILES, OWN, RUN_ID, Content, Marker, is_path
from ludus.runtime import files

LEDGER = "sent.json"
MOST_BYTES = 1 << 27
PAUSE = 2.0
"""Seconds between two times that it is written; what is lost with it is sent a second time."""


@dataclass
class Ledger:
    """The memory of one copy."""

    url: str
    """The place."""
    folder: str
    """The run's folder there."""
    writer: str = field(default_factory=lambda: secrets.token_hex(16))
    """This folder's own name as the one that writes the copy."""
    taken: tuple[str, int] | None = None
    """Writer and number of the marker that this folder was restored from, whose copy it goes on with."""
    sent: dict[str, tuple[Content, Stamp]] = field(default_factory=dict)
    """Files that arrived."""
    unwanted: list[str] = field(default_factory=list)
    """Files there that no marker names any more, to be removed."""

    def forget(self, path: str) -> None:
        """Take note that a file there is no longer known to be good."""
        self.sent.pop(path, None)


class LedgerFile:
    """The ledger of a run folder, on disk."""

    def __init__(self, run: Path):
        """Read nothing yet."""
        self.path = run / OWN / LEDGER
        self._saved_at = 0.0

    def load(self) -> Ledger | None:
        """Return what was written down; None if there is nothing that can be used."""
        try:
            said = json_of(files.read(self.path, MOST_BYTES))
            return _ledger(said)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None  # everything is looked at again

    def save(self, ledger: Ledger, is_urgent: bool = True) -> None:
        """Write it down, whole; at most every few seconds unless it is urgent."""
        if not is_urgent and time.monotonic() - self._saved_at < PAUSE:
            return
        said = {**vars(ledger), "sent": {path: [list(part) for part in entry] for path, entry in ledger.sent.items()}}
        files.make_folder(self.path.parent)
        files.write_whole(self.path, json.dumps(said).encode())
        self._saved_at = time.monotonic()

    def restored(self, url: str, folder: str, marker: Marker) -> None:
        """Write down that a folder was made of a copy, whose files need not be sent again."""
        run = self.path.parent.parent
        sent = {}
        for path, content in marker.files.items():
            status = os.stat(run / path, follow_symlinks=False)
            sent[path] = content, Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
        self.save(Ledger(url, folder, taken=(marker.writer, marker.number), sent=sent))


def _is_removable(path: str) -> bool:
    """Tell whether a path is that of a file of the run there, or of one that the copying itself has put there."""
    return is_path(path) or (path.startswith(f"{OWN}/") and is_hash(path.removeprefix(f"{OWN}/")))


def _ledger(said: dict[str, Any]) -> Ledger:
    """Return a ledger that was written; it may come from a stranger, with the rest of a run folder."""
    url, folder, writer, taken, unwanted = (said[name] for name in ("url", "folder", "writer", "taken", "unwanted"))
    if not all(isinstance(text, str) for text in (url, folder, writer)) or not RUN_ID.fullmatch(writer):
        raise ValueError("url, folder or writer")
    if taken is not None:
        taken = str(taken[0]), int(taken[1])
    if (folder and not is_path(folder)) or not all(map(_is_removable, unwanted)) or len(said["sent"]) > MOST_FILES:
        raise ValueError("paths")
    sent = {path: (Content(*content), Stamp(*stamp)) for path, (content, stamp) in said["sent"].items()}
    if not all(_is_removable(path) and is_hash(content.sha256) for path, (content, _) in sent.items()):
        raise ValueError("sent")
    return Ledger(url, folder, writer, taken, sent, list(unwanted))
