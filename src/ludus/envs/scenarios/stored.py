"""A stored set of scenarios, opened for one environment: its files are read one by one, and damage is named."""

import logging
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.scenarios.base import Scenario, ScenarioEnvironment, Split
from ludus.envs.scenarios.shards import SCENARIO, Arrays, Kind, Manifest, Shard, read_manifest, read_shard
from ludus.types import LudusError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScenarioSet:
    """A folder of scenarios; sets with the same content are equal, wherever they lie."""

    folder: Path = field(compare=False)
    manifest: Manifest = field(compare=False)
    sha256: str
    """Of the manifest, and so of everything."""

    def read(self, env: ScenarioEnvironment, shard: Shard) -> tuple[Arrays, np.ndarray]:
        """Return the arrays of a file, and which of its scenarios can be used; the others are counted in a warning."""
        arrays = read_shard(self.folder, self.manifest, shard)
        good, reasons = sound(env, arrays)
        if not good.all():
            first, reason = int(np.flatnonzero(~good)[0]), ", ".join(f"{n} {what}" for what, n in reasons.items())
            _log.warning(
                f"{self.folder / shard.file}: {(~good).sum()} of {len(good)} scenarios cannot be used and are skipped, "
                f"number {first} first{f' ({reason})' if reason else ''}"
            )
        return arrays, good


def opened(folder: str | Path, env: ScenarioEnvironment, id: str) -> ScenarioSet:
    """Open a set for an environment; LudusError if there is none, or if its scenarios are of another kind."""
    manifest, sha256 = read_manifest(Path(folder))
    kinds = kinds_of(env)
    if different := sorted(name for name in kinds.keys() ^ manifest.arrays.keys()):
        where = "lacks" if different[0] in kinds else "has besides"
        raise LudusError(f"{folder}: was made for {manifest.environment}, not for {id}: it {where} {different[0]}")
    for name, kind in kinds.items():
        if manifest.arrays[name] != kind:
            has = manifest.arrays[name]
            raise LudusError(f"{folder}: was made for other options than {id} has: {name} is {has}, not {kind}")
    return ScenarioSet(Path(folder).absolute(), manifest, sha256)


@lru_cache(maxsize=32)
def _outline(env: ScenarioEnvironment) -> tuple[list[str], Any, list[Any]]:
    """Return the names of a scenario's arrays, its structure, and its shapes."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes = jax.eval_shape(lambda key: env.generate(key, "training", env.parameters), key)
    paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    return names, structure, [shape for _, shape in paths]


def kinds_of(env: ScenarioEnvironment) -> dict[str, Kind]:
    """Return type and shape of every array of a scenario, by name."""
    names, _, shapes = _outline(env)
    return {name: Kind(str(x.dtype), tuple(x.shape)) for name, x in zip(names, shapes, strict=True)}


def arrays_of(env: ScenarioEnvironment, scenarios: Scenario) -> Arrays:
    """Return scenarios `[n, ...]` as arrays by name, as files hold them."""
    names, _, _ = _outline(env)
    leaves = jax.tree.leaves(scenarios)
    return {SCENARIO + name: np.asarray(leaf) for name, leaf in zip(names, leaves, strict=True)}


def scenarios_of(env: ScenarioEnvironment, arrays: Arrays) -> Scenario:
    """Return arrays by name as scenarios `[n, ...]`: the inverse of `arrays_of`."""
    names, structure, _ = _outline(env)
    return jax.tree.unflatten(structure, [arrays[SCENARIO + name] for name in names])


def usable(env: ScenarioEnvironment, arrays: Arrays) -> np.ndarray:
    """Return which of n scenarios can be used: all of their numbers are finite, and so says the environment."""
    good = np.asarray(_judged(env, scenarios_of(env, arrays)))
    for array in arrays.values():
        if array.dtype.kind == "f":
            good = good & np.isfinite(array).reshape(len(array), -1).all(axis=1)
    return good


def sound(env: ScenarioEnvironment, arrays: Arrays) -> tuple[np.ndarray, dict[str, int]]:
    """Return which of n scenarios that come from elsewhere can be used, and how many have which defect."""
    found = {reason: np.asarray(which) for reason, which in _defects(env, scenarios_of(env, arrays)).items()}
    good = usable(env, arrays)
    for which in found.values():
        good = good & ~which
    return good, {reason: int(which.sum()) for reason, which in found.items() if which.any()}


@jax.jit(static_argnums=0)
def _defects(env: ScenarioEnvironment, scenarios: Scenario) -> dict[str, jax.Array]:
    return jax.vmap(lambda scenario: {k: jnp.asarray(v, bool) for k, v in env.defects(scenario).items()})(scenarios)


@jax.jit(static_argnums=0)
def _judged(env: ScenarioEnvironment, scenarios: Scenario) -> jax.Array:
    return jax.vmap(lambda scenario: jnp.asarray(env.is_usable(scenario), bool))(scenarios)


@lru_cache(maxsize=4)
def rows(env: ScenarioEnvironment, stored: ScenarioSet, split: Split = "evaluation") -> Arrays:
    """Return all scenarios of a split that can be used, in their order."""
    parts = []
    for shard in stored.manifest.of(split):
        arrays, good = stored.read(env, shard)
        parts.append({name: array[good] for name, array in arrays.items()})
    if not sum(len(part["weight"]) for part in parts):
        told = "has no scenarios for evaluation" if not parts else f"none of its scenarios for {split} can be used"
        raise LudusError(f"{stored.folder}: {told}; ludus scenarios make and split give a set both kinds")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
