"""Episodes: what both ways to play them take and return, and the noise of those whose actions are drawn.

The noise of an episode depends on its number alone, whatever is played beside it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from ludus.rollout.acting import Actor
from ludus.runtime.rng import spread
from ludus.types import Array, Tree

Look = Callable[[Tree, Tree, Tree], tuple[Tree, Tree, Tree]]
"""`look(parts, memory, obs) -> memory, action, figures`: a pure function of one lane `[1, ...]`."""


Enough = Callable[[], bool]
"""Whether an episode is to be cut here, for instance because time is up."""


class Watched(NamedTuple):
    """One episode: trees of arrays `[T, 1, ...]`, whose rows belong together, and what came after the last step."""

    obs: Tree
    action: Tree
    reward: Tree
    figures: Tree
    final_obs: Tree
    final_figures: Tree
    terminated: bool
    truncated: bool
    seed: int | None
    """What a host environment was reset with; a JAX environment starts from a key."""


class Played(NamedTuple):
    """Episodes of an evaluation, one row for each."""

    returns: np.ndarray
    lengths: np.ndarray
    info: dict[str, np.ndarray]
    """The numbers in their `info`, by journal name; NaN where an episode gave none."""
    is_cut: np.ndarray


def sampling_key(key: jax.Array) -> jax.Array:
    """Return the key of the noise of an evaluation; its starts and steps have those that `split` makes, 0 and 1."""
    return jax.random.fold_in(key, 2)


def lookahead_key(key: jax.Array) -> jax.Array:
    """Return the key of what an evaluation plays to look ahead."""
    return jax.random.fold_in(key, 3)


def episode_noise(algorithm: Actor, policy: Tree, key: jax.Array, t: Array, count: int, first: Array = 0) -> Tree:
    """Draw the noise `[count, ...]` of step `t` for the episodes from number `first` on."""
    keys = spread(jax.random.fold_in(key, t), (count,), first)
    return jax.vmap(lambda key: algorithm.noise(policy, key, ()))(keys)
