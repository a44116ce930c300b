"""Copying a run folder to a store; whatever cuts a round off, the next one goes on where it was.

One round: what is new is sent and verified, and what is to replace something is sent beside it; a marker is written of
all that is there now; then it is replaced, last of all the file that names the latest checkpoint, and what no marker
names any more is removed.
"""

import os
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path

from ludus.runs.checkpoint.format import CHECKPOINTS
from ludus.runs.folder import read_identity
from ludus.runs.journal import JOURNAL
from ludus.runs.storage.base import LocalFile, Pace, RemoteStore, StorageError
from ludus.runs.storage.contents import POINTER, Contents, Stamp, Whole, stamp_of
from ludus.runs.storage.ledger import Ledger, LedgerFile
from ludus.runs.storage.marker import Content, Marker, read_marker, spare
from ludus.runs.storage.places import joined
from ludus.runs.storage.verify import is_same
from ludus.runtime import files
from ludus.types import LudusError

WORKERS = 4
"""Files that are sent at the same time."""
LONGEST = 1 << 45
"""Bytes of a file."""

Opened = dict[str, tuple[Stamp, LocalFile]]
"""Files that are open to be sent, by their paths."""
MADE = Stamp(0, 0, 0)
"""The stamp of a file that is made for the copy and is not read from the run."""


