"""A journal as columns of numbers: what figures are drawn from.

A journal may have a million rows. It is read block by block; a line that cannot be read is counted and left out.
"""

import errno
import json
import os
import stat
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus.report.numbers import Lines, Rows, read_alike
from ludus.tracking.run_folder import JOURNAL
from ludus.types import LudusError

BLOCK = 4 << 20
"""Bytes read at once."""
MOST_PARTS = 64
"""So many parts are joined into one: a journal that is watched for hours is read in thousands of small ones."""
ENDING = 256
"""Bytes before the place up to which a journal was read that must still be the same."""
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


class Growing:
    """A file that may still grow: each line is read once. One that was cut or replaced begins anew."""

    def __init__(self, path: Path):
        """Read nothing yet."""
        self.path, self.offset = path, 0
        self._file, self._rest, self._end = -1, b"", b""

    def read(self) -> Piece:
        """Read the next lines, a block of them at most; OSError if that cannot be."""
        file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            is_anew = self._is_other(file, status.st_ino)
            if is_anew:
                self.offset, self._rest, self._end, self._file = 0, b"", b"", status.st_ino
            block = os.pread(file, BLOCK, self.offset)
        finally:
            os.close(file)
        self.offset += len(block)
        self._end = (self._end + block)[-ENDING:]
        text, end, self._rest = (self._rest + block).rpartition(b"\n")
        return Piece(text + end, is_anew, len(block) < BLOCK)

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
        self._parts: dict[str, list[Table]] = {kind: [] for kind in KINDS}

    @property
    def offset(self) -> int:
        """Bytes read so far."""
        return self._growing.offset

    def read_more(self) -> bool:
        """Read the next block; return whether there may be another one."""
        try:
            text, is_anew, is_last = self._growing.read()
        except OSError as error:
            raise LudusError(f"{self._growing.path}: cannot be read ({error.strerror})") from error
        if is_anew:
            self._forget()
        self._take(Block(text))
        return not is_last

    def _take(self, block: "Block") -> None:
        self.damaged += block.damaged
        for kind, parts in self._parts.items():
            part = block.table(kind)
            if part.rows:
                parts.append(part)
            if len(parts) > MOST_PARTS:
                parts[:] = [_joined(parts)]

    def journal(self) -> Journal:
        """Return what was read so far."""
        train, evaluation = (_joined(self._parts[kind]) for kind in KINDS)
        return Journal(train, evaluation, self.damaged)


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
            done = set() if rows is None else set(rows.lines.tolist())
            for i in alike if len(done) < len(alike) else ():
                if i not in done:
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
