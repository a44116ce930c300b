"""Probe environments: tasks so small that the right answer is known and a wrong one names the broken part.

Each isolates one thing that a learner must get right. After Andy Jones, "Debugging reinforcement learning systems".
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from ludus.envs.base import Environment
from ludus.spaces import Box, Discrete
from ludus.types import Step

Answer = list[tuple[tuple[float, ...], float]]


@dataclass(frozen=True)
class Probe(Environment):
    """One action, and an observation that is also the state, unless the probe says otherwise."""

    start: ClassVar[tuple[float, ...]] = (0.0,)
    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(1)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Show `start`."""
        obs = jnp.array(self.start)
        return obs, obs

    def optimal_values(self, gamma: float) -> Answer:
        """Return pairs of an observation and its value under the optimal policy."""
        raise NotImplementedError

    def optimal_action(self, obs: tuple[float, ...]) -> int | float:
        """Return the best action where `obs` is seen."""
        return 0


class SignedProbe(Probe):
    """A probe that starts with an observation of -1 or +1, at random."""

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        obs = jax.random.rademacher(key, (1,), jnp.float32)
        return obs, obs


class ConstantReward(Probe):
    """Probe 1, value loss and optimiser: one step, reward 1. The value is 1."""

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        return state, Step(state, 1.0, True)

    def optimal_values(self, gamma: float) -> Answer:
        return [((0.0,), 1.0)]


class ObservedReward(SignedProbe):
    """Probe 2, backpropagation: one step, the reward is the observation. So is the value."""

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        return state, Step(state, state[0], True)

    def optimal_values(self, gamma: float) -> Answer:
        return [((-1.0,), -1.0), ((1.0,), 1.0)]


class DelayedReward(Probe):
    """Probe 3, discounting: observe 0, then 1, and only then earn 1. The values are gamma and 1."""

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        # The end shows 1 again, so that a learner which looks beyond a termination goes far astray.
        last, after = state[0] > 0, jnp.ones(1)
        return after, Step(after, jnp.where(last, 1.0, 0.0), last)

    def optimal_values(self, gamma: float) -> Answer:
        return [((0.0,), gamma), ((1.0,), 1.0)]


class ActionReward(ConstantReward):
    """Probe 4, advantage and policy loss: one step, action 1 earns 1 and action 0 earns -1. The value is 1."""

    action_space = Discrete(2)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        return state, Step(state, jnp.where(action == 1, 1.0, -1.0), True)

    def optimal_action(self, obs: tuple[float, ...]) -> int:
        return 1


class MatchedAction(SignedProbe):
    """Probe 5, policy and value together, stale batches: one step, 1 if the action (0, 1) matches the sign, else -1."""

    action_space = Discrete(2)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        return state, Step(state, jnp.where((state[0] > 0) == (action == 1), 1.0, -1.0), True)

    def optimal_values(self, gamma: float) -> Answer:
        return [((-1.0,), 1.0), ((1.0,), 1.0)]

    def optimal_action(self, obs: tuple[float, ...]) -> int:
        return int(obs[0] > 0)


class EndlessChain(Probe):
    """Probe 6, bootstrap at a cut: reward 1 for ever, only the time limit ends it. The value is 1 / (1 - gamma)."""

    max_episode_steps = 4

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        return state, Step(state, 1.0, False)

    def optimal_values(self, gamma: float) -> Answer:
        return [((0.0,), 1 / (1 - gamma))]


class FiniteChain(Probe):
    """Probe 7, no bootstrap at an end: four steps, seen one-hot, earn 1 each. The values are finite sums."""

    start = (1.0, 0.0, 0.0, 0.0)
    observation_space = Box(0.0, 1.0, (4,))

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        # The end shows the last step again: whoever looks beyond the termination finds the infinite sum there.
        last = state[3] > 0
        after = jnp.where(last, state, jnp.roll(state, 1))
        return after, Step(after, 1.0, last)

    def optimal_values(self, gamma: float) -> Answer:
        rows = [tuple(float(step == entry) for entry in range(4)) for step in range(4)]
        return [(row, sum(gamma**later for later in range(4 - step))) for step, row in enumerate(rows)]


class ContinuousTarget(Probe):
    """Probe 8, squash, scale and log-probability: one step, minus the squared distance to 1.2 in an uneven box."""

    action_space = Box(-0.3, 2.0, (1,))

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        return state, Step(state, -((action[0] - 1.2) ** 2), True)

    def optimal_values(self, gamma: float) -> Answer:
        return [((0.0,), 0.0)]

    def optimal_action(self, obs: tuple[float, ...]) -> float:
        return 1.2


class Memory(MatchedAction):
    """Probe 9, memory: the sign is seen at the first of three steps only; the third action must match it.

    The best return is 0 without memory and 1 with it; values and last actions are given by the first observation.
    """

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        cue, _ = super().reset(key)
        return jnp.concatenate([cue, jnp.zeros(1)]), cue

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        last, match = state[1] == 2, super().step(state, action, key)[1]
        return state + jnp.array([0.0, 1.0]), Step(jnp.zeros(1), jnp.where(last, match.reward, 0.0), last)

    def optimal_values(self, gamma: float) -> Answer:
        return [((-1.0,), gamma**2), ((1.0,), gamma**2)]


class LoudReset(Probe):
    """Probe 11, the true successor at a cut: a start is loud (100) and worth much, all else is 0 and worth little.

    Two steps earn 10 and -1. If what a reset shows leaks into `next_obs`, the quiet value rises far above zero.
    """

    start = (100.0,)
    observation_space = Box(0.0, 100.0, (1,))
    max_episode_steps = 2

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        quiet = jnp.zeros(1)
        return quiet, Step(quiet, jnp.where(state[0] > 0, 10.0, -1.0), False)

    def optimal_values(self, gamma: float) -> Answer:
        quiet = -1 / (1 - gamma)
        return [((100.0,), 10 + gamma * quiet), ((0.0,), quiet)]


PROBES = {
    "constant-reward": ConstantReward,
    "observed-reward": ObservedReward,
    "delayed-reward": DelayedReward,
    "action-reward": ActionReward,
    "matched-action": MatchedAction,
    "endless-chain": EndlessChain,
    "finite-chain": FiniteChain,
    "continuous-target": ContinuousTarget,
    "memory": Memory,
    "loud-reset": LoudReset,
}
