"""A journal as columns of numbers: what figures are drawn from.

A journal may have a million rows. It is read block by block; a line that cannot be read is counted and left out, and so
is one that is longer, or has more names, than any row of ours.
"""

import os
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus.report.numbers import Lines, Rows, read_alike
from ludus.tracking import reading
from ludus.tracking.reading import MOST_COLUMNS, MOST_LINE
from ludus.tracking.run_folder import JOURNAL
from ludus.types import LudusError

BLOCK = 4 << 20
"""Bytes read at once."""
MOST_PARTS = 64
"""So many parts are joined into one: a journal that is watched for hours is read in thousands of small ones."""
ENDING = 256
"""Bytes before the place up to which a journal was read that must still be the same."""
KINDS = ("train", "evaluation")
MOST_BLOCK_CELLS, MOST_CELLS = 1 << 24, 1 << 27
"""Numbers that a block, or a journal, may take as columns: few rows with many names make many that nobody wrote."""


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
    reader = Reader(Path(run) / JOURNAL)
    while reader.read_more():
        pass
    return reader.journal()


class Piece(NamedTuple):
    """Some complete lines of a file."""

    text: bytes
    is_anew: bool
    """Whether they are the first ones, because nothing was read before or what was read is no longer there."""
    is_last: bool
    too_long: int
    """Lines that are longer than a row may be, which are left out."""


class Growing:
    """A file that may still grow: each line is read once. One that was cut or replaced begins anew."""

    def __init__(self, path: Path):
        """Read nothing yet."""
        self.path, self.offset = path, 0
        self.rest = b""
        """The beginning of a line that has no end yet."""
        self._file, self._end = -1, b""
        self._is_within = False
        """Whether the place that was reached is within a line that is too long."""

    def read(self) -> Piece:
        """Read the next lines, a block of them at most; OSError if that cannot be."""
        file = reading.open_journal(self.path)
        try:
            inode = os.fstat(file).st_ino
            is_anew = self._is_other(file, inode)
            if is_anew:
                self.offset, self.rest, self._end, self._file, self._is_within = 0, b"", b"", inode, False
            block = os.pread(file, BLOCK, self.offset)
        finally:
            os.close(file)
        self.offset += len(block)
        self._end = (self._end + block)[-ENDING:]
        text, end, self.rest = (self.rest + block).rpartition(b"\n")
        text += end
        if self._is_within and end:
            text, self._is_within = text[text.index(b"\n") + 1 :], False
        too_long = 0
        if len(self.rest) > MOST_LINE or self._is_within:
            too_long = not self._is_within
            self.rest, self._is_within = b"", True
        return Piece(text, is_anew, len(block) < BLOCK, too_long)

    def _is_other(self, file: int, inode: int) -> bool:
        """Tell whether the bytes before the place that was reached have changed, as those of a resumed run have."""
        return inode != self._file or os.pread(file, len(self._end), self.offset - len(self._end)) != self._end


class Reader:
    """Reads a journal that may still grow."""

    def __init__(self, path: Path):
        """Read nothing yet."""
        self._growing = Growing(path)
        self._forget()

    def _forget(self) -> None:
        self.damaged = 0
        self._names: set[str] = set()
        self._parts: dict[str, list[Table]] = {kind: [] for kind in KINDS}

    @property
    def offset(self) -> int:
        """Bytes read so far."""
        return self._growing.offset

    def read_more(self) -> bool:
        """Read the next block; return whether there may be another one."""
        try:
            text, is_anew, is_last, too_long = self._growing.read()
        except OSError as error:
            raise LudusError(f"{self._growing.path}: cannot be read ({error.strerror})") from error
        if is_anew:
            self._forget()
        self.damaged += too_long
        try:
            self._take(Block(text, self._names))
        except ValueError as error:
            raise LudusError(f"{self._growing.path}: cannot be read ({error})") from error
        return not is_last

    def _take(self, block: "Block") -> None:
        self.damaged += block.damaged
        for kind, parts in self._parts.items():
            part = block.table(kind)
            if part.rows:
                parts.append(part)
            if sum(part.rows for part in parts) * len(self._names) > MOST_CELLS:
                raise ValueError(f"it has too many rows for {len(self._names):,} different names")
            if len(parts) > MOST_PARTS:
                parts[:] = [_joined(parts)]

    def journal(self) -> Journal:
        """Return what was read so far."""
        train, evaluation = (_joined(self._parts[kind]) for kind in KINDS)
        return Journal(train, evaluation, self.damaged)


class Block:
    """Some lines of a journal: those that are alike read together, the others one by one."""

    def __init__(self, text: bytes, names: set[str] | None = None):
        """Read them; `names` are those of the lines before, to which these add theirs."""
        self.lines, self._names = Lines(text), set() if names is None else names
        self.kinds = np.full(len(self.lines), -1)
        self.columns: dict[str, np.ndarray] = {}
        self.objects: dict[str, list[tuple[int, Any]]] = {}
        self._single: dict[str, list[tuple[int, float]]] = {}
        """Numbers of lines that were read one by one."""
        self.damaged = 0
        for alike in self.lines.shapes().values():
            rows = read_alike(self.lines, alike)
            if rows is not None:
                self._take_all(rows)
            done = set() if rows is None else set(rows.lines.tolist())
            for i in alike if len(done) < len(alike) else ():
                if i not in done:
                    self._take_one(i)
        if len(self.lines) * len(self._single.keys() | self.columns.keys()) > MOST_BLOCK_CELLS:
            raise ValueError(f"it has {len(self._single):,} different names in lines of a few bytes")
        for name, found in self._single.items():
            at, values = zip(*found, strict=True)
            self._column(name)[list(at)] = values

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
        if not self._may_add({*rows.constants, *rows.numbers}):
            self.damaged += len(rows.lines)
            return
        kind = rows.constants.get("kind")
        self.kinds[rows.lines] = KINDS.index(kind) if kind in KINDS else -1
        for name, values in rows.numbers.items():
            self._column(name)[rows.lines] = values
        for name, value in rows.constants.items():
            if isinstance(value, bool):
                self._column(name)[rows.lines] = value

    def _may_add(self, names: set[str]) -> bool:
        """Take names in, unless they would be too many."""
        if not names <= self._names and len(self._names | names) > MOST_COLUMNS:
            return False
        self._names |= names
        return True

    def _take_one(self, i: int) -> None:
        line = self.lines[i]
        if not line.strip():
            return
        try:
            row = reading.row_of(line)
        except ValueError:
            row = None
        if row is None or not self._may_add(set(row)):
            self.damaged += 1
            return
        kind = row.get("kind")
        self.kinds[i] = KINDS.index(kind) if isinstance(kind, str) and kind in KINDS else -1
        for name, value in row.items():
            if isinstance(value, int | float):
                self._single.setdefault(name, []).append((i, float(value)))
            elif isinstance(value, list | dict):
                self.objects.setdefault(name, []).append((i, value))


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
