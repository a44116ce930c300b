"""Recorded tracks: tables of vehicles and lanes become scenarios in which the same cars are at the same places."""

import csv
from pathlib import Path

import jax
import numpy as np
import pytest

from ludus.envs.scenarios.driving.drivers import ACCELERATION, STEERING
from ludus.envs.scenarios.driving.dynamics import Motion, bicycle
from ludus.envs.scenarios.driving.environment import Driving
from ludus.envs.scenarios.driving.recorded_tracks import LANES, TRACKS, read_recorded
from ludus.envs.scenarios.driving.soundness import defects
from ludus.envs.scenarios.driving.traffic import SIZE, poses
from ludus.envs.scenarios.stored import kinds_of, opened, rows
from ludus.types import LudusError

pytestmark = pytest.mark.slow
FAR = np.array([331_000.0, 4_690_000.0])
"""Where a recording lies in the metres of a map of the world."""
STEPS = 41
ENV = Driving(scenario_length=STEPS - 1, num_cars=4, objects=4, others="log")


def lanes(name: str) -> list[dict]:
    """A road to the east of two pieces, where one lane leaves to the left on a bend; and a lane back beside it."""
    x = np.arange(-60.0, 61.0, 4.0)
    angle = np.linspace(0.0, np.pi / 2, 20)
    lines = {
        "first": (np.stack([x, 0 * x], -1), "straight bend"),
        "straight": (np.stack([x + 122.0, 0 * x], -1), ""),
        "bend": (np.stack([62.0 + 40 * np.sin(angle), 40 - 40 * np.cos(angle)], -1), "gone"),
        "back": (np.stack([np.arange(180.0, -61.0, -5.0), np.full(49, 3.5)], -1), ""),
    }
    return [
        {"scenario": name, "lane": lane, "x": p[0], "y": p[1], "width": 3.5, "speed_limit": 12.0, "next": after}
        for lane, (points, after) in lines.items()
        for p in points + FAR
    ]


def track(name: str, way: np.ndarray, heading: np.ndarray, speed: float, ego: int = 0, scenario: str = "one"):
    return [
        {
            "scenario": scenario, "track": name, "step": t, "x": way[t, 0], "y": way[t, 1], "heading": heading[t],
            "speed": speed, "length": 4.0 + 0.6 * ego, "width": 1.9, "is_ego": ego,
        }
        for t in range(len(way))
    ]  # fmt: skip


def turning(start: float, speed: float) -> tuple[np.ndarray, np.ndarray]:
    """A car that drives along the first lane and turns left with the bend."""
    s = start + speed * 0.1 * np.arange(STEPS)
    angle = np.clip((s - 62.0) / 40, 0.0, np.pi / 2)
    place = np.stack([np.minimum(s, 62.0) + 40 * np.sin(angle), 40 - 40 * np.cos(angle)], -1)
    return place + FAR, angle


