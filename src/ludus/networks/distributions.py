"""Probability distributions over actions, as pytrees with the four or five methods that learning needs.

Events lie on the last axis; all leading axes are batch axes. Sampling is a deterministic function of noise that
is drawn beforehand, for a whole rollout at once: that is several times cheaper than drawing step by step.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.spaces import Discrete, Space

LOG_2PI = 1.8378770664093453


class Categorical(NamedTuple):
    """Softmax over `logits` `[..., n]`; actions are int32 `[...]`. A logit of -inf forbids its action."""

    logits: jax.Array

    @property
    def log_probabilities(self) -> jax.Array:
        """Normalised logits `[..., n]`."""
        return jax.nn.log_softmax(self.logits)

    def sample(self, noise: jax.Array) -> jax.Array:
        """Turn uniform noise `[...]` in [0, 1) into actions, by inversion of the cumulative distribution."""
        probabilities = jax.nn.softmax(self.logits)
        # A product with a triangle of ones: a cumulative sum compiles to far more code on a CPU.
        # In full precision: a GPU would round it to ten bits, and actions would be drawn from another distribution.
        ones = jnp.triu(jnp.ones((self.logits.shape[-1],) * 2))
        cumulative = jnp.matmul(probabilities, ones, precision="highest")
        # Scaled by the last entry, which rounding may leave below one: an action of probability 0 is never drawn.
        passed = noise[..., None] * cumulative[..., -1:] >= cumulative[..., :-1]
        return jnp.sum(passed, axis=-1, dtype=jnp.int32)

    def mode(self) -> jax.Array:
        """Return the likeliest action."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return log p(action)."""
        # Comparing with every index costs n multiplications, but its gradient needs no scatter.
        chosen = action[..., None] == jnp.arange(self.logits.shape[-1])
        return jnp.sum(jnp.where(chosen, self.log_probabilities, 0.0), axis=-1)

    def entropy(self) -> jax.Array:
        """Return -sum p log p, where 0 log 0 is 0."""
        log_p = self.log_probabilities
        possible = jnp.isfinite(log_p)
        return -jnp.sum(jnp.where(possible, jnp.exp(log_p) * jnp.where(possible, log_p, 0.0), 0.0), axis=-1)

    def kl(self, other: "Categorical") -> jax.Array:
        """Return KL(self || other)."""
        log_p, log_q = self.log_probabilities, other.log_probabilities
        possible = jnp.isfinite(log_p)
        gap = jnp.where(possible, log_p, 0.0) - jnp.where(possible, log_q, 0.0)
        return jnp.sum(jnp.where(possible, jnp.exp(log_p) * gap, 0.0), axis=-1)


class Gaussian(NamedTuple):
    """Independent normals with `mean` and `log_std` `[..., d]`; actions are float32 `[..., d]`."""

    mean: jax.Array
    log_std: jax.Array

    def sample(self, noise: jax.Array) -> jax.Array:
        """Turn standard normal noise `[..., d]` into actions."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> jax.Array:
        """Return the mean, which is also the likeliest action."""
        return self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return log p(action), summed over dimensions (they are independent)."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(0.5 * z * z + self.log_std + 0.5 * LOG_2PI, axis=-1)

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return jnp.sum(jnp.broadcast_to(self.log_std, self.mean.shape) + 0.5 * (1.0 + LOG_2PI), axis=-1)

    def kl(self, other: "Gaussian") -> jax.Array:
        """Return KL(self || other)."""
        ratio = jnp.exp(2.0 * (self.log_std - other.log_std))
        z = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return jnp.sum(0.5 * (ratio + z * z - 1.0) + other.log_std - self.log_std, axis=-1)


Distribution = Categorical | Gaussian


def sampling_noise(space: Space, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw the noise that `sample` needs for `shape` actions of a space."""
    if isinstance(space, Discrete):
        return jax.random.uniform(key, shape)
    return jax.random.normal(key, (*shape, math.prod(space.shape)))
