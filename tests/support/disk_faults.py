"""Lets the disk fail under a run that trains, at any file operation."""

import contextlib
import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resume_runs import iterations, trainer

import ludus
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runtime import files
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of

ERRORS = (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO)
CASE, ITERATIONS = "ppo jax", 8


@contextlib.contextmanager
def failing(number: int, first: int, count: int, only: str = "") -> Iterator[list[str]]:
    """Let `count` file operations fail from the `first` on, of those that name `only`; yield what was done."""
    done: list[str] = []

    def watch(what: str, path: Path) -> None:
        if only not in f"{what} {path}":
            return
        done.append(f"{what} {path.name}")
        if first <= len(done) - 1 < first + count:
            raise OSError(number, os.strerror(number), str(path))

    files.observe, before = watch, files.observe
    try:
        yield done
    finally:
        files.observe = before


class Said:
    """Keeps what a run says."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.lines: list[str] = []

    def __call__(self, text: str) -> None:
        """Keep it."""
        self.lines.append(text)


def train(run: Path, on_error: str, said: Said) -> None:
    """Train the small run that is disturbed, or go on with it."""
    if Checkpoints(run).latest() is None:
        shutil.rmtree(run, ignore_errors=True)
        options = CheckpointOptions(every_iterations=2, every_minutes=0, keep_last=2, keep_bytes=0, on_error=on_error)
        made, goal = trainer(CASE, run, checkpoint=options), iterations(CASE, ITERATIONS)
    else:
        made, goal = ludus.Trainer.resume(run, verbose=False), None
    made.final_episodes = 0
    made.record.console.say = said
    made.keeper.say = said
    try:
        made.train(total_steps=goal)
    finally:
        if made.record.folder is not None:
            with contextlib.suppress(ludus.LudusError):
                made.record.folder.close()


class Reference:
    """The run that is not disturbed, and the file operations it makes."""

    def __init__(self, scratch: Path):
        """Train it."""
        with failing(errno.EIO, 0, 0) as done:
            train(scratch / "straight", "stop", Said())
        self.events = done
        self.state, self.journal = state_of(scratch / "straight"), journal_of(scratch / "straight")

    def compare(self, run: Path) -> None:
        """Raise if a run did not come to the same."""
        assert differences(self.state, state_of(run)) == [], "the state differs"
        assert journal_of(run) == self.journal, "the journal differs"


def check_good(run: Path) -> None:
    """Whatever there is of checkpoints must be whole."""
    for step in Checkpoints(run).steps():
        Checkpoints(run).open(step).verify()


def fault(seed: int, reference: Reference, scratch: Path) -> dict[str, Any]:
    """Let the disk fail for a while, see what the run says, and go on when it works again."""
    chance, run = random.Random(seed), scratch / "run"
    shutil.rmtree(run, ignore_errors=True)
    number = ERRORS[seed % len(ERRORS)]
    on_error = chance.choice(["continue", "continue", "stop"])
    first, count = chance.randrange(len(reference.events)), chance.choice([1, 1, 3, 30, 10**6])
    row = {"number": seed, "kind": f"{errno.errorcode[number]} {on_error}", "at": reference.events[first], "for": count}
    said, ended, failure = Said(), "finished", None
    try:
        with failing(number, first, count) as done:
            try:
                train(run, on_error, said)
            except ludus.LudusError as error:
                ended = "one line"
                assert str(run) in str(error) and "\n" not in str(error), f"says {error}"
                assert os.strerror(number) in str(error), f"says {error}"
        check_good(run)
        complaints = [line for line in said.lines if os.strerror(number) in line]
        # Two threads write: on a busy machine another operation than the reference's may be the one that fails.
        row["at"] = done[first] if first < len(done) else "after the end"
        assert ended == "one line" or complaints or row["at"].startswith("after"), "said nothing"
        assert len(complaints) <= 4, complaints
        train(run, "stop", Said())
        reference.compare(run)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return {**row, "ended": ended, "failure": failure}
