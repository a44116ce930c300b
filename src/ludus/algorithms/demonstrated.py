"""Demonstrations as behaviour cloning learns from them: rows that can be shuffled, and a share that is held out.

Without a memory every step is a row. With one, a row is a segment of consecutive steps that a blank memory begins:
whole episodes one after the other, as many as fit, and each end clears the memory. An episode that is longer than a
segment is cut into several, of which all but the first show half a segment again before the steps that count.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.normalize import RunningStatistics, TokenRows, TokenStatistics, empty_statistics
from ludus.algorithms.observations import observation_statistics
from ludus.networks.action_scaling import from_environment
from ludus.runtime.demonstrations import Demonstrations
from ludus.spaces import Discrete, MultiDiscrete, flatten, leaves, unflatten
from ludus.types import LudusError, Spec, Tree

LONGEST = 256
"""Segments are as long as the longest episode, but not longer than this, if nothing else is asked for."""


class Examples(NamedTuple):
    """Rows to learn from: steps `[N, ...]`, or with a memory segments of steps `[N, L, ...]`."""

    obs: Tree
    """As the environment shows them: they are normalised when they are looked at."""
    mask: Any
    """Which actions were allowed; None where all were."""
    action: Tree
    """In the units of policies."""
    ended: Any
    """Where an episode's last step is, `[N, L]`; None without a memory."""
    weight: Any
    """1 for steps that count; 0 for padding, and for those that only fill the memory."""

    @property
    def segment_length(self) -> int:
        """Steps in each row."""
        return 1 if self.ended is None else self.ended.shape[1]

    def written(self) -> dict[str, tuple[int, int]]:
        """As `Replay.written`: all rows are written once, so that only the first checkpoint of a run holds them."""
        rows = len(self.weight)
        return dict.fromkeys(self._fields, (rows, 2**31 // rows * rows))


class Piece(NamedTuple):
    """A piece of an episode: its first step, the first that counts, and the one after its last."""

    start: int
    counts_from: int
    stop: int


def divided(demonstrations: Demonstrations, share: float) -> tuple[Demonstrations, Demonstrations | None]:
    """Return the episodes to learn from, and a share of them that is held out; None if that is not one.

    The same demonstrations are divided alike in every run, so that runs can be compared.
    """
    count = int(share * demonstrations.num_episodes)
    if not count:
        return demonstrations, None
    order = np.random.default_rng(int(demonstrations.sha256, 16)).permutation(demonstrations.num_episodes)
    return demonstrations.episodes(np.sort(order[count:])), demonstrations.episodes(np.sort(order[:count]))


def segment_steps(demonstrations: Demonstrations, asked: int | None) -> int:
    """Return how many steps a segment has."""
    return min(int(demonstrations.lengths.max()), LONGEST) if asked is None else asked


def examples_of(
    demonstrations: Demonstrations, spec: Spec, minibatch_size: int, segment_length: int | None = None
) -> Examples:
    """Lay demonstrations out in rows, filled up to whole minibatches with rows that weigh nothing.

    `segment_length` is for networks with a memory.
    """
    action = from_environment(spec.action_space, demonstrations.action, spec.scaling)
    taken = demonstrations.obs, demonstrations.action_mask, action
    if segment_length is None:
        count = len(demonstrations)
        missing = -count % min(minibatch_size, count)
        index = np.arange(count + missing) % count
        weight = (np.arange(count + missing) < count).astype(np.float32)
        return _on_device(Examples(*_rows(taken, index), None, weight))
    index, ended, weight = _segments(demonstrations, segment_length)
    rows = min(max(1, minibatch_size // segment_length), len(index))
    missing = -len(index) % rows
    index, ended = (np.concatenate([x, x[:missing]]) for x in (index, ended))
    weight = np.concatenate([weight, np.zeros((missing, segment_length), np.float32)])
    return _on_device(Examples(*_rows(taken, index), ended, weight))


def rows_in_minibatch(examples: Examples, minibatch_size: int) -> int:
    """Return how many rows a minibatch of about so many steps has; they are divided into such without a rest."""
    rows = len(examples.weight)
    return min(max(1, minibatch_size // examples.segment_length), rows)


def blank_examples(spec: Spec, has_memory: bool) -> Examples:
    """Return one row of zeros, which counts for nothing."""
    lead = (1, 1) if has_memory else (1,)
    zeros = [
        unflatten(space, [np.zeros((*lead, *leaf.shape), leaf.dtype) for _, leaf in leaves(space)])
        for space in (spec.observation_space, spec.action_space)
    ]
    action = from_environment(spec.action_space, zeros[1], spec.scaling)
    ended = np.ones(lead, bool) if has_memory else None
    return _on_device(Examples(zeros[0], None, action, ended, np.zeros(lead, np.float32)))


def statistics_of(demonstrations: Demonstrations) -> Any:
    """Return mean and variance of all observations, leaf by leaf, in float64 until they are made; None for no reals.

    Those of feature groups are measured token by token, as while a run goes on.
    """
    space, made = demonstrations.observation_space, []
    blank = flatten(space, observation_statistics(space))
    for stats, array in zip(blank, flatten(space, demonstrations.obs), strict=True):
        if isinstance(stats, TokenStatistics):
            made.append(replace(stats, groups=tuple(_measured(_there(array, rows)) for rows in stats.rows)))
        else:
            made.append(None if stats is None else _measured(array))
    return unflatten(space, made)


def _there(array: np.ndarray, rows: TokenRows) -> np.ndarray:
    """Return the tokens of one group that are there, of all observations."""
    flat = array.reshape(len(array), -1)
    tokens = flat[:, rows.start : rows.start + rows.tokens * rows.features].reshape(-1, rows.features)
    return tokens if rows.valid is None else tokens[tokens[:, rows.valid] > 0.5]


def _measured(array: np.ndarray) -> RunningStatistics:
    if not len(array):
        return empty_statistics(array.shape[1:])
    numbers = (array.mean(0, dtype=np.float64), array.var(0, dtype=np.float64), float(len(array)))
    return RunningStatistics(*(jax.device_put(np.asarray(x, np.float32)) for x in numbers))


def check_allowed(demonstrations: Demonstrations) -> None:
    """Refuse actions that their own masks forbid: no policy could ever take them."""
    space, mask = demonstrations.action_space, demonstrations.action_mask
    if mask is None or not isinstance(space, Discrete | MultiDiscrete):
        return
    sizes = space.sizes if isinstance(space, MultiDiscrete) else [space.n]
    chosen = np.asarray(from_environment(space, demonstrations.action)).reshape(len(mask), -1)
    places = chosen + np.cumsum([0, *sizes[:-1]])
    if not (is_allowed := np.take_along_axis(mask, places, axis=1).all(axis=1)).all():
        raise LudusError(f"demonstrations: action {int(np.argmin(is_allowed))} is one that action_mask forbids there")


def _segments(demonstrations: Demonstrations, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each place of each segment `[S, L]` its row, whether its piece ends there, and what it weighs."""
    segments: list[list[Piece]] = [[]]
    free = length
    for cut in _cuts(demonstrations, length):
        size = cut.stop - cut.start
        if size > free:
            segments.append([])
            free = length
        segments[-1].append(cut)
        free -= size
    index = np.zeros((len(segments), length), np.int64)
    ended, weight = np.ones(index.shape, bool), np.zeros(index.shape, np.float32)
    for row, cuts in enumerate(segments):
        place = 0
        for start, counts_from, stop in cuts:
            end = place + stop - start
            index[row, place:end] = np.arange(start, stop)
            ended[row, place : end - 1] = False
            weight[row, place + counts_from - start : end] = 1.0
            place = end
    return index, ended, weight


def _cuts(demonstrations: Demonstrations, length: int) -> Iterator[Piece]:
    """Yield the pieces of every episode, none of them longer than a segment."""
    for first, last in zip(demonstrations.starts.tolist(), demonstrations.ends.tolist(), strict=True):
        done, stop = first, last + 1
        while done < stop:
            start = first if done == first else done - length // 2
            end = min(start + length, stop)
            yield Piece(start, done, end)
            done = end


def _rows(tree: Tree, index: np.ndarray) -> Any:
    return jax.tree.map(lambda x: np.asarray(x)[index], tree)


def _on_device(examples: Examples) -> Examples:
    return jax.device_put(jax.tree.map(jnp.asarray, examples))
