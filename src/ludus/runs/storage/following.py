"""Copies a run to its storage: beside training in a process of its own, or afterwards (`ludus push`).

`python -m ludus.runs.storage.following RUN` is the process; `runs/trackers/child.py` says how it lives and speaks. Its
options come in a variable of the environment: a file with a key is named there and nowhere in the run.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from ludus.runs.storage.base import MissingError, Pace, StorageError
from ludus.runs.storage.copier import Copier
from ludus.runs.storage.marker import OWN, SLOTS
from ludus.runs.storage.options import StorageOptions
from ludus.runs.storage.places import joined, opened
from ludus.runs.trackers.child import LAST_SECONDS, LONGEST_NAP, Lifeline, Tell, live, only_one
from ludus.runs.trackers.outages import Outages
from ludus.types import LudusError

VARIABLE = "LUDUS_STORAGE"
POLL_SECONDS = 1.0
"""How often it is looked for a new checkpoint."""
PATIENCE = 20.0
"""What the training process is asked to wait for while a piece is sent."""
TRIES = 5
"""How often `ludus push` tries, if nothing works."""


class Attempts:
    """Brings a copy up to date, again and again, through outages."""

    def __init__(self, copier: Copier, say: Callable[[str], None]):
        """Begin with nothing tried."""
        self.copier = copier
        self.outages: Outages[StorageError] = Outages(
            say,
            lambda: f"storage: the run is copied to {copier.place}",
            lambda: f"storage: {copier.place} works again",
        )

    def attempt(self) -> bool:
        """Try once; return whether the copy is up to date."""
        try:
            while self.copier.advance():
                self.outages.worked()
            self.outages.worked()
        except StorageError as error:
            self._failed(error)
        except LudusError as error:  # a marker that is damaged
            self._failed(StorageError(str(error)))
        except OSError as error:  # the run folder itself
            self._failed(StorageError(f"{self.copier.run}: {error.strerror or error}"))
        return self.outages.trouble is None

    def _failed(self, error: StorageError) -> None:
        self.outages.failed(error, f"storage: {error}; training goes on, the run folder has it all", error.wait)


def follow(run: Path, file: int, tell: Tell) -> None:
    """Copy a run until nobody holds the other end of this file any more, and then the rest."""
    options = StorageOptions(**json.loads(os.environ.pop(VARIABLE)))
    assert options.url is not None
    copier = Copier(run, opened(options.url, options.key_file), options.url, options.keep_last)
    copier.pace = Pace(options.bandwidth, lambda size: tell(wait=PATIENCE))

    def last_words() -> str:
        return f"storage: {copier.missing():,} files have not arrived; ludus push {run} sends the rest"

    def answers(seconds: float) -> bool:
        try:
            copier.store.told(joined(copier.ledger.folder, SLOTS[0]))
        except MissingError:
            return True
        except StorageError:
            return False
        return True

    lifeline = Lifeline(file, tell, last_words, answers)
    with only_one(run / OWN, lambda: lifeline.is_cut.wait(POLL_SECONDS)) as is_mine:
        if not is_mine:
            if lifeline.last_word():
                tell(say=f"storage: another process copies this run; ludus push {run} sends the rest")
            return
        attempts = Attempts(copier, lambda text: tell(say=text))
        _accompany(attempts, options.every_seconds, lambda: lifeline.is_cut.wait(POLL_SECONDS))
        finish(attempts, LAST_SECONDS)
        if lifeline.last_word() and attempts.outages.trouble:
            tell(say=last_words())


def _accompany(attempts: Attempts, every_seconds: float, is_over: Callable[[], bool]) -> None:
    """Copy now and then: after so many seconds, and as soon as there is another checkpoint."""
    copied, checkpoint = 0.0, None
    while not is_over():
        now = time.monotonic()
        latest = attempts.copier.contents.latest()
        is_due = now - copied >= every_seconds or latest != checkpoint
        if attempts.outages.is_hopeless or now < attempts.outages.next_try or not is_due:
            continue
        if attempts.attempt():
            copied, checkpoint = time.monotonic(), latest


def finish(attempts: Attempts, seconds: float, tries: int = 1) -> None:
    """Send the rest; give up after so many seconds and tries of which none worked."""
    began, failures = time.monotonic(), 0
    while not attempts.outages.is_hopeless and not attempts.attempt():
        failures += 1
        if failures >= tries and time.monotonic() - began > seconds - LONGEST_NAP:
            return
        nap = attempts.outages.next_try - time.monotonic()
        time.sleep(max(0.0, nap if tries > 1 else min(nap, LONGEST_NAP)))


def push(run: Path, options: StorageOptions, is_to_take_over: bool = False) -> str:
    """Bring the copy of a run up to date; return what to tell the user. LudusError if it cannot be."""
    assert options.url is not None
    with only_one(run / OWN, lambda: True) as is_mine:
        if not is_mine:
            raise LudusError(f"{run}: another process is copying it; nothing needs to be done")
        store, pace = opened(options.url, options.key_file), Pace(options.bandwidth)
        copier = Copier(run, store, options.url, options.keep_last, pace)
        copier.is_to_take_over = is_to_take_over
        attempts = Attempts(copier, lambda text: None)
        with closing(store):
            finish(attempts, 0.0, TRIES)
        if attempts.outages.trouble is not None:
            missing = f" ({copier.missing():,} files have not arrived)" if not attempts.outages.is_hopeless else ""
            raise LudusError(f"{attempts.outages.trouble}{missing}")
    count = len(copier.marker.files) if copier.marker is not None else 0
    return f"all {count:,} files of the run are at {copier.place}, each compared by its hash"


def variables(options: StorageOptions) -> dict[str, str]:
    """Return what the process is told in its environment."""
    return {VARIABLE: json.dumps(asdict(options))}


def main() -> NoReturn:
    """Follow the run that is named."""
    live("storage", "ludus push", follow)


if __name__ == "__main__":
    main()
