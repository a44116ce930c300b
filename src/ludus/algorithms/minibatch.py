"""Epochs of shuffled minibatches of fixed size, padding last, and gradients accumulated over parts of one."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ludus.runtime import placement
from ludus.runtime.packing import MetricVector, PackedLayout, choose_rows
from ludus.types import Transition, Tree

Kind = TypeVar("Kind", bound=Any)

INDEX_BITS = 14
"""Up to 2^14 rows are shuffled by one number each, which holds 17 random bits and the row's index."""


def blank_padding(steps: Transition) -> Transition:
    """Make padding rows zeros that end their episode, so that whatever lay in them can reach nothing."""
    if steps.valid is None:
        return steps
    blank = jax.tree.map(jnp.zeros_like, steps)._replace(truncated=jnp.ones_like(steps.truncated))
    return choose_rows(steps.valid, steps, blank)


def filled_up(samples: Kind, count: int) -> Kind:
    """Add so many rows that weigh nothing: the last minibatch of an epoch is shorter, but no other program.

    `samples` has the fields `advantage` and `weight`, which is None where all rows weigh the same.
    """
    if not count:
        return samples
    weight = jnp.ones_like(samples.advantage) if samples.weight is None else samples.weight
    more = jax.tree.map(lambda x: x[:count], samples._replace(weight=jnp.zeros_like(weight)))
    return jax.tree.map(lambda *x: jnp.concatenate(x), samples._replace(weight=weight), more)


def shuffled(samples: Kind, size: int, epochs: int, key: jax.Array) -> tuple[Kind, jax.Array]:
    """Return samples, filled up to whole minibatches, and the row indices of every minibatch of every epoch.

    Rows that weigh nothing come last in each epoch. `samples` is as `filled_up` has it.
    """
    samples = filled_up(samples, -len(samples.advantage) % size)
    rows, weight = len(samples.advantage), samples.weight
    has_data = None if weight is None else weight.reshape(rows, -1).any(axis=1)
    return samples, minibatch_indices(key, rows, size, epochs, has_data)


def minibatch_indices(
    key: jax.Array, num_rows: int, minibatch_size: int, epochs: int, valid: jax.Array | None = None
) -> jax.Array:
    """Row indices `[epochs * num_rows / minibatch_size, minibatch_size]`: each epoch visits every row once, shuffled.

    Rows where `valid` is False come last in each epoch, so that valid rows fill minibatches exactly as they would
    without the padding, and what is left are minibatches of padding alone, which the caller skips.
    """
    order = jax.random.bits(key, (epochs, num_rows)) >> 1
    if valid is not None:
        order = jnp.where(valid, order, order | jnp.uint32(1 << 31))
    if num_rows <= 1 << INDEX_BITS:
        # Sorting numbers that end in their own index takes a quarter of the time of sorting pairs. What is left of
        # each is random enough: two rows are in the order of their indices, not of chance, once in 2^17 times.
        index = jnp.arange(num_rows, dtype=jnp.uint32)
        order = jnp.sort((order >> INDEX_BITS << INDEX_BITS) | index, axis=-1) & ((1 << INDEX_BITS) - 1)
        return order.astype(jnp.int32).reshape(-1, minibatch_size)
    order = jax.lax.platform_dependent(order, cpu=jnp.argsort, default=argsort_at_once)
    return order.reshape(-1, minibatch_size)


def argsort_at_once(numbers: jax.Array) -> jax.Array:
    """Indices `[R, N]` that sort each row of uint32 `numbers` `[R, N]`, but for the last log2(R) bits of each number.

    One sort of all numbers, each led by that of its row: a GPU has a radix sort for one long row, but for several at a
    time it takes four times as long. On a CPU many short sorts are quicker.
    """
    num_rows, length = numbers.shape
    bits = (num_rows - 1).bit_length()
    row = jnp.arange(num_rows, dtype=jnp.uint32)[:, None]
    led = numbers >> bits | row << (32 - bits)
    return (jnp.argsort(led.ravel()) % length).reshape(num_rows, length)


def scan_minibatches(
    step: Callable[[Any, Any], tuple[Any, Tree]],
    carry: Tree,
    samples: Tree,
    indices: jax.Array,
    skip: Callable[[Any, Any], jax.Array] | None = None,
) -> tuple[Any, Any]:
    """Run `step(carry, minibatch) -> carry, report` for each row of indices; of what is skipped, the report is zeros.

    Returns the last carry and the reports, one after the other.
    """
    layout = PackedLayout(samples)
    packed = placement.whole(layout.pack(samples))  # each device takes its share of every minibatch

    def body(carry: Tree, index: jax.Array) -> tuple[Any, jax.Array]:
        carry = placement.whole(carry)
        minibatch = placement.split(layout.unpack([x[index] for x in packed]))
        if skip is None:
            return placement.whole(step(carry, minibatch))
        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(step, carry, minibatch)[1])
        made = jax.lax.cond(skip(carry, minibatch), lambda carry, _: (carry, nothing), step, carry, minibatch)
        return placement.whole(made)

    return jax.lax.scan(body, carry, indices)


def weighted_means(terms: Mapping[str, jax.Array], weight: jax.Array) -> MetricVector:
    """Return the mean of each term under weights of the same shape, which sum to one."""
    stacked = jnp.stack(list(terms.values())).reshape(len(terms), -1)
    return MetricVector.of(tuple(terms), jnp.matmul(stacked, weight.ravel(), precision="highest"))


def accumulated(function: Callable[[Any], Any], minibatch: Tree, parts: int) -> Any:
    """Sum of `function` over equal parts of a minibatch, one after the other: the memory of one part at a time."""
    if parts == 1:
        return function(minibatch)
    pieces = jax.tree.map(
        lambda x: x.reshape(parts, -1, *x.shape[1:]), minibatch
    )  # [n, ...] -> [parts, n / parts, ...]
    shapes = jax.eval_shape(function, jax.tree.map(lambda x: x[0], pieces))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(lambda total, piece: (jax.tree.map(jnp.add, total, function(piece)), None), zeros, pieces)[0]
