"""Layers with the initialisation that policy-gradient methods want, and what lies between spaces and vectors."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.types import Tree

ACTIVATIONS: dict[str, Callable] = {
    "tanh": nnx.tanh,
    "relu": nnx.relu,
    "elu": nnx.elu,
    "gelu": nnx.gelu,
    "silu": nnx.silu,
}


NARROW = 8
"""A layer with up to so many outputs, such as a head, has its slopes carried back without a matrix kernel."""


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


@jax.custom_vjp
def product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Return `x W` for `x` `[..., inputs]`."""
    return x @ weights


def _product_forward(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, Any]:
    return x @ weights, (x, weights)


def _product_backward(saved: Tree, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weights = saved
    rows, slopes = x.reshape(-1, x.shape[-1]), slope.reshape(-1, slope.shape[-1])  # [..., size] -> [n, size]
    # A CPU's matrix kernel wants the long axis of `x` to lie next to itself in memory. Transposed beforehand, the
    # whole update of PPO took 0.8 of the time at 512 rows (docs/en/benchmarks.md).
    return _pulled_back(slope, weights), jax.lax.optimization_barrier(rows.T) @ slopes


def _pulled_back(slope: jax.Array, weights: jax.Array) -> jax.Array:
    """Return `slope W^T`."""
    outputs = weights.shape[1]
    if outputs > NARROW:
        return slope @ weights.T
    # A GPU computes a few sums of products in passing, where a matrix kernel would write its whole result to memory
    # for the derivative of the activation to read it again.
    return functools.reduce(jnp.add, (slope[..., i : i + 1] * weights[:, i] for i in range(outputs)))


product.defvjp(_product_forward, _product_backward)


class Linear(nnx.Module):
    """Fully connected layer with orthogonal weights of a given gain and zero bias."""

    def __init__(self, inputs: int, outputs: int, gain: float, generator: np.random.Generator):
        """Draw the weights."""
        self.kernel = nnx.Param(jax.device_put((gain * orthogonal(generator, inputs, outputs)).astype(np.float32)))
        self.bias = nnx.Param(jax.device_put(np.zeros(outputs, np.float32)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return `x W + b`."""
        return product(x, self.kernel[...]) + self.bias[...]


Part = Literal["actor", "critic"]
"""The part of a learner that a network is for."""


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
        return [x, *self.activations(x)][-1]

    def activations(self, x: jax.Array) -> list[jax.Array]:
        """Return what each layer makes of what comes in."""
        made = []
        for layer in self.layers:
            x = self.activation(layer(x))
            made.append(x)
        return made


TorsoBuilder = Callable[[Part, int, np.random.Generator], Any]
"""Builds the layers between an encoder and a head: a module with `outputs`, from the number of its inputs."""
