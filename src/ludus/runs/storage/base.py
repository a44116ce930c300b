"""The seam between copying a run and the places where copies lie: a few operations on files that have paths.

No place is asked to rename, to append or to lock, and none is believed: what was put is compared by its hash.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

PIECE = 1 << 20
"""Bytes that are read at once."""
PART = 8 << 20
"""A file up to this size is sent in one request; a longer one in parts of this size."""


class StorageError(Exception):
    """The place did not do what it was asked to; it can be tried again."""

    def __init__(self, text: str, wait: float = 0.0, is_final: bool = False):
        """`wait` are the seconds that the place wants to be left alone; `is_final`: trying again is of no use."""
        super().__init__(text)
        self.wait, self.is_final = wait, is_final


class MissingError(StorageError):
    """There is no such file."""


@dataclass(frozen=True)
class Told:
    """The place's own word on a file that lies there."""

    size: int
    digests: dict[str, str] = field(default_factory=dict)
    """Hashes that the place itself made of the bytes it holds, by their names, in hexadecimal digits."""


class Pace:
    """Limits the bytes sent per second, on average; pieces of up to `PART` bytes go at full speed."""

    def __init__(self, bandwidth: float = 0.0, progress: Callable[[int], None] = lambda size: None):
        """`bandwidth` of 0 is no limit; `progress` is told of every piece that is about to be sent."""
        self.bandwidth, self.progress = bandwidth, progress
        self._free_at, self._counting = 0.0, threading.Lock()

    def passed(self, size: int) -> None:
        """Wait until so many bytes more may be sent."""
        if self.bandwidth:
            with self._counting:
                begin = max(self._free_at, now := time.monotonic())
                self._free_at = begin + size / self.bandwidth
            time.sleep(begin - now)
        self.progress(size)


class LocalFile:
    """The content of a local file at one moment: its first `size` bytes, which may be sent more than once.

    It is read from the file that was open then: neither a new file of that name nor what is appended changes it.
    """

    def __init__(self, file: int, size: int, pace: Pace | None = None):
        """Take over an open file and hash it."""
        self.file, self.size, self.pace = file, size, pace or Pace()
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        for piece in self.pieces(is_sent=False):
            sha256.update(piece)
            md5.update(piece)
        self.digests = {"sha256": sha256.hexdigest(), "md5": md5.hexdigest()}

    @property
    def sha256(self) -> str:
        """The hash by which it is known."""
        return self.digests["sha256"]

    def read(self, offset: int, size: int, is_sent: bool = True) -> bytes:
        """Return bytes of it; `is_sent` lets them count for the pace."""
        size = min(size, self.size - offset)
        data = b""
        while len(data) < size and (more := os.pread(self.file, size - len(data), offset + len(data))):
            data += more
        if len(data) < size:
            raise StorageError("a file was cut while it was copied")
        if is_sent:
            self.pace.passed(size)
        return data

    def pieces(self, size: int = PIECE, is_sent: bool = True) -> Iterator[bytes]:
        """Yield all of it, in pieces."""
        for offset in range(0, self.size, size):
            yield self.read(offset, size, is_sent)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.file)


class RemoteStore(Protocol):
    """A place where copies lie. Paths have `/` between their names and no other meaning.

    Whatever goes wrong is a `StorageError`, a file that is not there a `MissingError`.
    """

    name: str
    """The place for messages, without credentials."""

    def put(self, path: str, source: LocalFile) -> None:
        """Let a file hold this content and no other file have its name."""
        ...

    def told(self, path: str) -> Told:
        """Return what the place says of a file."""
        ...

    def pieces(self, path: str, sha256: str | None = None) -> Iterator[bytes]:
        """Yield the content of a file; of several with one name that with this hash, if the place can tell."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, those of folders with a `/` behind them; none if it is not there."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; it may be gone already."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
