"""A reader of recorded traffic: tables of tracks and lanes become scenarios of `driving`.

    FOLDER/tracks.csv   scenario, track, step, x, y, heading, speed, length, width, is_ego
    FOLDER/lanes.csv    scenario, lane, x, y, width, speed_limit, next

A row of tracks is a vehicle at one step, ten steps a second from 0 on: metres, radians and m/s, in any one frame of
coordinates; `is_ego` is 1 for the vehicle that is to be driven. A row of lanes is a point of a lane's centre line, in
the order of driving; `next` names the lanes that follow it, with spaces between them. These are the columns of a
ScenarioNet description (`tracks`, `map_features`, `sdc_id`) and of nuPlan's tables, written out as text; recordings in
pickles are not read, since reading them can execute anything. Traffic lights are not read.

The way of each vehicle is laid on the paths that lanes make: one that keeps to none of them is left out.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.scenarios.base import Scenario
from ludus.envs.scenarios.driving.drivers import ACCELERATION, STEERING
from ludus.envs.scenarios.driving.dynamics import DT, Motion
from ludus.envs.scenarios.driving.environment import Driving
from ludus.envs.scenarios.driving.geometry import NEVER, overlaps
from ludus.envs.scenarios.driving.roads import LENGTH, PATHS, Lines, built
from ludus.envs.scenarios.driving.traffic import SIZE, Cars, Crew
from ludus.envs.scenarios.driving.world import Log
from ludus.types import LudusError

TRACKS = ("scenario", "track", "step", "x", "y", "heading", "speed", "length", "width", "is_ego")
LANES = ("scenario", "lane", "x", "y", "width", "speed_limit", "next")
TEXTS = frozenset(("scenario", "track", "lane", "next"))
AHEAD, NEAR = 45.0, 80.0
"""A path begins where a lane comes within NEAR metres of the place that is AHEAD metres ahead of the driven car."""
RAW = 128
"""Points of a line before it is laid out anew."""
MOST_ASIDE = 2.0
"""A vehicle that is farther than this from a path, in the mean, does not drive on it."""
MOST_CHAINS = 64
KIND = sum(map(len, Driving.templates.values()))
"""Of all these scenarios: the number after those of the templates."""

Table = dict[str, list[dict[str, Any]]]
"""The rows of each scenario."""


class Track(NamedTuple):
    """One vehicle: rows `[T, 4]` of x, y, heading and speed from step 0 on, and its length and width."""

    rows: np.ndarray
    size: np.ndarray


class Way(NamedTuple):
    """A path: points `[RAW, 2]`, a metre and a half apart, its width and its speed limit."""

    points: np.ndarray
    width: float
    limit: float


def read_recorded(folder: str | Path, env: Driving) -> tuple[Scenario, dict[str, str]]:
    """Return the scenarios `[n, ...]` of a folder, and why each of those that are left out is: by its name."""
    tracks, lanes = _table(Path(folder) / "tracks.csv", TRACKS), _table(Path(folder) / "lanes.csv", LANES)
    made, left_out = [], {}
    for name, rows in tracks.items():
        try:
            made.append(_scenario(rows, lanes.get(name, []), env))
        except LudusError as error:
            left_out[name] = str(error)
    if not made:
        first = next(iter(left_out.items()), ("", "it has no rows"))
        raise LudusError(f"{folder}: holds no scenario that can be used ({': '.join(filter(None, first))})")
    return jax.tree.map(lambda *x: np.stack(x), *made), left_out


def _table(path: Path, columns: Sequence[str]) -> Table:
    found: Table = {}
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
                raise LudusError(f"{path}: has no column {missing[0]}; it needs {', '.join(columns)}")
            for row in reader:
                read: dict[str, Any] = {
                    name: row[name] if name in TEXTS else _number(path, reader.line_num, name, row) for name in columns
                }
                found.setdefault(str(read["scenario"]), []).append(read)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LudusError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    return found


def _number(path: Path, line: int, name: str, row: dict[str, Any]) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = np.nan
    if not np.isfinite(value):
        raise LudusError(f"{path}: line {line}: {name}={row[name]} must be a finite number")
    return value


def _scenario(rows: list[dict[str, Any]], lanes: list[dict[str, Any]], env: Driving) -> Scenario:
    """Return one scenario, its arrays in NumPy; LudusError says why there is none."""
    steps = env.scenario_length + 1
    tracks = dict(_tracks(rows))
    egos = {row["track"] for row in rows if row["is_ego"] == 1}
    if len(egos) != 1:
        raise LudusError(f"{len(egos)} vehicles are marked is_ego, not one")
    ego = tracks.pop(egos.pop())
    if len(ego.rows) < steps:
        raise LudusError(f"the driven car has {len(ego.rows)} steps from 0 on, and {steps} are needed")
    origin = ego.rows[0, :2].copy()
    ways = _ways(lanes, origin, AHEAD * np.array([np.cos(ego.rows[0, 2]), np.sin(ego.rows[0, 2])]))
    moved = {name: track._replace(rows=_shifted(track.rows[:steps], origin)) for name, track in tracks.items()}
    driven = _shifted(ego.rows[:steps], origin)
    route = _on_path(driven, ways)
    if route is None:
        raise LudusError("the driven car keeps to no lane: there is no route")
    kept = [(name, path) for name, track in moved.items() if (path := _on_path(track.rows, ways)) is not None]
    kept.sort(key=lambda item: float(np.hypot(*moved[item[0]].rows[0, :2])))
    used = list(dict.fromkeys([route, *(path for _, path in kept), *range(len(ways))]))[:PATHS]
    kept = [(moved[name], used.index(path)) for name, path in kept if path in used][: env.num_cars]
    chosen = [ways[number] for number in used]
    roads = jax.device_get(_built(*_lines(chosen)))
    crew, cars = _around(kept, chosen, env.num_cars, steps)
    along, aside = _along(driven, chosen[0])
    is_clean = not _collides(driven, kept) and bool((np.abs(aside) < chosen[0].width).all())
    replayed = jax.tree.map(lambda x: x[1:], cars) if env.others == "log" else ()
    progress, is_clean = _real(along[-1] - along[0]), _array(is_clean)
    log = Log(_actions(driven), _real(driven[:, [0, 1, 3]]), progress, is_clean, replayed)
    motion = Motion(_real(driven[0, :3]), _real(driven[0, 3]))
    first = jax.tree.map(lambda x: x[0], cars)
    return {"cars": first, "crew": crew, "log": log, "roads": roads, "start": motion}


def _shifted(rows: np.ndarray, origin: np.ndarray) -> np.ndarray:
    return np.concatenate([rows[:, :2] - origin, rows[:, 2:]], axis=1)


def _tracks(rows: list[dict[str, Any]]) -> Iterator[tuple[str, Track]]:
    """Yield the vehicles that are there from step 0 on, as long as no step is missing."""
    by_track: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_track.setdefault(row["track"], {})[int(row["step"])] = row
    for name, steps in by_track.items():
        count = next((step for step in range(len(steps) + 1) if step not in steps), 0)
        if count:
            names = ("x", "y", "heading", "speed")
            way = np.array([[steps[step][key] for key in names] for step in range(count)])
            yield name, Track(way, np.array([steps[0]["length"], steps[0]["width"]], np.float32))


def _ways(rows: list[dict[str, Any]], origin: np.ndarray, middle: np.ndarray) -> list[Way]:
    """Return every path that lanes make, from its beginning to its end, cut to what lies near a middle."""
    lanes: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lanes.setdefault(row["lane"], []).append(row)
    follows = {name: [x for x in points[0]["next"].split() if x in lanes] for name, points in lanes.items()}
    led_to = {name for names in follows.values() for name in names}
    open_chains = [[name] for name in lanes if name not in led_to]
    ways: list[Way] = []
    while open_chains and len(ways) < MOST_CHAINS:
        chain = open_chains.pop()
        more = [name for name in follows[chain[-1]] if name not in chain]
        if more:
            open_chains += [[*chain, name] for name in more]
            continue
        points = np.array([[row["x"], row["y"]] for name in chain for row in lanes[name]]) - origin
        first = lanes[chain[0]][0]
        if (cut := _cut(points, middle)) is not None:
            ways.append(Way(cut, float(first["width"]), float(first["speed_limit"])))
    return ways


def _cut(points: np.ndarray, middle: np.ndarray) -> np.ndarray | None:
    """Return the part of a line that begins near a middle, with points at equal distances; None if none is near."""
    points = points[np.append(True, np.hypot(*np.diff(points, axis=0).T) > 1e-3)]
    if len(points) < 2:
        return None
    length = np.append(0.0, np.cumsum(np.hypot(*np.diff(points, axis=0).T)))
    fine = np.arange(0.0, length[-1], 1.0)
    dense = np.stack([np.interp(fine, length, points[:, axis]) for axis in (0, 1)], axis=-1)
    is_near = np.hypot(*(dense - middle).T) < NEAR
    if not is_near.any():
        return None
    wanted = fine[is_near.argmax()] + np.arange(RAW) * (LENGTH / (RAW - 1))
    wanted = wanted[wanted <= length[-1]]
    cut = np.stack([np.interp(wanted, length, points[:, axis]) for axis in (0, 1)], axis=-1)
    if len(cut) < 2:
        return None
    rest = (cut[-1] - cut[-2]) * np.arange(1, RAW - len(cut) + 1)[:, None]
    return np.concatenate([cut, cut[-1] + rest])


def _along(rows: np.ndarray, way: Way) -> tuple[np.ndarray, np.ndarray]:
    """Return for places `[T, 2+]` the metres along a path and to the left of it."""
    start, step = way.points[:-1], np.diff(way.points, axis=0)
    size = np.hypot(*step.T)
    offset = rows[:, None, :2] - start
    share = np.clip((offset * step).sum(-1) / size**2, 0.0, 1.0)
    rest = offset - share[..., None] * step
    best = (rest**2).sum(-1).argmin(1)
    every = np.arange(len(rows))
    before = np.append(0.0, np.cumsum(size))[best]
    left = (step[best, 0] * rest[every, best, 1] - step[best, 1] * rest[every, best, 0]) / size[best]
    return before + share[every, best] * size[best], left


def _on_path(rows: np.ndarray, ways: Sequence[Way]) -> int | None:
    """Return the number of the path that a vehicle keeps to; None if there is none."""
    far = []
    for way in ways:
        along, aside = _along(rows, way)
        at = np.clip(along / (LENGTH / (RAW - 1)), 0, RAW - 2).astype(int)
        step = np.diff(way.points, axis=0)[at]
        is_with = np.cos(rows[:, 2] - np.arctan2(step[:, 1], step[:, 0])) > 0.5
        distance = np.hypot(*(rows[:, :2] - way.points[at]).T)
        far.append(np.where(is_with, np.maximum(np.abs(aside), distance - 3.0), 1e3).mean())
    return int(np.argmin(far)) if far and min(far) < MOST_ASIDE else None


def _lines(ways: Sequence[Way]) -> tuple[Lines, Any]:
    """Return the lines of a map and its speed limit, that of the route."""
    itself, count = np.arange(PATHS), len(ways)
    filled = [*ways, *[ways[0]] * (PATHS - count)]
    lines = Lines(
        raw=_real(np.stack([way.points for way in filled])),
        is_there=_array(itself < count),
        width=_real([way.width for way in filled]),
        left=_array(itself),
        right=_array(itself),
        entry=_real([NEVER] * PATHS),
        group=_array([-1] * PATHS),
        groups=_array(1),
        rank=_real([0.0] * PATHS),
        circles=_array(False),
        route=_array(0),
    )
    return lines, _real(ways[0].limit)


@jax.jit
def _built(lines: Lines, limit: jax.Array) -> Any:
    return built(lines, limit, jnp.float32(40.0), jnp.float32(0.0), jnp.int32(KIND))


def _around(kept: Sequence[tuple[Track, int]], ways: Sequence[Way], count: int, steps: int) -> tuple[Crew, Cars]:
    """Return the cars around at every step; one whose track ends has left the map then."""
    path, along = np.zeros((steps, count), np.int32), np.full((steps, count), LENGTH, np.float32)
    aside, speed = np.zeros((steps, count), np.float32), np.zeros((steps, count), np.float32)
    size = np.tile(np.asarray(SIZE, np.float32), (count, 1))
    for place, (track, number) in enumerate(kept):
        length = len(track.rows)
        path[:, place], size[place] = number, track.size
        along[:length, place], aside[:length, place] = _along(track.rows, ways[number])
        speed[:length, place] = track.rows[:, 3]
    is_there = np.arange(count) < len(kept)
    crew = Crew(_real(size), _array(is_there), _real(np.ones(count)), _array(np.ones(count, bool)))
    return crew, Cars(*map(_array, (path, along, aside, speed)))


def _collides(driven: np.ndarray, kept: Sequence[tuple[Track, int]]) -> bool:
    for track, _ in kept:
        own = driven[: len(track.rows), :3]
        if bool(
            overlaps(jnp.asarray(own), jnp.array(SIZE), jnp.asarray(track.rows[:, :3]), jnp.asarray(track.size)).any()
        ):
            return True
    return False


def _actions(rows: np.ndarray) -> Any:
    """Return the actions by which a bicycle follows a track, `[T, 2]`."""
    speed, turn = rows[:, 3], np.angle(np.exp(1j * np.diff(rows[:, 2])))
    path = np.maximum(0.5 * (speed[1:] + speed[:-1]) * DT, 1e-3)
    slip = np.arcsin(np.clip(turn * SIZE[0] / 4 / path, -0.9, 0.9))
    steering = np.arctan(2 * np.tan(slip))
    made = np.stack([np.diff(speed) / DT / ACCELERATION, steering / STEERING], axis=-1)
    return _real(np.clip(made, -1.0, 1.0))


def _real(numbers: Sequence[float] | np.ndarray | float) -> Any:
    return np.asarray(numbers, np.float32)


def _array(values: Sequence[int] | np.ndarray | int) -> Any:
    """Return an array of the type that JAX has for it."""
    array = np.asarray(values)
    return array.astype(np.int32) if array.dtype == np.int64 else array
