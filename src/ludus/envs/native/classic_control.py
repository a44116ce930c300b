"""The five classic control tasks as JAX functions, step for step equal to Gymnasium's.

States are one packed float32 array each: the fewer arrays a rollout carries, the smaller its program.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.base import Environment
from ludus.spaces import Box, Discrete
from ludus.types import Step

TRACK_LIMIT = 2.4
POLE_LIMIT = math.radians(12)

ACROBOT_SPEED_LIMIT = np.array([4 * math.pi, 9 * math.pi], np.float32)

VALLEY_LEFT, VALLEY_RIGHT = -1.2, 0.6
CAR_SPEED_LIMIT = 0.07

PENDULUM_SPEED_LIMIT = 8.0
PENDULUM_TORQUE_LIMIT = 2.0


@dataclass(frozen=True)
class CartPole(Environment):
    """Balance a pole on a cart by pushing left or right; the state is what is observed.

    +1 for every step, the last one included; over when the cart leaves the track or the pole leans too far.
    """

    gravity: float = 9.8
    cart_mass: float = 1.0
    pole_mass: float = 0.1
    half_length: float = 0.5
    force: float = 10.0
    timestep: float = 0.02

    # Twice the limits, so that the observation of a fall still lies inside.
    observation_space = Box(
        low=(-2 * TRACK_LIMIT, -math.inf, -2 * POLE_LIMIT, -math.inf),
        high=(2 * TRACK_LIMIT, math.inf, 2 * POLE_LIMIT, math.inf),
        shape=(4,),
    )
    action_space = Discrete(2)
    max_episode_steps = 500
    return_threshold = 475.0

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start near the upright rest."""
        state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return state, state

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        """Push the cart for one timestep of explicit Euler."""
        state = state + self.timestep * self._derivative(state, jnp.where(action == 1, self.force, -self.force))
        fallen = (jnp.abs(state[0]) > TRACK_LIMIT) | (jnp.abs(state[2]) > POLE_LIMIT)
        return state, Step(state, 1.0, fallen)

    def _derivative(self, state: jax.Array, force: jax.Array) -> jax.Array:
        # Florian (2007), "Correct equations for the dynamics of the cart-pole system", without friction.
        velocity, angle, spin = state[1], state[2], state[3]
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        total_mass = self.cart_mass + self.pole_mass
        lever = self.pole_mass * self.half_length / total_mass
        push = force / total_mass + lever * spin**2 * sine
        inertia = self.half_length * (4 / 3 - self.pole_mass / total_mass * cosine**2)
        angular_acceleration = (self.gravity * sine - cosine * push) / inertia
        acceleration = push - lever * angular_acceleration * cosine
        return jnp.stack([velocity, acceleration, spin, angular_acceleration])


@dataclass(frozen=True)
class Acrobot(Environment):
    """Swing the free end of two hanging links above a line by torque on the middle joint.

    The state is both angles, kept in [-pi, pi], and both speeds. -1 for every step but the one that arrives.
    """

    gravity: float = 9.8
    link_length: float = 1.0
    link_mass: float = 1.0
    link_center: float = 0.5
    link_inertia: float = 1.0
    timestep: float = 0.2

    observation_space = Box.from_arrays(
        low=-np.concatenate([np.ones(4, np.float32), ACROBOT_SPEED_LIMIT]),
        high=np.concatenate([np.ones(4, np.float32), ACROBOT_SPEED_LIMIT]),
    )
    action_space = Discrete(3)
    max_episode_steps = 500
    return_threshold = -100.0

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start hanging almost still."""
        state = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        return state, self._observe(state)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        """Apply torque -1, 0 or 1 for one timestep of classical Runge-Kutta."""
        moved = self._integrate(state, action - 1.0)
        speeds = jnp.clip(moved[2:], -ACROBOT_SPEED_LIMIT, ACROBOT_SPEED_LIMIT)
        state = jnp.concatenate([_wrap(moved[:2]), speeds])
        arrived = -jnp.cos(state[0]) - jnp.cos(state[0] + state[1]) > 1.0
        return state, Step(self._observe(state), jnp.where(arrived, 0.0, -1.0), arrived)

    def _observe(self, state: jax.Array) -> jax.Array:
        angles = state[:2]
        circle = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)  # [link, (cos, sin)]
        return jnp.concatenate([circle.reshape(4), state[2:]])

    def _integrate(self, state: jax.Array, torque: jax.Array) -> jax.Array:
        # Four calls in a row, not a loop: the program runs faster, and compiles hardly slower.
        k1 = self._derivative(state, torque)
        k2 = self._derivative(state + self.timestep / 2 * k1, torque)
        k3 = self._derivative(state + self.timestep / 2 * k2, torque)
        k4 = self._derivative(state + self.timestep * k3, torque)
        return state + self.timestep / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def _derivative(self, state: jax.Array, torque: jax.Array) -> jax.Array:
        # Sutton and Barto, "Reinforcement Learning", first edition, section 11.3 (Gymnasium's "book" dynamics).
        angle_1, angle_2, spin_1, spin_2 = state[0], state[1], state[2], state[3]
        sine, cosine = jnp.sin(angle_2), jnp.cos(angle_2)
        mass, center, length = self.link_mass, self.link_center, self.link_length
        coupling = mass * length * center
        d2 = mass * center**2 + coupling * cosine + self.link_inertia
        d1 = d2 + mass * (center**2 + length**2) + coupling * cosine + self.link_inertia
        # The book's cos(angle - pi/2) is a sine.
        phi2 = mass * center * self.gravity * jnp.sin(angle_1 + angle_2)
        phi1 = phi2 + mass * (center + length) * self.gravity * jnp.sin(angle_1)
        phi1 = phi1 - coupling * sine * spin_2 * (spin_2 + 2 * spin_1)
        ratio = d2 / d1
        drive = torque + ratio * phi1 - coupling * spin_1**2 * sine - phi2
        acceleration_2 = drive / (mass * center**2 + self.link_inertia - ratio * d2)
        acceleration_1 = -(d2 * acceleration_2 + phi1) / d1
        return jnp.stack([spin_1, spin_2, acceleration_1, acceleration_2])


@dataclass(frozen=True)
class MountainCar(Environment):
    """Rock a weak car out of a valley with pushes left, none or right: -1 for every step until the top."""

    gravity: float = 0.0025
    power: float = 0.001
    goal_position: float = 0.5

    observation_space = Box((VALLEY_LEFT, -CAR_SPEED_LIMIT), (VALLEY_RIGHT, CAR_SPEED_LIMIT), (2,))
    action_space = Discrete(3)
    max_episode_steps = 200
    return_threshold = -110.0

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start at rest near the bottom."""
        return _start_car(key)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        """Push for one step."""
        state = _roll_car(state, self.power * (action - 1), self.gravity)
        return state, Step(state, -1.0, _car_arrived(state, self.goal_position))


