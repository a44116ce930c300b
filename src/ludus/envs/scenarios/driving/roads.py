"""Roads: the lanes of a scenario as paths that cars drive along, and what cars must know of other paths.

A path is a lane from where it enters the map to where it leaves it, through the junction if there is one; paths that
share a lane coincide there. All have the same number of points at equal distances, so a place on the road is a path
and a distance along it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.scenarios.driving.geometry import NEVER, heading, resample, wrapped
from ludus.types import Array

PATHS, POINTS, SPACING = 8, 56, 3.0
"""Paths of a map at most, points of each, and metres between them."""
LENGTH = (POINTS - 1) * SPACING
"""Metres of a path."""
YELLOW, CLEARING = 2.5, 1.5
"""Seconds that a light is yellow, and that all are red after it."""
SHOULDER = 0.5
"""Metres beside a lane that may be driven on as well."""
LATERAL, BRAKING = 2.2, 1.5
"""The most that cars take in bends, and what they brake with before them, m/s^2."""
TOUCHING, BESIDE = 2.5, 1.6
"""Metres between two paths below which cars on them collide; and below which a car of the one is on the other."""
SHARED = 12.0
"""Metres after which cars on joining paths follow one another, rather than give way."""


class Lines(NamedTuple):
    """The paths of one template, before anything is derived from them."""

    raw: jax.Array
    """Polylines `[R, M, 2]` with points at any distances."""
    is_there: jax.Array
    """Which of the R paths there are."""
    width: jax.Array
    left: jax.Array
    """The path of the lane to the left in the same direction; itself where there is none."""
    right: jax.Array
    entry: jax.Array
    """Metres along a path to where it enters the junction; `NEVER` if it enters none."""
    group: jax.Array
    """Which of the lights a path has; -1 if none."""
    groups: jax.Array
    """How many lights take turns."""
    rank: jax.Array
    """Where two paths meet, the one of a higher rank goes first."""
    circles: jax.Array
    """Whether those go first that have driven farther since their entry, as in roundabouts."""
    route: jax.Array
    """The path of the car that is driven."""


class Roads(NamedTuple):
    """The map of a scenario."""

    points: jax.Array
    """`[R, P, 2]`, metres."""
    yaw: jax.Array
    """The direction of the lane at each point."""
    speed: jax.Array
    """The speed that suits each point: the limit, or less where a bend is near."""
    limit: jax.Array
    """Speed limit of each path, m/s."""
    width: jax.Array
    is_there: jax.Array
    left: jax.Array
    right: jax.Array
    stop: jax.Array
    """Metres along a path to its stop line; `NEVER` where it has no light."""
    group: jax.Array
    groups: jax.Array
    cycle: jax.Array
    """Seconds in which every light has had its turn."""
    phase: jax.Array
    """Seconds of the cycle that are over when the scenario begins."""
    along: jax.Array
    """`[a, b, p]`: where on path a point p of path b lies, `NEVER` if not on it."""
    enter: jax.Array
    """`[a, b]`: metres along a to where it first meets b; `NEVER` if it does not."""
    leave: jax.Array
    """`[a, b]`: metres along a to where it has left b, or follows it."""
    first: jax.Array
    """`[a, b]`: whether cars on a go first where it meets b."""
    route: jax.Array
    template: jax.Array


def built(lines: Lines, limit: jax.Array, cycle: jax.Array, phase: jax.Array, template: jax.Array) -> Roads:
    """Derive everything from the lines of a map."""
    points, yaw, _ = jax.vmap(lambda raw: resample(raw, POINTS, SPACING))(lines.raw)
    # A path that is not there lies far away, where nothing is near it.
    points = jnp.where(lines.is_there[:, None, None], points, points + 5e3 * (1 + jnp.arange(PATHS)[:, None, None]))
    along, enter, leave = _relations(points, yaw, lines.is_there)
    since = jnp.where(lines.circles, enter - lines.entry[:, None], 0.0)
    rank = lines.rank[:, None] + 10 * since
    return Roads(
        points,
        yaw,
        _speeds(yaw, limit),
        jnp.full(PATHS, limit),
        lines.width,
        lines.is_there,
        lines.left,
        lines.right,
        jnp.where(lines.group >= 0, lines.entry - 1.0, NEVER),
        lines.group,
        lines.groups,
        cycle,
        phase,
        along,
        enter,
        leave,
        rank > rank.T,
        lines.route,
        template,
    )


def _speeds(yaw: jax.Array, limit: jax.Array) -> jax.Array:
    """Return the speed for each point from which every later one can be reached by braking gently."""
    bend = jnp.abs(wrapped(jnp.roll(yaw, -1, 1) - jnp.roll(yaw, 1, 1))) / (2 * SPACING)
    bend = bend.at[:, 0].set(bend[:, 1]).at[:, -1].set(bend[:, -2])
    most = jnp.minimum(limit, jnp.sqrt(LATERAL / jnp.maximum(bend, 1e-4)))
    gained = 2 * BRAKING * SPACING * jnp.arange(POINTS)
    return jnp.sqrt(jax.lax.cummin(most**2 + gained, axis=1, reverse=True) - gained)


def _relations(points: jax.Array, yaw: jax.Array, is_there: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return how the paths lie to each other: see `along`, `enter` and `leave`."""

    def seen_from(line: jax.Array, direction: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return where all points of all paths lie on one path, and how far from it."""
        offset = points[:, :, None] - line
        near = (offset * offset).sum(-1).argmin(-1)
        rest, way = points - line[near], heading(direction[near])
        ahead = (rest * way).sum(-1)
        aside = jnp.abs(way[..., 0] * rest[..., 1] - way[..., 1] * rest[..., 0])
        beyond = jnp.maximum(jnp.abs(ahead) - 0.6 * SPACING, 0.0)
        is_along = (heading(yaw) * way).sum(-1) > 0.5
        is_on = is_along & (jnp.hypot(aside, beyond) < BESIDE)
        return jnp.where(is_on, near * SPACING + ahead, NEVER), jnp.hypot(aside, beyond)

    along, distance = jax.vmap(seen_from)(points, yaw)
    pairs = is_there[:, None] & is_there & ~jnp.eye(PATHS, dtype=bool)
    touches = (distance.swapaxes(0, 1) < TOUCHING) & pairs[..., None]  # [a, b, p]: point p of a is near b
    number = jnp.arange(POINTS)
    start = touches.argmax(-1)
    meets = touches.any(-1) & (start > 0)  # paths that begin together part, and do not meet
    after = jnp.where(~touches & (number > start[..., None]), number, POINTS).min(-1)
    enter = jnp.where(meets, start * SPACING - 0.5 * SPACING, NEVER)
    leave = jnp.where(meets, jnp.minimum(after * SPACING - 0.5 * SPACING, enter + SHARED), NEVER)
    return jnp.where(is_there[:, None, None] & is_there[:, None], along, NEVER), enter, leave


def place(roads: Roads, path: jax.Array, along: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the point and the direction at a distance along a path."""
    at = jnp.clip(along / SPACING, 0.0, POINTS - 1.001)
    low = at.astype(jnp.int32)
    share = at - low
    one, two = roads.points[path, low], roads.points[path, low + 1]
    yaw, later = roads.yaw[path, low], roads.yaw[path, low + 1]
    return one + share[..., None] * (two - one), yaw + share * wrapped(later - yaw)


def index(along: jax.Array) -> jax.Array:
    """Return the number of the point nearest to a distance along a path."""
    return jnp.clip(jnp.round(along / SPACING), 0, POINTS - 1).astype(jnp.int32)


def moved_to(roads: Roads, path: jax.Array, other: jax.Array, along: jax.Array) -> jax.Array:
    """Return where a place on path `other` lies on `path`; `NEVER` if it is not on it."""
    point = index(along)
    there = roads.along[path, other, point]
    return jnp.where(there < NEVER, there + along - point * SPACING, NEVER)


class Lights(NamedTuple):
    """Return the phase that the light of each path shows."""

    is_red: jax.Array
    is_yellow: jax.Array


def lights(roads: Roads, time: Array) -> Lights:
    """Return what the lights show at a time, in seconds since the scenario began."""
    slot = roads.cycle / roads.groups
    since = (time + roads.phase - roads.group * slot) % roads.cycle
    has_light = roads.group >= 0
    green = slot - YELLOW - CLEARING
    return Lights(has_light & (since >= green + YELLOW), has_light & (since >= green) & (since < green + YELLOW))
