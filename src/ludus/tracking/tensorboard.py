"""A run in TensorBoard: a thread follows the journal and writes each of its rows as one event into RUN/tensorboard.

Every event knows the row that it was made from. When a run goes on, events of rows that the journal no longer has, or
has otherwise, are cut off, and a new file begins with the first row that is missing: no curve is doubled, crosses
itself or has a gap, however often a run was killed or resumed.

There is no description of an experiment for the hyperparameter dashboard: TensorBoard would take one run's for all,
and without one it looks at the settings of every run.
"""

import contextlib
import fcntl
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus import files
from ludus.tracking import event_file
from ludus.tracking.event_file import Mark
from ludus.tracking.follower import Follower, TakenBackError
from ludus.tracking.reading import MOST_BYTES, name_of
from ludus.tracking.run_folder import CONFIG, RunFolder, begun, read_config, read_identity
from ludus.types import LudusError

FOLDER, VIDEOS = "tensorboard", "videos"
PREFIX, DIGITS = "events.out.tfevents.", 10
"""Event files are called so, and then by when they were begun."""
LAST_SECONDS = 10.0
"""The end of a run waits so long for the last rows."""
MOST_VIDEO_BYTES, GIF_HEADER_BYTES = 32 << 20, 13
OWN_FIELDS = ("seq", "kind", "steps")
"""Parts of a row that an event has fields of its own for, or needs none."""
RUNTIME = ("iteration", "episodes", "updates", "elapsed_seconds", "steps_per_second")
OWN_GROUPS = ("_norm/", "histogram/")
"""Names that hold these are grouped already."""


def tag_of(name: str) -> str:
    """Return where TensorBoard shows a figure of the journal."""
    if name.startswith("eval_"):
        return f"evaluation/{name.removeprefix('eval_')}"
    if name.startswith("info/"):
        return f"metrics/{name.removeprefix('info/')}"
    if name in RUNTIME or name.startswith("seconds/"):
        return f"runtime/{name}"
    if name.startswith("adam_"):  # groups are shown in the order of their names, and this is not what one looks for
        return f"moment_norm/{name.replace('_moment_norm/', '/')}"
    if any(part in name for part in OWN_GROUPS):
        return name
    return f"{'rollout' if name.startswith(('episode_', 'success', 'reward_')) else 'train'}/{name}"


def values_of(row: dict[str, Any]) -> list[bytes]:
    """Return what a row shows: its numbers and histograms; an evaluation's counts are those of the row before it."""
    left_out = (*OWN_FIELDS, *RUNTIME) if row.get("kind") == "evaluation" else OWN_FIELDS
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


class EventWriter:
    """Brings the event files of a run up to date with its journal. There is one for a run at any time."""

    def __init__(self, run: Path, config: dict[str, Any] | None = None):
        """Nothing is read or written yet; the configuration is read from the run folder if it is not given."""
        self.run, self.folder, self.config = run, run / FOLDER, config
        self.rows = 0
        """Rows that were written, and how many of them are damaged, of which there is nothing to show."""
        self.damaged = 0
        self._lock: int | None = None
        self._file: int | None = None
        self._follower: Follower | None = None
        self._opening, self._waiting = b"", b""
        self._size = self._step = 0
        self._started = self._shown = 0.0

    def advance(self) -> bool:
        """Write some of what is new; return whether there may be more. OSError if it cannot be written."""
        try:
            follower = self._follower or self._begin()
            if self._waiting:
                self._write()
            if lines := follower.read_lines():
                rows = range(follower.rows - len(lines), follower.rows)
                self._append(b"".join(map(self._event, lines, rows)))
                self.rows += len(lines)
            elif (video := self._video()) is None:
                return False
            else:
                self._append(event_file.event(time.time(), self._step, [event_file.gif("video", video)]))
        except TakenBackError:  # the journal was cut: look again what it holds
            self.close()
        return True

    def finish(self) -> None:
        """Say that the run has ended well, if it has."""
        if self._file is not None and read_identity(self.run).get("status") == "finished":
            self._append(event_file.event(time.time(), self._step, [event_file.session_end(time.time())]))

    def close(self) -> None:
        """Let go of the files; the next rows go into a new one."""
        self.damaged += self._follower.damaged if self._follower else 0
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = self._follower = None
        self._waiting = b""

    def _begin(self) -> Follower:
        """Find out how far the files are, cut off what is not the journal's, and go on from there."""
        identity = read_identity(self.run)
        files.make_folder(self.folder)
        self._lock = self._lock or files.open_folder(self.folder)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._started = begun(self.run, identity)
        old = self._files()
        self._shown = old[-1].stat().st_mtime if old else 0.0
        follower = Follower(self.run)
        last = _keep_matching(old, follower)
        self._step = Follower(self.run).row(last, 0).get("steps", 0) if last else 0
        self._opening = event_file.opening(time.time(), self._step + 1 if last else 0)
        self._opening += self._description(is_first=not any(path.stat().st_size for path in self._files()))
        self._follower = follower
        return follower

    def _description(self, is_first: bool) -> bytes:
        """Return the event of the configuration: a text whenever the run begins or goes on, settings once."""
        with contextlib.suppress(OSError, LudusError, UnicodeDecodeError):
            text = files.read(self.run / CONFIG, MOST_BYTES).decode()
            shown = [event_file.markdown("config/text_summary", f"```yaml\n{text}```")]
            if is_first:
                settings = event_file.flatten(self.config or read_config(self.run))
                shown.append(event_file.session_start(settings, name_of(self.run), self._started))
            return event_file.event(time.time(), self._step, shown)
        return b""

    def _event(self, line: bytes, number: int) -> bytes:
        """Return the event of a row; that of a damaged one shows nothing, and keeps its place."""
        assert self._follower is not None
        row = self._follower.row(line, number)
        self._step = row.get("steps", self._step)
        seconds = self._started + row.get("elapsed_seconds", 0.0)
        return event_file.event(seconds, self._step, values_of(row), _mark(number, line))

    def _video(self) -> bytes | None:
        """Return the newest video, if it has not been shown."""
        with contextlib.suppress(OSError):
            found = [(path.stat().st_mtime, path) for path in (self.run / VIDEOS).glob("*.gif")]
            seconds, path = max(found, default=(0.0, self.run))
            if seconds > self._shown:
                self._shown = seconds
                data = files.read(path, MOST_VIDEO_BYTES)
                return data if data.startswith(b"GIF8") and len(data) > GIF_HEADER_BYTES else None
        return None

    def _append(self, records: bytes) -> None:
        self._waiting, self._opening = self._opening + records, b""
        self._write()

    def _write(self) -> None:
        """Append the records that wait: all of them, or none."""
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._file, self._size = files.open_file(self._new_path(), flags), 0
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
        old = self._files()
        after = old[-1].name.removeprefix(PREFIX)[:DIGITS] if old else ""
        seconds = max(int(time.time()), int(after) if after.isdecimal() else 0)
        return self.folder / f"{PREFIX}{seconds:0{DIGITS}d}.{len(old):06d}.ludus"


