"""What a run counts, and the budget that ends it.

Counts are 64-bit, in two 32-bit words with the high word first: JAX has no 64-bit integers unless all of it is
switched over to them.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.types import LudusError

UNLIMITED = 2**64 - 1
FINAL_SHARE = 0.1
"""The part of `max_seconds` that is kept for the evaluation at the end."""


class Counters(NamedTuple):
    """What the run has done so far, inside the compiled program."""

    steps: Any
    episodes: Any


class Budget(NamedTuple):
    """When a run is over: whichever comes first."""

    total_steps: int | None
    max_episodes: int | None
    max_seconds: float | None

    def limits(self) -> Counters:
        """Check the numbers; return the limits that the compiled loop watches."""
        if self.total_steps is None and self.max_episodes is None and self.max_seconds is None:
            raise LudusError("train: give total_steps, max_episodes or max_seconds")
        for name, value in self._asdict().items():
            if value is not None and not 0 < value < UNLIMITED:
                raise LudusError(f"{name}={value}: must be greater than 0 and less than 2**64")
        steps, episodes = (UNLIMITED if x is None else int(x) for x in (self.total_steps, self.max_episodes))
        return Counters(from_int(steps), from_int(episodes))

    def training_seconds(self, is_evaluated: bool) -> float:
        """Return how long to train: if an evaluation follows at the end, a part of `max_seconds` is kept for it."""
        whole = math.inf if self.max_seconds is None else float(self.max_seconds)
        return whole * (1 - FINAL_SHARE) if is_evaluated else whole

    def share(self, steps: int, episodes: int, seconds: float) -> float:
        """Return how much of the budget is spent, in [0, 1]."""
        spent = ((steps, self.total_steps), (episodes, self.max_episodes), (seconds, self.max_seconds))
        return min(1.0, max(done / limit for done, limit in spent if limit))


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
