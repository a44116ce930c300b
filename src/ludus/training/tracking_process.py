"""Sends a run to MLflow: beside training in a process of its own, or afterwards (`ludus track`).

`python -m ludus.training.tracking_process RUN` is the process; `runs/trackers/child.py` says how it lives and speaks.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ludus.runs.folder import read_identity
from ludus.runs.journal import TakenBackError
from ludus.runs.trackers.child import LAST_SECONDS, LONGEST_NAP, Lifeline, Tell, live, only_one
from ludus.runs.trackers.cursor import MLFLOW
from ludus.runs.trackers.mlflow.reach import answers
from ludus.runs.trackers.mlflow.sender import Sender
from ludus.runs.trackers.mlflow.store import StoreError
from ludus.runs.trackers.outages import Outages
from ludus.types import LudusError

POLL_SECONDS = 1.0
"""How often the journal is looked at."""
LONGEST_UPLOAD_SECONDS = 20.0
"""What the training process is asked to wait for while a file is sent."""
LONGEST_STEP_SECONDS = 300.0
"""What the training process is asked to wait for while policies are played."""
TRIES = 3
"""How often `ludus track` tries, if nothing works."""


class Follow:
    """Sends a run while it is being trained, through outages."""

    def __init__(self, sender: Sender, tell: Tell):
        """Begin with nothing tried."""
        self.sender, self.tell = sender, tell
        self.outages: Outages[StoreError] = Outages(
            lambda text: tell(say=text),
            lambda: f"MLflow: experiment {sender.experiment} at {sender.store.name}",
            lambda: f"MLflow at {sender.store.name}: works again",
        )

    def attempt(self) -> None:
        """Send what is new, unless it is too early to try again after a failure."""
        if self.outages.is_hopeless or time.monotonic() < self.outages.next_try:
            return
        with contextlib.suppress(TakenBackError):  # the journal is being cut at this very moment
            try:
                while self.sender.send():
                    self.outages.worked()
                self.outages.worked()
            except StoreError as error:
                self._failed(error)

    def finish(self, seconds: float, tries: int = 1) -> None:
        """Send the rest and what the run came to; give up after so many seconds and tries of which none worked."""
        last_success, failures = time.monotonic(), 0
        while not self.outages.is_hopeless:
            try:
                while self.sender.send():
                    self.outages.worked()
                    last_success, failures = time.monotonic(), 0
                    self.tell(wait=0.0)
                self._results()
                return
            except StoreError as error:
                self._failed(error)
                failures += 1
            except TakenBackError:
                return  # somebody has gone on with the run
            if failures >= tries and time.monotonic() - last_success > seconds - LONGEST_NAP:
                return
            time.sleep(max(0.0, min(self.outages.next_try - time.monotonic(), LONGEST_NAP)))

    def _results(self) -> None:
        """Send what the run came to, which can take a while."""
        sender = self.sender
        if read_identity(sender.run).get("status") in ("finished", "failed"):
            self.tell(wait=LONGEST_UPLOAD_SECONDS)
            _draw(sender.run)
        sender.send_results(lambda: self.tell(wait=LONGEST_UPLOAD_SECONDS))
        if (news := _published(sender, lambda: self.tell(wait=LONGEST_STEP_SECONDS))) is not None:
            self.tell(news=news)
        sender.close()
        self.outages.worked()

    def _failed(self, error: StoreError) -> None:
        self.outages.failed(error, f"{error}; training goes on, and the journal has it all")


def follow(run: Path, file: int, tell: Tell) -> None:
    """Send a run until nobody holds the other end of this file any more, and then the rest."""
    sender = Sender(run)

    def last_words() -> str:
        missing = f"{rows:,} rows have" if (rows := sender.missing()) else "files and results have"
        return f"MLflow: {missing} not arrived; ludus track {run} sends the rest"

    lifeline = Lifeline(file, tell, last_words, answers)
    with only_one(run / MLFLOW, lambda: lifeline.is_cut.wait(POLL_SECONDS)) as is_mine:
        if not is_mine:
            if lifeline.last_word():
                tell(say=f"MLflow: another process sends this run; ludus track {run} sends the rest")
            return
        state = Follow(sender, tell)
        while not lifeline.is_cut.wait(POLL_SECONDS):
            state.attempt()
        state.finish(LAST_SECONDS)
        if lifeline.last_word() and state.outages.trouble:
            tell(say=last_words())


def track(run: Path) -> str:
    """Bring MLflow up to date with a run that is over; return what to tell the user. LudusError if it cannot be."""
    with only_one(run / MLFLOW, lambda: True) as is_mine:
        if not is_mine:
            raise LudusError(f"{run}: another process is sending it to MLflow; nothing needs to be done")
        told: list[dict[str, Any]] = []
        state = Follow(Sender(run), lambda **message: told.append(message))
        try:
            state.finish(0.0, TRIES)
        except OSError as error:
            raise LudusError(f"{run / MLFLOW}: cannot be used ({error.strerror or error})") from error
        if state.outages.trouble is not None:
            raise state.outages.trouble
    sender = state.sender
    arrived = f"MLflow: all {sender.arrived:,} rows are in experiment {sender.experiment} at {sender.store.name}"
    if sender.damaged:
        arrived += f"; {sender.damaged:,} of them are damaged and have no figures there"
    return "\n".join([arrived, *(message["news"] for message in told if "news" in message)])


def _draw(run: Path) -> None:
    """Write the summaries, the page and the pictures of a run that is over, for they go along.

    One that cannot be read has none. No browser is needed: MLflow brings Matplotlib.
    """
    from ludus.report.html import matplotlib_images
    from ludus.report.html.make import make_report

    with contextlib.suppress(LudusError):
        make_report([run]).write_images(matplotlib_images.draw)


def _published(sender: Sender, progress: Callable[[], None]) -> str | None:
    """Make models of a finished run's policies; only then is JAX needed."""
    if sender.identity.get("status") != "finished":
        return None
    from ludus.training.publish import publish

    try:
        return publish(sender, progress)
    except StoreError:
        raise
    except LudusError as error:  # such as a network of the user's own, which is not here
        return f"MLflow: the policy is no model there ({error})"


def main() -> NoReturn:
    """Follow the run that is named."""
    live("MLflow", "ludus track", follow)


if __name__ == "__main__":
    main()
