"""End a process at each file operation of saving, in scenarios nobody has thought of. Prints one JSON object.

Example: `python benchmarks/crash_points.py 5000`. Every crash point is a line of the log; a run
that was stopped goes on where it was. After each, the old or the new checkpoint must be whole, the next save must
work, and it must leave nothing behind.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trials import go


def trials(start: int, stop: int) -> Iterator[dict[str, Any]]:
    from crash_points import points, random_scenario

    number = seed = 0
    with tempfile.TemporaryDirectory() as scratch:
        while number < stop:
            for row in points(random_scenario(seed), Path(scratch)):
                number += 1
                if number > start:
                    yield row
                if number == stop:
                    return
            seed += 1


if __name__ == "__main__":
    go(__doc__, 5000, trials, "event")
