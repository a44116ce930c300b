"""The list of runs, kept up to date at little cost: what has not changed is not read again.

A run is known by a number made from its place below the folder. Requests name runs by these numbers alone, so that no
path ever comes from outside.
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

from ludus.report.journal import Growing
from ludus.report.run import EVALUATED, RETURNED, STEPPED, TAIL, Run, find_runs, finite_numbers
from ludus.tracking.reading import open_journal, reason
from ludus.tracking.run_folder import CONFIG, IDENTITY, JOURNAL
from ludus.types import LudusError
from ludus.watch import process
from ludus.watch.process import Holder

SECONDS = 1.0
"""The list is looked at so often, at most."""
READING_SECONDS = 0.3
"""Journals that are not read to their end yet are read for so long each time."""
SPARKS = 40
"""Points of the small curve beside a run."""
KEY = re.compile("[0-9a-f]{16}")
"""What the number of a run looks like."""
ELSEWHERE = "running elsewhere"


class Returns:
    """Steps and returns of a journal, from its text alone, as far as it was read."""

    def __init__(self, path: Path):
        """Read nothing yet."""
        self.path, self._growing = path, Growing(path)
        self.steps = 0
        self.is_behind, self.was_whole = True, False
        """Whether there may be more to read, and whether all that there was then has once been read."""
        self._evaluated: list[float] = []
        self._trained: list[float] = []

    def look(self) -> None:
        """Find the latest number of steps near the end of the journal."""
        file = open_journal(self.path)
        try:
            found = STEPPED.findall(os.pread(file, TAIL, max(0, os.fstat(file).st_size - TAIL)))
        finally:
            os.close(file)
        self.steps = int(found[-1]) if found else self.steps

    def read(self) -> bool:
        """Read a block more; return whether there may be another one."""
        piece = self._growing.read()
        if piece.is_anew:
            self._evaluated, self._trained, self.was_whole = [], [], False
        self._evaluated += finite_numbers(EVALUATED.findall(piece.text))
        self._trained += finite_numbers(RETURNED.findall(piece.text))
        self.is_behind = not piece.is_last
        self.was_whole |= piece.is_last
        return not piece.is_last

    def facts(self) -> dict[str, Any]:
        """Return what the list says of them."""
        made = self._evaluated or self._trained
        of = "evaluation" if self._evaluated else "training" if self._trained else None
        drawn = self._trained or self._evaluated
        parts = np.array_split(np.array(drawn[-1_000_000:]), min(SPARKS, len(drawn))) if drawn else []
        return {
            "steps": self.steps,
            "best": max(made) if made and self.was_whole else None,
            "best_of": of,
            "latest": drawn[-1] if drawn else None,
            "spark": [float(f"{part.mean():.4g}") for part in parts],
        }


class Watched:
    """One run of the list."""

    def __init__(self, path: Path, name: str, key: str):
        """Read nothing yet."""
        self.path, self.name, self.key = path, name, key
        self.version = 0
        """Grows whenever `row` changes."""
        self.row: dict[str, Any] = {}
        self.holder: Holder | None = None
        self.returns = Returns(path / JOURNAL)
        self._stamp: tuple[Any, ...] = ()
        self._about: dict[str, Any] = {}
        self._unread: dict[str, Any] = {}
        """What to say of a journal that cannot be read."""

    def look(self, held: dict[int, list[int]], host: str) -> None:
        """Read what has changed of what the run is and how it stands."""
        self.holder = process.holder_of(self.path / JOURNAL, held)
        stamp = tuple(_stamp(self.path / name) for name in (CONFIG, IDENTITY, JOURNAL))
        if stamp[:2] != self._stamp[:2]:
            self._about = _about(self.path)
        if stamp[2:] != self._stamp[2:]:
            try:
                self._unread = {}
                self.returns.look()
                self.returns.is_behind = True
            except OSError as error:
                self.returns = Returns(self.path / JOURNAL)
                if not isinstance(error, FileNotFoundError):  # there is none yet, or it is being made anew
                    problem = f"{self.path / JOURNAL}: cannot be read ({reason(error)})"
                    self._unread = {"status": "damaged", "problem": problem}
        self._stamp = stamp
        self._show(host)

    def give_up(self, error: Exception) -> None:
        """Show that the run cannot be shown."""
        problem = f"{self.path}: cannot be shown ({type(error).__name__}: {reason(error)})"
        row = {"id": self.key, "name": self.name, "status": "damaged", "problem": problem}
        self._stamp = ()
        if row != self.row:
            self.row, self.version = row, self.version + 1

    def _show(self, host: str) -> None:
        about = {name: value for name, value in (self._about | self._unread).items() if name != "host"}
        status = about.get("status")
        if self.holder is not None and status != "damaged":
            status = "running"
        elif status == "running":
            known = self._about.get("host")
            status = ELSEWHERE if known and known != host else "killed"
        written = self._stamp[2][0] / 1e9 if self._stamp[2] else None
        row = {"id": self.key, "name": self.name, **about, **self.returns.facts(), "status": status}
        row |= {"written": written, "stoppable": self.holder is not None}
        if row != self.row:
            self.row, self.version = row, self.version + 1

    def read(self, host: str, deadline: float) -> None:
        """Read on in the journal until then."""
        try:
            while self.returns.read() and time.monotonic() < deadline:
                pass
        except OSError:
            self.returns.is_behind = False
        self._show(host)


class Shelf:
    """Every run at or below a folder. Its methods may be called from any thread."""

    def __init__(self, folder: Path):
        """Look at nothing yet."""
        self.folder = folder
        self.runs: dict[str, Watched] = {}
        self._lock = threading.Lock()
        self._looked = -np.inf
        self._host = os.uname().nodename
        self._asked: set[Holder] = set()

    def refresh(self) -> None:
        """Look for runs and for what has changed, unless that was done just now."""
        with self._lock:
            if time.monotonic() - self._looked < SECONDS / 2:
                return
            started = time.monotonic()
            self.runs = {key: self.runs.get(key) or Watched(path, name, key) for key, name, path in self._find()}
            held = process.locks()
            for run in self.runs.values():
                self._do(run, lambda run=run: run.look(held, self._host))
            is_first = self._looked == -np.inf  # then the list comes before its best returns
            deadline = time.monotonic() + (0.0 if is_first else READING_SECONDS)
            for run in self.runs.values():
                if run.returns.is_behind and time.monotonic() < deadline:
                    self._do(run, lambda run=run: run.read(self._host, deadline))
            took = time.monotonic() - started - READING_SECONDS
            self._looked = time.monotonic() + min(max(9 * took, 0.0), 10.0)
            if is_first:
                self._looked -= SECONDS

    @staticmethod
    def _do(run: Watched, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever is wrong with a run, the others are shown all the same
            run.give_up(error)

    def _find(self) -> list[tuple[str, str, Path]]:
        try:
            root = self.folder.resolve(strict=True)
            found = find_runs(self.folder)
        except (OSError, LudusError):  # a folder that comes and goes with its network
            return []
        inside = [path for path in found if path.resolve().is_relative_to(root)]  # a link may lead anywhere
        names = [path.relative_to(self.folder).as_posix() if path != self.folder else path.name for path in inside]
        return [(_key(name), name, path) for name, path in zip(names, inside, strict=True)]

    def stop(self, key: str) -> str:
        """Ask the process of a run to save and leave; return what came of it. LudusError if that cannot be."""
        run = self.runs.get(key)
        if run is None:
            raise LudusError("there is no such run")
        holder = process.holder_of(run.path / JOURNAL, process.locks())
        if holder is None:
            raise LudusError("no process of this machine trains here")
        with self._lock:
            if holder in self._asked:  # a second signal would end it at once, saved or not
                return "it was asked already and saves at the end of its iteration"
            process.stop(run.path / JOURNAL, holder)
            self._asked.add(holder)
        return "it saves at the end of its iteration and leaves"

    def is_asked(self, holder: Holder | None) -> bool:
        """Tell whether a process was asked to stop."""
        return holder in self._asked


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


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
