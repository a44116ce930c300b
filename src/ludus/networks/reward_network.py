"""The network of a learned reward: what a step is worth, by observation, action and true successor.

It is a perceptron, or with a memory (`GRU`, `Transformer`) it judges each step by the steps of the episode before it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.networks.action_scaling import action_size, from_environment
from ludus.networks.layers import Linear, generator_from
from ludus.networks.soft_actor_critic import NO_ENCODER, TorsoConfig
from ludus.networks.vectors import as_vector
from ludus.spaces import Box, Space, flatten, leaves
from ludus.types import Spec, Tree

INPUTS = ("obs", "action", "next_obs")
"""Parts of a step that a reward can depend on."""


class Judged(NamedTuple):
    """Steps as a reward network is shown them: observations are normalised, actions are the environment's."""

    obs: Tree
    action: Tree
    next_obs: Tree


class RewardNetwork(nnx.Module):
    """Encoders of what is seen of a step, a memory if there is one, hidden layers, and one number."""

    def __init__(self, spec: Spec, network: TorsoConfig, inputs: tuple[str, ...], *, rngs: nnx.Rngs):
        """Build the layers."""
        generator = generator_from(rngs)
        self.spec, self.inputs, size = spec, inputs, 0
        for name in ("obs", "next_obs"):
            build = getattr(network, "encoder", NO_ENCODER)
            encoder = build(spec.observation_space, generator, spec.scaling) if name in inputs else None
            setattr(self, f"{name}_encoder", encoder)
            size += 0 if encoder is None else encoder.outputs
        size += action_size(spec.action_space) if "action" in inputs else 0
        unit = getattr(network, "unit", None)
        self.memory = None if unit is None else unit(size, generator)
        self.torso = network.torso("critic", size if self.memory is None else self.memory.outputs, generator)
        self.head = Linear(self.torso.outputs, 1, 1.0, generator)

    def seen(self, steps: Judged) -> jax.Array:
        """Return what is seen of steps as vectors `[..., size]`, in the order of `INPUTS`."""
        parts = []
        for name in (name for name in INPUTS if name in self.inputs):
            if name == "action":
                parts.append(action_vectors(self.spec.action_space, steps.action))
            else:
                parts.append(getattr(self, f"{name}_encoder")(getattr(steps, name)))
        return jnp.concatenate(parts, axis=-1)

    def initial_memory(self, n: int) -> Tree:
        """Return the memory at the start of `n` episodes; `()` if there is none."""
        return () if self.memory is None else self.memory.initial(n)

    def judge(self, memory: Tree, vectors: jax.Array, ended: jax.Array) -> tuple[Tree, jax.Array]:
        """Return the memory after vectors `[T, n, size]` of steps, and what each is worth `[T, n]`.

        Episodes end after the steps at which `ended` `[T, n]` is True.
        """
        if self.memory is not None:
            span = self.memory.span(memory, vectors, None, ended, len(ended))
            memory, vectors = jax.tree.map(lambda x: x[-1], span.memories), span.features
        return memory, self.head(self.torso(vectors))[..., 0]


@dataclass(frozen=True)
class RewardOf:
    """Builds the network on a configuration's torso; compares by value, so that programs are shared."""

    network: TorsoConfig
    inputs: tuple[str, ...]

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> RewardNetwork:
        """Build the module."""
        return RewardNetwork(spec, self.network, self.inputs, rngs=rngs)


def action_vectors(space: Space, action: Tree) -> jax.Array:
    """Actions of any space as vectors `[..., size]`: choices one-hot, real numbers in units of their bounds."""
    parts = []
    for (_, leaf), value in zip(leaves(space), flatten(space, action), strict=True):
        is_real = isinstance(leaf, Box) and np.dtype(leaf.dtype).kind == "f"
        parts.append(from_environment(leaf, value) if is_real else as_vector(leaf, value))
    return jnp.concatenate(parts, axis=-1)
