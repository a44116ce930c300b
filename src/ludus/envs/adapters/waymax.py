"""Scenarios of Waymax (https://github.com/waymo-research/waymax) as tables of tracks and lanes.

NOT TRIED: the Waymo Open Motion Dataset, which Waymax reads, has a licence of its own and cannot be fetched without an
account. This file is written after Waymax's documentation; its tests give it objects with the same fields.

    write_waymax_tables("womd/validation.tfrecord@150", "recordings", count=100)
    ludus scenarios read recordings --out roads
"""

import csv
import dataclasses
import importlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ludus.envs.scenarios.driving.recorded_tracks import LANES, TRACKS
from ludus.types import LudusError

VEHICLE = 1
"""The number of vehicles among the types of objects."""
LANE_TYPES = (1, 2)
"""Of freeways and of surface streets."""
WIDTH, SPEED_LIMIT = 3.7, 15.0
"""Of every lane: the points of a road graph have neither."""
JOINED = 2.0
"""Metres between the end of a lane and the beginning of one that follows it, at most."""


def write_waymax_tables(path: str, folder: str | Path, count: int, max_num_objects: int = 64) -> None:
    """Write the first scenarios of a data set as `tracks.csv` and `lanes.csv`, which `ludus scenarios read` reads."""
    try:
        config: Any = importlib.import_module("waymax.config")
        dataloader: Any = importlib.import_module("waymax.dataloader")
    except ImportError as error:
        raise LudusError(f"{path}: needs Waymax: pip install git+https://github.com/waymo-research/waymax") from error
    asked = dataclasses.replace(config.WOD_1_1_0_VALIDATION, path=path, max_num_objects=max_num_objects)
    write_tables(itertools.islice(dataloader.simulator_state_generator(config=asked), count), folder)


def write_tables(states: Iterable[Any], folder: str | Path) -> None:
    """Write Waymax's simulator states, without a batch axis, as tables."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / "tracks.csv").open("w", newline="") as one, (Path(folder) / "lanes.csv").open("w") as other:
        tracks, lanes = csv.writer(one), csv.writer(other)
        tracks.writerow(TRACKS)
        lanes.writerow(LANES)
        for number, state in enumerate(states):
            tracks.writerows((number, *row) for row in _tracks(state))
            lanes.writerows((number, *row) for row in _lanes(state.roadgraph_points))


def _tracks(state: Any) -> Iterator[tuple]:
    """Yield a row for each step at which a vehicle is seen, after the name of the scenario."""
    seen, about = state.log_trajectory, state.object_metadata
    is_ego = np.asarray(about.is_sdc)
    is_vehicle = (np.asarray(about.object_types) == VEHICLE) | is_ego
    speed = np.hypot(np.asarray(seen.vel_x), np.asarray(seen.vel_y))
    columns = [np.asarray(x) for x in (seen.x, seen.y, seen.yaw, speed, seen.length, seen.width)]
    for who, step in np.argwhere(np.asarray(seen.valid) & is_vehicle[:, None]).tolist():
        yield who, step, *(float(column[who, step]) for column in columns), int(is_ego[who])


def _lanes(points: Any) -> Iterator[tuple]:
    """Yield a row for each point of each lane, after the name of the scenario."""
    is_lane = np.asarray(points.valid) & np.isin(np.asarray(points.types), LANE_TYPES)
    ids, places = np.asarray(points.ids)[is_lane], np.stack([points.x, points.y], -1)[is_lane]
    lines = {int(number): places[ids == number] for number in np.unique(ids)}
    lines = {number: line for number, line in lines.items() if len(line) > 1}
    for number, line in lines.items():
        after = " ".join(str(other) for other in lines if other != number and _follows(line, lines[other]))
        for x, y in line.tolist():
            yield number, x, y, WIDTH, SPEED_LIMIT, after


def _follows(line: np.ndarray, other: np.ndarray) -> bool:
    """Return whether a lane begins where another one ends, in the same direction."""
    is_with = float((line[-1] - line[-2]) @ (other[1] - other[0])) > 0
    return is_with and float(np.hypot(*(other[0] - line[-1]))) < JOINED
