"""Builders: a network's configuration, from which the network is made for the spaces of an environment.

They know no algorithm. PPO calls one with `(spec, rngs)` for an actor-critic; SAC asks for torsos, and for units that
remember, and puts heads of its own on them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flax import nnx

from ludus.networks.actor_critic import ActorCritic, MemoryActorCritic, MLPActorCritic
from ludus.networks.encoders import EncoderBuilder, EncoderChoice, NoEncoder
from ludus.networks.layers import ACTIVATIONS, Part, Torso
from ludus.networks.memory import GRUMemory, TransformerMemory
from ludus.networks.window import WindowMemory
from ludus.types import LudusError, Spec

CHOSEN = {"configurable": False}
"""A field that is chosen as a whole group of settings, and is no key itself."""


@dataclass(frozen=True)
class MLP:
    """Separate actor and critic perceptrons."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Width of each hidden layer, e.g. [64, 128, 256]."""
    activation: str = "tanh"
    """Nonlinearity after each hidden layer: tanh, relu, elu, gelu or silu."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Width of each hidden layer of the critic; null: as the actor's."""
    encoder: EncoderBuilder = field(default=NoEncoder(), metadata=CHOSEN)
    """Makes a vector of observations; see `encoders.py`."""
    share_encoder: bool | None = None
    """Whether actor and critic have one encoder; null: only in PPO, and only encoder=none, whose images cost most."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        _check_torso(self)

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> ActorCritic:
        """Build an actor-critic."""
        return MLPActorCritic(spec, self.torso, _encoders(self), rngs=rngs)

    def torso(self, part: Part, inputs: int, generator: np.random.Generator) -> Torso:
        """Build the hidden layers of an actor or a critic."""
        return _torso(self, part, inputs, generator)


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
    shared: bool = False
    """Whether actor and critic share one memory; then returns should be normalised."""
    horizon: int | None = None
    """Steps for which some of the memory lasts from the first, at least 2; null: all of it fades within a few."""
    encoder: EncoderBuilder = field(default=NoEncoder(), metadata=CHOSEN)
    """Makes a vector of observations; see `encoders.py`."""
    share_encoder: bool | None = None
    """Whether actor and critic have one encoder; null: only in PPO, and only encoder=none, whose images cost most."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        _check_torso(self)
        _check_counts(self, "memory_size")
        if self.horizon is not None:
            _check_counts(self, "horizon", least=2)

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> ActorCritic:
        """Build an actor-critic."""
        return MemoryActorCritic(spec, self.unit, self.torso, self.shared, _encoders(self), rngs=rngs)

    def torso(self, part: Part, inputs: int, generator: np.random.Generator) -> Torso:
        """Build the hidden layers of an actor or a critic."""
        return _torso(self, part, inputs, generator)

    def unit(self, inputs: int, generator: np.random.Generator) -> GRUMemory:
        """Build the unit that remembers."""
        return GRUMemory(inputs, self.memory_size, generator, self.horizon)


