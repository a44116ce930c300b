"""Running mean and variance, kept in the learner's state so that a policy cannot part from them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ludus.types import Tree

CLIP = 10.0
"""Normalised observations and rewards are kept within this many standard deviations."""


class RunningStatistics(NamedTuple):
    """Mean, variance and number of everything seen so far; an empty one normalises nothing."""

    mean: jax.Array
    variance: jax.Array
    count: jax.Array


class TokenRows(NamedTuple):
    """The place of a group of tokens among the numbers of an observation, and which of its features says `valid`."""

    start: int
    tokens: int
    features: int
    valid: int | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenStatistics:
    """The statistics of an observation that is made of tokens: those of one group are measured together.

    So their order does not matter. Tokens that are not there are not counted, and become zeros; the feature that says
    which are stays as it is.
    """

    groups: tuple[RunningStatistics, ...]
    """Of the features of each group."""
    rows: tuple[TokenRows, ...] = field(metadata={"static": True})
    axes: int = field(metadata={"static": True})
    """How many axes an observation has."""

    def updated(self, x: jax.Array, valid: jax.Array | None) -> "TokenStatistics":
        """Take in a batch `[T, B, *shape]`."""
        merged = []
        for stats, (tokens, there) in zip(self.groups, self._tokens(x), strict=True):
            counted = there if valid is None else there & valid[:, :, None]
            rows = tokens.reshape(len(x), -1, tokens.shape[-1])  # [T, B, tokens, features] -> [T, B * tokens, features]
            merged.append(_merged(stats, rows, counted.reshape(len(x), -1)))
        return replace(self, groups=tuple(merged))

    def normalized(self, x: jax.Array) -> jax.Array:
        """Normalise observations `[..., *shape]`, which hold the groups one after the other."""
        batch, parts = x.shape[: x.ndim - self.axes], []
        for stats, rows, (tokens, there) in zip(self.groups, self.rows, self._tokens(x), strict=True):
            kept = jnp.arange(rows.features) == (-1 if rows.valid is None else rows.valid)
            scaled = jnp.where(there[..., None], _scaled(stats, tokens), 0.0)
            parts.append(jnp.where(kept, tokens, scaled).reshape(*batch, -1))
        return jnp.concatenate(parts, axis=-1).reshape(x.shape)

    def _tokens(self, x: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        """Return the tokens of each group `[..., tokens, features]`, and which of them are there."""
        batch = x.shape[: x.ndim - self.axes]
        flat, found = x.reshape(*batch, -1).astype(jnp.float32), []
        for start, count, features, valid in self.rows:
            tokens = flat[..., start : start + count * features].reshape(*batch, count, features)
            there = jnp.ones(tokens.shape[:-1], bool) if valid is None else tokens[..., valid] > 0.5
            found.append((tokens, there))
        return found


def empty_statistics(shape: tuple[int, ...]) -> RunningStatistics:
    """Return the statistics of nothing: mean 0, variance 1."""
    return RunningStatistics(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))


def empty_token_statistics(rows: tuple[TokenRows, ...], axes: int) -> TokenStatistics:
    """Return the statistics of no tokens, for observations with so many axes."""
    return TokenStatistics(tuple(empty_statistics((group.features,)) for group in rows), rows, axes)


def update_statistics(stats: Tree, x: Tree, valid: jax.Array | None = None) -> Any:
    """Take in a batch `[T, B, *shape]`, leaving out rows where `valid` `[T, B]` is False.

    A tree of arrays has a tree of statistics, with None for an array that is not to be normalised.
    """

    def updated(stats: RunningStatistics | TokenStatistics | None, x: jax.Array) -> Tree:
        if isinstance(stats, TokenStatistics):
            return stats.updated(x, valid)
        return stats if stats is None else _merged(stats, x, valid)

    return _map_statistics(updated, stats, x)


def _merged(stats: RunningStatistics, x: jax.Array, valid: jax.Array | None) -> RunningStatistics:
    """The parallel form of Chan, Golub and LeVeque (1979): exact however the data is cut into batches."""
    axes = (0, 1)
    x = x.astype(jnp.float32)
    weight = jnp.ones(x.shape[:2]) if valid is None else valid.astype(jnp.float32)
    count = weight.sum()
    weight = weight.reshape(weight.shape + (1,) * (x.ndim - 2))
    x = jnp.where(weight > 0, x, 0.0)
    mean = x.sum(axes) / jnp.maximum(count, 1.0)
    squares = (weight * jnp.square(x - mean)).sum(axes)

    total = jnp.maximum(stats.count + count, 1.0)
    gap = mean - stats.mean
    # An empty statistic's variance of 1 is a convention, not data: its weight is its count, which is zero.
    all_squares = stats.variance * stats.count + squares + jnp.square(gap) * stats.count * count / total
    merged = RunningStatistics(stats.mean + gap * count / total, all_squares / total, stats.count + count)
    return jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), merged, stats)


def standard_deviation(stats: RunningStatistics) -> jax.Array:
    """Square root of the variance, kept away from zero."""
    return jnp.sqrt(stats.variance + 1e-8)


def normalize(stats: Tree, x: Tree) -> Any:
    """Shift and scale to mean 0 and standard deviation 1, then clip; what has no statistics is left as it is."""

    def scaled(stats: RunningStatistics | TokenStatistics | None, x: jax.Array) -> jax.Array:
        if isinstance(stats, TokenStatistics):
            return stats.normalized(x)
        return x if stats is None else _scaled(stats, x)

    return _map_statistics(scaled, stats, x)


def _scaled(stats: RunningStatistics, x: jax.Array) -> jax.Array:
    return jnp.clip((x - stats.mean) / standard_deviation(stats), -CLIP, CLIP)


def _map_statistics(function: Callable[[Any, Any], Any], stats: Tree, x: Tree) -> Any:
    kinds = RunningStatistics | TokenStatistics
    return jax.tree.map(function, stats, x, is_leaf=lambda s: s is None or isinstance(s, kinds))


def location_and_scale(stats: RunningStatistics | None) -> tuple[Any, Any]:
    """Mean and standard deviation; 0 and 1 where nothing is normalised."""
    return (0.0, 1.0) if stats is None else (stats.mean, standard_deviation(stats))


def measure(old: RunningStatistics, new: RunningStatistics) -> RunningStatistics:
    """Return the statistics to measure a rollout by: the old ones, unless it more than doubles their deviation.

    Then they are no measure for it, and the new ones are taken, which include it: there were none before, or all that
    was seen was equal, and by a deviation of next to nothing any change would be huge.
    """
    is_unfit = (old.count == 0) | (standard_deviation(new) > 2.0 * standard_deviation(old))
    return jax.tree.map(lambda a, b: jnp.where(is_unfit, a, b), new, old)


def standardize(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Shift and scale one minibatch to mean 0 and deviation 1 under weights that sum to one; zeros if all are equal."""
    x = x - jnp.sum(weight * x)
    x = x - jnp.sum(weight * x)  # twice: else the rounding of the mean of equal numbers becomes a deviation of 1
    return x / (jnp.sqrt(jnp.sum(weight * jnp.square(x))) + 1e-8)


def explained_variance(prediction: jax.Array, target: jax.Array, valid: jax.Array | None) -> jax.Array:
    """1 - Var(target - prediction) / Var(target); 0 where the target is constant."""
    spread = jnp.var(target, where=valid)
    return jnp.where(spread > 0, 1.0 - jnp.var(target - prediction, where=valid) / jnp.maximum(spread, 1e-12), 0.0)
