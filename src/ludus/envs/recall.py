"""What led to where an environment is: the seed of its running episode and the actions since. Enough to go there again.

Every episode has a seed of its own, made from its environment's seed and its number: so it can be played again without
those before it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ludus.spaces import Space, flatten, leaves, unflatten
from ludus.types import LudusError

MOST_STEPS = 1_000_000
"""Actions of longer episodes are not kept: a run that is resumed in one starts the episode anew."""
UNKNOWN = -1
"""Stands for the length of an episode whose actions were not kept."""


class Growing(NamedTuple):
    """Rows of an array to which rows are only ever added."""

    rows: list[np.ndarray]


class Recalled(NamedTuple):
    """Where environments have come to by playing their running episodes again."""

    obs: Any
    episode_return: np.ndarray | None
    """None where nothing was played: the environment restored itself."""
    is_lost: np.ndarray
    """Whether an episode could not be played again as it was: it ended before its time, or its actions are unknown."""


def episode_seed(seed: int, episode: int) -> int:
    """Return the seed of an environment's episode; the first has the environment's own."""
    if episode == 0:
        return seed
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0] >> 1)


class EpisodeLog:
    """The running episodes of a batch: seeds, numbers and actions."""

    def __init__(self, num_envs: int, action_space: Space, keeps_actions: bool = True):
        """Nothing has begun; without actions, it only tells the seeds of episodes."""
        self.action_space, self.keeps_actions = action_space, keeps_actions
        self.seeds, self.episodes = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._now, self._started = 0, np.zeros(num_envs, np.int64)
        self._actions: list[list[np.ndarray]] = []

    def begin(self, seeds: Sequence[int], rows: Any = slice(None)) -> None:
        """The first of the environments, or those of `rows`, start their first episodes."""
        rows = slice(len(seeds)) if rows == slice(None) else rows
        self.seeds[rows], self.episodes[rows], self._started[rows] = seeds, 0, self._now

    def add(self, action: Any) -> None:
        """Remember the actions `[num_envs, ...]` that are about to be taken."""
        self._now += 1
        if self.keeps_actions:
            self._actions.append([np.array(leaf) for leaf in flatten(self.action_space, action)])
            if len(self._actions) % 1024 == 0:
                self._forget()

    def end(self, index: Any) -> None:
        """An episode (or several, by a mask) ended with the latest actions."""
        self.episodes[index] += 1
        self._started[index] = self._now

    def seed(self, index: int) -> int:
        """Return the seed of the episode that an environment is in, or is about to start."""
        return episode_seed(int(self.seeds[index]), int(self.episodes[index]))

    def length(self, index: int) -> int:
        """Return how many steps the episode has that an environment is in, the latest included."""
        return int(self._now - self._started[index])

    def running_seeds(self) -> list[int]:
        """Return the seed of every running episode."""
        return [self.seed(index) for index in range(len(self.seeds))]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return all of it as arrays: the actions of the first environment's episode, then the second's, and so on."""
        lengths = self._now - self._started
        if not self.keeps_actions:
            return {"seeds": self.seeds.copy(), "episodes": self.episodes.copy(), "lengths": lengths}
        lengths = np.where(lengths > len(self._actions), UNKNOWN, lengths)
        saved = {"seeds": self.seeds.copy(), "episodes": self.episodes.copy(), "lengths": lengths}
        for k, (_, leaf) in enumerate(leaves(self.action_space)):
            rows = [
                self._actions[t][k][i]
                for i, length in enumerate(lengths.tolist())
                for t in range(len(self._actions) - max(length, 0), len(self._actions))
            ]
            empty = self._actions[-1][k][:0] if self._actions else np.zeros((0, *leaf.shape), leaf.dtype)
            saved[f"actions/{k}"] = np.stack(rows) if rows else empty
        return saved

    def restore(self, saved: dict[str, np.ndarray]) -> list[list[np.ndarray] | None]:
        """Take over what was saved; return each running episode's actions as leaves `[T, ...]`, None if not known."""
        for name in ("seeds", "episodes", "lengths"):
            if name not in saved or saved[name].shape != self.seeds.shape or saved[name].dtype != np.int64:
                raise LudusError(f"checkpoint: env/{name} is not one number for each of {len(self.seeds)} environments")
        lengths = saved["lengths"]
        self.seeds[:], self.episodes[:] = saved["seeds"], saved["episodes"]
        self._now = max(0, int(lengths.max()))
        self._started = np.where(lengths < 0, -1, self._now - lengths)
        if "actions/0" not in saved and not self.keeps_actions:
            return [None] * len(lengths)
        each = self._recorded(saved, np.maximum(lengths, 0))
        if self.keeps_actions:
            self._actions = self._side_by_side(each)
        return [actions if length >= 0 else None for length, actions in zip(lengths.tolist(), each, strict=True)]

    def actions(self, recorded: list[np.ndarray]) -> Any:
        """Return the actions of one episode `[T, ...]` in the form that the action space says."""
        return unflatten(self.action_space, recorded)

    def _recorded(self, saved: dict[str, np.ndarray], lengths: np.ndarray) -> list[list[np.ndarray]]:
        """Cut what was saved into the actions of each episode."""
        names, total = [], int(lengths.sum())
        for k, (_, leaf) in enumerate(leaves(self.action_space)):
            name = f"actions/{k}"
            if name not in saved or saved[name].shape != (total, *leaf.shape):
                raise LudusError(f"checkpoint: env/{name} does not hold {total} actions of {self.action_space}")
            names.append(name)
        stops = np.cumsum(lengths).tolist()
        return [[saved[name][stop - n : stop] for name in names] for stop, n in zip(stops, lengths, strict=True)]

    def _side_by_side(self, each: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        """Lay episodes of different lengths side by side, so that all of them end now."""
        columns = [np.zeros((self._now, len(each), *leaf.shape[1:]), leaf.dtype) for leaf in each[0]]
        for i, recorded in enumerate(each):
            for column, leaf in zip(columns, recorded, strict=True):
                column[self._now - len(leaf) :, i] = leaf
        return [[column[t] for column in columns] for t in range(self._now)]

    def _forget(self) -> None:
        """Let go of actions that no running episode needs, and of those of episodes that are too long."""
        needed = min(self._now - int(self._started.min()), MOST_STEPS)
        del self._actions[: len(self._actions) - needed]
