"""Reading a journal that is being written: what is new since the last look."""

import json
from pathlib import Path
from typing import Any

from ludus.tracking.run_folder import JOURNAL

PIECE = 1 << 20
"""Bytes that are read at once."""


class TakenBackError(Exception):
    """Rows that were read are no longer in the journal: the run was resumed from an earlier moment."""


class Follower:
    """Reads the rows of a journal in order, as they come."""

    def __init__(self, run: Path):
        """Start at the first row."""
        self.path = run / JOURNAL
        self.rows = 0
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Return some more rows, complete ones; none if there are no more yet."""
        lines = self._next_lines()
        try:
            rows = [json.loads(line) for line in lines]
            is_next = [row["seq"] for row in rows] == list(range(self.rows, self.rows + len(rows)))
        except (ValueError, TypeError, KeyError, RecursionError):
            is_next = False
        if not is_next:
            raise TakenBackError
        self._passed(lines)
        return rows

    def read_lines(self) -> list[bytes]:
        """Return some more rows as they stand there."""
        lines = self._next_lines()
        self._passed(lines)
        return lines

    def go_back(self, lines: list[bytes]) -> None:
        """Take it that these lines, the last that were read, were not."""
        self._offset -= sum(map(len, lines))
        self.rows -= len(lines)

    def _next_lines(self) -> list[bytes]:
        with self.path.open("rb") as journal:
            if journal.seek(0, 2) < self._offset:
                raise TakenBackError
            journal.seek(self._offset)
            data = journal.read(PIECE)
            if data and b"\n" not in data:
                data += journal.readline()
        return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)

    def _passed(self, lines: list[bytes]) -> None:
        self._offset += sum(map(len, lines))
        self.rows += len(lines)
