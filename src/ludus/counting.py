"""64-bit counts in two 32-bit words, high word first: JAX has no 64-bit integers unless all of it is switched over."""

import jax
import jax.numpy as jnp
import numpy as np

UNLIMITED = 2**64 - 1


def from_int(n: int) -> np.ndarray:
    """Return a count as its two words."""
    return np.asarray([n >> 32, n & 0xFFFFFFFF], np.uint32)


def to_int(count: jax.Array | np.ndarray) -> int:
    """Return the count as a Python integer."""
    high, low = np.asarray(count).tolist()
    return (high << 32) | low


def add(count: jax.Array, n: jax.Array) -> jax.Array:
    """Add a non-negative 32-bit number."""
    low = count[1] + n.astype(jnp.uint32)
    return jnp.stack([count[0] + (low < count[1]).astype(jnp.uint32), low])


def reached(count: jax.Array, limit: jax.Array) -> jax.Array:
    """Return whether `count >= limit`."""
    return (count[0] > limit[0]) | ((count[0] == limit[0]) & (count[1] >= limit[1]))


def share(count: jax.Array, limit: jax.Array) -> jax.Array:
    """Return `count / limit` as a float."""
    done, whole = (x[0].astype(jnp.float32) * 2.0**32 + x[1].astype(jnp.float32) for x in (count, limit))
    return done / whole
