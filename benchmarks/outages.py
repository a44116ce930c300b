"""Let MLflow's server refuse, fail, hang, be slow, lose its answers and come back while a run trains.

Example: `python benchmarks/outages.py 100`. Every trial trains for 12 seconds against a real server on loopback behind
a proxy that misbehaves, and is a line of the log; a script that was stopped goes on where it was. Training must not
stop, its thread may spend at most 1% of its time in the tracker, and afterwards (`ludus track`) the server must have
every row of the journal once. Prints one JSON object.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trials import go


def trials(start: int, stop: int) -> Iterator[dict[str, Any]]:
    os.environ["JAX_PLATFORMS"] = "cpu"
    from mlflow_server import Reader, mlflow_server

    from outages import outage

    with tempfile.TemporaryDirectory() as scratch, mlflow_server(Path(scratch)) as server:
        reader = Reader(server)
        for seed in range(start, stop):
            yield outage(seed, server, reader, Path(scratch))


if __name__ == "__main__":
    go(__doc__, 100, trials)
