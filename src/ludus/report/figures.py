"""The figures of one run. Each takes its story and returns what can be drawn of it, or None if there is nothing."""

from collections.abc import Callable, Sequence

import numpy as np

from ludus.report.drawing import (
    Figure,
    Panel,
    Trace,
    band,
    bars,
    colour,
    histogram,
    line,
    packed,
    points,
    raw,
    thinning,
)
from ludus.report.performance import WINDOW
from ludus.report.series import resolution, rolling, share_at_least, thin, trend
from ludus.report.statistics import NORMAL_QUANTILE
from ludus.report.story import Story, floats

BLUE, ORANGE, GREEN, RED, PURPLE = map(colour, range(5))
KL_GUIDES = ((0.01, "0.01"), (0.02, "0.02"))
NORMS = {
    "gradient_norm": "the gradient",
    "update_norm": "the update",
    "parameter_norm": "the parameters",
    "adam_first_moment_norm": "Adam's first moment",
    "adam_second_moment_norm": "Adam's second moment",
}
"""Norms that a journal may have for each layer, `<norm>/<layer>`, and what they are of."""
NETWORKS = ("actor", "critic", "critics", "shared", "alpha")
"""Names in the place of a layer's that stand for all layers of a network."""
TIMES = ("environment", "act", "update", "transfer", "compile")
"""What a run may spend its time on, `seconds/<what>`."""
FEWEST = 10
"""Values from which on a deviation is drawn."""
COUNTS = {"seq", "iteration", "steps", "episodes", "updates", "elapsed_seconds"}


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


