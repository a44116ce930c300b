"""Pictures of the native environments, drawn from their observations: no window, no display, no game library.

A scene is drawn at three times its size and reduced, which makes its edges smooth; fixed parts are drawn once.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from ludus.report.video.draw import (
    AMBER,
    BLUE,
    DIM,
    GREEN,
    NIGHT,
    PANEL,
    VIOLET,
    Color,
    Trace,
    format_number,
    shortened,
    text_width,
    write_text,
)

SHARP = 3
SKY, PAPER, GROUND, SHADE, INK = (250, 251, 253), (236, 240, 246), (203, 213, 225), (148, 163, 184), (30, 41, 59)
WOOD, STEEL, HUB, FLAG = (217, 119, 6), (51, 65, 85), (241, 245, 249), (220, 38, 38)
PUSH = (37, 99, 235)
Point = tuple[float, float]


class Pen:
    """Draws in metres, y upwards, on a canvas of pixels."""

    def __init__(self, image: Image.Image, scale: float, origin: Point):
        """`scale` is pixels for each metre, `origin` the pixel of (0, 0), both before enlargement."""
        self.draw, self.scale, self.origin = ImageDraw.Draw(image), scale * SHARP, origin

    def at(self, point: Point) -> Point:
        """Return the place of a point on the canvas."""
        return self.origin[0] * SHARP + point[0] * self.scale, self.origin[1] * SHARP - point[1] * self.scale

    def disc(self, center: Point, radius: float, color: Color) -> None:
        """Draw a filled circle."""
        (x, y), r = self.at(center), radius * self.scale
        self.draw.ellipse((x - r, y - r, x + r, y + r), color)

    def rod(self, start: Point, end: Point, thickness: float, color: Color) -> None:
        """Draw a line with round ends."""
        a, b = self.at(start), self.at(end)
        self.draw.line([a, b], color, max(1, round(thickness * self.scale)))
        for point in (start, end):
            self.disc(point, thickness / 2, color)

    def shape(self, points: list[Point], color: Color) -> None:
        """Draw a filled polygon."""
        self.draw.polygon([self.at(point) for point in points], color)

    def box(self, corner: Point, other: Point, radius: float, color: Color) -> None:
        """Draw a rectangle with round corners between two opposite corners."""
        (x0, y0), (x1, y1) = self.at(corner), self.at(other)
        bounds = min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)
        self.draw.rounded_rectangle(bounds, radius * self.scale, color)

    def arrow(self, start: Point, reach: Point, thickness: float, color: Color) -> None:
        """Draw an arrow from a point; `reach` is its length and direction."""
        length, head = math.hypot(*reach), 2.2 * thickness
        if length < 1e-6:
            return
        along = reach[0] / length, reach[1] / length
        neck, tip, side = max(0.0, length - head), length, head / 1.4
        self.rod(start, _along(start, along, neck, 0.0), thickness, color)
        self.shape([_along(start, along, *point) for point in ((neck, side), (neck, -side), (tip, 0.0))], color)

    def twist(self, center: Point, radius: float, amount: float, color: Color) -> None:
        """Draw a torque as an arc with an arrow's head; positive torques turn counterclockwise."""
        if abs(amount) < 0.02:
            return
        (x, y), r, start = self.at(center), radius * self.scale, -90.0
        sweep = -amount * 140.0  # Pillow's angles grow clockwise
        ends = sorted((start, start + sweep))
        weight = max(2, round(0.045 * self.scale * radius / 0.5))
        self.draw.arc((x - r, y - r, x + r, y + r), ends[0], ends[1], color, weight)
        tip = math.radians(start + sweep)
        forward = tip + math.copysign(math.pi / 2, sweep)
        at = x + (r - weight / 2) * math.cos(tip), y + (r - weight / 2) * math.sin(tip)
        head = 2.4 * weight
        turns = (forward + turn for turn in (0.0, 2.3, -2.3))
        self.draw.polygon([(at[0] + head * math.cos(turn), at[1] + head * math.sin(turn)) for turn in turns], color)


def _along(start: Point, along: Point, forward: float, left: float) -> Point:
    """Return the point at a distance forward and left of another, seen in a direction."""
    return start[0] + forward * along[0] - left * along[1], start[1] + forward * along[1] + left * along[0]


