"""The actor-critic networks, and the contract a user's own network meets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.networks.distributions import Distribution, distribution_for
from ludus.networks.encoder import Encoder
from ludus.networks.layers import ACTIVATIONS, Linear, Torso, action_size, generator_from
from ludus.networks.soft_actor_critic import SoftActor, SoftCritic
from ludus.spaces import Box, Space, leaves
from ludus.types import LudusError, Spec


class ActorCritic(nnx.Module):
    """What PPO asks of a network. A user's own network overrides `actor` and `critic`.

    Observations are what the space says: arrays, or dicts and tuples of them. They and the features come with any
    number of leading batch axes: `[n, ...]` when acting, `[T, B, ...]` and more when learning. A network with memory
    overrides `initial_memory` and `remember` too; its `remember` is given one batch axis and runs step by step through
    time, everything else is applied to whole batches.
    """

    def initial_memory(self, n: int) -> Any:
        """Memory of `n` environments at an episode's start; `()` for none."""
        return ()

    def remember(self, memory: Any, obs: Any) -> tuple[Any, Any]:
        """Take in observations: the new memory and the features that actor and critic see."""
        return memory, obs

    def actor(self, features: Any) -> Distribution:
        """Return the policy's distribution over actions."""
        raise NotImplementedError

    def critic(self, features: Any) -> jax.Array:
        """Return the state value `[...]`."""
        raise NotImplementedError


class ActionHead(nnx.Module):
    """Last layer of a policy: the action space chooses its distribution, and deviations do not depend on the state."""

    def __init__(self, inputs: int, space: Space, *, rngs: nnx.Rngs):
        """Build the layer; its small gain makes the first policy nearly uniform."""
        self.space = space
        self.layer = Linear(inputs, action_size(space), 0.01, generator_from(rngs))
        real_numbers = sum(action_size(leaf) for _, leaf in leaves(space) if isinstance(leaf, Box))
        if real_numbers:
            self.log_std = nnx.Param(jax.device_put(np.zeros(real_numbers, np.float32)))

    def __call__(self, features: jax.Array) -> Distribution:
        """Return the distribution for each row of features."""
        log_std = self.log_std[...] if hasattr(self, "log_std") else None
        return distribution_for(self.space, self.layer(features), log_std)


class MLPActorCritic(ActorCritic):
    """Two separate perceptrons: nothing the critic learns disturbs the actor.

    Only the convolutions over images are shared (detail 21 of PPO): they cost most, and see the same.
    """

    def __init__(self, spec: Spec, config: "MLP", *, rngs: nnx.Rngs):
        """Build both networks for the spaces of `spec`."""
        generator = generator_from(rngs)
        self.encoder = Encoder(spec.observation_space, generator, spec.scaling)
        self.actor_torso = Torso(self.encoder.outputs, config.hidden_sizes, config.activation, generator)
        self.actor_head = ActionHead(self.actor_torso.outputs, spec.action_space, rngs=rngs)
        self.critic_torso = Torso(self.encoder.outputs, critic_sizes(config), config.activation, generator)
        self.critic_head = Linear(self.critic_torso.outputs, 1, 1.0, generator)

    def remember(self, memory: Any, obs: Any) -> tuple[Any, jax.Array]:
        """Nothing is remembered; the features are the observations as vectors."""
        return memory, self.encoder(obs)

    def actor(self, features: jax.Array) -> Distribution:
        """Return the policy's distribution."""
        return self.actor_head(self.actor_torso(features))

    def critic(self, features: jax.Array) -> jax.Array:
        """Return the state value."""
        return self.critic_head(self.critic_torso(features))[..., 0]


