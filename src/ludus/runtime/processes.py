"""Child processes: every interpreter that ludus starts is started here, so that all of them obey one rule.

A child looks for modules where its parent does and nowhere else: it is given the parent's path explicitly, and `-P`
keeps the folder it happens to run in, where anybody may have left a file called like a library, out of it. It may
follow the names of users' own code that its parent follows (`user_code.py`).

Children that run users' environments are guarded: what they start ends with the run, at the latest (`guard.py`).
"""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ludus.runtime import guard, user_code


def start(
    words: Sequence[str], variables: Mapping[str, str] | None = None, /, *, accelerator: bool = False, **options: Any
) -> subprocess.Popen:
    """Start `python -P` with these words; without `accelerator` it computes on the CPU alone.

    `variables` of the environment are added; `options` are those of `subprocess.Popen`.
    """
    path = os.pathsep.join(part or os.getcwd() for part in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, **user_code.for_children(), **(variables or {})}
    if not accelerator:
        environment["JAX_PLATFORMS"] = "cpu"
    return subprocess.Popen([sys.executable, "-P", *words], env=environment, **options)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Guard:
    """The process that ends what guarded children leave behind, when this one has ended however it may."""

    def __init__(self) -> None:
        """Start it; nobody waits until it is there."""
        self.mark = uuid.uuid4().hex
        # Of a group of its own: whoever ends this process with all of its group does not end the guard.
        self._process = start(
            ["-S", guard.__file__, self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._process.returncode = 0  # nobody will wait for it: it stays until this process has ended
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()
        os.register_at_fork(after_in_child=self._process.stdin.close)  # or a forked child would keep it waiting

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen:
        """Start a child, in a session of its own: its group can be ended, and the terminal's signals are not for it."""
        child = start(words, {guard.MARK: self.mark}, start_new_session=True, **options)
        self._tell("+", child)
        return child

    def end(self, child: subprocess.Popen) -> int:
        """End a child and its group, and return its exit code; it may have ended by itself, and is not waited for yet.

        Until then, nobody else can have its number.
        """
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter where only a dead one is left
                os.killpg(child.pid, signal.SIGKILL)
            self._tell("-", child)
        return child.wait()

    def _tell(self, change: str, child: subprocess.Popen) -> None:
        with contextlib.suppress(OSError):  # somebody has ended the guard; the run goes on
            os.write(self._pipe, f"{change}{child.pid}\n".encode())


@lru_cache
def guard_of(process: int) -> Guard:
    """Return the guard of this process, which is given so that one that was forked gets its own."""
    return Guard()