class Scene:
    """A picture of one kind of environment; `draw` takes an observation and an action."""

    frames_per_second = 30
    reach: tuple[float, float, float, float]
    """Distances of the moving parts left, down, right and up of `center`, in metres. Only this area is drawn anew."""

    def __init__(self, size: tuple[int, int], options: dict[str, Any]):
        """Draw the parts that do not move."""
        self.size, self.options = size, options
        self.scale, self.origin = self.place()
        self.still = Image.new("RGB", (size[0] * SHARP, size[1] * SHARP), SKY)
        self.prepare(Pen(self.still, self.scale, self.origin))
        self.small = np.asarray(self.still.reduce(SHARP))

    def draw(self, obs: np.ndarray, action: Any) -> np.ndarray:
        """Return the picture as bytes `[h, w, 3]`; the action is None after the last step."""
        left, top, right, bottom = self._window(self.center(obs))
        part = self.still.crop((left * SHARP, top * SHARP, right * SHARP, bottom * SHARP))
        self.move(Pen(part, self.scale, (self.origin[0] - left, self.origin[1] - top)), obs, action)
        picture = self.small.copy()
        picture[top:bottom, left:right] = np.asarray(part.reduce(SHARP))
        return picture

    def _window(self, center: Point) -> tuple[int, int, int, int]:
        """Return the area of the moving parts in pixels: left, top, right, bottom."""
        (x, y), (left, down, right, up) = center, self.reach
        across = [self.origin[0] + self.scale * edge for edge in (x - left, x + right)]
        along = [self.origin[1] - self.scale * edge for edge in (y + up, y - down)]
        x0, y0 = (min(max(math.floor(ends[0]), 0), n - 1) for ends, n in zip((across, along), self.size, strict=True))
        x1, y1 = (min(math.ceil(ends[1]), n) for ends, n in zip((across, along), self.size, strict=True))
        return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)

    def place(self) -> tuple[float, Point]:
        """Return the pixels of a metre, and the pixel of the point (0, 0)."""
        raise NotImplementedError

    def center(self, obs: np.ndarray) -> Point:
        """Return the center of the moving parts."""
        return 0.0, 0.0

    def prepare(self, pen: Pen) -> None:
        """Draw the parts that do not move."""
        raise NotImplementedError

    def move(self, pen: Pen, obs: np.ndarray, action: Any) -> None:
        """Draw the parts that move."""
        raise NotImplementedError


class CartPoleScene(Scene):
    """A pole on a cart on a track, and the push that the cart gets."""

    frames_per_second = 50

    def center(self, obs: np.ndarray) -> Point:
        """Return the joint of pole and cart."""
        return float(obs[0]), 0.13

    def place(self) -> tuple[float, Point]:
        """See `Scene`."""
        self.pole = 1.35 * 2 * float(self.options.get("half_length", 0.5))
        reach = max(self.pole, 0.65) + 0.1
        self.reach = reach, reach, reach, reach
        return self.size[0] / 5.6, (self.size[0] / 2, self.size[1] * 0.72)

    def prepare(self, pen: Pen) -> None:
        """Draw the track and its ends."""
        pen.box((-9, -0.19), (9, -9), 0, PAPER)
        pen.rod((-2.4, -0.2), (2.4, -0.2), 0.03, SHADE)
        for x in (-2, -1, 0, 1, 2):
            pen.rod((x, -0.2), (x, -0.26), 0.015, SHADE)
        for x in (-2.4, 2.4):
            pen.box((x - 0.035, -0.2), (x + 0.035, 0.12), 0.03, FLAG)

    def move(self, pen: Pen, obs: np.ndarray, action: Any) -> None:
        """Draw cart, pole and push."""
        x, angle = float(obs[0]), float(obs[2])
        for side in (-0.17, 0.17):
            pen.disc((x + side, -0.12), 0.075, STEEL)
            pen.disc((x + side, -0.12), 0.03, HUB)
        pen.box((x - 0.32, 0.13), (x + 0.32, -0.11), 0.05, INK)
        if action is not None:
            toward = 1.0 if int(action) == 1 else -1.0
            pen.arrow((x + toward * 0.38, 0.01), (toward * 0.3, 0.0), 0.045, PUSH)
        tip = x + self.pole * math.sin(angle), 0.13 + self.pole * math.cos(angle)
        pen.rod((x, 0.13), tip, 0.085, WOOD)
        pen.disc((x, 0.13), 0.06, HUB)
        pen.disc((x, 0.13), 0.032, INK)


