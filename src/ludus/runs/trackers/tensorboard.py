"""A run in TensorBoard: a thread follows the journal and writes each of its rows as one event into RUN/tensorboard.

A run has one event file. When it is closed, its last record says up to which place of the journal it holds all. When
the run goes on, and the journal still has at that place what it had, the file grows on. Else, after a crash or where
rows were taken back, it is written anew from the journal under another name and then takes the place of the old one: no
curve is doubled, crosses itself or has a gap, however often a run was killed or resumed.

There is no description of an experiment for the hyperparameter dashboard: TensorBoard would take one run's for all,
and without one it looks at the settings of every run.
"""

import contextlib
import fcntl
import functools
import os
import secrets
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.runs.folder import CONFIG, begun, flat, read_config, read_identity
from ludus.runs.journal import JOURNAL, JournalReader, Position, TakenBackError
from ludus.runs.limits import MOST_BYTES, name_of
from ludus.runs.metrics import OWN_FIELDS, PLACE, metric_of
from ludus.runs.trackers import event_file
from ludus.runs.trackers.threaded import ThreadedTracker
from ludus.runtime import files
from ludus.types import LudusError

TENSORBOARD, VIDEOS = "tensorboard", "videos"
PREFIX, DIGITS = "events.out.tfevents.", 10
"""Event files are called so, and then by when they were begun."""
NAME = "TensorBoard"
MOST_VIDEO_BYTES, GIF_HEADER_BYTES = 32 << 20, 13
SHORT = {"evaluation": "eval_", "metrics": "info/"}
"""What names in these groups need no longer begin with."""


@functools.lru_cache(maxsize=4096)
def tag_of(name: str) -> str:
    """Return where TensorBoard shows a figure of the journal."""
    group = metric_of(name).group
    short = name.removeprefix(SHORT.get(group, "")).replace("_moment_norm/", "/")
    return f"{group}/{short}" if group else name


def values_of(row: dict[str, Any]) -> list[bytes]:
    """Return what a row shows: its numbers and histograms; an evaluation's counts are those of the row before it."""
    left_out = (*OWN_FIELDS, *PLACE) if row.get("kind") == "evaluation" else (*OWN_FIELDS, "steps")
    shown = []
    for name, value in row.items():
        if name in left_out:
            continue
        if isinstance(value, int | float):
            shown.append(event_file.scalar(tag_of(name), value))
        elif isinstance(value, dict):
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError, struct.error):  # it is none
                shown.append(event_file.histogram(tag_of(name), value["low"], value["high"], value["counts"]))
    return shown


def settings_of(config: dict[str, Any]) -> dict[str, bool | int | float | str]:
    """Return the settings of a configuration by their keys; what is null or empty is left out."""
    given = ((key, value) for key, value in flat(config) if value is not None and value != {})
    return {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in given}


