"""The figures of several runs: curves over each other with seeds taken together, and what a sweep came to."""

import itertools
from collections.abc import Sequence

import numpy as np

from ludus.report.comparison import FINAL, Comparison, Group
from ludus.report.figures.drawing import Figure, Panel, Trace, band, colour, line, packed
from ludus.report.figures.panels import figure, smoothing
from ludus.report.figures.series import rolling
from ludus.runs.metrics import metric_of
from ludus.runs.statistics import bootstrap, interquartile_mean, interval
from ludus.runs.summary import Story

GRID = 200
"""Steps at which curves of several seeds are compared."""
RESAMPLES = 2000
MOST_HEAT_MAPS = 6
TRAINED = "episode_return_mean"
COLUMNS = {
    "returns": ("Returns", (TRAINED, "eval_return_mean")),
    "lengths": ("Episode lengths", ("episode_length_mean", "eval_length_mean")),
    "success": ("Success", ("success_rate",)),
    "divergence": ("Size of the updates", ("approx_kl", "clip_fraction")),
    "policy": ("Policy and critic", ("entropy", "explained_variance", "learning_rate", "alpha", "q_value")),
    "optimiser": ("Optimiser", ("gradient_norm",)),
    "throughput": ("Throughput", ("steps_per_second", "elapsed_seconds")),
}
"""Figures of several runs and the columns that each shows; losses come besides, whatever they are called."""


def draw(comparison: Comparison) -> list[Figure]:
    """Draw what several runs have to show together."""
    found = {name for group in comparison.groups for story in group.stories for name in story.train.columns}
    losses = tuple(sorted(name for name in found if name.endswith("_loss")))
    wanted = COLUMNS | {"losses": ("Losses", losses)}
    about = (
        "The interquartile mean over the seeds of a group, with its 95% bootstrap interval shaded; thin lines are the "
        "single runs. Every curve is smoothed over a fiftieth of its length first, but evaluations are not."
    )
    figures = [
        figure(key, title, about if key == "returns" else "", [_panel(comparison, name) for name in names])
        for key, (title, names) in wanted.items()
    ]
    figures.insert(1, figure("sweep", "Sweep", SWEEP, heat_maps(comparison)))
    return [made for made in figures if made is not None]


SWEEP = (
    "The interquartile mean of the score over all runs with the same two values, whatever else they were set to. "
    "Empty where no run has been."
)


def _panel(comparison: Comparison, column: str) -> Panel | None:
    traces = []
    for i, group in enumerate(comparison.groups):
        traces += _curves(group, column, _legend(comparison, i), colour(i))
    metric = metric_of(column)
    key = "returns" if column == TRAINED else column
    return Panel(key, metric.title, traces, y=metric.unit) if traces else None


def _legend(comparison: Comparison, i: int) -> str:
    """Return what a group is called: its letter, what sets it apart if that is short, and how many seeds it has."""
    group = comparison.groups[i]
    apart = [f"{name.rpartition('.')[2]}={_label(values[i])}" for name, values in comparison.differences.items()]
    told = ", ".join(apart) if 0 < len(apart) <= 2 else ""
    seeds = f"({len(group.stories)} seeds)" if len(group.stories) > 1 else ""
    return " ".join(part for part in (group.letter, told, seeds) if part)


def _curve(story: Story, column: str) -> tuple[np.ndarray, np.ndarray] | None:
    table = story.evaluation if column.startswith("eval_") else story.train
    values, steps = table.column(column), table.column("steps")
    known = np.isfinite(values) & np.isfinite(steps)
    if not known.any():
        return None
    values, steps = values[known], steps[known]
    return steps, values if table is story.evaluation else rolling(values, smoothing(len(values))).mean


