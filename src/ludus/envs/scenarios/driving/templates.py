"""The templates of roads: those of training and those of evaluation are different roads with different numbers.

Each is drawn from a key. Traffic keeps to the right; lengths are in metres and angles in radians.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.scenarios.base import Split
from ludus.envs.scenarios.driving.geometry import NEVER, heading
from ludus.envs.scenarios.driving.roads import LENGTH, PATHS, Lines, Roads, built

Range = tuple[float, float]
RAW = 112
"""Points of a raw line."""
FAR = 200.0
"""So long are the roads that lead away."""
HALF_TURN = np.pi


class Template(NamedTuple):
    """One kind of road, and the ranges that its numbers are drawn from."""

    name: str
    kind: str
    """open, junction or ring."""
    share: float
    """How often it is drawn, relative to others of its split."""
    limit: Range
    """Speed limit, m/s."""
    width: Range
    """Of a lane."""
    radius: Range = (0.0, 0.0)
    """Of a bend, from the middle of a junction to where its lanes begin, or of a ring."""
    arms: tuple[float, ...] = ()
    """Directions of the roads that meet."""
    bend: Range = (0.0, 0.0)
    """What the directions of arms deviate by: every second one of four, else each by itself."""
    groups: tuple[int, ...] = ()
    """The light of each arm, where there are lights."""
    rank: tuple[float, ...] = ()
    """Of each arm, where there are none."""
    turns: int = 0
    """Bends of an open road."""
    joins: str = ""
    """An open road that a lane joins: from a ramp, or because a lane ends."""


QUARTER = float(np.pi / 2)
THIRD = float(2 * np.pi / 3)
DEGREE = float(np.pi / 180)
TRAINING = (
    Template("straight", "open", 0.06, (10.0, 17.0), (3.5, 3.75)),
    Template("bend", "open", 0.14, (10.0, 15.0), (3.5, 3.75), (35.0, 80.0), turns=1),
    Template(
        "crossroads",
        "junction",
        0.3,
        (9.0, 14.0),
        (3.5, 3.75),
        (9.0, 11.5),
        (0.0, QUARTER, 2 * QUARTER, 3 * QUARTER),
        (-5 * DEGREE, 5 * DEGREE),
        (0, 1, 0, 1),
        (1.0, 0.0, 1.0, 0.0),
    ),
    Template(
        "T-junction",
        "junction",
        0.18,
        (9.0, 14.0),
        (3.5, 3.75),
        (9.0, 11.5),
        (0.0, 2 * QUARTER, 3 * QUARTER),
        (-5 * DEGREE, 5 * DEGREE),
        (0, 0, 1),
        (1.0, 1.0, 0.0),
    ),
    Template(
        "roundabout of four",
        "ring",
        0.16,
        (8.0, 11.0),
        (3.5, 3.75),
        (15.0, 18.0),
        (0.0, QUARTER, 2 * QUARTER, 3 * QUARTER),
        (-5 * DEGREE, 5 * DEGREE),
    ),
    Template("on-ramp", "open", 0.16, (13.0, 17.0), (3.5, 3.75), joins="ramp"),
)
EVALUATION = (
    Template("S-bend", "open", 0.1, (10.0, 15.0), (3.75, 4.0), (80.0, 120.0), turns=2),
    Template(
        "skewed crossroads",
        "junction",
        0.36,
        (9.0, 14.0),
        (3.75, 4.0),
        (11.5, 14.0),
        (0.0, QUARTER, 2 * QUARTER, 3 * QUARTER),
        (10 * DEGREE, 25 * DEGREE),
        (0, 1, 0, 1),
        (1.0, 0.0, 1.0, 0.0),
    ),
    Template(
        "Y-junction",
        "junction",
        0.16,
        (9.0, 14.0),
        (3.75, 4.0),
        (11.5, 14.0),
        (0.0, THIRD, 2 * THIRD),
        (-10 * DEGREE, 10 * DEGREE),
        (0, 1, 2),
        (1.0, 0.9, 0.0),
    ),
    Template(
        "roundabout of three",
        "ring",
        0.2,
        (8.0, 11.0),
        (3.75, 4.0),
        (18.0, 21.0),
        (0.0, THIRD, 2 * THIRD),
        (-10 * DEGREE, 10 * DEGREE),
    ),
    Template("lane drop", "open", 0.18, (13.0, 17.0), (3.75, 4.0), joins="drop"),
)
TEMPLATES: dict[Split, tuple[Template, ...]] = {"training": TRAINING, "evaluation": EVALUATION}
SIGNALLED = 0.65
"""The share of junctions that have lights."""


def drawn(key: jax.Array, split: Split) -> Roads:
    """Draw the roads of a scenario."""
    which, *keys = jax.random.split(key, 4)
    templates = TEMPLATES[split]
    first = 0 if split == "training" else len(TRAINING)
    share = jnp.cumsum(jnp.array([template.share for template in templates]))
    number = jnp.searchsorted(share, jax.random.uniform(which) * share[-1], side="right")
    number = jnp.minimum(number, len(templates) - 1).astype(jnp.int32)
    made = [_lines(template, keys[0]) for template in templates]
    lines = jax.tree.map(lambda *each: jnp.stack(each)[number], *made)
    limits = jnp.array([template.limit for template in templates])[number]
    limit = jax.random.uniform(keys[1], (), float, *limits)
    slot, phase = jax.random.uniform(keys[2], (2,))
    cycle = lines.groups * (9.0 + 4.0 * slot)
    return built(lines, limit, cycle, phase * cycle, first + number)


def _lines(template: Template, key: jax.Array) -> Lines:
    return {"open": _open, "junction": _junction, "ring": _ring}[template.kind](template, key)


def _width(template: Template, key: jax.Array) -> jax.Array:
    return jax.random.uniform(key, (), float, *template.width)


def _plain(width: jax.Array, raw: jax.Array, **known: Any) -> Lines:
    """Return lines of which most is not so."""
    itself = jnp.arange(PATHS)
    defaults = {
        "is_there": jnp.ones(PATHS, bool),
        "left": itself,
        "right": itself,
        "entry": jnp.full(PATHS, NEVER),
        "group": jnp.full(PATHS, -1),
        "groups": jnp.int32(1),
        "rank": jnp.zeros(PATHS),
        "circles": jnp.bool_(False),
        "route": jnp.int32(0),
    }
    return Lines(raw, width=jnp.full(PATHS, width), **{**defaults, **known})


def _open(template: Template, key: jax.Array) -> Lines:
    """Return a road with up to three lanes there and two back, in which a lane may end or a ramp may join."""
    keys = jax.random.split(key, 9)
    width = _width(template, keys[0])
    middle, normal = _centre_line(template, keys[1])
    there = jax.random.randint(keys[2], (), 1, 4) if not template.joins else jnp.int32(2)
    back = jax.random.randint(keys[3], (), 1, 3)
    lane = jnp.arange(PATHS)
    is_there = (lane < there) | ((lane >= 4) & (lane < 4 + back))
    aside = jnp.where(lane < 4, -(lane + 0.5), lane - 4 + 0.5)[:, None] * width * jnp.ones(RAW)
    left = jnp.where((lane > 0) & (lane < there), lane - 1, jnp.where((lane > 4) & is_there, lane - 1, lane))
    right = jnp.where(lane + 1 < there, lane + 1, jnp.where((lane == 4) & (back > 1), 5, lane))
    route = jax.random.randint(keys[4], (), 0, there)
    rank = jnp.zeros(PATHS)
    if template.joins:
        start = jax.random.uniform(keys[5], (), float, 25.0, 55.0)
        length, far = ((50.0, 80.0), (9.0, 14.0)) if template.joins == "ramp" else ((30.0, 50.0), (0.0, 0.0))
        length = jax.random.uniform(keys[6], (), float, *length)
        share = jnp.clip((2.0 * jnp.arange(RAW) - start) / length, 0.0, 1.0)
        away = width + jax.random.uniform(keys[7], (), float, *far)
        joining = 2 if template.joins == "ramp" else 1  # this lane comes to lie on the one left of it
        is_there = is_there | (lane == joining)
        aside = aside.at[joining].set(aside[joining - 1] - away * (1 - share * share * (3 - 2 * share)))
        left = left.at[joining].set(joining)
        right = right.at[joining - 1].set(joining - 1)
        rank = rank.at[joining].set(-1.0)
        on_it = jax.random.bernoulli(keys[8], 0.6)
        route = jnp.where(on_it, joining, joining - 1)
    raw = middle + aside[..., None] * normal
    raw = jnp.where((lane >= 4)[:, None, None], _reversed(raw), raw)
    return _plain(width, raw, is_there=is_there, left=left, right=right, rank=rank, route=route)


def _reversed(raw: jax.Array) -> jax.Array:
    """Return lines in the other direction, from where the paths end on."""
    back = raw[:, int(LENGTH) // 2 :: -1]
    step = back[:, -1:] - back[:, -2:-1]
    rest = jnp.arange(1, RAW - back.shape[1] + 1)[:, None] * step
    return jnp.concatenate([back, back[:, -1:] + rest], axis=1)


def _centre_line(template: Template, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return points 2 m apart, and what is left of each, by adding up the bends."""
    keys = jax.random.split(key, 4)
    along = 2.0 * jnp.arange(RAW)
    bent = jnp.zeros(RAW)
    side = jax.random.rademacher(keys[0], ()).astype(float)
    start = jax.random.uniform(keys[1], (), float, 25.0, 45.0)
    for turn in range(template.turns):
        radius, angle = jax.random.uniform(keys[2 + turn], (2,))
        radius = template.radius[0] + radius * (template.radius[1] - template.radius[0])
        length = radius * (0.4 + 0.6 * angle)
        bent = bent + jnp.where((along >= start) & (along < start + length), side / radius, 0.0)
        start, side = start + length + 10.0, -side
    way = heading(jnp.cumsum(2.0 * bent))
    middle = jnp.cumsum(2.0 * way, axis=0)
    return middle, jnp.stack([-way[:, 1], way[:, 0]], axis=-1)


