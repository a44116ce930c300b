"""The state of training as named arrays, and named arrays as the state: what lies between training and a checkpoint.

Long arrays that are written row after row (a replay, the recorded actions of a pool) are taken apart: of them only
the rows that are new since the last checkpoint are copied.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.tree_util import KeyPath

from ludus.envs.host.action_log import Growing
from ludus.runs.checkpoint.format import BLOCK_BYTES, Blocks, DamagedError, Shape, rows_per_block
from ludus.types import Array, LudusError, Tree

LONG_BYTES = 4 * BLOCK_BYTES
"""Arrays of a replay that are longer than this are cut into pieces."""
ENV = "env/"
"""Beginning of the names of what a host environment says of itself."""

Written = dict[str, tuple[int, int]]
"""For each array that is written row after row: rows ever written, and where that count starts again from 0."""


def name_of(path: KeyPath) -> str:
    """Return a place in a pytree as text."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def take(state: Tree, env: dict[str, Any], since: Written) -> tuple[dict[str, np.ndarray], dict[str, Blocks], Written]:
    """Copy a state and what the host environments say of themselves.

    Returns the short arrays, the long ones with the pieces changed since the counts `since`, and the counts now.
    """
    arrays, blocks, written = {}, {}, {}
    rings = _rings(state)
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = name_of(path)
        ring = next((ring for ring in rings if name.startswith(f"{ring}/") or name == ring), None)
        if ring is not None and leaf.nbytes > LONG_BYTES:
            written[ring] = rings[ring]
            blocks[name] = _changed(leaf, since.get(ring, (0, 0))[0], *rings[ring])
        else:
            arrays[name] = np.array(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    for name, value in env.items():
        if isinstance(value, Growing):
            written[ENV + name] = value.began + value.count, 2**62
            blocks[ENV + name] = _added(value, since.get(ENV + name, (0, 0))[0])
        else:
            arrays[ENV + name] = value
    return arrays, blocks, written


def shapes(state: Tree) -> dict[str, Shape]:
    """Return the shapes of a state's arrays, by name."""
    return {
        name_of(path): Shape(leaf.shape, str(leaf.dtype))
        for path, leaf in jax.tree_util.tree_flatten_with_path(jax.eval_shape(lambda: jax.tree.map(_data, state)))[0]
    }


def outline(state: Tree) -> Tree:
    """Return the shapes and types of a state, without its memory; keys stay, for only a key tells its own kind.

    An array that several devices share or have is outlined with its place.
    """
    return jax.tree.map(
        lambda x: x if _is_key(x) else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=_place(x)), state
    )


def put_back(blank: Tree, arrays: dict[str, np.ndarray]) -> Tree:
    """Return a state like `blank`, which may be an `outline`, with these arrays, on the device."""

    def filled(path: KeyPath, leaf: Array) -> Array:
        if not _is_key(leaf):
            return jax.device_put(arrays[name_of(path)], _place(leaf))
        key = jax.random.wrap_key_data(jax.device_put(arrays[name_of(path)]), impl=jax.random.key_impl(leaf))
        return key if _place(leaf) is None else jax.device_put(key, _place(leaf))

    return jax.tree_util.tree_map_with_path(filled, blank)


def first_bad(arrays: dict[str, np.ndarray], blocks: dict[str, Blocks] | None = None) -> str | None:
    """Return the name of an array of the learner that holds a NaN or an infinity, if any does."""
    pieces = [(name, piece) for name, long in (blocks or {}).items() for piece in long.changed.values()]
    for name, array in [*arrays.items(), *pieces]:
        if name.startswith("learner/") and _is_float(array) and not np.isfinite(array).all():
            return name
    return None


