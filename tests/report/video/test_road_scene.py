"""Pictures of roads: what was recorded is where it belongs, and of its colour."""

import numpy as np
import pytest

from ludus.report.video.road_scene import ASPHALT, CAR, GROUND, LIGHTS, METRES, OWN, RoadScene

SIZE = (600, 400)


def scene(steps: int = 2, **changes: np.ndarray) -> RoadScene:
    lane = np.stack([np.zeros(60), np.arange(60.0) * 3 - 60], axis=-1)
    rows = {
        "car": [[0.0, 0.0, np.pi / 2, 10.0, 4.6, 1.9]],
        "cars": [[[0.0, 20.0, np.pi / 2, 5.0, 4.6, 1.9], [30.0, 0.0, 0.0, 5.0, 0.0, 0.0]]],
        "lanes": [[lane, np.full_like(lane, np.nan)]],
        "route": [lane],
        "width": [3.5],
        "lights": [[[0.0, 12.0, np.pi / 2, 3], [20.0, 0.0, 0.0, 0]]],
    } | changes
    return RoadScene(SIZE, {name: np.repeat(np.asarray(row, np.float32), steps, axis=0) for name, row in rows.items()})


def at(picture: np.ndarray, ahead: float, left: float) -> tuple[int, ...]:
    """The colour so many metres ahead and to the left of the car."""
    scale = SIZE[0] / METRES
    return tuple(picture[round(SIZE[1] * 0.68 - ahead * scale), round(SIZE[0] / 2 - left * scale)].tolist())


@pytest.mark.requirement("S2.29")
def test_everything_is_where_it_was():
    picture = scene().draw(0)
    assert picture.shape == (400, 600, 3)
    assert at(picture, -1.5, 0.0) == OWN
    assert at(picture, 18.5, 0.0) == CAR
    assert at(picture, 12.0, 0.8) == LIGHTS[3]
    assert at(picture, 8.0, 1.5) == ASPHALT
    assert at(picture, 8.0, 6.0) == GROUND
    assert at(picture, 0.0, -20.0) == GROUND, "neither a light nor a car that is not there"


def test_the_driven_car_always_points_up():
    turned = scene(car=np.array([[0.0, 0.0, 0.0, 10.0, 4.6, 1.9]])).draw(0)
    assert at(turned, 0.5, 18.5) == CAR, "the car ahead of before is to the left now"


def test_after_the_last_step_all_have_driven_on():
    before, after = scene().draw(1), scene().draw(2)
    assert at(before, 17.4, 0.6) == ASPHALT
    assert at(after, 17.4, 0.6) == CAR, "half a metre nearer: this car is faster"
    np.testing.assert_array_equal(before, scene().draw(0))
