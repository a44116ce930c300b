"""Two files of figures that other programs read: `performance_report.json` and `training_summary.json`.

They are made from a run folder alone and need no plotting library. Without the returns of single episodes in the
journal, the means of iterations stand in for them; `resolution` says which it was.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ludus.report.figures.series import rolling, share_at_least, trend
from ludus.report.places import write_file
from ludus.report.verdict import verdict
from ludus.runs.strict_json import strict
from ludus.runs.summary import Story

REPORT = "report"
PERFORMANCE, SUMMARY = "performance_report.json", "training_summary.json"
WINDOW = 50
"""Episodes or iterations over which stability is looked at."""
RECENT = 100
BENCHMARKS = (195.0, 475.0)
"""Returns that CartPole's founders and today's version call solved; shown beside a run's own target."""


def write_summaries(run: str | Path | Story) -> list[Path]:
    """Write both files into the `report` folder of a run; return where they are."""
    story = run if isinstance(run, Story) else Story.read(run)
    folder = story.run.path / REPORT
    with np.errstate(all="ignore"):  # a loss may be too large to be squared; what is not known is left out
        made = {PERFORMANCE: performance_report(story), SUMMARY: training_summary(story)}
    texts = {name: json.dumps(strict(content), indent=2, allow_nan=False) + "\n" for name, content in made.items()}
    return [write_file(folder, name, text.encode()) for name, text in texts.items()]


def performance_report(story: Story) -> dict[str, Any]:
    """Return how a run went, in five parts."""
    return {
        "resolution": story.episodes.unit,
        "basic_stats": _basic(story),
        "convergence_analysis": _convergence(story),
        "stability_analysis": _stability(story),
        "loss_analysis": {
            name: _loss(story, column) for name, column in story.train.columns.items() if name.endswith("_loss")
        },
        "performance_benchmarks": _benchmarks(story),
    }


def training_summary(story: Story) -> dict[str, Any]:
    """Return what a run was and what came of it, on one page."""
    run, score, best = story.run, story.score, story.best
    judged = verdict(story)
    return {
        "run": run.path.resolve().name,
        "id": run.identity.get("id"),
        "environment": run.environment,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "status": run.status,
        "exit_reason": run.identity.get("exit_reason"),
        "verdict": judged.word,
        "evidence": judged.evidence,
        "target_return": story.target,
        "score": None if score is None else score._asdict(),
        "best_evaluation": None if best is None else {"steps": best[0], "mean_return": best[1]},
        "best": story.best_by,
        "best_avg_reward": run.identity.get("best_avg_reward"),
        "total_episodes": story.total("episodes"),
        "total_steps": story.total("steps"),
        "total_updates": story.total("updates"),
        "training_time": story.total("elapsed_seconds"),
        "steps_per_second": steps_per_second(story),
        "resumed": story.resumes,
        "damaged_journal_lines": story.journal.damaged,
        "config": run.config,
    }


def steps_per_second(story: Story) -> float | None:
    """Return environment steps over wall-clock time, of the whole run."""
    steps, seconds = story.total("steps"), story.total("elapsed_seconds")
    return steps / seconds if steps is not None and seconds else None


def _basic(story: Story) -> dict[str, Any]:
    returns, lengths = (values[np.isfinite(values)] for values in (story.episodes.returns, story.episodes.lengths))
    return {
        "total_episodes": story.total("episodes"),
        "total_steps": story.total("steps"),
        "mean_reward": _of(np.mean, returns),
        "std_reward": _of(np.std, returns),
        "median_reward": _of(np.median, returns),
        "min_reward": _lowest(story, returns),
        "max_reward": _highest(story, returns),
        "final_100_mean": _of(np.mean, returns[-RECENT:]),
        "final_100_std": _of(np.std, returns[-RECENT:]),
        "mean_length": _of(np.mean, lengths),
    }


def _lowest(story: Story, returns: np.ndarray) -> float | None:
    return _of(np.nanmin, _known(np.append(returns, story.train.column("episode_return_min"))))


def _highest(story: Story, returns: np.ndarray) -> float | None:
    return _of(np.nanmax, _known(np.append(returns, story.train.column("episode_return_max"))))


def _known(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _convergence(story: Story) -> dict[str, Any]:
    """Find the first time at which the mean of the latest hundred episodes reached the target."""
    episodes, target = story.episodes, story.target
    window = RECENT if episodes.each else _rows_of(story, RECENT)
    means = rolling(episodes.returns, window)
    full = np.arange(1, len(means.mean) + 1) >= window
    reached = np.flatnonzero(full & (means.mean >= target)) if target is not None else np.empty(0, int)
    at = int(reached[0]) if len(reached) else None
    best = np.where(full, means.mean, np.nan)
    return {
        "target_reward": target,
        "window": window,
        "converged": at is not None,
        "convergence_episode": None if at is None else _whole(episodes.number[at]),
        "convergence_step": None if at is None else _whole(episodes.steps[at]),
        "best_average": _of(np.max, _known(best)),
        "final_average": float(means.mean[-1]) if len(means.mean) and np.isfinite(means.mean[-1]) else None,
    }


def _rows_of(story: Story, episodes: int) -> int:
    """Return how many iterations it takes, on average, to end so many episodes."""
    total, rows = story.total("episodes"), story.train.rows
    return max(1, math.ceil(episodes * rows / total)) if total and total >= 1 else 1


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None


def _stability(story: Story) -> dict[str, Any]:
    returns = story.episodes.known.returns
    if not len(returns):
        return {"window": WINDOW, "rolling_std": None, "coefficient_of_variation": None, "share_above_target": None}
    made = rolling(returns, WINDOW)
    mean, deviation = float(made.mean[-1]), float(made.deviation[-1])
    share = share_at_least(returns, story.target, WINDOW)[-1] if story.target is not None else None
    return {
        "window": WINDOW,
        "rolling_mean": mean,
        "rolling_std": deviation,
        "coefficient_of_variation": deviation / abs(mean) if mean else None,
        "share_above_target": None if share is None else float(share),
        "largest_drop": float(np.max(np.maximum.accumulate(made.mean) - made.mean)),
    }


def _loss(story: Story, column: np.ndarray) -> dict[str, Any]:
    known = column[np.isfinite(column)]
    tenth = max(1, len(known) // 10)
    line = trend(story.train.column("iteration"), column)
    return {
        "initial": _of(np.mean, known[:tenth]),
        "final": _of(np.mean, known[-tenth:]),
        "mean": _of(np.mean, known),
        "std": _of(np.std, known),
        "min": _of(np.min, known),
        "max": _of(np.max, known),
        "trend_per_iteration": None if line is None else line.slope,
    }


def _benchmarks(story: Story) -> dict[str, Any]:
    returns = story.episodes.known.returns
    score = story.score
    levels = dict.fromkeys([*BENCHMARKS, *([] if story.target is None else [story.target])])
    if not story.run.environment.rpartition(":")[2].startswith("CartPole"):
        levels = {} if story.target is None else {story.target: None}
    return {
        "training_time": story.total("elapsed_seconds"),
        "steps_per_second": steps_per_second(story),
        "final_score": None if score is None else score.mean,
        "final_score_interval": None if score is None else [score.low, score.high],
        "best_evaluation": None if story.best is None else story.best[1],
        "share_at_or_above": {f"{level:g}": _of(np.mean, returns >= level) for level in levels},
    }


def _of(statistic: Any, values: np.ndarray) -> float | None:
    return float(statistic(values)) if len(values) else None
