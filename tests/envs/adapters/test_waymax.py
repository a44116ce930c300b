"""Waymax's simulator states as tables. Waymax's own data cannot be had here: these objects have the same fields."""

import csv
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ludus.envs.adapters.waymax import write_tables, write_waymax_tables
from ludus.types import LudusError

STEPS = 5


def state():
    """The driven vehicle, one that is first seen later, and a pedestrian; two lanes in a row, and one back."""
    shape = (3, STEPS)
    time = np.arange(STEPS) * np.ones(shape)
    valid = np.ones(shape, bool)
    valid[1, :2] = False
    seen = SimpleNamespace(
        x=10 * time, y=np.ones(shape), yaw=0.5 * np.ones(shape), vel_x=3 * np.ones(shape), vel_y=4 * np.ones(shape),
        length=4.5 * np.ones(shape), width=2 * np.ones(shape), valid=valid,
    )  # fmt: skip
    about = SimpleNamespace(is_sdc=np.array([True, False, False]), object_types=np.array([1, 1, 2]))
    lines = {
        7: [(0.0, 0.0), (10.0, 0.0)],
        8: [(10.5, 0.0), (20.0, 0.0)],
        9: [(10.5, 0.5), (0.0, 0.5)],
        3: [(0.0, 9.0), (1.0, 9.0)],
    }
    rows = [(number, *place) for number, line in lines.items() for place in line]
    ids, x, y = (np.array(column) for column in zip(*rows, strict=True))
    types = np.where(ids == 3, 15, 2)  # one is an edge of the road
    points = SimpleNamespace(x=x, y=y, ids=ids, types=types, valid=np.ones(len(ids), bool))
    return SimpleNamespace(log_trajectory=seen, object_metadata=about, roadgraph_points=points)


@pytest.mark.requirement("S2.25")
def test_states_become_tables(tmp_path):
    write_tables([state(), state()], tmp_path)
    with (tmp_path / "tracks.csv").open() as file:
        tracks = list(csv.DictReader(file))
    assert [(row["scenario"], row["track"], row["step"]) for row in tracks] == [
        (name, track, str(step)) for name in "01" for track, first in (("0", 0), ("1", 2)) for step in range(first, 5)
    ]
    first = {name: float(value) for name, value in tracks[3].items()}
    assert first == {
        "scenario": 0, "track": 0, "step": 3, "x": 30.0, "y": 1.0, "heading": 0.5, "speed": 5.0, "length": 4.5,
        "width": 2.0, "is_ego": 1,
    }  # fmt: skip
    with (tmp_path / "lanes.csv").open() as file:
        lanes = [row for row in csv.DictReader(file) if row["scenario"] == "1"]
    told = {row["lane"]: row["next"] for row in lanes}
    assert told == {"7": "8", "8": "", "9": ""}, "what turns back does not follow, and an edge is no lane"
    assert [float(row["x"]) for row in lanes if row["lane"] == "8"] == [10.5, 20.0]


def test_without_waymax_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "waymax", None)
    with pytest.raises(LudusError, match="validation: needs Waymax: pip install"):
        write_waymax_tables("validation", tmp_path / "out", 3)
    assert not (tmp_path / "out").exists()
