"""The scenarios on the device, and the thread that reads those which come next.

Files are exchanged at iterations with fixed numbers, never by the clock, and which ones come next was settled one
exchange before: so a resumed run draws what a run without a break would have drawn, bit for bit.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from ludus.envs.base import Supply
from ludus.envs.scenarios.held_out import joined, num_rows
from ludus.envs.scenarios.shards import WEIGHT, Arrays
from ludus.envs.scenarios.source import Source, Starts, Stock
from ludus.envs.scenarios.stored import scenarios_of
from ludus.types import LudusError


class StoredSupply(Supply):
    """Keeps the files of a set on the device that a run draws from."""

    def __init__(self, source: Source, seed: int):
        """Begin with nothing read."""
        self.source, self.seed = source, seed
        self.data: Any = ()
        self._held: list[int] = []
        self._coming: tuple[list[int], Future[Stock]] | None = None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="ludus-scenarios")

    def first(self) -> Starts:
        """Return what drawing remembers before the first episode, with its scenarios on the device."""
        starts = jax.device_put(self.source.first(self.seed))
        self.take_up(starts)
        return starts

    def take_up(self, starts: Any) -> None:
        """Bring the scenarios to the device that are drawn from, and begin to read those that come next."""
        expected = self.source.first(self.seed).identity
        if not np.array_equal(np.asarray(starts.identity), expected):
            raise LudusError(f"{self.source.stored.folder}: is not the set of scenarios that the run was begun with")
        held = np.asarray(starts.held).tolist()
        if held != self._held:
            self.data, self._held = self._taken(held), held
        if not self.source.is_whole:
            self._fetch(np.asarray(starts.next).tolist())

    def until_next(self, iteration: int) -> int | None:
        """Return how many iterations may be made until the next exchange; None if there is none."""
        return None if self.source.is_whole else self.source.refresh - iteration % self.source.refresh

    def exchanged(self, starts: Any, iteration: int) -> Starts | None:
        """Before an iteration: exchange the files if that is due, and return what drawing remembers then."""
        if self.source.is_whole or iteration // self.source.refresh <= int(starts.number):
            return None
        number = int(starts.number) + 1
        after = self.source.chosen(np.asarray(starts.words), number + 1, starts.failure)
        new = starts._replace(number=jax.device_put(np.int32(number)), held=starts.next, next=jax.device_put(after))
        self.take_up(new)
        return new

    def _fetch(self, numbers: list[int]) -> None:
        if self._coming is None or self._coming[0] != numbers:
            self._coming = numbers, self._reader.submit(self._read, numbers)

    def _taken(self, numbers: list[int]) -> Stock:
        if self._coming is None or self._coming[0] != numbers:
            return self._read(numbers)
        (_, future), self._coming = self._coming, None
        return future.result()

    def _read(self, numbers: list[int]) -> Stock:
        """Read files and move them to the device; a last file that is shorter is filled up with what is never drawn."""
        source = self.source
        shards = source.stored.manifest.of("training")
        parts = [self._part(*source.stored.read(source.env, shards[number])) for number in numbers]
        whole = joined(parts)
        if not (whole[WEIGHT] > 0).any():
            names = ", ".join(shards[number].file for number in numbers[:3])
            raise LudusError(f"{source.stored.folder}: none of the scenarios in {names} can be used")
        return jax.device_put(Stock(scenarios_of(source.env, whole), whole[WEIGHT]))

    def _part(self, arrays: Arrays, good: np.ndarray) -> Arrays:
        weight = arrays[WEIGHT] if self.source.sampling == "weight" else np.ones(len(good), np.float32)
        weight = np.where(good & (weight > 0), weight, 0.0).astype(np.float32)
        # What is never drawn is nothing at all: a NaN must not be anywhere near a program.
        clean = {
            name: np.where(good.reshape(-1, *[1] * (x.ndim - 1)), x, x.dtype.type(0)) for name, x in arrays.items()
        }
        missing = self.source.per_shard - num_rows(arrays)
        filled = {**clean, WEIGHT: weight}
        return {name: np.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)]) for name, x in filled.items()}