class EventWriter:
    """Brings the event file of a run up to date with its journal. There is one writer for a run at any time."""

    def __init__(self, run: Path, config: dict[str, Any] | None = None):
        """Begin with nothing read or written; the configuration is read from the run folder if it is not given."""
        self.run, self.folder, self.config = run, run / TENSORBOARD, config
        self.rows = 0
        """Rows that were written, and how many of them are damaged, of which there is nothing to show."""
        self.damaged = 0
        self._lock: int | None = None
        self._file: int | None = None
        self._reader: JournalReader | None = None
        self._path = self.folder
        self._old: list[Path] = []
        """Files that the one that is written anew will take the place of."""
        self._is_anew = self._was_taken_back = False
        self._opening, self._waiting = b"", b""
        self._size = self._step = 0
        self._started = self._shown = 0.0

    def advance(self) -> bool:
        """Write some of what is new; return whether there may be more. OSError if it cannot be written."""
        try:
            reader = self._reader or self._begin()
            if self._waiting:
                self._write()
            rows = reader.read_rows()
        except TakenBackError:  # the journal was cut: write anew what it holds
            self._let_go()
            self._was_taken_back = True
            return True
        events = [self._event(row) for row in rows] or self._video()
        self.rows += len(rows)
        if events or (self._old and self._opening):
            self._append(events)
        elif not self._is_anew or self._file is None:
            return False
        if self._is_anew and reader.is_at_end:
            self._take_place()
        return True

    def finish(self) -> None:
        """Say that the run has ended well, if it has."""
        if self._file is not None and read_identity(self.run).get("status") == "finished":
            self._append([event_file.event(time.time(), self._step, [event_file.session_end(time.time())])])

    def close(self) -> None:
        """Write down up to where the journal was read, and let go of the file."""
        if self._file is not None and self._reader is not None and not self._waiting and not self._is_anew:
            with contextlib.suppress(OSError):
                self._waiting = event_file.place(*self._reader.position, self._step)
                self._write()
        self._let_go()

    def explain(self, error: Exception) -> str:
        """Say in one line what went wrong."""
        if isinstance(error, BlockingIOError):
            return f"{NAME}: another process is writing its files"
        if isinstance(error, OSError):
            return f"{NAME}: {self.folder} cannot be written ({error.strerror or error})"
        return f"{NAME}: {type(error).__name__}: {error}"

    def _let_go(self) -> None:
        self.damaged += self._reader.damaged if self._reader else 0
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = self._reader = None
        self._waiting = b""

    def _begin(self) -> JournalReader:
        """Find out how far the file is, and go on from there or write another one."""
        identity = read_identity(self.run)
        files.make_folder(self.folder)
        self._lock = self._lock or files.open_folder(self.folder)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        files.sweep(self.folder)
        for path in self._files():
            if path.stat().st_size == 0:
                files.remove(path)
        self._started, self._old = begun(self.run, identity), self._files()
        place = event_file.last_place(self._old[0]) if len(self._old) == 1 and not self._was_taken_back else None
        self._is_anew = place is None
        if place is None:
            self._path = self.folder / f"{files.PARTIAL}{secrets.token_hex(8)}"  # nothing that TensorBoard looks for
            self._shown, self._step, position = 0.0, 0, Position()
            self._opening = event_file.opening(time.time())
        else:
            self._path = self._old.pop()
            self._shown, self._step, position = self._path.stat().st_mtime, place[3], Position(*place[:3])
            self._opening = b""
        self._opening += self._description()
        self._reader = JournalReader(self.run / JOURNAL, position)
        return self._reader

    def _take_place(self) -> None:
        """Give the file that was written anew its name, and empty those before it.

        A TensorBoard that has one of them open would wait there for ever if it were gone; from an empty one it goes on.
        """
        path = self._new_path()
        files.replace(self._path, path)
        old, self._old = self._old, []
        self._path, self._is_anew, self._was_taken_back = path, False, False
        for before in old:
            files.cut(before, 0)

    def _description(self) -> bytes:
        """Return the event of the configuration: a text whenever the run begins or goes on, settings once."""
        with contextlib.suppress(OSError, LudusError, UnicodeDecodeError):
            text = files.read(self.run / CONFIG, MOST_BYTES).decode()
            shown = [event_file.markdown("config/text_summary", f"```yaml\n{text}```")]
            if self._is_anew:
                settings = settings_of(self.config or read_config(self.run))
                shown.append(event_file.session_start(settings, name_of(self.run), self._started))
            return event_file.framed([event_file.event(time.time(), self._step, shown)])
        return b""

    def _event(self, row: dict[str, Any]) -> bytes:
        """Return the event of a row; that of a damaged one shows nothing."""
        self._step = row.get("steps", self._step)
        return event_file.event(self._started + row.get("elapsed_seconds", 0.0), self._step, values_of(row))

    def _video(self) -> list[bytes]:
        """Return the event of the newest video, if it has not been shown."""
        with contextlib.suppress(OSError):
            found = [(path.stat().st_mtime, path) for path in (self.run / VIDEOS).glob("*.gif")]
            seconds, path = max(found, default=(0.0, self.run))
            if seconds > self._shown:
                self._shown = seconds
                data = files.read(path, MOST_VIDEO_BYTES)
                if data.startswith(b"GIF8") and len(data) > GIF_HEADER_BYTES:
                    return [event_file.event(time.time(), self._step, [event_file.gif("video", data)])]
        return []

    def _append(self, events: list[bytes]) -> None:
        self._waiting, self._opening = self._opening + event_file.framed(events), b""
        self._write()

    def _write(self) -> None:
        """Append the records that wait: all of them, or none."""
        if self._file is None:
            flags = os.O_WRONLY | (os.O_CREAT | os.O_EXCL if self._is_anew else 0)
            self._file = files.open_file(self._path, flags)
            self._size = os.lseek(self._file, 0, os.SEEK_END)
        try:
            position = 0
            while position < len(self._waiting):
                position += os.write(self._file, self._waiting[position:])
        except OSError:
            os.lseek(self._file, self._size, os.SEEK_SET)  # the next attempt writes over the part that was written
            raise
        self._size += len(self._waiting)
        self._waiting = b""

    def _files(self) -> list[Path]:
        """Return the event files in the order in which TensorBoard reads them."""
        return sorted(self.folder.glob(f"{PREFIX}*"))

    def _new_path(self) -> Path:
        """Return a name that comes after those that are there, whatever the clock says."""
        after = self._old[-1].name.removeprefix(PREFIX)[:DIGITS] if self._old else ""
        seconds = max(int(time.time()), int(after) + 1 if after.isdecimal() else 0)
        return self.folder / f"{PREFIX}{seconds:0{DIGITS}d}.ludus"


def complete(run: Path, say: Callable[[str], None] = lambda text: None) -> int:
    """Bring the event files of a run that is over up to date; return how many rows were written."""
    writer = EventWriter(run)
    try:
        while writer.advance():
            pass
        writer.finish()
    except BlockingIOError as error:
        raise LudusError(f"{run}: another process is writing its TensorBoard files") from error
    except OSError as error:
        raise LudusError(f"{run / TENSORBOARD}: cannot be written ({error.strerror or error})") from error
    finally:
        writer.close()
    if writer.damaged:
        say(f"TensorBoard: {writer.damaged:,} rows of the journal are damaged and show nothing")
    return writer.rows


def tracker(say: Callable[[str], None]) -> ThreadedTracker:
    """Return what keeps the event files of a run up to date while it is being trained.

    Args:
        say: prints one line for the user; it is called on the thread that trains.
    """
    return ThreadedTracker(NAME, say, lambda folder: EventWriter(folder.path, folder.config))
