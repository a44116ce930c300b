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
        with self.path.open("rb") as journal:
            if journal.seek(0, 2) < self._offset:
                raise TakenBackError
            journal.seek(self._offset)
            data = journal.read(PIECE)
            if data and b"\n" not in data:
                data += journal.readline()
        data = data[: data.rfind(b"\n") + 1]
        try:
            rows = [json.loads(line) for line in data.splitlines()]
            is_next = [row["seq"] for row in rows] == list(range(self.rows, self.rows + len(rows)))
        except (ValueError, TypeError, KeyError, RecursionError):
            is_next = False
        if not is_next:
            raise TakenBackError
        self._offset += len(data)
        self.rows += len(rows)
        return rows
