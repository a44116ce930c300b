"""The networks of soft actor-critic: a squashed Gaussian actor and a critic of observation and action.

Each has its own encoder: what the critics learn to see does not move under the actor.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ludus.networks.distributions import TanhGaussian
from ludus.networks.encoder import Encoder
from ludus.networks.layers import Linear, Torso, action_size, generator_from
from ludus.types import Spec

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""The actor's log standard deviation is kept between these (Haarnoja et al. 2018)."""


class SoftActor(nnx.Module):
    """A perceptron with two heads, for the mean and the log standard deviation of each action before squashing."""

    def __init__(self, spec: Spec, hidden_sizes: tuple[int, ...], activation: str, *, rngs: nnx.Rngs):
        """Build the layers; the heads' small gain makes the first policy the same everywhere."""
        generator = generator_from(rngs)
        self.encoder = Encoder(spec.observation_space, generator, spec.scaling)
        self.torso = Torso(self.encoder.outputs, hidden_sizes, activation, generator)
        self.mean = Linear(self.torso.outputs, action_size(spec.action_space), 0.01, generator)
        self.log_std = Linear(self.torso.outputs, action_size(spec.action_space), 0.01, generator)

    def __call__(self, obs: Any) -> TanhGaussian:
        """Return the policy's distribution."""
        features = self.torso(self.encoder(obs))
        return TanhGaussian(self.mean(features), jnp.clip(self.log_std(features), LOG_STD_MIN, LOG_STD_MAX))


class SoftCritic(nnx.Module):
    """A perceptron that sees observation and action side by side and tells the action's value."""

    def __init__(self, spec: Spec, hidden_sizes: tuple[int, ...], activation: str, *, rngs: nnx.Rngs):
        """Build the layers."""
        generator = generator_from(rngs)
        self.encoder = Encoder(spec.observation_space, generator, spec.scaling)
        inputs = self.encoder.outputs + action_size(spec.action_space)
        self.torso = Torso(inputs, hidden_sizes, activation, generator)
        self.head = Linear(self.torso.outputs, 1, 1.0, generator)

    def __call__(self, obs: Any, action: jax.Array) -> jax.Array:
        """Return the value `[...]` of actions `[..., d]` in units where the bounds are -1 and 1."""
        inputs = jnp.concatenate([self.encoder(obs), action], axis=-1)
        return self.head(self.torso(inputs))[..., 0]


@dataclass(frozen=True)
class ActorOf:
    """Builds the actor of a network's configuration; compares by value, so that programs are shared."""

    network: Any

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> nnx.Module:
        """Build the module."""
        return self.network.soft_actor(spec, rngs)


@dataclass(frozen=True)
class CriticOf:
    """Builds one critic of a network's configuration."""

    network: Any

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> nnx.Module:
        """Build the module."""
        return self.network.soft_critic(spec, rngs)
