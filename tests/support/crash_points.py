"""Ends a process at every file operation of saving, and looks at what is left. Run as a script by the tests.

A process that has imported `ludus` forks a child for each point; the child kills itself there.
"""

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus.runs.checkpoint.format import Blocks
from ludus.runs.checkpoint.retention import Retention
from ludus.runs.checkpoint.store import Checkpoints, Snapshot
from ludus.runs.folder import RunFolder, read_config, read_identity
from ludus.runtime import files

ROWS, PER_BLOCK = 53, 10


def quicken() -> None:
    """Let this process, which does nothing else, write files in many pieces and not wait for the disk."""
    files.PIECE = 700
    os.fsync = lambda _: None  # a process that dies takes nothing with it: that it is called is what counts here


class Scenario(NamedTuple):
    """Checkpoints that are there, and one that is to be written."""

    name: str
    retention: Retention
    before: tuple[int, ...]
    step: int
    go_back_to: int | None = None
    """Resume from here, which drops what is later, instead of saving."""


SCENARIOS = (
    Scenario("first", Retention(3, 0, 0), (), 3),
    Scenario("second", Retention(3, 0, 0), (3,), 5),
    Scenario("a long array goes round", Retention(9, 0, 0), (2, 3), 11),
    Scenario("prune one", Retention(1, 0, 0), (3,), 5),
    Scenario("prune several", Retention(1, 1, 4), (1, 2, 3, 4), 6),
    Scenario("drop what is later", Retention(9, 0, 0), (2, 3, 5, 6), 7, go_back_to=3),
)


def random_scenario(seed: int) -> Scenario:
    """Return one that nobody has thought of."""
    chance = random.Random(seed)
    steps = sorted(chance.sample(range(1, 40), chance.randint(1, 5)))
    go_back_to = chance.choice(steps[:-1]) if len(steps) > 1 and chance.random() < 0.25 else None
    retention = Retention(chance.randint(1, 3), chance.randint(0, 2), chance.choice([0, 0, 2, 3]))
    return Scenario(f"random {seed}", retention, tuple(steps[:-1]), steps[-1], go_back_to)


def content(step: int) -> dict[str, np.ndarray]:
    """Return the arrays of a step: two short ones, and a ring into which each step writes seven rows."""
    rng = np.random.default_rng(step)
    ring = np.zeros((ROWS, 3), np.float32)
    for row in range(7 * step):
        ring[row % ROWS] = [row, -row, 0.5]
    return {"a": rng.normal(size=(31, 17)).astype(np.float32), "b": np.int64(step)[None], "ring": ring}


