"""Look-ahead at decision time: the policy plays on from several actions, and the one whose rollouts earn most is taken.

All actions are tried with the same luck, so that they are told apart by what they do; of equals the policy's own is
taken. Nothing is learnt from it.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ludus.envs.batch import JaxEnv
from ludus.rollout.episodes import episode_noise
from ludus.rollout.monte_carlo import Origin, Valuing, returns, valued
from ludus.spaces import Discrete, Space
from ludus.types import Array, Branching, Lookahead, Tree, split_mask

EVERY_ACTION = 32
"""Discrete spaces of up to so many actions are tried out in full; of others, samples of the policy."""


def ahead(algorithm: Valuing, env: JaxEnv, policy: Tree, lookahead: Lookahead, origin: Origin, key: jax.Array) -> Any:
    """Return the best of the actions that are tried in each state, and the critic's memory after it."""
    memory, critic = (origin.memory, origin.critic_memory), lookahead.critic
    tried_key, branch_key = jax.random.split(key)
    tried = candidates(algorithm, policy, origin.memory, origin.env.obs, tried_key, env.action_space, lookahead.count)
    branching = Branching(lookahead.count, lookahead.depth, lookahead.gamma)

    def value(action: Tree) -> jax.Array:
        each = returns(algorithm, env, policy, critic, origin, branch_key, branching, begin_with=action)
        return each.mean(axis=0)

    seen = () if critic is None else valued(algorithm, policy, critic, memory, origin.env.obs)[0]
    return best(tried, jax.vmap(value)(tried)), seen


def candidates(
    algorithm: Valuing,
    policy: Tree,
    memory: Tree,
    obs: Tree,
    key: jax.Array,
    space: Space,
    count: int,
    first: Array = 0,
) -> Tree:
    """Return the actions to try `[C, N, ...]`: the greedy one, then all that there are, or `count` samples.

    In place of a forbidden one stands the greedy. `first` is the number of the first state, whose samples depend on it.
    """
    greedy, lanes = algorithm.act(policy, memory, obs, None, "greedy")[1], len(jax.tree.leaves(obs)[0])
    if isinstance(space, Discrete) and space.n <= EVERY_ACTION:
        mask = split_mask(obs)[1]
        others = jnp.broadcast_to(jnp.arange(space.n)[:, None] + space.start, (space.n, lanes)).astype(greedy.dtype)
        others = others if mask is None else jnp.where(mask.T, others, greedy)
    else:

        def sampled(number: jax.Array) -> Tree:
            noise = episode_noise(algorithm, policy, key, number, lanes, first)
            return algorithm.act(policy, memory, obs, noise, "sample")[1]

        others = jax.vmap(sampled)(jnp.arange(count))
    return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), greedy, others)


def best(tried: Tree, values: Array) -> Tree:
    """Return the action of the highest value `[C, N]` in each state; of equals, the first."""
    index = values.argmax(axis=0)
    return jax.tree.map(lambda x: x[index, jnp.arange(len(index))], tried)
