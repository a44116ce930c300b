"""The texts, numbers and curves beside the scene on every frame of a video; they never cover the scene.

    +----------------+---------+
    |                | who     |
    |     scene      | numbers |
    |                | action  |
    +----------------+ signals |
    | return value . |         |
    +----------------+---------+

`Overlay.draw` draws row t of a recorded episode on the canvas and returns the numbers that it drew.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ludus.report.video.draw import (
    AMBER,
    BLUE,
    DIM,
    GREEN,
    GREY,
    NIGHT,
    PANEL,
    RED,
    RULE,
    VIOLET,
    WHITE,
    Color,
    TextField,
    Trace,
    format_number,
    line_height,
    shortened,
    sprite,
    text_width,
    write_text,
)
from ludus.runs.episode_file import Episode

SCENE = (600, 400)
SIDE, STRIP, MARGIN = 300, 160, 16
SIZE = (SCENE[0] + SIDE, SCENE[1] + STRIP)
"""Of a whole frame."""
MOST_BARS, MOST_CELLS = 6, 6
SMALL, PLAIN, LARGE, HUGE = 12, 13, 17, 30
SIGNAL_SIZES = ((9, 14, 24), (12, 13, 20), (10**9, 12, 15))
"""Up to so many signals: the size of their text, and the distance between their lines."""


class Overlay:
    """Draws the rows of one episode; the parts that never change are drawn once."""

    def __init__(self, episode: Episode, action_names: Sequence[str] = (), note: str = ""):
        """`note` is written below the title; it may say why there is no picture."""
        self.episode = episode
        self.canvas = np.empty((SIZE[1], SIZE[0], 3), np.uint8)
        self.canvas[:] = PANEL
        self.canvas[SCENE[1] :, : SCENE[0]] = NIGHT
        self.canvas[:, SCENE[0]] = RULE
        self.canvas[SCENE[1], : SCENE[0]] = RULE
        self.scene = self.canvas[: SCENE[1], : SCENE[0]]
        self.columns, self.actions = _columns(episode), episode.actions
        y = self._title(note)
        y = self._numbers(y)
        y = self._actions(y, tuple(action_names))
        self._signals(y)
        self._traces()

    def draw(self, row: int) -> dict[str, Any]:
        """Draw a row on the canvas; return the numbers that were drawn, and their texts."""
        values = {name: column[row] for name, column in self.columns.items()}
        shown = {"step": f"{row + 1:,}"}
        for name, text in self.formats.items():
            shown[name] = text(values[name])
        for name, field in self.fields.items():
            field.show(self.canvas, shown[name])
        self._draw_actions(row, shown)
        for name, field in self.signal_fields.items():
            shown[name] = _signal_text(values["signals/" + name], self.episode.about.units[name])
            field.show(self.canvas, shown[name])
        for trace in self.traces:
            trace.show(self.canvas, row)
        drawn = {name: _finite(value) for name, value in values.items() if not name.startswith("signals/")}
        signals = {name: _finite(values["signals/" + name]) for name in self.episode.about.units}
        about = self.episode.about
        return {
            "row": row,
            "step": row + 1,
            "epoch": about.iteration,
            **drawn,
            "action": [_finite(x) for x in self.actions[row].tolist()],
            "signals": signals,
            "shown": shown,
        }

    def _title(self, note: str) -> int:
        about, x, room = self.episode.about, SCENE[0] + MARGIN, SIDE - 2 * MARGIN
        name = about.env.rpartition(":")[2]
        write_text(self.canvas, shortened(name, 20, room), x, 12, 20, WHITE, PANEL)
        trained = [about.algorithm.upper()] if about.algorithm else []
        trained += [f"epoch {about.iteration:,}"] if about.iteration is not None else []
        trained += [f"{about.steps:,} steps"] if about.steps is not None else []
        lines = [" · ".join(trained), " · ".join(filter(None, [about.label, f"episode {about.index}", note]))]
        y = 40
        for line in filter(None, lines):
            write_text(self.canvas, shortened(line, SMALL, room), x, y, SMALL, GREY, PANEL)
            y += line_height(SMALL)
        return y + 8

    def _numbers(self, y: int) -> int:
        """Place return and step in large text, then reward, value and entropy if they were recorded."""
        x, self.fields = SCENE[0] + MARGIN, {}
        self.formats: dict[str, Callable[[float], str]] = {"return": format_number, "reward": format_number}
        self._label("return", x, y, BLUE)
        self._label("step", x + 190, y)
        self.fields["return"] = TextField((x, y + 13, 180), HUGE, WHITE, PANEL, right=False)
        self.fields["step"] = TextField((x + 190, y + 22, 78), 21, WHITE, PANEL, right=False)
        y += 13 + line_height(HUGE) + 8
        names = [name for name in ("reward", "value", "entropy") if name in self.columns]
        for name, left in zip(names, (x, x + 95, x + 190), strict=False):
            self.formats[name] = format_number
            self._label(name, left, y, AMBER if name == "value" else GREY)
            self.fields[name] = TextField((left, y + 14, 86), LARGE, WHITE, PANEL, right=False)
        return self._rule(y + 14 + line_height(LARGE) + 8)

    def _actions(self, y: int, names: tuple[str, ...]) -> int:
        """Place cells for a discrete action, bars for numbers, or a text if there are too many."""
        low, high = (self.episode.arrays[f"action_{side}"] for side in ("low", "high"))
        discrete, x, room = self.episode.about.discrete, SCENE[0] + MARGIN, SIDE - 2 * MARGIN
        self.bars: list[_Bar] = []
        self.cells: list[tuple[np.ndarray, np.ndarray, int]] = []
        if len(discrete) == 1 and discrete[0] and high[0] - low[0] < MOST_CELLS:
            count = int(high[0] - low[0]) + 1
            names = names if len(names) == count else tuple(str(int(low[0]) + i) for i in range(count))
            breadth = (room - 6 * (count - 1)) // count
            self.cells = [
                (_cell(name, breadth, False), _cell(name, breadth, True), x + i * (breadth + 6))
                for i, name in enumerate(names)
            ]
            self.cells_y = y
            return self._rule(y + 24 + 8)
        if len(discrete) > MOST_BARS:
            write_text(self.canvas, f"{len(discrete)} action components", x, y, SMALL, GREY, PANEL)
            return self._rule(y + line_height(SMALL) + 8)
        names = names if len(names) == len(discrete) else tuple(f"action {i}" for i in range(len(discrete)))
        ends = np.where(np.isfinite(low), low, -1.0), np.where(np.isfinite(high), high, 1.0)
        self.bars = [
            _Bar(self.canvas, (x, y + 17 * i, room), name, float(ends[0][i]), float(ends[1][i]))
            for i, name in enumerate(names)
        ]
        return self._rule(y + 17 * len(names) + 6)

    def _draw_actions(self, row: int, shown: dict[str, str]) -> None:
        values = self.actions[row].tolist()
        if self.cells:
            chosen = int(values[0] - self.episode.arrays["action_low"][0])
            for i, (idle, lit, x) in enumerate(self.cells):
                self.canvas[self.cells_y : self.cells_y + 24, x : x + idle.shape[1]] = lit if i == chosen else idle
        for i, bar in enumerate(self.bars):
            shown[f"action {i}"] = format_number(values[i])
            bar.show(self.canvas, values[i], shown[f"action {i}"])

    def _signals(self, y: int) -> None:
        """Place as many signals as there is room for; the side file has all of them."""
        names, x, room = list(self.episode.about.units), SCENE[0] + MARGIN, SIDE - 2 * MARGIN
        size, pitch = next((s, p) for most, s, p in SIGNAL_SIZES if len(names) <= most)
        most = (SIZE[1] - 8 - y) // pitch
        if len(names) > most:
            rest = len(names) - (most - 1)
            names = names[: most - 1]
            write_text(self.canvas, f"and {rest} more", x, y + pitch * (most - 1), size, DIM, PANEL)
        self.signal_fields = {}
        for i, name in enumerate(names):
            top = y + pitch * i
            write_text(self.canvas, shortened(name, size, room - 100), x, top, size, GREY, PANEL)
            self.signal_fields[name] = TextField((x + room - 98, top, 98), size, WHITE, PANEL)

    def _traces(self) -> None:
        """Place three small curves under the scene: the return, the value (or the reward), and the first signal."""
        columns, series = self.columns, [("return", "return", BLUE)]
        series.append(("value", "value", AMBER) if "value" in columns else ("reward", "reward", AMBER))
        if self.episode.about.units:
            name = next(iter(self.episode.about.units))
            unit = self.episode.about.units[name]
            series.append((f"signals/{name}", f"{name}, {unit}" if unit else name, GREEN))
        elif "entropy" in columns:
            series.append(("entropy", "entropy", VIOLET))
        breadth = (SCENE[0] - MARGIN * (len(series) + 1)) // len(series)
        self.traces = []
        for i, (name, title, color) in enumerate(series):
            x, y = MARGIN + i * (breadth + MARGIN), SCENE[1] + 10
            trace = Trace(columns[name], (x, y + 18, breadth, STRIP - 38), color, NIGHT)
            extent = f"{format_number(trace.low)} … {format_number(trace.high)}"
            room = breadth - text_width(extent, 11) - 8
            write_text(self.canvas, shortened(title, SMALL, room), x, y, SMALL, color, NIGHT)
            write_text(self.canvas, extent, x + breadth - text_width(extent, 11), y + 1, 11, DIM, NIGHT)
            self.traces.append(trace)

    def _label(self, text: str, x: int, y: int, color: Color = GREY) -> None:
        write_text(self.canvas, text, x, y, SMALL, color, PANEL)

    def _rule(self, y: int) -> int:
        self.canvas[y, SCENE[0] + MARGIN : SIZE[0] - MARGIN] = RULE
        return y + 9


class _Bar:
    """A bar for a number between two bounds, with its name and its text; it starts at zero if the bounds contain it."""

    def __init__(self, canvas: np.ndarray, box: tuple[int, int, int], name: str, low: float, high: float):
        x, self.y, room = box
        write_text(canvas, shortened(name, SMALL, 84), x, self.y, SMALL, GREY, PANEL)
        self.left, self.right = x + 88, x + room - 52
        self.low, self.high = low, high
        self.zero = self._at(min(max(0.0, low), high))
        self.field = TextField((x + room - 48, self.y, 48), SMALL, WHITE, PANEL)

    def _at(self, value: float) -> int:
        span = (self.high - self.low) or 1.0
        share = min(max((value - self.low) / span, 0.0), 1.0) if math.isfinite(value) else 0.0
        return self.left + round(share * (self.right - self.left))

    def show(self, canvas: np.ndarray, value: float, text: str) -> None:
        top, bottom = self.y + 4, self.y + 13
        canvas[top:bottom, self.left : self.right] = RULE
        at = self._at(value)
        canvas[top:bottom, min(at, self.zero) : max(at, self.zero)] = GREEN if at >= self.zero else RED
        canvas[top - 1 : bottom + 1, self.zero : self.zero + 1] = GREY
        self.field.show(canvas, text)


def _cell(name: str, breadth: int, is_chosen: bool) -> np.ndarray:
    """Return the picture of one of several choices, chosen or not."""
    ground = BLUE if is_chosen else RULE
    picture = np.empty((24, breadth, 3), np.uint8)
    picture[:] = ground
    text = sprite(shortened(name, PLAIN, breadth - 4), PLAIN, NIGHT if is_chosen else GREY, ground)
    left, top = (breadth - text.shape[1]) // 2, (24 - text.shape[0]) // 2
    picture[top : top + text.shape[0], max(0, left) : max(0, left) + text.shape[1]] = text
    return picture


def _columns(episode: Episode) -> dict[str, np.ndarray]:
    """Return the columns that are shown, by name."""
    names = [name for name in ("reward", "return", "value", "entropy") if name in episode.arrays]
    columns = {name: episode.arrays[name] for name in names}
    return columns | {f"signals/{name}": x for name, x in episode.signals.items()}


def _signal_text(value: float, unit: str) -> str:
    return f"{format_number(float(value))} {unit}".rstrip()


def _finite(value: Any) -> float | None:
    """Return a number, or None for NaN and infinity, which JSON does not have."""
    return float(value) if math.isfinite(value) else None
