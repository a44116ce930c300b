"""Trackers of the user's own: what they must have, and how the journal's rows reach them, each once.

A tracker may raise, hang or be down: training goes on, and what it has not taken is handed to it again. A cursor in
`RUN/trackers/NAME/` says which rows it has taken. A row that it had taken when the process was killed in the same
moment comes a second time, with the same `seq`; no other does. Rows that were taken back by a resume and came out
differently are not mixed with the new ones: the tracker is told of a new run, which gets all rows from the first on.
"""

import fcntl
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ludus.runs.folder import begun, is_training, read_config, read_identity
from ludus.runs.journal import JOURNAL, JournalReader, TakenBackError
from ludus.runs.limits import name_of
from ludus.runs.trackers.cursor import RUN, Batch, Cursor, CursorFiles, DivergedError, digest
from ludus.runs.trackers.threaded import ThreadedTracker
from ludus.runtime import files, secrets
from ludus.types import LudusError

TRACKERS = "trackers"
ROWS = 500
"""The most rows that a tracker gets at once."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds until one that has raised is tried again; each time twice as long."""


class OwnTracker(Protocol):
    """Shows a run somewhere else. All three are called on one thread, which is not the one that trains."""

    def begin(self, run: dict[str, Any]) -> int | None:
        """A run begins or goes on.

        `run` holds `id`, `name`, `folder`, `config`, `rows` (how many rows were taken before; 0 for a new run) and
        `continues` (the id of a run that this one takes the place of, or None). Who knows how many rows have arrived
        better than the cursor does may return that.
        """
        ...

    def log(self, rows: list[dict[str, Any]]) -> None:
        """Take rows of the journal, at least one; they count as taken when this returns."""
        ...

    def end(self, result: dict[str, Any]) -> None:
        """The run is over or interrupted: `result` is what run.json says."""
        ...


