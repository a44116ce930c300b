"""A run's names in MLflow: every figure and setting under our name and under that of the founding documents."""

import math
import posixpath
import re
from typing import Any, NamedTuple

from ludus.runs.folder import flat
from ludus.runs.metrics import OWN_FIELDS, PLACE, also_called

PARAMETERS = {
    "env_options.max_episode_steps": "max_steps_per_episode",
    "convergence.target_return": "target_reward",
    "convergence.window": "convergence_window",
    "convergence.patience": "early_stopping_patience",
}
"""Settings that the documents call otherwise; those of the algorithm they call by their last word."""
WINDOWS = {"avg_reward_10": ("return", 10), "avg_reward_50": ("return", 50), "avg_length_10": ("length", 10)}
"""Means over the latest episodes; of as many whole iterations as it takes, if rows do not list their episodes."""
LONGEST_WINDOW = 50
COUNTED = ("counted_episodes", "counted_return_mean", "counted_length_mean")
"""What a row says of the episodes that count from it on."""
MOST_NAME, MOST_PARAMETER = 250, 6000
"""MLflow's limits, in characters."""
FORBIDDEN = re.compile(r"[^\w\-./: ]", re.ASCII)


class LoggedMetric(NamedTuple):
    """One point of one curve."""

    key: str
    value: float
    timestamp: int
    step: int


def allowed(name: str) -> str:
    """Return a name that MLflow takes: it knows letters, digits and _-.: /, and wants no path that leads elsewhere."""
    name = FORBIDDEN.sub("_", name)[:MOST_NAME]
    plain = posixpath.normpath(name).replace("..", "__").strip("/")
    return "_" if plain in ("", ".") else plain


def parameters(config: dict[str, Any]) -> dict[str, str]:
    """Return every setting of a resolved configuration by its key, and under the documents' names."""
    ours = {key: str(value) for key, value in flat(config)}
    theirs = {}
    for key, value in ours.items():
        if key.startswith("algorithm.") and key.count(".") == 1:
            theirs[key.removeprefix("algorithm.")] = value
        elif key in PARAMETERS:
            theirs[PARAMETERS[key]] = value
    if "algorithm.name" in ours:
        theirs["algorithm"] = theirs.pop("name")
    return {allowed(key): value[:MOST_PARAMETER] for key, value in (theirs | ours).items()}


class Translator:
    """Makes metrics of the rows of a journal. It must see all of them, in order: some are means over many."""

    def __init__(self, started: int):
        """`started` is when the run began, in milliseconds; rows count their seconds from there."""
        self.started = started
        self.last: dict[str, Any] = {}
        """The latest value of every figure."""
        self._recent: list[tuple[int, float, float]] = []
        self._episodes = 0

    def metrics(self, row: dict[str, Any]) -> list[LoggedMetric]:
        """Return the points that a row is. Their times depend on the row alone, so that it can be sent twice."""
        figures = {name: value for name, value in row.items() if name not in OWN_FIELDS and _is_number(value)}
        self._remember(row, figures)
        if row.get("kind") == "train":
            figures |= also_called(figures) | self._window_means()
        else:
            figures = {name: value for name, value in figures.items() if name not in PLACE}
            figures |= also_called(figures)
        timestamp, step = self.time_of(row), int(row.get("steps", 0))
        return [LoggedMetric(allowed(name), float(value), timestamp, step) for name, value in figures.items()]

    def final(self, identity: dict[str, Any]) -> list[LoggedMetric]:
        """Return what the documents call the results of a run."""
        last = self.last
        found: dict[str, Any] = {
            "final_avg_reward": last.get("eval_return_mean"),
            "final_std_reward": last.get("eval_return_std"),
            "best_avg_reward": identity.get("best_avg_reward"),
            "total_episodes": last.get("episodes"),
            "training_time": last.get("elapsed_seconds"),
            "converged": float(bool(identity.get("converged"))),
        }
        timestamp, step = self.time_of(last), int(last.get("steps", 0))
        return [LoggedMetric(name, float(value), timestamp, step) for name, value in found.items() if _is_number(value)]

    def time_of(self, row: dict[str, Any]) -> int:
        """Return when a row was written, in milliseconds."""
        return self.started + round(1000 * row.get("elapsed_seconds", 0.0))

    def _remember(self, row: dict[str, Any], figures: dict[str, float]) -> None:
        self.last |= figures
        episodes = int(row.get("episodes", 0))
        if row.get("kind") == "train" and ("episode_return_mean" in figures or "counted_return_mean" in figures):
            self._recent += _ended(row, episodes - self._episodes)
            while sum(count for count, *_ in self._recent[1:]) >= LONGEST_WINDOW:
                del self._recent[0]
        self._episodes = max(episodes, self._episodes)

    def _window_means(self) -> dict[str, float]:
        found = {}
        for name, (what, size) in WINDOWS.items():
            count, total = 0, 0.0
            for episodes, mean_return, mean_length in reversed(self._recent):
                count += episodes
                total += episodes * (mean_return if what == "return" else mean_length)
                if count >= size:
                    found[name] = total / count
                    break
        return found


def _ended(row: dict[str, Any], count: int) -> list[tuple[int, float, float]]:
    """Return number, mean return and mean length of a row's episodes: of each, if the row lists them, or of all.

    Of those that count from it on, if it says which; the rows of earlier versions do not.
    """
    returns, lengths = row.get("episode_returns"), row.get("episode_lengths")
    if isinstance(returns, list) and isinstance(lengths, list):
        both = zip(returns, lengths, strict=False)
        return [(1, x, length) for x, length in both if _is_number(x) and _is_number(length)]
    if "counted_episodes" in row:
        number, mean_return, mean_length = (row.get(name, 0.0) for name in COUNTED)
        is_known = all(map(_is_number, (number, mean_return, mean_length)))
        return [(number, mean_return, mean_length)] if number and is_known else []
    mean_return, mean_length = (row.get(name, 0.0) for name in ("episode_return_mean", "episode_length_mean"))
    return [(count, mean_return, mean_length)] if _is_number(mean_return) and _is_number(mean_length) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def default_experiment(config: dict[str, Any]) -> str:
    """Return `<env>-<algorithm>`, such as cartpole-ppo."""
    env = re.sub(r"-v\d+$", "", str(config.get("env", "")).rpartition(":")[2]).lower()
    algorithm = config.get("algorithm")
    name = algorithm.get("name", "") if isinstance(algorithm, dict) else ""
    return re.sub(r"[/:]+", "-", f"{env}-{name}").strip("-") or "ludus"
