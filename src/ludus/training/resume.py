"""Going on with a run: from a run folder to a trainer that is where the run was.

How exactly it goes on is a level that is printed: **exact** (the same numbers, bit by bit, as if nothing had happened),
**rounding** (on a GPU, where it is not known that this process computes with the same kernels), **episode** (host
environments that cannot be brought back start new episodes), **mended** (a part of the state was damaged, and is left
out) or **anew** (it begins again).
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ludus.algorithms.base import Algorithm
from ludus.algorithms.registry import build
from ludus.envs.base import AnyEnv
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import JOURNAL, RunFolder, read_config, read_identity
from ludus.runtime import files, user_code
from ludus.training.beginning import Beginning, has_saved, refusal
from ludus.training.budget import Budget
from ludus.training.checkpoint_choice import NothingWholeError
from ludus.training.distributed import mesh
from ludus.training.restore import CheckpointSource
from ludus.training.run_config import changed, environment_in, meaning_of, settings_in
from ludus.training.settings import Settings, code_in
from ludus.training.trainer import Trainer
from ludus.types import LudusError

Kind = TypeVar("Kind")


def resume(
    kind: type[Trainer],
    run: str | Path,
    start: int | str,
    algorithm: Algorithm | None,
    env: AnyEnv | None,
    changes: dict[str, Any],
) -> Trainer:
    """Return a trainer that goes on with a run; see `Trainer.resume`."""
    run = Path(run)
    files.refuse_links(run)
    named = {name: value for name, value in (("env", env), ("algorithm", algorithm)) if isinstance(value, str)}
    fallback, saved = bool(changes.pop("fallback", False)), read_config(run)
    user_code.check_saved(_code_kept(saved, changes), "config.yaml")
    config = changed(saved, named | changes)
    own: dict[str, Any] = {
        "callbacks": config.get("callbacks") or (),
        "own_trackers": config["tracking"].get("own") or (),
    }
    trainer, budget = rebuilt(kind, run, config, algorithm, env, **own)
    has_lost_all = not Checkpoints(run).steps() and has_saved(run, read_identity(run), saved)
    if has_lost_all and not (fallback and start == "latest"):
        raise refusal(run)
    folder = _reopened(run, fallback)
    try:
        source = _source(run, start, fallback, has_lost_all, trainer.record.console.say)
        if isinstance(source, CheckpointSource):
            source.check(folder.identity["id"], meaning_of(trainer.algorithm, trainer.env, trainer.settings))
            source.check_journal()
        trainer.go_on_from(source, folder, budget)
    except BaseException:
        folder.close()
        raise
    return trainer


def _settings(config: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    settings, own = settings_in(config), other.pop("own_trackers", ())
    return {**settings, "tracking": replace(settings["tracking"], own=own), "callbacks": (), **other}


def _code_kept(saved: dict[str, Any], changes: dict[str, Any]) -> list[str]:
    """Return the names of trackers and callbacks that a run goes on with, since no change takes their place."""
    return [name for key, names in code_in(saved).items() if key not in changes for name in names]


def _reopened(run: Path, fallback: bool) -> RunFolder:
    """Open a run folder to go on with; where nothing else is to be done, without the journal that it had."""
    if not os.path.lexists(run / JOURNAL):
        if Checkpoints(run).steps() and not fallback:
            raise LudusError(
                f"{run / JOURNAL}: is missing, and with it all that the run has journalled; ludus resume --fallback "
                "goes on with an empty one"
            )
        try:
            files.write_whole(run / JOURNAL, b"")
        except OSError as error:
            raise LudusError(f"{run / JOURNAL}: cannot be written ({error.strerror or error})") from error
    return RunFolder.reopen(run)


def _source(
    run: Path, start: int | str, fallback: bool, has_lost_all: bool, say: Callable[[str], None]
) -> CheckpointSource | Beginning:
    """Return what the run goes on from."""
    if has_lost_all:
        return Beginning(say, "its checkpoints are gone")
    if start == "latest" and not Checkpoints(run).steps():
        return Beginning(say)
    try:
        return CheckpointSource(run, start, fallback, say)
    except NothingWholeError:
        return Beginning(say, "no checkpoint is whole")


def rebuilt(
    kind: Callable[..., Kind],
    run: Path,
    config: dict[str, Any],
    algorithm: Algorithm | None = None,
    env: AnyEnv | None = None,
    *,
    run_dir: Path | None = None,
    instead: str = "pass it again, as Trainer.resume(..., {}=...)",
    **other: Any,
) -> tuple[Kind, Budget]:
    """Return a trainer, or what takes its place, with the settings of a run but for some others, and the run's budget.

    `instead` says how else the algorithm or environment is given, if only its owner's code can make it. Callbacks
    and the user's own trackers are left out unless they are among the others: not every reader trains.
    """
    mesh.ask_for(other.get("devices", config.get("devices")))
    try:
        algorithm = (
            build(config["algorithm"], instead.format("algorithm"), saved_in="config.yaml")
            if algorithm is None
            else algorithm
        )
        env = environment_in(config, instead.format("env")) if env is None else env
        settings = Settings(**_settings(config, other))
        return kind(algorithm, env, settings, run_dir=run_dir), Budget(*(config[name] for name in Budget._fields))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LudusError(f"{run}: its config.yaml is damaged ({type(error).__name__}: {error})") from error
