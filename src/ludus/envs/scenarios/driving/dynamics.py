"""Motion: the kinematic bicycle of the car that is driven, and the intelligent driver model of those around it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.types import Array

DT = 0.1
"""Seconds of a step."""


class Motion(NamedTuple):
    """The motion of a car: its middle, where it points, and how fast it drives."""

    pose: jax.Array
    """`(x, y, yaw)`."""
    speed: jax.Array


class IntelligentDriver(NamedTuple):
    """The parameters of the intelligent driver model, Treiber, Hennecke and Helbing 2000."""

    acceleration: Array = 2.0
    """The most that is taken where the road is free, m/s^2."""
    braking: Array = 2.5
    """What is thought comfortable, m/s^2."""
    time_gap: Array = 1.2
    """Seconds kept to the car in front."""
    least_gap: Array = 2.0
    """Metres kept to it at rest."""
    hardest: Array = 8.0
    """No car brakes harder, m/s^2."""


def bicycle(motion: Motion, acceleration: Array, steering: Array, length: Array) -> Motion:
    """Advance a kinematic bicycle by one step; both axles lie a quarter of `length` from its ends.

    The middle moves in the direction `yaw + slip` with tan(slip) = tan(steering) / 2, and at a constant steering angle
    runs through a circle of radius `length / 4 / sin(slip)`. It never drives backwards.
    """
    axle = length / 4
    speed = jnp.maximum(motion.speed + acceleration * DT, 0.0)
    # A car that comes to a stop within the step drives on until then, and no longer.
    lasting = jnp.where(motion.speed + acceleration * DT < 0, motion.speed / jnp.maximum(-acceleration, 1e-6), DT)
    path = 0.5 * (motion.speed + speed) * lasting
    slip = jnp.arctan(0.5 * jnp.tan(steering))
    turn = path * jnp.sin(slip) / axle
    x, y, yaw = motion.pose
    # Along an arc: the chord has the direction of its middle, and is shorter than the arc by sinc.
    chord, way = path * jnp.sinc(turn / (2 * jnp.pi)), yaw + slip + 0.5 * turn
    moved = jnp.stack([x + chord * jnp.cos(way), y + chord * jnp.sin(way), yaw + turn])
    return Motion(moved, speed)


def follow(who: IntelligentDriver, speed: Array, wanted: Array, gap: Array, approach: Array) -> jax.Array:
    """Return the acceleration of the intelligent driver model.

    `gap` is the free distance to the car in front, and `approach` how much faster one is than that car.
    """
    needed = speed * who.time_gap + speed * approach / (2 * jnp.sqrt(who.acceleration * who.braking))
    space = who.least_gap + jnp.maximum(needed, 0.0)
    free = 1 - (speed / jnp.maximum(wanted, 0.1)) ** 4
    return jnp.clip(who.acceleration * (free - (space / jnp.maximum(gap, 0.1)) ** 2), -who.hardest, who.acceleration)
