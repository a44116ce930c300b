"""The places of arrays where a program runs on several devices: shared out by environments or rows, or whole on each.

`training/distributed/mesh.py` chooses the devices. While a program is traced for several, `split` and `whole` tell the
compiler where arrays lie, and it inserts whatever the devices must tell each other; no number depends on it but for
rounding. For one device they return what they are given, so that its programs are the same as if this file were not.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from ludus.types import Tree

AXIS = "devices"
"""The one axis of every mesh."""


def num_devices() -> int:
    """Return over how many devices the program that is being traced is spread."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[AXIS] if AXIS in mesh.auto_axes else 1


def split(tree: Tree, axis: int = 0) -> Any:
    """Share arrays out to the devices along an axis."""
    return _constrained(tree, _spec(axis))


def whole(tree: Tree) -> Any:
    """Let each device have all of the arrays."""
    return _constrained(tree, _spec(None))


def _constrained(tree: Tree, spec: PartitionSpec) -> Any:
    return tree if num_devices() == 1 else jax.lax.with_sharding_constraint(tree, spec)


def each(function: Callable[..., Any], *axes: int | None, out: Any = 0) -> Callable[..., Any]:
    """Return a function that each device runs on its share of the arguments, with no word to the others but `total`.

    `axes` says of each argument along which axis it is shared out, None: each device has all of it. `out` says the same
    of what is returned: once, or in a tree for its parts. A loop in it ends on a device when that has done its share.
    """
    if num_devices() == 1:
        return function
    shares = tuple(map(_spec, axes))
    left = jax.tree.map(_spec, out, is_leaf=lambda axis: axis is None)
    return jax.shard_map(function, in_specs=shares, out_specs=left, check_vma=False)


def summed(function: Callable[..., Any], *axes: int | None) -> Callable[..., Any]:
    """Return the sum of a function over the devices' shares, of which every device has all; see `each`."""
    if num_devices() == 1:
        return function
    return each(lambda *given: total(function(*given)), *axes, out=None)


def total(tree: Tree) -> Any:
    """Return the sum of each device's arrays inside of `each`; where there are no others, the arrays.

    They are laid side by side first: between processes a sum of seven small arrays takes seven times as long as one.
    """
    if AXIS not in jax.sharding.get_abstract_mesh().manual_axes:
        return tree
    leaves, treedef = jax.tree.flatten(tree)
    sums = list(leaves)
    for dtype in sorted({leaf.dtype.name for leaf in leaves}):
        places = [place for place, leaf in enumerate(leaves) if leaf.dtype.name == dtype]
        flat = jax.lax.psum(jnp.concatenate([leaves[place].ravel() for place in places]), AXIS)
        stops = list(itertools.accumulate(leaves[place].size for place in places))
        for place, start, stop in zip(places, [0, *stops], stops, strict=False):
            sums[place] = flat[start:stop].reshape(leaves[place].shape)
    return jax.tree.unflatten(treedef, sums)


def own(key: jax.Array) -> jax.Array:
    """Return a key for what a device draws for its own share inside of `each`; where there are no others, the key."""
    is_share = AXIS in jax.sharding.get_abstract_mesh().manual_axes
    return jax.random.fold_in(key, jax.lax.axis_index(AXIS)) if is_share else key


def _spec(axis: int | None) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)


def zeros(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Return rows of zeros, made where they will lie: no device must have room for all of them."""
    if num_devices() == 1:
        return jnp.zeros(shape, dtype)
    return jnp.zeros(shape, dtype, device=NamedSharding(jax.sharding.get_mesh(), _spec(0)))


def on_first(tree: Tree) -> Any:
    """Return arrays on the first device of this process alone; what a program computes with passes as it is."""
    return jax.tree.map(_on_first, tree)


def _on_first(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer) or len(leaf.sharding.device_set) == 1:
        return leaf
    if leaf.sharding.is_fully_replicated:
        return leaf.addressable_data(0)
    return jax.device_put(leaf, min(leaf.sharding.device_set, key=lambda device: device.id))
