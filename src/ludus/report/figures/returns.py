"""Figures of what a run reached: returns, lengths, successes, and how steady they are."""

import numpy as np

from ludus.report.figures.drawing import Figure, Panel, Trace, band, colour, histogram, line, packed, points, thinning
from ludus.report.figures.panels import BLUE, FEWEST, GREEN, ORANGE, PURPLE, RED, drawn_twice, figure, scalar
from ludus.report.figures.performance import WINDOW
from ludus.report.figures.series import rolling, share_at_least, thin
from ludus.runs.recorder import SUCCESS_TOLD, success_rule
from ludus.runs.statistics import NORMAL_QUANTILE
from ludus.runs.summary import Story, floats


def returns(story: Story) -> Figure | None:
    """Draw returns: raw, smoothed, evaluated, best."""
    about = (
        "Return of the episodes that ended in each iteration, with their lowest and highest, and smoothed. "
        "Evaluations are greedy episodes on environments of their own; bars are 95% intervals of their mean."
    )
    panels = [_returns(story), _rollout_interval(story), _return_histogram(story), _return_trends(story)]
    return figure("returns", "Returns", f"{about} {thinning(len(story.episodes.returns))}", panels)


def _returns(story: Story) -> Panel | None:
    train, steps = story.train, story.train.column("steps")
    means = train.column("episode_return_mean")
    traces: list[Trace] = []
    if np.isfinite(means).any():
        low, high = train.column("episode_return_min"), train.column("episode_return_max")
        if np.isfinite(low).any() and np.isfinite(high).any():
            traces += band(steps, low, high, "lowest to highest", BLUE, "range")
        traces += drawn_twice(steps, means, "mean of an iteration", "episode_return_mean")
    traces += _evaluations(story)
    guides = [(story.target, f"target {story.target:,g}")] if story.target is not None and traces else []
    return Panel("returns", "Return", traces, y="return", guides=guides) if traces else None


def _evaluations(story: Story) -> list[Trace]:
    made = story.evaluations
    if not len(made["mean"]):
        return []
    kept = thin(made["mean"])
    steps, mean, high = (made[name][kept] for name in ("steps", "mean", "high"))
    reach = {"type": "data", "array": packed(high - mean), "thickness": 1.5, "width": 3, "color": GREEN}
    mode = {"mode": "lines+markers", "line": {"color": GREEN, "width": 2}, "error_y": reach}
    meta = {"meta": {"column": "eval_return_mean"}}
    traces = [points(steps, mean, "evaluation", GREEN, marker={"size": 7}, **mode, **meta)]
    if story.best is not None:
        star = {"symbol": "star", "size": 15, "line": {"width": 1, "color": "#ffffff"}}
        best = np.array([story.best])
        traces.append(points(best[:, 0], best[:, 1], f"best: {story.best[1]:,.2f}", RED, marker=star))
    return traces


def _rollout_interval(story: Story) -> Panel | None:
    """Draw the mean of each rollout with its 95% interval; only single episodes tell it."""
    listed = [(row, floats(values)) for row, values in story.train.objects.get("episode_returns", [])]
    listed = [(row, values[np.isfinite(values)]) for row, values in listed if np.isfinite(values).any()]
    if not listed:
        return None
    steps = story.train.column("steps")[[row for row, _ in listed]]
    mean = np.array([values.mean() for _, values in listed])
    error = np.array([values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0 for _, values in listed])
    low, high = mean - NORMAL_QUANTILE * error, mean + NORMAL_QUANTILE * error
    traces = [*band(steps, low, high, "95% interval", BLUE, "interval"), line(steps, mean, "mean of a rollout", BLUE)]
    return Panel("rollout_returns", "Mean return of each rollout", traces, y="return")


def _return_histogram(story: Story) -> Panel | None:
    recent = story.episodes.known.returns[-100:]
    if not len(recent):
        return None
    unit = story.episodes.unit
    title = f"Returns of the latest {len(recent)} {unit}s"
    return Panel("return_histogram", title, [histogram(recent, f"{unit}s", BLUE)], x="return", y=f"{unit}s")


def _return_trends(story: Story) -> Panel | None:
    steps, values = story.episodes.known.steps, story.episodes.known.returns
    if len(values) < FEWEST:
        return None
    traces = [
        line(steps, rolling(values, window).mean, f"mean of {window}", colour(i))
        for i, window in enumerate((10, 50, 100))
        if len(values) >= window
    ]
    return Panel("return_trends", f"Moving averages over {story.episodes.unit}s", traces, y="return")


def lengths(story: Story) -> Figure | None:
    """Draw episode lengths."""
    train, steps = story.train, story.train.column("steps")
    values = train.column("episode_length_mean")
    traces: list[Trace] = []
    if np.isfinite(values).any():
        traces += drawn_twice(steps, values, "mean of an iteration", "episode_length_mean")
    evaluated = story.evaluation.column("eval_length_mean")
    if np.isfinite(evaluated).any():
        at = story.evaluation.column("steps")
        traces.append(line(at, evaluated, "evaluation", GREEN, meta={"column": "eval_length_mean"}))
    panel = Panel("lengths", "Episode length", traces, y="steps of an episode") if traces else None
    return figure("lengths", "Episode lengths", f"Steps until an episode ended. {thinning(train.rows)}", [panel])


def success(story: Story) -> Figure | None:
    """Draw the success rate, if the run has a rule for it."""
    asked, wanted = (story.run.config.get(name) for name in ("success", "success_return"))
    told = SUCCESS_TOLD in story.train.columns
    rule = success_rule(str(asked or "auto"), wanted if isinstance(wanted, int | float) else None, told)
    if rule is None:
        return None
    names = {"info": "the environment says is_success", "return": f"its return is at least {wanted}"}
    panel = scalar(story, "success_rate", layout={"yaxis": {"range": [-0.02, 1.02]}})
    about = f"Share of episodes that count as a success: one does if {names.get(rule, 'it terminates')}."
    return figure("success", "Success", about, [panel])


def stability(story: Story) -> Figure | None:
    """Draw how steady the returns are."""
    steps, values = story.episodes.known.steps, story.episodes.known.returns
    if len(values) < FEWEST:
        return None
    made = rolling(values, WINDOW)
    made.deviation[: FEWEST - 1] = np.nan  # a deviation of two or three is none
    with np.errstate(divide="ignore", invalid="ignore"):
        variation = np.where(made.mean != 0, made.deviation / np.abs(made.mean), np.nan)
    panels = [
        Panel("rolling_mean", "Rolling mean", [line(steps, made.mean, "mean", BLUE)], y="return"),
        Panel(
            "rolling_std", "Rolling standard deviation", [line(steps, made.deviation, "deviation", ORANGE)], y="return"
        ),
        Panel("variation", "Coefficient of variation", [line(steps, variation, "deviation / |mean|", PURPLE)]),
    ]
    if story.target is not None:
        share = 100 * share_at_least(values, story.target, WINDOW)
        title = f"Share at or above {story.target:,g}"
        panels.append(
            Panel("share", title, [line(steps, share, "share", GREEN)], y="%", layout={"yaxis": {"range": [-2, 102]}})
        )
    unit = story.episodes.unit
    about = (
        f"Over the latest {WINDOW} {unit}s. Where the mean rises and the deviation falls, the agent makes up its mind."
    )
    return figure("stability", "Stability", f"{about} {thinning(len(values))}", panels)
