"""Scenarios that make no sense, though every number of them may be finite: nobody could drive there."""

import jax
import jax.numpy as jnp

from ludus.envs.scenarios.driving.dynamics import Motion
from ludus.envs.scenarios.driving.geometry import overlaps
from ludus.envs.scenarios.driving.roads import Roads
from ludus.envs.scenarios.driving.traffic import SIZE, Cars, Crew, is_on_map, poses


def defects(roads: Roads, motion: Motion, cars: Cars, crew: Crew) -> dict[str, jax.Array]:
    """Return by the words for it whether a scenario has each defect: no route, cars that begin within each other."""
    return {
        "without a route": ~_is_path(roads, roads.route),
        "with a car on a path that is none": (crew.is_there & ~_is_path(roads, cars.path)).any(),
        "with cars that overlap at the start": _is_crowded(roads, motion, cars, crew),
    }


def _is_path(roads: Roads, number: jax.Array) -> jax.Array:
    count = len(roads.is_there)
    return (number >= 0) & (number < count) & roads.is_there[jnp.clip(number, 0, count - 1)]


def _is_crowded(roads: Roads, motion: Motion, cars: Cars, crew: Crew) -> jax.Array:
    pose = jnp.concatenate([motion.pose[None], poses(roads, cars)])
    size = jnp.concatenate([jnp.array(SIZE)[None], crew.size])
    is_there = jnp.append(True, is_on_map(cars, crew))
    hit = overlaps(pose[:, None], size[:, None], pose[None], size[None])
    return jnp.triu(hit & is_there[:, None] & is_there[None], 1).any()
