"""Shuffled minibatches of fixed size, padding last."""

import jax
import jax.numpy as jnp


def minibatch_indices(
    key: jax.Array, num_rows: int, minibatch_size: int, epochs: int, valid: jax.Array | None = None
) -> jax.Array:
    """Row indices `[epochs * num_rows / minibatch_size, minibatch_size]`: each epoch visits every row once, shuffled.

    Rows where `valid` is False come last in each epoch, so that valid rows fill minibatches exactly as they would
    without the padding, and what is left are minibatches of padding alone, which the caller skips.
    """
    order = jax.random.bits(key, (epochs, num_rows))
    if valid is not None:
        order = jnp.where(valid, order >> 1, jnp.uint32(0xFFFFFFFF))
    return jnp.argsort(order, axis=-1).reshape(-1, minibatch_size)
