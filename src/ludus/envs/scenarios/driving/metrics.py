"""Metrics of an episode: sums that grow step by step, and scores of the episode so far. `docs/en/driving.md` has them.

A score is computed for an episode and averaged over episodes afterwards, in training as in evaluation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.scenarios.driving.dynamics import DT
from ludus.envs.scenarios.driving.geometry import wrapped
from ludus.envs.scenarios.driving.rewards import CLOSE, ENDING, Happening, ended
from ludus.types import IS_SUCCESS, Array

FASTER, SLOWER, ACROSS, JERK, TURNING = 2.4, 4.05, 4.89, 8.37, 0.95
"""Bounds of comfort: acceleration, braking and lateral acceleration in m/s^2, jerk in m/s^3, turning in rad/s."""
OVERSPEED = 2.23
"""m/s above the limit, on average over an episode, at which nothing is left of its score."""
MAKING_PROGRESS = 0.2
"""The share of the expert's progress from which on an episode counts in the aggregate scores."""
SUCCESS = 0.5
"""The share of it from which on an episode without an ending key is a success."""
NUPLAN = {"ttc_score": 5.0, "progress_score": 5.0, "speed_compliance": 4.0, "comfort": 2.0}
VMAX = {**NUPLAN, "lanes": 3.0}
"""Weights in the two aggregate scores."""


class Tally(NamedTuple):
    """An episode so far."""

    steps: jax.Array
    collision: jax.Array
    at_fault: jax.Array
    offroad: jax.Array
    red_light: jax.Array
    fired: jax.Array
    """Whether one of the keys fired that `accuracy` is about."""
    against: jax.Array
    """Metres driven against the direction of the lanes."""
    off_route: jax.Array
    """Steps beside the route."""
    astride: jax.Array
    """Steps not within one lane."""
    least_time: jax.Array
    """The fewest seconds to a collision."""
    rough: jax.Array
    speeding: jax.Array
    """Metres a second above the limit, added up over steps."""
    progress: jax.Array
    """Metres along the route."""
    divergence: jax.Array
    """Metres from the expert's track at the same time, added up over steps."""


def nothing() -> Tally:
    """Return the tally of an episode that begins."""
    zero, no = jnp.float32(0.0), jnp.bool_(False)
    return Tally(zero, no, no, no, no, no, zero, zero, zero, jnp.float32(10.0), no, zero, zero, zero)


def counted(
    tally: Tally, seen: Happening, is_rough: jax.Array, speed: jax.Array, progress: jax.Array, apart: jax.Array
) -> Tally:
    """Count a step in; `apart` is the distance to where the expert is at this time."""
    return Tally(
        tally.steps + 1,
        tally.collision | seen.overlap,
        tally.at_fault | seen.at_fault,
        tally.offroad | seen.offroad,
        tally.red_light | seen.red_light,
        tally.fired | ended(ENDING, seen),
        tally.against + seen.wrong_way * speed * DT,
        tally.off_route + seen.off_route,
        tally.astride + seen.astride,
        jnp.minimum(tally.least_time, seen.time_to_collision),
        tally.rough | is_rough,
        tally.speeding + seen.speeding,
        jnp.maximum(tally.progress, progress),
        tally.divergence + apart,
    )


def is_rough(past: jax.Array) -> jax.Array:
    """Return whether a ride is uncomfortable, from its latest five poses with speeds `[5, 4]`, the newest last."""
    speed, yaw = past[:, 3], past[:, 2]
    late, early = (speed[4] - speed[2]) / (2 * DT), (speed[2] - speed[0]) / (2 * DT)
    turning = wrapped(yaw[4] - yaw[2]) / (2 * DT)
    across = speed[3] * turning
    return (
        (late > FASTER)
        | (late < -SLOWER)
        | (jnp.abs(late - early) / (2 * DT) > JERK)
        | (jnp.abs(turning) > TURNING)
        | (jnp.abs(across) > ACROSS)
    )


def figures(tally: Tally, expert: Array) -> dict[str, jax.Array]:
    """Return the metrics of an episode so far; `expert` is how many metres the expert made in the whole of it."""
    steps = jnp.maximum(tally.steps, 1.0)
    ratio = tally.progress / jnp.maximum(expert, 1.0)
    seconds = tally.astride * DT
    made = {
        "collision": tally.collision,
        "at_fault_collision": tally.at_fault,
        "offroad": tally.offroad,
        "red_light": tally.red_light,
        "wrong_way": tally.against,
        "direction": _stepped(tally.against, 2.0, 6.0),
        "off_route": tally.off_route / steps,
        "progress": tally.progress,
        "progress_ratio": ratio,
        "progress_score": jnp.clip(ratio, 0.0, 1.0),
        "time_to_collision": tally.least_time,
        "ttc_score": tally.least_time >= CLOSE,
        "comfort": ~tally.rough,
        "speed_compliance": jnp.maximum(0.0, 1.0 - tally.speeding / steps / OVERSPEED),
        "astride": seconds,
        "lanes": _stepped(seconds, 3.0, 5.0),
        "log_divergence": tally.divergence / steps,
        "accuracy": ~tally.fired,
        IS_SUCCESS: ~tally.fired & (ratio >= SUCCESS),
    }
    made = {name: value.astype(jnp.float32) for name, value in made.items()}
    gate = (1 - made["at_fault_collision"]) * (1 - made["offroad"]) * (ratio >= MAKING_PROGRESS) * made["direction"]
    made["nuplan_score"] = gate * _mean(made, NUPLAN)
    made["vmax_score"] = gate * (1 - made["red_light"]) * _mean(made, VMAX)
    return made


def _stepped(amount: jax.Array, low: float, high: float) -> jax.Array:
    """Return 1 up to `low`, a half up to `high`, and 0 above: the three never overlap."""
    return jnp.where(amount <= low, 1.0, jnp.where(amount <= high, 0.5, 0.0))


def _mean(made: dict[str, jax.Array], weights: dict[str, float]) -> jax.Array:
    total = jnp.stack([weight * made[name] for name, weight in weights.items()]).sum()
    return total / sum(weights.values())