TITLES = {
    "eval_return_mean": ("Return of evaluations", "return"),
    "episode_return_mean": ("Return of training episodes", "return"),
    "episode_length_mean": ("Episode length", "steps of an episode"),
    "eval_length_mean": ("Episode length of evaluations", "steps of an episode"),
    "success_rate": ("Success rate", "share of episodes"),
    "eval_success_rate": ("Success rate of evaluations", "share of episodes"),
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


# --- how well it does ---


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
    values = story.episodes.returns
    recent = values[np.isfinite(values)][-100:]
    if not len(recent):
        return None
    unit = story.episodes.unit
    title = f"Returns of the latest {len(recent)} {unit}s"
    return Panel("return_histogram", title, [histogram(recent, f"{unit}s", BLUE)], x="return", y=f"{unit}s")


def _return_trends(story: Story) -> Panel | None:
    values, steps = story.episodes.returns, story.episodes.steps
    known = np.isfinite(values)
    if known.sum() < FEWEST:
        return None
    steps, values = steps[known], values[known]
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
    """Draw the success rate, if the journal has one."""
    panel = scalar(story, "success_rate", layout={"yaxis": {"range": [-0.02, 1.02]}})
    evaluated = scalar_of_evaluations(story, "eval_success_rate")
    about = "Share of episodes that count as a success, by the rule that the run was told."
    return figure("success", "Success", about, [panel, evaluated])


def scalar_of_evaluations(story: Story, column: str) -> Panel | None:
    """Draw one column of the evaluations."""
    values = story.evaluation.column(column)
    if not np.isfinite(values).any():
        return None
    title, unit = titled(column)
    trace = raw(story.evaluation.column("steps"), values, "evaluation", GREEN, column, width=2)
    return Panel(column, title, [trace], y=unit)


def stability(story: Story) -> Figure | None:
    """Draw how steady the returns are."""
    values, steps = story.episodes.returns, story.episodes.steps
    known = np.isfinite(values)
    if known.sum() < FEWEST:
        return None
    values, steps = values[known], steps[known]
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


# --- how it learns ---


def losses(story: Story) -> Figure | None:
    """Draw every loss with its trend."""
    panels = [_loss(story, name) for name in story.train.columns if name.endswith("_loss")]
    about = "Losses as they were minimised, one panel each, with a straight line through the last half: its trend."
    return figure("losses", "Losses", f"{about} {thinning(story.train.rows)}", panels)


def _loss(story: Story, name: str) -> Panel | None:
    panel = scalar(story, name)
    if panel is None:
        return None
    steps, values = story.train.column("steps"), story.train.column(name)
    half = len(steps) // 2
    fitted = trend(steps[half:], values[half:])
    if fitted is not None:
        ends = np.array([steps[half], steps[-1]])
        drawn = fitted.intercept + fitted.slope * ends
        per = fitted.slope * 1e6
        panel.traces.append(line(ends, drawn, f"trend: {per:+.3g} per million steps", RED, dash="dash", mode="lines"))
    return panel


def divergence(story: Story) -> Figure | None:
    """Draw how far the policy moves in an update."""
    values = story.train.column("approx_kl")
    known = values[np.isfinite(values)]
    panels = [scalar(story, "approx_kl", guides=KL_GUIDES)]
    if len(known):
        title = f"KL: mean {known.mean():.4f}, std {known.std():.4f}, max {known.max():.4f}"
        panels.append(Panel("kl_histogram", title, [histogram(known, "iterations", BLUE)], x="nats", y="iterations"))
    panels.append(scalar(story, "clip_fraction"))
    about = (
        "KL between the policy before and after an update, estimated as the mean of (r - 1) - log r. Between the "
        "guides at 0.01 and 0.02 an update is bold; far above, the learning rate is too high or the epochs are too "
        "many. The clip fraction is the share of samples whose ratio left the trust region."
    )
    return figure("divergence", "Size of the updates", f"{about} {thinning(story.train.rows)}", panels)


def policy(story: Story) -> Figure | None:
    """Draw entropy, explained variance, learning rate and what an algorithm has of that kind."""
    panels = [
        scalar(story, "entropy"),
        scalar(
            story,
            "explained_variance",
            guides=((1.0, "perfect"), (0.0, "no better than the mean")),
        ),
        scalar(story, "learning_rate"),
        scalar(story, "alpha"),
        scalar(story, "q_value"),
    ]
    about = (
        "Entropy falls as the policy makes up its mind; at nearly none it no longer explores. Explained variance is "
        "1 - Var(target - V) / Var(target): how much of the returns the critic foresees."
    )
    return figure("policy", "Policy and critic", f"{about} {thinning(story.train.rows)}", panels)


def gradient_flow(story: Story) -> Figure | None:
    """Draw the gradient that reaches each layer."""
    layers = _layers(story, "gradient_norm")
    single = {name: values for name, values in layers.items() if name not in NETWORKS}
    layers = single or layers
    if not layers:
        return None
    traces = []
    for name, values in layers.items():
        known = values[np.isfinite(values) & (values > 0)]
        kept = known[thin(known)]
        hue = BLUE if name.startswith("actor") else ORANGE if name.startswith("critic") else GREEN
        traces.append(
            {"type": "violin", "name": name, "y": packed(kept), "line": {"color": hue, "width": 1}, "points": False}
            | {"meanline": {"visible": True}, "spanmode": "hard", "showlegend": False}
        )
    flow = Panel("gradient_flow", "Gradient norms by layer", traces, x="", y="norm", is_log=True)
    flow.layout["xaxis"] = {"type": "category", "tickformat": None}
    series = _norm_panel(story, "gradient_norm", "the gradient")
    about = (
        "Norm of the gradient of each layer, from the observation to the output: actor blue, critic orange, on a "
        "logarithmic scale. A layer orders of magnitude below its neighbours hardly learns."
    )
    return figure("gradient_flow", "Gradient flow", about, [flow, series])


def _layers(story: Story, norm: str) -> dict[str, np.ndarray]:
    """Return the norms of layers and whole networks: network by network, from the observation to the output."""
    found = {
        name.removeprefix(f"{norm}/"): values
        for name, values in story.train.columns.items()
        if name.startswith(f"{norm}/") and (values > 0).any()
    }
    return dict(sorted(found.items(), key=lambda item: (item[0].partition("_")[0], "head" in item[0], item[0])))


def _norm_panel(story: Story, norm: str, what: str) -> Panel | None:
    steps, layers = story.train.column("steps"), _layers(story, norm)
    traces = [
        raw(steps, values, layer, colour(i), f"{norm}/{layer}", width=1.5, opacity=0.9)
        for i, (layer, values) in enumerate(layers.items())
    ]
    return Panel(norm + "_layers", f"Norm of {what}", traces, y="norm", is_log=True) if traces else None


def optimiser(story: Story) -> Figure | None:
    """Draw what the optimiser does: norms of gradients, updates, parameters and moments."""
    panels = [scalar(story, "gradient_norm", is_log=True)]
    panels += [_norm_panel(story, norm, what) for norm, what in NORMS.items() if norm != "gradient_norm"]
    about = (
        "Euclidean norms: of the gradient, of what Adam makes of it (the update), of the parameters and of Adam's "
        "running means of the gradient and of its square. An update a thousandth of the parameters' norm is usual."
    )
    return figure("optimiser", "Optimiser", f"{about} {thinning(story.train.rows)}", panels)


# --- what it does ---


def actions(story: Story) -> Figure | None:
    """Draw which actions are taken."""
    about = "How often each action was taken: in the latest iteration that recorded it, and over time."
    return figure("actions", "Actions", about, _histograms(story, "histogram/action", "action"))


def gradients(story: Story) -> Figure | None:
    """Draw how large the single entries of gradients are."""
    about = "Entries of the gradient: in the latest iteration that recorded them, and over time."
    return figure("gradients", "Gradient entries", about, _histograms(story, "histogram/gradient", "gradient"))


def _histograms(story: Story, prefix: str, what: str) -> list[Panel]:
    panels, columns = [], resolution()[1] // 5
    for name in [name for name in story.train.objects if name == prefix or name.startswith(f"{prefix}/")]:
        made = [(row, *_bins(value)) for row, value in story.train.objects[name] if _is_histogram(value)]
        if not made:
            continue
        label = f"{what}{name.removeprefix(prefix)}"
        _, edges, counts = made[-1]
        panels.append(_latest(name, label, what, edges, counts))
        if len(made) > 1:
            panels.append(
                _over_time(story, name, label, made[:: max(1, len(made) // columns)], is_log=what == "gradient")
            )
    return panels


def _is_histogram(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("counts"), list) or not value["counts"]:
        return False
    numbers = [value.get("low"), value.get("high"), *value["counts"]]
    return all(isinstance(x, int | float) and np.isfinite(x) for x in numbers) and value["low"] <= value["high"]


def _bins(value: dict) -> tuple[np.ndarray, np.ndarray]:
    counts = np.asarray(value["counts"], np.float64)
    low, high = float(value["low"]), float(value["high"])
    return np.linspace(low, high if high > low else low + 1.0, len(counts) + 1), counts


def _is_whole(edges: np.ndarray) -> bool:
    """Tell whether there is a bin for each of a few whole numbers: actions to choose from."""
    return len(edges) <= 33 and bool(np.array_equal(edges, np.round(edges)) and np.all(np.diff(edges) == 1))


def _latest(key: str, label: str, what: str, edges: np.ndarray, counts: np.ndarray) -> Panel:
    if not _is_whole(edges):
        return Panel(key, f"Latest {label}", [bars(edges, counts, what, BLUE)], x=what, y="count")
    trace = bars(edges - 0.5, counts, what, BLUE) | {"width": 0.8}
    return Panel(key, f"Latest {label}", [trace], x=what, y="count", layout={"xaxis": {"dtick": 1}})


def _over_time(
    story: Story, key: str, label: str, made: list[tuple[int, np.ndarray, np.ndarray]], *, is_log: bool
) -> Panel:
    """Draw histograms over time on one scale: each is spread over the bins that cover all of them."""
    low, high = min(edges[0] for _, edges, _ in made), max(edges[-1] for _, edges, _ in made)
    grid = np.linspace(low, high, max(len(counts) for _, _, counts in made) + 1)
    shares = []
    for _, edges, counts in made:
        below = np.concatenate([[0.0], np.cumsum(counts) / max(counts.sum(), 1.0)])
        shares.append(np.diff(np.interp(grid, edges, below)))
    # Most entries of a gradient lie in one bin: only their logarithm shows the others.
    drawn = np.log10(np.maximum(np.array(shares), 1e-4)) if is_log else np.array(shares)
    steps = story.train.column("steps")[[row for row, _, _ in made]]
    whole = _is_whole(grid)
    middles = grid[:-1] if whole else (grid[:-1] + grid[1:]) / 2
    heat: Trace = {"type": "heatmap", "x": steps.tolist(), "y": middles.tolist(), "z": np.round(drawn.T, 5).tolist()}
    heat |= {"colorscale": "Viridis", "colorbar": {"title": {"text": "log10 of share" if is_log else "share"}}}
    layout = {"yaxis": {"dtick": 1}} if whole else {}
    return Panel(f"{key}/time", f"{label.capitalize()} over time", [heat], y=label, layout=layout)


# --- what it cost ---


def throughput(story: Story) -> Figure | None:
    """Draw speed and where the time went."""
    steps = story.train.column("steps")
    panels = [
        scalar(story, "steps_per_second"),
        _wall_time(story, steps),
        _time_spent(story),
    ]
    about = (
        "Environment steps per second of wall-clock time, evaluations and checkpoints included in the time. The rest "
        "of the time is what no part of the run claims for itself, evaluations most of all."
    )
    return figure("throughput", "Throughput", f"{about} {thinning(story.train.rows)}", panels)


def _wall_time(story: Story, steps: np.ndarray) -> Panel | None:
    seconds = story.train.column("elapsed_seconds")
    if not np.isfinite(seconds).any():
        return None
    traces = [raw(steps, seconds, "elapsed", PURPLE, "elapsed_seconds", width=2, opacity=1)]
    return Panel("elapsed_seconds", "Wall-clock time", traces, y="seconds")


def _time_spent(story: Story) -> Panel | None:
    named = [name for name in story.train.columns if name.startswith("seconds/")]
    totals = {name.removeprefix("seconds/"): float(np.nansum(story.train.column(name))) for name in named}
    if not any(totals.values()):
        return None
    elapsed = story.total("elapsed_seconds") or 0.0
    totals["the rest"] = max(0.0, elapsed - sum(totals.values()))
    order = ([name for name in TIMES if name in totals] + sorted(set(totals) - set(TIMES)))[::-1]
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "name": "seconds",
        "y": order,
        "x": [totals[name] for name in order],
    }
    trace |= {"text": [f"{totals[name]:,.1f} s" for name in order], "textposition": "auto", "marker": {"color": PURPLE}}
    layout = {"xaxis": {"tickformat": None}, "yaxis": {"type": "category"}, "bargap": 0.25}
    return Panel("time", "Where the time went", [trace], x="seconds", layout=layout)


def everything_else(story: Story, drawn: set[str]) -> Figure | None:
    """Draw whatever else the journal has, so that nothing in it stays unseen."""
    names = [name for name in story.train.columns if name not in drawn | COUNTS and not name.startswith("seconds/")]
    names = [name for name in names if not name.startswith(tuple(f"{norm}/" for norm in NORMS))]
    panels = [scalar(story, name) for name in names if not name.startswith("episode_return_")]
    return figure("others", "Everything else", "Every other number of the journal, under its own name.", panels)


FIGURES: tuple[Callable[[Story], Figure | None], ...] = (
    returns, lengths, success, stability, losses, divergence, policy, gradient_flow, optimiser, gradients, actions,
    throughput,
)  # fmt: skip
"""Every figure of a run's page, in order."""


def draw(story: Story) -> list[Figure]:
    """Draw all that a run's journal has to show."""
    made = [found for draw_one in FIGURES if (found := draw_one(story)) is not None]
    drawn = {
        trace["meta"]["column"] for each in made for panel in each.panels for trace in panel.traces if "meta" in trace
    }
    last = everything_else(story, drawn)
    return [*made, last] if last else made
