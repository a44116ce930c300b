"""Sending a run to MLflow: beside training, in a process of its own (`python -m ludus.track RUN`), or afterwards.

The process lives as long as its standard input is open, which the training process holds; then it sends the rest, for
a bounded time, and ends. It speaks in lines of JSON: `say` and `news` are for the user, `wait` asks for some seconds.
"""

import contextlib
import fcntl
import json
import os
import select
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from ludus import files
from ludus.report.performance import write_summaries
from ludus.tracking.follower import TakenBackError
from ludus.tracking.mlflow.cursor import FOLDER
from ludus.tracking.mlflow.redaction import redacted
from ludus.tracking.mlflow.sender import Sender
from ludus.tracking.mlflow.store import StoreError
from ludus.tracking.run_folder import read_identity
from ludus.types import LudusError

POLL_SECONDS = 1.0
"""How often the journal is looked at."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds between attempts while MLflow does not answer; each is twice the one before."""
LONGEST_NAP = 2.0
"""The same when the run is over: somebody waits."""
LAST_SECONDS = 20.0
"""For so long nothing may have worked before a process whose run is over gives up."""
LONGEST_STEP_SECONDS = 300.0
"""What the training process is asked to wait for while policies are played."""
TRIES = 3
"""How often `ludus track` tries, if nothing works."""
NICENESS = 10
LOCK = "lock"

Tell = Callable[..., None]


class Follow:
    """Sends a run while it is being trained, through outages."""

    def __init__(self, sender: Sender, tell: Tell):
        """Nothing has been tried yet."""
        self.sender, self.tell = sender, tell
        self.trouble: StoreError | None = None
        self._pause, self._next_try = FIRST_PAUSE, 0.0
        self._is_announced = False

    def attempt(self) -> None:
        """Send what is new, unless it is too early to try again after a failure."""
        if (self.trouble and self.trouble.is_final) or time.monotonic() < self._next_try:
            return
        with contextlib.suppress(TakenBackError):  # the journal is being cut at this very moment
            try:
                while self.sender.send():
                    self._worked()
                self._worked()
            except StoreError as error:
                self._failed(error)

    def finish(self, seconds: float, tries: int = 1) -> None:
        """Send the rest and what the run came to; give up after so many seconds and tries of which none worked."""
        last_success, failures = time.monotonic(), 0
        while not (self.trouble and self.trouble.is_final):
            try:
                while self.sender.send():
                    last_success, failures = self._worked(), 0
                    self.tell(wait=0.0)
                self._results()
                return
            except StoreError as error:
                self._failed(error)
                failures += 1
            except TakenBackError:
                return  # somebody has gone on with the run
            if failures >= tries and time.monotonic() - last_success > seconds:
                return
            time.sleep(max(0.0, min(self._next_try - time.monotonic(), LONGEST_NAP)))

    def _results(self) -> None:
        """Send what the run came to, which can take a while."""
        sender = self.sender
        _summarise(sender.run)
        sender.send_results(lambda: self.tell(wait=LAST_SECONDS))
        if (news := _published(sender, lambda: self.tell(wait=LONGEST_STEP_SECONDS))) is not None:
            self.tell(news=news)
        sender.close()
        self._worked()

    def _worked(self) -> float:
        if self.trouble:
            self.tell(say=f"MLflow at {self.sender.store.name}: works again")
        if not self._is_announced:
            self._is_announced = True
            self.tell(say=f"MLflow: experiment {self.sender.experiment} at {self.sender.store.name}")
        self.trouble, self._pause = None, FIRST_PAUSE
        return time.monotonic()

    def _failed(self, error: StoreError) -> None:
        if self.trouble is None:
            self.tell(say=f"{error}; training goes on, and the journal has it all")
        self.trouble = error
        self._next_try = time.monotonic() + self._pause
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)


def follow(run: Path, lifeline: int, tell: Tell) -> None:
    """Send a run until nobody holds the lifeline any more, and then the rest."""
    with _only_one(run, lambda: _is_cut(lifeline, POLL_SECONDS)) as is_mine:
        if not is_mine:
            tell(say=f"MLflow: another process sends this run; ludus track {run} sends the rest later")
            return
        state = Follow(Sender(run), tell)
        while not _is_cut(lifeline, POLL_SECONDS):
            state.attempt()
        state.finish(LAST_SECONDS)
        if state.trouble:
            missing = f"{rows:,} rows have" if (rows := state.sender.missing()) else "files and results have"
            tell(say=f"MLflow: {missing} not arrived; ludus track {run} sends the rest later")


def track(run: Path) -> str:
    """Bring MLflow up to date with a run that is over; return what to tell the user. LudusError if it cannot be."""
    with _only_one(run, lambda: True) as is_mine:
        if not is_mine:
            raise LudusError(f"{run}: another process is sending it to MLflow; nothing needs to be done")
        told: list[dict[str, Any]] = []
        state = Follow(Sender(run), lambda **message: told.append(message))
        state.finish(0.0, TRIES)
        if state.trouble is not None:
            raise state.trouble
    sender = state.sender
    arrived = f"MLflow: all {sender.arrived:,} rows are in experiment {sender.experiment} at {sender.store.name}"
    return "\n".join([arrived, *(message["news"] for message in told if "news" in message)])


def _summarise(run: Path) -> None:
    """Write the summaries of a run that is over, for they go along; one that cannot be read has none."""
    if read_identity(run).get("status") in ("finished", "failed"):
        with contextlib.suppress(LudusError):
            write_summaries(run)


def _published(sender: Sender, progress: Callable[[], None]) -> str | None:
    """Make models of a finished run's policies; only then is JAX needed."""
    if sender.identity.get("status") != "finished":
        return None
    from ludus.publish import publish

    try:
        return publish(sender, progress)
    except StoreError:
        raise
    except LudusError as error:  # such as a network of the user's own, which is not here
        return f"MLflow: the policy is no model there ({error})"


@contextlib.contextmanager
def _only_one(run: Path, is_to_give_up: Callable[[], bool]) -> Generator[bool]:
    """Be the only process that sends a run; wait for another one until told to give up."""
    files.make_folder(run / FOLDER)
    lock = os.open(run / FOLDER / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if is_to_give_up():
                    yield False
                    return
        yield True
    finally:
        os.close(lock)


def _is_cut(lifeline: int, seconds: float) -> bool:
    """Wait so long; say whether the other end has been closed."""
    return bool(select.select([lifeline], [], [], seconds)[0]) and not os.read(lifeline, 1)


def main() -> int:
    """Follow the run that is named, quietly: what this process says is for the one that started it."""
    os.nice(NICENESS)
    os.umask(0o077)
    mouth, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)

    def tell(**message: object) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(mouth, json.dumps(message).encode() + b"\n")

    try:
        follow(Path(sys.argv[1]), 0, tell)
    except Exception as error:  # a trace would be read by nobody, and may hold secrets
        what = redacted(f"{type(error).__name__}: {error}")
        tell(say=f"MLflow: {what}; ludus track {sys.argv[1]} sends the rest later")
    return 0


if __name__ == "__main__":
    sys.exit(main())
