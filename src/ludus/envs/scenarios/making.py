"""Sets of scenarios are made here, from seeds or from scenarios that come from elsewhere, and written."""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.scenarios.base import Scenario, ScenarioEnvironment, Split
from ludus.envs.scenarios.held_out import Generated, joined, num_rows
from ludus.envs.scenarios.shards import (
    SPLITS,
    TEMPLATE,
    WEIGHT,
    Arrays,
    Kind,
    Manifest,
    Shard,
    digests_of,
    write_manifest,
    write_shard,
)
from ludus.envs.scenarios.stored import arrays_of, kinds_of, scenarios_of, sound
from ludus.runtime import files
from ludus.types import LudusError

FILE_BYTES, MOST_IN_FILE = 1 << 24, 1024
"""A file is filled up to so many bytes, or so many scenarios."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """The facts of a set that are known before its scenarios are there."""

    environment: str
    kinds: Mapping[str, Kind]
    templates: Mapping[str, tuple[str, ...]]
    options: Mapping[str, Any]
    seed: int | None


def make_set(
    env: ScenarioEnvironment, made: Made, folder: Path, counts: Mapping[Split, int], say: Say = print
) -> Manifest:
    """Generate scenarios of each split from a seed and write them; those that cannot be used are left out."""
    with SetWriter(folder, made) as writer:
        for split in SPLITS:
            generated, written = Generated(env, split, made.seed or 0), 0
            while written < counts.get(split, 0):
                arrays = described(env, generated.next())
                taken = min(num_rows(arrays), counts[split] - written)
                writer.add(split, {name: array[:taken] for name, array in arrays.items()})
                written += taken
                if written == counts[split] or written // MOST_IN_FILE > (written - taken) // MOST_IN_FILE:
                    say(f"{split}: {written:,} of {counts[split]:,} scenarios")
            writer.skipped[split] = generated.skipped
        return writer.finished()


def write_set(
    env: ScenarioEnvironment, made: Made, folder: Path, scenarios: Mapping[Split, Iterable[Scenario]]
) -> Manifest:
    """Write scenarios that come from elsewhere, in batches `[n, ...]`; those that cannot be used are left out."""
    with SetWriter(folder, made) as writer:
        for split, batches in scenarios.items():
            for batch in batches:
                arrays = arrays_of(env, batch)
                good, _ = sound(env, arrays)
                writer.skipped[split] = writer.skipped.get(split, 0) + int((~good).sum())
                if good.any():
                    writer.add(split, described(env, {name: array[good] for name, array in arrays.items()}))
        return writer.finished()


def described(env: ScenarioEnvironment, arrays: Arrays) -> Arrays:
    """Return scenarios with their weights and templates."""
    weight, template = jax.device_get(_about(env, scenarios_of(env, arrays)))
    return {**arrays, WEIGHT: np.asarray(weight), TEMPLATE: np.asarray(template)}


@partial(jax.jit, static_argnums=0)
def _about(env: ScenarioEnvironment, scenarios: Scenario) -> tuple[jax.Array, jax.Array]:
    def about(scenario: Scenario) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(env.weight(scenario), jnp.float32), jnp.asarray(env.template(scenario), jnp.int32)

    return jax.vmap(about)(scenarios)


class SetWriter:
    """Writes a set, file after file; nothing is left of one that was not finished."""

    def __init__(self, folder: Path, made: Made):
        """Make the folder."""
        self.folder, self.made = folder, made
        self.skipped: dict[str, int] = {}
        self._shards: list[Shard] = []
        self._waiting: dict[Split, list[Arrays]] = {split: [] for split in SPLITS}
        self._digests: dict[Split, list[bytes]] = {split: [] for split in SPLITS}
        size = sum(kind.nbytes for kind in made.kinds.values())
        self._per_file = min(MOST_IN_FILE, max(1, FILE_BYTES // max(1, size)))
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise LudusError(f"{folder}: is there already; name a new folder")

    def __enter__(self) -> "SetWriter":
        """Make the folder."""
        try:
            files.make_folder(self.folder)
        except OSError as error:
            raise LudusError(f"{self.folder}: cannot be made ({error.strerror or error})") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Remove what is not a set."""
        if kind is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, split: Split, arrays: Arrays) -> None:
        """Add scenarios of a split; files are written as they are full."""
        self._digests[split] += digests_of(arrays)
        waiting = joined([*self._waiting[split], arrays])
        while num_rows(waiting) >= self._per_file:
            self._write(split, {name: array[: self._per_file] for name, array in waiting.items()})
            waiting = {name: array[self._per_file :] for name, array in waiting.items()}
        self._waiting[split] = [waiting]

    def finished(self) -> Manifest:
        """Write what is left and the manifest."""
        for split in SPLITS:
            for rest in self._waiting[split]:
                if num_rows(rest):
                    self._write(split, rest)
        if not self._shards:
            raise LudusError(f"{self.folder}: no scenario that can be used was given, so there is no set to write")
        if both := set(self._digests["training"]) & set(self._digests["evaluation"]):
            number = min(self._digests["evaluation"].index(digest) for digest in both)
            raise LudusError(
                f"{self.made.environment}: scenario {number} of evaluation is one of training too, and would be learnt "
                "from; the environment must generate others for each split"
            )
        digests: dict[str, str] = {
            split: hashlib.sha256(b"".join(rows)).hexdigest() for split, rows in self._digests.items() if rows
        }
        made = self.made
        manifest = Manifest(
            made.environment,
            dict(made.kinds),
            tuple(self._shards),
            digests,
            dict(made.templates),
            dict(made.options),
            made.seed,
            self.skipped,
        )
        write_manifest(self.folder, manifest)
        return manifest

    def _write(self, split: Split, arrays: Arrays) -> None:
        number = sum(shard.split == split for shard in self._shards)
        try:
            self._shards.append(write_shard(self.folder, split, number, arrays))
        except OSError as error:
            raise LudusError(f"{self.folder}: cannot be written ({error.strerror or error})") from error


def made_by(env: ScenarioEnvironment, id: str, options: Mapping[str, Any], seed: int | None) -> Made:
    """Return what is known of a set of this environment."""
    return Made(id, kinds_of(env), dict(env.templates), dict(options), seed)
