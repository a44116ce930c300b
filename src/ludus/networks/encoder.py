"""Observations of any space made into vectors: what every network starts with."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.networks.layers import Linear, as_vector, byte_scale, orthogonal, vector_size
from ludus.spaces import Box, Leaf, Space, leaves
from ludus.types import Scaling

SMALLEST_IMAGE = 36
"""The shortest side that the three convolutions leave anything of."""


class Encoder(nnx.Module):
    """Observations `[..., *shape]` to float32 vectors `[..., outputs]`; the parts of a Dict or Tuple side by side.

    Only images have parameters. A plain vector passes through as it is.
    """

    def __init__(self, space: Space, generator: np.random.Generator, scaling: Scaling = "bounds"):
        """Choose a part for each leaf of the space."""
        found = [leaf for _, leaf in leaves(space)]
        self.parts = nnx.List(
            [NatureCNN(leaf, generator, scaling) if is_image(leaf) else Vector(leaf, scaling) for leaf in found]
        )
        self.outputs = sum(part.outputs for part in self.parts)

    def __call__(self, obs: Any) -> jax.Array:
        """Encode a batch with any number of leading axes."""
        vectors = [part(leaf) for part, leaf in zip(self.parts, jax.tree.leaves(obs), strict=True)]
        return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)


class Vector(nnx.Module):
    """One leaf without parameters; see `as_vector`."""

    def __init__(self, space: Leaf, scaling: Scaling):
        """Count the outputs."""
        self.space, self.scaling = space, scaling
        self.outputs = vector_size(space)

    def __call__(self, obs: jax.Array) -> jax.Array:
        """Return `[..., outputs]`."""
        return as_vector(self.space, obs, self.scaling)


class Convolution(nnx.Module):
    """Square filters over images `[n, height, width, channels]`, without padding; orthogonal with gain sqrt(2)."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int, generator: np.random.Generator):
        """Draw the weights."""
        weights = math.sqrt(2.0) * orthogonal(generator, side * side * inputs, outputs)
        kernel = weights.reshape(side, side, inputs, outputs).astype(np.float32)
        self.kernel = nnx.Param(jax.device_put(kernel))
        self.bias = nnx.Param(jax.device_put(np.zeros(outputs, np.float32)))
        self.stride = stride

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the filtered images."""
        strides = (self.stride, self.stride)
        layout = ("NHWC", "HWIO", "NHWC")
        return (
            jax.lax.conv_general_dilated(images, self.kernel[...], strides, "VALID", dimension_numbers=layout)
            + self.bias[...]
        )


class NatureCNN(nnx.Module):
    """Three convolutions and a dense layer of 512 (Mnih et al. 2015, https://doi.org/10.1038/nature14236).

    Bytes are mapped from their bounds onto 0 .. 1 here and nowhere else. The shorter of the first and the last axis is
    that of channels.
    """

    def __init__(self, space: Box, generator: np.random.Generator, scaling: Scaling = "bounds"):
        """Build the layers for images of one space."""
        self.space, self.scaling, shape = space, scaling, space.shape
        self.channels_first = shape[0] < shape[2]
        height, width, channels = np.roll(shape, -1).tolist() if self.channels_first else shape
        convolutions, inputs = [], channels
        for outputs, side, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            convolutions.append(Convolution(inputs, outputs, side, stride, generator))
            height, width, inputs = (height - side) // stride + 1, (width - side) // stride + 1, outputs
        self.convolutions = nnx.List(convolutions)
        self.outputs = 512
        self.dense = Linear(height * width * inputs, self.outputs, math.sqrt(2.0), generator)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return features `[..., 512]` of images `[..., *shape]`."""
        batch_shape = images.shape[:-3]
        low, width = byte_scale(self.space, self.scaling)
        x = images.reshape(-1, *images.shape[-3:]).astype(jnp.float32)  # [..., a, b, c] -> [n, a, b, c]
        x = (x - low if low.any() else x) / width
        x = jnp.moveaxis(x, 1, -1) if self.channels_first else x
        for convolution in self.convolutions:
            x = nnx.relu(convolution(x))
        x = nnx.relu(self.dense(x.reshape(x.shape[0], -1)))  # [n, height, width, channels] -> [n, 512]
        return x.reshape(*batch_shape, self.outputs)  # [n, 512] -> [..., 512]


def is_image(space: Any) -> bool:
    """Whether a space is of bytes with two sides that are long enough for convolutions, and channels."""
    if not isinstance(space, Box) or space.dtype != "uint8" or len(space.shape) != 3:
        return False
    sides = space.shape[1:] if space.shape[0] < space.shape[2] else space.shape[:2]
    return min(sides) >= SMALLEST_IMAGE
