"""Traffic: the cars around, how they are placed, and how they drive along their paths."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.scenarios.driving.dynamics import DT, IntelligentDriver, follow
from ludus.envs.scenarios.driving.geometry import NEVER, turned
from ludus.envs.scenarios.driving.roads import LENGTH, Roads, lights, moved_to, place
from ludus.types import Array

DRIVER = IntelligentDriver()
CANDIDATES = 36
"""So many places are tried for the cars of a scenario."""
SIZE = (4.6, 1.9)
"""Length and width of the car that is driven, metres."""
CHALLENGERS = 6
"""So many of the candidates drive at the speed that suits the place, neither slower nor faster."""
MINDFUL = 0.1
"""The share of drivers that give way to the car that is driven, where they have to."""
SHIFT = 1.0
"""Metres a second at which a car changes lanes."""
MARGIN = 1.5
"""Seconds that must be between two cars where their paths meet."""
WAIT_BEFORE, LOOK_AHEAD = 1.5, 80.0
"""Metres before the place where two paths meet at which a car waits; and metres ahead that matter."""


class Crew(NamedTuple):
    """The cars around that stay as they are for an episode; each array has one entry for each."""

    size: jax.Array
    """Length and width `[N, 2]`."""
    is_there: jax.Array
    eagerness: jax.Array
    """The share of the suitable speed that each likes to drive at."""
    minds: jax.Array
    """Whether each gives way to the car that is driven where it has to; others do not look."""


class Cars(NamedTuple):
    """The cars around at one time."""

    path: jax.Array
    along: jax.Array
    """Metres along its path to the middle of each."""
    aside: jax.Array
    """Metres from the path, to the left: not 0 while it changes lanes."""
    speed: jax.Array


class Ego(NamedTuple):
    """The car that is driven, as others see it."""

    along: jax.Array
    """Where it is on each path, `[R]`; `NEVER` if it is not on it."""
    route_along: jax.Array
    """Where it is along its route, even beside it."""
    speed: jax.Array
    length: Array = SIZE[0]


class Manners(NamedTuple):
    """The ways of some cars that others do not have: one entry for each."""

    brakes: jax.Array
    """Brake as hard as they can."""
    careless: jax.Array
    """Heed neither lights nor those who go first."""


def poses(roads: Roads, cars: Cars) -> jax.Array:
    """Return `(x, y, yaw)` of every car."""
    point, yaw = place(roads, cars.path, cars.along)
    sideways = turned(jnp.stack([jnp.zeros_like(cars.aside), cars.aside], -1), yaw)
    return jnp.concatenate([point + sideways, yaw[..., None]], axis=-1)


def is_on_map(cars: Cars, crew: Crew) -> jax.Array:
    """Return which cars there are, and have not left the map."""
    return crew.is_there & (cars.along < LENGTH - 3.0)


def suitable(roads: Roads, path: jax.Array, along: jax.Array) -> jax.Array:
    """Return the speed that suits a place."""
    at = jnp.clip(along / 3.0, 0.0, roads.speed.shape[1] - 1.001)
    low = at.astype(jnp.int32)
    one, two = roads.speed[path, low], roads.speed[path, low + 1]
    return one + (at - low) * (two - one)


class LanePlace(NamedTuple):
    """One car on a path, seen as a driver sees itself."""

    path: jax.Array
    along: jax.Array
    speed: jax.Array
    half: Array
    """Half of its length."""
    number: Array = -1
    """Among all cars: nobody gives way to itself."""

    @property
    def front(self) -> jax.Array:
        """Its front."""
        return self.along + self.half


def stop_gap(roads: Roads, time: Array, me: LanePlace) -> jax.Array:
    """Return the distance to a stop line at which to stop, or `NEVER`.

    At yellow those stop that can do so comfortably, at red all that can stop at all.
    """
    shown = lights(roads, time)
    gap = roads.stop[me.path] - me.front
    needed = me.speed**2 / (2 * jnp.maximum(gap, 0.1))
    must = (shown.is_red[me.path] & (needed < 7.5)) | (shown.is_yellow[me.path] & (needed < 3.5))
    return jnp.where(must & (gap > 0), gap, NEVER)


class Around(NamedTuple):
    """The cars that somebody on the road has to look at: the others first, and the one that is driven last."""

    path: jax.Array
    along: jax.Array
    speed: jax.Array
    half: jax.Array
    """Half of their lengths."""
    is_there: jax.Array
    waits: jax.Array
    """Whether they are held by a light."""


def around(roads: Roads, cars: Cars, crew: Crew, ego: Ego, time: Array) -> Around:
    """Gather all cars."""
    path = jnp.append(cars.path, roads.route)
    along, speed = jnp.append(cars.along, ego.route_along), jnp.append(cars.speed, ego.speed)
    half = 0.5 * jnp.append(crew.size[:, 0], ego.length)
    red = lights(roads, time)
    waits = (red.is_red | red.is_yellow)[path] & (along + half < roads.stop[path])
    return Around(path, along, speed, half, jnp.append(is_on_map(cars, crew), True), waits)


def to_leader(roads: Roads, me: LanePlace, seen: Around, ego_along: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the gap to the next car ahead on a path, and its speed."""
    number = jnp.arange(len(seen.path))
    there = moved_to(roads, me.path, seen.path, seen.along)
    there = jnp.where(number == len(number) - 1, ego_along[me.path], there)
    ahead = (there > me.front - 2.0) & (there < NEVER / 2) & seen.is_there & (number != me.number)
    gap = jnp.where(ahead, jnp.maximum(there - seen.half - me.front, 0.01), NEVER)
    leader = gap.argmin()
    return gap[leader], seen.speed[leader]