class PendulumScene(Scene):
    """A rod on a pivot, and the torque on it."""

    frames_per_second = 30
    reach = 1.05, 1.05, 1.05, 1.05

    def place(self) -> tuple[float, Point]:
        """See `Scene`."""
        return self.size[1] / 2.7, (self.size[0] / 2, self.size[1] / 2)

    def prepare(self, pen: Pen) -> None:
        """Draw the circle of the tip, with a mark at its goal."""
        (x, y), r = pen.at((0, 0)), 1.08 * pen.scale
        pen.draw.ellipse((x - r, y - r, x + r, y + r), PAPER)
        for degrees in range(0, 360, 15):
            inner, angle = 1.0 if degrees % 45 else 0.96, math.radians(degrees)
            points = [(k * math.sin(angle), k * math.cos(angle)) for k in (inner, 1.04)]
            pen.rod(points[0], points[1], 0.008, SHADE)
        pen.shape([(-0.05, 1.2), (0.05, 1.2), (0.0, 1.11)], FLAG)

    def move(self, pen: Pen, obs: np.ndarray, action: Any) -> None:
        """Draw rod and torque."""
        angle = math.atan2(float(obs[1]), float(obs[0]))
        tip = -0.9 * math.sin(angle), 0.9 * math.cos(angle)  # a growing angle turns counterclockwise
        pen.rod((0, 0), tip, 0.17, WOOD)
        pen.disc(tip, 0.05, (251, 191, 96))
        pen.disc((0, 0), 0.07, HUB)
        pen.disc((0, 0), 0.04, INK)
        if action is not None:
            pen.twist((0, 0), 0.34, float(np.clip(action[0], -2, 2)) / 2, PUSH)


class AcrobotScene(Scene):
    """Two links that hang from a joint, the line that the tip must reach, and the torque between the links."""

    frames_per_second = 15
    reach = 2.15, 2.15, 2.15, 2.15

    def place(self) -> tuple[float, Point]:
        """See `Scene`."""
        return self.size[1] / 4.7, (self.size[0] / 2, self.size[1] / 2)

    def prepare(self, pen: Pen) -> None:
        """Draw the line, one link above the joint."""
        pen.box((-9, 1), (9, 9), 0, (240, 249, 244))
        for x in np.arange(-3.4, 3.4, 0.2):
            pen.rod((float(x), 1.0), (float(x) + 0.1, 1.0), 0.022, (22, 163, 74))

    def move(self, pen: Pen, obs: np.ndarray, action: Any) -> None:
        """Draw links, joints and torque."""
        first, second = math.atan2(obs[1], obs[0]), math.atan2(obs[3], obs[2])
        elbow = math.sin(first), -math.cos(first)
        tip = elbow[0] + math.sin(first + second), elbow[1] - math.cos(first + second)
        pen.rod((0, 0), elbow, 0.16, STEEL)
        pen.rod(elbow, tip, 0.13, WOOD)
        for joint, radius in (((0.0, 0.0), 0.07), (elbow, 0.065)):
            pen.disc(joint, radius, HUB)
            pen.disc(joint, radius * 0.55, INK)
        pen.disc(tip, 0.045, (251, 191, 96))
        if action is not None:
            pen.twist(elbow, 0.3, float(action) - 1.0, PUSH)


