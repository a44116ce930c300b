"""Tasks that nobody solves by what is seen now: policies must remember what they saw before.

Two are classic control without its velocities, which follow from a few observations in a row. In the T-maze a single
observation matters, and it lies as far back as the maze is long.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ludus.envs.base import Environment
from ludus.envs.native.classic_control import POLE_LIMIT, TRACK_LIMIT, CartPole, Pendulum
from ludus.spaces import Box, Discrete
from ludus.types import IS_SUCCESS, LudusError, Step

FORWARD = 2
"""The T-maze's action that goes on; 0 and 1 turn left and right."""
BUMP = 0.1
"""What it costs to run into a wall."""


@dataclass(frozen=True)
class CartPoleNoVelocity(CartPole):
    """CartPole that shows where the cart is and how the pole leans, but not how fast they move."""

    observation_space = Box((-2 * TRACK_LIMIT, -2 * POLE_LIMIT), (2 * TRACK_LIMIT, 2 * POLE_LIMIT), (2,))

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start near the upright rest."""
        state, obs = super().reset(key)
        return state, obs[::2]

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        """Push the cart."""
        state, step = super().step(state, action, key)
        return state, step._replace(obs=step.obs[::2])


@dataclass(frozen=True)
class PendulumNoVelocity(Pendulum):
    """Pendulum that shows its angle, but not how fast it turns."""

    observation_space = Box(-1.0, 1.0, (2,))

    def _observe(self, state: jax.Array) -> jax.Array:
        return super()._observe(state)[:2]


@dataclass(frozen=True)
class TMaze(Environment):
    """A corridor of `length` steps to a junction; which way is right there is shown at its start alone.

    After Bakker 2001, "Reinforcement learning with long short-term memory". Two numbers are observed: the sign (-1 for
    left, 1 for right) where the corridor begins, else 0; and 1 at the junction, else 0. There is no way back. To run
    into a wall costs 0.1. A turn at the junction ends the episode and earns 1 if it was right, else -1: so the best
    return is 1, 0 is the best without a memory, and a return of 0.9 means that 95% of the turns are right.
    """

    length: int = 10

    observation_space = Box((-1.0, 0.0), (1.0, 1.0), (2,))
    action_space = Discrete(3)
    return_threshold = 0.9

    def __post_init__(self) -> None:
        """Refuse a corridor of no length; cut episodes at four times the steps that the best one takes."""
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            raise LudusError(f"env_options.length={self.length}: must be an integer of at least 1")
        object.__setattr__(self, "max_episode_steps", 4 * (self.length + 1))

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start at the sign; the state is the sign and the place."""
        state = jnp.stack([jax.random.rademacher(key, (), jnp.float32), 0.0])
        return state, self._observe(state)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        """Go on, turn at the junction, or run into a wall."""
        sign, place = state[0], state[1]
        is_forward, at_junction = action == FORWARD, place == self.length
        turned, moved = at_junction & ~is_forward, ~at_junction & is_forward
        is_right = turned & ((action == 1) == (sign > 0))
        reward = jnp.where(turned, jnp.where(is_right, 1.0, -1.0), jnp.where(moved, 0.0, -BUMP))
        state = jnp.stack([sign, place + moved])
        info = {IS_SUCCESS: is_right.astype(jnp.float32)}
        return state, Step(self._observe(state), reward, turned, False, info)

    def _observe(self, state: jax.Array) -> jax.Array:
        sign, place = state[0], state[1]
        return jnp.stack([jnp.where(place == 0, sign, 0.0), (place == self.length).astype(jnp.float32)])


MEMORY_TASKS = {
    "CartPoleNoVelocity-v1": CartPoleNoVelocity,
    "PendulumNoVelocity-v1": PendulumNoVelocity,
    "TMaze-v1": TMaze,
}
