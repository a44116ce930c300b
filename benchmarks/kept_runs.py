"""The runs of a benchmark in a file of JSON lines, so that one that was cut goes on where it was."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def parser_of(about: str | None, results: str, tasks: Iterable[str]) -> argparse.ArgumentParser:
    """Return the command line that such benchmarks have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path(results))
    parser.add_argument("--only", nargs="*", choices=tasks, metavar="TASK", help=f"of {', '.join(tasks)}")
    parser.add_argument("--no-runs", action="store_true", help="run nothing: print what is finished")
    parser.add_argument("--table", action="store_true", help="print a Markdown table in place of JSON")
    parser.add_argument("--set", nargs="*", default=[], help="more key=value words")
    return parser


def kept_runs(
    given: argparse.Namespace, tasks: Iterable[str], train: Callable[[str, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Train every task with every seed that the file of results has not yet, and return all that it has then."""
    file: Path = given.results
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(row["task"], row["seed"]) for row in done}
    for task in [] if given.no_runs else given.only or tasks:
        for seed in (seed for seed in range(given.seeds) if (task, seed) not in known):
            done.append({"task": task, "seed": seed, **train(task, seed)})
            with file.open("a") as lines:
                lines.write(json.dumps(done[-1]) + "\n")
            print(json.dumps(done[-1]), file=sys.stderr, flush=True)
    return done
