"""Layers with the initialisation that policy-gradient methods want, and what lies between spaces and vectors."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.spaces import (
    Box,
    Dict,
    Discrete,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    leaves,
    mask_size,
    unflatten,
)
from ludus.types import LudusError, Scaling, Spec

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


def _product_backward(saved: Any, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
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


def vector_size(space: Leaf) -> int:
    """Length of the vector that `as_vector` makes of one observation."""
    size = mask_size(space)
    return math.prod(space.shape) if size is None else size


def byte_scale(space: Box, scaling: Scaling = "bounds") -> tuple[np.ndarray, np.ndarray]:
    """Lower bound and width of a box of bytes, which map it onto 0 .. 1: one number each, or arrays of its shape."""
    if scaling == "bytes":
        return np.array(0, np.float32), np.array(255, np.float32)
    low, high = (np.clip(np.asarray(bound, np.float32), 0, 255) for bound in (space.low, space.high))
    low, width = np.broadcast_arrays(low, np.where(high > low, high - low, np.float32(1)))
    return (low.reshape(space.shape), width.reshape(space.shape)) if low.ndim else (low, width)


def as_vector(space: Leaf, obs: jax.Array, scaling: Scaling = "bounds") -> jax.Array:
    """Observations `[..., *shape]` as float32 `[..., vector_size]`: choices one-hot, bytes from 0 to 1, else flat."""
    batch_shape = obs.shape[: obs.ndim - len(space.shape)]
    if isinstance(space, Discrete):
        return jax.nn.one_hot(obs - space.start if space.start else obs, space.n)
    if isinstance(space, MultiDiscrete):
        sizes = space.sizes
        index = (obs - np.asarray(space.start)).reshape(*batch_shape, len(sizes))
        # Every output compares its own component with its own value.
        component, value = np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(n) for n in sizes])
        return (index[..., component] == value).astype(jnp.float32)
    vector = jnp.asarray(obs, jnp.float32).reshape(*batch_shape, vector_size(space))
    if not isinstance(space, Box) or space.dtype != "uint8":
        return vector
    low, width = (np.ravel(x) for x in byte_scale(space, scaling))
    return (vector - low if low.any() else vector) / width


def action_scale(space: Box, scaling: Scaling = "bounds") -> tuple[np.ndarray, np.ndarray]:
    """Middle and half width of a box of actions, of its shape; 0 and 1 for an entry without two finite bounds."""
    low, high = space.bounds
    is_bounded = np.isfinite(low) & np.isfinite(high)
    if scaling == "bytes":
        is_bounded = np.full(space.shape, is_bounded.all())
    low, high = np.where(is_bounded, low, np.float32(-1)), np.where(is_bounded, high, np.float32(1))
    return 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low


def settled(spec: Spec) -> Spec:
    """Return a spec that was saved, with today's scaling if it means the same for its spaces."""

    def is_same(scale: Callable, leaf: Box) -> bool:
        return all(map(np.array_equal, scale(leaf), scale(leaf, spec.scaling)))

    seen = [leaf for _, leaf in leaves(spec.observation_space) if isinstance(leaf, Box) and leaf.dtype == "uint8"]
    # Where all entries of a box have the same bounds, nothing changed: no array is made of a size that a file claims.
    acted = [leaf for _, leaf in leaves(spec.action_space) if isinstance(leaf, Box) and _is_uneven(leaf)]
    unchanged = all(is_same(byte_scale, leaf) for leaf in seen) and all(is_same(action_scale, leaf) for leaf in acted)
    return replace(spec, scaling="bounds") if unchanged else spec


def _is_uneven(space: Box) -> bool:
    return isinstance(space.low, tuple) or isinstance(space.high, tuple)


def to_environment(space: Space, sample: Any, scaling: Scaling = "bounds") -> Any:
    """What the environment receives for a sampled action; a Dict or Tuple takes its samples in the order of `leaves`.

    Policies count integers from 0, and act in units where the bounds of a box are -1 and 1, so that one initial
    standard deviation suits every environment. Here integers are moved to their start; real numbers are mapped onto
    the box and clipped to it. An entry without two finite bounds takes them as they are.
    """
    if isinstance(space, Dict | Tuple):
        parts = zip(leaves(space), sample, strict=True)
        return unflatten(space, [to_environment(leaf, part, scaling) for (_, leaf), part in parts])
    if isinstance(space, Discrete):
        return sample + space.start if space.start else sample
    action = sample.reshape(*sample.shape[:-1], *space.shape)
    if isinstance(space, MultiDiscrete):
        return action + np.asarray(space.start, np.int32)
    if isinstance(space, MultiBinary):
        return action
    middle, half = action_scale(space, scaling)
    return jnp.clip(middle + half * action, *space.bounds).astype(space.dtype)


def from_environment(space: Box, action: jax.Array) -> jax.Array:
    """Actions of a bounded box as flat vectors in units where its bounds are -1 and 1."""
    middle, half = (np.ravel(x) for x in action_scale(space))
    flat = action.reshape(*action.shape[: action.ndim - len(space.shape)], half.size)
    # Where both bounds are one number there is nothing to choose, and the middle stands for it.
    return (flat - middle) / np.where(half > 0, half, 1.0)


def action_size(space: Space) -> int:
    """Number of outputs that the policy head needs for an action space."""
    return sum(vector_size(leaf) for _, leaf in leaves(space))


def check_leaves(what: str, space: Any) -> None:
    """Refuse by name a space that is unknown to us or has an empty part."""
    if not leaves(space):
        raise LudusError(f"{what} {space} is empty")
    for name, leaf in leaves(space):
        where = f"{what} {leaf}" + (f" of {name!r}" if name else "")
        if not isinstance(leaf, Leaf):
            raise LudusError(f"{where} is not supported; Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple are")
        if vector_size(leaf) < 1:
            raise LudusError(f"{where} is empty: it holds no number")


def check_action_space(algorithm: str, space: Any) -> None:
    """Refuse by name what no distribution is over."""
    check_leaves(f"{algorithm}: action space", space)
    for name, leaf in leaves(space):
        if isinstance(leaf, Box) and not leaf.is_float:
            where = f"{algorithm}: action space {leaf}" + (f" of {name!r}" if name else "")
            raise LudusError(f"{where} is not supported; a Box of actions must be of floats")
