"""The command line of several processes that train together: all are given the same words but for `hosts.number`."""

import contextlib
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus import __version__
from ludus.cli import arguments as words
from ludus.types import LudusError

if TYPE_CHECKING:
    from ludus.training.config import TrainConfig
    from ludus.training.distributed.hosts import Team

OWN = ("run_dir", "verbose", "hosts", "sources")
"""Settings that may differ from process to process."""


def join(config: "TrainConfig", is_alone: bool) -> bool:
    """Before JAX starts: find the others, if there are any; return whether this process follows another."""
    from ludus.training.distributed import hosts
    from ludus.training.distributed.seats import seat_of

    if seat_of(config.hosts) is None:
        return False
    if not is_alone:
        raise LudusError(f"hosts.count={config.hosts.count}: processes can train one run together, not a sweep")
    team = hosts.join(config.hosts, _digest({k: v for k, v in asdict(config).items() if k not in OWN}))
    return _started(team, config.devices)


def follow(config: "TrainConfig") -> int:
    """Train under the lead of another process; return the exit code."""
    from ludus.training.budget import Budget
    from ludus.training.config import build
    from ludus.training.distributed.follower import LedTrainer

    with _followed():
        parts = build(config)
        return _told(LedTrainer(parts.algorithm, parts.env, parts.settings).follow(Budget(**parts.budget)))


def restored(url: str, values: dict[str, Any]) -> Path:
    """Restore a run to go on with it in this process alone.

    Several would be in each other's way where they share a folder, and not know of the run where they share none.
    """
    from ludus.runs.folder import read_config
    from ludus.runs.storage import restore

    given = {name.removeprefix("hosts."): value for name, value in values.items() if name.startswith("hosts.")}
    if several := _several(given):
        raise LudusError(
            f"{several}: restore the run first (ludus pull {url}), then let each process resume its folder"
        )
    run = restore.restored(url, values.get("storage.key_file"))
    if several := _several({**(read_config(run).get("hosts") or {}), **given}):
        raise LudusError(
            f"{several}: the run was trained by several processes and is restored; ludus resume {run} hosts.count=1 "
            "hosts.launcher=none goes on with one, or let each process resume that folder"
        )
    return run


def _several(options: dict[str, Any]) -> str:
    """Return the setting by which there are several processes; an empty text if there is one."""
    if options.get("count", 1) != 1:
        return f"hosts.count={options['count']}"
    return "" if options.get("launcher", "none") == "none" else f"hosts.launcher={options['launcher']}"


def rejoin(run: Path, config: dict[str, Any]) -> bool:
    """Find the others likewise to go on with a run, by its configuration as it is changed."""
    from ludus.runs.strict_json import strict
    from ludus.training.distributed import hosts
    from ludus.training.distributed.seats import seat_of
    from ludus.training.run_config import settings_in

    try:
        options = settings_in(config)["hosts"]
    except (KeyError, TypeError, ValueError) as error:
        raise LudusError(f"{run}: its config.yaml is damaged ({type(error).__name__}: {error})") from error
    if seat_of(options) is None:
        return False
    team = hosts.join(options, _digest(strict({k: v for k, v in config.items() if k not in OWN}, not_finite=str)))
    return _started(team, config.get("devices"))


def _started(team: "Team | None", devices: object) -> bool:
    """Start JAX, now that all are there: later they would wait for each other for half a minute only."""
    from ludus.runtime.compilation import default_device
    from ludus.training.distributed import mesh

    mesh.ask_for(devices)
    default_device()
    return team is not None and not team.is_leader


def follow_resumed(run: Path, config: dict[str, Any]) -> int:
    """Go on with a run under the lead of another process; return the exit code."""
    from ludus.training.distributed.follower import LedTrainer
    from ludus.training.resume import rebuilt

    with _followed():
        follower, budget = rebuilt(LedTrainer, run, config)
        return _told(follower.follow(budget))


@contextlib.contextmanager
def _followed() -> Generator[None]:
    """Let the leader hear of it at once if this process fails; it then waits for nobody."""
    from ludus.training.distributed.hosts import joined

    try:
        yield
    except BaseException:
        if (team := joined()) is not None:
            team.close()
            words.has_left_work = True
        raise


def _told(code: int) -> int:
    if code:
        print("ludus: hosts: process 0 has ended the run with an error", file=sys.stderr)
    return code


def saved(run: Path | None) -> str:
    """Return how a run would go on if it ended now."""
    from ludus.runs.checkpoint.store import Checkpoints

    step = None
    with contextlib.suppress(LudusError, OSError):
        step = None if run is None else Checkpoints(run).latest()
    return f"from its beginning: ludus resume {run}" if step is None else f"from {step:,} steps on: ludus resume {run}"


def _digest(config: dict[str, Any]) -> str:
    """Return a text that is the same where the same is trained by the same versions."""
    versions = [importlib.metadata.version(name) for name in ("jax", "jaxlib")]
    return hashlib.sha256(json.dumps([config, __version__, versions], default=str, sort_keys=True).encode()).hexdigest()
