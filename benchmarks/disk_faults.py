"""Let the disk fail (full, read-only, over quota, broken) at any file operation of a run. Prints one JSON object.

Example: `python benchmarks/disk_faults.py 200`. Every fault is a line of the log; a run that was stopped goes on where
it was. The run must go on or stop in one line, as configured; its checkpoints must be whole; and when the disk works
again it must come to the state and journal of a run whose disk never failed.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trials import go


def trials(start: int, stop: int) -> Iterator[dict[str, Any]]:
    os.environ["JAX_PLATFORMS"] = "cpu"
    from disk_faults import Reference, fault

    with tempfile.TemporaryDirectory() as scratch:
        reference = Reference(Path(scratch))
        for seed in range(start, stop):
            yield fault(seed, reference, Path(scratch))


if __name__ == "__main__":
    go(__doc__, 200, trials)
