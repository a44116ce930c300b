"""The actor-critic networks, and the contract a user's own network meets."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from ludus.networks.action_scaling import action_size
from ludus.networks.distributions import Distribution, distribution_for
from ludus.networks.encoders import EncoderChoice, NoEncoder, ObservationEncoder
from ludus.networks.layers import Linear, Part, TorsoBuilder, generator_from
from ludus.networks.memory import MemoryUnit, Span
from ludus.spaces import Box, Space, leaves
from ludus.types import Spec, Tree

UnitBuilder = Callable[[int, np.random.Generator], MemoryUnit]
"""Builds a unit that remembers, from the number of its inputs."""

ONE_ENCODER = EncoderChoice(NoEncoder(), True)
"""Observations as vectors, images by convolutions that actor and critic share."""


class ActorCritic(nnx.Module):
    """The interface of a network for PPO. A user's own network overrides `actor` and `critic`.

    Observations are what the space says: arrays, or dicts and tuples of them. They and the features come with any
    number of leading batch axes: `[n, ...]` when acting, `[T, B, ...]` and more when learning. A network with memory
    overrides `initial_memory` and `remember` too; its `remember` is given one batch axis and runs step by step through
    time, everything else is applied to whole batches.
    """

    def initial_memory(self, n: int) -> Any:
        """Memory of `n` environments at an episode's start; `()` for none."""
        return ()

    def remember(self, memory: Tree, obs: Tree) -> tuple[Tree, Tree]:
        """Take in observations: the new memory and the features that actor and critic see."""
        return memory, obs

    def actor(self, features: Tree) -> Distribution:
        """Return the policy's distribution over actions."""
        raise NotImplementedError

    def critic(self, features: Tree) -> jax.Array:
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

    Only an encoder may be shared, as the convolutions over images are (detail 21 of PPO): they cost most, and see the
    same.
    """

    def __init__(self, spec: Spec, torso: TorsoBuilder, encoders: EncoderChoice = ONE_ENCODER, *, rngs: nnx.Rngs):
        """Build both networks for the spaces of `spec`."""
        generator = generator_from(rngs)
        self.shared = encoders.is_shared
        _add_encoders(self, encoders, spec, generator)
        size = self.encoder_of("actor").outputs
        self.actor_torso = torso("actor", size, generator)
        self.actor_head = ActionHead(self.actor_torso.outputs, spec.action_space, rngs=rngs)
        self.critic_torso = torso("critic", size, generator)
        self.critic_head = Linear(self.critic_torso.outputs, 1, 1.0, generator)

    def encoder_of(self, part: Part) -> ObservationEncoder:
        """Return the encoder of a part."""
        return _encoder(self, "encoder" if self.shared else f"{part}_encoder")

    def memory_of(self, part: Part) -> "MLPActorCritic | MemoryOf":
        """Return the view of a part: none has a memory, but each may have an encoder of its own."""
        return self if self.shared else MemoryOf(self.encoder_of(part), None)

    def remember(self, memory: Tree, obs: Tree) -> tuple[Tree, jax.Array]:
        """Remember nothing; the features are the observations as vectors, as the actor sees them."""
        return memory, self.encoder_of("actor")(obs)

    def actor(self, features: jax.Array) -> Distribution:
        """Return the policy's distribution."""
        return self.actor_head(self.actor_torso(features))

    def critic(self, features: jax.Array) -> jax.Array:
        """Return the state value."""
        return self.critic_head(self.critic_torso(features))[..., 0]


class MemoryOf:
    """The memory of an actor, a critic, or both: an encoder and, if there is one, a unit that remembers."""

    def __init__(self, encoder: ObservationEncoder, unit: MemoryUnit | None):
        """Hold the layers of a module."""
        self.encoder, self.unit = encoder, unit

    def initial_memory(self, n: int) -> Tree:
        """Memory of `n` environments at an episode's start."""
        return () if self.unit is None else self.unit.initial(n)

    def remember(self, memory: Tree, obs: Tree) -> tuple[Tree, jax.Array]:
        """Take in observations `[n, ...]`: the new memory and features `[n, outputs]`."""
        seen = self.encoder(obs)
        return (memory, seen) if self.unit is None else self.unit.step(memory, seen)

    def span(self, memory: Tree, obs: Tree, next_obs: Tree | None, ended: jax.Array, every: int) -> Span:
        """Take in observations `[T, B, ...]`; see `memory.MemoryUnit`."""
        after = None if next_obs is None else self.encoder(next_obs)
        seen = self.encoder(obs)
        return Span(seen, after, memory) if self.unit is None else self.unit.span(memory, seen, after, ended, every)


class MemoryActorCritic(ActorCritic):
    """An actor and a critic that remember: each by a unit of its own, so that neither's slope drowns the other's.

    The slope of a critic that learns returns in the hundreds is far greater than an actor's; through a unit that both
    share it drives that into saturation, and then neither learns. Sharing one is cheaper where returns are normalised.
    """

    def __init__(
        self,
        spec: Spec,
        unit: UnitBuilder,
        torso: TorsoBuilder,
        shared: bool,
        encoders: EncoderChoice = ONE_ENCODER,
        *,
        rngs: nnx.Rngs,
    ):
        """Build encoders, units, perceptrons and heads; a memory that is shared has one encoder."""
        generator = generator_from(rngs)
        _add_encoders(self, encoders, spec, generator)
        self.shared, self.shares_encoder = shared, encoders.is_shared
        inputs = self.encoder_of("actor").outputs
        if shared:
            self.memory = unit(inputs, generator)
        else:
            self.actor_memory = unit(inputs, generator)
            self.critic_memory = unit(inputs, generator)
        size = self._unit("actor").outputs
        self.actor_torso = torso("actor", size, generator)
        self.actor_head = ActionHead(self.actor_torso.outputs, spec.action_space, rngs=rngs)
        self.critic_torso = torso("critic", size, generator)
        self.critic_head = Linear(self.critic_torso.outputs, 1, 1.0, generator)

    def encoder_of(self, part: Part) -> ObservationEncoder:
        """Return the encoder of a part."""
        return _encoder(self, "encoder" if self.shares_encoder else f"{part}_encoder")

    def memory_of(self, part: Part) -> MemoryOf:
        """Return the memory of a part."""
        return MemoryOf(self.encoder_of(part), self._unit(part))

    def initial_memory(self, n: int) -> Tree:
        """Memory of the actor in `n` environments at an episode's start."""
        return self._unit("actor").initial(n)

    def remember(self, memory: Tree, obs: Tree) -> tuple[Tree, jax.Array]:
        """One step of the actor's memory."""
        return self.memory_of("actor").remember(memory, obs)

    def actor(self, features: jax.Array) -> Distribution:
        """Return the policy's distribution."""
        return self.actor_head(self.actor_torso(features))

    def critic(self, features: jax.Array) -> jax.Array:
        """Return the state value."""
        return self.critic_head(self.critic_torso(features))[..., 0]

    def _unit(self, part: Part) -> MemoryUnit:
        return self.memory if self.shared else self.actor_memory if part == "actor" else self.critic_memory


def _add_encoders(module: nnx.Module, encoders: EncoderChoice, spec: Spec, generator: np.random.Generator) -> None:
    """Give a module one encoder, or one for the actor and one for the critic."""
    for name in ("encoder",) if encoders.is_shared else ("actor_encoder", "critic_encoder"):
        setattr(module, name, encoders.build(spec.observation_space, generator, spec.scaling))


def _encoder(module: nnx.Module, name: str) -> ObservationEncoder:
    return getattr(module, name)
