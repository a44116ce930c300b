"""The summary of one run: its folder, its journal as columns, its score and its target."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus.runs.reader import Run
from ludus.runs.statistics import mean_interval
from ludus.runs.table import Table, Tables, read
from ludus.types import LudusError

RECENT = 100
"""Episodes over which the score of a run without evaluations is taken."""
TARGETS = {
    "Acrobot-v1": -100.0,
    "BipedalWalker-v3": 300.0,
    "BipedalWalkerHardcore-v3": 300.0,
    "CartPole-v0": 195.0,
    "CartPole-v1": 475.0,
    "LunarLander-v3": 200.0,
    "LunarLanderContinuous-v3": 200.0,
    "MountainCar-v0": -110.0,
    "MountainCarContinuous-v0": 90.0,
    "Pendulum-v1": -200.0,
}
"""Mean returns from which environments count as solved: what `return_threshold` says of them, for runs that do not.

The configuration of a run goes before.
"""
TARGET_KEYS = (("convergence", "target_return"), ("success_return",))
"""Keys under which the configuration of a run may name its target."""


class Score(NamedTuple):
    """A mean return with its 95% interval, of so many episodes, and what they were."""

    mean: float
    low: float
    high: float
    episodes: int
    of: str


class Episodes(NamedTuple):
    """Returns and lengths, in order: of every episode if the journal has them, else means of the iterations."""

    number: np.ndarray
    """How many episodes had ended by then."""
    steps: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray
    each: bool
    """Whether every single episode is there."""

    @property
    def known(self) -> "Episodes":
        """Those whose return is known."""
        rows = np.isfinite(self.returns)
        return self._replace(
            number=self.number[rows], steps=self.steps[rows], returns=self.returns[rows], lengths=self.lengths[rows]
        )

    @property
    def unit(self) -> str:
        """The name of one of them."""
        return "episode" if self.each else "iteration"


@dataclass
class Story:
    """One run, read once."""

    run: Run

    @classmethod
    def read(cls, path: str | Path) -> "Story":
        """Read a run folder; LudusError if it is none."""
        return cls(Run(path))

    @cached_property
    def journal(self) -> Tables:
        """The journal."""
        return read(self.run.path)

    @property
    def train(self) -> Table:
        """Its iterations."""
        return self.journal.train

    @property
    def evaluation(self) -> Table:
        """Its evaluations."""
        return self.journal.evaluation

    @property
    def damage(self) -> str | None:
        """Return what to say of lines of the journal that could not be read, if there are any."""
        count = self.journal.damaged
        lines, were = ("line", "was") if count == 1 else ("lines", "were")
        return f"{count:,} damaged {lines} of the journal {were} left out." if count else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been journalled yet."""
        return self.train.rows + self.evaluation.rows == 0

    @cached_property
    def target(self) -> float | None:
        """The return from which on the task is solved, if anyone knows one."""
        for keys in TARGET_KEYS:
            value: Any = self.run.config
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        return TARGETS.get(self.run.environment.rpartition(":")[2])

    @cached_property
    def evaluations(self) -> dict[str, np.ndarray]:
        """Evaluations: steps, mean, low and high (the 95% interval of the mean), episodes."""
        table = self.evaluation
        mean = table.column("eval_return_mean")
        known = np.isfinite(mean)
        mean, episodes = mean[known], np.nan_to_num(table.column("eval_episodes")[known], nan=1.0)
        deviation = np.nan_to_num(table.column("eval_return_std")[known])
        low, high = mean_interval(mean, deviation, episodes)
        steps = table.column("steps")[known]
        return {"steps": steps, "mean": mean, "low": low, "high": high, "episodes": episodes}

    @cached_property
    def episodes(self) -> Episodes:
        """The episodes of training."""
        train, numbers = self.train, self.train.column("episodes")
        listed = dict(train.objects.get("episode_returns", []))
        had = np.flatnonzero(np.diff(numbers, prepend=0.0) > 0)
        if listed and all(int(row) in listed for row in had):
            return _every_episode(train, listed)
        returns = train.column("episode_return_mean")
        return Episodes(numbers, train.column("steps"), returns, train.column("episode_length_mean"), False)

    @cached_property
    def score(self) -> Score | None:
        """The agent's score: by its last evaluation, or else by the latest episodes of training."""
        made = self.evaluations
        if len(made["mean"]):
            mean, low, high, episodes = (float(made[name][-1]) for name in ("mean", "low", "high", "episodes"))
            return Score(mean, low, high, int(episodes), "greedy episodes of the last evaluation")
        return self._training_score()

    def _training_score(self) -> Score | None:
        numbers, _, values, _, each = self.episodes.known
        if not len(values):
            return None
        weights = np.ones(len(values)) if each else np.clip(np.diff(numbers, prepend=0.0), 1.0, 1e9)
        recent = np.cumsum(weights[::-1])[::-1] - weights < RECENT  # the fewest that have so many episodes
        recent[-1] = True
        values, weights = values[recent], np.nan_to_num(weights[recent], nan=1.0)
        mean = float(np.average(values, weights=weights))
        # Between iterations, since that is what is known: the interval of a mean of independent iterations.
        deviation = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
        low, high = mean_interval(np.array(mean), np.array(deviation), np.array(len(values)))
        return Score(mean, float(low), float(high), int(weights.sum()), "latest episodes of training")

    @cached_property
    def best(self) -> tuple[float, float] | None:
        """Steps and mean return of the best evaluation; None without evaluations."""
        made = self.evaluations
        if not len(made["mean"]):
            return None
        at = int(np.argmax(made["mean"]))
        return float(made["steps"][at]), float(made["mean"][at])

    @property
    def best_by(self) -> dict[str, Any] | None:
        """The best policy's value of the figure that the run was told to judge by; None if there is none."""
        best = self.run.identity.get("best")
        if not isinstance(best, dict) or not isinstance(best.get("by"), str) or best.get("mode") not in ("max", "min"):
            return None
        return best if all(isinstance(best.get(name), int | float) for name in ("value", "steps")) else None

    def total(self, name: str) -> float | None:
        """Return the largest latest value of a count over both kinds of rows."""
        latest = [value for table in (self.train, self.evaluation) if (value := table.last(name)) is not None]
        return max(latest, default=None)

    @property
    def resumes(self) -> list[dict[str, Any]]:
        """The number of resumes, and where each began."""
        return [entry for entry in self.run.identity.get("resumed", []) if isinstance(entry, dict)]


