"""A set is divided into scenarios for training and others for evaluation, where nothing else has told them apart."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ludus.envs.scenarios.making import Made, SetWriter
from ludus.envs.scenarios.shards import SPLITS, TEMPLATE, Arrays, Manifest, digests_of, read_manifest, read_shard
from ludus.types import LudusError


class Division(NamedTuple):
    """The choice of the scenarios that are held out."""

    is_held_out: Callable[[Arrays], np.ndarray]
    templates: set[int]
    """The templates that are, if whole ones are."""
    how: str


def divide(folder: Path, to: Path, share: float, seed: int = 0) -> tuple[Manifest, str]:
    """Write the training scenarios of a set as a new set of both kinds; return it, and in words what is held out.

    Whole templates are held out, drawn by the seed until they have the share; where there is one template only,
    scenarios are, and equal ones stay on one side.
    """
    if not 0.0 < share < 1.0:
        raise LudusError(f"--evaluation={share:g}: must lie between 0 and 1")
    manifest, _ = read_manifest(folder)
    if manifest.count("evaluation"):
        raise LudusError(f"{folder}: has scenarios for evaluation already; it is divided")
    templates = np.concatenate([part[TEMPLATE] for part in _parts(folder, manifest)])
    kinds = np.unique(templates)
    division = _by_template(templates, manifest, share, seed) if len(kinds) > 1 else _by_content(share, seed)
    sides = sorted(set(kinds.tolist()) - division.templates), sorted(division.templates)
    new = {old: number for number, old in enumerate([*sides[0], *sides[1]])}
    names = dict(enumerate(manifest.names))
    called = [tuple(names[old] for old in side) if new.keys() <= names.keys() else () for side in sides]
    templates_of: dict[str, tuple[str, ...]] = dict(zip(SPLITS, called, strict=True))
    told = Made(manifest.environment, manifest.arrays, templates_of, manifest.options, manifest.seed)
    with SetWriter(to, told) as writer:
        for part in _parts(folder, manifest):
            is_held_out = division.is_held_out(part)
            numbered = {**part, TEMPLATE: np.array([new[old] for old in part[TEMPLATE].tolist()], np.int32)}
            for split, rows in (("training", ~is_held_out), ("evaluation", is_held_out)):
                if rows.any():
                    writer.add(split, {name: array[rows] for name, array in numbered.items()})
        made = writer.finished()
        if not made.count("training") or not made.count("evaluation"):
            raise LudusError(f"--evaluation={share:g}: leaves nothing on one side of {len(templates)} scenarios")
    return made, division.how


def _parts(folder: Path, manifest: Manifest) -> Iterator[Arrays]:
    for shard in manifest.of("training"):
        yield read_shard(folder, manifest, shard)


def _by_template(templates: np.ndarray, manifest: Manifest, share: float, seed: int) -> Division:
    kinds, counts = np.unique(templates, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(kinds))
    enough = int(np.searchsorted(np.cumsum(counts[order]), share * len(templates))) + 1
    held = set(kinds[order][: min(enough, len(kinds) - 1)].tolist())
    names = dict(enumerate(manifest.names))
    told = ", ".join(names.get(number, f"template {number}") for number in sorted(held))
    return Division(lambda part: np.isin(part[TEMPLATE], sorted(held)), held, told)


def _by_content(share: float, seed: int) -> Division:
    salt, bound = seed.to_bytes(8, "big"), share * 2.0**64

    def is_held_out(part: Arrays) -> np.ndarray:
        rolls = [hashlib.sha256(salt + digest).digest() for digest in digests_of(part)]
        return np.array([int.from_bytes(roll[:8], "big") < bound for roll in rolls], bool)

    return Division(is_held_out, set(), "single scenarios, by their content, since all are of one template")
