"""The journal of a run, `metrics.jsonl`: one row of JSON for each iteration and each evaluation, on a line of its own.

A row begins with its number, `seq`, and ends with `crc`, the CRC-32 of the bytes before that field: a digit that has
changed since, on a failing disk or by hand, makes the row a damaged one, which is counted and not shown. Earlier
versions of ludus wrote no checksum; their rows, known by the space after `"seq":`, are read as they are.
"""

import contextlib
import fcntl
import os
import weakref
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from ludus.runs import limits
from ludus.runs.limits import MOST_COLUMNS, MOST_DEPTH, MOST_LINE, reason
from ludus.runs.metrics import COUNTS
from ludus.runs.strict_json import strict_json
from ludus.runtime import files, secrets
from ludus.types import LudusError

JOURNAL = "metrics.jsonl"
CRC = b',"crc":"'
CHECKSUM = CRC + b'%08x"}'
"""The end of a row: its checksum."""
CHECKSUM_BYTES = len(CHECKSUM % 0)
SEQ = b'{"seq":'
"""The beginning of a row that must have a checksum, unless a space follows."""
ENDING = 256
"""Bytes before the place up to which a journal was read that must still be the same."""
PIECE, TAIL = 1 << 20, 1 << 16
"""Bytes that are looked over at once, and bytes near the end in which the last row is looked for."""
TOO_LONG = b"(a line that is longer than a row may be)"
LONGEST_SECONDS = 1e10
"""Three centuries."""


class TakenBackError(Exception):
    """Rows that were read are no longer in the journal: the run was resumed from an earlier moment."""


# A row and its line


def line_of(number: int, row: dict[str, Any]) -> bytes:
    """Return the line of a row. What orjson does not know is made plain first; values of secrets are left out."""
    row = {"seq": number, **row}
    try:
        text = orjson.dumps(row)
    except TypeError:
        text = strict_json(row).encode()
    text = secrets.hidden(text[:-1].decode()).encode()
    return text + CHECKSUM % zlib.crc32(text) + b"\n"


def is_intact(line: bytes) -> bool:
    """Tell whether a line still says what was written: whether its checksum is right, or it is one that had none."""
    if CRC in line[-CHECKSUM_BYTES:]:
        return line.endswith(CHECKSUM % zlib.crc32(line[:-CHECKSUM_BYTES]))
    return not line.startswith(SEQ) or line.startswith(SEQ + b" ")


def row_of(line: bytes) -> dict[str, Any]:
    """Return the row that a line is, without its checksum; ValueError if it is damaged or none."""
    line = line.removesuffix(b"\n")
    if len(line) > MOST_LINE:
        raise ValueError(f"it has {len(line):,} bytes")
    if len(line) > 4 * MOST_COLUMNS and line.count(b'":') > MOST_COLUMNS and line.count(b'"') > 2 * MOST_COLUMNS:
        raise ValueError(f"it has more than {MOST_COLUMNS:,} names")
    if not is_intact(line):
        raise ValueError("its checksum does not fit: it has changed since it was written")
    try:
        row = orjson.loads(line)
    except ValueError:
        row = limits.json_of(
            line, limits.whole_or_unknown
        )  # with numbers that are NaN or too long, which orjson refuses
    if not isinstance(row, dict):
        raise ValueError("it is not a row")
    if (b"[" in line or line.find(b"{", 1) > 0) and line.count(b"[") + line.count(b"{") > MOST_DEPTH:
        limits.check(row)
    row.pop("crc", None)
    return row


