"""Noise for evaluations whose actions are drawn: that of an episode depends on its number alone."""

from typing import Any

import jax

from ludus.seeding import spread


def sampling_key(key: jax.Array) -> jax.Array:
    """Return the key of the noise of an evaluation; its starts and steps have those that `split` makes, 0 and 1."""
    return jax.random.fold_in(key, 2)


def episode_noise(algorithm: Any, policy: Any, key: jax.Array, t: Any, count: int, first: Any = 0) -> Any:
    """Draw the noise `[count, ...]` of step `t` for the episodes from number `first` on."""
    keys = spread(jax.random.fold_in(key, t), (count,), first)
    return jax.vmap(lambda key: algorithm.noise(policy, key, ()))(keys)
