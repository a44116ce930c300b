"""A journal as columns of numbers: what figures are drawn from.

A journal may have a million rows. It is read block by block; a damaged row is counted and left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus.runs.journal import JOURNAL, JournalReader, TakenBackError, row_of
from ludus.runs.limits import MOST_COLUMNS
from ludus.types import LudusError

MOST_PARTS = 64
"""So many parts are joined into one: a journal that is watched for hours is read in thousands of small ones."""
KINDS = ("train", "evaluation")
MOST_BLOCK_CELLS, MOST_CELLS = 1 << 24, 1 << 27
"""Numbers that a block, or a journal, may take as columns: few rows with many names make many that nobody wrote."""
NUMBERS = {int, float, bool}
Shape = tuple[str, ...]
"""The names of a row, in their order: nearly all rows of a journal have one of a few shapes."""


class Rows(NamedTuple):
    """Rows of one shape: which of their kind they are, and their values."""

    numbers: list[int]
    values: list[tuple[Any, ...]]


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

    def put(self, name: str, rows: np.ndarray, values: Sequence[Any]) -> None:
        """Set what some rows have in a column: numbers there, lists and dictionaries among the objects."""
        kinds = set(map(type, values))
        if not kinds <= NUMBERS:
            objects = [(int(row), x) for row, x in zip(rows, values, strict=True) if isinstance(x, list | dict)]
            if objects:
                self.objects.setdefault(name, []).extend(objects)
            values = [float(x) if isinstance(x, int | float) else np.nan for x in values]
        if kinds & NUMBERS:
            if name not in self.columns:
                self.columns[name] = np.full(self.rows, np.nan)
            self.columns[name][rows] = np.array(values, np.float64)

    def last(self, name: str) -> float | None:
        """Return the latest number of a column, None if there is none."""
        known = self.column(name)
        known = known[np.isfinite(known)]
        return float(known[-1]) if len(known) else None


@dataclass(frozen=True)
class Tables:
    """The tables of a journal, as far as it could be read."""

    train: Table
    evaluation: Table
    damaged: int
    """Lines that are not rows."""


def read(run: str | Path) -> Tables:
    """Read the journal of a run; a last line that is not finished yet is not there yet."""
    reader = Reader(Path(run) / JOURNAL)
    while reader.read_more():
        pass
    return reader.journal()


class Reader:
    """Reads a journal that may still grow; one that was cut or replaced is read anew."""

    def __init__(self, path: Path):
        """Read nothing yet."""
        self.path = path
        self._begin()

    def _begin(self) -> None:
        self._rows = JournalReader(self.path)
        self.damaged = 0
        self._names: set[str] = set()
        self._parts: dict[str, list[Table]] = {kind: [] for kind in KINDS}

    @property
    def offset(self) -> int:
        """Bytes read so far."""
        return self._rows.position.offset

    def read_more(self) -> bool:
        """Read the next block; return whether there may be another one."""
        try:
            self._take(Block(self._rows.read_lines(), self._names))
        except TakenBackError:
            self._begin()
            return self.read_more()
        except ValueError as error:
            raise LudusError(f"{self.path}: cannot be read ({error})") from error
        return not self._rows.is_at_end

    def _take(self, block: "Block") -> None:
        self.damaged += block.damaged
        for kind, parts in self._parts.items():
            if block.tables[kind].rows:
                parts.append(block.tables[kind])
            if sum(part.rows for part in parts) * len(self._names) > MOST_CELLS:
                raise ValueError(f"it has too many rows for {len(self._names):,} different names")
            if len(parts) > MOST_PARTS:
                parts[:] = [_joined(parts)]

    def journal(self) -> Tables:
        """Return what was read so far."""
        train, evaluation = (_joined(self._parts[kind]) for kind in KINDS)
        return Tables(train, evaluation, self.damaged)


class Block:
    """Some lines of a journal as tables, one for each kind of row."""

    def __init__(self, lines: Sequence[bytes], names: set[str] | None = None):
        """Read them; `names` are those of the lines before, to which these add theirs."""
        self._names = set() if names is None else names
        self.damaged = 0
        self.tables = {kind: Table() for kind in KINDS}
        self._shapes: dict[str, dict[Shape, Rows]] = {kind: {} for kind in KINDS}
        for line in filter(bytes.strip, lines):
            self._take(line)
        for kind, table in self.tables.items():
            self._fill(table, self._shapes[kind])

    def _take(self, line: bytes) -> None:
        """Put a row to those that have the same names."""
        try:
            row = row_of(line)
        except ValueError:
            self.damaged += 1
            return
        kind = row.pop("kind", None)
        table = self.tables.get(kind) if isinstance(kind, str) else None
        shape = tuple(row)
        if table is None:
            self.damaged += not self._may_add(shape)
            return
        rows = self._shapes[str(kind)].get(shape)
        if rows is None:
            if not self._may_add(shape):
                self.damaged += 1
                return
            rows = self._shapes[str(kind)][shape] = Rows([], [])
        rows.numbers.append(table.rows)
        rows.values.append(tuple(row.values()))
        table.rows += 1

    def _may_add(self, names: Shape) -> bool:
        """Take names in, unless they would be too many."""
        if len(self._names.union(names)) > MOST_COLUMNS:
            return False
        self._names.update(names)
        return True

    def _fill(self, table: Table, shapes: "dict[Shape, Rows]") -> None:
        if table.rows * len({name for shape in shapes for name in shape}) > MOST_BLOCK_CELLS:
            raise ValueError(f"it has {len(self._names):,} different names in lines of a few bytes")
        for shape, rows in shapes.items():
            numbers = np.array(rows.numbers)
            for name, values in zip(shape, zip(*rows.values, strict=True), strict=True):
                table.put(name, numbers, values)
        for found in table.objects.values():
            found.sort(key=itemgetter(0))


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
