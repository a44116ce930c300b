"""Attention: normalisation, transformer blocks, and positions as rotations.

Memories attend from step to step (`memory.py`), encoders from latent vectors to the tokens of an observation
(`token_encoders.py`).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.networks.layers import Linear, product

UNSEEN = -1e9
"""The score of a token that is not there: finite, so that a row without any has finite slopes."""


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
        rezero: bool = False,
    ):
        """Draw the weights; with `rezero`, gates that begin at 0 stand before both sums (arXiv 2003.04887)."""
        self.num_heads = num_heads
        small = 1.0 if rezero else 1.0 / math.sqrt(2.0 * num_layers)
        self.norm_attention, self.norm_feedforward = Norm(model_dim), Norm(model_dim)
        self.project = Linear(model_dim, 3 * model_dim, 1.0, generator)
        self.combine = Linear(model_dim, model_dim, small, generator)
        self.widen = Linear(model_dim, feedforward_dim, math.sqrt(2.0), generator)
        self.narrow = Linear(feedforward_dim, model_dim, small, generator)
        self.dropout = nnx.Dropout(dropout, deterministic=True)
        self.gates = nnx.Param(jax.device_put(np.zeros(2, np.float32))) if rezero else None

    def heads(self, h: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return queries, keys and values `[B, T, d]` of all heads side by side."""
        query, key, value = jnp.split(self.project(self.norm_attention(h)), 3, axis=-1)
        return query, key, value

    def heads_across(self, h: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return queries of `h` `[B, T, d]`, and keys and values of `tokens` `[B, S, d]`, which are normalised."""
        weights, bias, size = self.project.kernel[...], self.project.bias[...], h.shape[-1]
        query = product(self.norm_attention(h), weights[:, :size]) + bias[:size]
        key, value = jnp.split(product(tokens, weights[:, size:]) + bias[size:], 2, axis=-1)
        return query, key, value

    def attend_unordered(self, query: jax.Array, key: jax.Array, value: jax.Array, seen: jax.Array) -> jax.Array:
        """Mix values `[B, S, d]` for queries `[B, T, d]` wherever they stand; `seen` `[B, S]` says which there are.

        Where there are none, zeros.
        """
        query, key = self._split(query), self._split(key)
        scores = jnp.einsum("bthd,bshd->bhts", query, key) / math.sqrt(query.shape[-1])
        seen = seen[:, None, None]
        weights = jax.nn.softmax(jnp.where(seen, scores, UNSEEN), axis=-1) * seen
        return self._mixed(weights, value)

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
        h = h + self._gated(0, self.dropout(self.combine(attended)))
        return h + self._gated(1, self.dropout(self.narrow(nnx.gelu(self.widen(self.norm_feedforward(h))))))

    def _gated(self, gate: int, x: jax.Array) -> jax.Array:
        return x if self.gates is None else self.gates[...][gate] * x

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