class MountainCarScene(Scene):
    """A car in a valley, its goal, and its push."""

    frames_per_second = 30
    reach = 0.45, 0.3, 0.45, 0.45

    def center(self, obs: np.ndarray) -> Point:
        """Return the point where the car touches the ground."""
        return float(obs[0]), _height(float(obs[0]))

    def place(self) -> tuple[float, Point]:
        """See `Scene`."""
        return self.size[0] / 1.9, (self.size[0] * 0.655, self.size[1] * 0.93)

    def prepare(self, pen: Pen) -> None:
        """Draw the hills and the flag."""
        hills = [(x, _height(x)) for x in np.linspace(-1.35, 0.75, 211).tolist()]
        pen.shape([(-1.35, -1.0), *hills, (0.75, -1.0)], (226, 232, 240))
        pen.draw.line([pen.at(point) for point in hills], SHADE, round(0.012 * pen.scale), joint="curve")
        goal = float(self.options.get("goal_position", 0.5))
        foot = goal, _height(goal)
        pen.rod(foot, (goal, foot[1] + 0.17), 0.008, STEEL)
        pen.shape([(goal, foot[1] + 0.17), (goal + 0.075, foot[1] + 0.145), (goal, foot[1] + 0.12)], FLAG)

    def move(self, pen: Pen, obs: np.ndarray, action: Any) -> None:
        """Draw car and push."""
        x = float(obs[0])
        tilt = math.atan(1.35 * math.cos(3 * x))  # the slope of the hill
        along = math.cos(tilt), math.sin(tilt)

        def placed(forward: float, up: float) -> Point:
            return _along((x, _height(x)), along, forward, up)

        body = [(-12, 4), (-12, 9), (-7, 9.5), (-4, 14.5), (4, 14.5), (7, 9.5), (12, 8.5), (12, 4)]
        glass = [(-5.2, 9.8), (-3.1, 13.2), (3.1, 13.2), (5.2, 9.8)]
        pen.shape([placed(a / 100, b / 100) for a, b in body], INK)
        pen.shape([placed(a / 100, b / 100) for a, b in glass], (186, 220, 255))
        for side in (-0.07, 0.07):
            pen.disc(placed(side, 0.038), 0.035, STEEL)
            pen.disc(placed(side, 0.038), 0.015, HUB)
        if action is not None:
            push = float(np.clip(action[0], -1, 1)) if np.ndim(action) else float(action) - 1.0
            pen.arrow(placed(0.0, 0.21), (0.16 * push * along[0], 0.16 * push * along[1]), 0.02, PUSH)


def _height(x: float) -> float:
    return 0.45 * math.sin(3 * x) + 0.55


SCENES: dict[str, Callable[..., Scene]] = {
    "CartPole-v1": CartPoleScene,
    "Pendulum-v1": PendulumScene,
    "Acrobot-v1": AcrobotScene,
    "MountainCar-v0": MountainCarScene,
    "MountainCarContinuous-v0": MountainCarScene,
}
"""By the id of the native environment."""


class Curves:
    """Growing curves of the signals, for an environment without a picture."""

    frames_per_second = 30
    MAX_SIGNALS = 8

    def __init__(self, size: tuple[int, int], signals: dict[str, np.ndarray], units: dict[str, str]):
        """Place as many signals as there is room for."""
        self.canvas = np.empty((size[1], size[0], 3), np.uint8)
        self.canvas[:] = NIGHT
        chosen = list(signals)[: self.MAX_SIGNALS]
        columns = 1 if len(chosen) <= 3 else 2
        rows = max(1, -(-len(chosen) // columns))
        breadth, height = (size[0] - 16) // columns - 16, (size[1] - 12) // rows - 10
        colors = (BLUE, GREEN, AMBER, VIOLET)
        self.traces = []
        for i, name in enumerate(chosen):
            x, y = 16 + (i % columns) * (breadth + 16), 10 + (i // columns) * (height + 10)
            self.canvas[y : y + height, x : x + breadth] = PANEL
            title = f"{name}, {units[name]}" if units[name] else name
            color = colors[i % len(colors)]
            trace = Trace(signals[name], (x + 6, y + 20, breadth - 12, height - 24), color, PANEL)
            extent = f"{format_number(trace.low)} … {format_number(trace.high)}"
            room = breadth - text_width(extent, 11) - 24
            write_text(self.canvas, shortened(title, 12, room), x + 8, y + 3, 12, color, PANEL)
            write_text(self.canvas, extent, x + breadth - text_width(extent, 11) - 8, y + 4, 11, DIM, PANEL)
            self.traces.append(trace)

    def draw(self, row: int) -> np.ndarray:
        """Return the picture of a row as bytes `[h, w, 3]`; the next call draws on the same array."""
        for trace in self.traces:
            trace.show(self.canvas, row)
        return self.canvas
