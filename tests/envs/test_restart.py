"""When starts are made, and that it changes no number: beforehand, or a few at a time as episodes end."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.envs.batch import JaxEnv
from ludus.envs.native.classic_control import CLASSIC
from ludus.envs.restart import batch_size, restarted, work
from ludus.rollout import compiled
from ludus.runtime.rng import spread, stream
from ludus.spaces import Box, Discrete
from ludus.types import RolloutKeys, Spec, Step


@dataclass(frozen=True)
class Walk(ludus.Environment):
    """A walk from a random place, of random steps; with `ballast` its state is large."""

    ballast: int = 0
    rounds: int = 0

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Discrete(2)
    max_episode_steps = 7

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        place = jax.random.normal(key, (2,))
        place = jax.lax.while_loop(lambda x: (x > 1e6).any(), lambda x: x / 2, place) if self.rounds else place
        return {"place": place, "ballast": jnp.zeros(self.ballast)}, place

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Step]:
        place = state["place"] + 0.5 * jax.random.normal(key, (2,)) + (action - 0.5)
        return {**state, "place": place}, Step(place, place[0], jnp.abs(place).max() > 2.0)


def batch(env: ludus.Environment, num_envs: int = 1) -> JaxEnv:
    return JaxEnv(env, num_envs, "tried")


@pytest.mark.parametrize("num_envs", [1, 3, 4, 9, 64, 700])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_just_the_rows_that_ended_are_replaced_each_from_its_own_key(num_envs, share):
    ended = np.random.default_rng(num_envs).random(num_envs) < share
    keys = spread(jax.random.key(1), (num_envs,))
    running = {"number": jnp.arange(num_envs), "words": jnp.zeros((num_envs, 2), jnp.uint32)}

    def start(key):
        return {"number": jnp.int32(-1), "words": jax.random.key_data(key)}

    made = jax.jit(lambda ended, running: restarted(ended, keys, start, running))(ended, running)
    np.testing.assert_array_equal(made["number"], np.where(ended, -1, np.arange(num_envs)))
    np.testing.assert_array_equal(made["words"], np.where(ended[:, None], jax.random.key_data(keys), 0))


def test_what_is_made_is_in_proportion_to_what_is_used():
    num_envs, made = 256, []
    keys = spread(jax.random.key(1), (num_envs,))

    def start(key):
        jax.debug.callback(lambda words: made.append(tuple(words.tolist())), jax.random.key_data(key))
        return jnp.float32(1)

    for count in (0, 1, 4, 5, 256):
        made.clear()
        ended = jnp.arange(num_envs) < count
        jax.block_until_ready(restarted(ended, keys, start, jnp.zeros(num_envs)))
        jax.effects_barrier()
        size = batch_size(num_envs)
        assert len(made) == size * -(-count // size)
        used = {tuple(words) for words in np.asarray(jax.random.key_data(keys))[:count].tolist()}
        assert used <= set(made)


@pytest.mark.parametrize("name", CLASSIC)
def test_starts_of_a_few_numbers_are_made_beforehand(name):
    assert batch(CLASSIC[name]()).makes_starts_ahead


def test_starts_that_are_large_or_take_long_are_made_when_they_are_used():
    assert batch(Walk()).makes_starts_ahead
    assert batch(Walk(ballast=59)).makes_starts_ahead
    assert not batch(Walk(ballast=61)).makes_starts_ahead  # 256 bytes: 61 numbers and two places
    assert not batch(Walk(rounds=1)).makes_starts_ahead  # nobody knows how long its loop is


def test_the_work_of_a_program_is_that_of_its_parts():
    def traced(function, *given):
        return work(jax.make_jaxpr(function)(*given).jaxpr)

    x = np.ones((8, 4), np.float32)
    assert traced(lambda x: x + 1, x) == 32
    assert traced(lambda x: x @ x.T, x) == 32 + 2 * 8 * 8 * 4  # the transposed matrix, and the products
    assert traced(jax.jit(lambda x: x + 1), x) == 32
    assert traced(lambda x: jax.lax.fori_loop(0, 10, lambda i, x: x + 1, x), x) >= 320
    assert traced(lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x, lambda: x + x + x), x) >= 64
    assert traced(lambda key: jax.random.uniform(key, (10,)), jax.random.key(0)) >= 500


def rollout(env: ludus.Environment, num_envs: int, threshold: int = 0):
    ppo, many = ludus.PPO(batch_size=64, minibatch_size=64), batch(env, num_envs)
    policy = ppo.policy(ppo.init(stream(0, "init"), Spec(many.observation_space, many.action_space, num_envs)))
    keys = RolloutKeys(*(stream(1, name) for name in RolloutKeys._fields))
    begun = compiled.start(as_arrays(ppo), many, policy, keys.begin)
    program = jax.jit(compiled.collect, static_argnums=(1, 5, 6))
    carry, made, stats = program(as_arrays(ppo), many, policy, begun, keys, 16, threshold)
    return carry.env.obs, made.steps, stats


@pytest.mark.slow
@pytest.mark.requirement("S2.8", "S2.9")
@pytest.mark.parametrize(("num_envs", "threshold"), [(5, 0), (64, 0), (5, 1)])
def test_a_rollout_is_the_same_to_the_last_bit_whenever_its_starts_are_made(num_envs, threshold):
    assert batch(Walk()).makes_starts_ahead and not batch(Walk(ballast=100)).makes_starts_ahead
    ahead, later = (rollout(Walk(ballast=ballast), num_envs, threshold) for ballast in (0, 100))
    jax.tree.map(np.testing.assert_array_equal, ahead, later)
    steps = later[1]
    ended = np.asarray(steps.terminated | steps.truncated)
    assert ended.sum() > num_envs and not ended.all()
    starts = np.asarray(steps.obs)[1:][ended[:-1]]
    assert len(np.unique(starts, axis=0)) == len(starts), "no start is used twice"
    assert (np.asarray(steps.next_obs)[:-1][ended[:-1]] != starts).any(axis=-1).all(), "the true successor is kept"
    np.testing.assert_array_equal(np.asarray(steps.next_obs)[:-1][~ended[:-1]], np.asarray(steps.obs)[1:][~ended[:-1]])
