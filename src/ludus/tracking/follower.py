"""Reading a journal that is being written: what is new since the last look."""

import os
from pathlib import Path
from typing import Any

from ludus.tracking import reading
from ludus.tracking.run_folder import JOURNAL
from ludus.types import LudusError

PIECE = 1 << 20
"""Bytes that are read at once."""
ENDING = 256
"""Bytes before the place up to which a journal was read that must still be the same."""
COUNTS = ("steps", "iteration", "episodes", "updates")
LONGEST_SECONDS = 1e10
"""Three centuries."""


class TakenBackError(Exception):
    """Rows that were read are no longer in the journal: the run was resumed from an earlier moment."""


class Follower:
    """Reads the rows of a journal in order, as they come. LudusError if it cannot be read at all."""

    def __init__(self, run: Path):
        """Start at the first row."""
        self.path = run / JOURNAL
        self.rows = 0
        self.damaged = 0
        """Lines that were asked for as rows and are none."""
        self._offset = 0
        self._ending = b""

    def read(self) -> list[dict[str, Any]]:
        """Return some more rows, complete ones; none if there are no more yet."""
        first = self.rows
        return [self.row(line, first + i) for i, line in enumerate(self.read_lines())]

    def read_lines(self) -> list[bytes]:
        """Return some more rows as they stand there."""
        lines = self._next_lines()
        self._offset += sum(map(len, lines))
        self.rows += len(lines)
        return lines

    def go_back(self, lines: list[bytes]) -> None:
        """Take it that these lines, the last that were read, were not."""
        self._offset -= sum(map(len, lines))
        self.rows -= len(lines)
        self._ending = b""

    def row(self, line: bytes, number: int) -> dict[str, Any]:
        """Return the row that a line is, with its number; a line that is damaged has nothing but that."""
        try:
            row = reading.row_of(line)
            _check_place(row)
        except ValueError:
            self.damaged += 1
            return {"seq": number}
        return row | {"seq": number}

    def _next_lines(self) -> list[bytes]:
        try:
            with os.fdopen(reading.open_journal(self.path), "rb") as journal:
                if journal.seek(0, os.SEEK_END) < self._offset:
                    raise TakenBackError
                journal.seek(self._offset - len(self._ending))
                if journal.read(len(self._ending)) != self._ending:
                    raise TakenBackError
                data = journal.read(PIECE)
                if data and b"\n" not in data:
                    data += journal.readline(reading.MOST_LINE)
        except OSError as error:
            raise LudusError(f"{self.path}: cannot be read ({reading.reason(error)})") from error
        if len(data) > reading.MOST_LINE and b"\n" not in data:
            raise LudusError(
                f"{self.path}: row {self.rows:,} has more than the {reading.MOST_LINE:,} bytes it may have"
            )
        data = data[: data.rfind(b"\n") + 1]
        self._ending = (self._ending + data)[-ENDING:]
        return data.splitlines(keepends=True)


def _check_place(row: dict[str, Any]) -> None:
    """Refuse a row that does not say when it was, as a number."""
    for name in COUNTS:
        value = row.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise ValueError(f"{name} is no count")
    seconds = row.get("elapsed_seconds", 0.0)
    if not isinstance(seconds, int | float) or not abs(seconds) < LONGEST_SECONDS:
        raise ValueError("elapsed_seconds is no time")
