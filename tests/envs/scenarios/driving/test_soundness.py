"""Scenarios from elsewhere that make no sense are named, left out and counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ludus.envs.scenarios.driving.dynamics import Motion
from ludus.envs.scenarios.driving.geometry import NEVER
from ludus.envs.scenarios.driving.roads import PATHS, Lines, built
from ludus.envs.scenarios.driving.soundness import defects
from ludus.envs.scenarios.driving.traffic import Cars, Crew

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def roads():
    """Two parallel lanes to the east, 3.5 m apart; there are no other paths."""
    x = jnp.linspace(0.0, 200.0, 30)
    raw = jnp.stack([jnp.stack([x, jnp.full(30, 3.5 * lane)], -1) for lane in range(PATHS)])
    none, zeros = jnp.full(PATHS, NEVER), jnp.zeros(PATHS)
    own = jnp.arange(PATHS)
    lines = Lines(
        raw, own < 2, jnp.full(PATHS, 3.5), own, own, none, jnp.full(PATHS, -1), jnp.int32(0), zeros, jnp.bool_(False),
        jnp.int32(1),
    )  # fmt: skip
    return jax.jit(built)(lines, jnp.float32(12.0), jnp.float32(30.0), jnp.float32(0.0), jnp.int32(0))


def told(roads, path=(1, 1, 0), along=(40.0, 80.0, 40.0), is_there=(True, True, True)):
    """The defects of a scenario whose own car is at 20 m of the northern lane, with three around it."""
    motion = Motion(jnp.array([20.0, 3.5, 0.0]), jnp.float32(8.0))
    cars = Cars(jnp.array(path), jnp.array(along), jnp.zeros(3), jnp.full(3, 5.0))
    crew = Crew(jnp.tile(jnp.array([4.6, 1.9]), (3, 1)), jnp.array(is_there), jnp.ones(3), jnp.ones(3, bool))
    return {words for words, is_so in jax.device_get(look(roads, motion, cars, crew)).items() if is_so}


look = jax.jit(defects)
CROWDED = {"with cars that overlap at the start"}


def test_a_sound_scenario_has_no_defect(roads):
    assert told(roads) == set()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"along": (20.0, 80.0, 40.0)}, CROWDED),  # in the driven car
        ({"along": (40.0, 43.0, 40.0)}, CROWDED),  # in each other
        ({"along": (40.0, 45.0, 40.0)}, set()),  # 0.4 m apart
        ({"along": (20.0, 80.0, 40.0), "is_there": (False, True, True)}, set()),  # nobody is there
        ({"path": (5, 1, 0)}, {"with a car on a path that is none"}),
        ({"path": (1, 99, 0)}, {"with a car on a path that is none"}),
    ],
)
def test_cars_are_where_cars_can_be(roads, changes, expected):
    assert told(roads, **changes) == expected


@pytest.mark.parametrize("route", [2, -1, PATHS])
def test_a_route_is_a_path_that_is_there(roads, route):
    assert told(roads._replace(route=jnp.int32(route))) == {"without a route"}
    assert told(roads._replace(route=np.int32(0))) == set()