def yield_gap(roads: Roads, me: LanePlace, seen: Around, heeded: jax.Array, feared: Array = False) -> jax.Array:
    """Return the distance at which to wait for those that go first where paths meet, or `NEVER`.

    `heeded` says for which of the others one would wait at all, and `feared` who goes first whatever the rules say.
    """
    enter, leave = roads.enter[me.path, seen.path], roads.leave[me.path, seen.path]
    their_enter, their_leave = roads.enter[seen.path, me.path], roads.leave[seen.path, me.path]
    they_in, they_out = their_enter - seen.along - seen.half, their_leave - seen.along + seen.half
    pace, their_pace = jnp.maximum(me.speed, 2.0), jnp.maximum(seen.speed, 1.0)
    i_in, i_out = (enter - me.front) / pace, (leave - me.along + me.half) / pace
    is_in, is_over = they_in < 0, they_out < 0
    soon = (they_in / their_pace < i_out + MARGIN) & (they_out / their_pace > i_in - MARGIN)
    goes_first = is_in | ((roads.first[seen.path, me.path] | feared) & soon & ~seen.waits)
    matters = (jnp.arange(len(seen.path)) != me.number) & seen.is_there & heeded & (enter < NEVER / 2)
    matters = matters & ~is_over & (they_in < LOOK_AHEAD) & (me.front < enter)
    gap = jnp.where(matters & goes_first, enter - me.front - WAIT_BEFORE, NEVER)
    return jnp.maximum(gap.min(), 0.05)


