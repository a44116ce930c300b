"""Networks over whole sequences: a policy, a value and a reward of the state that a sequence ends with.

All three are the transformer that PPO's memory policies have, with one layer after it: what they learn can be handed to
PPO and back. They are called with sequences `[T, B, input_dim]`, and answer for the last state of each.
"""

from dataclasses import replace
from functools import partial
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx

from ludus.networks.builders import Transformer
from ludus.networks.layers import Linear, generator_from
from ludus.networks.window import latest_features
from ludus.types import Array, LudusError


class SequenceNetwork(nnx.Module):
    """A transformer over the latest `sequence_length` states, and a linear layer; dropout is off whenever it is called.

    Positions are encoded, so the order of states counts; padding is left out, so it counts for nothing.
    """

    def __init__(self, input_dim: int, outputs: int, gain: float, sizes: Transformer, rngs: nnx.Rngs):
        """Draw the weights."""
        for name, value in (("input_dim", input_dim), ("outputs", outputs)):
            _check_count(name, value)
        generator = generator_from(rngs)
        self.input_dim, self.outputs, self.sizes = input_dim, outputs, sizes
        self.memory = sizes.transformer(input_dim, generator)
        self.head = Linear(sizes.model_dim, outputs, gain, generator)

    @property
    def sequence_length(self) -> int:
        """States that an answer depends on; `train` sets it to what it trained with."""
        return self.sizes.context_length

    def seeing(self, sequence_length: int) -> Self:
        """Change, in place, how many states an answer depends on; no parameter depends on it."""
        _check_count("sequence_length", sequence_length)
        self.sizes = replace(self.sizes, context_length=sequence_length)
        self.memory.window = sequence_length
        return self

    def __call__(self, sequences: Array, padding: Array | None = None) -> jax.Array:
        """Return `[B, outputs]` for the last state of each sequence.

        Args:
            sequences: `[T, B, input_dim]`, time first.
            padding: `[T, B]`, True where a row is no state of its sequence, before or after those that are. Of states
                older than `sequence_length` nothing comes either.
        """
        rows = jnp.asarray(sequences, jnp.float32)
        if rows.ndim != 3 or rows.shape[-1] != self.input_dim or not rows.size:
            raise LudusError(
                f"sequences: must have the shape (T, B, {self.input_dim}), time first and at least one state each, "
                f"got {rows.shape}"
            )
        counts = jnp.full(rows.shape[1], len(rows))
        if padding is not None:
            rows, counts = _gathered(rows, jnp.asarray(padding, bool))
        # As long as the window, whatever was given: sequences of all lengths share one program.
        length = self.sequence_length
        rows = jnp.pad(rows[-length:], ((max(0, length - len(rows)), 0), (0, 0), (0, 0)))
        return _answer(*nnx.split(self), rows, jnp.minimum(counts, length))

    @property
    def device(self) -> jax.Device:
        """The device that its parameters are on."""
        return next(iter(self.head.kernel[...].devices()))

    def to(self, device: str | jax.Device) -> Self:
        """Move all parameters, in place, to "cpu", "cuda" (or "gpu"), "cuda:1", or a device of JAX."""
        nnx.update(self, jax.device_put(nnx.state(self), _device(device)))
        return self


@partial(jax.jit, static_argnums=0)
def _answer(graph: nnx.GraphDef[SequenceNetwork], state: nnx.State, rows: jax.Array, counts: jax.Array) -> jax.Array:
    """Return what a network says of sequences that end in the last row and have so many states."""
    net = nnx.merge(graph, state)
    return net.head(latest_features(net.memory, rows, counts))


