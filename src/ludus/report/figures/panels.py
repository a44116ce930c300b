"""Panels: the parts of a run's figures, one for each column of the journal, with title and colour."""

from collections.abc import Sequence

import numpy as np

from ludus.report.figures.drawing import Figure, Panel, Trace, colour, line, raw
from ludus.report.figures.series import rolling
from ludus.runs.metrics import metric_of
from ludus.runs.summary import Story

BLUE, ORANGE, GREEN, RED, PURPLE = map(colour, range(5))
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


def scalar(story: Story, column: str, **options: object) -> Panel | None:
    """Draw one column of the iterations, or of the evaluations if only they have it: as it is, and smoothed."""
    is_evaluated = column not in story.train and column in story.evaluation
    table, each = (story.evaluation, "each evaluation") if is_evaluated else (story.train, "each iteration")
    values = table.column(column)
    if not np.isfinite(values).any():
        return None
    traces = drawn_twice(table.column("steps"), values, each, column)
    metric = metric_of(column)
    return Panel(column, metric.title, traces, y=metric.unit, **options)  # ty: ignore[invalid-argument-type]


def figure(key: str, title: str, about: str, panels: Sequence[Panel | None]) -> Figure | None:
    """Put the panels that there are under a heading; None if there are none."""
    there = [panel for panel in panels if panel is not None]
    return Figure(key, title, about, there) if there else None