def accelerations(
    roads: Roads, cars: Cars, crew: Crew, ego: Ego, time: Array, manners: Manners, path: jax.Array, who: jax.Array
) -> jax.Array:
    """Return what the cars `who` would accelerate by, were they on `path`."""
    seen = around(roads, cars, crew, ego, time)
    is_other = jnp.arange(len(seen.path)) < len(cars.path)

    def of(who: jax.Array, path: jax.Array) -> jax.Array:
        along = moved_to(roads, path, cars.path[who], cars.along[who])
        along = jnp.where(path == cars.path[who], cars.along[who], along)
        me = LanePlace(path, along, cars.speed[who], 0.5 * crew.size[who, 0], who)
        wanted = crew.eagerness[who] * suitable(roads, path, along)
        gap, leading = to_leader(roads, me, seen, ego.along)
        careful = ~manners.careless[who]
        line = jnp.where(careful, stop_gap(roads, time, me), NEVER)
        wall = jnp.minimum(line, yield_gap(roads, me, seen, (is_other | crew.minds[who]) & careful))
        return jnp.minimum(
            follow(DRIVER, me.speed, wanted, gap, me.speed - leading), follow(DRIVER, me.speed, wanted, wall, me.speed)
        )

    return jax.vmap(of)(who, path)


def drive(roads: Roads, cars: Cars, crew: Crew, ego: Ego, time: Array, step: Array, manners: Manners) -> Cars:
    """Advance all cars by one step; at each one of them thinks about changing lanes."""
    everyone = jnp.arange(len(cars.path))
    acceleration = accelerations(roads, cars, crew, ego, time, manners, cars.path, everyone)
    cars = _change_lane(roads, cars, crew, ego, time, step, manners, acceleration)
    acceleration = jnp.where(manners.brakes, -DRIVER.hardest, acceleration)
    speed = jnp.maximum(cars.speed + acceleration * DT, 0.0)
    along = cars.along + 0.5 * (cars.speed + speed) * DT
    aside = jnp.sign(cars.aside) * jnp.maximum(jnp.abs(cars.aside) - SHIFT * DT, 0.0)
    return Cars(cars.path, along, aside, speed)


def _change_lane(
    roads: Roads, cars: Cars, crew: Crew, ego: Ego, time: Array, step: Array, manners: Manners, now: jax.Array
) -> Cars:
    """Let one car go to the next lane if it gains by that and nobody behind has to brake hard."""
    who = step % len(cars.path)
    path = cars.path[who]
    to = jnp.stack([roads.left[path], roads.right[path]])
    gain = accelerations(roads, cars, crew, ego, time, manners, to, jnp.full(2, who)) - now[who]
    seen = around(roads, cars, crew, ego, time)

    def is_free(to: jax.Array) -> jax.Array:
        there = moved_to(roads, to, seen.path, seen.along).at[-1].set(ego.along[to])
        mine = moved_to(roads, to, path, cars.along[who])
        mine = jnp.where(mine < NEVER / 2, mine, cars.along[who])
        behind = mine - there
        closing = jnp.maximum(seen.speed - cars.speed[who], 0.0)
        room = jnp.where(behind > 0, 8.0 + 0.5 * seen.speed + closing**2 / 4.0, 8.0 + 0.3 * cars.speed[who])
        return ((jnp.abs(behind) > room) | ~seen.is_there | (jnp.arange(len(seen.path)) == who)).all()

    can = (to != path) & jax.vmap(is_free)(to) & (gain > 0.4) & (cars.aside[who] == 0) & (cars.speed[who] > 3.0)
    best = jnp.where(can, gain, -NEVER).argmax()
    return change(roads, cars, who, jnp.where(can.any(), to[best], path))


def change(roads: Roads, cars: Cars, who: Array, path: jax.Array) -> Cars:
    """Put a car onto another path beside its own: it stays where it is, and drifts over from then on."""
    old = poses(roads, cars)[who]
    offset = old[:2] - roads.points[path]
    near = (offset * offset).sum(-1).argmin()
    yaw = roads.yaw[path, near]
    rest = turned(offset[near], -yaw)
    is_other = path != cars.path[who]
    along = jnp.where(is_other, near * 3.0 + rest[0], cars.along[who])
    aside = jnp.where(is_other, rest[1], cars.aside[who])
    return Cars(cars.path.at[who].set(path), cars.along.at[who].set(along), cars.aside.at[who].set(aside), cars.speed)


