"""Short clips of two segments side by side, as one picture: a strip of frames from which a page cuts what it shows."""

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ludus.report.video.draw import NIGHT
from ludus.report.video.encode import place
from ludus.report.video.scenes import SCENES

SIZE = 300, 200
"""Breadth and height of a frame, in pixels."""
MOST_SIZE = 1000.0
"""Numbers beyond this are not drawn: no scene is so large."""
FRAMES_PER_SECOND = 30

Draw = Callable[[int], np.ndarray]


class Segment(NamedTuple):
    """The steps of a segment that are drawn, `[steps, ...]` each."""

    obs: np.ndarray
    action: np.ndarray


def rate_of(env: str) -> int:
    """Return how many steps of an environment make a second."""
    scene: Any = SCENES.get(env.rpartition(":")[2])
    return FRAMES_PER_SECOND if scene is None else scene.frames_per_second


def strip(env: str, first: Segment, second: Segment, every: int) -> bytes | None:
    """Return every n-th frame of two segments, one below the other, as a PNG; None where nothing can be drawn."""
    sides = [_drawing(env, segment) for segment in (first, second)]
    count = len(range(0, len(first.obs), every))
    canvas = np.empty((count * SIZE[1], 2 * SIZE[0], 3), np.uint8)
    canvas[:] = NIGHT
    for column, draw in enumerate(sides):
        if draw is None:
            return None
        across = slice(column * SIZE[0], (column + 1) * SIZE[0])
        try:
            for row in range(count):
                place(canvas[row * SIZE[1] : (row + 1) * SIZE[1], across], draw(row * every))
        except (IndexError, TypeError, ValueError, OverflowError):  # another environment of that name
            return None
    file = io.BytesIO()
    Image.fromarray(canvas).save(file, "PNG", compress_level=3)
    return file.getvalue()


def _drawing(env: str, segment: Segment) -> Draw | None:
    """Return what draws a step of a segment: a native environment's scene, or the picture that was observed."""
    obs, action = segment
    if obs.dtype == np.uint8 and obs.ndim == 4:
        channels = 3 if obs.shape[-1] % 3 == 0 else 1  # of stacked pictures the newest is the last
        return lambda row: np.broadcast_to(obs[row, ..., -channels:], (*obs.shape[1:3], 3))
    name = env.rpartition(":")[2]
    if name not in SCENES or obs.ndim != 2 or not (np.abs(obs) < MOST_SIZE).all():
        return None
    scene = SCENES[name](SIZE, {})
    return lambda row: scene.draw(obs[row], action[row])
