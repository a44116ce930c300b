"""Sequence tasks made of a user's functions, and the vector toy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.envs.sequence.task import SequenceTask
from ludus.envs.sequence.vector_toy import best_action, vector_toy

KEY = jax.random.key(0)


def start(key):
    return jnp.zeros(2)


def move(state, action):
    return state + jnp.array([1.0, 0.0]) * action


def gain(state, action, next_state):
    return next_state[0] * 10 + state[0]


def far(state):
    return state[0] >= 3


def played(task, actions):
    state, obs = task.reset(KEY)
    seen, rewards, step = [np.asarray(obs).tolist()], [], None
    for action in actions:
        assert step is None or not step.terminated
        state, step = task.step(state, jnp.int32(action), KEY)
        seen.append(np.asarray(step.obs).tolist())
        rewards.append(float(step.reward))
    return seen, rewards, bool(step.terminated)


@pytest.mark.requirement("S0.21")
def test_four_functions_make_a_task():
    task = SequenceTask(start, move, gain, far, num_actions=3)
    seen, rewards, over = played(task, [1, 0, 2])
    assert seen == [[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 0.0]]
    assert (rewards, over) == ([10.0, 11.0, 31.0], True)
    assert task == SequenceTask(start, move, gain, far, num_actions=3)  # and so nothing is compiled twice


@pytest.mark.requirement("S0.21")
def test_a_horizon_is_an_end_of_the_tasks_own():
    assert not played(SequenceTask(start, move, gain, far, horizon=3), [0, 0])[2]
    assert played(SequenceTask(start, move, gain, far, horizon=2), [0, 0])[2]


@pytest.mark.requirement("S0.21")
def test_chance_has_a_part_where_a_transition_takes_a_key_and_a_state_is_any_tree():
    def drift(state, action, key):
        return {"x": state["x"] + jax.random.normal(key)}

    task = SequenceTask(lambda key: {"x": 0.0}, drift, lambda s, a, n: n["x"], observe=lambda s: s["x"][None])
    env = ludus.make_env(task, num_envs=64, max_episode_steps=4)
    trainer = ludus.Trainer(ludus.PPO(batch_size=256), env, ludus.Settings(verbose=False, eval_episodes_final=0))
    assert trainer.env.observation_space.shape == (1,)
    state = env.reset(jax.random.split(KEY, 64))
    after = env.step(state, jnp.zeros(64, jnp.int32), jax.tree.map(lambda x: x[0], env.draw(KEY, KEY, 1)))[0]
    assert 0.5 < float(np.std(after.obs)) < 1.5


@pytest.mark.parametrize(("words", "told"), [
    ({"reward": None}, "SequenceTask: reward=None must be a function"),
    ({"num_actions": 0}, "env_options.num_actions=0: must be an integer of at least 1"),
    ({"horizon": 1.5}, "env_options.horizon=1.5: must be an integer of at least 1"),
    ({"initial_state": lambda key: jnp.zeros((2, 2))}, "the state must be a vector, or `observe` must make one of it"),
    ({"observe": lambda state: state[7]["x"]}, "cannot be observed"),
])  # fmt: skip
def test_what_is_no_task_is_one_line(words, told):
    given = {"initial_state": start, "transition": move, "reward": gain, **words}
    with pytest.raises(ludus.LudusError, match=told) as error:
        SequenceTask(**given)
    assert "\n" not in str(error.value)


def test_the_toy_is_as_it_is_written():
    task = vector_toy(dim=3, num_actions=4, horizon=2, deviation=0.0)
    seen, rewards, over = played(task, [2, 1])
    assert seen == [[0.0] * 3, [2.0] * 3, [3.0] * 3]
    assert (rewards, over) == ([-12.0, -27.0], True)
    env = ludus.make_env("VectorToy-v1", num_envs=2)
    assert (env.id, env.observation_space.shape, env.action_space.n) == ("jax:VectorToy-v1", (10,), 4)
    with pytest.raises(ludus.LudusError, match=r"env_options\.deviation=-1"):
        ludus.make_env("VectorToy-v1", deviation=-1)


def test_the_best_action_of_the_toy_is_the_best_of_all_plans():
    states = np.random.default_rng(0).normal(size=(40, 3)) * 1.5
    plans = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), -1).reshape(-1, 3)
    moved = states[:, None, None] + np.cumsum(plans, axis=1)[None, ..., None]  # [state, plan, step, dim]
    returns = -(moved**2).sum(axis=(2, 3))
    np.testing.assert_array_equal(best_action(jnp.asarray(states)), plans[returns.argmax(axis=1), 0])
