"""The trackers that a run is configured to have, the user's own among them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.runs.trackers import own
from ludus.runs.trackers.base import Tracker, TrackingOptions
from ludus.runtime import own_parts, user_code
from ludus.types import LudusError

KEY = "tracking.own"

_registered: dict[str, Callable[..., own.OwnTracker]] = {}


def register_tracker(name: str, kind: Callable[..., own.OwnTracker]) -> None:
    """Let `tracking.own=[name]` stand for a tracker of your own, in this process.

    Args:
        name: without a colon; another class or function may not have it.
        kind: a class or function that returns an object with `begin(run)`, `log(rows)` and `end(result)`.
    """
    user_code.enter(_registered, name, kind, "register_tracker")


def trackers(options: TrackingOptions, say: Callable[[str], None]) -> list[Tracker]:
    """Return the trackers that the options ask for; LudusError if one of them cannot work here.

    Args:
        options: which.
        say: prints one line for the user.
    """
    made: list[Tracker] = []
    if options.tensorboard:
        from ludus.runs.trackers import tensorboard

        made.append(tensorboard.tracker(say))
    if options.mlflow:
        from ludus.runs.trackers.mlflow.tracker import MLflowTracker

        made.append(MLflowTracker(say))
    return made + [own.follow(name, tracker, say) for name, tracker in _own(options.own).items()]


def complete_own(run: Path, entries: object) -> dict[str, int]:
    """Bring the trackers that a configuration names up to date with a run; return how many rows each of them has.

    What the file names is followed by the rule of `runtime.user_code`.
    """
    given = own_parts.check(KEY, entries or [])
    user_code.check_saved(own_parts.code_in(given), "config.yaml")
    return {name: own.complete(run, name, tracker) for name, tracker in _own(given).items()}


def _own(entries: tuple[Any, ...]) -> dict[str, own.OwnTracker]:
    """Return the user's trackers by their names."""
    made: dict[str, own.OwnTracker] = {}
    for entry in entries:
        name, tracker = own_parts.label(entry), own_parts.made(KEY, entry, _registered)
        own.check(name, tracker)
        if own.folder_of(name) in map(own.folder_of, made):
            raise LudusError(f"{KEY}={name}: stands there twice")
        made[name] = tracker
    return made
