"""A journal that has lost rows since a checkpoint was written: which are left, and how it goes on with them.

A run needs no row of its journal to go on: the checkpoint holds every number that counts. What is lost is history.
"""

import json
import os
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from ludus.runs import limits
from ludus.runs.folder import RunFolder
from ludus.runs.journal import JOURNAL, row_of
from ludus.types import LudusError

MOST_GAPS = 5
"""More places where rows are missing are not listed one by one."""
ROWS_AT_ONCE = 10_000


class Remains(NamedTuple):
    """The rows that are left of those that a journal had: those before the first gap, and those after it."""

    expected: int
    first: int
    first_bytes: int
    later: list[tuple[int, dict[str, Any]]]
    """The number that each row had, and the row."""

    @property
    def num_left(self) -> int:
        """The number of rows that are left."""
        return self.first + len(self.later)

    def before(self, row: int) -> int:
        """Return how many of the rows that are left came before a row."""
        return min(self.first, row) + sum(number < row for number, _ in self.later)

    def __str__(self) -> str:
        """Return how many rows are lost, and which, as in `2 of 12 rows are lost (3, 7)`."""
        if self.num_left == self.expected:
            return "no row is lost, but there are others among them"
        here = [*(number for number, _ in self.later), self.expected]
        starts = [self.first, *(number + 1 for number, _ in self.later)]
        gaps = [(start, stop - 1) for start, stop in zip(starts, here, strict=True) if start < stop]
        told = [f"{start}" if start == last else f"{start} to {last}" for start, last in gaps[:MOST_GAPS]]
        more = " and others" if len(gaps) > MOST_GAPS else ""
        lost = self.expected - self.num_left
        return f"{lost:,} of {self.expected:,} rows {'is' if lost == 1 else 'are'} lost ({', '.join(told)}{more})"


def is_whole(run: Path, rows: int, size: int) -> bool:
    """Tell whether a journal begins with so many rows, which take so many bytes. OSError if it cannot be read."""
    with os.fdopen(limits.open_journal(run / JOURNAL), "rb") as journal:
        if os.fstat(journal.fileno()).st_size < size:
            return False
        data = journal.read(size)
    return data.count(b"\n") == rows and (not data or data.endswith(b"\n"))


def remains(run: Path, rows: int) -> Remains:
    """Find what is left of the first rows of a journal. OSError if it cannot be read."""
    first, size, last = 0, 0, -1
    later: list[tuple[int, dict[str, Any]]] = []
    is_in_order = True
    with os.fdopen(limits.open_journal(run / JOURNAL), "rb") as journal:
        while line := journal.readline(limits.MOST_LINE + 1):
            number, row = _row(line)
            is_in_order = is_in_order and number == first < rows
            if is_in_order:
                first, size, last = first + 1, size + len(line), first
            elif last < number < rows:
                later.append((number, row))
                last = number
    return Remains(rows, first, size, later)


def rebuild(folder: RunFolder, left: Remains) -> list[int]:
    """Let a journal hold the rows that are left and no others, numbered anew; return how many bytes the first n take.

    LudusError if it cannot be written.
    """
    folder.journal.cut(left.first, left.first_bytes)
    for start in range(0, len(left.later), ROWS_AT_ONCE):
        folder.append([row for _, row in left.later[start : start + ROWS_AT_ONCE]])
        if folder.journal.trouble:
            raise LudusError(folder.journal.trouble)
    folder.journal.sync()
    with os.fdopen(limits.open_journal(folder.path / JOURNAL), "rb") as journal:
        return [0, *accumulate(map(len, journal))]


def _row(line: bytes) -> tuple[int, dict[str, Any]]:
    """Return the number that a row says it has, and what else it says; -1 if the line is no whole row."""
    try:
        row = row_of(line.removesuffix(b"\n"))
        number = row.pop("seq", None)
        json.dumps(row, allow_nan=False)  # as it will be written
    except ValueError:
        return -1, {}
    return (number if type(number) is int and line.endswith(b"\n") else -1), row