def _curves(group: Group, column: str, name: str, hue: str) -> list[Trace]:
    curves = [curve for story in group.stories if (curve := _curve(story, column)) is not None and len(curve[0]) > 1]
    meta = {"meta": {"group": group.letter}}
    if len(curves) < 2:
        return [line(steps, values, name, hue, **meta) for steps, values in curves]
    thin_lines: list[Trace] = [
        line(steps, values, name, hue, width=0.8, opacity=0.4, showlegend=False, hoverinfo="skip")
        | {"legendgroup": group.letter}
        for steps, values in curves
    ]
    low, high = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    if low > high:
        return thin_lines
    grid = np.unique(np.linspace(low, high, GRID)) if low < high else np.array([low])
    together = np.array([np.interp(grid, steps, values) for steps, values in curves])  # [runs, grid]
    below, above = interval(bootstrap([together], RESAMPLES))
    shaded = band(grid, below, above, f"{group.letter}: 95% interval", hue, group.letter)
    shaded[1]["showlegend"] = False
    middle = line(grid, interquartile_mean(together), name, hue, **meta) | {"legendgroup": group.letter}
    return [*shaded, *thin_lines, middle]


def heat_maps(comparison: Comparison) -> list[Panel]:
    """Draw the score over each pair of settings that a sweep varied, or over the one that it varied."""
    varied = {name: values for name, values in comparison.differences.items() if len(set(map(repr, values))) > 1}
    score = FINAL if any(FINAL in group.metrics for group in comparison.groups) else TRAINED
    if len({group.runs[0].environment for group in comparison.groups}) > 1 or not varied:
        return []
    if len(varied) == 1:
        return [_ladder(comparison, *varied, score)]
    pairs = list(itertools.combinations(varied, 2))[:MOST_HEAT_MAPS]
    return [_heat_map(comparison, x, y, score) for x, y in pairs]


def _ordered(values: Sequence[object]) -> list[object]:
    """Return different values once: numbers by size, others by their text."""
    once = {repr(value): value for value in values}.values()
    return sorted(once, key=lambda value: (0, value, "") if _is_number(value) else (1, 0, str(value)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _label(value: object) -> str:
    return f"{value:g}" if _is_number(value) else str(value)


def _heat_map(comparison: Comparison, x: str, y: str, score: str) -> Panel:
    across, down = (_ordered(comparison.differences[name]) for name in (x, y))
    rows, texts = [], []
    for b in down:
        cells = [_score(comparison, {x: a, y: b}, score) for a in across]
        rows.append(cells)
        texts.append(["" if cell is None else f"{cell:,.4g}" for cell in cells])
    heat: Trace = {
        "type": "heatmap",
        "x": list(map(_label, across)),
        "y": list(map(_label, down)),
        "z": rows,
        "text": texts,
    }
    heat |= {"texttemplate": "%{text}", "colorscale": "Viridis", "xgap": 2, "ygap": 2, "hoverongaps": False}
    axes = {"xaxis": {"type": "category", "tickformat": None}, "yaxis": {"type": "category", "tickformat": None}}
    key = f"sweep/{x}/{y}"
    return Panel(key, f"{score.capitalize()}: {y} against {x}", [heat], x=x, y=y, layout=axes)


def _score(comparison: Comparison, chosen: dict[str, object], score: str) -> float | None:
    groups = [
        group
        for i, group in enumerate(comparison.groups)
        if all(repr(comparison.differences[name][i]) == repr(value) for name, value in chosen.items())
    ]
    scores = [value for group in groups for value in group.scores.get(score, [])]
    return float(interquartile_mean(np.array(scores))) if scores else None


def _ladder(comparison: Comparison, name: str, score: str) -> Panel:
    """Draw the score of each value of one setting with its interval."""
    order = _ordered(comparison.differences[name])
    made = {
        repr(comparison.differences[name][i]): group.metrics.get(score) for i, group in enumerate(comparison.groups)
    }
    there = [(_label(value), made[repr(value)]) for value in order if made.get(repr(value)) is not None]
    values = np.array([estimate.value for _, estimate in there if estimate])
    ends = [estimate.interval or (estimate.value, estimate.value) for _, estimate in there if estimate]
    low, high = (np.array([end[i] for end in ends]) for i in (0, 1))
    reach = {"type": "data", "symmetric": False, "array": packed(high - values), "arrayminus": packed(values - low)}
    trace: Trace = {"type": "scatter", "mode": "lines+markers", "name": score, "x": [label for label, _ in there]}
    trace |= {"y": packed(values), "error_y": reach, "line": {"color": colour(0)}, "marker": {"size": 9}}
    axis = {"xaxis": {"type": "category", "tickformat": None}}
    return Panel(f"sweep/{name}", f"{score.capitalize()} against {name}", [trace], x=name, y=score, layout=axis)