def snapshot(step: int, since: int) -> Snapshot:
    """Return a snapshot with the pieces of the ring that changed since another step."""
    arrays = content(step)
    ring = arrays.pop("ring")
    rows = {row % ROWS for row in range(7 * since, 7 * step)}
    changed = {row // PER_BLOCK for row in rows}
    pieces = {index: ring[index * PER_BLOCK : (index + 1) * PER_BLOCK] for index in changed}
    record = {"steps": step, "ordinal": step, "score": float(step % 5)}
    return Snapshot(step, arrays, {"ring": Blocks(ring.shape, "float32", PER_BLOCK, pieces)}, record)


def continued(folder: Path, retention: Retention) -> tuple[Checkpoints, int]:
    """Return the checkpoints of a run as a resume finds them, and the step to go on from (0: none)."""
    checkpoints, start = Checkpoints(folder, retention), 0
    if (latest := checkpoints.latest()) is not None:
        start = latest
        checkpoints.base = {name: list(names) for name, (*_, names) in checkpoints.open(latest).blocks.items()}
    return checkpoints, start


def prepare(folder: Path, scenario: Scenario) -> None:
    """Write the checkpoints that are there before."""
    checkpoints, since = Checkpoints(folder, Retention(99)), 0
    folder.mkdir()
    for step in scenario.before:
        checkpoints.save(snapshot(step, since))
        since = step


def act(folder: Path, scenario: Scenario) -> None:
    """Save, or go back."""
    checkpoints, since = continued(folder, scenario.retention)
    if scenario.go_back_to is None:
        checkpoints.save(snapshot(scenario.step, since))
    else:
        checkpoints.drop_after(scenario.go_back_to)


def observed(watch: Callable[[str, Path], None]) -> None:
    """Watch every operation from now on, and each single removal inside the removal of a folder too."""
    files.observe = watch
    for name in ("unlink", "rmdir"):
        original = getattr(os, name)

        def watched(path: Any, *more: Any, name: str = name, original: Callable = original, **options: Any) -> None:
            watch(f"before raw {name}", Path(os.fsdecode(path)))
            original(path, *more, **options)
            watch(f"after raw {name}", Path(os.fsdecode(path)))

        setattr(os, name, watched)


def in_child(job: Callable[[], None]) -> int:
    """Run a job in a forked process and return its wait status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            job()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def trace(folder: Path, action: Callable[[], None]) -> list[tuple[str, str]]:
    """Run an action in a child to its end and return everything it did."""
    log = folder.with_name(f"{folder.name}.trace")

    def job() -> None:
        events: list[tuple[str, str]] = []
        observed(lambda what, path: events.append((what, str(path))))
        action()
        log.write_text(json.dumps(events))

    assert in_child(job) == 0
    events = [(what, path) for what, path in json.loads(log.read_text())]
    log.unlink()
    return events


def killed_at(point: int, action: Callable[[], None]) -> None:
    """Run an action in a child that kills itself at its n-th event."""

    def job() -> None:
        left = iter(range(point, -1, -1))
        observed(lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(left) == 0 else None)
        action()

    status = in_child(job)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status


def check_order(events: list[tuple[str, str]]) -> None:
    """Nothing is renamed before it is on disk, and `latest` moves only when all names are on disk as well."""
    files_to_sync: set[str] = set()
    folders_to_sync: set[str] = set()
    for what, path in events:
        kind = what.removeprefix("after ")
        if what == "before rename":
            assert not files_to_sync, f"{files_to_sync} renamed before they are on disk"
            source = Path(path).parent / f".partial-{Path(path).name}"
            assert str(source) not in folders_to_sync, f"{source} renamed before its names are on disk"
            if Path(path).name == "latest":
                waiting = folders_to_sync - {str(Path(path).parent)}  # there only the new `latest` waits
                assert not waiting, f"latest moves before the names in {waiting} are on disk"
        elif kind in ("open", "write"):
            files_to_sync.add(path)
            folders_to_sync.add(str(Path(path).parent))
        elif kind in ("rename", "mkdir"):
            folders_to_sync.add(str(Path(path).parent))
            folders_to_sync.discard(str(Path(path).parent / f".partial-{Path(path).name}"))
        elif kind == "fsync":
            files_to_sync.discard(path)
            folders_to_sync.discard(path)
    assert not files_to_sync and not folders_to_sync, f"never on disk: {files_to_sync | folders_to_sync}"


def check_left(folder: Path, scenario: Scenario) -> str:
    """Return which checkpoint is left, "old" or "new"; every one that looks like one must be whole and true."""
    checkpoints = Checkpoints(folder)
    old = scenario.before[-1] if scenario.before else None
    for step in checkpoints.steps():
        checkpoint = checkpoints.open(step)
        checkpoint.verify()
        for name, array in checkpoint.read(checkpoint.stated()).items():
            np.testing.assert_array_equal(array, content(step)[name])
    latest = checkpoints.latest()
    goal = scenario.step if scenario.go_back_to is None else scenario.go_back_to
    assert latest in (old, goal), (latest, old, goal)
    return "new" if latest == goal else "old"


def check_next(folder: Path, scenario: Scenario) -> None:
    """Resume, save once more and look for leftovers."""
    checkpoints, start = continued(folder, scenario.retention)
    if start:
        checkpoints.drop_after(start)
    step = max(scenario.step, start + 1)
    checkpoints.save(snapshot(step, start))
    assert checkpoints.latest() == step
    needed = set()
    for kept in checkpoints.steps():
        checkpoint = checkpoints.open(kept)
        checkpoint.verify()
        for name, array in checkpoint.read(checkpoint.stated()).items():
            np.testing.assert_array_equal(array, content(kept)[name])
        needed |= {name for *_, names in checkpoint.blocks.values() for name in names}
        assert sorted(path.name for path in checkpoint.path.iterdir()) == ["manifest.json", "state.safetensors"]
    there = {path.name for path in checkpoints.folder.iterdir()}
    assert there == {"blocks", "latest", *map(str, checkpoints.steps())}, there
    assert {path.name for path in (checkpoints.folder / "blocks").iterdir()} == needed


def points(scenario: Scenario, scratch: Path) -> Iterator[dict[str, Any]]:
    """Go through every crash point of a scenario; yield what each came to."""
    quicken()
    prepared, trial = scratch / "prepared", scratch / "trial"
    shutil.rmtree(prepared, ignore_errors=True)
    prepare(prepared, scenario)
    shutil.copytree(prepared, trial)
    events = trace(trial, lambda: act(trial, scenario))
    shutil.rmtree(trial)
    check_order(events)
    for point, (what, path) in enumerate(events):
        shutil.copytree(prepared, trial)
        row = {"scenario": scenario.name, "point": point, "event": what, "path": Path(path).name, "failure": None}
        try:
            killed_at(point, lambda: act(trial, scenario))
            row["left"] = check_left(trial, scenario)
            check_next(trial, scenario)
        except Exception as error:
            row["failure"] = f"{type(error).__name__}: {error}"
        shutil.rmtree(trial)
        yield row


def run_folder_points(scratch: Path) -> Iterator[dict[str, Any]]:
    """Go through every crash point of writing down how a run stands."""
    quicken()
    run = scratch / "run"

    def write() -> None:
        folder = RunFolder.reopen(run)
        folder.write_config({"number": 2})
        folder.write_identity(status="new")

    def fresh() -> None:
        shutil.rmtree(run, ignore_errors=True)
        folder = RunFolder(run)
        folder.create()
        folder.write_config({"number": 1})
        folder.write_identity(status="old")
        folder.close()

    fresh()
    events = trace(run, write)
    check_order(events)
    for point, (what, path) in enumerate(events):
        fresh()
        row = {"scenario": "run folder", "point": point, "event": what, "path": Path(path).name, "failure": None}
        try:
            killed_at(point, write)
            stands = read_config(run)["number"], read_identity(run)["status"]
            assert stands in ((1, "old"), (2, "old"), (2, "new")), stands
            write()
            assert {path.name for path in run.iterdir()} == {"config.yaml", "run.json", "metrics.jsonl"}
        except Exception as error:
            row["failure"] = f"{type(error).__name__}: {error}"
        yield row


def main() -> None:
    """Go through the scenarios in a scratch folder and print a line for each point."""
    scratch = Path(sys.argv[1])
    for scenario in SCENARIOS:
        for row in points(scenario, scratch):
            print(json.dumps(row))
    for row in run_folder_points(scratch):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
