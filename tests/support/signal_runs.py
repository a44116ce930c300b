"""Sends signals to `ludus train` at random moments and resumes it. Run as a script by the tests.

One process imports everything, starts no thread and touches no device; each command is a fork of it.
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

from kill_runs import MARK, quicken, undisturbed

import ludus.training.trainer  # noqa: F401  imported once for all commands
from ludus.cli.main import main
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runtime import files
from ludus.training import config  # noqa: F401
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 138, signal.SIGHUP: 129}
SMALL = [
    "num_envs=4", "algorithm.batch_size=64", "algorithm.minibatch_size=32", "algorithm.epochs_per_update=2",
    "algorithm.network.hidden_sizes=[8]", "eval_frequency=10", "eval_episodes=4", "checkpoint.every_iterations=4",
    "checkpoint.every_minutes=0", "checkpoint.on_error=stop", "num_checkpoints=2", "preset=null", "verbose=false",
]  # fmt: skip
CASES = {
    "jax": ["env=jax:CartPole-v1", "total_steps=3840", *SMALL],
    "gym workers": ["env=gym:CartPole-v1", "num_workers=2", "total_steps=1920", *SMALL],
}
SAVED_SECONDS, AT_ONCE_SECONDS = 30.0, 2.0


class Command:
    """A `ludus` command in a process of its own."""

    def __init__(self, words: list[str], log: Path, prepare: Callable[[], None] = lambda: None):
        """Start it."""
        self.log, self.started = log, time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                os.environ[MARK] = str(log)
                for stream in (1, 2):
                    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
                prepare()
                code = main(words)
                threading._shutdown()  # ty: ignore[unresolved-attribute]  as an interpreter does when it ends
            except KeyboardInterrupt:
                code = 130
            finally:
                os._exit(code)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it is over."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code as a shell shows it; None if it takes longer (it is killed then)."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            time.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return None


class Reference:
    """A run that nobody has disturbed."""

    def __init__(self, case: str, scratch: Path):
        """Train it, twice, so that the second finds everything compiled: that is how long it takes."""
        for run in (scratch / f"warm {case}", scratch / f"straight {case}"):
            command = Command(["train", *CASES[case], f"run_dir={run}"], scratch / f"{case}.log")
            assert command.wait(300) == 0, command.log.read_text()
            self.seconds = time.monotonic() - command.started
        self.state, self.journal = state_of(run), journal_of(run)


def _first_difference(run: Path, reference: Reference) -> str:
    journals = journal_of(run), reference.journal
    rows = [(a, b) for a, b in zip(*journals, strict=False) if a != b]
    unlike = {name: (rows[0][0].get(name), rows[0][1].get(name)) for name in rows[0][0] | rows[0][1]} if rows else {}
    lengths = [len(journal) for journal in journals]
    return f"{lengths} {[(name, pair) for name, pair in unlike.items() if pair[0] != pair[1]]}"


def signalled(seed: int, case: str, reference: Reference, scratch: Path) -> dict[str, Any]:
    """Send a signal to a run at a random moment; then resume it, and compare."""
    chance = random.Random(seed)
    run, log = scratch / "run", scratch / f"{seed}.log"
    shutil.rmtree(run, ignore_errors=True)
    number = list(CODES)[(seed - seed // 4) % len(CODES)]
    row: dict[str, Any] = {"number": seed, "case": case, "kind": number.name, "failure": None}
    try:
        command = Command(["train", *CASES[case], f"run_dir={run}"], log)
        time.sleep(chance.random() * reference.seconds)
        command.send(number)
        sent = time.monotonic()
        code = command.wait(SAVED_SECONDS)
        row |= {"code": code, "seconds": round(time.monotonic() - sent, 2)}
        assert code in (0, CODES[number]), f"exit code {code}: {log.read_text()[-300:]}"
        assert undisturbed(20, log), "leaves processes behind"
        steps = Checkpoints(run).latest()
        row["saved_at"] = steps
        if run.exists() and steps is None:
            # It came before there was anything to save.
            assert not (run / "metrics.jsonl").exists() or not journal_of(run), "there were rows, and no checkpoint"
            shutil.rmtree(run)
        if code and steps is not None:
            assert json.loads((run / "run.json").read_text())["status"] in ("interrupted", "finished")
        words = ["train", *CASES[case], f"run_dir={run}"] if steps is None else ["resume", str(run), "verbose=false"]
        if code or steps is None:
            code = Command(words, log).wait(300)
            assert code == 0, f"resume ends with {code}: {log.read_text()[-300:]}"
        assert differences(reference.state, state_of(run)) == [], "the state differs"
        assert journal_of(run) == reference.journal, f"the journal differs: {_first_difference(run, reference)}"
        log.unlink()
    except Exception as error:
        row["failure"] = f"{type(error).__name__}: {error}"
    return row


LONG = ["env=jax:CartPole-v1", "total_steps=1e9", "num_envs=256", "algorithm.batch_size=262144",
        "algorithm.minibatch_size=256", "algorithm.epochs_per_update=50", "eval_frequency=0",
        "checkpoint.every_minutes=0", "preset=null", "verbose=false"]  # fmt: skip
"""One iteration of this takes minutes."""


def slow_disk() -> None:
    """Let the first checkpoint take minutes."""

    def watch(what: str, path: Path) -> None:
        if what == "before write" and "checkpoints" in str(path):
            time.sleep(300)

    files.observe = watch


def twice(seed: int, kind: str, scratch: Path) -> dict[str, Any]:
    """Send a signal, and soon another: inside a compiled call, while a disk hangs, or anywhere."""
    chance = random.Random(seed)
    run, log = scratch / "twice", scratch / f"{seed}.log"
    shutil.rmtree(run, ignore_errors=True)
    first, second = chance.choice(list(CODES)), chance.choice(list(CODES)[:3])
    words = {"compiled": LONG, "disk": CASES["jax"], "anywhere": CASES["gym workers"]}[kind]
    row: dict[str, Any] = {"number": seed, "case": kind, "kind": "twice", "failure": None}
    try:
        command = Command(["train", *words, f"run_dir={run}"], log, slow_disk if kind == "disk" else lambda: None)
        deadline = time.monotonic() + 60
        while not (run / "run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep({"compiled": 3.0, "disk": 3.0, "anywhere": 1.0}[kind] * chance.random())
        command.send(first)
        time.sleep(0.1 + 0.4 * chance.random())
        command.send(second)
        sent = time.monotonic()
        code = command.wait(30)
        row |= {"code": code, "seconds": round(time.monotonic() - sent, 2)}
        assert code in (0, 130, CODES[first], CODES[second]), f"exit code {code}: {log.read_text()[-300:]}"
        assert undisturbed(20, log), "leaves processes behind"
        log.unlink()
    except Exception as error:
        row["failure"] = f"{type(error).__name__}: {error}"
    return row


def signals(start: int, stop: int, scratch: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each trial."""
    quicken()
    references: dict[str, Reference] = {}
    for number in range(start, stop):
        if number % 4 == 3:
            yield twice(number, ["compiled", "disk", "anywhere"][number // 4 % 3], scratch)
            continue
        case = list(CASES)[number // 4 % 2]
        if case not in references:
            references[case] = Reference(case, scratch)
        yield signalled(number, case, references[case], scratch)


if __name__ == "__main__":
    for result in signals(0, int(sys.argv[2]), Path(sys.argv[1])):
        print(json.dumps(result), flush=True)
