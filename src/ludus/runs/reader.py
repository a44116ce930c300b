"""One run as a reader sees it: what it was, how it stands, how well it did."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ludus.runs.folder import CONFIG, IDENTITY, is_training, read_config, read_identity
from ludus.runs.journal import JOURNAL, SEQ, JournalReader, TakenBackError, is_intact, last_lines
from ludus.runs.limits import reason
from ludus.runs.strict_json import strict
from ludus.types import LudusError

DEPTH = 4
"""Levels below the runs folder at which a run may lie: sweeps have a folder of their own."""
EVALUATED = re.compile(rb'"eval_return_mean": ?([-+.\deE]{1,40})[,}]')
RETURNED = re.compile(rb'"episode_return_mean": ?([-+.\deE]{1,40})[,}]')
STEPPED = re.compile(rb'"steps": ?(\d{1,18})[,}]')
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
        """Its status: running, finished, interrupted, failed or, if its process is gone without a word, killed."""
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
    damaged_rows: int = 0
    """Rows of the journal that have changed since they were written."""

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
        returns = Returns(path / JOURNAL)
        while returns.read():
            pass
        if not returns.is_a_journal:
            raise LudusError(f"{path / JOURNAL}: has no row that can be read")
    except LudusError as error:
        return Row(name, None, None, None, None, None, "damaged", str(error))
    except Exception as error:  # whatever is wrong with it, the others are shown all the same
        problem = f"{path}: cannot be shown ({type(error).__name__}: {reason(error)})"
        return Row(name, None, None, None, None, None, "damaged", problem)
    best, best_of = returns.best or (None, None)
    steps, status = returns.steps or 0, run.status
    return Row(name, run.environment, run.algorithm, steps, best, best_of, status, None, returns.damaged)


class Returns:
    """Steps and returns of a journal, as far as it was read: from its text, so that a list of runs is there soon."""

    def __init__(self, path: Path):
        """Read nothing yet."""
        self.path = path
        self._begin()

    def _begin(self) -> None:
        self._reader = JournalReader(self.path)
        self.steps: int | None = None
        self.damaged = 0
        """Rows whose checksum does not fit, of which nothing is told."""
        self.was_whole = False
        """Whether all that there was has once been read."""
        self.evaluated: list[float] = []
        self.trained: list[float] = []

    @property
    def is_a_journal(self) -> bool:
        """Whether there is a row in what was read, or at least the beginning of one."""
        begun = self._reader.unfinished[: len(SEQ)]
        return self.steps is not None or (not self._reader.position.rows and SEQ.startswith(begun))

    def look(self) -> None:
        """Find the latest steps near the end of the journal, before all of it is read."""
        self._take_steps(last_lines(self.path))

    def read(self) -> bool:
        """Read a block more; return whether there may be another one."""
        try:
            lines = self._reader.read_lines()
        except TakenBackError:
            self._begin()
            return True
        whole = list(filter(is_intact, lines))
        self.damaged += len(lines) - len(whole)
        text = b"\n".join(whole)
        self._take_steps(whole)
        self.evaluated += finite_numbers(EVALUATED.findall(text))
        self.trained += finite_numbers(RETURNED.findall(text))
        self.was_whole |= self._reader.is_at_end
        return not self._reader.is_at_end

    def _take_steps(self, lines: Sequence[bytes]) -> None:
        """Take the steps of the last line that tells them."""
        for line in reversed(lines):
            if is_intact(line) and (found := STEPPED.search(line)):
                self.steps = int(found[1])
                return

    @property
    def best(self) -> tuple[float, str] | None:
        """The best mean return, and whether it is of an evaluation or, without any, of an iteration of training."""
        made, of = (self.evaluated, "evaluation") if self.evaluated else (self.trained, "training")
        return (max(made), of) if made else None


def finite_numbers(texts: list[bytes]) -> list[float]:
    """Return those texts that are numbers, as numbers."""
    made = []
    for text in texts:
        try:
            made.append(float(text))
        except ValueError:
            continue
    return [value for value in made if math.isfinite(value)]