class Copier:
    """Copies one run."""

    def __init__(self, run: Path, store: RemoteStore, url: str, keep_last: int = 0, pace: Pace | None = None):
        """Begin with nothing sent; the ledger says what arrived before."""
        self.run, self.store, self.pace = run, store, pace or Pace()
        self.id = str(read_identity(run)["id"])
        self.contents = Contents(run, keep_last)
        self.file = LedgerFile(run)
        kept = self.file.load()
        self.ledger = kept if kept is not None and kept.url == url else Ledger(url, _name(run))
        self._has_begun = self.ledger is kept and kept.taken is None
        """Whether this folder has begun the copy: a marker that is damaged is its own then."""
        self.marker: Marker | None = None
        self.is_to_take_over = False
        """Whether a copy that another folder of the run has written is gone on with."""
        self._noting = threading.Lock()
        self._pool = ThreadPoolExecutor(WORKERS, "ludus-storage")  # each thread keeps its connection

    @property
    def place(self) -> str:
        """The place of the copy, for messages."""
        return joined(self.store.name, self.ledger.folder)

    def advance(self) -> bool:
        """Bring the copy up to date; return whether anything was sent. StorageError if the place fails."""
        self._meet()
        self._remove_unwanted()
        latest, chosen, stamps = self.contents.latest(), self.contents.checkpoints(), self.contents.others()
        is_sure = self.contents.is_sure
        arrived = {step: whole for step, whole in chosen.items() if self._send_new(whole.files)}
        self._send_new({path: None for path in stamps if path != JOURNAL})
        names = [name for whole in arrived.values() for name in whole.files]
        with ExitStack() as stack:
            opened = self._changed([*names, *(path for path in stamps if path != JOURNAL)], stack)
            opened |= self._changed([JOURNAL], stack)  # the last: it reaches as far as every checkpoint
            if JOURNAL not in opened and JOURNAL not in self.ledger.sent:
                raise StorageError(f"{self.run / JOURNAL}: cannot be read")
            reach = opened[JOURNAL][1].size if JOURNAL in opened else self.ledger.sent[JOURNAL][0].size
            self._check_moment(arrived, latest, reach)
            if (pointer := _pointer(arrived, latest, self.pace)) is not None and not self._points(pointer):
                opened[POINTER] = MADE, stack.enter_context(closing(pointer))
            is_complete = is_sure and len(arrived) == len(chosen)
            wanted = self._wanted([*names, *stamps], opened, is_to_prune=bool(arrived) and is_complete)
            return self._commit(wanted, opened)

    def missing(self) -> int:
        """Return how many files have not arrived, as far as can be told."""
        steps = self.contents.checkpoints().values()
        paths = {*self.contents.others(), *(path for whole in steps for path in whole.files)}
        return sum(not self._has_arrived(path) for path in paths)

    @property
    def _there(self) -> dict[str, Content]:
        """The files that the marker names."""
        return {} if self.marker is None else self.marker.files

    # The marker that lies there

    def _meet(self) -> None:
        """Read the marker that lies there and make sure that it is ours to go on with."""
        marker, ledger = self._marker(self.ledger.folder), self.ledger
        if marker is not None and marker.run != self.id:  # another run of that name: both are kept
            ledger.folder = f"{_name(self.run)}-{self.id[:8]}"
            marker = self._marker(ledger.folder)
        self.marker = marker
        if marker is None:
            ledger.sent.clear()
            self.file.save(ledger)  # this folder must be known as the writer before it writes a marker
            self._has_begun = True
            return
        if marker.run == self.id and self.is_to_take_over and marker.writer != ledger.writer:
            ledger.sent.clear()
            ledger.taken = marker.writer, marker.number
            self.file.save(ledger)
        if marker.run != self.id or (marker.writer != ledger.writer and ledger.taken != (marker.writer, marker.number)):
            raise StorageError(
                f"{self.place}: is written by another folder of this run, and nothing is sent; ludus push {self.run} "
                "--take-over replaces it",
                is_final=True,
            )

    def _marker(self, folder: str) -> Marker | None:
        """Return the marker in a folder there; none if the first one of this copy did not arrive as it was sent."""
        try:
            return read_marker(self.store, folder)
        except LudusError:
            if self._has_begun:
                return None
            raise

    def _mark(self, named: dict[str, Content]) -> None:
        """Write a marker, and believe that it is there only when its hash says so."""
        number = 0 if self.marker is None else self.marker.number + 1
        marker = Marker(number, self.id, self.ledger.writer, named)
        with closing(_source_of(marker.encoded(), self.pace)) as source:
            self._send(marker.slot, source)
        self.marker, self.is_to_take_over = marker, False

    # What is new

    def _send_new(self, expected: Mapping[str, str | None]) -> bool:
        """Send those files that no marker names yet; return whether all of them are what they should be."""
        new = [path for path in expected if not self._has_arrived(path)]
        jobs = [self._pool.submit(self._send_file, path, expected[path]) for path in new]
        wait(jobs, return_when=FIRST_EXCEPTION)
        for job in jobs:
            job.cancel()
        wait(jobs)
        self._note()
        results = [job.result() for job in jobs if not job.cancelled()]
        return all(results)

    def _has_arrived(self, path: str) -> bool:
        known = self.ledger.sent.get(path)
        try:
            return known is not None and known[1] == stamp_of(self.run / path)
        except OSError:
            return False

    def _send_file(self, path: str, sha256: str | None) -> bool:
        """Send one file, unless a marker names it: that is replaced later, if it is another one.

        Return False if it cannot be read or, by its hash, is not what it should be.
        """
        try:
            stamp, source = self._opened(path)
        except OSError:
            return False
        with closing(source):
            if sha256 not in (None, source.sha256):
                return False
            if path not in self._there:
                self._send(path, source, stamp)
        return True

    def _opened(self, path: str) -> tuple[Stamp, LocalFile]:
        file = files.open_regular(self.run / path, LONGEST)
        status = os.fstat(file)
        return Stamp(status.st_size, status.st_mtime_ns, status.st_ino), LocalFile(file, status.st_size, self.pace)

    def _send(self, path: str, source: LocalFile, stamp: Stamp | None = None) -> None:
        """Send a file and believe that it arrived only when its hash says so."""
        there = joined(self.ledger.folder, path)
        self.store.put(there, source)
        if not is_same(self.store, there, source):
            raise StorageError(f"{self.store.name}/{there}: what arrived is not what was sent")
        if stamp is not None:
            self._note(path, source, stamp)

    def _note(self, path: str | None = None, source: LocalFile | None = None, stamp: Stamp | None = None) -> None:
        """Write down that a file has arrived; without one, all that is known now."""
        with self._noting:
            if path is not None and source is not None and stamp is not None:
                self.ledger.sent[path] = Content(source.size, source.sha256), stamp
            self.file.save(self.ledger, is_urgent=path is None)

    # What is replaced

    def _changed(self, paths: list[str], stack: ExitStack) -> Opened:
        """Open the files that are no longer what lies there; the others are noted to be the same."""
        opened: Opened = {}
        for path in [path for path in dict.fromkeys(paths) if not self._has_arrived(path)]:
            try:
                stamp, source = self._opened(path)
            except OSError:
                continue
            if self._is_there(path, source):
                self._note(path, source, stamp)
                source.close()
            else:
                opened[path] = stamp, stack.enter_context(closing(source))
        return opened

    def _is_there(self, path: str, source: LocalFile) -> bool:
        """Tell whether the marker names this content, and it lies where it belongs."""
        is_named = self._there.get(path) == Content(source.size, source.sha256)
        return is_named and is_same(self.store, joined(self.ledger.folder, path), source)

    def _points(self, pointer: LocalFile) -> bool:
        """Tell whether this is where the pointer there points."""
        content = Content(pointer.size, pointer.sha256)
        return self._there.get(POINTER) == content and self.ledger.sent.get(POINTER) == (content, MADE)

    def _check_moment(self, arrived: dict[int, Whole], latest: int | None, reach: int) -> None:
        """Refuse to go on if the run was resumed from an earlier checkpoint while it was read."""
        now = self.contents.latest()
        is_short = any(whole.journal_bytes > reach for step, whole in arrived.items() if step <= (latest or 0))
        if is_short or (latest is not None and (now is None or now < latest)):
            raise StorageError(f"{self.run}: was resumed while it was copied")

    def _wanted(self, paths: list[str], opened: Opened, is_to_prune: bool) -> dict[str, Content]:
        """Return what the new marker names; only checkpoints are ever taken off, and never without newer ones."""
        pruned = f"{CHECKPOINTS}/" if is_to_prune else "\0"
        old = {path: content for path, content in self._there.items() if not path.startswith(pruned)}
        if is_to_prune and POINTER in self._there:
            old[POINTER] = self._there[POINTER]
        new = {path: self.ledger.sent[path][0] for path in paths if path in self.ledger.sent}
        return old | new | {path: Content(x.size, x.sha256) for path, (_, x) in opened.items()}

    def _commit(self, wanted: dict[str, Content], opened: Opened) -> bool:
        """Send what has changed and write the marker; return whether there was anything to do."""
        before = self._there
        is_known = wanted == before and self.marker is not None and self.marker.writer == self.ledger.writer
        if is_known and not opened:
            self._note()
            return False
        later = {path: entry for path, entry in opened.items() if path in before}
        for path, (stamp, source) in opened.items():
            if path not in later:
                self._send(path, source, stamp)
        gone = before.keys() - wanted.keys()
        self.ledger.unwanted = sorted({*self.ledger.unwanted, *gone})
        if not is_known:
            self._send_beside([path for path in later if before[path] != wanted[path]], later)
            self._mark(wanted)
        for path, (stamp, source) in later.items():  # the pointer is the last
            self._send(path, source, stamp)
        self.ledger.taken = None
        self._note()
        self._remove_unwanted()
        return True

    def _send_beside(self, paths: list[str], opened: Opened) -> None:
        """Send what is to replace something under its spare name."""
        spares = {path: spare(Content(opened[path][1].size, opened[path][1].sha256)) for path in paths}
        self.ledger.unwanted = sorted({*self.ledger.unwanted, *spares.values()})
        for path in paths:
            self.ledger.sent.pop(path, None)  # it is as it was until it has been replaced
        self._note()
        for path, place in spares.items():
            if place not in self.ledger.sent:
                self._send(place, opened[path][1], MADE)

    def _remove_unwanted(self) -> None:
        """Remove what no marker names any more; the spare of a file that is not in its place yet stays."""
        needed = {spare(content) for path, content in self._there.items() if path not in self.ledger.sent}
        for path in [path for path in self.ledger.unwanted if path not in needed]:
            if path not in self._there:
                self.ledger.sent.pop(path, None)
                self.store.remove(joined(self.ledger.folder, path))
            self.ledger.unwanted.remove(path)


def _pointer(arrived: dict[int, Whole], latest: int | None, pace: Pace) -> LocalFile | None:
    """Return the file that names the checkpoint to go on from: the latest of those that arrived."""
    steps = [step for step in arrived if latest is None or step <= latest]
    return _source_of(f"{max(steps)}\n".encode(), pace) if steps else None


def _source_of(data: bytes, pace: Pace) -> LocalFile:
    """Return bytes as the content of a file."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return LocalFile(os.dup(file.fileno()), len(data), pace)


def _name(run: Path) -> str:
    """Return the name of a run's folder there."""
    name = "".join(x if x.isalnum() or x in "._-+=, " else "-" for x in run.absolute().name).strip(". ")[:120]
    return name or "run"
