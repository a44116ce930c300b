"""What a replay must remember, kept by a plain list, and streams of made-up transitions that all can be told apart."""

from collections import deque
from typing import NamedTuple

import jax
import numpy as np

from ludus.algorithms.replay import Drawn, Replay, empty_replay
from ludus.types import Transition

OBS_SIZE = 2


class Row(NamedTuple):
    """One transition; every number in it is found nowhere else."""

    obs: float
    action: float
    reward: float
    terminated: bool
    next_obs: float


class Ledger:
    """The latest `capacity` transitions in a list, each under the reward that it alone has."""

    def __init__(self, capacity: int):
        self.rows: deque[Row] = deque(maxlen=capacity)

    def insert(self, steps: Transition) -> None:
        valid = np.ones_like(steps.terminated) if steps.valid is None else steps.valid
        for t, b in zip(*np.nonzero(valid), strict=True):
            numbers = (float(np.asarray(x[t, b]).flat[0]) for x in (steps.obs, steps.action, steps.reward))
            self.rows.append(Row(*numbers, bool(steps.terminated[t, b]), float(steps.next_obs[t, b].flat[0])))

    def by_reward(self) -> dict[float, Row]:
        return {row.reward: row for row in self.rows}


class Stream:
    """Environments whose observations, actions and rewards are all numbered through; ends come at random.

    `valid` is None, "gaps" (rows are missing anywhere, and what follows a gap is not the successor of what was before)
    or "episodes" (every rollout starts afresh and ends with its environment's first episode).
    """

    def __init__(self, num_envs: int, seed: int, ends: tuple[float, float], valid: str | None = None):
        self.rng, self.ends, self.valid, self.count = np.random.default_rng(seed), ends, valid, 0
        self.current = self._fresh(num_envs)

    def _fresh(self, n: int) -> np.ndarray:
        self.count += n
        return np.arange(self.count - n, self.count, dtype=np.float32) + 1

    def rollout(self, num_steps: int) -> Transition:
        """Rollout `[T, B]`; an observation is `[number, -number]`, and rows that are not valid hold junk."""
        n = len(self.current)
        if self.valid == "episodes":
            self.current = self._fresh(n)
        valid = np.ones((num_steps, n), bool)
        if self.valid == "gaps":
            valid = self.rng.random((num_steps, n)) < 0.7
        steps = Transition(*map(np.stack, zip(*map(self._step, valid), strict=True)), extras={})
        if self.valid is None:
            return steps
        if self.valid == "episodes":
            over = np.cumsum(steps.terminated | steps.truncated, axis=0) > 0
            valid[1:] = ~over[:-1]
            steps.truncated[-1] |= ~over[-1]
        junk = np.where(valid, 0, np.float32(7e6))[..., None]
        return steps._replace(obs=steps.obs + junk, next_obs=steps.next_obs + junk, valid=valid)

    def _step(self, valid: np.ndarray) -> tuple[np.ndarray, ...]:
        n, obs = len(valid), self.current
        successor = self._fresh(n)
        terminated, truncated = (self.rng.random(n) < p for p in self.ends)
        self.current = np.where(terminated | truncated | ~valid, self._fresh(n), successor)
        return _as_obs(obs), self._fresh(n)[:, None], self._fresh(n), terminated, truncated, _as_obs(successor)


def _as_obs(number: np.ndarray) -> np.ndarray:
    return np.stack([number, -number], axis=-1)


def replay_for(capacity: int, num_steps: int, num_envs: int) -> Replay:
    """Return an empty replay for rollouts of a `Stream`."""
    example = np.zeros(OBS_SIZE, np.float32), np.zeros(1, np.float32)
    return empty_replay(capacity, num_envs, num_steps * num_envs, *example)


def check_sample(drawn: Drawn, ledger: Ledger) -> tuple[set[float], set[float]]:
    """Hold every drawn row against the ledger; return the rewards drawn, and those of rows with weight 0."""
    drawn, rows = jax.tree.map(np.asarray, drawn), ledger.by_reward()
    rewards = set(drawn.reward.tolist())
    assert rewards <= rows.keys(), "every row drawn is in the replay, and is so still"
    expected = np.array([rows[reward] for reward in drawn.reward.tolist()])
    obs, action, _, terminated, next_obs = expected.T
    np.testing.assert_array_equal(drawn.action[:, 0], action)
    np.testing.assert_array_equal(drawn.terminated, terminated)
    assert np.isin(drawn.weight, [0.0, 1.0]).all()
    known, goes_on = drawn.weight > 0, (drawn.weight > 0) & ~drawn.terminated
    np.testing.assert_array_equal(drawn.obs[known], _as_obs(obs)[known])
    # Nothing is ever asked of a terminal state.
    np.testing.assert_array_equal(drawn.next_obs[goes_on], _as_obs(next_obs)[goes_on])
    return rewards, set(drawn.reward[~known].tolist())


def live(replay: Replay) -> list[np.ndarray]:
    """What a replay holds, in the order of insertion, without what is dead: two equal replays have equal contents."""
    replay = jax.tree.map(np.asarray, replay)
    ends = replay.ends
    slots = (ends.total - np.arange(ends.size, 0, -1)) % replay.num_slots
    stored = jax.tree.map(lambda x: x[slots], replay.transitions)
    is_known = (ends.next_number - stored.frame) % replay.cycle <= replay.num_frames - 2 * replay.rollout_size
    rows = [number[is_known] % replay.num_frames for number in (stored.frame, stored.next_frame)]
    frames = [frame[i] for frame in jax.tree.leaves(replay.frames) for i in rows]
    open_frame = ends.open_frame[ends.is_open]
    return [*ends[:3], open_frame, ends.is_open, *jax.tree.leaves(stored), is_known, *frames]


def assert_same(one: Replay, other: Replay) -> None:
    """Hold the contents of two replays against each other."""
    for a, b in zip(live(one), live(other), strict=True):
        np.testing.assert_array_equal(a, b)
