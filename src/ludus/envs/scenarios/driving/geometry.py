"""Geometry in the plane, in metres and radians: boxes, polylines, and how both lie to each other.

A pose is `(x, y, yaw)`; a box is a rectangle `(length, width)` whose middle has a pose. A polyline is a row of points
`[P, 2]`, and distances along it are counted from its first point.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

NEVER = 1e6
"""Stands for a time or a distance that is never reached: an infinity would not be let into a file."""


class Projection(NamedTuple):
    """The point of a polyline that is nearest to another point."""

    along: jax.Array
    """Distance along the polyline."""
    aside: jax.Array
    """Distance from the polyline, positive to the left of it."""
    segment: jax.Array
    """Number of the segment that the nearest point is on."""


def heading(yaw: jax.Array) -> jax.Array:
    """Return the unit vector `[..., 2]` of a direction."""
    return jnp.stack([jnp.cos(yaw), jnp.sin(yaw)], axis=-1)


def turned(vector: jax.Array, yaw: jax.Array) -> jax.Array:
    """Return a vector `[..., 2]` turned counterclockwise."""
    c, s = jnp.cos(yaw), jnp.sin(yaw)
    x, y = vector[..., 0], vector[..., 1]
    return jnp.stack([c * x - s * y, s * x + c * y], axis=-1)


def wrapped(angle: jax.Array) -> jax.Array:
    """Return an angle between -pi and pi."""
    return (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi


def corners(pose: jax.Array, size: jax.Array) -> jax.Array:
    """Return the corners `[..., 4, 2]` of a box, counterclockwise from the front left one."""
    signs = jnp.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    offsets = 0.5 * size[..., None, :] * signs
    return pose[..., None, :2] + turned(offsets, pose[..., None, 2])


def overlaps(pose: jax.Array, size: jax.Array, other: jax.Array, other_size: jax.Array) -> jax.Array:
    """Return whether two boxes overlap: they do unless a side of one of them parts them (separating axes)."""
    between = other[..., :2] - pose[..., :2]
    turn = other[..., 2] - pose[..., 2]
    c, s = jnp.abs(jnp.cos(turn)), jnp.abs(jnp.sin(turn))
    across = jnp.stack([jnp.stack([c, s], -1), jnp.stack([s, c], -1)], -2)
    half, other_half = 0.5 * size, 0.5 * other_size
    in_one = jnp.abs(turned(between, -pose[..., 2]))
    in_other = jnp.abs(turned(between, -other[..., 2]))
    fits_one = in_one < half + (across * other_half[..., None, :]).sum(-1)
    fits_other = in_other < other_half + (across * half[..., None, :]).sum(-1)
    return fits_one.all(-1) & fits_other.all(-1)


def time_to_overlap(
    pose: jax.Array,
    size: jax.Array,
    motion: jax.Array,
    other: jax.Array,
    other_size: jax.Array,
    other_motion: jax.Array,
) -> jax.Array:
    """Return after which time two boxes meet that keep their velocities `[..., 2]`, or `NEVER`.

    The other box is taken for the smallest one around it that is parallel to the first.
    """
    place = turned(other[..., :2] - pose[..., :2], -pose[..., 2])
    speed = turned(other_motion - motion, -pose[..., 2])
    turn = other[..., 2] - pose[..., 2]
    c, s = jnp.abs(jnp.cos(turn)), jnp.abs(jnp.sin(turn))
    length, width = other_size[..., 0], other_size[..., 1]
    reach = 0.5 * (size + jnp.stack([c * length + s * width, s * length + c * width], -1))
    still = jnp.abs(speed) < 1e-6
    rate = jnp.where(still, 1.0, speed)
    one, two = (-reach - place) / rate, (reach - place) / rate
    inside = jnp.abs(place) < reach
    enter = jnp.where(still, jnp.where(inside, -NEVER, NEVER), jnp.minimum(one, two)).max(-1)
    leave = jnp.where(still, jnp.where(inside, NEVER, -NEVER), jnp.maximum(one, two)).min(-1)
    return jnp.where((enter < leave) & (leave > 0), jnp.clip(enter, 0.0, NEVER), NEVER)


def nearest(points: jax.Array, point: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return for each of polylines `[..., P, 2]` the segment nearest to a point, the share of it, and the offset.

    The share tells how far along the segment the nearest point is; the offset `[..., 2]` leads from there to `point`.
    """
    start, step = points[..., :-1, :], points[..., 1:, :] - points[..., :-1, :]
    offset = point[..., None, :] - start
    share = jnp.clip((offset * step).sum(-1) / jnp.maximum((step * step).sum(-1), 1e-9), 0.0, 1.0)
    rest = offset - share[..., None] * step
    segment = (rest * rest).sum(-1).argmin(-1)
    share = jnp.take_along_axis(share, segment[..., None], -1)[..., 0]
    rest = jnp.take_along_axis(rest, segment[..., None, None], -2)[..., 0, :]
    return segment, share, rest


def project(points: jax.Array, spacing: float, point: jax.Array) -> Projection:
    """Project a point `[2]` onto polylines `[..., P, 2]` whose points are `spacing` apart."""
    point = jnp.broadcast_to(point, (*points.shape[:-2], 2))
    segment, share, rest = nearest(points, point)
    ends = jnp.take_along_axis(points, (segment[..., None] + jnp.arange(2))[..., None], -2)
    step = ends[..., 1, :] - ends[..., 0, :]
    left = step[..., 0] * rest[..., 1] - step[..., 1] * rest[..., 0]
    distance = jnp.sqrt((rest * rest).sum(-1))
    return Projection((segment + share) * spacing, jnp.where(left < 0, -distance, distance), segment)


def resample(points: jax.Array, count: int, spacing: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return `count` points of a polyline at equal distances along it, the directions there, and its length.

    A polyline that is shorter is prolonged straight on.
    """
    step = points[1:] - points[:-1]
    length = jnp.sqrt((step * step).sum(-1))
    along = jnp.concatenate([jnp.zeros(1), jnp.cumsum(length)])
    direction = step[-1] / jnp.maximum(length[-1], 1e-6)
    far = jnp.concatenate([points, (points[-1] + direction * 1e3)[None]])
    along = jnp.concatenate([along, along[-1:] + 1e3])
    wanted = jnp.arange(count) * spacing
    made = jnp.stack([jnp.interp(wanted, along, far[:, axis]) for axis in (0, 1)], axis=-1)
    ahead = jnp.stack([jnp.interp(wanted + 0.25, along, far[:, axis]) for axis in (0, 1)], axis=-1)
    behind = jnp.stack([jnp.interp(wanted - 0.25, along, far[:, axis]) for axis in (0, 1)], axis=-1)
    way = ahead - behind
    return made, jnp.arctan2(way[:, 1], way[:, 0]), along[-2]
