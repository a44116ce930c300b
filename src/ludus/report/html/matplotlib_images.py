"""Panels as PNG files, drawn by Matplotlib: it comes with MLflow, and needs neither a browser nor a screen.

It reads the same dictionaries as plotly.js does, and draws of them what these reports use.
"""

import io
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from ludus.report.figures.drawing import Panel, Trace, unpacked

SIZE, DOTS = (5.4, 3.15), 120
"""Inches, and dots in each."""
DASHES = {"dash": "--", "dot": ":", "dashdot": "-."}
PLACE = (0.11, 0.15, 0.86, 0.76)
"""Of the axes, as shares: from the left, from below, width, height. To measure texts takes as long as to draw."""
FAINT = "#8a8f98"
MOST_NAMES = 8
"""A legend with more names would hide the curves."""


def draw(panels: Iterable[Panel]) -> dict[str, bytes]:
    """Return each panel as a PNG."""
    return {panel.key: _drawn(panel) for panel in panels}


def _drawn(panel: Panel) -> bytes:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"font.size": 7, "axes.grid": True, "grid.alpha": 0.25, "axes.spines.top": False}):
        figure = Figure(SIZE, DOTS)
        FigureCanvasAgg(figure)
        axes = figure.add_axes(PLACE)
        axes.set_title(panel.title, fontsize=8, y=1.01)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        if panel.is_log:
            axes.set_yscale("log", nonpositive="mask")
        for number, trace in enumerate(panel.traces):
            DRAWN[trace["type"]](axes, trace, number)
        for height, name in panel.guides:
            axes.axhline(height, color=FAINT, linewidth=0.8, linestyle="--")
            axes.annotate(name, (1, height), xycoords=("axes fraction", "data"), fontsize=5, ha="right", va="bottom")
        if limits := panel.layout.get("yaxis", {}).get("range"):
            axes.set_ylim(*limits)
        shown = axes.get_legend_handles_labels()[1]
        if 1 < len(shown) <= MOST_NAMES:
            axes.legend(fontsize=5, framealpha=0.6)
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _scatter(axes: Any, trace: Trace, number: int) -> None:
    x, y, mode = unpacked(trace["x"]), unpacked(trace["y"]), trace.get("mode", "lines")
    line, marker = trace.get("line", {}), trace.get("marker", {})
    hue = _colour(line.get("color") or marker.get("color") or f"C{number}")
    if "fill" in trace:  # between this series and the one before it, which lie at the same places
        below = axes.lines[-1].get_ydata()
        axes.fill_between(x, below, y, color=_colour(trace["fillcolor"]), linewidth=0, label=trace.get("name"))
        return
    style: dict[str, Any] = {
        "color": hue,
        "linewidth": line.get("width", 2) / 2 if "lines" in mode else 0,
        "linestyle": DASHES.get(line.get("dash", ""), "-"),
        "marker": ("*" if "star" in str(marker.get("symbol")) else "o") if "markers" in mode else "",
        "markersize": marker.get("size", 6) / 2,
        "alpha": trace.get("opacity"),
        "label": trace.get("name") if trace.get("showlegend", True) else None,
    }
    if (reach := trace.get("error_y")) is None:
        axes.plot(x, y, **style)
    else:
        above = unpacked(reach["array"])
        axes.errorbar(x, y, (unpacked(reach["arrayminus"]) if "arrayminus" in reach else above, above), **style)


def _bar(axes: Any, trace: Trace, number: int) -> None:
    x, y, width = unpacked(trace["x"]), unpacked(trace["y"]), trace.get("width", 0.8)
    hue = trace.get("marker", {}).get("color", f"C{number}")
    hue = [_colour(each) for each in hue] if isinstance(hue, list) else _colour(hue)
    if trace.get("orientation") == "h":
        axes.barh(y, x, color=hue, label=trace.get("name"))
    else:
        axes.bar(x, y, unpacked(width) if isinstance(width, dict) else width, color=hue, label=trace.get("name"))


def _violin(axes: Any, trace: Trace, number: int) -> None:
    values, hue = unpacked(trace["y"]), _colour(trace["line"]["color"])
    names = [*(label.get_text() for label in axes.get_xticklabels() if number), trace["name"]]
    if len(np.unique(values)) > 1:
        parts = axes.violinplot([values], [number], showmeans=True)
        for part in (*parts["bodies"], *(parts[name] for name in ("cmeans", "cmins", "cmaxes", "cbars"))):
            part.set_color(hue)
            part.set_linewidth(0.8)
    else:  # a single value has no shape
        axes.plot(np.full(len(values), number), values, "o", color=hue, markersize=3)
    axes.set_xticks(range(number + 1), names, rotation=30, ha="right", fontsize=5)


def _heatmap(axes: Any, trace: Trace, number: int) -> None:
    x, y, z = trace["x"], trace["y"], np.array(trace["z"], np.float64)
    is_named = any(isinstance(each, str) for each in [*x, *y])
    across, up = (range(len(x)), range(len(y))) if is_named else (x, y)
    drawn = axes.pcolormesh(across, up, z, shading="nearest", cmap="viridis")
    if is_named:
        axes.set_xticks(across, list(map(str, x)))
        axes.set_yticks(up, list(map(str, y)))
    axes.figure.colorbar(drawn, ax=axes, label=trace.get("colorbar", {}).get("title", {}).get("text", ""))


DRAWN = {"scatter": _scatter, "bar": _bar, "violin": _violin, "heatmap": _heatmap}


def _colour(name: str) -> Any:
    """Return a colour as Matplotlib knows it; plotly.js writes transparent ones as rgba(r, g, b, a)."""
    if found := re.fullmatch(r"rgba\((\d+), ?(\d+), ?(\d+), ?([\d.]+)\)", name):
        *parts, opacity = map(float, found.groups())
        return (*(part / 255 for part in parts), opacity)
    return name
