"""Layers with the initialisation that policy-gradient methods want, and observations made into vectors."""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.spaces import Box, Discrete, Space

ACTIVATIONS: dict[str, Callable] = {
    "tanh": nnx.tanh,
    "relu": nnx.relu,
    "elu": nnx.elu,
    "gelu": nnx.gelu,
    "silu": nnx.silu,
}


def generator_from(rngs: nnx.Rngs) -> np.random.Generator:
    """Return a NumPy generator that is seeded by the parameter stream of `rngs`, and advance that stream.

    Weights are drawn by NumPy because JAX would compile a dozen small programs for it: orthogonal matrices alone cost
    a cold process a second.
    """
    stream = rngs.params
    count = int(stream.count[...])
    stream.count[...] = jax.device_put(np.uint32(count + 1))
    words = np.asarray(jax.random.key_data(stream.key[...])).ravel()
    return np.random.default_rng([*words.tolist(), count])


def orthogonal(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Draw a matrix with orthonormal rows or columns (Saxe et al. 2013, arXiv 1312.6120)."""
    q, r = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diagonal(r))  # without this the distribution over orthogonal matrices is not uniform
    return q if rows >= columns else q.T


class Linear(nnx.Module):
    """Fully connected layer with orthogonal weights of a given gain and zero bias."""

    def __init__(self, inputs: int, outputs: int, gain: float, generator: np.random.Generator):
        """Draw the weights."""
        self.kernel = nnx.Param(jax.device_put((gain * orthogonal(generator, inputs, outputs)).astype(np.float32)))
        self.bias = nnx.Param(jax.device_put(np.zeros(outputs, np.float32)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return `x W + b`."""
        return x @ self.kernel[...] + self.bias[...]


class Torso(nnx.Module):
    """Multi-layer perceptron without an output layer: `[..., inputs]` to `[..., hidden_sizes[-1]]`."""

    def __init__(self, inputs: int, hidden_sizes: Sequence[int], activation: str, generator: np.random.Generator):
        """Build one layer of gain sqrt(2) for each hidden size."""
        sizes = [inputs, *hidden_sizes]
        self.layers = nnx.List([Linear(a, b, math.sqrt(2.0), generator) for a, b in itertools.pairwise(sizes)])
        self.activation = ACTIVATIONS[activation]
        self.outputs = sizes[-1]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the layers, each followed by the activation."""
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


def vector_size(space: Space) -> int:
    """Length of the vector that `as_vector` makes of one observation."""
    return space.n if isinstance(space, Discrete) else int(np.prod(space.shape))


def as_vector(space: Space, obs: jax.Array) -> jax.Array:
    """Observations `[..., *space.shape]` as float32 vectors `[..., vector_size]`: one-hot, or flattened."""
    if isinstance(space, Discrete):
        return jax.nn.one_hot(obs, space.n)
    batch_shape = obs.shape[: obs.ndim - len(space.shape)]
    return jnp.asarray(obs, jnp.float32).reshape(*batch_shape, vector_size(space))


def to_environment(space: Space, action: jax.Array) -> jax.Array:
    """What the environment receives for a sampled action.

    Policies act in units where the action bounds are -1 and 1, so that one initial standard deviation suits every
    environment; here the action is clipped to them and mapped onto the box. An unbounded box takes it as it is.
    """
    if isinstance(space, Discrete):
        return action
    action = action.reshape(*action.shape[:-1], *space.shape)
    low, high = space.bounds
    if space.is_bounded:
        action = (0.5 * low + 0.5 * high) + (0.5 * high - 0.5 * low) * action
    return jnp.clip(action, low, high).astype(space.dtype)


def action_size(space: Space) -> int:
    """Number of outputs that the policy head needs for an action space."""
    return space.n if isinstance(space, Discrete) else int(np.prod(space.shape))


SUPPORTED_SPACES = (Discrete, Box)
