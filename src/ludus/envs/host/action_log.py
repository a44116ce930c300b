"""A log of running episodes, each with its seed and its actions so far: enough to bring an environment back there.

Every episode has a seed of its own, made from its environment's seed and its number: so it can be played again without
those before it. How much is kept is bounded: what was longer than that cannot be played again, and starts anew.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ludus.spaces import Space, flatten, leaves, unflatten
from ludus.types import LudusError

MOST_STEPS = 1_000_000
"""Actions of longer episodes are not kept: a run that is resumed in one starts the episode anew."""
MOST_BYTES = 1 << 27
"""Nor are those of episodes that would take more than this for all environments together."""
PIECE_BYTES = 1 << 18
"""Records are kept in pieces of about this size."""
UNKNOWN = -1
"""Stands for the length of an episode whose actions were not kept."""

_log = logging.getLogger(__name__)


class LoggedRows:
    """Rows of an array, added one by one and forgotten from the first on; no row is ever moved or written twice."""

    def __init__(self, rows: np.ndarray | None = None):
        """Begin with some rows, or with none."""
        self._pieces = [] if rows is None or not len(rows) else [rows]
        self._count, self._room = sum(map(len, self._pieces)), 0

    def __len__(self) -> int:
        """The number of rows."""
        return self._count

    @property
    def is_full(self) -> bool:
        """True if the next row takes more memory: the time to forget what is not needed."""
        return self._room == 0

    def add(self, row: np.ndarray) -> None:
        """Copy a row."""
        if self._room == 0:
            self._room = max(1, PIECE_BYTES // max(1, row.nbytes))
            self._pieces.append(np.empty((self._room, *row.shape), row.dtype))
        self._pieces[-1][-self._room] = row
        self._room -= 1
        self._count += 1

    def forget(self, keep: int) -> None:
        """Let go of memory that the last `keep` rows do not need."""
        while self._pieces and self._count - len(self._pieces[0]) >= keep:
            self._count -= len(self._pieces.pop(0))

    def between(self, start: int, stop: int) -> np.ndarray:
        """Copy the rows from `start` to before `stop`."""
        parts, first = [self._pieces[0][:0]] if self._pieces else [np.zeros(0, np.float32)], 0
        for piece in self._pieces:
            if first < stop and start < first + len(piece):
                parts.append(piece[max(start - first, 0) : stop - first])
            first += len(piece)
        return np.concatenate(parts)


class Growing(NamedTuple):
    """An array to which rows are only ever added, as it was when there were `count` of them."""

    rows: LoggedRows
    count: int
    began: int = 0
    """The number of rows before, in arrays that this one has replaced."""

    def between(self, start: int, stop: int) -> np.ndarray:
        """Copy the rows from `start` to before `stop`."""
        return self.rows.between(start, stop)


class Recalled(NamedTuple):
    """The environments after their running episodes were played again."""

    obs: Any
    episode_return: np.ndarray | None
    """None where nothing was played: the environment restored itself."""
    is_lost: np.ndarray
    """True where an episode could not be played again as it was: it ended before its time, its actions are unknown, or
    it draws random numbers that the whole process shares."""
    has_drawn: np.ndarray | None = None
    """True where it is the last of these; None from what does not draw in Python."""


def episode_seed(seed: int, episode: int) -> int:
    """Return the seed of an environment's episode; the first has the environment's own."""
    if episode == 0:
        return seed
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0] >> 1)


class EpisodeLog:
    """The running episodes of a batch: seeds, numbers and actions."""

    def __init__(self, num_envs: int, action_space: Space, keeps_actions: bool = True):
        """Begin empty; without actions, the log only tells the seeds of episodes."""
        self.action_space, self.keeps_actions = action_space, keeps_actions
        self.seeds, self.episodes = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._now, self._started = 0, np.zeros(num_envs, np.int64)
        self._actions = [LoggedRows() for _ in leaves(action_space)]
        size = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for _, leaf in leaves(action_space))
        self._most = min(MOST_STEPS, MOST_BYTES // max(1, num_envs * size))
        self._has_warned = False

    def begin(self, seeds: Sequence[int], rows: slice | None = None) -> None:
        """The first of the environments, or those of `rows`, start their first episodes."""
        rows = slice(len(seeds)) if rows is None else rows
        self.seeds[rows], self.episodes[rows], self._started[rows] = seeds, 0, self._now

    def add(self, action: Any) -> None:
        """Remember the actions `[num_envs, ...]` that are about to be taken."""
        if self.keeps_actions:
            if any(rows.is_full for rows in self._actions):
                self._forget()
            for rows, leaf in zip(self._actions, flatten(self.action_space, action), strict=True):
                rows.add(np.asarray(leaf))
        self._now += 1

    def end(self, index: int | np.ndarray) -> None:
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
        saved = {"seeds": self.seeds.copy(), "episodes": self.episodes.copy(), "lengths": lengths}
        if not self.keeps_actions:
            return saved
        saved["lengths"] = lengths = np.where(lengths > self._most, UNKNOWN, lengths)
        if (lengths == UNKNOWN).any():
            self._warn()
        each = np.maximum(lengths, 0).tolist()
        longest = max(each)
        for k, ((_, leaf), rows) in enumerate(zip(leaves(self.action_space), self._actions, strict=True)):
            if not len(rows):
                saved[f"actions/{k}"] = np.zeros((0, *leaf.shape), leaf.dtype)
                continue
            latest = rows.between(len(rows) - longest, len(rows))
            saved[f"actions/{k}"] = np.concatenate([latest[longest - n :, i] for i, n in enumerate(each)])
        return saved

    def restore(self, saved: dict[str, np.ndarray]) -> list[list[np.ndarray] | None]:
        """Take over what was saved; return each running episode's actions as leaves `[T, ...]`, None if not known."""
        for name in ("seeds", "episodes", "lengths"):
            if name not in saved or saved[name].shape != self.seeds.shape or saved[name].dtype != np.int64:
                raise LudusError(f"checkpoint: env/{name} is not one number for each of {len(self.seeds)} environments")
        lengths = saved["lengths"]
        self.seeds[:], self.episodes[:] = saved["seeds"], saved["episodes"]
        self._now = max(0, int(lengths.max()))
        self._started = self._now - np.where(lengths < 0, self._most + 1, lengths)
        if "actions/0" not in saved and not self.keeps_actions:
            return [None] * len(lengths)
        each = self._recorded(saved, np.maximum(lengths, 0))
        if self.keeps_actions:
            self._actions = [LoggedRows(rows) for rows in self._side_by_side(each)]
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

    def _side_by_side(self, each: list[list[np.ndarray]]) -> list[np.ndarray]:
        """Lay episodes of different lengths side by side, so that all of them end now; those too long are left out."""
        longest = self._needed()
        columns = [np.zeros((longest, len(each), *leaf.shape[1:]), leaf.dtype) for leaf in each[0]]
        for i, recorded in enumerate(each):
            for column, leaf in zip(columns, recorded, strict=True):
                if len(leaf) <= longest:
                    column[longest - len(leaf) :, i] = leaf
        return columns

    def _needed(self) -> int:
        """Return of how many steps the actions are needed: those of the longest episode that is not too long."""
        lengths = self._now - self._started
        return int(lengths[lengths <= self._most].max(initial=0))

    def _forget(self) -> None:
        """Let go of actions that no running episode needs, and of those of episodes that are too long."""
        needed = self._needed()
        for rows in self._actions:
            rows.forget(needed)

    def _warn(self) -> None:
        """Say, once, that a checkpoint does not hold all."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "an episode has more than %s steps, whose actions are not kept: a run that is resumed in it starts its "
                "running episodes anew (level: episode)",
                f"{self._most:,}",
            )
