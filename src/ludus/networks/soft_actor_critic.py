"""The networks of soft actor-critic: a squashed Gaussian actor and a critic of observation and action.

Each has its own encoder, and its own memory if the configuration has one: what the critics learn to see does not move
under the actor. With `share_encoder` there is one encoder for all three, which the critics' loss alone trains; the
target critics have a copy that follows it, as all of them follows, and the actor's parameters hold another, which is
renewed at each gradient step, so that a policy stays complete. A network with a memory takes one step at a time while
it acts, and whole sequences while it learns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.networks.action_scaling import action_size
from ludus.networks.actor_critic import UnitBuilder
from ludus.networks.distributions import TanhGaussian
from ludus.networks.encoders import EncoderBuilder, NoEncoder, ObservationEncoder
from ludus.networks.layers import Linear, Part, Torso, TorsoBuilder, generator_from
from ludus.networks.memory import MemoryUnit
from ludus.networks.network import Leaves, Network, network_for
from ludus.types import Spec, Tree

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""The actor's log standard deviation is kept between these (Haarnoja et al. 2018)."""

NUM_CRITICS = 2
NO_ENCODER = NoEncoder()
ENCODER = "encoder/"
"""Beginning of the names of an encoder's parameters."""


class TorsoConfig(Protocol):
    """The protocol of a network's configuration, which `MLP` keeps: hidden layers for an actor or a critic.

    One with a memory, as `GRU` and `Transformer`, besides has `unit(inputs, generator)`, which builds it; one with an
    encoder has `encoder` and `share_encoder`.
    """

    def torso(self, part: Part, inputs: int, generator: np.random.Generator) -> Torso:
        """Build the hidden layers."""
        ...


class Past(NamedTuple):
    """Sequences as a network with a memory is shown them, time first: it begins each with a blank memory."""

    before: tuple[Tree, jax.Array] | None
    """Observations and ends of the steps that only fill the memory, without a gradient; None if there are none."""
    obs: Tree
    """Observations `[L, n, ...]`."""
    next_obs: Tree | None
    """Their true successors, if those are to be seen, each by what was remembered at its step; else None."""
    ended: jax.Array
    """Where an episode's last step is, `[L, n]`."""


class Seen:
    """An encoder and, if there is one, the unit that remembers what it makes of observations."""

    def __init__(self, encoder: ObservationEncoder, unit: MemoryUnit | None):
        """Hold the layers of a module."""
        self.encoder, self.unit = encoder, unit

    @property
    def outputs(self) -> int:
        """Length of the features."""
        return self.encoder.outputs if self.unit is None else self.unit.outputs

    def step(self, memory: Tree, obs: Tree) -> tuple[Tree, jax.Array]:
        """Take in observations `[n, ...]`: the new memory and features `[n, outputs]`."""
        return (memory, self.encoder(obs)) if self.unit is None else self.unit.step(memory, self.encoder(obs))

    def whole(self, obs: Tree) -> jax.Array:
        """Return the features of observations `[..., *shape]`, or, with a memory, of a `Past`."""
        if self.unit is None:
            return self.encoder(obs)
        past: Past = obs
        memory = self.unit.initial(past.ended.shape[1])
        if past.before is not None:
            shown, ended = past.before
            filled = self.unit.span(memory, self.encoder(shown), None, ended, len(ended)).memories
            memory = jax.lax.stop_gradient(jax.tree.map(lambda x: x[-1], filled))
        after = None if past.next_obs is None else self.encoder(past.next_obs)
        seen = self.unit.span(memory, self.encoder(past.obs), after, past.ended, len(past.ended))
        return seen.features if after is None else seen.next_features


