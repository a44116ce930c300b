"""A run folder's account of its run: its configuration, from which the run can be made again, and who made it."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ludus import __version__
from ludus.algorithms.base import Algorithm
from ludus.algorithms.registry import describe
from ludus.envs.base import AnyEnv
from ludus.envs.registry import WORKER_KEYS, as_wrappers, code_in, make_env
from ludus.runs.strict_json import strict
from ludus.runtime import user_code
from ludus.runtime.compilation import Options
from ludus.training.budget import Budget
from ludus.training.checkpoint_writer import FIRST
from ludus.training.distributed.mesh import Devices
from ludus.training.settings import NAMES, PARTS, Settings, plain
from ludus.types import LudusError

MEANING = ("env", "env_options", "env_wrappers", "num_envs", "seed", "collect", "curriculum", "algorithm")
"""Settings that a resumed run cannot change: the saved state would mean something else."""
BYGONE = ("permissions", "init_from", "init_from_sha256")
"""Settings that only the beginning of a run has a use for."""
DEVICES = "devices"
"""Where it is written down by how many devices something was made, if it was not one."""
CHANGEABLE = (
    *Budget._fields,
    *(name for name in NAMES if name not in (*MEANING, *PARTS, *BYGONE)),
    *WORKER_KEYS,
)
"""Settings that it can, besides those of the groups."""


def config_of(
    algorithm: Algorithm, env: AnyEnv, settings: Settings, budget: Budget, run_dir: Path | None
) -> dict[str, Any]:
    """Return the whole configuration of a run, as config.yaml holds it."""
    told = plain(settings)
    del told["verbose"]  # what is shown is a matter of the terminal, not of the run
    return {
        "env": env.id,
        "env_options": dict(env.options),
        "env_wrappers": list(env.env_wrappers),
        "num_envs": env.num_envs,
        **env.worker_settings,
        **told,
        **budget._asdict(),
        "run_dir": None if run_dir is None else str(run_dir),
        "algorithm": describe(algorithm),
    }


def meaning_of(algorithm: Algorithm, env: AnyEnv, settings: Settings) -> dict[str, Any]:
    """Return the settings without which a saved state would mean something else, as plain data."""
    config = config_of(algorithm, env, settings, Budget(None, None, None), None)
    return strict({name: config[name] for name in MEANING}, not_finite=float)


def made_with(devices: Devices) -> dict[str, str]:
    """Return what the last bits of a result depend on besides the settings; one device is not counted."""
    kind = {"jax": jax.__version__, "device": devices.first.device_kind, "platform": jax.default_backend()}
    return kind | ({DEVICES: str(devices.count)} if devices.count > 1 else {})


def identity_of(
    seed: int, options: Options, first_checkpoint: int | None, configured_by: Sequence[str], devices: Devices
) -> dict[str, Any]:
    """Return what run.json says of the process that trains; `configured_by` names the files its settings came from."""
    return {
        "seed": int(seed),
        "versions": {"ludus": __version__, "jax": jax.__version__, "numpy": np.__version__},
        "devices": devices.names,
        "compiler_options": dict(options),
        FIRST: first_checkpoint,
        **({"configured_by": list(configured_by)} if configured_by else {}),
    }


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Lay changes over a run's configuration; one that would change what the state means is refused by name."""
    for part in PARTS:
        if not isinstance(config.get(part) or {}, dict):
            raise LudusError(f"{part}: config.yaml must hold names and values there, got {config[part]!r}")
    config = config | {part: dict(config.get(part) or {}) for part in PARTS}
    known = {f"{part}.{field.name}" for part, kind in PARTS.items() for field in fields(kind)}
    for key, value in changes.items():
        group, _, name = key.rpartition(".")
        if key in known:
            config[group][name] = value
        elif key in CHANGEABLE:
            config[key] = value
        elif key.partition(".")[0] in MEANING:
            raise LudusError(
                f"{key}: cannot be changed in a resumed run, the saved state would mean something else; "
                "start a new run instead"
            )
        else:
            allowed = ", ".join([*CHANGEABLE, *sorted(known)])
            raise LudusError(f"{key}: cannot be changed in a resumed run; these can: {allowed}")
    return config


def settings_in(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a configuration holds; KeyError if one is missing without which it means nothing."""
    parts = {name: kind(**(config.get(name) or {})) for name, kind in PARTS.items()}
    given = {name: config[name] for name in NAMES if name in config}
    return {**given, **parts, "seed": config["seed"], "collect": config["collect"]}


def environment_in(config: dict[str, Any], instead: str) -> AnyEnv:
    """Make the environments of a configuration; for those that only their owner can make, say what to do instead."""
    env_id, options = str(config.get("env")), config.get("env_options") or {}
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise LudusError(f"env_options: config.yaml must hold names and values there, got {options!r}")
    if env_id.startswith("object:"):
        raise LudusError(f"env={env_id}: is your own code: {instead}")
    wrappers = as_wrappers(config.get("env_wrappers") or [])
    user_code.check_saved(code_in(env_id, wrappers), "config.yaml")
    given = {**options, **{key: config[key] for key in WORKER_KEYS if key in config}}
    return make_env(env_id, config.get("num_envs") or 1, **given, env_wrappers=[one.plain for one in wrappers])
