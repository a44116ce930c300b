"""What the figures of a run are made of: panels of one column, their titles and colours."""

from collections.abc import Sequence

import numpy as np

from ludus.report.drawing import Figure, Panel, Trace, colour, line, raw
from ludus.report.series import rolling
from ludus.report.story import Story

BLUE, ORANGE, GREEN, RED, PURPLE = map(colour, range(5))
TITLES = {
    "eval_return_mean": ("Return of evaluations", "return"),
    "episode_return_mean": ("Return of training episodes", "return"),
    "episode_length_mean": ("Episode length", "steps of an episode"),
    "eval_length_mean": ("Episode length of evaluations", "steps of an episode"),
    "success_rate": ("Success rate", "share of episodes"),
    "approx_kl": ("Approximate KL divergence", "nats"),
    "clip_fraction": ("Clip fraction", "share of samples"),
    "entropy": ("Entropy", "nats"),
    "explained_variance": ("Explained variance", ""),
    "learning_rate": ("Learning rate", ""),
    "alpha": ("Temperature", ""),
    "q_value": ("Mean action value", "return"),
    "gradient_norm": ("Gradient norm, before clipping", "norm"),
    "steps_per_second": ("Steps per second", "steps / s"),
    "elapsed_seconds": ("Wall-clock time", "seconds"),
}
"""What columns are called in figures, and their units."""
FEWEST = 10
"""Values from which on a deviation is drawn."""


def smoothing(count: int) -> int:
    """Return over how many points a series is smoothed: a fiftieth of it, but five at least; few are not smoothed."""
    return max(5, round(count / 50)) if count >= 20 else 1


def drawn_twice(x: np.ndarray, y: np.ndarray, name: str, column: str) -> list[Trace]:
    """Draw a column as it is and, if it is long enough, smoothed: the mean of its latest fiftieth."""
    known = np.isfinite(y)
    window = smoothing(int(known.sum()))
    if window == 1:
        return [raw(x, y, name, BLUE, column, width=2, opacity=1)]
    mean = rolling(y[known], window).mean
    return [raw(x, y, name, BLUE, column), line(x[known], mean, f"smoothed (mean of {window:,})", ORANGE)]


def titled(column: str) -> tuple[str, str]:
    """Return the title of a column's panel and its unit."""
    return TITLES.get(column, (column.replace("_", " ").capitalize() if column.endswith("_loss") else column, ""))


def scalar(story: Story, column: str, **options: object) -> Panel | None:
    """Draw one column of the iterations: as it is, and smoothed."""
    values = story.train.column(column)
    if not np.isfinite(values).any():
        return None
    steps = story.train.column("steps")
    traces = drawn_twice(steps, values, "each iteration", column)
    title, unit = titled(column)
    return Panel(column, title, traces, y=unit, **options)  # ty: ignore[invalid-argument-type]


def figure(key: str, title: str, about: str, panels: Sequence[Panel | None]) -> Figure | None:
    """Put the panels that there are under a heading; None if there are none."""
    there = [panel for panel in panels if panel is not None]
    return Figure(key, title, about, there) if there else None