# Writing


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn what the system says while a file is written into one line that names the file."""
    try:
        yield
    except OSError as error:
        raise LudusError(f"{path}: cannot be written ({error.strerror or error})") from error


class Journal:
    """Appends to the journal of one run, which no other process may write meanwhile.

    If it cannot be written, because the disk is full, the run goes on: rows are kept in memory and written when that is
    possible again. `trouble` says what is wrong meanwhile.
    """

    def __init__(self, path: Path):
        """Touch nothing yet."""
        self.path = path
        self.rows = self.bytes = 0
        """Rows, those that wait to be written included, and bytes of those that are written."""
        self.trouble: str | None = None
        self._file: int | None = None
        self._pending = b""

    def create(self) -> None:
        """Begin an empty one; FileExistsError if another run was faster."""
        self._file = files.open_file(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        self._lock()

    def reopen(self) -> None:
        """Go on with one that is there; LudusError if another process writes it."""
        with writing(self.path):
            self._file = files.open_file(self.path, os.O_RDWR | os.O_APPEND)
            self.bytes = os.fstat(self._file).st_size
        self._lock()

    def _lock(self) -> None:
        """Make this process the only one that writes; the system takes the lock back however the process ends."""
        assert self._file is not None
        _open.add(self)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.leave()
            raise LudusError(f"{self.path.parent}: another process is training here; stop it first") from error

    def is_moved(self) -> bool:
        """Tell whether the file that is written no longer has its name; OSError if that cannot be known."""
        return self._file is not None and not os.path.samestat(self.path.lstat(), os.fstat(self._file))

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Append rows, each with its number, in one write."""
        lines = [line_of(number, row) for number, row in enumerate(rows, self.rows)]
        self.rows += len(lines)
        self._pending += b"".join(lines)
        try:
            self.flush()
        except LudusError as error:
            self.trouble = str(error)

    def flush(self) -> None:
        """Write the rows that wait."""
        with writing(self.path):
            file = self._open_again() if self._file is None else self._file
            if self.trouble:
                os.ftruncate(file, self.bytes)  # half a row that could not be taken back then
            try:
                files.observe("before append", self.path)
                written = 0
                while written < len(self._pending):
                    written += os.write(file, self._pending[written:])
                files.observe("after append", self.path)
            except OSError:
                os.ftruncate(file, self.bytes)  # no half row stays
                raise
            self.bytes += len(self._pending)
            self._pending, self.trouble = b"", None

    def _open_again(self) -> int:
        """Open the file that was closed; nobody else may have gone on with it."""
        self._file = files.open_file(self.path, os.O_RDWR | os.O_APPEND)
        self._lock()
        if os.fstat(self._file).st_size < self.bytes:
            raise LudusError(f"{self.path}: has been cut by another process")
        return self._file

    def sync(self) -> None:
        """Wait until all that is written is on disk."""
        with writing(self.path):
            if self._file is not None:
                os.fsync(self._file)

    def cut(self, rows: int, size: int) -> None:
        """Take back every row after the first `rows`, which take `size` bytes."""
        with writing(self.path):
            assert self._file is not None
            seen, lines, last = 0, 0, b"\n"
            while piece := os.pread(self._file, min(size - seen, PIECE), seen):
                seen, lines, last = seen + len(piece), lines + piece.count(b"\n"), piece[-1:]
            if (seen, lines, last) != (size, rows, b"\n"):
                raise LudusError(f"{self.path}: is shorter or other than it was when the checkpoint was written")
            os.ftruncate(self._file, size)
            os.fsync(self._file)
        self.rows, self.bytes = rows, size

    def close(self) -> None:
        """Write what waits and wait until it is on disk; a later row opens the file again."""
        if self._file is None:
            return
        try:
            self.flush()
            self.sync()
        finally:
            self.leave()

    def leave(self) -> None:
        """Let go of the file, whatever waits."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


_open: "weakref.WeakSet[Journal]" = weakref.WeakSet()
"""Journals that may be open."""


def _leave_to_parent() -> None:
    """In a process that was forked, such as an environment's own: the journals, and their locks, are its parent's."""
    for journal in list(_open):
        journal.leave()


os.register_at_fork(after_in_child=_leave_to_parent)


# Reading


class Position(NamedTuple):
    """A place between two rows of a journal."""

    offset: int = 0
    rows: int = 0
    """Bytes and rows before it."""
    ending: int = 0
    """Checksum of the last of these bytes: if it is another, they are no longer what was read."""


class JournalReader:
    """Reads a journal from a place on, block by block, each row once; the journal may grow meanwhile.

    LudusError if it cannot be read at all, `TakenBackError` if what was read before is no longer there.
    """

    def __init__(self, path: Path, position: Position = Position()):  # noqa: B008  it cannot be written to
        """Read nothing yet."""
        self.path, self.position = path, position
        self.damaged = 0
        """Lines that were asked for as rows and are none."""
        self.is_at_end = False
        """Whether there was no more at the last look."""
        self.unfinished = b""
        """The first bytes of a last line that has no end yet."""
        self._skipped = 0
        """Bytes of a line that is too long, of which the end was not seen yet."""

    def read_lines(self) -> list[bytes]:
        """Return the next lines that are complete, a block of them at most; none if there are no more yet."""
        with _opened(self.path) as file:
            return self._read(file)

    def _read(self, file: int) -> list[bytes]:
        offset, rows, ending = self.position
        if _ending(file, offset) != ending:
            raise TakenBackError
        lines: list[bytes] = []
        self.is_at_end = False
        while not lines and not self.is_at_end:
            block = os.pread(file, MOST_LINE + 1, offset + self._skipped)
            self.is_at_end = len(block) <= MOST_LINE
            size = block.rfind(b"\n") + 1
            lines = block[:size].split(b"\n")[:-1]
            if size or not self._skipped:
                self.unfinished = block[size:][:ENDING]
            if lines:
                lines[0] = TOO_LONG if self._skipped else lines[0]
                offset, self._skipped = offset + self._skipped + size, 0
                last = block[max(0, size - ENDING) : size]
                ending = zlib.crc32(last) if len(last) == ENDING else _ending(file, offset)
            elif self._skipped or not self.is_at_end:
                self._skipped += len(block)
        self.position = Position(offset, rows + len(lines), ending)
        return lines

    def read_rows(self) -> list[dict[str, Any]]:
        """Return some more rows, each with its number; none if there are no more yet."""
        first = self.position.rows
        return [self.row(line, number) for number, line in enumerate(self.read_lines(), first)]

    def row(self, line: bytes, number: int) -> dict[str, Any]:
        """Return the row that a line is, with its number; a line that is damaged has nothing but that."""
        try:
            row = row_of(line)
            _check_place(row)
        except ValueError:
            self.damaged += 1
            return {"seq": number}
        return row | {"seq": number}


@contextlib.contextmanager
def _opened(path: Path) -> Generator[int]:
    """Open a journal to read it; LudusError if that cannot be."""
    try:
        file = limits.open_journal(path)
        try:
            yield file
        finally:
            os.close(file)
    except OSError as error:
        raise LudusError(f"{path}: cannot be read ({reason(error)})") from error


def last_lines(path: Path) -> list[bytes]:
    """Return the last complete lines of a journal, whatever stands before them."""
    with _opened(path) as file:
        return os.pread(file, TAIL, max(0, os.fstat(file).st_size - TAIL)).split(b"\n")[:-1]


def _ending(file: int, offset: int) -> int:
    """Return the checksum of the last bytes before a place."""
    return zlib.crc32(os.pread(file, min(offset, ENDING), max(0, offset - ENDING)))


def _check_place(row: dict[str, Any]) -> None:
    """Refuse a row that does not say when it was, as a number."""
    for name in COUNTS:
        value = row.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise ValueError(f"{name} is no count")
    seconds = row.get("elapsed_seconds", 0.0)
    if not isinstance(seconds, int | float) or not abs(seconds) < LONGEST_SECONDS:
        raise ValueError("elapsed_seconds is no time")


def read_journal(run: str | Path) -> list[dict[str, Any]]:
    """Return every complete row of a run's journal; LudusError if one is damaged."""
    reader, rows = JournalReader(Path(run) / JOURNAL), []
    try:
        while not reader.is_at_end:
            rows += map(row_of, reader.read_lines())
    except TakenBackError:  # the run was resumed meanwhile
        return read_journal(run)
    except ValueError as error:
        raise LudusError(f"{reader.path}: row {len(rows):,} is damaged ({reason(error)})") from error
    return rows
