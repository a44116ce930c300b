"""The episodes that count where a policy is judged by the latest of them: those before which no other is still running.

Short episodes end first: of a thousand environments that begin together, the first hundred episodes to end are the
hundred shortest, and where length and return go together their mean says nothing of the policy. So an episode counts
only when all that began before it, or with it, have ended. Those that count are then always a beginning of the list of
all episodes in the order of their starts, in which a long one has the same place as a short one.

Until then it waits in one of two sums, by the time of its start: the older one is closed to episodes that begin now,
and counts as soon as none of its own is running; then the younger one takes its place.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.types import FIGURES, Array, Counted, EpisodeStats


class Cohorts(NamedTuple):
    """Episodes that ended and do not count yet."""

    since: Array
    """Steps since the younger sum was begun: an episode that began earlier belongs to the older one."""
    older: Array
    """The sum of each of `FIGURES`."""
    younger: Array


def begin() -> Cohorts:
    """Begin with no episode ended."""
    nothing = np.zeros(len(FIGURES), np.float32)
    return Cohorts(np.int32(0), nothing, nothing)


def count(
    cohorts: Cohorts, stats: EpisodeStats, terminated: Array, valid: Array | None, running: Array, success_return: Array
) -> tuple[Cohorts, Counted]:
    """Take in the episodes `[T, B]` that ended in a rollout.

    `running` `[B]` is how many steps the episode has that each environment is in after it, 0 if it has only begun.
    """
    t = jnp.arange(len(stats.lengths))
    made = len(t) if valid is None else jnp.where(valid.any(axis=1), t + 1, 0).max()  # the last one may be cut short
    since, oldest = cohorts.since + made, running.max()
    age = stats.lengths + (made - 1 - t)[:, None]  # steps from the start of an episode to the end of the rollout
    is_early = age > oldest  # no episode that is running began before it, or with it
    is_older = age > since
    figures = _figures(stats, terminated, success_return)
    older = cohorts.older + _sums(figures, is_older)
    early, late = _sums(figures, ~is_older & is_early), _sums(figures, ~is_older & ~is_early)
    is_complete = oldest <= since
    # What the younger sum holds from before may have begun after an early one, and cannot be told apart any more.
    is_parted = is_complete & (cohorts.younger[0] == 0)
    counted = jnp.where(is_complete, older, 0) + jnp.where(is_parted, early, 0)
    younger = cohorts.younger + late + jnp.where(is_parted, 0, early)
    after = Cohorts(
        jnp.where(is_complete, 0, since),
        jnp.where(is_complete, younger, older),
        jnp.where(is_complete, 0, younger),
    )
    waiting = (after.older[0] + after.younger[0]).astype(jnp.int32)
    return after, Counted(counted, (running > after.since).sum(dtype=jnp.int32), waiting)


def _figures(stats: EpisodeStats, terminated: Array, success_return: Array) -> jax.Array:
    """Return `FIGURES` of every episode, `[figure, T, B]`: 0 where none ended."""
    ended = jnp.asarray(stats.lengths) > 0
    returns = jnp.where(ended, stats.returns, 0.0)
    has_told = ended & ~jnp.isnan(stats.told)
    booleans = ended & terminated, ended & (returns >= success_return), has_told
    counts = [x.astype(jnp.float32) for x in (ended, *booleans)]
    lengths = jnp.asarray(stats.lengths, jnp.float32)
    return jnp.stack([counts[0], returns, lengths, *counts[1:], jnp.where(has_told, stats.told, 0.0)])


def _sums(figures: jax.Array, chosen: jax.Array) -> jax.Array:
    return jnp.where(chosen, figures, 0.0).sum(axis=(1, 2))
