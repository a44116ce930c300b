"""What the scripts that repeat something until it fails share: a log of finished trials, and a sum of them."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

Trials = Callable[[int, int], Iterator[dict[str, Any]]]
"""Given the number of the first and the one after the last, yields a row for each, with its `failure` or None."""


def go(description: str | None, default: int, trials: Trials, kinds: str = "kind") -> None:
    """Make the trials that the log does not hold yet; print one JSON object."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("count", type=int, nargs="?", default=default)
    parser.add_argument("--log", type=Path, default=Path(f"{Path(sys.argv[0]).stem}.jsonl"))
    parser.add_argument("--max-seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    deadline = time.monotonic() + given.max_seconds
    done = [json.loads(line) for line in given.log.read_text().splitlines()] if given.log.exists() else []
    given.log.parent.mkdir(parents=True, exist_ok=True)
    with given.log.open("a") as log:
        for row in trials(len(done), given.count) if len(done) < given.count else ():
            done.append(row)
            log.write(json.dumps(row) + "\n")
            log.flush()
            if time.monotonic() > deadline:
                break
    failures = [row for row in done if row["failure"]]
    bound = round(3 / len(done), 6) if done and not failures else None
    summary = {
        "n": len(done),
        "failures": len(failures),
        "failure_rate_below_with_95_percent": bound,
        "kinds": dict(sorted(Counter(str(row.get(kinds)) for row in done).items())),
        "first_failures": failures[:3],
    }
    print(json.dumps(summary))