@dataclass(frozen=True)
class MountainCarContinuous(Environment):
    """Mountain car with a push in [-1, 1]: +100 at the top, less a tenth of every push squared."""

    gravity: float = 0.0025
    power: float = 0.0015
    goal_position: float = 0.45

    observation_space = MountainCar.observation_space
    action_space = Box(-1.0, 1.0, (1,))
    max_episode_steps = 999
    return_threshold = 90.0

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start at rest near the bottom."""
        return _start_car(key)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        """Push for one step; as in Gymnasium the push is clipped but its price is not."""
        push = action[0]
        state = _roll_car(state, self.power * jnp.clip(push, -1.0, 1.0), self.gravity)
        arrived = _car_arrived(state, self.goal_position)
        return state, Step(state, jnp.where(arrived, 100.0, 0.0) - 0.1 * push**2, arrived)


@dataclass(frozen=True)
class Pendulum(Environment):
    """Swing a pendulum up and hold it there: the reward is minus the cost of angle, speed and torque.

    The state is the angle, 0 when upright, and the speed. Gymnasium lets the angle grow without bound; here it
    is kept in [-pi, pi], which changes nothing that can be observed and keeps float32 exact. No episode terminates.
    """

    gravity: float = 10.0
    mass: float = 1.0
    length: float = 1.0
    timestep: float = 0.05

    observation_space = Box((-1.0, -1.0, -PENDULUM_SPEED_LIMIT), (1.0, 1.0, PENDULUM_SPEED_LIMIT), (3,))
    action_space = Box(-PENDULUM_TORQUE_LIMIT, PENDULUM_TORQUE_LIMIT, (1,))
    max_episode_steps = 200
    return_threshold = -200.0

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start at any angle with a small speed."""
        high = np.array([math.pi, 1.0], np.float32)
        state = jax.random.uniform(key, (2,), minval=-high, maxval=high)
        return state, self._observe(state)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        """Twist for one timestep of semi-implicit Euler; the cost is that of the state acted in."""
        angle, speed = state[0], state[1]
        torque = jnp.clip(action[0], -PENDULUM_TORQUE_LIMIT, PENDULUM_TORQUE_LIMIT)
        cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
        pull = 1.5 * self.gravity / self.length * jnp.sin(angle)
        speed = speed + self.timestep * (pull + 3 / (self.mass * self.length**2) * torque)
        speed = jnp.clip(speed, -PENDULUM_SPEED_LIMIT, PENDULUM_SPEED_LIMIT)
        state = jnp.stack([_wrap(angle + self.timestep * speed), speed])
        return state, Step(self._observe(state), -cost, False)

    def _observe(self, state: jax.Array) -> jax.Array:
        return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])


def _wrap(angle: jax.Array) -> jax.Array:
    return angle - 2 * math.pi * jnp.round(angle / (2 * math.pi))


def _start_car(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    state = jnp.stack([jax.random.uniform(key, minval=-0.6, maxval=-0.4), 0.0])
    return state, state


def _roll_car(state: jax.Array, push: jax.Array, gravity: float) -> jax.Array:
    velocity = state[1] + push - gravity * jnp.cos(3 * state[0])
    velocity = jnp.clip(velocity, -CAR_SPEED_LIMIT, CAR_SPEED_LIMIT)
    position = jnp.clip(state[0] + velocity, VALLEY_LEFT, VALLEY_RIGHT)
    # The left wall stops the car; the right end does not.
    velocity = jnp.where(position <= VALLEY_LEFT, jnp.maximum(velocity, 0.0), velocity)
    return jnp.stack([position, velocity])


def _car_arrived(state: jax.Array, goal_position: float) -> jax.Array:
    return (state[0] >= goal_position) & (state[1] >= 0.0)


CLASSIC = {
    "CartPole-v1": CartPole,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Pendulum-v1": Pendulum,
}
