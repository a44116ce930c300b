"""The list of runs, kept up to date at little cost: files that have not changed are not read again.

Each run has a key, which is a hash of its place below the folder. Requests name runs by their keys alone, so that no
path comes from outside.
"""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ludus.report.live import process
from ludus.report.live.process import TrainingProcess
from ludus.runs.folder import CONFIG, IDENTITY
from ludus.runs.journal import JOURNAL
from ludus.runs.limits import reason
from ludus.runs.reader import Returns, Run, find_runs
from ludus.types import LudusError

SECONDS = 1.0
"""The least time between two refreshes of the list."""
READING_SECONDS = 0.3
"""The time for reading journals in each refresh."""
SPARKS = 40
"""Points of the small curve beside a run."""
KEY = re.compile("[0-9a-f]{16}")
ELSEWHERE = "running elsewhere"


class RunEntry:
    """One run of the list."""

    def __init__(self, path: Path, name: str, key: str):
        """Read nothing yet."""
        self.path, self.name, self.key = path, name, key
        self.version = 0
        """Grows whenever `row` changes."""
        self.row: dict[str, Any] = {}
        self.process: TrainingProcess | None = None
        """The process that trains the run, if one of this machine does."""
        self.returns = Returns(path / JOURNAL)
        self.is_behind = True
        """Whether there may be more to read in the journal."""
        self._stamp: tuple[Any, ...] = ()
        self._about: dict[str, Any] = {}
        self._journal_problem: dict[str, Any] = {}
        """The part of the row for a journal that cannot be read."""

    def refresh(self, locks: dict[int, list[int]], host: str) -> None:
        """Find the process, and read the files of the run that have changed."""
        self.process = process.find_training_process(self.path / JOURNAL, locks)
        now = tuple(stamp(self.path / name) for name in (CONFIG, IDENTITY, JOURNAL))
        if now[:2] != self._stamp[:2]:
            self._about = _about(self.path)
        if now[2:] != self._stamp[2:]:
            try:
                self._journal_problem = {}
                self.returns.look()
                self.is_behind = True
            except LudusError as error:
                self.returns = Returns(self.path / JOURNAL)
                if not isinstance(error.__cause__, FileNotFoundError):  # there is none yet, or it is being made anew
                    self._journal_problem = {"status": "damaged", "problem": str(error)}
        self._stamp = now
        self._update_row(host)

    def mark_damaged(self, error: Exception) -> None:
        """Say in the row why the run cannot be shown."""
        problem = f"{self.path}: cannot be shown ({type(error).__name__}: {reason(error)})"
        row = {"id": self.key, "name": self.name, "status": "damaged", "problem": problem}
        self._stamp = ()
        if row != self.row:
            self.row, self.version = row, self.version + 1

    def _update_row(self, host: str) -> None:
        about = {name: value for name, value in (self._about | self._journal_problem).items() if name != "host"}
        status = about.get("status")
        if self.process is not None and status != "damaged":
            status = "running"
        elif status == "running":
            known = self._about.get("host")
            status = ELSEWHERE if known and known != host else "killed"
        written = self._stamp[2][0] / 1e9 if self._stamp[2] else None
        row = {"id": self.key, "name": self.name, **about, **_facts(self.returns), "status": status}
        row |= {"written": written, "stoppable": self.process is not None}
        if row != self.row:
            self.row, self.version = row, self.version + 1

    def read_journal(self, host: str, deadline: float) -> None:
        """Read on in the journal until a deadline."""
        try:
            while is_behind := self.returns.read():
                if time.monotonic() >= deadline:
                    break
            self.is_behind = is_behind
        except LudusError:
            self.is_behind = False
        self._update_row(host)


class RunIndex:
    """Every run at or below a folder. Its methods may be called from any thread."""

    def __init__(self, folder: Path):
        """Read nothing before `refresh`."""
        self.folder = folder
        self.runs: dict[str, RunEntry] = {}
        self._lock = threading.Lock()
        self._refreshed = -np.inf
        self._host = os.uname().nodename
        self._asked_to_stop: set[TrainingProcess] = set()

    def refresh(self) -> None:
        """Look for runs and for changes in them, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() - self._refreshed < SECONDS / 2:
                return
            started = time.monotonic()
            self.runs = {key: self.runs.get(key) or RunEntry(path, name, key) for key, name, path in self._find()}
            locks = process.exclusive_locks()
            for run in self.runs.values():
                self._guarded(run, lambda run=run: run.refresh(locks, self._host))
            is_first = self._refreshed == -np.inf  # then the list is shown before its best returns are known
            deadline = time.monotonic() + (0.0 if is_first else READING_SECONDS)
            for run in self.runs.values():
                if run.is_behind and time.monotonic() < deadline:
                    self._guarded(run, lambda run=run: run.read_journal(self._host, deadline))
            took = time.monotonic() - started - READING_SECONDS
            self._refreshed = time.monotonic() + min(max(9 * took, 0.0), 10.0)  # a tenth of the time, at most
            if is_first:
                self._refreshed -= SECONDS

    @staticmethod
    def _guarded(run: RunEntry, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever is wrong with a run, the others must be shown
            run.mark_damaged(error)

    def _find(self) -> list[tuple[str, str, Path]]:
        try:
            root = self.folder.resolve(strict=True)
            found = find_runs(self.folder)
        except (OSError, LudusError):  # a folder of the network may come and go
            return []
        inside = [path for path in found if path.resolve().is_relative_to(root)]  # a link may lead anywhere
        names = [path.relative_to(self.folder).as_posix() if path != self.folder else path.name for path in inside]
        return [(_key(name), name, path) for name, path in zip(names, inside, strict=True)]

    def stop(self, key: str) -> str:
        """Ask the process of a run to save and exit, and return the answer for the page; LudusError if it cannot."""
        run = self.runs.get(key)
        if run is None:
            raise LudusError("there is no such run")
        found = process.find_training_process(run.path / JOURNAL, process.exclusive_locks())
        if found is None:
            raise LudusError("no process of this machine trains here")
        with self._lock:
            if found in self._asked_to_stop:  # a second signal would end it at once, saved or not
                return "it was asked already and saves at the end of its iteration"
            process.request_stop(run.path / JOURNAL, found)
            self._asked_to_stop.add(found)
        return "it saves at the end of its iteration and leaves"

    def is_asked_to_stop(self, run: RunEntry) -> bool:
        """Return whether the process of a run was asked to stop."""
        return run.process in self._asked_to_stop


def _facts(returns: Returns) -> dict[str, Any]:
    """Return what the list says of a journal."""
    best, of = returns.best or (None, None)
    drawn = returns.trained or returns.evaluated
    parts = np.array_split(np.array(drawn[-1_000_000:]), min(SPARKS, len(drawn))) if drawn else []
    return {
        "steps": returns.steps or 0,
        "best": best if returns.was_whole else None,
        "best_of": of,
        "latest": drawn[-1] if drawn else None,
        "spark": [float(f"{part.mean():.4g}") for part in parts],
    }


def _about(path: Path) -> dict[str, Any]:
    try:
        run = Run(path)
    except LudusError as error:
        return {"status": "damaged", "problem": str(error)}
    identity = run.identity
    return {
        "environment": run.environment,
        "algorithm": run.algorithm,
        "seed": run.seed if isinstance(run.seed, int | str) else None,
        "status": str(identity.get("status", "unknown")),
        "host": identity.get("host"),
    }


def _key(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what tells whether a file was written since: time, size and inode; None if it is not there."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
