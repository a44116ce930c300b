"""Rows of the journal: what each iteration and each evaluation is recorded as."""

from typing import Any

import numpy as np

ITERATION_METRICS = {
    "iteration": "iterations (one collect and one update) so far",
    "steps": "environment steps so far",
    "episodes": "episodes finished so far",
    "updates": "gradient steps so far",
    "episode_return_mean": "mean return of the episodes that ended in this iteration; absent if none did",
    "episode_return_min": "lowest of them",
    "episode_return_max": "highest of them",
    "episode_length_mean": "their mean length in steps",
    "elapsed_seconds": "wall-clock time since training began",
    "steps_per_second": "environment steps per second over the chunk that this iteration belongs to",
}
"""Every figure of a `train` row besides the algorithm's own, and its meaning."""

EVALUATION_METRICS = {
    "eval_return_mean": "mean return of greedy episodes on separate, seeded environments",
    "eval_return_std": "their standard deviation",
    "eval_return_min": "lowest of them",
    "eval_return_max": "highest of them",
    "eval_length_mean": "their mean length in steps",
    "eval_episodes": "how many there were",
}
"""Every figure of an `evaluation` row besides the counts, and its meaning."""


class Totals:
    """Counts of a run, from which each row's running totals are made."""

    def __init__(self) -> None:
        """Start from nothing."""
        self.iterations = self.steps = self.episodes = self.updates = 0

    def counts(self) -> dict[str, int]:
        """The counts under their journal names."""
        return {
            "iteration": self.iterations,
            "steps": self.steps,
            "episodes": self.episodes,
            "updates": self.updates,
        }

    def rows(self, rows: dict[str, np.ndarray], elapsed_seconds: float, seconds: float) -> list[dict[str, Any]]:
        """Count a chunk's iterations in and return their journal rows."""
        names = [name for name in rows if name not in COUNTED]
        per_second = float(rows["steps"].sum()) / max(seconds, 1e-9)
        made = []
        for i in range(len(rows["steps"])):
            self.iterations += 1
            self.steps += int(rows["steps"][i])
            self.episodes += int(rows["episodes"][i])
            self.updates += int(rows["updates"][i])
            row = {"kind": "train", **self.counts(), **_episode_figures(rows, i)}
            row |= {name: float(rows[name][i]) for name in names if np.isfinite(rows[name][i])}
            row |= {"elapsed_seconds": round(elapsed_seconds, 6), "steps_per_second": round(per_second, 1)}
            made.append(row)
        return made


COUNTED = ("steps", "episodes", "updates", "fault", "halt", "return_sum", "return_min", "return_max", "length_sum")


def _episode_figures(rows: dict[str, np.ndarray], i: int) -> dict[str, float]:
    episodes = int(rows["episodes"][i])
    if episodes == 0:
        return {}
    return {
        "episode_return_mean": float(rows["return_sum"][i]) / episodes,
        "episode_return_min": float(rows["return_min"][i]),
        "episode_return_max": float(rows["return_max"][i]),
        "episode_length_mean": float(rows["length_sum"][i]) / episodes,
    }


def evaluation_row(counts: dict[str, int], summary: dict[str, float], elapsed_seconds: float) -> dict[str, Any]:
    """Return the journal row of one evaluation."""
    figures = {
        "eval_return_mean": summary["mean_return"],
        "eval_return_std": summary["std_return"],
        "eval_return_min": summary["min_return"],
        "eval_return_max": summary["max_return"],
        "eval_length_mean": summary["mean_length"],
        "eval_episodes": summary["episodes"],
    }
    return {"kind": "evaluation", **counts, **figures, "elapsed_seconds": round(elapsed_seconds, 6)}
