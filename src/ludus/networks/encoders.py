"""Configurations of encoders: what stands between an observation and the layers, or the memory, of a network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import numpy as np

from ludus.networks.encoder import Encoder
from ludus.networks.layers import ACTIVATIONS
from ludus.networks.token_encoders import FusedGroups, LatentQueries, PooledPerceptrons
from ludus.networks.tokens import check_groups
from ludus.spaces import Space
from ludus.types import LudusError, Scaling, Tree


class ObservationEncoder(Protocol):
    """A module that makes vectors of observations."""

    outputs: int
    """Length of the vector."""

    def __call__(self, obs: Tree) -> jax.Array:
        """Return `[..., outputs]` for observations with any number of leading axes."""
        ...


EncoderBuilder = Callable[[Space, np.random.Generator, Scaling], ObservationEncoder]


class EncoderChoice(NamedTuple):
    """The encoders of an actor and a critic."""

    build: EncoderBuilder
    is_shared: bool
    """Whether there is one for both."""


@dataclass(frozen=True)
class NoEncoder:
    """The observation as one vector: numbers as they are, choices one-hot, images by convolutions."""

    def __call__(self, space: Space, generator: np.random.Generator, scaling: Scaling) -> Encoder:
        """Build the module."""
        return Encoder(space, generator, scaling)


@dataclass(frozen=True)
class TokenMLP:
    """A perceptron for each feature group, pooled over its tokens."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Width of each layer that an embedded token goes through; the first is that of the embedding too."""
    activation: str = "relu"
    """Nonlinearity after each of these layers: tanh, relu, elu, gelu or silu."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        if not (self.hidden_sizes and all(_is_count(size) for size in self.hidden_sizes)):
            raise LudusError(
                f"algorithm.network.encoder.hidden_sizes={list(self.hidden_sizes)}: each must be a positive integer"
            )
        if self.activation not in ACTIVATIONS:
            raise LudusError(
                f"algorithm.network.encoder.activation={self.activation!r}: must be one of {', '.join(ACTIVATIONS)}"
            )

    def __call__(self, space: Space, generator: np.random.Generator, scaling: Scaling) -> PooledPerceptrons:
        """Build the module."""
        check_groups("mlp", space)
        return PooledPerceptrons(self, space, generator, scaling)


@dataclass(frozen=True)
class LatentQuery:
    """Latent vectors that ask the tokens of all feature groups, then one another, several times over."""

    depth: int = 4
    """Rounds, each of attention to the tokens and among the latents."""
    num_latents: int = 16
    """Number of latent vectors."""
    model_dim: int = 64
    """Length of a latent vector, and of a token as they see it."""
    num_heads: int = 4
    """Parts of the vector that attend by themselves; they divide model_dim."""
    feedforward_dim: int = 128
    """Width of the perceptron after each attention."""
    tied: bool = True
    """Whether all rounds have the same weights."""
    rezero: bool = True
    """Whether what each layer adds passes a learnt gate that begins at 0."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        _check_attention(self)

    def __call__(self, space: Space, generator: np.random.Generator, scaling: Scaling) -> LatentQueries:
        """Build the module."""
        check_groups("lq", space)
        return LatentQueries(self, space, generator, scaling)


@dataclass(frozen=True)
class LateFusion:
    """Latent vectors for each feature group, which ask its tokens alone; then others ask all of those."""

    depth: int = 2
    """Rounds within a group, each of attention to the tokens and among the latents."""
    num_latents: int = 8
    """Number of latent vectors of each group, and of those that fuse them."""
    model_dim: int = 64
    """Length of a latent vector, and of a token as they see it."""
    num_heads: int = 4
    """Parts of the vector that attend by themselves; they divide model_dim."""
    feedforward_dim: int = 128
    """Width of the perceptron after each attention."""
    tied: bool = True
    """Whether all rounds within a group have the same weights."""
    rezero: bool = True
    """Whether what each layer adds passes a learnt gate that begins at 0."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        _check_attention(self)

    def __call__(self, space: Space, generator: np.random.Generator, scaling: Scaling) -> FusedGroups:
        """Build the module."""
        check_groups("wayformer", space)
        return FusedGroups(self, space, generator, scaling)


ENCODERS: dict[str, type] = {"none": NoEncoder, "mlp": TokenMLP, "lq": LatentQuery, "wayformer": LateFusion}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_attention(config: LatentQuery | LateFusion) -> None:
    for name in ("depth", "num_latents", "model_dim", "num_heads", "feedforward_dim"):
        value = getattr(config, name)
        if not _is_count(value):
            raise LudusError(f"algorithm.network.encoder.{name}={value}: must be an integer of at least 1")
    if config.model_dim % config.num_heads:
        raise LudusError(
            f"algorithm.network.encoder.num_heads={config.num_heads}: must divide "
            f"algorithm.network.encoder.model_dim={config.model_dim}"
        )
