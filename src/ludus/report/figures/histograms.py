"""Figures of the histograms in a journal: actions and gradients, the latest and over time."""

import numpy as np

from ludus.report.figures.drawing import Figure, Panel, Trace, bars
from ludus.report.figures.panels import BLUE, figure
from ludus.report.figures.series import resolution
from ludus.runs.summary import Story


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