class SoftActor(nnx.Module):
    """A perceptron with two heads, for the mean and the log standard deviation of each action before squashing."""

    def __init__(
        self,
        spec: Spec,
        torso: TorsoBuilder,
        unit: UnitBuilder | None = None,
        encoder: EncoderBuilder = NO_ENCODER,
        *,
        rngs: nnx.Rngs,
    ):
        """Build the layers; the heads' small gain makes the first policy the same everywhere."""
        generator = generator_from(rngs)
        self.encoder = encoder(spec.observation_space, generator, spec.scaling)
        self.memory = None if unit is None else unit(self.encoder.outputs, generator)
        self.torso = torso("actor", self.seen.outputs, generator)
        self.mean = Linear(self.torso.outputs, action_size(spec.action_space), 0.01, generator)
        self.log_std = Linear(self.torso.outputs, action_size(spec.action_space), 0.01, generator)

    @property
    def seen(self) -> Seen:
        """Return its view of observations."""
        return Seen(self.encoder, self.memory)

    def __call__(self, obs: Tree) -> TanhGaussian:
        """Return the policy's distribution for observations, or for a `Past` with a memory."""
        return self._heads(self.seen.whole(obs))

    def step(self, memory: Tree, obs: Tree) -> tuple[Tree, TanhGaussian]:
        """Return the new memory and the policy's distribution."""
        memory, features = self.seen.step(memory, obs)
        return memory, self._heads(features)

    def _heads(self, features: jax.Array) -> TanhGaussian:
        features = self.torso(features)
        return TanhGaussian(self.mean(features), jnp.clip(self.log_std(features), LOG_STD_MIN, LOG_STD_MAX))


class SoftCritic(nnx.Module):
    """A perceptron that sees observation and action side by side and tells the action's value."""

    def __init__(
        self,
        spec: Spec,
        torso: TorsoBuilder,
        unit: UnitBuilder | None = None,
        encoder: EncoderBuilder = NO_ENCODER,
        *,
        rngs: nnx.Rngs,
    ):
        """Build the layers."""
        generator = generator_from(rngs)
        self.encoder = encoder(spec.observation_space, generator, spec.scaling)
        self.memory = None if unit is None else unit(self.encoder.outputs, generator)
        inputs = self.seen.outputs + action_size(spec.action_space)
        self.torso = torso("critic", inputs, generator)
        self.head = Linear(self.torso.outputs, 1, 1.0, generator)

    @property
    def seen(self) -> Seen:
        """Return its view of observations."""
        return Seen(self.encoder, self.memory)

    def __call__(self, obs: Tree, action: jax.Array) -> jax.Array:
        """Return the value `[...]` of actions `[..., d]` in units where the bounds are -1 and 1."""
        return self._judged(self.seen.whole(obs), action)

    def step(self, memory: Tree, obs: Tree, action: jax.Array) -> tuple[Tree, jax.Array]:
        """Return the new memory and the value."""
        memory, features = self.seen.step(memory, obs)
        return memory, self._judged(features, action)

    def _judged(self, features: jax.Array, action: jax.Array) -> jax.Array:
        return self.head(self.torso(jnp.concatenate([features, action], axis=-1)))[..., 0]


@dataclass(frozen=True)
class ActorOf:
    """Builds the actor on a configuration's torso; compares by value, so that programs are shared."""

    network: TorsoConfig

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> nnx.Module:
        """Build the module."""
        return SoftActor(spec, self.network.torso, *_layers(self.network), rngs=rngs)


@dataclass(frozen=True)
class CriticOf:
    """Builds one critic on a configuration's torso."""

    network: TorsoConfig

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> nnx.Module:
        """Build the module."""
        return SoftCritic(spec, self.network.torso, *_layers(self.network), rngs=rngs)


def _layers(network: TorsoConfig) -> tuple[UnitBuilder | None, EncoderBuilder]:
    """Return the builders of the memory, if there is one, and of the encoder."""
    return getattr(network, "unit", None), getattr(network, "encoder", NO_ENCODER)


