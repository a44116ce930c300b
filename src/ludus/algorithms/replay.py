"""Replay: the latest transitions of all environments in a ring that lives inside a learner's state, as plain arrays.

Every observation is stored once, in its own type, though it is the end of one transition and the start of the next: a
transition holds two numbers of frames instead of two observations. What follows a transition is therefore never
guessed from the order of rows, and an image takes its memory once.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.runtime import placement
from ludus.types import Transition, Tree

FRAME_SHARE = 8
"""One frame more is kept for so many transitions, as truncations need."""


class Stored(NamedTuple):
    """Transitions `[capacity, ...]`; observations are given by the numbers of their frames."""

    action: Any
    reward: Any
    terminated: Any
    frame: Any
    next_frame: Any


class Ends(NamedTuple):
    """Beginning and end of the ring: everything else in it is dead, whatever it holds."""

    total: jax.Array
    """Transitions ever stored, counted on from 0 again at a multiple of the slots; the remainder is the next slot."""
    size: jax.Array
    next_number: jax.Array
    """The number that the next frame gets; its slot is the remainder by the number of frames."""
    open_frame: jax.Array
    """For each environment, the number of the frame that its running episode has reached."""
    is_open: jax.Array
    """Whether that frame is stored: False before the first transition and after an episode's last."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Replay:
    """The `capacity` latest transitions, in a ring with room for one rollout more.

    A rollout is written over what is dead already, so a replay with its old `ends` is the old replay: that is how an
    update that went wrong takes its rollout back, without a copy.
    """

    frames: Any
    transitions: Stored
    ends: Ends
    capacity: int = field(metadata={"static": True})
    rollout_size: int = field(metadata={"static": True})

    @property
    def num_slots(self) -> int:
        """Rows of the ring."""
        return self.capacity + self.rollout_size

    @property
    def num_frames(self) -> int:
        """Observations that fit; each transition adds one, and a truncation another."""
        return len(jax.tree.leaves(self.frames)[0])

    @property
    def cycle(self) -> int:
        """Frame numbers start again from 0 here: a multiple of the number of frames, so that slots go on evenly."""
        return _cycle(self.num_frames)

    def written(self) -> dict[str, tuple[int, int]]:
        """For each ring, how many rows were ever written to it, and where that count starts again from 0."""
        return {
            "frames": (int(self.ends.next_number), self.cycle),
            "transitions": (int(self.ends.total), _cycle(self.num_slots)),
        }


