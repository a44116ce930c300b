"""Values of the states that a rollout of JAX environments passed through, by branches from each of them.

The rollout itself, and the randomness that it is made by, are the same with and without them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.batch import JaxEnv
from ludus.rollout.acting import Actor
from ludus.rollout.monte_carlo import Origin, Valuing, returns_in_parts, valued
from ludus.types import BRANCH_VALUE, NEXT_BRANCH_VALUE, Transition, Tree, Valuation


class Passed(NamedTuple):
    """The places `[T, B, ...]` that a rollout passed through."""

    origin: Origin
    """Where branches begin: before each step."""
    beyond: jax.Array
    """What the critic says of each step's true successor: all that is known of it where an episode was truncated."""


def critic_memory_at(algorithm: Actor, valuation: Valuation | None, is_start: bool, num_envs: int) -> Tree:
    """Return the critic's memory at the first step of a rollout."""
    if valuation is None:
        return ()
    return algorithm.initial_memory(valuation.critic, num_envs) if is_start else valuation.memory


def passed(
    algorithm: Valuing, policy: Tree, critic: Tree, origin: Origin, memory: Tree, next_obs: Tree
) -> tuple[Tree, Passed]:
    """Return the critic's memory after a step, and what branches need of it; `memory` is the policy's after it."""
    seen, _ = valued(algorithm, policy, critic, (origin.memory, origin.critic_memory), origin.env.obs)
    return seen, Passed(origin, valued(algorithm, policy, critic, (memory, seen), next_obs)[1])


def branch_values(
    algorithm: Valuing,
    env: JaxEnv,
    policy: Tree,
    valuation: Valuation,
    through: Passed,
    last: Origin,
    steps: Transition,
    key: jax.Array,
) -> dict[str, jax.Array]:
    """Return the values of every state and of its true successor `[T, B]`; `last` is where the rollout left off."""
    length, count = steps.reward.shape
    origin = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), through.origin, last)
    origin = origin._replace(wanted=_wanted(steps))
    states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), origin)  # [T + 1, B] -> [(T + 1) * B]
    each = returns_in_parts(algorithm, env, policy, valuation.critic, states, key, valuation.branching)
    value = each.mean(axis=0).reshape(length + 1, count)
    following = jnp.where(steps.truncated, through.beyond, value[1:])
    return {BRANCH_VALUE: value[:-1], NEXT_BRANCH_VALUE: jnp.where(steps.terminated, 0.0, following)}


def _wanted(steps: Transition) -> jax.Array | None:
    """Return which states `[T + 1, B]` a row that counts begins or ends in; None where all do."""
    if steps.valid is None:
        return None
    going = steps.valid & ~(steps.terminated | steps.truncated)
    nothing = jnp.zeros_like(going[:1])
    return jnp.concatenate([steps.valid, nothing]) | jnp.concatenate([nothing, going])
