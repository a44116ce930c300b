"""The nearest target: what is shown and what is earned, in both forms of its observation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.envs.native.targets import NearestTarget
from ludus.spaces import join_groups, split_groups


def test_the_reward_is_the_distance_from_the_nearest_target_that_is_there():
    state = jnp.asarray([[0.1, 0.0, 0], [0.5, 0.5, 1], [-0.9, 0.0, 1], [0.0, 0.1, 1], [0.2, 0.2, 0]])
    env = NearestTarget(targets=3)
    for action, reward in ((state[1, :2], 0.0), (jnp.zeros(2), -0.5), (state[3, :2], -0.25 - 0.16)):
        step = env.step(state, action, jax.random.key(0))[1]
        np.testing.assert_allclose(step.reward, reward, atol=1e-6)
        assert bool(step.terminated) and float(step.info["is_success"]) == (reward == 0)


def test_both_forms_show_the_same_numbers():
    flat, parts = NearestTarget(), NearestTarget(observation="structured")
    for seed in range(3):
        (state, seen), (other, named) = (env.reset(jax.random.key(seed)) for env in (flat, parts))
        np.testing.assert_array_equal(state, other)
        np.testing.assert_array_equal(seen, join_groups(flat.observation_space, named))
        there = split_groups(flat.observation_space, seen)["targets"][:, 2]
        assert there.sum() >= 1 and set(np.unique(there)) <= {0.0, 1.0}


@pytest.mark.parametrize(("name", "value"), [("targets", 0), ("observation", "round")])
def test_a_wrong_option_is_named(name, value):
    with pytest.raises(ludus.LudusError, match=rf"env_options\.{name}={value}: must be"):
        ludus.make_env("NearestTarget-v1", **{name: value})