class SoftNetworks(NamedTuple):
    """The static halves of the two kinds of network."""

    actor: Network
    critic: Network
    has_memory: bool = False
    shares_encoder: bool = False

    def stacked(self, critics: Sequence[Leaves]) -> Leaves:
        """Return the parameters of both critics as one: stacked, but for an encoder that they share."""
        both = zip(self.critic.names, *critics, strict=True)
        is_one = self.shares_encoder
        return tuple(x[0] if is_one and name.startswith(ENCODER) else jnp.stack(x) for name, *x in both)

    def with_encoder(self, actor: Leaves, critics: Leaves) -> Leaves:
        """Return the actor's parameters with the encoder that it shares with the critics; else as they are."""
        return _exchanged(self.actor, actor, self.critic, critics) if self.shares_encoder else actor

    def critics_with_encoder(self, critics: Leaves, actor: Leaves) -> Leaves:
        """Return the critics' parameters with the actor's encoder, if they share it; else as they are."""
        return _exchanged(self.critic, critics, self.actor, actor) if self.shares_encoder else critics

    def without_slope(self, actor: Leaves) -> Leaves:
        """Return the actor's parameters, of which those of a shared encoder have no slope."""
        if not self.shares_encoder:
            return actor
        pairs = zip(self.actor.names, actor, strict=True)
        return tuple(jax.lax.stop_gradient(x) if name.startswith(ENCODER) else x for name, x in pairs)


def _exchanged(network: Network, ours: Leaves, other: Network, theirs: Leaves) -> Leaves:
    """Return parameters of which those of the encoder are another network's."""
    pairs = zip(other.names, theirs, strict=True)
    encoder = {name: jnp.copy(x) for name, x in pairs if name.startswith(ENCODER)}  # no two may be one buffer
    return tuple(encoder.get(name, x) for name, x in zip(network.names, ours, strict=True))


def soft_networks(config: TorsoConfig, spec: Spec) -> SoftNetworks:
    """Return the actor's and the critics' network on a configuration's torso."""
    actor, critic = network_for(ActorOf(config), spec), network_for(CriticOf(config), spec)
    return SoftNetworks(actor, critic, hasattr(config, "unit"), bool(getattr(config, "share_encoder", False)))


def initial_memory(network: Network, parameters: Leaves, n: int) -> Tree:
    """Return the memory of an actor or one critic in `n` environments at an episode's start; `()` if it has none."""
    unit = network.merge(parameters).memory
    return () if unit is None else unit.initial(n)


def stacked_axes(network: Network, critics: Leaves) -> tuple[int | None, ...]:
    """Return the axis along which each parameter of both critics is stacked; None for those that they share."""
    return tuple(None if x.ndim == len(shape) else 0 for x, shape in zip(critics, network.shapes, strict=True))


def one_critic(network: Network, critics: Leaves, number: int) -> Leaves:
    """Return the parameters of one of both critics."""
    axes = zip(stacked_axes(network, critics), critics, strict=True)
    return tuple(leaf if axis is None else leaf[number] for axis, leaf in axes)


def critic_values(network: Network, critics: Leaves, obs: Tree, action: jax.Array) -> jax.Array:
    """Return the values of each critic, `[2, n]`; the parameters of both are stacked, but for what they share."""

    def judge(leaves: Leaves) -> jax.Array:
        return network.merge(leaves)(obs, action)

    if network.has_filters:
        # Filters of two networks at once would be convolutions in groups, which take half as long again.
        return jnp.stack([judge(one_critic(network, critics, i)) for i in range(NUM_CRITICS)])
    return jax.vmap(judge, in_axes=(stacked_axes(network, critics),))(critics)


def critic_step(
    network: Network, critics: Leaves, memory: Tree, obs: Tree, action: jax.Array
) -> tuple[Tree, jax.Array]:
    """Return the new memory of both critics `[n, 2, ...]` and their values `[2, n]`, for one step."""
    if not jax.tree.leaves(memory):
        return memory, critic_values(network, critics, obs, action)

    def judge(leaves: Leaves, memory: Tree) -> tuple[Tree, jax.Array]:
        return network.merge(leaves).step(memory, obs, action)

    return jax.vmap(judge, in_axes=(stacked_axes(network, critics), 1), out_axes=(1, 0))(critics, memory)
