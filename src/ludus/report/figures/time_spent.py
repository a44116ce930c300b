"""Figures of where the time of a run went."""

import numpy as np

from ludus.report.figures.drawing import Figure, Panel, Trace, raw, thinning
from ludus.report.figures.panels import PURPLE, figure, scalar
from ludus.runs.metrics import TIMES, metric_of
from ludus.runs.summary import Story

ORDER = [metric.name for metric in TIMES]
REST = "the rest"


def throughput(story: Story) -> Figure | None:
    """Draw speed and where the time went."""
    steps = story.train.column("steps")
    panels = [
        scalar(story, "steps_per_second"),
        _wall_time(story, steps),
        _time_spent(story),
    ]
    about = (
        "Environment steps per second of the time that iterations took. In the lower figure no second counts twice; "
        "the rest is what no part of the run claims for itself, such as copying the state for checkpoints."
    )
    return figure("throughput", "Throughput", f"{about} {thinning(story.train.rows)}", panels)


def _wall_time(story: Story, steps: np.ndarray) -> Panel | None:
    seconds = story.train.column("elapsed_seconds")
    if not np.isfinite(seconds).any():
        return None
    traces = [raw(steps, seconds, "elapsed", PURPLE, "elapsed_seconds", width=2, opacity=1)]
    return Panel("elapsed_seconds", "Wall-clock time", traces, y="seconds")


def _time_spent(story: Story) -> Panel | None:
    totals: dict[str, float] = {}
    for table in (story.train, story.evaluation):
        for name in (name for name in table.columns if name.startswith("seconds/")):
            totals[name] = totals.get(name, 0.0) + float(np.nansum(table.column(name)))
    if not any(totals.values()):
        return None
    elapsed = story.total("elapsed_seconds") or 0.0
    totals[REST] = max(0.0, elapsed - sum(totals.values()))
    order = ([name for name in ORDER if name in totals] + sorted(set(totals) - set(ORDER)))[::-1]
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "name": "seconds",
        "y": [_label(name) for name in order],
        "x": [totals[name] for name in order],
    }
    trace |= {"text": [f"{totals[name]:,.1f} s" for name in order], "textposition": "auto", "marker": {"color": PURPLE}}
    layout = {"xaxis": {"tickformat": None}, "yaxis": {"type": "category"}, "bargap": 0.25}
    return Panel("time", "Where the time went", [trace], x="seconds", layout=layout)


def _label(name: str) -> str:
    return metric_of(name).title.removeprefix("seconds/")