class GRUActorCritic(ActorCritic):
    """A gated recurrent unit (Cho et al. 2014, arXiv 1406.1078) shared by an actor and a critic perceptron."""

    def __init__(self, spec: Spec, config: "GRU", *, rngs: nnx.Rngs):
        """Build the unit and both perceptrons."""
        self.size = config.memory_size
        generator = generator_from(rngs)
        self.encoder = Encoder(spec.observation_space, generator, spec.scaling)
        # Reset gate, update gate and candidate in one product each. Detail 32: orthogonal with gain 1, zero bias.
        self.from_input = Linear(self.encoder.outputs, 3 * self.size, 1.0, generator)
        self.from_memory = Linear(self.size, 3 * self.size, 1.0, generator)
        self.actor_torso = Torso(self.size, config.hidden_sizes, config.activation, generator)
        self.actor_head = ActionHead(self.actor_torso.outputs, spec.action_space, rngs=rngs)
        self.critic_torso = Torso(self.size, critic_sizes(config), config.activation, generator)
        self.critic_head = Linear(self.critic_torso.outputs, 1, 1.0, generator)

    def initial_memory(self, n: int) -> jax.Array:
        """Zeros `[n, memory_size]`."""
        return jnp.zeros((n, self.size))

    def remember(self, memory: jax.Array, obs: Any) -> tuple[jax.Array, jax.Array]:
        """One step of the unit; the new memory is also the features."""
        x_reset, x_update, x_new = jnp.split(self.from_input(self.encoder(obs)), 3, axis=-1)
        h_reset, h_update, h_new = jnp.split(self.from_memory(memory), 3, axis=-1)
        update = jax.nn.sigmoid(x_update + h_update)
        candidate = jnp.tanh(x_new + jax.nn.sigmoid(x_reset + h_reset) * h_new)
        memory = update * memory + (1.0 - update) * candidate
        return memory, memory

    def actor(self, features: jax.Array) -> Distribution:
        """Return the policy's distribution."""
        return self.actor_head(self.actor_torso(features))

    def critic(self, features: jax.Array) -> jax.Array:
        """Return the state value."""
        return self.critic_head(self.critic_torso(features))[..., 0]


@dataclass(frozen=True)
class MLP:
    """Separate actor and critic perceptrons."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Width of each hidden layer, e.g. [64, 128, 256]."""
    activation: str = "tanh"
    """Nonlinearity after each hidden layer: tanh, relu, elu, gelu or silu."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Width of each hidden layer of the critic; null: as the actor's."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        _check_torso(self)

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> ActorCritic:
        """Build the network."""
        return MLPActorCritic(spec, self, rngs=rngs)

    def soft_actor(self, spec: Spec, rngs: nnx.Rngs) -> SoftActor:
        """Build SAC's actor."""
        return SoftActor(spec, self.hidden_sizes, self.activation, rngs=rngs)

    def soft_critic(self, spec: Spec, rngs: nnx.Rngs) -> SoftCritic:
        """Build one of SAC's critics."""
        return SoftCritic(spec, critic_sizes(self), self.activation, rngs=rngs)


@dataclass(frozen=True)
class GRU:
    """A recurrent network, for environments that do not show their whole state."""

    memory_size: int = 64
    """Length of the memory vector."""
    hidden_sizes: tuple[int, ...] = (64,)
    """Width of each hidden layer after the memory."""
    activation: str = "tanh"
    """Nonlinearity after each hidden layer: tanh, relu, elu, gelu or silu."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Width of each hidden layer of the critic after the memory; null: as the actor's."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        _check_torso(self)
        if self.memory_size < 1:
            raise LudusError(f"algorithm.network.memory_size={self.memory_size}: must be at least 1")

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> ActorCritic:
        """Build the network."""
        return GRUActorCritic(spec, self, rngs=rngs)


NETWORKS: dict[str, type] = {"mlp": MLP, "gru": GRU}

NetworkBuilder = Callable[[Spec, nnx.Rngs], ActorCritic]


def critic_sizes(config: MLP | GRU) -> tuple[int, ...]:
    """Return the widths of the critic's hidden layers."""
    return config.hidden_sizes if config.critic_hidden_sizes is None else config.critic_hidden_sizes


def _check_torso(config: MLP | GRU) -> None:
    for name in ("hidden_sizes", "critic_hidden_sizes"):
        sizes = getattr(config, name)
        if sizes is None and name == "critic_hidden_sizes":
            continue
        object.__setattr__(config, name, tuple(sizes))  # a list from a config file is welcome
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise LudusError(f"algorithm.network.{name}={list(sizes)}: every size must be a positive integer")
    if config.activation not in ACTIVATIONS:
        raise LudusError(f"algorithm.network.activation={config.activation!r}: must be one of {', '.join(ACTIVATIONS)}")
