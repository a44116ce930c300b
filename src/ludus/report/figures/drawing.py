"""Panels and what is drawn on them, as plain dictionaries in the words of plotly.js.

A panel is one pair of axes; a figure is a few panels under one heading. Nothing here needs a plotting library: the page
carries plotly.js and draws what these dictionaries say.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ludus.report.figures.series import resolution, thin

COLOURS = ("#3b82c4", "#d97b29", "#2f9e72", "#c2486a", "#8067b7", "#a08a1f", "#4aa3a8", "#7f7f8c")
"""Hues that can be told from each other, by people who see fewer of them too, on white and on black."""
STEPS = "environment steps"

Trace = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    key: str
    """Unique on a page; other figures refer to it."""
    title: str
    traces: list[Trace]
    x: str = STEPS
    y: str = ""
    layout: dict[str, Any] = field(default_factory=dict)
    guides: Sequence[tuple[float, str]] = ()
    """Horizontal lines, each with its label."""
    is_log: bool = False


@dataclass(frozen=True)
class Figure:
    """A few panels under one heading, and what a reader should know about them."""

    key: str
    title: str
    about: str
    panels: list[Panel]


def colour(i: int) -> str:
    """Return the i-th colour; after the last one they begin again."""
    return COLOURS[i % len(COLOURS)]


def see_through(hue: str, opacity: float) -> str:
    """Return a colour through which what lies behind can be seen."""
    red, green, blue = (int(hue[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def packed(values: Any) -> dict[str, str]:
    """Return numbers as plotly.js reads them fastest: eight bytes each, in base64."""
    data = np.ascontiguousarray(values, "<f8")
    return {"dtype": "f8", "bdata": base64.b64encode(data.tobytes()).decode()}


def unpacked(values: Any) -> Any:
    """Return numbers that were packed as an array; names, which cannot be, as they are."""
    return np.frombuffer(base64.b64decode(values["bdata"]), "<f8") if isinstance(values, dict) else values


def line(x: np.ndarray, y: np.ndarray, name: str, hue: str, **options: Any) -> Trace:
    """Draw a series as a line: all of it or, if it is long, the extremes of its buckets."""
    kept = thin(y)
    marks = {"mode": "lines+markers", "marker": {"size": 5}} if len(kept) < 30 else {"mode": "lines"}
    style = {"color": hue, "width": options.pop("width", 2), "dash": options.pop("dash", "solid")}
    return {
        "type": "scatter",
        "name": name,
        **marks,
        "x": packed(x[kept]),
        "y": packed(y[kept]),
        "line": style,
    } | options


def raw(x: np.ndarray, y: np.ndarray, name: str, hue: str, column: str, **options: Any) -> Trace:
    """Draw a column of the journal as it is; `meta` says which, so that the page can be held against the journal."""
    return line(x, y, name, hue, meta={"column": column}, **{"width": 1, "opacity": 0.55} | options)


def band(x: np.ndarray, low: np.ndarray, high: np.ndarray, name: str, hue: str, group: str) -> list[Trace]:
    """Shade what lies between two series."""
    kept = np.union1d(thin(low), thin(high))
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0, "color": hue}, "legendgroup": group}
    bottom = edge | {"x": packed(x[kept]), "y": packed(low[kept]), "hoverinfo": "skip", "showlegend": False}
    top = edge | {"x": packed(x[kept]), "y": packed(high[kept]), "hoverinfo": "skip"}
    return [bottom, top | {"name": name, "fill": "tonexty", "fillcolor": see_through(hue, 0.18)}]


def points(x: np.ndarray, y: np.ndarray, name: str, hue: str, **options: Any) -> Trace:
    """Draw single points."""
    marker = {"color": hue, "size": 8} | options.pop("marker", {})
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": packed(x),
        "y": packed(y),
        "marker": marker,
    } | options


def histogram(values: np.ndarray, name: str, hue: str, bins: int = 40) -> Trace:
    """Count values; the counting is done here, so that the page need not carry every value."""
    known = values[np.isfinite(values)]
    counts, edges = np.histogram(known, bins=min(bins, max(1, len(np.unique(known)))))
    return bars(edges, counts, name, hue)


def bars(edges: np.ndarray, counts: np.ndarray, name: str, hue: str) -> Trace:
    """Draw counts between edges."""
    middles, widths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    place = {"x": packed(middles), "y": packed(counts), "width": packed(widths)}
    return {"type": "bar", "name": name, **place, "marker": {"color": hue, "line": {"width": 0}}}


def thinning(count: int) -> str:
    """Return what must be said of a long series, nothing of a short one."""
    most, buckets = resolution()
    if count <= most:
        return ""
    return f"{count:,} points are drawn as {buckets:,} buckets, each with its lowest and its highest point: no average."
