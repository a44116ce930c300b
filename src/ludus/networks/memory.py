"""Running a network's memory through a rollout. Networks without memory pass straight through."""

from typing import Any

import jax

from ludus.networks.actor_critic import ActorCritic
from ludus.rows import choose_rows


def through_time(module: ActorCritic, memory: Any, obs: Any, ended: jax.Array) -> tuple[Any, Any]:
    """Memory after each step (before it is cleared at an episode's end) and features, both `[T, B, ...]`."""
    if not jax.tree.leaves(memory):
        return module.remember(memory, obs)
    start = module.initial_memory(ended.shape[1])

    def step(memory: Any, inputs: Any) -> tuple[Any, Any]:
        obs_t, ended_t = inputs
        memory, features = module.remember(memory, obs_t)
        return choose_rows(ended_t, start, memory), (memory, features)

    return jax.lax.scan(step, memory, (obs, ended))[1]


def one_step_each(module: ActorCritic, memory: Any, obs: Any) -> Any:
    """Features of `obs` `[T, B, ...]`, each seen from the memory of its own row, in one long batch."""
    shape = jax.tree.leaves(obs)[0].shape[:2]
    flat_memory, flat_obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (memory, obs))  # [T, B] -> [T * B]
    features = module.remember(flat_memory, flat_obs)[1]
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), features)  # [T * B] -> [T, B]
