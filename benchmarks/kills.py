"""Kill training (SIGKILL) at random moments, resume it, and compare with a run left in peace. Prints one JSON object.

Example: `python benchmarks/kills.py 1000 --log kills.jsonl`. Every kill is a line of the log; a run that was stopped
goes on where it was. Kills come in chains of up to five, each in the resume after the last. At the end of a chain
parameters, optimiser, replay, environments, random state, journal and policies must be those of the run in peace, bit
by bit, and no process may be left.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trials import go


def trials(start: int, stop: int) -> Iterator[dict[str, Any]]:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "ludus-kills-xla"))
    from kill_runs import kills

    with tempfile.TemporaryDirectory() as scratch:
        yield from kills(start, stop, Path(scratch))


if __name__ == "__main__":
    go(__doc__, 1000, trials)