def _arms(template: Template, key: jax.Array) -> jax.Array:
    """Return the directions of the roads that meet, with the whole map turned by chance."""
    of_bend, of_all = jax.random.split(key)
    low, high = template.bend
    if len(template.arms) == 4:
        bend = jax.random.uniform(of_bend, (), float, low, high) * jnp.array([0.0, 1.0, 0.0, 1.0])
    else:
        bend = jax.random.uniform(of_bend, (len(template.arms),), float, low, high)
    return jnp.array(template.arms) + bend + jax.random.uniform(of_all) * 2 * HALF_TURN


def _movements(template: Template, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return from which arm to which each path leads, in random order, and which paths there are."""
    count = len(template.arms)
    pairs = np.array([(a, b) for a in range(count) for b in range(count) if a != b])
    order = jax.random.permutation(key, len(pairs))
    chosen = jnp.array(pairs)[order[jnp.arange(PATHS) % len(pairs)]]
    return chosen[:, 0], chosen[:, 1], jnp.arange(PATHS) < len(pairs)


def _junction(template: Template, key: jax.Array) -> Lines:
    """Return roads with a lane each way that meet in a point, with lights or with rules for who goes first."""
    keys = jax.random.split(key, 6)
    width, arms = _width(template, keys[0]), _arms(template, keys[1])
    from_, to, is_there = _movements(template, keys[2])
    radius = jax.random.uniform(keys[3], (), float, *template.radius)
    approach = jax.random.uniform(keys[4], (), float, 45.0, 60.0)
    has_lights = jax.random.bernoulli(keys[5], SIGNALLED)

    def line(start: jax.Array, end: jax.Array) -> jax.Array:
        into, out = heading(arms[start]), heading(arms[end])
        one, two = into * radius + _right(-into) * width / 2, out * radius + _right(out) * width / 2
        curve = _bezier(one, -into, two, out, 17)
        return _padded(jnp.concatenate([(one + into * approach)[None], curve, (two + out * FAR)[None]]))

    raw = jax.vmap(line)(from_, to)
    turn = (arms[to] - arms[from_] + HALF_TURN) % (2 * HALF_TURN)  # 0 is straight on
    turn = jnp.where(turn > HALF_TURN, turn - 2 * HALF_TURN, turn)
    is_left = turn > HALF_TURN / 4
    rank = jnp.where(has_lights, 0.0, jnp.array(template.rank)[from_]) - 0.5 * is_left - 0.01 * jnp.arange(PATHS)
    return _plain(
        width,
        raw,
        is_there=is_there,
        entry=jnp.full(PATHS, approach),
        group=jnp.where(has_lights, jnp.array(template.groups)[from_], -1),
        groups=jnp.where(has_lights, max(template.groups) + 1, 1),
        rank=rank,
    )


def _ring(template: Template, key: jax.Array) -> Lines:
    """Return a roundabout: those who are in it go first."""
    keys = jax.random.split(key, 5)
    width, arms = _width(template, keys[0]), _arms(template, keys[1])
    from_, to, is_there = _movements(template, keys[2])
    radius = jax.random.uniform(keys[3], (), float, *template.radius)
    approach = jax.random.uniform(keys[4], (), float, 35.0, 50.0)
    aside, beyond = 28 * DEGREE, 11.0

    def line(start: jax.Array, end: jax.Array) -> jax.Array:
        into, out = heading(arms[start]), heading(arms[end])
        one = into * (radius + beyond) + _right(-into) * width / 2
        two = out * (radius + beyond) + _right(out) * width / 2
        begin = arms[start] + aside
        turn = (arms[end] - aside - begin) % (2 * HALF_TURN)
        angle = begin + turn * jnp.linspace(0.0, 1.0, 40)
        arc = heading(angle) * radius
        enter = _bezier(one, -into, arc[0], _left(heading(angle[0])), 13)
        leave = _bezier(arc[-1], _left(heading(angle[-1])), two, out, 13)
        ends = (one + into * approach)[None], (two + out * FAR)[None]
        return _padded(jnp.concatenate([ends[0], enter, arc[1:-1], leave, ends[1]]))

    entry = approach + 6.0  # there the ring's lane begins to be near
    rank = -0.01 * jnp.arange(PATHS)
    raw = jax.vmap(line)(from_, to)
    return _plain(width, raw, is_there=is_there, entry=jnp.full(PATHS, entry), rank=rank, circles=jnp.bool_(True))


def _right(way: jax.Array) -> jax.Array:
    return jnp.stack([way[..., 1], -way[..., 0]], axis=-1)


def _left(way: jax.Array) -> jax.Array:
    return -_right(way)


def _bezier(start: jax.Array, way: jax.Array, end: jax.Array, last: jax.Array, count: int) -> jax.Array:
    """Return points of a curve from `start` in the direction `way` to `end` in the direction `last`."""
    reach = 0.38 * jnp.sqrt(((end - start) ** 2).sum())
    t = jnp.linspace(0.0, 1.0, count)[:, None]
    one, two = start + reach * way, end - reach * last
    return (1 - t) ** 3 * start + 3 * t * (1 - t) ** 2 * one + 3 * t**2 * (1 - t) * two + t**3 * end


def _padded(points: jax.Array) -> jax.Array:
    """Return a line of `RAW` points, the last one repeated: it lies beyond the end of every path."""
    return jnp.concatenate([points, jnp.broadcast_to(points[-1], (RAW - len(points), 2))])
