"""The process that trains a run: found by the lock it holds on the journal, measured through /proc, asked to stop.

Nothing here takes a lock to look at one: a run that begins at that moment would find its journal taken.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ludus.types import LudusError

PROC = Path("/proc")
DEVICE_SECONDS = 5.0
"""The driver of the devices is asked at most so often."""
USER_TICKS, SYSTEM_TICKS, START, PAGES = 11, 12, 19, 21
"""Fields of /proc/<pid>/stat, counted from the one after the name."""


class Holder(NamedTuple):
    """A process; its number alone may come to mean another one."""

    pid: int
    started: int
    """Clock ticks between the start of the machine and that of the process."""


def locks() -> dict[int, list[int]]:
    """Return which processes hold exclusive locks, by the inode that is locked; none where the system tells none."""
    found: dict[int, list[int]] = {}
    for words in map(str.split, _text(PROC / "locks").splitlines()):
        if len(words) >= 6 and words[1] == "FLOCK" and words[3] == "WRITE" and int(words[4]) > 0:
            found.setdefault(int(words[5].rpartition(":")[2]), []).append(int(words[4]))
    return found


def holder_of(journal: Path, held: dict[int, list[int]]) -> Holder | None:
    """Return the process of this machine that trains a run: it has the journal open and holds its lock."""
    try:
        status = journal.stat(follow_symlinks=False)
    except OSError:
        return None
    for pid in held.get(status.st_ino, ()):
        facts = _stat(pid)
        if facts and pid != os.getpid() and _holds(pid, status):
            return Holder(pid, facts[START])
    return None


def stop(journal: Path, expected: Holder) -> None:
    """Ask the process that trains a run to save and leave; LudusError if it is not that one any more."""
    try:
        handle = os.pidfd_open(expected.pid)  # from here on the number cannot come to mean another process
    except OSError as error:
        raise LudusError("the process that trained here is gone") from error
    try:
        if holder_of(journal, locks()) != expected:
            raise LudusError("the process that trained here is gone")
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    except OSError as error:
        raise LudusError(f"the process that trains here cannot be asked ({error.strerror})") from error
    finally:
        os.close(handle)


class Use(NamedTuple):
    """What a process and its children use."""

    processors: float | None
    """Seconds of processor time for each second; None at first sight."""
    memory: int
    device_memory: int | None
    """Bytes; None where no driver tells."""


class Meter:
    """Measures one process again and again."""

    def __init__(self, holder: Holder):
        """Measure nothing yet."""
        self.holder = holder
        self._before: tuple[float, int] | None = None

    def measure(self) -> Use | None:
        """Return what is used now; None once the process is gone."""
        facts = _stat(self.holder.pid)
        if not facts or facts[START] != self.holder.started:
            return None
        family = list(_family(self.holder.pid))
        ticks = sum(fields[USER_TICKS] + fields[SYSTEM_TICKS] for pid in family if (fields := _stat(pid)))
        now, before = time.monotonic(), self._before
        self._before = now, ticks
        share = None
        if before and now > before[0]:
            share = max(0, ticks - before[1]) / os.sysconf("SC_CLK_TCK") / (now - before[0])
        memory = sum(fields[PAGES] for pid in family if (fields := _stat(pid))) * os.sysconf("SC_PAGE_SIZE")
        on_devices = device_memory()
        return Use(share, memory, sum(on_devices.get(pid, 0) for pid in family) if on_devices else None)


_asked: tuple[float, dict[int, int]] | None = None


def device_memory() -> dict[int, int]:
    """Return the bytes of device memory that processes use; nothing without NVIDIA's driver."""
    global _asked
    if _asked is None or time.monotonic() - _asked[0] > DEVICE_SECONDS:
        _asked = time.monotonic(), _ask_driver()
    return _asked[1]


def _ask_driver() -> dict[int, int]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    found: dict[int, int] = {}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(command, capture_output=True, text=True, timeout=3, check=False).stdout
        for pid, _, mebibytes in (line.partition(",") for line in said.splitlines()):
            if pid.strip().isdecimal() and mebibytes.strip().isdecimal():
                found[int(pid)] = found.get(int(pid), 0) + (int(mebibytes) << 20)
    return found


def _holds(pid: int, journal: os.stat_result) -> bool:
    """Tell whether a process has this very file open and locked."""
    try:
        entries = list(os.scandir(PROC / str(pid) / "fd"))
    except OSError:  # it is gone, or somebody else's
        return False
    for entry in entries:
        with contextlib.suppress(OSError):
            there = os.stat(entry.path)
            if (there.st_dev, there.st_ino) == (journal.st_dev, journal.st_ino):
                told = _text(PROC / str(pid) / "fdinfo" / entry.name)
                if any(
                    line.startswith("lock:") and {"FLOCK", "WRITE"} <= set(line.split()) for line in told.splitlines()
                ):
                    return True
    return False


def _family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in os.scandir(PROC / str(pid) / "task"):
            for child in _text(Path(task.path) / "children").split():
                yield from _family(int(child))


def _stat(pid: int) -> list[int]:
    """Return the numbers of /proc/<pid>/stat after the name (its state as 0); nothing once the process has ended."""
    fields = _text(PROC / str(pid) / "stat").rpartition(")")[2].split()  # the name before may hold anything
    return [0, *map(int, fields[1:])] if len(fields) > 22 and fields[0] not in "ZX" else []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
