"""Rewards and terminations by name: what happens in one step, from where the car stands on the roads."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.scenarios.driving.dynamics import DT, Motion
from ludus.envs.scenarios.driving.geometry import NEVER, corners, heading, nearest, overlaps, project, time_to_overlap
from ludus.envs.scenarios.driving.roads import SHOULDER, SPACING, Roads, lights
from ludus.envs.scenarios.driving.traffic import SIZE, Ego
from ludus.types import Array

REWARDS = {
    "progress": 0.2,
    "overlap": -3.0,
    "offroad": -3.0,
    "red_light": -3.0,
    "off_route": -0.1,
    "wrong_way": 0.0,
    "speeding": -0.2,
    "discomfort": 0.0,
    "close": 0.0,
}
"""The terms of the reward and their weights, where options say nothing."""
TERMINATIONS = ("offroad", "overlap", "run_red_light", "off_route", "wrong_way")
ENDING = ("offroad", "overlap", "run_red_light")
"""Those that end an episode where options say nothing; `accuracy` is judged by them."""
STANDING = 0.1
"""A car that is slower stands, m/s."""
CLOSE = 0.95
"""Seconds to a collision that are too few."""


class Stand(NamedTuple):
    """The place of the car that is driven on each path, `[R]`."""

    along: jax.Array
    aside: jax.Array
    is_aligned: jax.Array
    """Whether the path leads where the car points, by less than 60 degrees."""


class Happening(NamedTuple):
    """The events of one step."""

    overlap: jax.Array
    at_fault: jax.Array
    offroad: jax.Array
    red_light: jax.Array
    off_route: jax.Array
    wrong_way: jax.Array
    astride: jax.Array
    """Whether the car is not within one lane."""
    time_to_collision: jax.Array
    advance: jax.Array
    """Metres along the route."""
    speeding: jax.Array
    """m/s above the limit."""


def stand(roads: Roads, motion: Motion) -> Stand:
    """Find where the car is on every path."""
    found = project(roads.points, SPACING, motion.pose[:2])
    yaw = jnp.take_along_axis(roads.yaw, found.segment[:, None], 1)[:, 0]
    return Stand(found.along, found.aside, (heading(yaw) * heading(motion.pose[2])).sum(-1) > 0.5)


def as_seen(roads: Roads, motion: Motion, at: Stand) -> Ego:
    """Return what others see of the car."""
    is_on = at.is_aligned & (jnp.abs(at.aside) < 0.5 * roads.width)
    return Ego(jnp.where(is_on, at.along, NEVER), at.along[roads.route], motion.speed)


def is_offroad(roads: Roads, pose: jax.Array) -> jax.Array:
    """Return whether a corner of the car is on none of the lanes and their shoulders."""
    size = jnp.array(SIZE)
    _, _, rest = jax.vmap(lambda corner: nearest(roads.points, jnp.broadcast_to(corner, (len(roads.width), 2))))(
        corners(pose, size)
    )
    reach = (0.5 * roads.width + SHOULDER) ** 2
    return ~((rest * rest).sum(-1) < reach).any(-1).all()


def happening(
    roads: Roads,
    before: tuple[Motion, Stand],
    after: tuple[Motion, Stand],
    others: jax.Array,
    sizes: jax.Array,
    is_there: jax.Array,
    speeds: jax.Array,
    time: Array,
) -> Happening:
    """Judge a step: `others` are the poses `[N, 3]` of the cars around after it."""
    motion, at = after
    hit = overlaps(motion.pose, jnp.array(SIZE), others, sizes) & is_there
    is_in = jnp.abs(at.aside) < 0.5 * roads.width
    lane = jnp.where(at.is_aligned, jnp.abs(at.aside), NEVER).argmin()
    astride = jnp.abs(at.aside[lane]) + 0.5 * SIZE[1] > 0.5 * roads.width[lane]
    limit = roads.limit[roads.route]
    return Happening(
        hit.any(),
        (hit & _is_at_fault(motion, others, sizes, astride)).any(),
        is_offroad(roads, motion.pose),
        _ran_red(roads, before[1], at, time),
        jnp.abs(at.aside[roads.route]) > roads.width[roads.route],
        is_in.any() & ~(is_in & _leads_on(roads, at, motion)).any(),
        astride,
        _time_to_collision(motion, others, sizes, is_there, speeds),
        at.along[roads.route] - before[1].along[roads.route],
        jnp.maximum(motion.speed - limit, 0.0),
    )


def reward_of(weights: tuple[tuple[str, float], ...], seen: Happening, is_rough: jax.Array, limit: jax.Array) -> Array:
    """Return the sum of the terms, each times its weight."""
    terms = {
        "progress": jnp.clip(seen.advance / (limit * DT), -1.0, 1.0),
        "overlap": seen.overlap,
        "offroad": seen.offroad,
        "red_light": seen.red_light,
        "off_route": seen.off_route,
        "wrong_way": seen.wrong_way,
        "speeding": seen.speeding / limit,
        "discomfort": is_rough,
        "close": seen.time_to_collision < CLOSE,
    }
    return sum(weight * terms[name].astype(jnp.float32) for name, weight in weights if weight) + jnp.float32(0.0)


def ended(keys: tuple[str, ...], seen: Happening) -> jax.Array:
    """Return whether one of these keys fires."""
    fired = [seen.red_light if key == "run_red_light" else getattr(seen, key) for key in keys]
    return jnp.stack([jnp.bool_(False), *fired]).any()


def _leads_on(roads: Roads, at: Stand, motion: Motion) -> jax.Array:
    """Return which paths lead where the car points, by less than 90 degrees."""
    number = jnp.clip(at.along / SPACING, 0, roads.yaw.shape[1] - 1).astype(jnp.int32)
    yaw = jnp.take_along_axis(roads.yaw, number[:, None], 1)[:, 0]
    return jnp.cos(yaw - motion.pose[2]) > 0


def _ran_red(roads: Roads, before: Stand, after: Stand, time: Array) -> jax.Array:
    """Return whether the front has crossed a stop line while its light was red."""
    front = 0.5 * SIZE[0]
    crossed = (before.along + front <= roads.stop) & (after.along + front > roads.stop)
    is_on = after.is_aligned & (jnp.abs(after.aside) < 0.5 * roads.width) & roads.is_there
    return (crossed & is_on & lights(roads, time).is_red).any()


def _is_at_fault(motion: Motion, others: jax.Array, sizes: jax.Array, astride: jax.Array) -> jax.Array:
    """Return for which cars a collision is this car's fault: it drove into them, or was not within its lane.

    It is not where this car stands, and not where the other one drives into it from behind.
    """
    length, width = SIZE
    nose = jnp.concatenate([motion.pose[:2] + heading(motion.pose[2]) * 0.5 * length, motion.pose[2:]])
    with_nose = overlaps(nose, jnp.array([0.8, width]), others, sizes)
    way = others[:, :2] - motion.pose[:2]
    is_behind = (way * heading(motion.pose[2])).sum(-1) < -0.25 * length
    return (motion.speed > STANDING) & (with_nose | (astride & ~is_behind))


def _time_to_collision(
    motion: Motion, others: jax.Array, sizes: jax.Array, is_there: jax.Array, speeds: jax.Array
) -> jax.Array:
    """Return the seconds to the first collision with a car ahead, if all keep their velocities; at most 10."""
    own = heading(motion.pose[2]) * motion.speed
    time = time_to_overlap(motion.pose, jnp.array(SIZE), own, others, sizes, heading(others[:, 2]) * speeds[:, None])
    is_ahead = ((others[:, :2] - motion.pose[:2]) * heading(motion.pose[2])).sum(-1) > 0
    counts = is_there & is_ahead & (motion.speed > STANDING)
    return jnp.minimum(jnp.where(counts, time, NEVER).min(), 10.0)
