"""Probability distributions over actions, as pytrees with the four or five methods that learning needs.

Events lie on the last axis; all leading axes are batch axes. Sampling is a deterministic function of noise that
is drawn beforehand, for a whole rollout at once: that is several times cheaper than drawing step by step.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.networks.action_scaling import action_size
from ludus.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, leaves
from ludus.types import Array

LOG_2PI = 1.8378770664093453
LOG_2 = 0.6931471805599453
NODES = np.linspace(-6.0, 6.0, 129)
WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
"""The mean of f over a standard normal is about sum(WEIGHTS f(NODES)).

Equal distances: tanh has poles that a wide Gaussian brings close, and to the trapezoidal rule these matter least
(Trefethen and Weideman 2014, https://doi.org/10.1137/130932132). The entropy is right to 1e-5 up to a log_std of 2.
"""


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


class TanhGaussian(NamedTuple):
    """A Gaussian squashed by tanh: actions in (-1, 1). Samples and log-probabilities are of the value before tanh.

    Densities are those of the squashed action, so they hold tanh's Jacobian, but never its inverse: an action that
    rounds to 1 has no inverse (Haarnoja et al. 2018, arXiv 1812.05905, appendix C).
    """

    mean: jax.Array
    log_std: jax.Array

    def sample(self, noise: jax.Array) -> jax.Array:
        """Turn standard normal noise `[..., d]` into values before squashing."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> jax.Array:
        """Return the mean before squashing, which is the median after it."""
        return self.mean

    def squash(self, unsquashed: jax.Array) -> jax.Array:
        """Return the action of a value."""
        return jnp.tanh(unsquashed)

    def log_prob(self, unsquashed: jax.Array) -> jax.Array:
        """Return log p(tanh(unsquashed)), summed over dimensions."""
        z = (unsquashed - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(0.5 * z * z + self.log_std + 0.5 * LOG_2PI + _log_slope(unsquashed), axis=-1)

    def entropy(self) -> jax.Array:
        """Return the differential entropy of the squashed action in nats: the Gaussian's and tanh's mean log slope."""
        nodes = self.mean[..., None] + jnp.exp(self.log_std)[..., None] * NODES.astype(np.float32)
        squashing = jnp.sum(_log_slope(nodes) * WEIGHTS.astype(np.float32), axis=-1)
        return jnp.sum(self.log_std + 0.5 * (1.0 + LOG_2PI) + squashing, axis=-1)


def _log_slope(unsquashed: jax.Array) -> jax.Array:
    """Return log(1 - tanh(u)^2), in a form that neither overflows nor cancels."""
    return 2.0 * (LOG_2 - unsquashed - jax.nn.softplus(-2.0 * unsquashed))


class MultiCategorical(NamedTuple):
    """Independent choices with `logits` `[..., k, n]`, -inf where a choice has fewer than n values.

    Actions are int32 `[..., k]`. Detail 37 of PPO: probabilities multiply, so their logarithms add up.
    """

    logits: jax.Array

    @property
    def choices(self) -> Categorical:
        """Each component as a distribution of its own."""
        return Categorical(self.logits)

    def sample(self, noise: jax.Array) -> jax.Array:
        """Turn uniform noise `[..., k]` into actions."""
        return self.choices.sample(noise)

    def mode(self) -> jax.Array:
        """Return the likeliest value of each component."""
        return self.choices.mode()

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return log p(action), summed over components."""
        return self.choices.log_prob(action).sum(axis=-1)

    def entropy(self) -> jax.Array:
        """Return the sum of the components' entropies."""
        return self.choices.entropy().sum(axis=-1)

    def kl(self, other: "MultiCategorical") -> jax.Array:
        """Return KL(self || other), the sum over components."""
        return self.choices.kl(other.choices).sum(axis=-1)


class Bernoulli(NamedTuple):
    """Independent coins with `logits` `[..., k]` of falling on 1; actions are int32 `[..., k]`."""

    logits: jax.Array

    def sample(self, noise: jax.Array) -> jax.Array:
        """Turn uniform noise `[..., k]` in [0, 1) into zeros and ones."""
        return (noise < jax.nn.sigmoid(self.logits)).astype(jnp.int32)

    def mode(self) -> jax.Array:
        """Return the likelier side of each coin."""
        return (self.logits > 0).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return log p(action), summed over coins: a coin on 1 has log sigmoid(logit), on 0 log sigmoid(-logit)."""
        return jnp.sum(jax.nn.log_sigmoid(jnp.where(action == 1, self.logits, -self.logits)), axis=-1)

    def entropy(self) -> jax.Array:
        """Return -sum (p log p + q log q)."""
        p, q = jax.nn.sigmoid(self.logits), jax.nn.sigmoid(-self.logits)
        return -jnp.sum(p * jax.nn.log_sigmoid(self.logits) + q * jax.nn.log_sigmoid(-self.logits), axis=-1)

    def kl(self, other: "Bernoulli") -> jax.Array:
        """Return KL(self || other)."""
        heads = jax.nn.log_sigmoid(self.logits) - jax.nn.log_sigmoid(other.logits)
        tails = jax.nn.log_sigmoid(-self.logits) - jax.nn.log_sigmoid(-other.logits)
        return jnp.sum(jax.nn.sigmoid(self.logits) * heads + jax.nn.sigmoid(-self.logits) * tails, axis=-1)


class Composite(NamedTuple):
    """Independent distributions, one for each leaf of a Dict or Tuple; actions and noise are tuples in that order."""

    parts: tuple[Any, ...]

    def sample(self, noise: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Turn the noise of each part into its action."""
        return tuple(part.sample(row) for part, row in zip(self.parts, noise, strict=True))

    def mode(self) -> tuple[jax.Array, ...]:
        """Return the likeliest action of each part."""
        return tuple(part.mode() for part in self.parts)

    def log_prob(self, action: tuple[jax.Array, ...]) -> jax.Array:
        """Return log p(action), summed over parts."""
        return sum(part.log_prob(leaf) for part, leaf in zip(self.parts, action, strict=True))

    def entropy(self) -> jax.Array:
        """Return the sum of the parts' entropies."""
        return sum(part.entropy() for part in self.parts)

    def kl(self, other: "Composite") -> jax.Array:
        """Return KL(self || other), the sum over parts."""
        return sum(mine.kl(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))


Distribution = Categorical | Gaussian | MultiCategorical | Bernoulli | Composite


def distribution_for(space: Space, outputs: jax.Array, log_std: Array) -> Distribution:
    """Return the distribution over actions of a space, given a network's outputs `[..., action_size(space)]`.

    `log_std` holds one number for each real number of an action; None if there are none.
    """
    if isinstance(space, Dict | Tuple):
        return Composite(tuple(_parts(space, outputs, log_std)))
    if isinstance(space, Discrete):
        return Categorical(outputs)
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(_padded(outputs, space.sizes, -jnp.inf))
    if isinstance(space, MultiBinary):
        return Bernoulli(outputs)
    return Gaussian(outputs, jnp.broadcast_to(log_std, outputs.shape))


def restricted(space: Space, distribution: Any, mask: jax.Array | None) -> Any:
    """Forbid the actions where a mask `[..., mask_size(space)]` is False; None forbids nothing."""
    if mask is None:
        return distribution
    allowed = _padded(mask, space.sizes, False) if isinstance(space, MultiDiscrete) else mask
    return distribution._replace(logits=jnp.where(allowed, distribution.logits, -jnp.inf))


def sampling_noise(space: Space, key: jax.Array, shape: tuple[int, ...]) -> Any:
    """Draw the noise that `sample` needs for `shape` actions of a space."""
    if isinstance(space, Dict | Tuple):
        found = leaves(space)
        keys = jax.random.split(key, len(found))
        return tuple(sampling_noise(leaf, key, shape) for (_, leaf), key in zip(found, keys, strict=True))
    if isinstance(space, Discrete):
        return jax.random.uniform(key, shape)
    draw = jax.random.normal if isinstance(space, Box) else jax.random.uniform
    return draw(key, (*shape, math.prod(space.shape)))


def _parts(space: Space, outputs: jax.Array, log_std: Array) -> Iterator[Distribution]:
    for _, leaf in leaves(space):
        size = action_size(leaf)
        if isinstance(leaf, Box):
            yield distribution_for(leaf, outputs[..., :size], log_std[:size])
            log_std = log_std[size:]
        else:
            yield distribution_for(leaf, outputs[..., :size], None)
        outputs = outputs[..., size:]


def _padded(x: jax.Array, sizes: list[int], fill: Array) -> jax.Array:
    """Components one after the other `[..., sum(sizes)]` as rows of equal length `[..., k, max(sizes)]`."""
    longest = max(sizes)
    if min(sizes) == longest:
        return x.reshape(*x.shape[:-1], len(sizes), longest)
    components = jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis=-1)
    before = [(0, 0)] * (x.ndim - 1)
    padding = [[*before, (0, longest - size)] for size in sizes]
    rows = [jnp.pad(c, pad, constant_values=fill) for c, pad in zip(components, padding, strict=True)]
    return jnp.stack(rows, axis=-2)
