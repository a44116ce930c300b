"""All randomness comes from one root seed, by named and counted keys that are never used twice.

`stream(seed, purpose)` is a key for one purpose; `jax.random.fold_in(key, count)` counts on from there. Host
environments take integers instead, which `rollout.host` makes of a key.
"""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.types import Array, Tree

IMPLEMENTATION = "threefry2x32"


def stream(seed: int, purpose: str) -> jax.Array:
    """Return the root key of one purpose of a run, such as "init" or "rollout"."""
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(2)
    return jax.random.wrap_key_data(jax.device_put(words), impl=IMPLEMENTATION)


def spread(key: jax.Array, shape: tuple[int, ...], first: Array = 0) -> jax.Array:
    """Return a distinct key for each index of `shape`, without hashing; indices count from `first` on.

    Threefry is a family of random functions, one for each key: keys need be distinct, not random (Salmon et al.
    2011). `jax.random.split` would hash once more, which a short program notices in compile and in run time.
    Never spread a key that was spread: the results would collide.
    """
    words = jax.random.key_data(key)
    index = jnp.arange(int(np.prod(shape)), dtype=jnp.uint32).reshape(shape) + first
    data = jnp.stack([jnp.broadcast_to(words[0], shape), words[1] ^ index], axis=-1)
    return jax.random.wrap_key_data(data, impl=IMPLEMENTATION)


@jax.jit
def folded(keys: Tree, count: jax.Array) -> Any:
    """Advance every key of a tree to its `count`-th, in one hash."""
    leaves, treedef = jax.tree.flatten(keys)
    stacked = jnp.stack(leaves)
    return jax.tree.unflatten(treedef, list(jax.vmap(jax.random.fold_in, (0, None))(stacked, count)))
