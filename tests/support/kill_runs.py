"""Kills training at random moments and resumes it until it is done. Run as a script by the tests.

One process imports everything, starts no thread and touches no device; each attempt to train is a fork of it.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resume_runs import iterations, trainer
from safetensors.numpy import load_file

import ludus
from ludus.runs.checkpoint import format
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.journal import JOURNAL
from ludus.runtime import files
from ludus.training import state_arrays
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of

CASES = ("ppo jax", "sac jax", "ppo gym", "ppo gym workers")
ITERATIONS = 9
OPTIONS = CheckpointOptions(every_iterations=1, every_minutes=0, keep_last=2, keep_bytes=0, on_error="stop")
MARK = "LUDUS_TRIAL"
"""A variable of the environment by which every process of an attempt is found."""


def quicken() -> None:
    """Let this process, which does nothing else, write small replays in many pieces and not wait for the disk."""
    format.BLOCK_BYTES = state_arrays.BLOCK_BYTES = 512
    state_arrays.LONG_BYTES = 1024
    os.fsync = lambda _: None  # a process that dies takes nothing with it


def train(case: str, run: Path) -> None:
    """Begin a run, or go on with it."""
    if Checkpoints(run).latest() is None:
        shutil.rmtree(run, ignore_errors=True)
        made = trainer(case, run, checkpoint=OPTIONS)
        goal = iterations(case, ITERATIONS)
    else:
        made, goal = ludus.Trainer.resume(run, verbose=False), None
        made.final_episodes = 0
    with contextlib.closing(made.env):
        made.train(total_steps=goal)


def attempt(job: Callable[[], None], log: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """Run a job in a forked process; return its wait status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ[MARK] = str(log)
            for stream in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
            prepare()
            job()
            code = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def orphans(log: Path) -> list[int]:
    """Return the processes that an attempt has started and that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={log}".encode() in path.read_bytes().split(b"\0"):
                state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(path.parent.name)] if state not in "ZX" else []
    return found


def die_at_event(number: int, note: Path) -> None:
    """Let this process kill itself at its n-th file operation, and write down which it was."""
    left = iter(range(number, -1, -1))

    def watch(what: str, path: Path) -> None:
        if next(left, -1) == 0:
            note.write_text(f"{what} {path}")
            os.kill(os.getpid(), signal.SIGKILL)

    files.observe = watch


def die_after(seconds: float, note: Path, from_the_start: bool) -> None:
    """Let this process kill itself after a while, counted from now or from the first row of its journal."""
    latest = ["start"]

    def wait() -> None:
        time.sleep(seconds)
        note.write_text(f"time {latest[0]}")
        os.kill(os.getpid(), signal.SIGKILL)

    thread = threading.Thread(target=wait, daemon=True)

    def watch(what: str, path: Path) -> None:
        latest[0] = f"{what} {path}"
        if not from_the_start and path.name == JOURNAL and not thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has been started by now
                thread.start()

    files.observe = watch
    if from_the_start:
        thread.start()


def place(note: str) -> str:
    """Return what a process was at when it died: writing a checkpoint, the journal, or elsewhere."""
    if note.startswith("time"):
        is_writing = note.startswith("time before") and "/checkpoints" in note
        return "any time, writing a checkpoint" if is_writing else "any time"
    return "checkpoint" if "/checkpoints" in note else "journal" if JOURNAL in note else "run folder"


class Reference:
    """A run that nobody has disturbed: what it ends with, how many file operations it makes, how long it takes."""

    def __init__(self, case: str, scratch: Path):
        """Train it."""
        self.run = scratch / f"straight {case}"
        log, facts = scratch / f"{case}.log", scratch / f"{case}.json"

        def job() -> None:
            events: list[tuple[str, float]] = []
            files.observe = lambda _, path: events.append((path.name, time.perf_counter()))
            began = time.perf_counter()
            train(case, self.run)
            first = next(when for name, when in events if name == JOURNAL)
            facts.write_text(json.dumps([len(events), first - began, time.perf_counter() - first]))

        assert attempt(job, log) == 0, log.read_text()
        self.events, self.startup, self.seconds = json.loads(facts.read_text())
        self.state, self.journal = state_of(self.run), journal_of(self.run)

    def compare(self, run: Path) -> str | None:
        """Return in what a run differs from this one."""
        if unlike := differences(self.state, state_of(run)):
            return f"state: {unlike[0]}"
        if journal_of(run) != self.journal:
            return "journal"
        if Checkpoints(run).steps() != Checkpoints(self.run).steps():
            return f"checkpoints: {Checkpoints(run).steps()}"
        policies = [sorted(p.name for p in (folder / "policies").iterdir()) for folder in (run, self.run)]
        if policies[0] != policies[1]:
            return f"policies: {policies[0]}"
        for name in policies[0]:
            if differences(*(load_file(folder / "policies" / name) for folder in (run, self.run))):
                return f"policies/{name}"
        hidden = [path.name for path in run.rglob(".*")]
        return f"left behind: {hidden}" if hidden else None


def arm(chance: random.Random, reference: Reference, note: Path, most: float) -> Callable[[], None]:
    """Return what a process calls to die at a random moment: at a file operation, or at any time."""
    kind, share = chance.choice(["event", "event", "time", "startup"]), chance.random() * most
    if kind == "event":
        return lambda: die_at_event(int(share * reference.events), note)
    if kind == "time":
        return lambda: die_after(share * reference.seconds, note, from_the_start=False)
    return lambda: die_after(share * (reference.startup + reference.seconds), note, from_the_start=True)


def undisturbed(seconds: float, log: Path) -> bool:
    """Wait until no process of an attempt is left; False if some stay."""
    deadline = time.monotonic() + seconds
    while orphans(log):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def chain(seed: int, reference: Reference, case: str, scratch: Path, depth: int) -> list[dict[str, Any]]:
    """Kill a run `depth` times, each time in the resume after the last kill, let it finish and compare."""
    chance, run = random.Random(seed), scratch / "run"
    shutil.rmtree(run, ignore_errors=True)
    rows: list[dict[str, Any]] = []
    failure = None
    for number in range(depth + 1):
        log, note = scratch / f"{seed}.{number}.log", scratch / "note"
        note.unlink(missing_ok=True)
        prepare = arm(chance, reference, note, 0.6 if number else 1.0) if number < depth else lambda: None
        began = Checkpoints(run).latest()
        status = attempt(lambda: train(case, run), log, prepare)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        told = note.read_text() if note.exists() else ""
        rows += [
            {"case": case, "chain": seed, "depth": number, "from": began, "kind": place(told), "at": told}
        ] * killed
        if status and not killed:
            failure = f"attempt {number}: {log.read_text()[-300:]}"
        elif not undisturbed(20, log):
            failure = f"attempt {number}: leaves processes behind"
        if failure or not killed:
            break
        log.unlink(missing_ok=True)
    try:
        failure = failure or reference.compare(run)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return [{**row, "failure": failure} for row in rows]


def kills(start: int, stop: int, scratch: Path, cases: tuple[str, ...] = CASES) -> Iterator[dict[str, Any]]:
    """Yield a row for each kill, from number `start` to `stop`."""
    quicken()
    references: dict[str, Reference] = {}
    count, seed = start, 7919 * start
    while count < stop:
        case = cases[seed % len(cases)]
        if case not in references:
            references[case] = Reference(case, scratch)
        depth = min(1 + seed % 5, stop - count)
        for row in chain(seed, references[case], case, scratch, depth):
            count += 1
            yield row
        seed += 1


def main() -> None:
    """Make so many kills in a scratch folder and print a line for each."""
    for row in kills(0, int(sys.argv[2]), Path(sys.argv[1])):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