def check_finite(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Refuse the arrays of a checkpoint if the learner holds a NaN or an infinity: no such state was ever written."""
    if bad := first_bad(arrays):
        raise DamagedError(f"{path}: {bad} holds a NaN or an infinity")


def _is_float(array: np.ndarray) -> bool:
    return jax.dtypes.issubdtype(array.dtype, np.floating)  # JAX's small floats as well


def differences(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> list[str]:
    """Return the names of arrays that are not the same, bit by bit."""
    names = sorted(ours.keys() | theirs.keys())
    return [name for name in names if name not in ours or name not in theirs or not _same(ours[name], theirs[name])]


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _rings(state: Tree) -> Written:
    """Return every part of a state that is written row after row, by the name under which its arrays are found."""
    found = jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_written)[0]
    return {
        f"{name_of(path)}/{part}": count
        for path, node in found
        if _is_written(node)
        for part, count in node.written().items()
    }


def _is_written(node: Tree) -> bool:
    """Whether a node says itself which of its rows were written: a replay, or demonstrations."""
    return hasattr(node, "written")


def _changed(leaf: Array, before: int, now: int, cycle: int) -> Blocks:
    """Copy the pieces of a ring that hold rows written since there were `before` of them."""
    rows, total = rows_per_block(leaf.shape, leaf.dtype), leaf.shape[0]
    count = (now - before) % cycle
    first, blocks = before % total, Blocks(leaf.shape, str(leaf.dtype), rows, {})
    if count >= total:
        wanted = set(range(blocks.num_blocks))
    else:
        ends = [(first, min(first + count, total)), (0, max(0, first + count - total))]
        wanted = {i for start, stop in ends if stop > start for i in range(start // rows, (stop - 1) // rows + 1)}
    for index in wanted:
        blocks.changed[index] = _rows(leaf, index * rows, min(rows, total - index * rows), rows)
    return blocks


def _rows(leaf: Array, start: int, count: int, size: int) -> np.ndarray:
    """Copy rows of an array; from a device, always as many, so that one small program serves for all.

    Of an array that devices share, each part is copied from the device that has it.
    """
    if _place(leaf) is not None and not leaf.sharding.is_fully_replicated:
        return _shared_rows(leaf, start, count)
    if not isinstance(leaf, jax.Array) or next(iter(leaf.devices())).platform == "cpu":
        return np.array(np.asarray(leaf)[start : start + count])
    first = min(start, leaf.shape[0] - size)
    return np.asarray(jax.lax.dynamic_slice_in_dim(leaf, np.int32(first), size))[start - first :][:count]


def _shared_rows(leaf: jax.Array, start: int, count: int) -> np.ndarray:
    """Copy rows of an array whose rows are shared out, without ever bringing all of it together."""
    rows = np.empty((count, *leaf.shape[1:]), leaf.dtype)
    for shard in leaf.addressable_shards:
        begin, end, _ = shard.index[0].indices(len(leaf))
        first, last = max(begin, start), min(end, start + count)
        if first < last:
            rows[first - start : last - start] = np.asarray(shard.data)[first - begin : last - begin]
    return rows


def _place(leaf: Array) -> jax.sharding.Sharding | None:
    """Return where an array lies, if that is on several devices of this process."""
    place = getattr(leaf, "sharding", None)
    return place if place is not None and len(place.device_set) > 1 and place.is_fully_addressable else None


def _added(growing: Growing, before: int) -> Blocks:
    """Copy the pieces of a growing array from the row where the last checkpoint ended; all, if that was of another."""
    count, before = growing.count, before - growing.began
    if not count:
        return Blocks((0,), "float32", 1, {})
    first = growing.between(0, 1)
    size = max(1, BLOCK_BYTES // max(1, first.nbytes))
    blocks = Blocks((count, *first.shape[1:]), str(first.dtype), size, {})
    for index in range(before // size if 0 <= before <= count else 0, blocks.num_blocks):
        blocks.changed[index] = growing.between(index * size, min((index + 1) * size, count))
    return blocks


def check_env_arrays(path: Path, stated: dict[str, Shape], steps: int, num_envs: int) -> None:
    """Refuse recorded actions that are more than the steps that were made, before memory is taken for them."""
    for name, shape in stated.items():
        if shape.shape and (shape.shape[0] or 0) > max(steps, 1024 * num_envs):
            raise LudusError(f"{path}: {name} is {shape}, more than {steps} steps can have left behind")


def _data(leaf: Array) -> Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Array) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)
