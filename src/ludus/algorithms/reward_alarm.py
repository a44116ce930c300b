"""The alarm of learned rewards: it goes off where the learned reward rises and what it stands for does not.

A policy that has found a fault in its reward model is paid more and more while it gets worse. All segments of the pool
are judged by the model as it is now, so a model that changes cannot be mistaken for a policy that does.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.algorithms.segments import Pool
from ludus.types import Array


class Signs(NamedTuple):
    """Signs by which a hacked reward is known."""

    learned_trend: jax.Array
    """The slope of the learned reward over the pool's segments, oldest first, in its standard errors."""
    true_trend: jax.Array
    """That of the true reward; 0 where there is none."""
    correlation: jax.Array
    """Of learned and true rewards over all segments of the pool; NaN where there is no true reward."""
    is_alarm: jax.Array


def signs(pool: Pool, rewards: jax.Array, agreement: tuple[jax.Array, jax.Array, jax.Array], threshold: Array) -> Signs:
    """Look at learned rewards `[P]` of a pool's segments; nothing is said before the pool is full.

    `agreement` is the accuracy on older and newer held-out labels, and the number of each. The alarm goes off if the
    learned reward rises, and the true one falls, or does not rise while agreement falls.
    """
    is_filled, order = pool.order()
    weight = is_filled.astype(jnp.float32)
    true = pool.segments.reward.mean(axis=-1)
    is_known = _deviation(true, weight) > 1e-6
    learned_trend = trend(order, rewards, weight)
    true_trend = jnp.where(is_known, trend(order, true, weight), 0.0)
    older, newer, count = agreement
    error = jnp.sqrt((_spread(older) + _spread(newer)) / jnp.maximum(count, 1.0)) + 1e-6
    agrees_less = (count >= 10) & ((newer - older) / error < -threshold)
    rises = learned_trend > threshold
    falls = (true_trend < -threshold) | (_contradict(order, rewards, true, weight) & is_known) | agrees_less
    is_alarm = (pool.total >= pool.size) & rises & falls & (true_trend < threshold / 2)
    correlation = jnp.where(is_known, correlation_of(rewards, true, weight), jnp.nan)
    return Signs(learned_trend, true_trend, correlation, is_alarm)


def trend(x: jax.Array, y: jax.Array, weight: jax.Array) -> jax.Array:
    """Return the slope of a straight line through points, in its standard errors; 0 if there is none."""
    count = jnp.maximum(weight.sum(), 1.0)
    dx, dy = (_centred(values, weight) for values in (x.astype(jnp.float32), y))
    spread = jnp.maximum((dx * dx).sum(), 1e-12)
    slope = (dx * dy).sum() / spread
    rest = jnp.square((dy - slope * dx) * weight).sum()
    error = jnp.sqrt(rest / jnp.maximum(count - 2.0, 1.0) / spread)
    return jnp.where((count > 2) & (error > 0), slope / jnp.maximum(error, 1e-12), 0.0)


def correlation_of(x: jax.Array, y: jax.Array, weight: jax.Array) -> jax.Array:
    """Return the correlation of points with weights 0 or 1; 0 where either is constant."""
    dx, dy = _centred(x, weight), _centred(y, weight)
    return (dx * dy).sum() / jnp.maximum(jnp.sqrt((dx * dx).sum() * (dy * dy).sum()), 1e-12)


def _centred(x: jax.Array, weight: jax.Array) -> jax.Array:
    return (x - (x * weight).sum() / jnp.maximum(weight.sum(), 1.0)) * weight


def _deviation(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.square(_centred(x, weight)).sum() / jnp.maximum(weight.sum(), 1.0))


def _spread(share: jax.Array) -> jax.Array:
    return share * (1.0 - share) + 0.01


def _contradict(order: jax.Array, rewards: jax.Array, true: jax.Array, weight: jax.Array) -> jax.Array:
    """Whether learned and true rewards go against each other in the newest half of the pool."""
    newer = weight * (order >= len(order) // 2)
    count = jnp.maximum(newer.sum(), 4.0)
    return correlation_of(rewards, true, newer) < -3.0 / jnp.sqrt(count)
