"""Tasks that need a memory: the hidden ones are the shown ones without velocities, and the T-maze is what it says."""

import jax
import numpy as np
import pytest

import ludus
from ludus.envs.native.classic_control import CLASSIC
from ludus.envs.native.memory_tasks import MEMORY_TASKS, TMaze
from ludus.envs.signals import action_names, signals_of
from ludus.types import IS_SUCCESS

LEFT, RIGHT, FORWARD = 0, 1, 2
KEY = jax.random.key(0)


@pytest.mark.parametrize(("hidden", "shown", "kept"), [
    ("CartPoleNoVelocity-v1", "CartPole-v1", [0, 2]), ("PendulumNoVelocity-v1", "Pendulum-v1", [0, 1]),
])  # fmt: skip
def test_without_velocities_a_task_is_the_same_but_for_what_it_shows(hidden, shown, kept):
    ours, theirs = MEMORY_TASKS[hidden](), CLASSIC[shown]()
    (state, obs), (same, whole) = ours.reset(KEY), theirs.reset(KEY)
    rng = np.random.default_rng(0)
    for _ in range(30):
        np.testing.assert_array_equal(state, same)
        np.testing.assert_array_equal(obs, whole[np.array(kept)])
        action = rng.integers(2) if shown == "CartPole-v1" else rng.uniform(-2, 2, 1).astype(np.float32)
        (state, step), (same, other) = ours.step(state, action, KEY), theirs.step(same, action, KEY)
        obs, whole = step.obs, other.obs
        assert (step.reward, step.terminated) == (other.reward, other.terminated)
    low, high = theirs.observation_space.bounds
    np.testing.assert_array_equal(ours.observation_space.bounds, (low[kept], high[kept]))
    assert (ours.max_episode_steps, ours.return_threshold) == (theirs.max_episode_steps, theirs.return_threshold)


def walked(maze, sign, actions):
    """Observations, the return, whether it is over, and whether it was a success."""
    key = next(key for key in jax.random.split(KEY, 64) if float(maze.reset(key)[1][0]) == sign)
    state, obs = maze.reset(key)
    seen, total, step = [np.asarray(obs).tolist()], 0.0, None
    for action in actions:
        assert step is None or not step.terminated
        state, step = maze.step(state, np.int32(action), KEY)
        seen.append(np.asarray(step.obs).tolist())
        total += float(step.reward)
    return seen, total, bool(step.terminated), float(step.info[IS_SUCCESS])


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_sign_is_shown_at_the_start_alone_and_says_the_way(length, sign):
    maze = TMaze(length)
    right, wrong = (RIGHT, LEFT) if sign > 0 else (LEFT, RIGHT)
    way = [FORWARD] * length
    seen, total, over, success = walked(maze, sign, [*way, right])
    assert seen[:-1] == [[sign, 0.0], *[[0.0, 0.0]] * (length - 1), [0.0, 1.0]]
    assert (total, over, success) == (1.0, True, 1.0)
    assert walked(maze, sign, [*way, wrong])[1:] == (-1.0, True, 0.0)


def test_walls_cost_a_little_and_end_nothing():
    maze = TMaze(3)
    seen, total, over, success = walked(maze, 1.0, [LEFT, RIGHT, FORWARD, LEFT, FORWARD, FORWARD, FORWARD])
    assert seen[2] == [1.0, 0.0] and seen[4] == [0.0, 0.0] and seen[-1] == [0.0, 1.0]
    assert (round(total, 5), over, success) == (-0.4, False, 0.0)


def test_a_maze_has_any_length_and_its_time_limit_grows_with_it():
    env = ludus.make_env("TMaze-v1", num_envs=2, length=50)
    assert (env.id, env.max_episode_steps, env.return_threshold) == ("jax:TMaze-v1", 204, 0.9)
    assert ludus.make_env("TMaze-v1", num_envs=2, length=50) == env != ludus.make_env("TMaze-v1", num_envs=2)
    assert ludus.make_env("TMaze-v1", max_episode_steps=7).max_episode_steps == 7


@pytest.mark.parametrize("length", [0, 2.5, True, "long"])
def test_a_length_that_cannot_be_is_refused_by_name(length):
    with pytest.raises(ludus.LudusError, match=f"^env_options.length={length}: must be an integer of at least 1$"):
        ludus.make_env("TMaze-v1", length=length)


def test_a_misspelt_id_is_answered_with_the_nearest():
    with pytest.raises(ludus.LudusError, match="did you mean TMaze-v1"):
        ludus.make_env("jax:TMaze-v0")


@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_what_they_show_has_names(name):
    env, rng = MEMORY_TASKS[name](), np.random.default_rng(0)
    obs = np.stack([np.asarray(env.reset(key)[1]) for key in jax.random.split(KEY, 4)])
    action = rng.integers(2, size=4) if name != "PendulumNoVelocity-v1" else rng.uniform(-2, 2, (4, 1))
    shown = signals_of(f"jax:{name}", obs, action)
    assert not any("0" in signal or "velocity" in signal for signal in shown)
    if name == "PendulumNoVelocity-v1":
        np.testing.assert_allclose(np.cos(shown["angle"].values), obs[:, 0], atol=1e-6)
    else:
        np.testing.assert_array_equal(np.stack([signal.values for signal in shown.values()], axis=1), obs)
    assert len(action_names(name)) == (1 if name == "PendulumNoVelocity-v1" else env.action_space.n)
