"""A journal as columns of numbers: what figures are drawn from.

A journal may have a million rows. It is read block by block; a line that cannot be read is counted and left out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from ludus.report.numbers import Lines, Rows, read_alike
from ludus.tracking.run_folder import JOURNAL
from ludus.types import LudusError

BLOCK = 4 << 20
"""Bytes read at once."""
KINDS = ("train", "evaluation")


@dataclass
class Table:
    """The rows of one kind. A number that a row does not have is NaN in its column."""

    rows: int = 0
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    objects: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    """Lists and dictionaries of the rows that have them, each with its row."""

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def column(self, name: str) -> np.ndarray:
        """Return a column; all NaN if no row has it."""
        return self.columns.get(name, np.full(self.rows, np.nan))

    def last(self, name: str) -> float | None:
        """Return the latest number of a column, None if there is none."""
        known = self.column(name)
        known = known[np.isfinite(known)]
        return float(known[-1]) if len(known) else None


@dataclass(frozen=True)
class Journal:
    """What could be read of a journal."""

    train: Table
    evaluation: Table
    damaged: int
    """Lines that are not rows."""


def read(run: str | Path) -> Journal:
    """Read the journal of a run; a last line that is not finished yet is not there yet."""
    parts: dict[str, list[Table]] = {kind: [] for kind in KINDS}
    damaged = 0
    for text in _blocks(Path(run) / JOURNAL):
        block = Block(text)
        damaged += block.damaged
        for kind in KINDS:
            parts[kind].append(block.table(kind))
    train, evaluation = (_joined([part for part in parts[kind] if part.rows]) for kind in KINDS)
    return Journal(train, evaluation, damaged)


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, some at a time."""
    try:
        with path.open("rb") as file:
            rest = b""
            while block := file.read(BLOCK):
                whole, end, rest = (rest + block).rpartition(b"\n")
                if end:
                    yield whole + end
    except OSError as error:
        raise LudusError(f"{path}: cannot be read ({error.strerror})") from error


class Block:
    """Some lines of a journal: those that are alike read together, the others one by one."""

    def __init__(self, text: bytes):
        """Read them."""
        self.lines = Lines(text)
        self.kinds = np.full(len(self.lines), -1)
        self.columns: dict[str, np.ndarray] = {}
        self.objects: dict[str, list[tuple[int, Any]]] = {}
        self.damaged = 0
        for alike in self.lines.shapes().values():
            rows = read_alike(self.lines, alike)
            if rows is not None:
                self._take_all(rows)
            for i in alike if rows is None else sorted(set(alike) - set(rows.lines.tolist())):
                self._take_one(i)

    def table(self, kind: str) -> Table:
        """Return the rows of one kind, in their order."""
        chosen = np.flatnonzero(self.kinds == KINDS.index(kind))
        columns = {name: column[chosen] for name, column in self.columns.items()}
        columns = {name: column for name, column in columns.items() if not np.isnan(column).all()}
        place = {int(line): i for i, line in enumerate(chosen)} if self.objects else {}
        objects = {}
        for name, found in self.objects.items():
            theirs = sorted(((place[i], value) for i, value in found if i in place), key=itemgetter(0))
            objects |= {name: theirs} if theirs else {}
        return Table(len(chosen), columns, objects)

    def _column(self, name: str) -> np.ndarray:
        if name not in self.columns:
            self.columns[name] = np.full(len(self.lines), np.nan)
        return self.columns[name]

    def _take_all(self, rows: Rows) -> None:
        kind = rows.constants.get("kind")
        self.kinds[rows.lines] = KINDS.index(kind) if kind in KINDS else -1
        for name, values in rows.numbers.items():
            self._column(name)[rows.lines] = values
        for name, value in rows.constants.items():
            if isinstance(value, bool):
                self._column(name)[rows.lines] = value

    def _take_one(self, i: int) -> None:
        line = self.lines[i]
        if not line.strip():
            return
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            self.damaged += 1
            return
        kind = row.get("kind")
        self.kinds[i] = KINDS.index(kind) if isinstance(kind, str) and kind in KINDS else -1
        for name, value in row.items():
            if isinstance(value, int | float):
                self._column(name)[i] = _number(value)
            elif isinstance(value, list | dict):
                self.objects.setdefault(name, []).append((i, value))


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return np.nan


def _joined(parts: list[Table]) -> Table:
    """Put tables one below the other."""
    whole = Table(sum(part.rows for part in parts))
    for name in dict.fromkeys(name for part in parts for name in part.columns):
        whole.columns[name] = np.concatenate([part.column(name) for part in parts])
    start = 0
    for part in parts:
        for name, found in part.objects.items():
            whole.objects.setdefault(name, []).extend((start + row, value) for row, value in found)
        start += part.rows
    return whole