def straight(start: tuple[float, float], speed: float, count: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    place = np.array(start) + np.stack([speed * 0.1 * np.arange(count), np.zeros(count)], -1)
    return place + FAR, np.full(count, 0.0 if speed > 0 else np.pi)


def vehicles(scenario: str = "one") -> list[dict]:
    return [
        *track("me", *turning(40.0, 8.0), 8.0, 1, scenario),
        *track("ahead", *straight((58.0, 0.3), 9.0), 9.0, 0, scenario),
        *track("oncoming", *straight((120.0, 3.5), -10.0), 10.0, 0, scenario),
        *track("leaves", *straight((20.0, 0.0), 4.0, 15), 4.0, 0, scenario),
        *track("wrong way", *straight((70.0, 0.0), -3.0), 3.0, 0, scenario),
        *track("in the field", *straight((50.0, -20.0), 5.0), 5.0, 0, scenario),
    ]


def written(folder: Path, tracks: list[dict], roads: list[dict]) -> Path:
    for name, columns, told in (("tracks", TRACKS, tracks), ("lanes", LANES, roads)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, columns)
            table.writeheader()
            table.writerows(told)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = written(tmp_path_factory.mktemp("recorded"), vehicles(), lanes("one"))
    scenarios, left_out = read_recorded(folder, ENV)
    assert left_out == {}
    return jax.tree.map(lambda x: x[0], scenarios)


@pytest.mark.requirement("S2.5")
def test_a_scenario_has_the_arrays_of_generated_ones(made):
    paths = jax.tree_util.tree_flatten_with_path(made)[0]
    told = {jax.tree_util.keystr(path, simple=True, separator="/"): (str(x.dtype), x.shape) for path, x in paths}
    assert told == {name: (kind.dtype, kind.shape) for name, kind in kinds_of(ENV).items()}
    assert bool(ENV.is_usable(made))
    found = defects(made["roads"], made["start"], made["cars"], made["crew"])
    assert not any(map(bool, found.values()))


def test_cars_are_where_they_were_recorded(made):
    assert made["crew"].is_there.tolist() == [True, True, True, False], (
        "neither the one in the field nor the one that comes the wrong way"
    )
    origin = np.array([40.0, 0.0])
    assert np.asarray(made["cars"].speed).tolist() == [9.0, 4.0, 10.0, 0.0]
    for step in (1, 14, 30, STEPS - 1):
        cars = jax.tree.map(lambda x, step=step: x[step - 1], made["log"].cars)
        seen = np.asarray(poses(made["roads"], cars))
        time = 0.1 * step
        # The nearest at the start comes first: 18 m ahead, 20 m behind, 80 m away.
        np.testing.assert_allclose(seen[0, :2], np.array([58.0 + 9 * time, 0.3]) - origin, atol=0.05)
        np.testing.assert_allclose(seen[2, :2], np.array([120.0 - 10 * time, 3.5]) - origin, atol=0.05)
        if step < 15:
            np.testing.assert_allclose(seen[1, :2], np.array([20.0 + 4 * time, 0.0]) - origin, atol=0.05)
        else:
            assert cars.along[1] > 160.0, "it has left the map"


def test_the_route_is_the_way_that_was_driven_and_its_actions_lead_along_it(made):
    roads, log = made["roads"], made["log"]
    expected = np.concatenate([turning(40.0, 8.0)[0] - FAR - [40.0, 0.0], np.full((STEPS, 1), 8.0)], 1)
    np.testing.assert_allclose(log.track, expected, atol=1e-3)
    assert float(log.progress) == pytest.approx(32.0, abs=0.5) and bool(log.is_clean)
    route = np.asarray(roads.points[int(roads.route)])
    assert np.hypot(*(route - (np.array([102.0, 40.0]) - [40.0, 0.0])).T).min() < 2.0, "it turns left"
    motion = Motion(*map(np.asarray, made["start"]))
    for push, turn in np.asarray(log.action) * [ACCELERATION, STEERING]:
        motion = bicycle(motion, push, turn, SIZE[0])
    np.testing.assert_allclose(np.asarray(motion.pose[:2]), expected[-1, :2], atol=0.4)


def test_what_cannot_be_used_is_left_out_by_name(tmp_path):
    away = [{**row, "y": row["y"] - 50.0} if row["track"] == "me" else row for row in vehicles("in the woods")]
    short = [row for row in vehicles("short") if row["step"] < 30]
    tracks = [*vehicles(), *away, *short, *track("who", *straight((0.0, 0.0), 5.0), 5.0, 0, "nobody")]
    roads = [row for name in ("one", "in the woods", "short", "nobody") for row in lanes(name)]
    scenarios, left_out = read_recorded(written(tmp_path, tracks, roads), ENV)
    assert len(scenarios["start"].speed) == 1
    assert left_out == {
        "in the woods": "the driven car keeps to no lane: there is no route",
        "short": "the driven car has 30 steps from 0 on, and 41 are needed",
        "nobody": "0 vehicles are marked is_ego, not one",
    }


def test_a_set_is_written_and_what_is_left_out_is_told(run, tmp_path):
    short = [row for row in vehicles("short") if row["step"] < 30]
    written(tmp_path, [*vehicles(), *short], [*lanes("one"), *lanes("short")])
    options = [
        f"env_options.{name}={getattr(ENV, name)}" for name in ("scenario_length", "num_cars", "objects", "others")
    ]
    code, out, err = run("scenarios", "read", tmp_path, "--out", "roads", *options)
    assert (code, err) == (0, "short: left out, since the driven car has 30 steps from 0 on, and 41 are needed\n")
    assert rows(ENV, opened("roads", ENV, "driving"), "training")["scenario/start/speed"].tolist() == [8.0]
    code, out, err = run("scenarios", "read", "nowhere", "--out", "more", *options)
    assert (code, out, err.count("\n")) == (2, "", 1) and "nowhere/tracks.csv: cannot be read" in err


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "lanes.csv").unlink(), r"lanes\.csv: cannot be read \(No such file"),
        (lambda folder: (folder / "tracks.csv").write_text("scenario,track\n"), "tracks.csv: has no column step"),
        (
            lambda folder: (folder / "tracks.csv").write_text(f"{','.join(TRACKS)}\none,me,0,nan,0,0,0,4,2,1\n"),
            r"tracks\.csv: line 2: x=nan must be a finite number",
        ),
        (lambda folder: (folder / "tracks.csv").write_text(f"{','.join(TRACKS)}\n"), "holds no scenario that can be"),
    ],
)
def test_a_damaged_table_is_one_line(tmp_path, spoil, said):
    folder = written(tmp_path, vehicles(), lanes("one"))
    spoil(folder)
    with pytest.raises(LudusError, match=said) as error:
        read_recorded(folder, ENV)
    assert "\n" not in str(error.value)
