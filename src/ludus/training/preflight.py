"""Checks before a run begins, and before anything is compiled."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax

from ludus.algorithms.base import Algorithm, check_algorithm
from ludus.algorithms.hyperparameters import register
from ludus.envs.base import AnyEnv
from ludus.runs.folder import RunFolder
from ludus.runs.storage.options import StorageOptions
from ludus.runtime import autotuning, files, secrets
from ludus.runtime.compilation import default_device
from ludus.training.budget import Budget
from ludus.training.distributed import mesh
from ludus.training.init_from import pinned
from ludus.training.settings import Settings
from ludus.types import LudusError, Spec


def check_parts(algorithm: object, env: object, settings: object) -> None:
    """Refuse what is no algorithm, no environment or no settings, and a process that computes in another way.

    Then JAX is started, on as many devices as a CPU is asked to show.
    """
    check_algorithm(algorithm)
    register(type(algorithm))
    if not hasattr(env, "num_envs") or not hasattr(env, "remake"):
        raise LudusError(f"env={env!r}: must be made by ludus.make_env")
    if not isinstance(settings, Settings):
        raise LudusError(f"settings={settings!r}: must be ludus.Settings(...)")
    if settings.deterministic and not autotuning.is_deterministic():
        raise LudusError(
            f"deterministic=true: JAX runs already; set XLA_FLAGS={autotuning.DETERMINISTIC}=true before it starts"
        )
    if jax.config.values["jax_enable_x64"]:
        raise LudusError("jax_enable_x64 is on, and ludus computes in 32 bits: switch it off (JAX_ENABLE_X64=0)")
    mesh.ask_for(settings.devices)
    default_device()


def check_secrets(env: AnyEnv) -> None:
    """Refuse what must not be written into a run folder."""
    secrets.check("env_options", dict(env.options))
    secrets.check("env_wrappers", env.env_wrappers)


def completed(settings: Settings, algorithm: Algorithm, env: AnyEnv) -> Settings:
    """Return the settings with what follows from files and the environment.

    That is the checksum of what a run begins with, and the return from which on an episode is a success.
    """
    spec = Spec(env.observation_space, env.action_space, env.num_envs)
    return with_threshold(pinned(settings, algorithm, spec), env.return_threshold)


def with_threshold(settings: Settings, threshold: float | None) -> Settings:
    """Return the settings with the return from which on an episode of this environment is a success."""
    wanted = threshold if settings.success_return is None else settings.success_return
    if wanted is None and settings.success == "return":
        raise LudusError("success=return: the environment names no return that counts as solved; give success_return")
    return replace(settings, success_return=None if wanted is None else float(wanted))


def placed(run_dir: Path, storage: StorageOptions, say: Callable[[str], None]) -> tuple[Path, StorageOptions]:
    """Return the folder that a run is written to, and where it is copied to.

    Where a cloud's folder is shown as one of the system's, files may not be locked, synced or renamed: then the run is
    written elsewhere and copied there, unless it is copied to another place anyway.
    """
    if (lacks := files.lacking(run_dir)) is None:
        return run_dir, storage
    wanted = run_dir.absolute()
    if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
        raise LudusError(
            f"run_dir={run_dir}: exists already; choose another folder, or go on with ludus resume {run_dir}"
        )
    folders = Path("runs"), Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ludus" / "runs"
    able = next((folder for folder in folders if files.lacking(folder) is None), None)
    if able is None:
        raise LudusError(
            f"run_dir={run_dir}: files there cannot be {lacks}; give a folder on a disk, and storage={run_dir}"
        )
    url = storage.url or str(wanted.parent)
    say(f"{run_dir}: files there cannot be {lacks}; the run is written to {able / wanted.name} and copied to {url}")
    return able / wanted.name, replace(storage, url=url)


def check_budget(budget: Budget, settings: Settings, steps: int, folder: RunFolder | None) -> None:
    """Refuse a budget that is spent after `steps` already, and what cannot be made without a run folder."""
    if budget.total_steps is not None and budget.total_steps <= steps:
        raise LudusError(f"total_steps={budget.total_steps}: {steps} steps are done already")
    tracking, films = settings.tracking, settings.video_frequency
    needs_folder = {
        "tracking.mlflow": tracking.mlflow,
        "tracking.own": tracking.own,
        "video_frequency": films,
        "storage.url": settings.storage.url,
    }
    if folder is None and (names := [name for name, value in needs_folder.items() if value]):
        raise LudusError(f"{names[0]}: is made from what the run writes down; give run_dir")
