"""Memory units: layers that remember what they were shown, one step at a time or a whole span of steps at once.

Acting takes one step in every environment (`step`); learning evaluates a whole span `[T, B]` (`span`). Both compute the
same numbers. An episode's end clears the memory: nothing is remembered of the episode before.
"""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.networks.attention import Norm, TransformerBlock
from ludus.networks.layers import Linear
from ludus.runtime.packing import choose_rows
from ludus.types import Tree


class Span(NamedTuple):
    """The features of a span of steps, and the memories to go on from."""

    features: Tree
    """Of each step `[T, B, ...]`."""
    next_features: Tree
    """Of each step's true successor, as the same memory sees it; None if none were given."""
    memories: Tree
    """Before steps 0, every, 2 every, ..., and after the last step: `[S + 1, B, ...]`."""


class MemoryUnit(Protocol):
    """A layer that remembers."""

    outputs: int

    def initial(self, n: int) -> Tree:
        """Return the memory of `n` environments at an episode's start."""
        ...

    def step(self, memory: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
        """Take in one vector `[n, inputs]` for each environment: the new memory, and features `[n, outputs]`."""
        ...

    def span(self, memory: Tree, x: jax.Array, next_x: jax.Array | None, ended: jax.Array, every: int) -> Span:
        """Take in vectors `[T, B, inputs]`, where episodes end after the steps at which `ended` `[T, B]` is True."""
        ...


class GRUMemory(nnx.Module):
    """A gated recurrent unit (Cho et al. 2014, arXiv 1406.1078); its memory vector is also its features."""

    def __init__(self, inputs: int, size: int, generator: np.random.Generator, horizon: int | None = None):
        """Draw the weights: reset gate, update gate and candidate in one product each, orthogonal with gain 1.

        With zero biases an entry keeps half of itself at each step, and slopes reach back a few steps only. With a
        `horizon`, entries begin with lives of 1 to so many steps (Tallec and Ollivier 2018, arXiv 1804.11188).
        """
        self.outputs = size
        self.from_input = Linear(inputs, 3 * size, 1.0, generator)
        self.from_memory = Linear(size, 3 * size, 1.0, generator)
        if horizon is not None:
            bias = np.zeros(3 * size, np.float32)
            bias[size : 2 * size] = np.log(generator.uniform(1.0, horizon - 1.0, size))
            self.from_input.bias = nnx.Param(jax.device_put(bias))

    def initial(self, n: int) -> jax.Array:
        """Return zeros."""
        return jnp.zeros((n, self.outputs), jnp.float32)

    def step(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the new memory, twice."""
        memory = gated(self.from_input(x), self.from_memory(memory), memory)
        return memory, memory

    def span(self, memory: jax.Array, x: jax.Array, next_x: jax.Array | None, ended: jax.Array, every: int) -> Span:
        """Run step by step through time; the products with the inputs are one."""

        def step(memory: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Tree]:
            x_t, ended_t = inputs
            after = gated(x_t, self.from_memory(memory), memory)
            return choose_rows(ended_t, jnp.zeros_like(after), after), (memory, after)

        last, (before, after) = jax.lax.scan(step, memory, (self.from_input(x), ended))
        next_features = None if next_x is None else self.step(after, next_x)[1]
        return Span(after, next_features, jnp.concatenate([before[::every], last[None]]))


def gated(x: jax.Array, h: jax.Array, memory: jax.Array) -> jax.Array:
    """Return the new memory of a gated recurrent unit, from the products with input and memory."""
    x_reset, x_update, x_new = jnp.split(x, 3, axis=-1)
    h_reset, h_update, h_new = jnp.split(h, 3, axis=-1)
    update = jax.nn.sigmoid(x_update + h_update)
    candidate = jnp.tanh(x_new + jax.nn.sigmoid(x_reset + h_reset) * h_new)
    return update * memory + (1.0 - update) * candidate


class Cache(NamedTuple):
    """A transformer's memory: keys and values of the latest steps, the oldest first, `[n, window - 1, layers, d]`."""

    keys: jax.Array
    values: jax.Array
    count: jax.Array
    """How many of them are of the running episode: the latest ones."""


class TransformerMemory(nnx.Module):
    """A causal transformer (Vaswani et al. 2017, arXiv 1706.03762) over a sliding window of steps.

    Norms come before attention and perceptron (Xiong et al. 2020, arXiv 2002.04745); positions are rotations of queries
    and keys (Su et al. 2021, arXiv 2104.09864), so that only distances count and keys can be kept. Each layer sees the
    latest `window` steps of the episode, as the layer below has made them; so `layers` of them reach back
    `layers (window - 1)` steps. A step costs as much as the window is long, a span as much as its steps times window.
    """

    def __init__(
        self,
        inputs: int,
        *,
        model_dim: int,
        num_layers: int,
        num_heads: int,
        feedforward_dim: int,
        window: int,
        dropout: float = 0.0,
        generator: np.random.Generator,
    ):
        """Draw the weights; layers near the output are small, so that each block begins as nearly nothing."""
        self.outputs, self.window, self.num_heads = model_dim, window, num_heads
        self.embed = Linear(inputs, model_dim, 1.0, generator)
        self.blocks = nnx.List(
            [
                TransformerBlock(model_dim, num_heads, feedforward_dim, num_layers, dropout, generator)
                for _ in range(num_layers)
            ]
        )
        self.norm = Norm(model_dim)

    def initial(self, n: int) -> Cache:
        """Return a cache that holds nothing."""
        rows = jnp.zeros((n, self.window - 1, len(self.blocks), self.outputs), jnp.float32)
        return Cache(rows, rows, jnp.zeros(n, jnp.int32))

    def step(self, memory: Cache, x: jax.Array) -> tuple[Cache, jax.Array]:
        """Attend to the cache and to the step itself; the oldest step makes room for it."""
        last = self.window - 1
        place = np.arange(self.window)
        seen = (jnp.asarray(place) >= last - memory.count[:, None])[:, None]  # [n, 1 query, window]
        h, keys, values = self.embed(x)[:, None], [], []  # [n, 1, d]
        for i, block in enumerate(self.blocks):
            query, key, value = block.heads(h)
            keys.append(key)
            values.append(value)
            past = (jnp.concatenate([x[:, :, i], new], axis=1) for x, new in zip(memory[:2], (key, value), strict=True))
            h = block.mix(h, block.attend(query, place[-1:], *past, place, seen))
        new = (jnp.stack(rows, axis=2) for rows in (keys, values))  # [n, 1, layers, d]
        moved = (jnp.concatenate([x[:, 1:], row], axis=1)[:, :last] for x, row in zip(memory[:2], new, strict=True))
        count = jnp.minimum(memory.count + 1, last)
        if not last:
            moved = memory[:2]
        return Cache(*moved, count), self.norm(h)[:, 0]

    def span(self, memory: Cache, x: jax.Array, next_x: jax.Array | None, ended: jax.Array, every: int) -> Span:
        """Attend from all steps at once, within windows and episodes; successors see the past of their own steps."""
        last, steps = self.window - 1, len(x)
        place, seen, seen_next = self._masks(memory.count, ended)
        h = self.embed(x.swapaxes(0, 1))  # [T, B] -> [B, T, d]
        after = None if next_x is None else self.embed(next_x.swapaxes(0, 1))
        keys, values = [], []
        for i, block in enumerate(self.blocks):
            query, key, value = block.heads(h)
            key, value = (
                jnp.concatenate([x[:, :, i], new], axis=1) for x, new in zip(memory[:2], (key, value), strict=True)
            )
            if after is not None:
                own = block.heads(after)
                after = block.mix(after, block.attend_beside(own, place[last:] + 1, key, value, place, seen_next))
            h = block.mix(h, block.attend(query, place[last:], key, value, place, seen))
            keys.append(key)
            values.append(value)
        counts = counts_kept(memory.count, ended, last)  # [T + 1, B]
        starts = [*range(0, steps, every), steps]
        rows = (jnp.stack(layers, axis=2) for layers in (keys, values))  # [B, last + T, layers, d]
        cut = (jnp.stack([x[:, s : s + last] for s in starts]) for x in rows)
        features, after = (None if y is None else self.norm(y).swapaxes(0, 1) for y in (h, after))
        return Span(features, after, Cache(*cut, counts[jnp.asarray(starts)]))

    def _masks(self, count: jax.Array, ended: jax.Array) -> tuple[np.ndarray, jax.Array, jax.Array]:
        """Return places `[last + T]` in time, and what each step and each successor may attend to, `[B, T, last + T]`.

        The kept steps come first, then those of the span.
        """
        last, steps = self.window - 1, len(ended)
        place = np.arange(last + steps)
        episode = jnp.cumsum(ended, axis=0) - ended  # of each step [T, B]; what is kept is of the episode 0, or older
        kept = jnp.where(place[:last, None] >= last - count, 0, -1)  # [last, B]
        of_keys = jnp.concatenate([kept, episode]).T  # [B, last + T]
        same = episode.T[:, :, None] == of_keys[:, None, :]
        age = place[last:, None] - place
        return place, same & (age >= 0) & (age <= last), same & (age >= 0) & (age < last)


def counts_kept(count: jax.Array, ended: jax.Array, most: int) -> jax.Array:
    """Return how many steps of the running episode are kept before each step and after the last, `[T + 1, B]`."""

    def step(count: jax.Array, ended_t: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.where(ended_t, 0, jnp.minimum(count + 1, most)), count

    last, before = jax.lax.scan(step, count, ended)
    return jnp.concatenate([before, last[None]])
