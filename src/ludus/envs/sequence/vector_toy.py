"""The smallest sequence task: an action moves a whole vector, and the reward is minus its squared length."""

import math
from functools import lru_cache

import jax
import jax.numpy as jnp

from ludus.envs.sequence.task import SequenceTask, check_count
from ludus.types import LudusError


@lru_cache
def vector_toy(dim: int = 10, num_actions: int = 4, horizon: int = 5, deviation: float = 1.0) -> SequenceTask:
    """Return the task: s' = s + a in every entry, the reward is -sum(s'^2), and `horizon` steps are an episode.

    Episodes start from a normal distribution around zero of that `deviation`. From zero, action 0 is the best; in
    general it is the integer nearest to minus the mean of s (`best_action`), and 0 ever after.
    """
    check_count("dim", dim)
    if isinstance(deviation, bool) or not isinstance(deviation, int | float) or not 0 <= deviation < math.inf:
        raise LudusError(f"env_options.deviation={deviation}: must be a finite number of at least 0")

    def initial_state(key: jax.Array) -> jax.Array:
        return deviation * jax.random.normal(key, (dim,))

    def transition(state: jax.Array, action: jax.Array) -> jax.Array:
        return state + action.astype(jnp.float32)

    def reward(state: jax.Array, action: jax.Array, next_state: jax.Array) -> jax.Array:
        return -jnp.sum(jnp.square(next_state))

    return SequenceTask(initial_state, transition, reward, num_actions=num_actions, horizon=horizon)


def best_action(state: jax.Array, num_actions: int = 4) -> jax.Array:
    """Return the best action in states `[..., dim]`: no later one can undo a step too far, so the nearest is best.

    -sum((s + a)^2) = -dim (mean(s) + a)^2 - dim Var(s), and every action is 0 or more.
    """
    return jnp.clip(jnp.round(-jnp.mean(state, axis=-1)), 0, num_actions - 1).astype(jnp.int32)
