"""Segments: pieces of episodes of one length, drawn from rollouts, which rewards are learnt from.

A segment never goes over the end of an episode, so its observations are one chain: L + 1 of them for L steps.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.networks.reward_network import Judged
from ludus.runtime.demonstrations import Demonstrations
from ludus.spaces import Space, flatten, map_leaves, unflatten
from ludus.types import LudusError, Transition, Tree


class Segments(NamedTuple):
    """Pieces of episodes `[..., L]`."""

    obs: Any
    """Observations `[..., L + 1, *shape]`: those acted on, and the last one's successor."""
    action: Any
    """Actions as the environment took them `[..., L, *shape]`."""
    reward: Any
    """The environment's own rewards `[..., L]`."""
    terminated: Any
    """Whether the episode came to its own end with the last step `[...]`."""

    def judged(self) -> Judged:
        """Return segments `[n, L]` as a reward network is shown them, time first."""
        obs, action = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (self.obs, self.action))
        before, after = (jax.tree.map(lambda x, cut=cut: x[cut], obs) for cut in (slice(None, -1), slice(1, None)))
        return Judged(before, action, after)

    def rows(self, index: Any) -> "Segments":
        """Return some of them."""
        return jax.tree.map(lambda x: x[index], self)


class Pool(NamedTuple):
    """Segments of the latest iterations, in a ring."""

    segments: Segments
    total: jax.Array
    """How many were ever put in."""

    @property
    def size(self) -> int:
        """Segments that fit."""
        return len(self.segments.reward)

    def order(self) -> tuple[jax.Array, jax.Array]:
        """Return which slots are filled, and how old each segment is: 0 for the oldest, rising."""
        slots, total = jnp.arange(self.size), self.total
        is_filled = slots < total
        return is_filled, jnp.where(total > self.size, (slots - total) % self.size, slots)

    def drawn(self, key: jax.Array, shape: tuple[int, ...], newest: int | None = None) -> jax.Array:
        """Return slots of segments drawn with equal probability, of all or of the newest ones."""
        known = jnp.minimum(self.total, self.size if newest is None else min(newest, self.size))
        age = jax.random.randint(key, shape, 1, jnp.maximum(known, 1) + 1)
        return (self.total - age) % self.size


def blank_segments(shape: tuple[int, ...], length: int, obs: Tree, action: Tree) -> Segments:
    """Return segments of zeros; `obs` and `action` are one example of each, without a batch axis."""

    def zeros(example: Tree, *axes: int) -> Any:
        return jax.tree.map(lambda x: jnp.zeros((*shape, *axes, *np.shape(x)), x.dtype), example)

    return Segments(zeros(obs, length + 1), zeros(action, length), zeros(np.float32(0), length), zeros(np.bool_(False)))


def draw_segments(steps: Transition, key: jax.Array, count: int, length: int) -> tuple[Segments, jax.Array]:
    """Draw segments that begin at different steps of a rollout `[T, B]`, and say which there are: the first ones.

    Where fewer than `count` fit between the ends of episodes, the others are no segments.
    """
    num_steps, num_envs = steps.reward.shape
    fits = _can_begin(steps, length)
    chance = jnp.where(fits, jax.random.uniform(key, fits.shape), -1.0).ravel()
    found, index = jax.lax.top_k(chance, min(count, chance.size))
    start, env = index // num_envs, index % num_envs
    times = jnp.minimum(start[:, None] + jnp.arange(length), num_steps - 1)  # [n, L]

    def cut(x: jax.Array) -> jax.Array:
        return x[times, env[:, None]]

    obs, action, reward = jax.tree.map(cut, (steps.obs, steps.action, steps.reward))
    last = jax.tree.map(lambda x: x[times[:, -1], env][:, None], steps.next_obs)
    obs = jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), obs, last)
    return Segments(obs, action, reward, steps.terminated[times[:, -1], env]), found >= 0


def _can_begin(steps: Transition, length: int) -> jax.Array:
    """Return at which steps `[T, B]` a segment can begin: all its steps are there, and its last alone may be an end."""
    ended = steps.terminated | steps.truncated
    invalid = jnp.zeros_like(ended) if steps.valid is None else ~steps.valid

    def within(flags: jax.Array, span: int) -> jax.Array:
        sums = jnp.cumsum(jnp.pad(flags.astype(jnp.int32), [(1, 0), (0, 0)]), axis=0)
        stop = jnp.minimum(jnp.arange(len(flags)) + span, len(flags))
        return sums[stop] - sums[:-1] > 0

    is_late = jnp.arange(len(ended))[:, None] > len(ended) - length
    return ~(within(ended, length - 1) | within(invalid, length) | is_late)


def put_in(pool: Pool, segments: Segments, is_there: jax.Array) -> Pool:
    """Put segments into a pool in place of the oldest; at first all of them, later an eighth of their number.

    So a pool is soon full, and then goes back for as many iterations as it is times as large as that.
    """
    count = len(is_there)
    limit = jnp.where(pool.total < pool.size, count, max(1, count // 8))
    rank = jnp.cumsum(is_there) - 1
    is_kept = is_there & (rank < limit)
    slots = jnp.where(is_kept, (pool.total + rank) % pool.size, pool.size)  # out of range: not stored
    held = jax.tree.map(lambda x, row: x.at[slots].set(row, mode="drop"), pool.segments, segments)
    return Pool(held, pool.total + is_kept.sum(dtype=jnp.int32))


def segments_of(demonstrations: Demonstrations, length: int) -> Segments:
    """Cut episodes into segments in NumPy: one after the other, and another at the end where some steps are left."""
    space, found = demonstrations.observation_space, []
    for first, steps in zip(demonstrations.starts.tolist(), demonstrations.lengths.tolist(), strict=True):
        begins = [*range(0, steps - length + 1, length)]
        begins += [steps - length] if begins and begins[-1] != steps - length else []
        found += [first + begin for begin in begins]
    if not found:
        raise LudusError(
            f"demonstrations: no episode has {length} steps, which reward.segment_length={length} asks for; "
            f"the longest has {demonstrations.lengths.max()}"
        )
    rows = np.asarray(found)[:, None] + np.arange(length)
    obs, after = (flatten(space, x) for x in (demonstrations.obs, demonstrations.next_obs))
    chains = [np.concatenate([x[rows], y[rows[:, -1:]]], axis=1) for x, y in zip(obs, after, strict=True)]
    action = jax.tree.map(lambda x: x[rows], demonstrations.action)
    return Segments(
        unflatten(space, chains), action, demonstrations.reward[rows], demonstrations.terminated[rows[:, -1]]
    )


def example(space: Space) -> Any:
    """Return a value of a space, of zeros."""
    return map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), space)
