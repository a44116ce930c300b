"""The numbers that Gymnasium environments put into `info`, summed up over each running episode."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ludus.types import IS_SUCCESS

CAPACITY = 64
"""So many names are followed, in the order in which they first appear; memory that processes share is of fixed size."""
LONGEST_NAME = 100
"""Characters of a name that are kept."""
TOTAL, COUNT, LAST = range(3)
NUMBERS = (int, float, np.integer, np.floating, np.bool_)


class EpisodeInfo:
    """Running sum, count and latest value of every number in the `info` of a batch's episodes.

    Names are found as they come; an entry need not appear in every step. `last` is NaN where the latest step gave none.
    """

    def __init__(self, num_envs: int, values: np.ndarray | None = None):
        """Start with no names; `values` `[num_envs, 3, CAPACITY]` may be memory that another process reads."""
        self.names: list[str] = []
        self.values = np.zeros((num_envs, 3, CAPACITY)) if values is None else values
        self._columns: dict[str, int] = {}
        self._over: list[int] = []

    def begin(self) -> None:
        """Every environment starts an episode."""
        self.values[:] = 0
        self._over.clear()

    def next_step(self) -> None:
        """Forget the episodes that ended in the step before, which the caller has seen by now."""
        if self.names:
            self.values[self._over] = 0
            self.values[:, LAST, : len(self.names)] = np.nan
        self._over.clear()

    def add(self, index: int, info: dict[str, Any]) -> None:
        """Count in what one environment's step said; whatever is not one number is left out."""
        row = self.values[index]
        for name, value in info.items():
            if isinstance(value, NUMBERS):
                column, number = self._column(str(name)), _float(value)
                if column is not None and number is not None:
                    row[TOTAL, column] += number
                    row[COUNT, column] += 1
                    row[LAST, column] = number

    def add_batch(self, info: dict[str, np.ndarray]) -> None:
        """Count in arrays `[num_envs]` of what all environments said: in place of `add`, always with the same names."""
        self.names = list(info)[:CAPACITY]
        if self.names:
            numbers = np.array([info[name] for name in self.names]).T
            episodes = self.values[:, :, : len(self.names)]
            episodes[:, TOTAL] += numbers
            episodes[:, COUNT] += 1
            episodes[:, LAST] = numbers

    def end(self, index: int) -> None:
        """The episode of this environment ended with the latest step."""
        self._over.append(index)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the running totals and their names as arrays."""
        return {"info": self.values.copy(), "info_names": np.frombuffer("\n".join(self.names).encode(), np.uint8)}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Take over what was saved."""
        names = bytes(saved["info_names"]).decode()
        self.names = names.split("\n") if names else []
        self._columns = {name: column for column, name in enumerate(self.names)}
        self.values[:] = saved["info"]
        self._over.clear()

    def _column(self, name: str) -> int | None:
        column = self._columns.get(name)
        if column is None:
            plain = _plain(name)
            column = self._columns.get(plain)
            if column is None and len(self.names) < CAPACITY:
                column = self._columns[plain] = len(self.names)
                self.names.append(plain)
            if column is not None:
                self._columns[name] = column
        return column


def _float(value: float) -> float | None:
    """Return a number as the journal knows it; None if it is too large for that."""
    try:
        return float(value)
    except OverflowError:
        return None


def _plain(name: str) -> str:
    """Return a name that journals and trackers can keep: of printable characters, not empty, and not endless."""
    plain = "".join(character if character.isprintable() else "?" for character in name[:LONGEST_NAME])
    return plain.strip() or "?"


def episode_figures(parts: Iterable[EpisodeInfo], ended: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield each journal name, the environments whose ended episode gave it, and its values there.

    `parts` cover the batch one after the other.
    """
    start = 0
    for part in parts:
        rows = np.flatnonzero(ended[start : start + len(part.values)])
        for column, name in enumerate(part.names):
            total, count, last = part.values[rows, :, column].T
            given = count > 0
            yield f"info/{name}/mean", start + rows[given], total[given] / count[given]
            given &= ~np.isnan(last)
            yield f"info/{name}/last", start + rows[given], last[given]
        start += len(part.values)


class InfoMeans:
    """Averages over the episodes that ended in one rollout, under their journal names."""

    def __init__(self) -> None:
        """No episode yet."""
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, parts: Iterable[EpisodeInfo], ended: np.ndarray, told: np.ndarray) -> None:
        """Count in the episodes that ended, and write into `told` what they said of their success.

        `parts` cover the batch one after the other.
        """
        for name, rows, values in episode_figures(parts, ended):
            if name == f"info/{IS_SUCCESS}/last":
                told[rows] = values
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + float(values.sum()), count + len(values)

    def figures(self) -> dict[str, np.float32]:
        """Return one number for each name that any of the episodes had."""
        with np.errstate(over="ignore"):  # what is too large for the journal becomes an infinity, which is left out
            return {name: np.float32(total / count) for name, (total, count) in self._sums.items() if count}