class OwnSender:
    """Hands the rows of one run to one tracker."""

    def __init__(self, run: Path, name: str, tracker: OwnTracker):
        """Begin with nothing read or told."""
        self.run, self.name, self.tracker = run, name, tracker
        self.files = CursorFiles(run, f"{TRACKERS}/{folder_of(name)}")
        self._lock: int | None = None
        self._cursor: Cursor | None = None
        self._sent: list[str] = []
        self._queue: list[dict[str, Any]] = []
        self._reader = JournalReader(run / JOURNAL)
        self._pause, self._next_try = FIRST_PAUSE, 0.0

    @property
    def taken(self) -> int:
        """The number of rows that the tracker has taken."""
        return len(self._sent)

    def advance(self) -> bool:
        """Hand over some of what is new; return whether there may be more. Raises what the tracker raises."""
        if time.monotonic() < self._next_try:
            return False
        try:
            is_more = self._send_some()
        except BaseException:
            self._next_try = time.monotonic() + self._pause
            self._pause = min(LONGEST_PAUSE, 2 * self._pause)
            raise
        self._pause = FIRST_PAUSE
        return is_more

    def finish(self) -> None:
        """Hand over the rest, and say how the run ended."""
        self._send_rest()
        identity = read_identity(self.run)
        if identity.get("status") == "finished" and self._reader.position.rows < self._reached:
            self._supersede()  # the journal, which is the truth, has fewer rows than were taken before
            self._send_rest()
        if not is_training(self.run):
            status = "killed" if identity.get("status") == "running" else identity.get("status")
            self.tracker.end({**identity, "status": status})

    def close(self) -> None:
        """Let another process do it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def explain(self, error: Exception) -> str:
        """Say in one line what went wrong."""
        raised = str(error) if isinstance(error, LudusError) else f"raised {type(error).__name__}: {error}"
        return secrets.hidden(f"tracker {self.name}: {' '.join(raised.split())}")

    @property
    def _reached(self) -> int:
        """Return how many rows the tracker has, those that were on their way when a process was killed among them."""
        pending = self._cursor.sending if self._cursor else Batch(0, [], [])
        return max(len(self._sent), pending.first + len(pending.digests))

    def _send_rest(self) -> None:
        self._next_try = 0.0
        while self.advance():
            pass

    def _send_some(self) -> bool:
        try:
            return self._send()
        except TakenBackError:
            self._read_again()
        except DivergedError:
            self._supersede()
        return True

    def _send(self) -> bool:
        if self._cursor is None:
            self._begin()
        while not self._queue:
            rows = self._reader.read_rows()
            if not rows:
                return False
            self._queue = [row for row in rows if self._is_new(row)]
        self._hand_over(self._queue[:ROWS])
        del self._queue[:ROWS]
        return True

    def _is_new(self, row: dict[str, Any]) -> bool:
        """Say whether a row was not taken yet; what was, or may have been, must say the same again."""
        assert self._cursor is not None
        number, pending = row["seq"], self._cursor.sending
        is_new = number >= len(self._sent)
        known, place = (pending.digests, number - pending.first) if is_new else (self._sent, number)
        if 0 <= place < len(known) and digest(row) != known[place]:
            raise DivergedError
        return is_new

    def _hand_over(self, rows: list[dict[str, Any]]) -> None:
        assert self._cursor is not None
        batch = Batch(len(self._sent), [digest(row) for row in rows], [])
        self._cursor = replace(self._cursor, sending=batch)
        self.files.save(self._cursor)
        if shown := [dict(row) for row in rows if "kind" in row]:  # a damaged row has its number alone
            self.tracker.log(shown)
        self.files.add(self._cursor, batch)
        self._sent += batch.digests

    def _begin(self) -> None:
        """Find out how far the tracker is, and tell it of the run."""
        identity = read_identity(self.run)
        if not RUN.fullmatch(identity["id"]):
            raise LudusError(f"{self.run}: its id is none")
        files.make_folder(self.files.folder)
        self._lock = self._lock or files.open_folder(self.files.folder)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LudusError("another thread or process is sending this run") from error
        files.sweep(self.files.folder)
        cursor = self.files.load()
        if cursor is None:
            files.remove(self.files.folder / f"{identity['id']}.sent")
            cursor = Cursor(self.name, "", identity["id"], round(1000 * begun(self.run, identity)))
        self._open(cursor)

    def _open(self, cursor: Cursor) -> None:
        self.files.save(cursor)
        sent = self.files.sent(cursor)
        told = self.tracker.begin(
            {
                "id": cursor.run,
                "name": name_of(self.run),
                "folder": str(self.run),
                "config": read_config(self.run),
                "rows": len(sent),
                "continues": cursor.continues,
            }
        )
        if isinstance(told, int) and not isinstance(told, bool) and told >= 0:
            sent = self.files.settle(cursor, told)
        self._cursor, self._sent = cursor, sent
        self._read_again()

    def _read_again(self) -> None:
        self._reader, self._queue = JournalReader(self.run / JOURNAL), []

    def _supersede(self) -> None:
        """Go on in another run: curves that differ must not cross."""
        assert self._cursor is not None
        self.tracker.end({**read_identity(self.run), "status": "superseded"})
        first, old = read_identity(self.run)["id"], self._cursor.run
        part = old.removeprefix(f"{first}-")
        number = int(part) + 1 if part.isdecimal() else 2
        cursor = Cursor(self.name, "", f"{first}-{number}", self._cursor.started, continues=old)
        files.remove(self.files.folder / f"{cursor.run}.sent")
        self._open(cursor)


def follow(name: str, tracker: OwnTracker, say: Callable[[str], None]) -> ThreadedTracker:
    """Return what keeps a tracker of the user's up to date while a run is being trained."""
    return ThreadedTracker(f"tracker {name}", say, lambda folder: OwnSender(folder.path, name, tracker))


def complete(run: Path, name: str, tracker: OwnTracker) -> int:
    """Bring a tracker up to date with a run that nobody trains; return how many rows it has."""
    sender = OwnSender(run, name, tracker)
    try:
        sender.finish()
    except Exception as error:  # whatever the user's own code raises
        raise LudusError(sender.explain(error)) from error
    finally:
        sender.close()
    return sender.taken


def check(name: str, tracker: Any) -> None:
    """Refuse what is no tracker."""
    for part in ("begin", "log", "end"):
        if not callable(getattr(tracker, part, None)):
            raise LudusError(f"tracking.own={name}: has no {part}; a tracker has begin(run), log(rows) and end(result)")


def folder_of(name: str) -> str:
    """Return the name of the folder where a tracker's cursor lies."""
    return re.sub(r"[^\w]+", "-", name, flags=re.ASCII).strip("-") or "own"
