"""A chain of states whose values under a coin have a closed form."""

from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

import ludus
from ludus.algorithms.hyperparameters import register
from ludus.spaces import Box, Discrete
from ludus.types import Step


@dataclass(frozen=True)
class Chain(ludus.Environment):
    """States 0 to 4: action 1 goes on, action 0 stays; the reward is the state's number, and state 4 ends it.

    With `slips`, an action does nothing in so many cases.
    """

    slips: float = 0.0
    max_episode_steps = 6
    observation_space = Box(0.0, 4.0, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        obs = jnp.zeros(1)
        return obs, obs

    def step(self, state, action, key):
        moves = (action == 1) & (jax.random.uniform(key) >= self.slips)
        after = state + moves
        return after, Step(after, after[0], after[0] == 4)


@dataclass(frozen=True)
class Coin(ludus.Algorithm):
    """Takes action 1 with a probability; its value of a state is 100 times its number."""

    chance: float = 1.0

    def rollout_length(self, num_envs):
        return 8

    def init(self, key, spec):
        return ()

    def policy(self, state):
        return ()

    def critic(self, state):
        return ()

    def value(self, critic, memory, obs, action=None):
        return memory, 100.0 * obs[:, 0]

    def act(self, policy, memory, obs, noise, mode):
        ones = jnp.ones(len(obs), jnp.int32)
        if mode == "greedy":
            return memory, ones, {"log_prob": jnp.zeros(len(obs))}
        heads = jax.vmap(jax.random.uniform)(noise) < self.chance
        log_prob = jnp.log(jnp.where(heads, self.chance, 1.0 - self.chance))
        return memory, heads.astype(jnp.int32), {"log_prob": log_prob}

    def update(self, state, rollout, key):
        return ludus.Update(state, {})


register(Coin)


@cache
def chain_value(state: int, left: int, chance: float, gamma: float, depth: int) -> float:
    """The value of a state under a coin, by the Bellman equation; beyond depth or limit it is 100 times its number."""
    if depth == 0 or left == 0:
        return 100.0 * state
    value = 0.0
    for after, probability in ((state + 1, chance), (state, 1 - chance)):
        beyond = 0.0 if after == 4 else chain_value(after, left - 1, chance, gamma, depth - 1)
        value += probability * (after + gamma * beyond)
    return value
