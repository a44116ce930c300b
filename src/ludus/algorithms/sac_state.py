"""SAC's state: the whole of it, and the parts that acting, valuing and a gradient step take."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ludus.algorithms.normalize import normalize
from ludus.algorithms.replay import Drawn, Replay
from ludus.networks.distributions import TanhGaussian
from ludus.networks.network import Leaves, Network
from ludus.networks.soft_actor_critic import NUM_CRITICS, SoftNetworks, critic_step, initial_memory, one_critic
from ludus.types import Tree


class Parameters(NamedTuple):
    """The learnt arrays: those of the actor, of both critics (stacked), and the logarithm of the temperature."""

    actor: Tree
    critics: Tree
    log_alpha: Tree


class Learner(NamedTuple):
    """The state that changes from gradient step to gradient step."""

    parameters: Parameters
    target_critics: Leaves
    optimizers: Parameters


class Minibatch(NamedTuple):
    """Transitions to learn from, their weights, which sum to one, and the temperature."""

    drawn: Drawn
    weight: jax.Array
    alpha: jax.Array


class Guide(NamedTuple):
    """A second teacher of the actor, besides the critics: rows for each gradient step, and a loss of them."""

    draw: Callable[[jax.Array, Tree], Tree]
    """Rows by a key and the statistics of observations; devices share them as they share transitions."""
    loss: Callable[[Any, Tree, jax.Array], jax.Array]
    """The term that is added to the actor's loss, by its module, rows, and the mean size of the values."""


class PartUpdate(NamedTuple):
    """One part of the learner after its gradient step."""

    parameters: Tree
    optimizer: Tree
    gradient: Tree
    loss: jax.Array
    mean: jax.Array
    """A mean that is reported besides: of Q, or of log pi."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SACPolicy:
    """The part that acting needs: actor, observation statistics, and how many random steps are still to be taken."""

    parameters: Leaves
    observations: Tree
    warmup_left: jax.Array
    network: Network = field(metadata={"static": True})

    def initial_memory(self, n: int) -> Tree:
        """Return the memory of `n` environments at an episode's start; `()` if there is none."""
        return initial_memory(self.network, self.parameters, n)

    def step(self, memory: Tree, obs: Tree) -> tuple[Tree, TanhGaussian]:
        """Return the new memory and the distribution over actions."""
        return self.network.merge(self.parameters).step(memory, normalize(self.observations, obs))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SACCritic:
    """The part that valuing needs: both critics (stacked) and the observation statistics."""

    parameters: Leaves
    observations: Tree
    network: Network = field(metadata={"static": True})

    def initial_memory(self, n: int) -> Tree:
        """Return the memory of both critics `[n, 2, ...]`; `()` if there is none."""
        one = initial_memory(self.network, one_critic(self.network, self.parameters, 0), n)
        return jax.tree.map(lambda x: jnp.stack([x] * NUM_CRITICS, axis=1), one)

    def step(self, memory: Tree, obs: Tree, action: jax.Array) -> tuple[Tree, jax.Array]:
        """Return the new memory and the lesser value of actions in units of their bounds."""
        seen = normalize(self.observations, obs)
        memory, values = critic_step(self.network, self.parameters, memory, seen, action)
        return memory, values.min(axis=0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SACState:
    """Everything SAC learns or remembers between updates."""

    learner: Learner
    observations: Tree
    replay: Replay
    warmup_left: jax.Array
    owed_updates: jax.Array
    networks: SoftNetworks = field(metadata={"static": True})

    def with_policy(self, policy: SACPolicy) -> "SACState":
        """Return it with another actor, its statistics and the steps of warm-up that are left.

        An encoder that it shares is that of the critics and of their targets too.
        """
        ours, targets = self.learner.parameters, self.learner.target_critics
        critics, targets = (self.networks.critics_with_encoder(x, policy.parameters) for x in (ours.critics, targets))
        parameters = ours._replace(actor=policy.parameters, critics=critics)
        learner = self.learner._replace(parameters=parameters, target_critics=targets)
        return replace(self, learner=learner, observations=policy.observations, warmup_left=policy.warmup_left)

    def with_critic(self, critic: SACCritic) -> "SACState":
        """Return it with other critics and their statistics; the targets begin where the critics are.

        An encoder that they share is the actor's too.
        """
        actor = self.networks.with_encoder(self.learner.parameters.actor, critic.parameters)
        parameters = self.learner.parameters._replace(actor=actor, critics=critic.parameters)
        targets = jax.tree.map(jnp.copy, critic.parameters)
        learner = self.learner._replace(parameters=parameters, target_critics=targets)
        return replace(self, learner=learner, observations=critic.observations)


class Noise(NamedTuple):
    """Exploration drawn ahead: normals for the policy, uniform actions for warm-up, and which of them to use."""

    normal: jax.Array
    uniform: jax.Array
    is_warmup: jax.Array
