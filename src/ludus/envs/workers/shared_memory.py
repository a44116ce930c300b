"""Arrays that several processes see: trees of them, mapped into files that have no name on disk."""

import mmap
import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ludus.envs.base import Observation
from ludus.envs.host.info_stats import CAPACITY
from ludus.envs.host.shared_generators import WORDS
from ludus.types import Tree

ALIGNMENT = 64
NO_SEED = -1


class Results(NamedTuple):
    """The arrays that workers write: the fields of a `HostStep`, and the running totals of `info`."""

    next_obs: Any
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any


class Control(NamedTuple):
    """The arrays that are shared before anything is known of the environments."""

    at: np.ndarray
    """For each worker: which of its environments is at work, and whether it resets."""
    seeds: np.ndarray
    """For each environment: the seed of its next reset."""
    generators: np.ndarray
    """For each worker: where the random generators of its process are, if that was asked for."""

    @classmethod
    def shared(cls, file: int, num_envs: int, num_workers: int) -> "Control":
        """Map it into a file."""
        sizes = 2 * num_workers, num_envs, WORDS * num_workers
        flat = shared_arrays(file, np.zeros(0, np.int64), sum(sizes))
        at, seeds, generators = np.split(flat, np.cumsum(sizes)[:-1])
        return cls(at.reshape(num_workers, 2), seeds, generators.reshape(num_workers, WORDS))


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to the leaves of dicts and tuples, as `jax.tree.map` would."""
    if isinstance(tree, dict):
        return {name: map_tree(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    if isinstance(tree, tuple):
        parts = [map_tree(function, *both) for both in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return function(tree, *others)


def row_shapes(tree: Tree) -> Tree:
    """Return a tree of empty arrays that has the shapes and types of these rows."""
    return map_tree(lambda x: np.zeros((0, *np.shape(x)[1:]), np.asarray(x).dtype), tree)


def results_like(obs: Observation) -> Results:
    """Return the shapes of everything a worker writes, given those of its observations."""
    flag = np.zeros(0, bool)
    return Results(obs, obs, np.zeros(0, np.float32), flag, flag, np.zeros((0, 3, CAPACITY)))


def anonymous_file(name: str) -> int:
    """Return a file in memory that has no name on disk, so that nothing can be left over."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def shared_arrays(file: int, shapes: Tree, num_rows: int) -> Tree:
    """Map a tree of arrays `[num_rows, ...]` into a file; whoever calls it with the same arguments sees the same."""
    offset = 0

    def place(shape: np.ndarray) -> tuple[np.ndarray, int]:
        nonlocal offset
        start, size = offset, num_rows * shape.dtype.itemsize * int(np.prod(shape.shape[1:]))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
        return shape, start

    placed: list[tuple[np.ndarray, int]] = []
    map_tree(lambda shape: placed.append(place(shape)), shapes)
    if os.fstat(file).st_size < offset:
        os.ftruncate(file, offset)
    memory, places = mmap.mmap(file, max(offset, 1)), iter(placed)

    def view(shape: np.ndarray) -> np.ndarray:
        return np.ndarray((num_rows, *shape.shape[1:]), shape.dtype, memory, next(places)[1])

    return map_tree(view, shapes)
