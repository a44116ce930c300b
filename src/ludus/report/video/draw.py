"""Drawing for videos: colours, text, and curves.

Pillow draws each text and each curve once, as a small picture (a sprite). A frame copies sprites and draws very little,
which is much faster.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
NIGHT, PANEL, RULE, DIM = (13, 17, 23), (18, 24, 33), (44, 54, 68), (108, 122, 143)
WHITE, GREY = (236, 242, 248), (148, 163, 184)
BLUE, AMBER, GREEN, RED, VIOLET = (88, 166, 255), (245, 166, 35), (52, 211, 153), (248, 113, 113), (192, 132, 252)
SHARP = 3
"""Lines are drawn so many times larger and then reduced, which makes them smooth."""


@lru_cache(maxsize=32)
def font(size: int) -> Any:
    """Return Pillow's own typeface, which every installation has."""
    return ImageFont.load_default(size=size)


def text_width(text: str, size: int) -> int:
    """Return the width of a text in pixels."""
    return math.ceil(font(size).getlength(text))


@lru_cache(maxsize=16_384)
def sprite(text: str, size: int, color: Color, ground: Color) -> np.ndarray:
    """Return a text as pixels `[h, w, 3]` on a background; all texts of one size have the same height."""
    image = Image.new("RGB", (max(1, text_width(text, size)), line_height(size)), ground)
    ImageDraw.Draw(image).text((0, line_height(size) - round(0.3 * size)), text, color, font(size), anchor="ls")
    return np.asarray(image)


def line_height(size: int) -> int:
    """Return the height of a line of text."""
    return round(1.3 * size)


def shortened(text: str, size: int, room: int) -> str:
    """Return a text, cut if it is wider than `room` pixels."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(f"{text}…", size) > room:
        text = text[:-1].rstrip()
    return f"{text}…"


def blit(canvas: np.ndarray, picture: np.ndarray, x: int, y: int) -> None:
    """Copy a picture onto the canvas; parts outside are cut off."""
    height, breadth = canvas.shape[:2]
    left, top = max(0, -x), max(0, -y)
    right, bottom = min(picture.shape[1], breadth - x), min(picture.shape[0], height - y)
    if right > left and bottom > top:
        canvas[y + top : y + bottom, x + left : x + right] = picture[top:bottom, left:right]


def write_text(canvas: np.ndarray, text: str, x: int, y: int, size: int, color: Color, ground: Color) -> None:
    """Write a text whose upper left corner is at (x, y)."""
    blit(canvas, sprite(text, size, color, ground), x, y)


def format_number(value: float) -> str:
    """Return a number as text: two decimals, fewer if it is large."""
    if not math.isfinite(value):
        return str(value)
    digits = 2 if abs(value) < 1000 else 1 if abs(value) < 10_000 else 0
    text = f"{value:.{digits}f}" if abs(value) < 1e7 else f"{value:.3g}"
    return text.removeprefix("-") if float(text) == 0 else text


class TextField:
    """A place for a text that changes, aligned to its right or to its left."""

    def __init__(self, box: tuple[int, int, int], size: int, color: Color, ground: Color, right: bool = True):
        """`box` is left, top and width."""
        self.x, self.y, self.room = box
        self.size, self.color, self.ground, self.right = size, color, ground, right
        self.text: str | None = None

    def show(self, canvas: np.ndarray, text: str) -> None:
        """Write the text if it has changed."""
        if text == self.text:
            return
        self.text = text
        picture = sprite(text, self.size, self.color, self.ground)[:, : self.room]
        canvas[self.y : self.y + picture.shape[0], self.x : self.x + self.room] = self.ground
        blit(canvas, picture, self.x + self.room - picture.shape[1] if self.right else self.x, self.y)


class Trace:
    """A curve that grows with the episode. Its scale is that of the whole episode, so that it never jumps."""

    def __init__(self, series: np.ndarray, box: tuple[int, int, int, int], color: Color, ground: Color = PANEL):
        """`box` is left, top, width and height."""
        self.x, self.y, self.width, self.height = box
        inner = self.width - 7
        self.at = 3 + np.round(np.linspace(0, inner, len(series)) if len(series) > 1 else np.zeros(1)).astype(int)
        heights = self._heights(np.asarray(series, np.float64))
        self.over = np.where(np.isfinite(heights), np.round(heights), self.height - 4).astype(int)
        self.blank = self._picture(ground, None, heights, series)
        self.full = self._picture(ground, color, heights, series)
        self.dot = _dot(WHITE)

    def show(self, canvas: np.ndarray, row: int) -> None:
        """Show the curve up to a row, and a dot there."""
        x, y = int(self.at[row]), int(self.over[row])
        blit(canvas, self.full[:, :x], self.x, self.y)  # later rows may have the same column of pixels
        blit(canvas, self.blank[:, x:], self.x + x, self.y)
        radius = self.dot.shape[0] // 2
        top, left = self.y + y - radius, self.x + x - radius
        under = canvas[top : top + self.dot.shape[0], left : left + self.dot.shape[1]]
        mask = self.dot[: under.shape[0], : under.shape[1], 3:] / 255.0
        under[:] = under * (1 - mask) + self.dot[: under.shape[0], : under.shape[1], :3] * mask

    def _heights(self, series: np.ndarray) -> np.ndarray:
        finite = series[np.isfinite(series)]
        low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
        if high - low < 1e-9:
            low, high = low - 1.0, high + 1.0
        self.low, self.high = float(low), float(high)
        return self.height - 4 - (series - low) / (high - low) * (self.height - 8)

    def _picture(self, ground: Color, color: Color | None, heights: np.ndarray, series: np.ndarray) -> np.ndarray:
        image = Image.new("RGB", (self.width * SHARP, self.height * SHARP), ground)
        pen = ImageDraw.Draw(image)
        if self.low < 0 < self.high:
            zero = SHARP * (self.height - 4 + self.low / (self.high - self.low) * (self.height - 8))
            pen.line([(0, zero), (self.width * SHARP, zero)], RULE, SHARP)
        if color is not None:
            points = [(SHARP * x, SHARP * y) for x, y in zip(self.at.tolist(), heights.tolist(), strict=True)]
            points = [point for point in points if math.isfinite(point[1])]
            if len(points) > 1:
                pen.line(points, color, round(1.6 * SHARP), joint="curve")
        return np.asarray(image.reduce(SHARP))


@lru_cache(maxsize=4)
def _dot(color: Color) -> np.ndarray:
    """Return a small disc with its opacity `[7, 7, 4]`."""
    image = Image.new("RGBA", (7 * 4, 7 * 4), (*color, 0))
    ImageDraw.Draw(image).ellipse((4, 4, 7 * 4 - 5, 7 * 4 - 5), (*color, 255))
    return np.asarray(image.reduce(4), np.float32)