class TransformerPolicyNetwork(SequenceNetwork):
    """A policy over `action_dim` actions: sequences `[T, B, input_dim]` to logits `[B, action_dim]`."""

    def __init__(  # noqa: PLR0913  the arguments of a transformer
        self,
        input_dim: int,
        action_dim: int,
        nhead: int = 8,
        num_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        *,
        model_dim: int = 64,
        sequence_length: int = 10,
        rngs: nnx.Rngs | None = None,
    ):
        """Draw the weights; those of the last layer are small, so that the first policy is nearly uniform.

        Args:
            input_dim: length of a state's vector.
            action_dim: number of actions.
            nhead: parts of the inner vector that attend by themselves; they divide `model_dim`.
            num_layers: blocks of attention and perceptron.
            dim_feedforward: width of each block's perceptron.
            dropout: never on in a policy: it would not be the one that acted.
            model_dim: length of the inner vector.
            sequence_length: states that an answer depends on.
            rngs: what the weights are drawn from; the same ones each time unless told otherwise.
        """
        sizes = _sizes(nhead, num_layers, dim_feedforward, dropout, model_dim, sequence_length)
        super().__init__(input_dim, action_dim, 0.01, sizes, rngs or nnx.Rngs(0))

    def probabilities(self, sequences: Array, padding: Array | None = None) -> jax.Array:
        """Return the probability of each action, `[B, action_dim]`."""
        return jax.nn.softmax(self(sequences, padding))


class _OneNumber(SequenceNetwork):
    """A network with one output for each sequence."""

    seed: ClassVar[int]
    """What the weights are drawn from unless told otherwise: another number in each kind of network."""

    def __init__(
        self,
        input_dim: int,
        nhead: int = 8,
        num_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        *,
        model_dim: int = 64,
        sequence_length: int = 10,
        rngs: nnx.Rngs | None = None,
    ):
        """Draw the weights; arguments as those of the policy. `dropout` is on while it is fitted, and else off."""
        sizes = _sizes(nhead, num_layers, dim_feedforward, dropout, model_dim, sequence_length)
        super().__init__(input_dim, 1, 1.0, sizes, rngs or nnx.Rngs(self.seed))


class TransformerValueNetwork(_OneNumber):
    """A critic: sequences `[T, B, input_dim]` to the discounted return that is expected, `[B, 1]`."""

    seed = 1


class TransformerRewardModel(_OneNumber):
    """A reward for having come to a state: sequences `[T, B, input_dim]`, that state the last, to rewards `[B, 1]`."""

    seed = 2


def _sizes(
    nhead: int, num_layers: int, dim_feedforward: int, dropout: float, model_dim: int, sequence_length: int
) -> Transformer:
    """Return sizes under their names in the core; what is wrong is told under the names that they were given by."""
    counts = {
        "nhead": nhead,
        "num_layers": num_layers,
        "dim_feedforward": dim_feedforward,
        "model_dim": model_dim,
        "sequence_length": sequence_length,
    }
    for name, value in counts.items():
        _check_count(name, value)
    if model_dim % nhead:
        raise LudusError(f"nhead={nhead}: must divide model_dim={model_dim}")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise LudusError(f"dropout={dropout}: must be a number of at least 0, and below 1")
    return Transformer(sequence_length, model_dim, num_layers, nhead, dim_feedforward, (), dropout=dropout)


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LudusError(f"{name}={value}: must be an integer of at least 1")


def _gathered(rows: jax.Array, padding: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return sequences with all padding before their states, and how many states each has."""
    if padding.shape != rows.shape[:2]:
        raise LudusError(
            f"padding: must have the shape (T, B) = {rows.shape[:2]} of the sequences, got {padding.shape}"
        )
    order = jnp.argsort(~padding, axis=0, stable=True)
    return jnp.take_along_axis(rows, order[..., None], axis=0), (~padding).sum(axis=0)


def _device(name: str | jax.Device) -> jax.Device:
    if not isinstance(name, str):
        return name
    kind, _, number = name.partition(":")
    try:
        found = jax.devices(kind)
    except RuntimeError:
        found = []
    if not (number or "0").isdecimal() or int(number or "0") >= len(found):
        known = ", ".join(sorted({device.platform for device in [*jax.devices(), *jax.devices("cpu")]}))
        raise LudusError(f'device={name}: is not there; JAX has {known} (pip install "jax[cuda12]" for NVIDIA GPUs)')
    return found[int(number or "0")]
