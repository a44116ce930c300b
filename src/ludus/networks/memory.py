"""Memory units: layers that remember what they were shown, one step at a time or a whole span of steps at once.

Acting takes one step in every environment (`step`); learning evaluates a whole span `[T, B]` (`span`). Both compute the
same numbers. An episode's end clears the memory: nothing is remembered of the episode before.
"""

import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

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


class Norm(nnx.Module):
    """Layer normalisation (Ba et al. 2016, arXiv 1607.06450)."""

    def __init__(self, size: int):
        """Begin with scale 1 and bias 0."""
        self.scale = nnx.Param(jax.device_put(np.ones(size, np.float32)))
        self.bias = nnx.Param(jax.device_put(np.zeros(size, np.float32)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise over the last axis."""
        x = x - x.mean(axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-5) * self.scale[...] + self.bias[...]


class TransformerBlock(nnx.Module):
    """Attention and a perceptron, each added to what came in."""

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        feedforward_dim: int,
        num_layers: int,
        dropout: float,
        generator: np.random.Generator,
    ):
        """Draw the weights."""
        self.num_heads = num_heads
        small = 1.0 / math.sqrt(2.0 * num_layers)
        self.norm_attention, self.norm_feedforward = Norm(model_dim), Norm(model_dim)
        self.project = Linear(model_dim, 3 * model_dim, 1.0, generator)
        self.combine = Linear(model_dim, model_dim, small, generator)
        self.widen = Linear(model_dim, feedforward_dim, math.sqrt(2.0), generator)
        self.narrow = Linear(feedforward_dim, model_dim, small, generator)
        self.dropout = nnx.Dropout(dropout, deterministic=True)

    def heads(self, h: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return queries, keys and values `[B, T, d]` of all heads side by side."""
        query, key, value = jnp.split(self.project(self.norm_attention(h)), 3, axis=-1)
        return query, key, value

    def attend(
        self, query: jax.Array, at: np.ndarray, key: jax.Array, value: jax.Array, places: np.ndarray, seen: jax.Array
    ) -> jax.Array:
        """Mix values `[B, S, d]` for queries `[B, T, d]` at the places `at` `[T]`, where `seen` `[B, T, S]`."""
        scores = self._scores(query, at, key, places, seen)
        return self._mixed(jax.nn.softmax(scores, axis=-1), value)

    def attend_beside(
        self,
        own: tuple[jax.Array, ...],
        at: np.ndarray,
        key: jax.Array,
        value: jax.Array,
        places: np.ndarray,
        seen: jax.Array,
    ) -> jax.Array:
        """Likewise for queries that besides see their own key and value, and no other query's."""
        query, own_key, own_value = own
        scores = self._scores(query, at, key, places, seen)
        query, own_key, own_value = (self._split(x) for x in (query, own_key, own_value))
        own_score = jnp.einsum("bthd,bthd->bht", query, own_key) / math.sqrt(query.shape[-1])
        weights = jax.nn.softmax(jnp.concatenate([scores, own_score[..., None]], axis=-1), axis=-1)
        mixed = self._mixed(weights[..., :-1], value)
        return mixed + _joined(jnp.einsum("bht,bthd->bthd", weights[..., -1], own_value))

    def mix(self, h: jax.Array, attended: jax.Array) -> jax.Array:
        """Add what was attended to, then the perceptron."""
        h = h + self.dropout(self.combine(attended))
        return h + self.dropout(self.narrow(nnx.gelu(self.widen(self.norm_feedforward(h)))))

    def _scores(
        self, query: jax.Array, at: np.ndarray, key: jax.Array, places: np.ndarray, seen: jax.Array
    ) -> jax.Array:
        query, key = rotated(self._split(query), at), rotated(self._split(key), places)
        scores = jnp.einsum("bthd,bshd->bhts", query, key) / math.sqrt(query.shape[-1])
        return jnp.where(seen[:, None], scores, -jnp.inf)

    def _mixed(self, weights: jax.Array, value: jax.Array) -> jax.Array:
        return _joined(jnp.einsum("bhts,bshd->bthd", weights, self._split(value)))

    def _split(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.num_heads, -1)  # [..., d] -> [..., heads, d / heads]


def _joined(x: jax.Array) -> jax.Array:
    return x.reshape(*x.shape[:-2], -1)  # [..., heads, d / heads] -> [..., d]


def rotated(x: jax.Array, places: np.ndarray) -> jax.Array:
    """Rotate pairs of entries of `x` `[B, T, heads, d]` by angles that grow with the places `[T]`.

    The product of two rotated vectors depends on the distance of their places alone.
    """
    half = x.shape[-1] // 2
    angles = (places[:, None] * 10_000.0 ** -(np.arange(half) / max(half, 1)))[:, None]  # [T, 1, d / 2]
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = [first * cosine - second * sine, first * sine + second * cosine]
    return jnp.concatenate([*turned, x[..., 2 * half :]], axis=-1)  # an odd entry stays as it is
