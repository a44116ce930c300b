"""The randomness of a batch: every step and every start has a key of its own."""

import jax
import jax.numpy as jnp
import numpy as np

import ludus
from ludus.envs.batch import JaxEnv
from ludus.runtime.rng import stream
from ludus.spaces import Box, Discrete
from ludus.types import Step

STEPS, ENVS = 5, 3


class ShowsKeys(ludus.Environment):
    """Shows the key that it was started with."""

    observation_space = Box(0.0, 2.0**32, (2,), "uint32")
    action_space = Discrete(2)

    def reset(self, key):
        return (), jax.random.key_data(key)

    def step(self, state, action, key):
        return (), Step(jax.random.key_data(key), jnp.float32(0), jnp.bool_(False))


def drawn(step_seed: int, start_seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The keys of the steps and those of the starts, `[STEPS, ENVS, 2]` each."""
    draw = JaxEnv(ShowsKeys(), ENVS, "keys").draw(stream(step_seed, "step"), stream(start_seed, "start"), STEPS)
    return np.asarray(jax.random.key_data(draw.key)), np.asarray(draw.start[1])


def test_steps_and_starts_each_follow_their_own_key_and_share_none():
    steps, starts = drawn(1, 2)
    every = np.concatenate([steps.reshape(-1, 2), starts.reshape(-1, 2)])
    assert len({tuple(words) for words in every.tolist()}) == 2 * STEPS * ENVS
    other_steps, same_starts = drawn(3, 2)
    same_steps, other_starts = drawn(1, 3)
    np.testing.assert_array_equal(starts, same_starts)
    np.testing.assert_array_equal(steps, same_steps)
    assert (steps != other_steps).any() and (starts != other_starts).any()
