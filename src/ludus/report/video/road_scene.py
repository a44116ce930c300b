"""Roads with cars, seen from above: drawn from what was recorded of an episode, the driven car always pointing up."""

import math
from collections.abc import Mapping

import numpy as np
from PIL import Image, ImageDraw

SHARP = 2
"""Pictures are drawn so many times larger and then reduced, which makes edges smooth."""
GROUND, ASPHALT, EDGE, MARKS, ROUTE = (214, 226, 208), (92, 99, 110), (236, 240, 246), (116, 124, 136), (96, 140, 200)
CAR, GLASS, OWN, OWN_GLASS = (226, 232, 240), (100, 116, 139), (37, 99, 235), (191, 219, 254)
LIGHTS = {1: (34, 197, 94), 2: (250, 204, 21), 3: (239, 68, 68)}
METRES = 78.0
"""So many are seen from the left edge to the right one."""
SHOULDER, STEP, BEYOND = 0.5, 0.1, 20.0


class RoadScene:
    """Pictures of one episode on roads: lanes, lights, the route, the cars around and the one that is driven."""

    frames_per_second = 10

    def __init__(self, size: tuple[int, int], rows: Mapping[str, np.ndarray]):
        """`rows` has what was recorded for each step: `car`, `cars`, `lanes`, `lights`, `route` and `width`."""
        self.size, self.rows = size, rows
        self.scale = SHARP * size[0] / METRES
        self.origin = SHARP * size[0] / 2, SHARP * size[1] * 0.68

    def draw(self, row: int) -> np.ndarray:
        """Return the picture before a step as bytes `[h, w, 3]`; after the last one, all cars have driven on."""
        last = len(self.rows["car"]) - 1
        is_after = row > last
        row = min(row, last)
        car, cars = self.rows["car"][row], self.rows["cars"][row]
        if is_after:
            car, cars = _driven_on(car), _driven_on(cars)
        image = Image.new("RGB", (self.size[0] * SHARP, self.size[1] * SHARP), GROUND)
        pen = ImageDraw.Draw(image)
        self._lanes(pen, row, car)
        for x, y, yaw, color in self.rows["lights"][row].tolist():
            if color:
                self._box(pen, car, (x, y, yaw, 0.0, 0.6, float(self.rows["width"][row])), LIGHTS[int(color)])
        for each in cars:
            if each[4] > 0:
                self._car(pen, car, each, (CAR, GLASS))
        self._car(pen, car, car, (OWN, OWN_GLASS))
        return np.asarray(image.reduce(SHARP))

    def _lanes(self, pen: ImageDraw.ImageDraw, row: int, car: np.ndarray) -> None:
        width = float(self.rows["width"][row])
        lanes = [self._at(car, _prolonged(lane)) for lane in self.rows["lanes"][row] if np.isfinite(lane).all()]
        for extra, color in ((0.3, EDGE), (0.0, ASPHALT)):
            for lane in lanes:
                pen.line(lane, color, round((width + 2 * SHOULDER + extra) * self.scale), joint="curve")
        for lane in lanes:
            pen.line(lane, MARKS, max(1, round(0.12 * self.scale)))
        pen.line(self._at(car, self.rows["route"][row]), ROUTE, round(0.5 * self.scale), joint="curve")

    def _car(self, pen: ImageDraw.ImageDraw, car: np.ndarray, who: np.ndarray, colors: tuple) -> None:
        x, y, yaw, _, length, width = who.tolist()
        self._box(pen, car, (x, y, yaw, 0.0, length, width), colors[0])
        self._box(pen, car, (x, y, yaw, 0.16 * length, 0.2 * length, 0.8 * width), colors[1])

    def _box(self, pen: ImageDraw.ImageDraw, car: np.ndarray, box: tuple[float, ...], color: tuple) -> None:
        x, y, yaw, forward, length, width = box
        c, s = math.cos(yaw), math.sin(yaw)
        places = [(forward + a * length / 2, b * width / 2) for a, b in ((1, 1), (-1, 1), (-1, -1), (1, -1))]
        pen.polygon(self._at(car, np.array([(x + c * a - s * b, y + s * a + c * b) for a, b in places])), color)

    def _at(self, car: np.ndarray, points: np.ndarray) -> list[tuple[float, float]]:
        """Return where points are in the picture: the car is at its place, and looks up."""
        c, s = math.cos(float(car[2])), math.sin(float(car[2]))
        away = np.asarray(points, np.float64) - np.asarray(car[:2], np.float64)
        ahead, left = away @ (c, s), away @ (-s, c)
        made = np.stack([self.origin[0] - left * self.scale, self.origin[1] - ahead * self.scale], axis=-1)
        return [(x, y) for x, y in made.tolist()]


def _prolonged(lane: np.ndarray) -> np.ndarray:
    """Return a lane that goes on beyond the edges of the map."""
    ends = lane[0] + BEYOND * (lane[0] - lane[1]), lane[-1] + BEYOND * (lane[-1] - lane[-2])
    return np.concatenate([ends[0][None], lane, ends[1][None]])


def _driven_on(cars: np.ndarray) -> np.ndarray:
    """Return cars `[..., 6]` one step later, if all go on as they do."""
    moved = cars.copy()
    moved[..., 0] += STEP * cars[..., 3] * np.cos(cars[..., 2])
    moved[..., 1] += STEP * cars[..., 3] * np.sin(cars[..., 2])
    return moved
