"""Drivers by rule: what an expert, the intelligent driver model, constancy or chance would do in a state.

Each returns an action as policies do: acceleration and steering, both between -1 and 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.scenarios.driving.dynamics import IntelligentDriver, Motion, follow
from ludus.envs.scenarios.driving.geometry import NEVER, turned
from ludus.envs.scenarios.driving.roads import Roads, place
from ludus.envs.scenarios.driving.traffic import SIZE, Around, Ego, LanePlace, stop_gap, suitable, to_leader, yield_gap
from ludus.types import Array

ACCELERATION, STEERING = 6.0, 0.5
"""What an action of 1 means, m/s^2 and radians."""
EXPERT = IntelligentDriver(acceleration=2.0, braking=2.0, time_gap=1.5)
IDM = IntelligentDriver()
DRIVERS = ("agent", "expert", "idm", "constant", "random")
"""Who can drive: the agent's own actions, or a rule in their place."""


class View(NamedTuple):
    """The surroundings that a driver by rule is told of."""

    roads: Roads
    motion: Motion
    ego: Ego
    around: Around
    minds: jax.Array
    """Which of the cars give way to this one where they have to."""
    time: Array


def idm(view: View) -> jax.Array:
    """Follow the route behind the car in front and stop at red; nobody is given way to where paths meet."""
    free, leading = _common(IDM, view)
    return _action(jnp.minimum(free, leading), view)


def expert(view: View) -> jax.Array:
    """Follow the route like `idm`, but wait for those that go first, and for those that will not wait themselves."""
    roads, ego = view.roads, view.ego
    free, leading = _common(EXPERT, view)
    count = len(view.minds)
    others = jnp.arange(count + 1) < count
    feared = jnp.append(~view.minds, False)
    wait = yield_gap(roads, _me(view), view.around, others, feared)
    waiting = follow(EXPERT, ego.speed, suitable(roads, roads.route, ego.route_along), wait, ego.speed)
    return _action(jnp.minimum(jnp.minimum(free, leading), waiting), view)


def constant(view: View) -> jax.Array:
    """Drive straight on at the same speed."""
    return jnp.zeros(2)


def _common(who: IntelligentDriver, view: View) -> tuple[jax.Array, jax.Array]:
    """Return what the stop line and what the car in front would have one accelerate by."""
    roads, ego = view.roads, view.ego
    wanted = suitable(roads, roads.route, ego.route_along)
    line = stop_gap(roads, view.time, _me(view))
    nobody = jnp.full_like(ego.along, NEVER)
    gap, speed = to_leader(roads, _me(view), view.around, nobody)
    return follow(who, ego.speed, wanted, line, ego.speed), follow(who, ego.speed, wanted, gap, ego.speed - speed)


def _me(view: View) -> LanePlace:
    ego = view.ego
    return LanePlace(view.roads.route, ego.route_along, ego.speed, 0.5 * SIZE[0], len(view.minds))


def _action(acceleration: jax.Array, view: View) -> jax.Array:
    """Return the action of an acceleration with the steering that leads back to the route (pure pursuit)."""
    ahead = jnp.clip(0.5 * view.ego.speed, 4.0, 10.0)
    point, _ = place(view.roads, view.roads.route, view.ego.route_along + ahead)
    x, y = turned(point - view.motion.pose[:2], -view.motion.pose[2])
    bend = 2 * y / jnp.maximum(x * x + y * y, 1.0)
    slip = jnp.arcsin(jnp.clip(bend * SIZE[0] / 4, -0.9, 0.9))
    steering = jnp.arctan(2 * jnp.tan(slip))
    return jnp.clip(jnp.stack([acceleration / ACCELERATION, steering / STEERING]), -1.0, 1.0)
