"""The choice of the checkpoint that a run goes on from; and what can be done where it is damaged."""

from collections.abc import Callable
from pathlib import Path

from ludus.runs.checkpoint.format import Checkpoint, DamagedError
from ludus.runs.checkpoint.store import Checkpoints
from ludus.training import progress
from ludus.training.beginning import what_is_left
from ludus.training.state_arrays import check_finite
from ludus.types import LudusError


class NothingWholeError(LudusError):
    """None of a run's checkpoints can be gone on from."""


def chosen(run: Path, start: int | str, fallback: bool, say: Callable[[str], None]) -> tuple[int, Checkpoint]:
    """Return the checkpoint that is asked for; with `fallback`, the newest from there on whose state is whole."""
    checkpoints = Checkpoints(run)
    steps = checkpoints.steps()
    if not steps:
        raise LudusError(f"{run}: has no checkpoint to go on from")
    step = _named(checkpoints, run, start, steps)
    if not fallback:
        try:
            return step, opened(checkpoints, step)
        except DamagedError as error:
            raise LudusError(f"{error}; {way_out(run, step)}") from error
    for candidate in [step, *_earlier(steps, step)]:
        try:
            return candidate, whole(checkpoints, candidate)
        except DamagedError as error:
            reason = str(error)
            say(f"{reason}; trying the one before")
    if start == "latest":
        raise NothingWholeError(f"{run}: no checkpoint is whole")
    raise LudusError(f"{reason}; no checkpoint before it is whole")


def way_out(run: Path, step: int) -> str:
    """Return what can be done though the checkpoint of a step is damaged."""
    checkpoints = Checkpoints(run)
    for candidate in _earlier(checkpoints.steps(), step):
        try:
            whole(checkpoints, candidate)
        except DamagedError:
            continue
        return f"ludus resume --fallback takes the one before, of {candidate:,} steps"
    return (
        "no checkpoint before it is whole; ludus resume --fallback begins the run again and keeps what is there "
        f"beside{what_is_left(run)}"
    )


def exact_before(run: Path, step: int) -> int | None:
    """Return the newest step before one whose checkpoint is whole to the last piece."""
    checkpoints = Checkpoints(run)
    for candidate in _earlier(checkpoints.steps(), step):
        try:
            whole(checkpoints, candidate).verify()
        except DamagedError:
            continue
        return candidate
    return None


def opened(checkpoints: Checkpoints, step: int) -> Checkpoint:
    """Return a checkpoint whose record makes sense."""
    checkpoint = checkpoints.open(step)
    try:
        progress.check(checkpoint.record, step)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DamagedError(f"{checkpoint.path}: its record is damaged ({error})") from error
    return checkpoint


def whole(checkpoints: Checkpoints, step: int) -> Checkpoint:
    """Return a checkpoint whose state is whole; pieces of long arrays may be damaged, which can be gone on without."""
    checkpoint = opened(checkpoints, step)
    check_finite(checkpoint.path, checkpoint.state_arrays())
    return checkpoint


def _earlier(steps: list[int], step: int) -> list[int]:
    return [other for other in reversed(steps) if other < step]


def _named(checkpoints: Checkpoints, run: Path, start: int | str, steps: list[int]) -> int:
    step = {"latest": checkpoints.latest, "best": checkpoints.best}.get(str(start), lambda: None)()
    if step is None and str(start).isdigit():
        step = int(start)
    if step not in steps:
        names = ["latest", *(["best"] if checkpoints.best() is not None else []), *map(str, steps)]
        raise LudusError(f"{run}: no checkpoint {start}; there are {', '.join(names)}")
    return step
