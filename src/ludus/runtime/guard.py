"""The last to leave: a small process that ends what environment workers have started once their run is over.

Started by `processes.py` as a file, with the standard library alone. It is told on its standard input of each process
group that begins (`+ID`) and ends (`-ID`); when that closes, its parent has ended, however that happened. Then it ends
every group that is left and, where the system tells the environment variables of processes (Linux), every process that
bears the run's mark: those that have left their group too.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "LUDUS_GUARDED"
"""The environment variable by which all that workers have started is known."""
ROUNDS, PAUSE_SECONDS = 20, 0.05
"""A process may start another one while it is being ended: so often it is looked again."""


def groups_left(told: Iterable[str]) -> set[int]:
    """Listen until there is nothing more to hear; return the groups that have begun and not ended."""
    groups: set[int] = set()
    for line in told:
        number = int(line[1:])
        (groups.add if line[0] == "+" else groups.discard)(number)
    return groups


def marked(mark: str) -> list[int]:
    """Return the processes that bear a mark, as far as the system tells."""
    entry, found = f"{MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if entry in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def main(mark: str) -> None:
    """Wait for the end of the parent, and end what it has left."""
    for group in groups_left(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(ROUNDS):
        if not (left := marked(mark)):
            break
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
