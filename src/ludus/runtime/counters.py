"""Counts of a run, inside the compiled program.

They are 64-bit, in two 32-bit words with the high word first: JAX has no 64-bit integers unless all of it is
switched over to them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

UNLIMITED = 2**64 - 1


class Counters(NamedTuple):
    """The counts of what the run has done so far, inside the compiled program."""

    steps: Any
    episodes: Any


def from_int(n: int) -> np.ndarray:
    """Return a count as its two words."""
    return np.asarray([n >> 32, n & 0xFFFFFFFF], np.uint32)


def add(count: jax.Array, n: jax.Array) -> jax.Array:
    """Add a non-negative 32-bit number."""
    low = count[1] + n.astype(jnp.uint32)
    return jnp.stack([count[0] + (low < count[1]).astype(jnp.uint32), low])


def reached(count: jax.Array, limit: jax.Array) -> jax.Array:
    """Return whether `count >= limit`."""
    return (count[0] > limit[0]) | ((count[0] == limit[0]) & (count[1] >= limit[1]))


@jax.jit
def left(count: jax.Array, limit: jax.Array) -> jax.Array:
    """Return `limit - count`, which may not be negative, as a 32-bit number: its largest if there is more left."""
    borrowed = (limit[1] < count[1]).astype(jnp.uint32)
    high, low = limit[0] - count[0] - borrowed, limit[1] - count[1]
    most = jnp.uint32(2**31 - 1)
    return jnp.where(high > 0, most, jnp.minimum(low, most)).astype(jnp.int32)


def share(count: jax.Array, limit: jax.Array) -> jax.Array:
    """Return `count / limit` as a float."""
    done, whole = (x[0].astype(jnp.float32) * 2.0**32 + x[1].astype(jnp.float32) for x in (count, limit))
    return done / whole