def _cycle(rows: int) -> int:
    """Return the greatest multiple of `rows` that a 32-bit count can go up to with room to spare."""
    return (2**30 // rows) * rows


class Drawn(NamedTuple):
    """Transitions drawn from a replay `[n, ...]`.

    `weight` is 0 for the few whose observation has been overwritten already, which happens only where episodes are
    truncated after less than eight steps: then the frames do not last as long as the transitions.
    """

    obs: Any
    action: Any
    reward: jax.Array
    terminated: jax.Array
    next_obs: Any
    weight: jax.Array


def empty_replay(capacity: int, num_envs: int, rollout_size: int, obs: Tree, action: Tree) -> Replay:
    """Return a replay without transitions.

    `rollout_size` is the number of transitions in one insertion; `obs` and `action` are one example of each, without a
    batch axis.
    """
    # Twice the rollout is in flight, and each environment has an open end.
    num_frames = capacity + capacity // FRAME_SHARE + 2 * (rollout_size + num_envs)

    def rows(count: int, example: Tree) -> Any:
        return jax.tree.map(lambda x: placement.zeros((count, *np.shape(x)), x.dtype), example)

    example = Stored(action, np.float32(0), np.bool_(False), np.int32(0), np.int32(0))
    zeros = [np.zeros((), np.int32) for _ in range(3)]
    ends = Ends(*jax.device_put([*zeros, np.zeros(num_envs, np.int32), np.zeros(num_envs, bool)]))
    return Replay(rows(num_frames, obs), rows(capacity + rollout_size, example), ends, capacity, rollout_size)


def insert(replay: Replay, steps: Transition, action: Tree) -> Replay:
    """Store a rollout `[T, B]`, oldest first, without its invalid rows; `action` is what to store as the action."""
    ends = replay.ends
    valid = jnp.ones_like(steps.terminated) if steps.valid is None else steps.valid
    goes_on = valid & ~(steps.terminated | steps.truncated)
    follows = jnp.concatenate([ends.is_open[None], goes_on[:-1]])
    # A row needs a frame for its observation unless the row before has stored it, and one for its successor unless
    # nothing is ever asked of that: the value of a terminal state is zero.
    is_new = jnp.stack([valid & ~follows, valid & ~steps.terminated], axis=-1)  # [T, B, 2]
    before = jnp.cumsum(is_new.ravel(), dtype=jnp.int32).reshape(is_new.shape) - is_new
    number = (ends.next_number + before) % replay.cycle
    reached = jnp.concatenate([ends.open_frame[None], number[:-1, :, 1]])
    frame = jnp.where(follows, reached, number[..., 0])
    next_frame = jnp.where(is_new[..., 1], number[..., 1], frame)

    frame_slots = jnp.where(is_new, number % replay.num_frames, replay.num_frames)  # out of range: not stored
    frames = jax.tree.map(lambda a, b: jnp.stack([a, b], axis=2), steps.obs, steps.next_obs)
    order = jnp.cumsum(valid.ravel(), dtype=jnp.int32).reshape(valid.shape) - 1
    slots = jnp.where(valid, (ends.total + order) % replay.num_slots, replay.num_slots)
    transitions = Stored(action, steps.reward, steps.terminated, frame, next_frame)
    count = valid.sum(dtype=jnp.int32)
    after = Ends(
        total=(ends.total + count) % _cycle(replay.num_slots),
        size=jnp.minimum(ends.size + count, replay.capacity),
        next_number=(ends.next_number + is_new.sum(dtype=jnp.int32)) % replay.cycle,
        open_frame=next_frame[-1],
        is_open=goes_on[-1],
    )
    return replace(
        replay,
        frames=_scatter(replay.frames, frame_slots, frames),
        transitions=_scatter(replay.transitions, slots, transitions),
        ends=after,
    )


def sample(replay: Replay, key: jax.Array, count: int) -> Drawn:
    """Draw `count` transitions, each of those stored with equal probability, with replacement."""
    ends = replay.ends
    age = jax.random.randint(key, (count,), 1, jnp.maximum(ends.size, 1) + 1)
    stored = gather(replay.transitions, (ends.total - age) % replay.num_slots)
    obs, next_obs = (gather(replay.frames, n % replay.num_frames) for n in (stored.frame, stored.next_frame))
    weight = is_whole(replay, stored.frame).astype(jnp.float32)
    return Drawn(obs, stored.action, stored.reward, stored.terminated, next_obs, weight)


def is_whole(replay: Replay, frame: jax.Array) -> jax.Array:
    """Return whether the observations of transitions are surely there still, by the number of their first frame."""
    return (replay.ends.next_number - frame) % replay.cycle <= replay.num_frames - 2 * replay.rollout_size


def without(replay: Replay, slots: np.ndarray, frames: np.ndarray) -> Replay:
    """Return a replay, all in NumPy, without the transitions of some slots and those that need some frames.

    Both are masks over the rows of their ring. What is left keeps its order and moves to the start of its ring, so that
    nothing that was left out is within the live rows.
    """
    ends, stored = replay.ends, replay.transitions
    live = (int(ends.total) - np.arange(int(ends.size), 0, -1)) % replay.num_slots
    needs_lost = [frames[number[live] % replay.num_frames] for number in (stored.frame, stored.next_frame)]
    kept = live[~(slots[live] | needs_lost[0] | needs_lost[1])]
    # An episode whose latest frame is lost goes on with a frame of its own.
    is_open = ends.is_open & ~frames[ends.open_frame % replay.num_frames]
    count: Any = np.asarray(len(kept), np.int32)
    return replace(
        replay,
        transitions=jax.tree.map(lambda rows: _moved(rows, kept), stored),
        ends=ends._replace(total=count, size=count, is_open=is_open),
    )


def _moved(rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
    moved = np.zeros_like(rows)
    moved[: len(kept)] = rows[kept]
    return moved


def gather(tree: Tree, slots: jax.Array) -> Any:
    """Return the rows of some slots."""
    return jax.tree.map(lambda x: x[slots], tree)


def _scatter(tree: Tree, slots: jax.Array, rows: Tree) -> Any:
    return jax.tree.map(lambda x, row: x.at[slots].set(row, mode="drop"), tree, rows)
