"""The world of a scenario as it moves: the car that is driven, those around it, and what an adversary does."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.scenarios.driving.drivers import ACCELERATION, STEERING, View, expert
from ludus.envs.scenarios.driving.dynamics import DT, Motion, bicycle
from ludus.envs.scenarios.driving.geometry import NEVER
from ludus.envs.scenarios.driving.rewards import Happening, Stand, as_seen, ended, happening, stand
from ludus.envs.scenarios.driving.roads import Roads, place
from ludus.envs.scenarios.driving.traffic import (
    SIZE,
    Cars,
    Crew,
    Ego,
    Manners,
    around,
    change,
    drive,
    is_on_map,
    placed,
    poses,
    suitable,
)
from ludus.types import Array

NOBODY, BRAKES, RUNS_RED, CUTS_IN = range(4)
HARD = 20
"""Steps that an adversary brakes hard."""


class Adversary(NamedTuple):
    """A car that does what no driver expects."""

    what: jax.Array
    who: jax.Array
    start: jax.Array
    """The step at which it begins."""


class World(NamedTuple):
    """Everything that moves."""

    motion: Motion
    at: Stand
    cars: Cars
    step: jax.Array


class Log(NamedTuple):
    """The way of an expert through a scenario, and where the cars around it were."""

    action: jax.Array
    """`[T, 2]`."""
    track: jax.Array
    """Its position and speed `[T + 1, 3]`."""
    progress: jax.Array
    """Metres along the route."""
    is_clean: jax.Array
    """Whether it had no collision, stayed on the road and stopped at red."""
    cars: Cars | tuple[()]
    """The cars around after each step, where they are replayed."""


def nobody() -> Adversary:
    """Return that all drive as they should."""
    return Adversary(jnp.int32(NOBODY), jnp.int32(0), jnp.int32(0))


def begun(roads: Roads, motion: Motion, cars: Cars) -> World:
    """Return the world before the first step."""
    return World(motion, stand(roads, motion), cars, jnp.int32(0))


def view(roads: Roads, crew: Crew, world: World) -> View:
    """Return what a driver by rule is told."""
    ego, time = as_seen(roads, world.motion, world.at), world.step * DT
    return View(roads, world.motion, ego, around(roads, world.cars, crew, ego, time), crew.minds, time)


def advance(
    roads: Roads, crew: Crew, world: World, action: jax.Array, adversary: Adversary, log: Log | None = None
) -> tuple[World, Happening]:
    """Advance by one step; the cars around are those of the log, if one is given."""
    push, turn = jnp.clip(action, -1.0, 1.0) * jnp.array([ACCELERATION, STEERING])
    motion = bicycle(world.motion, push, turn, SIZE[0])
    at = stand(roads, motion)
    if log is None:
        cars = _driven(roads, crew, world, adversary)
    else:
        cars = jax.tree.map(lambda x: x[jnp.minimum(world.step, len(x) - 1)], log.cars)
    after = World(motion, at, cars, world.step + 1)
    seen = happening(
        roads,
        (world.motion, world.at),
        (motion, at),
        poses(roads, cars),
        crew.size,
        is_on_map(cars, crew),
        cars.speed,
        after.step * DT,
    )
    return after, seen


def _driven(roads: Roads, crew: Crew, world: World, adversary: Adversary) -> Cars:
    is_it = jnp.arange(len(crew.minds)) == adversary.who
    is_on = world.step >= adversary.start
    brakes = is_it & (adversary.what == BRAKES) & is_on & (world.step < adversary.start + HARD)
    manners = Manners(brakes, is_it & (adversary.what == RUNS_RED))
    cuts = (adversary.what == CUTS_IN) & (world.step == adversary.start)
    path = jnp.where(cuts, roads.route, world.cars.path[adversary.who])
    cars = change(roads, world.cars, adversary.who, path)
    return drive(roads, cars, crew, as_seen(roads, world.motion, world.at), world.step * DT, world.step, manners)


def start_of(key: jax.Array, roads: Roads) -> Motion:
    """Draw where the car that is driven begins: on its route, so fast that it can stop where it must."""
    of_place, of_speed = jax.random.split(key)
    along = jax.random.uniform(of_place, (), float, 6.0, 24.0)
    point, yaw = place(roads, roads.route, along)
    share = jax.random.uniform(of_speed, (), float, 0.7, 1.0)
    speed = share * suitable(roads, roads.route, along)
    return Motion(jnp.append(point, yaw), speed)


def populated(key: jax.Array, roads: Roads, count: int, traffic: Array) -> tuple[Motion, Cars, Crew]:
    """Draw the start of the car that is driven, and of those around it."""
    keys = jax.random.split(key, 3)
    motion = start_of(keys[0], roads)
    ego: Ego = as_seen(roads, motion, stand(roads, motion))
    density = traffic * jax.random.uniform(keys[1], (), float, 0.7, 1.0)
    return motion, *placed(keys[2], roads, ego, count, density)


def recorded(roads: Roads, motion: Motion, cars: Cars, crew: Crew, length: int, keeps_cars: bool) -> Log:
    """Let the expert drive through a scenario, and write down what it does."""

    def step(world: World, _: None) -> tuple[World, tuple]:
        action = expert(view(roads, crew, world))
        after, seen = advance(roads, crew, world, action, nobody())
        bad = ended(("overlap", "offroad", "run_red_light"), seen)
        track = jnp.append(after.motion.pose[:2], after.motion.speed)
        return after, (action, track, bad, after.cars if keeps_cars else ())

    first = begun(roads, motion, cars)
    last, (action, track, bad, kept) = jax.lax.scan(step, first, None, length=length)
    track = jnp.concatenate([jnp.append(motion.pose[:2], motion.speed)[None], track])
    progress = last.at.along[roads.route] - first.at.along[roads.route]
    return Log(action, track, progress, ~bad.any(), kept)


def adversary_of(key: jax.Array, roads: Roads, cars: Cars, crew: Crew, ego_along: jax.Array) -> Adversary:
    """Choose a car that surprises: one ahead that brakes, one that crosses at red or out of turn, or one that cuts in.

    Of those that the scenario has a car for, each is as likely; of the cars that could, the nearest one does it.
    """
    of_what, of_start = jax.random.split(key)
    point, _ = place(roads, cars.path, cars.along)
    here, _ = place(roads, roads.route, ego_along)
    ahead = roads.along[roads.route, cars.path, jnp.clip(cars.along / 3.0 + 0.5, 0, 55).astype(jnp.int32)] - ego_along
    is_ahead = crew.is_there & (ahead > 5.0) & (ahead < 60.0)
    meets = roads.enter[cars.path, roads.route]
    crosses = crew.is_there & (meets < NEVER / 2) & (meets > cars.along) & (meets - cars.along < 60.0)
    beside = (cars.path == roads.left[roads.route]) | (cars.path == roads.right[roads.route])
    beside = crew.is_there & beside & (cars.path != roads.route)
    apart = ((point - here) ** 2).sum(-1)
    beside = beside & (cars.along - ego_along > 4.0) & (cars.along - ego_along < 40.0)
    able = jnp.stack([is_ahead, crosses, beside])
    number = jax.random.choice(of_what, 3, p=_evenly(able.any(1)))
    far = jnp.stack([ahead, jnp.abs(meets - cars.along), apart])[number]
    who = jnp.where(able[number], far, NEVER).argmin()
    what = jnp.where(able.any(), number + 1, NOBODY)
    return Adversary(what.astype(jnp.int32), who.astype(jnp.int32), jax.random.randint(of_start, (), 5, 30))


def _evenly(able: jax.Array) -> jax.Array:
    chance = jnp.where(able.any(), able, True).astype(jnp.float32)
    return chance / chance.sum()
