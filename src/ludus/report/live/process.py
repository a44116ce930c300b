"""The process that trains a run: how it is found, measured, and asked to stop.

It is found by the lock that it holds on the journal, which /proc lists. To try to take the lock instead would be wrong:
a run that begins at that moment would find its journal in use.
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
"""The least time between two calls of the devices' driver."""
USER_TICKS, SYSTEM_TICKS, START, PAGES = 11, 12, 19, 21
"""Fields of /proc/<pid>/stat, counted from the one after the name."""


class TrainingProcess(NamedTuple):
    """A process: its number, and when it started, because the system gives a number to another process later."""

    pid: int
    started: int
    """Clock ticks between the start of the machine and that of the process."""


def exclusive_locks() -> dict[int, list[int]]:
    """Return which processes hold exclusive locks, by the inode of the locked file; empty without /proc."""
    found: dict[int, list[int]] = {}
    for words in map(str.split, _read_text(PROC / "locks").splitlines()):
        if len(words) >= 6 and words[1] == "FLOCK" and words[3] == "WRITE" and int(words[4]) > 0:
            found.setdefault(int(words[5].rpartition(":")[2]), []).append(int(words[4]))
    return found


def find_training_process(journal: Path, locks: dict[int, list[int]]) -> TrainingProcess | None:
    """Return the process of this machine that trains a run: it has the journal open and holds its lock."""
    try:
        status = journal.stat(follow_symlinks=False)
    except OSError:
        return None
    for pid in locks.get(status.st_ino, ()):
        fields = _stat_fields(pid)
        if fields and pid != os.getpid() and _has_lock(pid, status):
            return TrainingProcess(pid, fields[START])
    return None


def request_stop(journal: Path, expected: TrainingProcess) -> None:
    """Ask the process that trains a run to save and exit; LudusError if another process trains it now, or none."""
    try:
        handle = os.pidfd_open(expected.pid)  # unlike the number, it never means another process
    except OSError as error:
        raise LudusError("the process that trained here is gone") from error
    try:
        if find_training_process(journal, exclusive_locks()) != expected:
            raise LudusError("the process that trained here is gone")
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    except OSError as error:
        raise LudusError(f"the process that trains here cannot be asked ({error.strerror})") from error
    finally:
        os.close(handle)


class Usage(NamedTuple):
    """The resources that a process and its children use."""

    pid: int
    processors: float | None
    """Seconds of processor time for each second; None in the first measurement."""
    memory: int
    """Bytes."""
    device_memory: int | None
    """Bytes; None without a driver that tells."""


class UsageMeter:
    """Measures one process again and again."""

    def __init__(self, process: TrainingProcess):
        """Prepare; `measure` begins."""
        self.process = process
        self._before: tuple[float, int] | None = None

    def measure(self) -> Usage | None:
        """Return what is used now; None once the process is gone."""
        own = _stat_fields(self.process.pid)
        if not own or own[START] != self.process.started:
            return None
        pids = list(_process_tree(self.process.pid))
        family = [fields for pid in pids if (fields := _stat_fields(pid))]
        ticks = sum(fields[USER_TICKS] + fields[SYSTEM_TICKS] for fields in family)
        now, before = time.monotonic(), self._before
        self._before = now, ticks
        share = None
        if before and now > before[0]:
            share = max(0, ticks - before[1]) / os.sysconf("SC_CLK_TCK") / (now - before[0])
        memory = sum(fields[PAGES] for fields in family) * os.sysconf("SC_PAGE_SIZE")
        on_devices = device_memory()
        device = sum(on_devices.get(pid, 0) for pid in pids) if on_devices else None
        return Usage(self.process.pid, share, memory, device)


_last_answer: tuple[float, dict[int, int]] | None = None


def device_memory() -> dict[int, int]:
    """Return the bytes of device memory that each process uses; empty without NVIDIA's driver."""
    global _last_answer
    if _last_answer is None or time.monotonic() - _last_answer[0] > DEVICE_SECONDS:
        _last_answer = time.monotonic(), _ask_driver()
    return _last_answer[1]


def _ask_driver() -> dict[int, int]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    found: dict[int, int] = {}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=3, check=False).stdout
        for pid, _, mebibytes in (line.partition(",") for line in answer.splitlines()):
            if pid.strip().isdecimal() and mebibytes.strip().isdecimal():
                found[int(pid)] = found.get(int(pid), 0) + (int(mebibytes) << 20)
    return found


def _has_lock(pid: int, journal: os.stat_result) -> bool:
    """Return whether a process has exactly this file open and locked."""
    try:
        entries = list(os.scandir(PROC / str(pid) / "fd"))
    except OSError:  # the process is gone, or another user's
        return False
    for entry in entries:
        with contextlib.suppress(OSError):
            status = os.stat(entry.path)
            is_journal = (status.st_dev, status.st_ino) == (journal.st_dev, journal.st_ino)
            if is_journal and _is_locked(_read_text(PROC / str(pid) / "fdinfo" / entry.name)):
                return True
    return False


def _is_locked(fdinfo: str) -> bool:
    lines = fdinfo.splitlines()
    return any(line.startswith("lock:") and {"FLOCK", "WRITE"} <= set(line.split()) for line in lines)


def _process_tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in os.scandir(PROC / str(pid) / "task"):
            for child in _read_text(Path(task.path) / "children").split():
                yield from _process_tree(int(child))


def _stat_fields(pid: int) -> list[int]:
    """Return the numbers of /proc/<pid>/stat after the name (its state as 0); empty once the process has ended."""
    fields = _read_text(PROC / str(pid) / "stat").rpartition(")")[2].split()  # the name before may hold anything
    return [0, *map(int, fields[1:])] if len(fields) > 22 and fields[0] not in "ZX" else []


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
