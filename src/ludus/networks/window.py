"""A transformer over a strict window: nothing at all comes of older steps.

In a sliding window each layer sees the latest steps as the layer below has made them, and so hands on what came before
them. That is cheap, as keys can be kept, but what such a network answers cannot be had from the latest steps alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.networks.memory import Span, TransformerMemory, counts_kept


class RecentSteps(NamedTuple):
    """A memory of what was shown: `[n, window - 1, inputs]`, the oldest first."""

    rows: jax.Array
    count: jax.Array
    """How many of them are of the running episode: the latest ones."""


class WindowMemory(nnx.Module):
    """A transformer that is shown the latest steps anew at every step.

    Where episodes are no longer than the window, a sliding one computes the same at a fraction of the cost.
    """

    def __init__(self, transformer: TransformerMemory):
        """Take the transformer, whose window it is."""
        self.transformer, self.outputs, self.window = transformer, transformer.outputs, transformer.window

    def initial(self, n: int) -> RecentSteps:
        """Return a window in which there is nothing."""
        inputs = self.transformer.embed.kernel.shape[0]
        return RecentSteps(jnp.zeros((n, self.window - 1, inputs)), jnp.zeros(n, jnp.int32))

    def step(self, memory: RecentSteps, x: jax.Array) -> tuple[RecentSteps, jax.Array]:
        """Look at the window that ends with this step; the oldest step makes room for it."""
        rows = jnp.concatenate([memory.rows, x[:, None]], axis=1)  # [n, window, inputs]
        features = latest_features(self.transformer, rows.swapaxes(0, 1), memory.count + 1)
        return RecentSteps(rows[:, 1:], jnp.minimum(memory.count + 1, self.window - 1)), features

    def span(self, memory: RecentSteps, x: jax.Array, next_x: jax.Array | None, ended: jax.Array, every: int) -> Span:
        """Look at all windows side by side."""
        last, steps = self.window - 1, len(x)
        rows = jnp.concatenate([memory.rows.swapaxes(0, 1), x])  # [last + T, B, inputs]
        counts = counts_kept(memory.count, ended, last)  # [T + 1, B]
        place = np.arange(steps)[:, None] + np.arange(self.window)
        features = self._side_by_side(rows[place], counts[:-1] + 1)
        after = None
        if next_x is not None:
            past = rows[place[:, 1:]]  # [T, last, B, inputs]: the steps before each successor
            windows = jnp.concatenate([past, next_x[:, None]], axis=1)
            after = self._side_by_side(windows, jnp.minimum(counts[:-1] + 1, last) + 1)
        starts = [*range(0, steps, every), steps]
        cut = jnp.stack([rows[start : start + last].swapaxes(0, 1) for start in starts])
        return Span(features, after, RecentSteps(cut, counts[jnp.asarray(starts)]))

    def _side_by_side(self, windows: jax.Array, counts: jax.Array) -> jax.Array:
        """Return features `[T, B, outputs]` of windows `[T, window, B, inputs]`."""
        flat = windows.swapaxes(0, 1).reshape(self.window, -1, windows.shape[-1])  # [window, T * B, inputs]
        return latest_features(self.transformer, flat, counts.ravel()).reshape(*counts.shape, -1)


def latest_features(transformer: TransformerMemory, rows: jax.Array, counts: jax.Array) -> jax.Array:
    """Return features `[n, outputs]` of the last of `rows` `[W, n, inputs]`, which sees the latest `counts` of them.

    Rows before those belong to an episode of their own, so that nothing comes of them.
    """
    length = len(rows)
    ended = jnp.arange(length)[:, None] == length - 1 - counts
    return transformer.span(transformer.initial(rows.shape[1]), rows, None, ended, length).features[-1]
