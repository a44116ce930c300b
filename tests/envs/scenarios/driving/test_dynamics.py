"""The bicycle and the intelligent driver model against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ludus.envs.scenarios.driving.dynamics import DT, IntelligentDriver, Motion, bicycle, follow

LENGTH = 4.6


def run(motion: Motion, acceleration: float, steering: float, steps: int) -> Motion:
    def step(motion: Motion, _: None) -> tuple[Motion, Motion]:
        motion = bicycle(motion, jnp.float32(acceleration), jnp.float32(steering), LENGTH)
        return motion, motion

    return jax.jit(lambda motion: jax.lax.scan(step, motion, None, length=steps)[1])(motion)


def at(x: float, y: float, yaw: float, speed: float) -> Motion:
    return Motion(jnp.array([x, y, yaw], jnp.float32), jnp.float32(speed))


@pytest.mark.requirement("S2.9")
@pytest.mark.parametrize("acceleration", [0.0, 2.0, -1.5])
def test_straight_on_it_covers_what_galilei_says(acceleration):
    made = run(at(1.0, -2.0, 0.7, 8.0), acceleration, 0.0, 40)
    t = DT * np.arange(1, 41)
    distance = 8.0 * t + 0.5 * acceleration * t**2
    np.testing.assert_allclose(made.pose[:, 0], 1.0 + distance * np.cos(0.7), atol=1e-4)
    np.testing.assert_allclose(made.pose[:, 1], -2.0 + distance * np.sin(0.7), atol=1e-4)
    np.testing.assert_allclose(made.speed, 8.0 + acceleration * t, atol=1e-5)


def test_it_brakes_to_a_standstill_and_stays_there():
    made = run(at(0.0, 0.0, 0.0, 5.0), -4.0, 0.0, 30)
    np.testing.assert_allclose(made.pose[-1], [25.0 / 8.0, 0.0, 0.0], atol=1e-4)
    assert made.speed[-1] == 0.0


@pytest.mark.requirement("S2.9")
@pytest.mark.parametrize("steering", [0.4, -0.2])
def test_a_constant_steering_angle_is_a_circle(steering):
    slip = np.arctan(0.5 * np.tan(steering))
    radius = LENGTH / 4 / np.sin(slip)
    made = run(at(3.0, 1.0, 0.5, 6.0), 0.0, steering, 200)
    middle = np.array([3.0, 1.0]) + radius * np.array([-np.sin(0.5 + slip), np.cos(0.5 + slip)])
    np.testing.assert_allclose(np.linalg.norm(made.pose[:, :2] - middle, axis=1), abs(radius), rtol=1e-4)
    t = DT * np.arange(1, 201)
    np.testing.assert_allclose(made.pose[:, 2], 0.5 + 6.0 * t / radius, rtol=1e-4)


def test_idm_at_its_equilibria():
    who = IntelligentDriver()
    assert follow(who, 12.0, 12.0, 1e6, 0.0) == pytest.approx(0.0, abs=1e-6)
    assert follow(who, 0.0, 12.0, 1e6, 0.0) == pytest.approx(2.0)
    speed = 8.0
    gap = (who.least_gap + speed * who.time_gap) / np.sqrt(1 - (speed / 12.0) ** 4)
    assert follow(who, speed, 12.0, gap, 0.0) == pytest.approx(0.0, abs=1e-5), "the gap kept at a constant speed"
    assert follow(who, speed, 12.0, 0.9 * gap, 0.0) < 0.0 < follow(who, speed, 12.0, 1.1 * gap, 0.0)


def test_idm_by_its_formula():
    random = np.random.default_rng(0)
    speed, wanted, gap, approach = random.uniform([0, 5, 1, -5], [15, 16, 60, 5], (500, 4)).T
    space = 2.0 + np.maximum(0, speed * 1.2 + speed * approach / (2 * np.sqrt(2.0 * 2.5)))
    expected = np.clip(2.0 * (1 - (speed / wanted) ** 4 - (space / gap) ** 2), -8.0, 2.0)
    made = jax.jit(lambda *numbers: follow(IntelligentDriver(), *numbers))(speed, wanted, gap, approach)
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


def test_a_column_of_cars_behind_one_that_stops_never_collides():
    def step(state, _):
        place, speed = state
        gap, leading = place[:-1] - place[1:] - 5.0, speed[:-1]
        push = follow(IntelligentDriver(), speed[1:], 14.0, gap, speed[1:] - leading)
        pushes = jnp.concatenate([jnp.array([-6.0]), push])
        after = jnp.maximum(speed + pushes * DT, 0.0)
        return (place + 0.5 * (speed + after) * DT, after), gap

    place = -25.0 * jnp.arange(6.0)
    gaps = jax.lax.scan(step, (place, jnp.full(6, 12.0)), None, length=200)[1]
    assert gaps.min() > 0.5
    np.testing.assert_allclose(gaps[-1], 2.0, atol=1.0)