def read_several(paths: Sequence[Path]) -> tuple[list[Story], list[str]]:
    """Read runs that are to be shown beside each other: those that can be read, and what is wrong with the others.

    LudusError if a folder is not there, which is a mistake of who named it, or if fewer than two can be read.
    """
    stories, problems = [], []
    for path in paths:
        try:
            story = Story.read(path)
            _ = story.journal
            stories.append(story)
        except LudusError as error:
            if not path.is_dir():
                raise
            problems.append(str(error))
    if problems and len(stories) < 2:
        raise LudusError("; ".join(problems))
    return stories, [f"left out: {problem}" for problem in problems]


def _every_episode(train: Table, listed: dict[int, Any]) -> Episodes:
    lengths = dict(train.objects.get("episode_lengths", []))
    rows, returns, long = [], [], []
    for row, values in listed.items():
        if not isinstance(values, list):
            continue
        theirs = lengths.get(row)
        theirs = theirs if isinstance(theirs, list) and len(theirs) == len(values) else [np.nan] * len(values)
        rows += [row] * len(values)
        returns += values
        long += theirs
    number = np.arange(1.0, len(rows) + 1)
    return Episodes(number, train.column("steps")[rows], floats(returns), floats(long), True)


def floats(values: Any) -> np.ndarray:
    """Return a list of numbers as an array, NaN for what is none; nothing of what is no list."""
    values = values if isinstance(values, list) else []
    return np.array([float(value) if isinstance(value, int | float) else np.nan for value in values], np.float64)
