"""How to take gradient steps through convolutions on a CPU: CPU seconds of each way, as one JSON object.

    .venv/bin/python benchmarks/convolutions.py --repeats 7

Each way takes the same gradient steps with the filters of Mnih et al. 2015 on minibatches of bytes, one after the
other: in a loop of XLA's (`scan`), in one that is unrolled, or in Python around a compiled step (`python`); with the
gradients that JAX derives (`derived`), with those of `ludus.networks.encoder.convolve` (`turned`), or with patches
laid side by side and a product of matrices in place of the convolution (`patches`). The ways take turns, and are timed
by the CPU time of the process, which other programs disturb least. `loss_difference` is the largest to the losses of
the first way.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.networks.encoder import convolve

LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Filters, their side and their stride."""
OPTIONS = {"xla_backend_optimization_level": 1}
"""As `ludus.runtime.compilation` has them for long runs."""


def derived(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Leave the gradients to JAX."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, kernel, (stride, stride), "VALID", dimension_numbers=layout)


def patches(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Cut squares of one stride, lay those of each patch side by side, and multiply; strides must divide sides."""
    side, _, inputs, outputs = kernel.shape
    count, (height, width) = side // stride, ((n - side) // stride + 1 for n in images.shape[1:3])
    rows, columns = height + count - 1, width + count - 1
    x = images[:, : rows * stride, : columns * stride].reshape(-1, rows, stride, columns, stride, inputs)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, rows, columns, stride * stride * inputs)
    x = jnp.concatenate([x[:, i : i + height, j : j + width] for i in range(count) for j in range(count)], axis=-1)
    weights = kernel.reshape(count, stride, count, stride, inputs, outputs).transpose(0, 2, 1, 3, 4, 5)
    return x @ weights.reshape(-1, outputs)


def parameters(generator: np.random.Generator, side: int, channels: int) -> list[jax.Array]:
    """Draw filters and a last layer."""
    arrays = []
    for outputs, width, stride in LAYERS:
        arrays.append(generator.normal(size=(width, width, channels, outputs)) / np.sqrt(width * width * channels / 2))
        side, channels = (side - width) // stride + 1, outputs
    arrays.append(generator.normal(size=(side * side * channels, 1)) / np.sqrt(side * side * channels))
    return [jnp.asarray(array, jnp.float32) for array in arrays]


def step(filtered: Callable, images: jax.Array, targets: jax.Array, weights: Any, index: jax.Array) -> Any:
    """Take one gradient step."""

    def loss(weights: list[jax.Array]) -> jax.Array:
        x = images[index].astype(jnp.float32) / 255.0
        for kernel, (_, _, stride) in zip(weights, LAYERS, strict=False):
            x = jax.nn.relu(filtered(x, kernel, stride))
        return jnp.mean(jnp.square((x.reshape(len(index), -1) @ weights[-1])[:, 0] - targets[index]))

    value, slope = jax.value_and_grad(loss)(weights)
    return [w - 1e-4 * d for w, d in zip(weights, slope, strict=True)], value


def in_loop(take: Callable, unroll: int) -> Callable:
    """Return a program of all steps."""
    scan = partial(jax.lax.scan, unroll=unroll)
    return jax.jit(lambda weights, indices: scan(take, weights, indices)[1], compiler_options=OPTIONS)


def in_python(take: Callable) -> Callable:
    """Return a loop around the program of one step."""
    compiled = jax.jit(take, compiler_options=OPTIONS)

    def run(weights: Any, indices: jax.Array) -> jax.Array:
        losses = []
        for index in indices:
            weights, loss = compiled(weights, index)
            losses.append(loss)
        return jnp.stack(losses)

    return run


def main() -> None:
    """Time every way in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--size", type=int, default=64, help="images in each")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    generator, count = np.random.default_rng(0), given.minibatches * given.size
    images = jnp.asarray(generator.integers(256, size=(count, 84, 84, 4), dtype=np.uint8))
    targets = jnp.asarray(generator.normal(size=count), jnp.float32)
    indices = jnp.asarray(generator.permutation(count).reshape(given.minibatches, given.size))
    weights = parameters(generator, 84, 4)
    takes = {f.__name__: partial(step, f, images, targets) for f in (derived, patches)}
    takes["turned"] = partial(step, convolve, images, targets)
    ways = {f"scan_{name}": in_loop(take, 1) for name, take in takes.items()}
    ways |= {
        "unrolled_derived": in_loop(takes["derived"], given.minibatches),
        "python_derived": in_python(takes["derived"]),
    }
    losses = {name: np.asarray(way(weights, indices)) for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.repeats):
        for name, way in ways.items():
            started = time.process_time()
            jax.block_until_ready(way(weights, indices))
            seconds[name].append(time.process_time() - started)
    first = losses["scan_derived"]
    print(
        json.dumps(
            {
                "cpu_seconds": {name: round(statistics.median(row), 3) for name, row in seconds.items()},
                "loss_difference": {name: float(np.abs(row - first).max()) for name, row in losses.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
