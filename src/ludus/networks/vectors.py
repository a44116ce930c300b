"""Values of any space as plain vectors: what encoders begin with."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from ludus.spaces import Box, Discrete, Leaf, MultiDiscrete, Space, leaves, mask_size
from ludus.types import LudusError, Scaling


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


def check_leaves(what: str, space: Space) -> None:
    """Refuse by name a space that is unknown to us or has an empty part."""
    if not leaves(space):
        raise LudusError(f"{what} {space} is empty")
    for name, leaf in leaves(space):
        where = f"{what} {leaf}" + (f" of {name!r}" if name else "")
        if not isinstance(leaf, Leaf):
            raise LudusError(f"{where} is not supported; Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple are")
        if vector_size(leaf) < 1:
            raise LudusError(f"{where} is empty: it holds no number")
