"""The format of a set of scenarios on disk: safetensors files and a manifest. Nothing can be executed by reading it.

    manifest.json                  what the set holds: arrays, templates, files with their sizes and SHA-256
    training-00000.safetensors     scenario/<name> [n, ...] for each array of a scenario, weight [n], template [n]
    evaluation-00000.safetensors   likewise

All files of a split but the last hold the same number of scenarios. The `digest` of a split is the SHA-256 of the
SHA-256s of its scenarios, one after the other: it is the same however the scenarios are spread over files.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus.envs.scenarios.base import Split
from ludus.runtime import files
from ludus.types import LudusError

FORMAT = "ludus-scenarios-1"
MANIFEST = "manifest.json"
SPLITS: tuple[Split, ...] = ("training", "evaluation")
SCENARIO, WEIGHT, TEMPLATE = "scenario/", "weight", "template"
MANIFEST_BYTES, SHARD_BYTES, HEADER_BYTES = 1 << 24, 1 << 31, 1 << 20
"""The most bytes that a manifest and a file may have; and a file besides its arrays."""
TYPES = frozenset(("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"))

Arrays = dict[str, np.ndarray]
"""The arrays `[n, ...]` of n scenarios, by name: those of the scenarios, their weights and their templates."""


class Kind(NamedTuple):
    """Type and shape of one array of a single scenario."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """As in `float32[3, 4]`."""
        return f"{self.dtype}{list(self.shape)}"

    @property
    def nbytes(self) -> int:
        """Bytes of one."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


class Shard(NamedTuple):
    """One file of a set."""

    split: Split
    number: int
    scenarios: int
    size: int
    sha256: str

    @property
    def file(self) -> str:
        """Its name: no other can be told by a manifest."""
        return f"{self.split}-{self.number:05}.safetensors"


@dataclass(frozen=True)
class Manifest:
    """The list of what a set holds."""

    environment: str
    arrays: Mapping[str, Kind]
    shards: Sequence[Shard]
    digests: Mapping[str, str]
    """One for each split that there is."""
    templates: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The names of the templates of each split."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the environment that made them, for the record."""
    seed: int | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many that were made for each split could not be used, and are not in the set."""

    def of(self, split: Split) -> list[Shard]:
        """Return the files of a split, in their order."""
        return [shard for shard in self.shards if shard.split == split]

    def count(self, split: Split) -> int:
        """Return how many scenarios a split has."""
        return sum(shard.scenarios for shard in self.of(split))

    @property
    def names(self) -> list[str]:
        """The names of all templates, by their numbers."""
        return [name for split in SPLITS for name in self.templates.get(split, ())]

    @property
    def kinds(self) -> dict[str, Kind]:
        """Types and shapes of all arrays of a file, for one scenario."""
        own = {SCENARIO + name: kind for name, kind in self.arrays.items()}
        return {**own, WEIGHT: Kind("float32", ()), TEMPLATE: Kind("int32", ())}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write what a set holds: with that it is whole."""
    shards = [{**shard._asdict(), "file": shard.file} for shard in manifest.shards]
    told = {"format": FORMAT, **asdict(manifest), "shards": shards}
    told["sha256"] = _digest(told)
    files.write_whole(folder / MANIFEST, json.dumps(told, indent=1, sort_keys=True, allow_nan=False).encode())


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Return what a set holds, and the SHA-256 that stands for all of it; LudusError if it is none."""
    path = folder / MANIFEST
    try:
        told = json.loads(files.read(path, MANIFEST_BYTES))
        stated = told.pop("sha256")
        if told["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        if _digest(told) != stated:
            raise ValueError("its SHA-256 is not what it says")
        return _manifest(told), stated
    except OSError as error:
        raise LudusError(f"{folder}: is no set of scenarios ({MANIFEST}: {error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)[:100]
        raise LudusError(f"{path}: is damaged, or no manifest of scenarios ({reason})") from error


def write_shard(folder: Path, split: Split, number: int, arrays: Arrays) -> Shard:
    """Write one file of a set."""
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"format": FORMAT})
    shard = Shard(split, number, len(arrays[WEIGHT]), len(data), hashlib.sha256(data).hexdigest())
    files.write_whole(folder / shard.file, data)
    return shard


def read_shard(folder: Path, manifest: Manifest, shard: Shard) -> Arrays:
    """Return the arrays of one file, every byte of which is what was written; LudusError names one that is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = folder / shard.file
    try:
        data = files.read(path, shard.size)
        if len(data) != shard.size:
            raise ValueError(f"it has {len(data):,} bytes instead of {shard.size:,}" if data else "it is empty")
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            raise ValueError("its SHA-256 is not what the manifest says")
        arrays = load(data)
        for name, kind in manifest.kinds.items():
            array = arrays[name]
            if array.dtype != kind.dtype or array.shape != (shard.scenarios, *kind.shape):
                raise ValueError(f"{name} is {array.dtype}{list(array.shape)}, not {shard.scenarios} of {kind}")
        return {name: arrays[name] for name in manifest.kinds}
    except OSError as error:
        raise LudusError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise LudusError(f"{path}: is damaged ({str(error)[:120]}); make the set anew") from error


