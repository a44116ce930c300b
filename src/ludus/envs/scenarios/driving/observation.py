"""Observations: what is seen from the car, in its own frame, as groups of numbers or as one row of them.

Distances are divided by `METRES` and speeds by `SPEED`; everything lies between -`MOST` and `MOST`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.scenarios.driving.geometry import heading, turned
from ludus.envs.scenarios.driving.roads import LENGTH, PATHS, Roads, lights, place
from ludus.envs.scenarios.driving.traffic import SIZE, Crew
from ludus.spaces import Box, FeatureGroup, Space, grouped, split_groups, structured
from ludus.types import Array

METRES, SPEED, MOST = 20.0, 10.0, 10.0
STRIDE = 2
"""Of the points of each path, so many are one road point."""


class Sizes(NamedTuple):
    """The numbers of everything that is seen."""

    past_steps: int
    objects: int
    object_steps: int
    road_points: int
    road_box: tuple[float, float, float]
    """Metres ahead, behind, and to each side."""
    traffic_lights: int
    targets: int
    target_gap: float


def groups(sizes: Sizes) -> tuple[FeatureGroup, ...]:
    """Return the feature groups, sorted by name as they are in a row."""
    return (
        FeatureGroup("car", (5,)),
        FeatureGroup("lights", (sizes.traffic_lights, 5), valid=4),
        FeatureGroup("objects", (sizes.objects, 5 + 4 * sizes.object_steps), valid=4 + 4 * sizes.object_steps),
        FeatureGroup("past", (sizes.past_steps, 5), ordered=(0,)),
        FeatureGroup("road", (sizes.road_points, 5), valid=4),
        FeatureGroup("targets", (sizes.targets, 4), ordered=(0,)),
    )


def row(sizes: Sizes) -> Box:
    """Return the space of one flat row that holds all groups."""
    return grouped(groups(sizes), -MOST, MOST)


def space(sizes: Sizes, is_flat: bool) -> Space:
    """Return the space of observations."""
    return row(sizes) if is_flat else structured(row(sizes))


def unflatten(rows: Array, sizes: Sizes) -> dict[str, Array]:
    """Return the groups of rows `[..., n]`."""
    return split_groups(row(sizes), rows)


class SeenBefore(NamedTuple):
    """The latest poses with speeds, the newest last: of the car `[H, 4]`, and of those around `[K, N, 4]`."""

    own: jax.Array
    others: jax.Array


def remembered(past: SeenBefore, own: jax.Array, others: jax.Array) -> SeenBefore:
    """Put the newest poses in the place of the oldest."""
    return SeenBefore(jnp.concatenate([past.own[1:], own[None]]), jnp.concatenate([past.others[1:], others[None]]))


class Own(NamedTuple):
    """The car as it knows itself, besides its motion."""

    along: jax.Array
    """Metres along its route."""
    aside: jax.Array
    """Metres to the left of it."""
    action: jax.Array
    """The latest one."""


def observed(
    sizes: Sizes, roads: Roads, past: SeenBefore, crew: Crew, is_there: jax.Array, own: Own, time: Array
) -> dict[str, jax.Array]:
    """Return all groups; `is_there` says which of the cars around can be seen."""
    here = past.own[-1]
    limit = roads.limit[roads.route]
    car = jnp.stack([here[3] / SPEED, limit / SPEED, own.aside / roads.width[roads.route], *own.action])
    seen = {
        "car": car,
        "lights": _lights(sizes, roads, here, own.along, time),
        "objects": _objects(sizes, past, is_there, crew.size, here),
        "past": _past(sizes, past, here),
        "road": _road(sizes, roads, here),
        "targets": _targets(sizes, roads, here, own.along),
    }
    return {name: jnp.clip(group, -MOST, MOST) for name, group in seen.items()}


def _from(here: jax.Array, points: jax.Array) -> jax.Array:
    """Return points `[..., 2]` as seen from a pose."""
    return turned(points - here[:2], -here[2])


def _past(sizes: Sizes, past: SeenBefore, here: jax.Array) -> jax.Array:
    own = past.own[-sizes.past_steps :]
    way = heading(own[:, 2] - here[2])
    return jnp.concatenate([_from(here, own[:, :2]) / METRES, way, own[:, 3:] / SPEED], axis=-1)


def _objects(sizes: Sizes, past: SeenBefore, is_there: jax.Array, box: jax.Array, here: jax.Array) -> jax.Array:
    """Return the nearest cars: for each step x, y and velocity, then cosine and sine, length, width, and 1."""
    now = past.others[-1]
    far = ((now[:, :2] - here[:2]) ** 2).sum(-1)
    _, rows = jax.lax.top_k(-jnp.where(is_there, far, 1e9), sizes.objects)
    seen = past.others[-sizes.object_steps :, rows]
    velocity = turned(heading(seen[..., 2]) * seen[..., 3:], -here[2])
    places = jnp.concatenate([_from(here, seen[..., :2]) / METRES, velocity / SPEED], axis=-1)
    places = places.swapaxes(0, 1).reshape(sizes.objects, -1)
    there = is_there[rows][:, None]
    rest = jnp.concatenate([heading(now[rows, 2] - here[2]), box[rows] / 5.0, jnp.ones_like(there, float)], axis=-1)
    return jnp.where(there, jnp.concatenate([places, rest], axis=-1), 0.0)


def _road(sizes: Sizes, roads: Roads, here: jax.Array) -> jax.Array:
    """Return the nearest points of lanes within the box: x, y, cosine and sine of the lane, and 1."""
    points = roads.points[:, ::STRIDE].reshape(-1, 2)
    yaw = roads.yaw[:, ::STRIDE].reshape(-1)
    place = _from(here, points)
    ahead, behind, side = sizes.road_box
    x, y = place[:, 0], place[:, 1]
    is_in = (x < ahead) & (x > -behind) & (jnp.abs(y) < side)
    # Paths that share a lane would show it twice: a point counts for the first path that has it.
    number = jnp.arange(PATHS)
    shared = jnp.where(number[:, None, None] > number[None, :, None], _owned(roads), False).any(1).reshape(-1)
    far = jnp.where(is_in & ~shared, (place * place).sum(-1), 1e9)
    least, rows = jax.lax.top_k(-far, sizes.road_points)
    seen = jnp.concatenate([place[rows] / METRES, heading(yaw[rows] - here[2]), jnp.ones((len(rows), 1))], axis=-1)
    return jnp.where((least > -1e8)[:, None], seen, 0.0)


def _owned(roads: Roads) -> jax.Array:
    """Return `[b, a, p]`: whether point p of path b, of those that are shown, lies on path a."""
    return (roads.along[:, :, ::STRIDE] < LENGTH + 1).swapaxes(0, 1)


def _lights(sizes: Sizes, roads: Roads, here: jax.Array, along: jax.Array, time: Array) -> jax.Array:
    """Return the lights, that of the route first and then the nearest: x, y of the stop line, red, yellow, and 1."""
    shown = lights(roads, time)
    paths = jnp.arange(PATHS)
    lines, _ = place(roads, paths, jnp.minimum(roads.stop, LENGTH))
    seen = _from(here, lines)
    has = (roads.group >= 0) & roads.is_there
    is_route = paths == roads.route
    passed = is_route & (along + 0.5 * SIZE[0] > roads.stop)
    far = jnp.where(is_route, -1.0, (seen * seen).sum(-1))
    least, rows = jax.lax.top_k(-jnp.where(has & ~passed, far, 1e9), sizes.traffic_lights)
    values = [seen[rows] / METRES, shown.is_red[rows][:, None], shown.is_yellow[rows][:, None]]
    values.append(jnp.ones((len(rows), 1)))
    return jnp.where((least > -1e8)[:, None], jnp.concatenate(values, axis=-1), 0.0)


def _targets(sizes: Sizes, roads: Roads, here: jax.Array, along: jax.Array) -> jax.Array:
    """Return points of the route ahead: x, y, cosine and sine."""
    point, yaw = place(roads, roads.route, along + sizes.target_gap * (1 + jnp.arange(sizes.targets)))
    return jnp.concatenate([_from(here, point) / METRES, heading(yaw - here[2])], axis=-1)
