"""A journal as columns of numbers: what figures are drawn from.

A journal may have a million rows. It is read block by block; a line that cannot be read is counted and left out.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ludus.tracking.run_folder import JOURNAL
from ludus.types import LudusError

BLOCK = 4 << 20
"""Bytes read at once."""
KINDS = ("train", "evaluation")
NUMBERS = {float, type(None)}
"""What a column of numbers is made of, most often; an integer may be too long for a float and is looked at alone."""


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
    blocks: dict[str, list[tuple[int, dict[str, np.ndarray], dict[str, list]]]] = {kind: [] for kind in KINDS}
    damaged = 0
    for lines in _blocks(Path(run) / JOURNAL):
        rows, bad = _rows(lines)
        damaged += bad
        for kind in KINDS:
            chosen = [row for row in rows if row.get("kind") == kind]
            if chosen:
                blocks[kind].append(_columns(chosen))
    train, evaluation = (_joined(blocks[kind]) for kind in KINDS)
    return Journal(train, evaluation, damaged)


def _blocks(path: Path) -> Iterator[list[bytes]]:
    """Yield the complete lines of a file, some at a time."""
    try:
        with path.open("rb") as file:
            rest = b""
            while block := file.read(BLOCK):
                *lines, rest = (rest + block).split(b"\n")
                yield [line for line in lines if line.strip()]
    except OSError as error:
        raise LudusError(f"{path}: cannot be read ({error.strerror})") from error


def _rows(lines: list[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Return the rows that lines hold, and how many hold none."""
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")  # one call for all: a third less time
    except (ValueError, RecursionError):
        found = list(map(_row, lines))
    if len(found) != len(lines):
        found = list(map(_row, lines))  # a line that holds several values, or the halves of one
    rows = [row for row in found if isinstance(row, dict)]
    return rows, len(lines) - len(rows)


def _row(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _columns(rows: list[dict[str, Any]]) -> tuple[int, dict[str, np.ndarray], dict[str, list]]:
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    columns, objects = {}, {}
    for name in names:
        values = [row.get(name) for row in rows]
        if set(map(type, values)) <= NUMBERS:
            columns[name] = np.array(values, np.float64)  # None becomes NaN
            continue
        columns[name] = np.array([_number(value) for value in values], np.float64)
        objects[name] = [(i, value) for i, value in enumerate(values) if isinstance(value, list | dict)]
        if not np.isfinite(columns[name]).any():
            del columns[name]
    return len(rows), columns, {name: found for name, found in objects.items() if found}


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else np.nan
    except OverflowError:
        return np.nan


def _joined(blocks: list[tuple[int, dict[str, np.ndarray], dict[str, list]]]) -> Table:
    sizes = [size for size, _, _ in blocks]
    starts = [0, *itertools.accumulate(sizes)]
    table = Table(sum(sizes))
    names = dict.fromkeys(itertools.chain.from_iterable(columns for _, columns, _ in blocks))
    for name in names:
        parts = [columns.get(name, np.full(size, np.nan)) for size, columns, _ in blocks]
        table.columns[name] = np.concatenate(parts)
    for start, (_, _, objects) in zip(starts, blocks, strict=False):
        for name, found in objects.items():
            table.objects.setdefault(name, []).extend((start + row, value) for row, value in found)
    return table
