"""Observations of any space made into vectors: what every network starts with."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.networks.layers import Linear, orthogonal
from ludus.networks.vectors import as_vector, byte_scale, vector_size
from ludus.spaces import Box, Leaf, Space, leaves
from ludus.types import Scaling, Tree

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

    def __call__(self, obs: Tree) -> jax.Array:
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


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolve(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Slide filters `[side, side, inputs, outputs]` over images `[n, height, width, inputs]`, without padding.

    A convolution whose axes come in this order is quick on a CPU. For any other order XLA has to turn them round first,
    which it does only outside of loops: the gradients that JAX derives have other orders, and in the loop over
    minibatches they took twenty times as long. So a CPU is given them with the axes turned already. It is the same
    arithmetic, for all shapes; other devices find their own order.
    """
    return _filtered(images, kernel, (stride, stride))


def _filtered(images: jax.Array, kernel: jax.Array, strides: tuple[int, int], **options: Any) -> jax.Array:
    options = {"padding": "VALID", "dimension_numbers": ("NHWC", "HWIO", "NHWC")} | options
    return jax.lax.conv_general_dilated(images, kernel, strides, **options)


def _convolve_forward(images: jax.Array, kernel: jax.Array, stride: int) -> tuple[jax.Array, Any]:
    return convolve(images, kernel, stride), (images, kernel)


def _convolve_backward(stride: int, saved: Tree, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    def derived(images: jax.Array, kernel: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(lambda *x: _filtered(*x, (stride, stride)), images, kernel)[1](slope)

    return jax.lax.platform_dependent(*saved, slope, cpu=partial(_turned_gradients, stride), default=derived)


def _turned_gradients(
    stride: int, images: jax.Array, kernel: jax.Array, slope: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gradients by images and kernel, as convolutions in the order of axes that `convolve` has."""
    side, used = kernel.shape[0], [stride * (n - 1) + kernel.shape[0] for n in slope.shape[1:3]]
    unused = [n - m for n, m in zip(images.shape[1:3], used, strict=True)]  # what the stride leaves at the far edges
    by_images = _filtered(
        slope,
        kernel[::-1, ::-1].swapaxes(2, 3),  # [side, side, inputs, outputs] -> [side, side, outputs, inputs]
        (1, 1),
        padding=[(side - 1, side - 1 + n) for n in unused],
        lhs_dilation=(stride, stride),
    )
    by_kernel = _filtered(
        images[:, : used[0], : used[1]].transpose(3, 1, 2, 0),  # [n, height, width, inputs] -> [inputs, ..., n]
        slope.transpose(1, 2, 0, 3),  # [n, height, width, outputs] -> [height, width, n, outputs]
        (1, 1),
        rhs_dilation=(stride, stride),
    )
    return by_images, by_kernel.transpose(1, 2, 0, 3)  # [inputs, side, side, outputs] -> [side, side, inputs, outputs]


convolve.defvjp(_convolve_forward, _convolve_backward)


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
        return convolve(images, self.kernel[...], self.stride) + self.bias[...]


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


def is_image(space: Space) -> bool:
    """Whether a space is of bytes with two sides that are long enough for convolutions, and channels."""
    if not isinstance(space, Box) or space.dtype != "uint8" or len(space.shape) != 3:
        return False
    sides = space.shape[1:] if space.shape[0] < space.shape[2] else space.shape[:2]
    return min(sides) >= SMALLEST_IMAGE