def digests_of(arrays: Arrays) -> list[bytes]:
    """Return the SHA-256 of each scenario: of its arrays in the order of their names."""
    rows = [np.ascontiguousarray(arrays[name]) for name in sorted(arrays) if name.startswith(SCENARIO)]
    return [hashlib.sha256(b"".join(row[i].tobytes() for row in rows)).digest() for i in range(len(rows[0]))]


def _digest(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _manifest(told: Mapping[str, Any]) -> Manifest:
    """Raise ValueError, KeyError or TypeError if a manifest, though undamaged, makes no sense."""
    manifest = Manifest(
        str(told["environment"]),
        {name: _kind(name, dtype, shape) for name, (dtype, shape) in told["arrays"].items()},
        tuple(_shard(entry) for entry in told["shards"]),
        {split: str(told["digests"][split]) for split in SPLITS if split in told["digests"]},
        {split: tuple(str(name) for name in told["templates"].get(split, ())) for split in SPLITS},
        dict(told["options"]),
        told["seed"] if _is_count(told["seed"]) else None,
        {split: int(told["skipped"].get(split, 0)) for split in SPLITS},
    )
    if not manifest.arrays or not manifest.shards:
        raise ValueError("it holds no scenarios")
    row = 8 + sum(kind.nbytes for kind in manifest.arrays.values())
    for shard in manifest.shards:
        if shard.size > HEADER_BYTES + shard.scenarios * row:
            raise ValueError(f"{shard.file} would be larger than its arrays")
    for split in SPLITS:
        numbers, counts = [shard.number for shard in manifest.of(split)], [s.scenarios for s in manifest.of(split)]
        if numbers != list(range(len(counts))) or len(set(counts[:-1])) > 1 or counts[-1:] > counts[:1]:
            raise ValueError(f"the files of {split}")
    return manifest


def _kind(name: str, dtype: str, shape: list[int]) -> Kind:
    kind = Kind(dtype, tuple(shape))
    if dtype not in TYPES or not re.fullmatch(r"[\w/.-]{1,200}", name):
        raise ValueError(f"array {name[:40]!r} of type {str(dtype)[:40]!r}")
    if len(shape) > 16 or not all(map(_is_count, shape)) or kind.nbytes > SHARD_BYTES:
        raise ValueError(f"shape of {name}")
    return kind


def _shard(entry: Mapping[str, Any]) -> Shard:
    shard = Shard(entry["split"], entry["number"], entry["scenarios"], entry["size"], entry["sha256"])
    if shard.split not in SPLITS or not all(map(_is_count, (shard.number, shard.scenarios, shard.size))):
        raise ValueError("an entry of a file")
    if not shard.scenarios or shard.size > SHARD_BYTES or not re.fullmatch(r"[0-9a-f]{64}", shard.sha256):
        raise ValueError(f"the entry of {shard.file}")
    return shard


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**40