def _keep_matching(old: list[Path], follower: Follower) -> bytes:
    """Cut off all events from the first on that is not of the journal's next row; return the last line that matched."""
    lines: list[bytes] = []  # the last one is the next
    last, is_matching = b"", True
    for path in old:
        if not is_matching:
            files.remove(path)
            continue
        stop = 0
        for record in event_file.records(path):
            if record.mark is not None:
                lines = lines or follower.read_lines()[::-1]
                row = follower.rows - len(lines)
                if is_matching := bool(lines) and record.mark == _mark(row, lines[-1]):
                    last = lines.pop()
                else:
                    break
            stop = record.stop
        if stop < path.stat().st_size:
            files.cut(path, stop)
    follower.go_back(lines)
    return last


def _mark(row: int, line: bytes) -> Mark:
    return Mark(row, zlib.crc32(line))


def complete(run: Path, say: Callable[[str], None] = lambda text: None) -> int:
    """Bring the event files of a run that is over up to date; return how many rows were missing."""
    writer = EventWriter(run)
    try:
        while writer.advance():
            pass
        writer.finish()
    except BlockingIOError as error:
        raise LudusError(f"{run}: another process is writing its TensorBoard files") from error
    except OSError as error:
        raise LudusError(f"{run / FOLDER}: cannot be written ({error.strerror or error})") from error
    finally:
        writer.close()
    if writer.damaged:
        say(f"TensorBoard: {writer.damaged:,} rows of the journal are damaged and show nothing")
    return writer.rows


class TensorBoardTracker:
    """Keeps the event files of a run up to date while it is being trained, on a thread of its own."""

    def __init__(self, say: Callable[[str], None]):
        """`say` prints one line for the user; it is called on the thread that trains."""
        self._say = say
        self._thread: threading.Thread | None = None
        self._news, self._is_over = threading.Event(), False
        self._trouble: str | None = None
        self._has_complained = False

    def begin(self, folder: RunFolder) -> None:
        """Start the thread, which does nothing before there are rows: until then the processor is busy compiling."""
        self._news, self._is_over, self._trouble = threading.Event(), False, None
        self._thread = threading.Thread(target=self._follow, args=(folder,), daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread."""
        self._news.set()
        if self._trouble and not self._has_complained:
            self._complain("training goes on, the journal has it all")

    def end(self) -> None:
        """Wait for the last rows."""
        if self._thread is None:
            return
        self._is_over = True
        self._news.set()
        self._thread.join(LAST_SECONDS)
        if self._thread.is_alive():
            self._trouble = "TensorBoard: the last rows take too long"
        if self._trouble:
            self._complain("ludus track RUN writes the rest later")

    def _complain(self, what_now: str) -> None:
        self._has_complained = True
        self._say(f"{self._trouble}; {what_now}")

    def _follow(self, folder: RunFolder) -> None:
        writer = EventWriter(folder.path, folder.config)
        try:
            is_over = False
            while not is_over:
                self._news.wait()
                is_over = self._is_over
                self._news.clear()
                self._trouble = _attempt(writer, is_over)
        finally:
            writer.close()


def _attempt(writer: EventWriter, is_over: bool) -> str | None:
    """Write what is new; return what went wrong, if something did."""
    try:
        while writer.advance():
            pass
        if is_over:
            writer.finish()
    except BlockingIOError:
        return "TensorBoard: another process is writing its files"
    except OSError as error:
        return f"TensorBoard: {writer.folder} cannot be written ({error.strerror or error})"
    except Exception as error:  # whatever it is, it is not worth a run
        return f"TensorBoard: {type(error).__name__}: {error}"
    return None
