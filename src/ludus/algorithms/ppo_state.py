"""PPO's state: the whole of it, and the parts that acting, valuing and the epochs of an update take."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ludus.algorithms.normalize import RunningStatistics, location_and_scale, normalize, standard_deviation
from ludus.networks.distributions import Distribution, restricted
from ludus.networks.network import Leaves, Network
from ludus.networks.recurrence import memory_of
from ludus.types import Tree, split_mask


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPOPolicy:
    """The part that acting needs: parameters and the observation statistics they were trained with.

    Statistics are a tree like the observation, with None for what is not normalised.
    """

    parameters: Leaves
    observations: Tree
    network: Network = field(metadata={"static": True})

    def initial_memory(self, n: int) -> Tree:
        """Whatever the actor remembers at the start of an episode."""
        return memory_of(self.network.merge(self.parameters), "actor").initial_memory(n)

    def step(self, memory: Tree, obs: Tree) -> tuple[Tree, Distribution]:
        """Return the new memory and the distribution over actions."""
        module, (obs, mask) = self.network.merge(self.parameters), split_mask(obs)
        memory, features = memory_of(module, "actor").remember(memory, normalize(self.observations, obs))
        return memory, restricted(self.network.spec.action_space, module.actor(features), mask)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPOCritic:
    """The part that valuing needs: parameters and the statistics of observations, returns and rewards."""

    parameters: Leaves
    observations: Tree
    returns: RunningStatistics | None
    rewards: RunningStatistics | None
    network: Network = field(metadata={"static": True})

    def initial_memory(self, n: int) -> Tree:
        """Whatever the critic remembers at the start of an episode."""
        return memory_of(self.network.merge(self.parameters), "critic").initial_memory(n)

    def step(self, memory: Tree, obs: Tree) -> tuple[Tree, jax.Array]:
        """Return the new memory and the values of observations, in units of the environment's rewards.

        With normalised rewards, one that was clipped counts as `CLIP` deviations in it.
        """
        module, (obs, _) = self.network.merge(self.parameters), split_mask(obs)
        memory, features = memory_of(module, "critic").remember(memory, normalize(self.observations, obs))
        mean, scale = location_and_scale(self.returns)
        value = mean + scale * module.critic(features)
        return memory, value if self.rewards is None else value * standard_deviation(self.rewards)


class Penalty(NamedTuple):
    """The state of a penalty on the divergence from a reference (`kl_penalty.py`)."""

    coefficient: Any = ()
    """Its weight in the next update; `()` where that is fixed."""
    reference: PPOPolicy | None = None
    """The policy that training started from; None where the reference is the policy before each update."""
    memory: Tree = ()
    """The reference's memory at the next rollout's first step."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPOState:
    """Everything PPO learns or remembers between updates."""

    parameters: Leaves
    optimizer: Tree
    observations: Tree
    returns: RunningStatistics | None
    rewards: RunningStatistics | None
    discounted: jax.Array
    critic_memory: Tree
    """The critic's memory at the next rollout's first step; `()` if it has none of its own."""
    network: Network = field(metadata={"static": True})
    penalty: Penalty | None = None
    """None without a penalty on divergence."""

    def with_policy(self, policy: PPOPolicy, penalty: Penalty | None) -> "PPOState":
        """Return it with the parameters that another actor uses, and its statistics."""
        parameters = self.network.exchanged(self.parameters, policy.parameters, "actor")
        return replace(self, parameters=parameters, observations=policy.observations, penalty=penalty)

    def with_critic(self, critic: PPOCritic) -> "PPOState":
        """Return it with the parameters that another critic uses, and its statistics."""
        parameters = self.network.exchanged(self.parameters, critic.parameters, "critic")
        state = replace(self, observations=critic.observations, returns=critic.returns, rewards=critic.rewards)
        return replace(state, parameters=parameters)

    def with_envs(self, num_envs: int, penalty: Penalty | None) -> "PPOState":
        """Return it for so many environments."""
        if len(self.discounted) == num_envs:
            return self
        memory = blank_memory(self.network, self.parameters, num_envs)
        discounted = jax.device_put(np.zeros(num_envs, np.float32))
        return replace(self, discounted=discounted, critic_memory=memory, penalty=penalty)


class EpochState(NamedTuple):
    """The state that changes from minibatch to minibatch."""

    parameters: Leaves
    optimizer: Tree
    stopped: jax.Array
    gradient: jax.Array
    dropout: jax.Array | None = None
    """The key of the critic's dropout; None where it has none."""


def blank_memory(network: Network, parameters: Leaves, num_envs: int) -> Tree:
    """Return the memory that a critic begins with; `()` if it has none of its own."""
    if network.shares_memory:
        return ()
    start = jax.eval_shape(lambda: memory_of(network.merge(parameters), "critic").initial_memory(num_envs))
    return jax.device_put(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), start))
