"""One run as a reader sees it: what it was, how it stands, how well it did."""

import math
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ludus.report.journal import Growing
from ludus.report.strict import strict
from ludus.tracking.reading import reason
from ludus.tracking.run_folder import CONFIG, IDENTITY, JOURNAL, is_training, read_config, read_identity
from ludus.types import LudusError

DEPTH = 4
"""How deep below the runs folder a run may lie: sweeps have a folder of their own."""
EVALUATED = re.compile(rb'"eval_return_mean": ?([-+.\deE]{1,40})[,}]')
RETURNED = re.compile(rb'"episode_return_mean": ?([-+.\deE]{1,40})[,}]')
STEPPED = re.compile(rb'"steps": ?(\d{1,18})[,}]')
TAIL = 1 << 16
"""Bytes at a journal's end among which its last row is looked for."""
MOST_LETTERS = 200
"""Of an environment or algorithm."""


class Run:
    """A run folder. `config` and `identity` are read at once: LudusError if it is none."""

    def __init__(self, path: str | Path):
        """Read what the run is."""
        self.path = Path(path)
        self.config = read_config(path)
        self.identity = read_identity(path)

    @property
    def environment(self) -> str:
        """The environment's id, its backend in front."""
        return str(self.config.get("env"))[:MOST_LETTERS]

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        algorithm = self.config.get("algorithm")
        return str(algorithm.get("name") if isinstance(algorithm, dict) else algorithm)[:MOST_LETTERS]

    @property
    def seed(self) -> Any:
        """The seed of the whole run."""
        return self.config.get("seed")

    @cached_property
    def status(self) -> str:
        """How it stands: running, finished, interrupted, failed or, if its process is gone without a word, killed."""
        status = str(self.identity.get("status", "unknown"))
        return "killed" if status == "running" and not is_training(self.path) else status


@dataclass(frozen=True)
class Row:
    """One line of the list of runs."""

    name: str
    environment: str | None
    algorithm: str | None
    steps: int | None
    best_return: float | None
    best_return_of: str | None
    """"evaluation" or, if there was none, "training": the mean of one iteration's episodes."""
    status: str
    problem: str | None
    """Why the folder cannot be read, if it is damaged."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return strict(asdict(self))


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders at or below a folder, the one that was written last first."""
    if not folder.is_dir():
        raise LudusError(f"{folder}: is not a folder; give the one that holds your runs")
    return sorted(_find(folder, DEPTH), key=_written, reverse=True)


def list_runs(folder: Path) -> list[Row]:
    """Return a row for each run at or below a folder, the one that was written last first."""
    return [_row(run, run.relative_to(folder).as_posix() if run != folder else run.name) for run in find_runs(folder)]


def _find(folder: Path, depth: int) -> Iterator[Path]:
    if any(os.path.lexists(folder / name) for name in (CONFIG, IDENTITY, JOURNAL)):  # whatever they are
        yield folder
    elif depth:
        try:
            inner = [entry for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
        except OSError:  # a folder that may not be read holds no run that could be shown
            return
        for entry in inner:
            yield from _find(Path(entry.path), depth - 1)


def _written(run: Path) -> float:
    times = []
    for name in (IDENTITY, JOURNAL, CONFIG):
        try:
            times.append((run / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def _row(path: Path, name: str) -> Row:
    try:
        run = Run(path)
        steps, best, best_of = _reached(path / JOURNAL)
    except LudusError as error:
        return Row(name, None, None, None, None, None, "damaged", str(error))
    except Exception as error:  # whatever is wrong with it, the others are shown all the same
        problem = f"{path}: cannot be shown ({type(error).__name__}: {reason(error)})"
        return Row(name, None, None, None, None, None, "damaged", problem)
    return Row(name, run.environment, run.algorithm, steps, best, best_of, run.status, None)


def _reached(path: Path) -> tuple[int, float | None, str | None]:
    """Return the steps made and the best return, from the text alone: a list of runs reads no million rows."""
    growing, is_read, has_lines = Growing(path), False, False
    steps: int | None = None
    best: dict[str, float] = {}
    try:
        while not is_read:
            piece = growing.read()
            is_read = piece.is_last
            has_lines |= bool(piece.text or piece.too_long)
            if found := STEPPED.findall(piece.text, max(0, len(piece.text) - TAIL)) or STEPPED.findall(piece.text):
                steps = int(found[-1])
            for pattern, of in ((EVALUATED, "evaluation"), (RETURNED, "training")):
                if returns := finite_numbers(pattern.findall(piece.text)):
                    best[of] = max(best.get(of, returns[0]), *returns)
    except OSError as error:
        raise LudusError(f"{path}: cannot be read ({reason(error)})") from error
    if steps is None and (has_lines or not b'{"seq": '.startswith(growing.rest[:8])):
        raise LudusError(f"{path}: has no row that can be read")
    of = next((of for of in ("evaluation", "training") if of in best), None)
    return steps or 0, best[of] if of else None, of


def finite_numbers(texts: list[bytes]) -> list[float]:
    """Return those texts that are numbers, as numbers."""
    made = []
    for text in texts:
        try:
            made.append(float(text))
        except ValueError:
            continue
    return [value for value in made if math.isfinite(value)]