@dataclass(frozen=True)
class Transformer:
    """A causal transformer over the latest steps, for environments that do not show their whole state."""

    context_length: int = 32
    """Steps that each layer sees, the present one among them."""
    model_dim: int = 64
    """Length of the vector that stands for a step."""
    num_layers: int = 2
    """Blocks of attention and perceptron, one after the other."""
    num_heads: int = 4
    """Parts of the vector that attend by themselves; they divide model_dim."""
    feedforward_dim: int = 128
    """Width of each block's perceptron."""
    hidden_sizes: tuple[int, ...] = (64,)
    """Width of each hidden layer after the transformer."""
    activation: str = "tanh"
    """Nonlinearity after each hidden layer: tanh, relu, elu, gelu or silu."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Width of each hidden layer of the critic after the transformer; null: as the actor's."""
    shared: bool = False
    """Whether actor and critic share one transformer; then returns should be normalised."""
    dropout: float = 0.0
    """Share of what blocks add that is left out while PPO fits the critic; the actor never drops anything."""
    strict_window: bool = False
    """Whether nothing at all comes of steps older than context_length; a step then costs the whole window."""
    encoder: EncoderBuilder = field(default=NoEncoder(), metadata=CHOSEN)
    """Makes a vector of observations; see `encoders.py`."""
    share_encoder: bool | None = None
    """Whether actor and critic have one encoder; null: only in PPO, and only encoder=none, whose images cost most."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        _check_torso(self)
        if isinstance(self.dropout, bool) or not 0 <= self.dropout < 1:
            raise LudusError(f"algorithm.network.dropout={self.dropout}: must be a number of at least 0, and below 1")
        _check_counts(self, "context_length", "model_dim", "num_layers", "num_heads", "feedforward_dim")
        if self.model_dim % self.num_heads:
            raise LudusError(
                f"algorithm.network.num_heads={self.num_heads}: must divide "
                f"algorithm.network.model_dim={self.model_dim}"
            )

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> ActorCritic:
        """Build an actor-critic."""
        return MemoryActorCritic(spec, self.unit, self.torso, self.shared, _encoders(self), rngs=rngs)

    def torso(self, part: Part, inputs: int, generator: np.random.Generator) -> Torso:
        """Build the hidden layers of an actor or a critic."""
        return _torso(self, part, inputs, generator)

    def unit(self, inputs: int, generator: np.random.Generator) -> TransformerMemory | WindowMemory:
        """Build the unit that remembers."""
        transformer = self.transformer(inputs, generator)
        return WindowMemory(transformer) if self.strict_window else transformer

    def transformer(self, inputs: int, generator: np.random.Generator) -> TransformerMemory:
        """Build the transformer of such a unit."""
        return TransformerMemory(
            inputs,
            model_dim=self.model_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            feedforward_dim=self.feedforward_dim,
            window=self.context_length,
            dropout=self.dropout,
            generator=generator,
        )


NETWORKS: dict[str, type] = {"mlp": MLP, "gru": GRU, "transformer": Transformer}

NetworkBuilder = Callable[[Spec, nnx.Rngs], ActorCritic]


def _torso(config: MLP | GRU | Transformer, part: Part, inputs: int, generator: np.random.Generator) -> Torso:
    own = config.critic_hidden_sizes if part == "critic" else None
    return Torso(inputs, config.hidden_sizes if own is None else own, config.activation, generator)


def _encoders(config: MLP | GRU | Transformer) -> EncoderChoice:
    """Return the encoders of an actor-critic."""
    is_shared = isinstance(config.encoder, NoEncoder) if config.share_encoder is None else config.share_encoder
    return EncoderChoice(config.encoder, is_shared or getattr(config, "shared", False))


def _check_counts(config: GRU | Transformer, *names: str, least: int = 1) -> None:
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise LudusError(f"algorithm.network.{name}={value}: must be an integer of at least {least}")


def _check_torso(config: MLP | GRU | Transformer) -> None:
    for name in ("hidden_sizes", "critic_hidden_sizes"):
        sizes = getattr(config, name)
        if sizes is None and name == "critic_hidden_sizes":
            continue
        object.__setattr__(config, name, tuple(sizes))  # a list from a config file is welcome
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise LudusError(f"algorithm.network.{name}={list(sizes)}: every size must be a positive integer")
    if not callable(config.encoder):
        raise LudusError(f"algorithm.network.encoder={config.encoder!r}: must be an encoder such as LatentQuery()")
    if getattr(config, "shared", False) and config.share_encoder is False:
        raise LudusError("algorithm.network.share_encoder=false: one memory (network.shared=true) has one encoder")
    if config.activation not in ACTIVATIONS:
        raise LudusError(f"algorithm.network.activation={config.activation!r}: must be one of {', '.join(ACTIVATIONS)}")
