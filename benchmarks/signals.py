"""Send SIGTERM, SIGINT, SIGUSR1 and SIGHUP to `ludus train` at random moments. Prints one JSON object.

Example: `python benchmarks/signals.py 300`. Every trial is a line of the log; a run that was stopped goes on where it
was. After one signal the run must be saved, end with the signal's exit code within 30 seconds, and be resumed to the
very state and journal of a run in peace; every fourth trial sends a second signal, inside a compiled call, while the
disk hangs or anywhere, which must end it within 2 seconds. No process may be left.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trials import go


def trials(start: int, stop: int) -> Iterator[dict[str, Any]]:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "ludus-signals-xla"))
    from signal_runs import AT_ONCE_SECONDS, signals

    with tempfile.TemporaryDirectory() as scratch:
        for row in signals(start, stop, Path(scratch)):
            late = row["kind"] == "twice" and row.get("seconds", 0) > AT_ONCE_SECONDS
            yield {**row, "late": late, "failure": row["failure"] or (late and "later than 2 s") or None}


if __name__ == "__main__":
    go(__doc__, 300, trials)