def placed(key: jax.Array, roads: Roads, ego: Ego, count: int, density: Array) -> tuple[Cars, Crew]:
    """LanePlace up to `count` cars so that none is too near to another."""
    keys = jax.random.split(key, 8)
    weight = jnp.where(roads.is_there, 1.0, 0.0)
    weight = weight * jnp.where(roads.along[roads.route, jnp.arange(len(weight))].min(-1) < NEVER / 2, 1.5, 1.0)
    path = jax.random.choice(keys[0], len(weight), (CANDIDATES,), p=weight / weight.sum())
    along = jax.random.uniform(keys[1], (CANDIDATES,), float, 4.0, 0.72 * LENGTH)
    size = jnp.stack([jax.random.uniform(keys[2], (CANDIDATES,), float, 4.2, 5.4), jnp.full(CANDIDATES, 1.9)], axis=-1)
    share = jax.random.uniform(keys[4], (CANDIDATES,), float, 0.6, 1.0).at[:CHALLENGERS].set(1.0)
    eagerness = jax.random.uniform(keys[3], (CANDIDATES,), float, 0.75, 1.05).at[:CHALLENGERS].set(1.0)
    speed = eagerness * suitable(roads, path, along) * share
    room = stop_gap(roads, 0.0, LanePlace(path, along, jnp.zeros(CANDIDATES), 0.5 * size[:, 0]))
    speed = jnp.minimum(speed, jnp.sqrt(2 * 2.5 * jnp.maximum(room - 2.0, 0.0)))
    is_wanted = jax.random.uniform(keys[5], (CANDIDATES,)) < density
    point, _ = place(roads, path, along)
    start, _ = place(roads, roads.route, ego.route_along)

    def is_clear(one: Array, two: Array) -> jax.Array:
        """Return whether two candidates leave each other room, whichever of them is ahead."""
        there = moved_to(roads, path[one], path[two], along[two])
        back = moved_to(roads, path[two], path[one], along[one])
        apart = ((point[one] - point[two]) ** 2).sum() > 8.0**2
        return (
            apart
            & _leaves_room(along[one], speed[one], there, speed[two])
            & _leaves_room(along[two], speed[two], back, speed[one])
        )

    every = jnp.arange(CANDIDATES)
    clear = jax.vmap(lambda one: jax.vmap(lambda two: is_clear(one, two))(every))(every)
    on_route = moved_to(roads, roads.route, path, along)
    ego_there = jnp.where(ego.along[path] < NEVER / 2, ego.along[path], NEVER)
    free = _leaves_room(ego.route_along, ego.speed, on_route, speed) & _leaves_room(along, speed, ego_there, ego.speed)
    free = free & (((point - start) ** 2).sum(-1) > 9.0**2) & is_wanted & roads.is_there[path]

    def take(taken: jax.Array, one: jax.Array) -> tuple[jax.Array, None]:
        fits = free[one] & (clear[one] | ~taken).all()
        return taken.at[one].set(fits), None

    taken, _ = jax.lax.scan(take, jnp.zeros(CANDIDATES, bool), every)
    rows = jnp.argsort(~taken, stable=True)[:count]
    is_there = taken[rows]
    minds = jax.random.uniform(keys[6], (count,)) < MINDFUL
    cars = Cars(path[rows], jnp.where(is_there, along[rows], LENGTH), jnp.zeros(count), speed[rows])
    return cars, Crew(size[rows], is_there, eagerness[rows], minds)


def _leaves_room(along: jax.Array, speed: jax.Array, there: jax.Array, leading: jax.Array) -> jax.Array:
    """Return whether a car may follow another one that is at `there` on its path."""
    gap = there - along
    needed = 8.0 + 0.8 * speed + jnp.maximum(speed**2 - leading**2, 0.0) / 5.0
    return (there > NEVER / 2) | (gap < -0.1) | (gap > needed)
