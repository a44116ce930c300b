"""EnvPool behind our contract: same-step resets, true successors, both kinds of end, a seed for each environment."""

import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import ludus
from ludus.envs import registry
from ludus.envs.adapters.gymnasium import GymnasiumEnv
from ludus.envs.host.info_stats import InfoMeans
from ludus.spaces import Box, Dict, Discrete

envpool = pytest.importorskip("envpool", reason="EnvPool is not installed")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings into a file where it is


def play(env, seeds, actions):
    """Step through `actions` and return copies of everything: the first observation and the steps."""
    first = np.array(env.reset(seeds))
    steps = [env.step(action) for action in actions]
    return first, steps


def some_actions(env, count, seed=0):
    random, space = np.random.default_rng(seed), env.action_space
    if isinstance(space, Discrete):
        return list(random.integers(space.n, size=(count, env.num_envs)).astype(np.int32))
    low, high = space.bounds
    return list(random.uniform(low, high, size=(count, env.num_envs, *space.shape)).astype(np.float32))


def raw_pool(name, seed, **options):
    with warnings.catch_warnings(action="ignore"):
        pool = envpool.make_gymnasium(name, num_envs=1, seed=[seed], **options)
        assert pool.observation_space is not None
    return pool


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("CartPole-v1", {}, 200),
        ("Pendulum-v1", {"max_episode_steps": 7}, 40),
        ("BipedalWalker-v3", {"max_episode_steps": 60}, 300),
        ("Hopper-v5", {}, 150),
    ],
)
def test_every_step_is_one_of_a_raw_pool_and_its_reset_steps_are_left_out(name, options, count):
    env = ludus.make_env(f"envpool:{name}", 3, **options)
    actions = some_actions(env, count)
    first, steps = play(env, [11, 12, 13], actions)
    ends = 0
    for i in range(3):
        pool = raw_pool(name, 11 + i, **options)
        np.testing.assert_allclose(first[i], pool.reset()[0][0], rtol=1e-6)
        length = 0
        for action, step in zip(actions, steps, strict=True):
            obs, reward, terminated, truncated, info = pool.step(action[i : i + 1])
            length += 1
            assert info["elapsed_step"][0] == length, "the raw pool played no reset step"
            np.testing.assert_allclose(step.next_obs[i], obs[0], rtol=1e-6)
            np.testing.assert_allclose(step.reward[i], reward[0], rtol=1e-6)
            assert (step.terminated[i] | step.truncated[i]) == (terminated[0] | truncated[0])
            if step.terminated[i] | step.truncated[i]:
                obs, reward, _, _, info = pool.step(action[i : i + 1])  # resets and ignores the action
                assert info["elapsed_step"][0] == 0 and reward[0] == 0
                assert np.abs(step.next_obs[i] - obs[0]).max() > 1e-3, "the successor is not the next start"
                ends, length = ends + 1, 0
            np.testing.assert_allclose(step.obs[i], obs[0], rtol=1e-6)
    assert ends >= 4


def steps_until_cartpole_falls(seed):
    env = ludus.make_env("envpool:CartPole-v1", 1)
    env.reset([seed])
    for length in range(1, 100):
        if env.step(np.ones(1, np.int32)).terminated[0]:
            return length
    raise AssertionError


@pytest.mark.parametrize(("more", "ends"), [(-1, (False, True)), (0, (True, True)), (1, (True, False))])
def test_termination_and_truncation_are_told_apart_even_on_the_last_step(more, ends):
    length = steps_until_cartpole_falls(seed=5)
    env = ludus.make_env("envpool:CartPole-v1", 1, max_episode_steps=length + more)
    _, steps = play(env, [5], [np.ones(1, np.int32)] * (length + min(more, 0)))
    assert (bool(steps[-1].terminated[0]), bool(steps[-1].truncated[0])) == ends
    assert not any(step.terminated[0] or step.truncated[0] for step in steps[:-1])


def test_no_step_is_made_up():
    env = ludus.make_env("envpool:CartPole-v1", 8)
    env.reset(range(8))
    lengths, steps, ends = np.zeros(8), 0, 0
    for action in some_actions(env, 300):
        step = env.step(action)
        lengths, steps = lengths + 1, steps + 8
        assert (step.reward == 1).all(), "EnvPool's own resets are steps with reward 0"
        ended = step.terminated | step.truncated
        started = np.abs(step.obs).max(axis=1) <= 0.05  # only a start is that close to the middle for sure
        assert started[ended].all() and (lengths[ended] >= 8).all()
        ends, lengths = ends + ended.sum(), np.where(ended, 0, lengths)
    assert ends > 50


@pytest.mark.parametrize("name", ["CartPole-v1", "BipedalWalker-v3", "HalfCheetah-v5"])
def test_each_environment_follows_its_own_seed(name):
    env = ludus.make_env(f"envpool:{name}", 3, max_episode_steps=30)
    actions = some_actions(env, 70)
    first, steps = play(env, [1, 2, 3], actions)
    again, same = play(env, [1, 2, 3], actions)
    np.testing.assert_array_equal(first, again)
    for one, other in zip(steps, same, strict=True):
        np.testing.assert_array_equal(one.obs, other.obs)
        np.testing.assert_array_equal(one.reward, other.reward)
    # Alone, in another place, among others: the episodes of a seed stay the same.
    other_first, others = play(env.remake(2), [9, 2], [action[[0, 1]] for action in actions])
    np.testing.assert_array_equal(other_first[1], first[1])
    assert np.abs(other_first[0] - first[0]).max() > 0
    for one, other in zip(steps, others, strict=True):
        np.testing.assert_array_equal(one.obs[1], other.obs[1])
    assert len(np.unique(first, axis=0)) == 3


def test_spaces_are_those_of_gymnasium():
    for name in ("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "HalfCheetah-v5", "Hopper-v5"):
        pool, gym = ludus.make_env(f"envpool:{name}"), ludus.make_env(f"gym:{name}")
        assert (pool.observation_space, pool.action_space) == (gym.observation_space, gym.action_space)


def test_kinds_of_observations():
    pong = ludus.make_env("envpool:Pong-v5", 2)
    assert pong.observation_space == Box(0.0, 255.0, (4, 84, 84), "uint8")
    assert pong.reset([0, 1]).dtype == np.uint8
    lake = ludus.make_env("envpool:FrozenLake-v1", 2)
    assert lake.observation_space == Discrete(16) and lake.reset([0, 1]).shape == (2,)
    grid = ludus.make_env("envpool:MiniGrid-Empty-5x5-v0", 2, agent_view_size=5)
    assert isinstance(grid.observation_space, Dict)
    shown = grid.reset([0, 1])
    assert shown["image"].shape == (2, 5, 5, 3)
    for action in some_actions(grid, 120):
        step = grid.step(action)
        ended = step.terminated | step.truncated
        assert (step.obs["direction"][ended] == 0).all()  # every episode starts facing right
        np.testing.assert_array_equal(step.obs["image"][~ended], step.next_obs["image"][~ended])


def test_bounds_that_envpool_does_not_know_are_infinite():
    space = ludus.make_env("envpool:LunarLanderContinuous-v2").observation_space  # an id that Gymnasium dropped
    assert space == Box(-np.inf, np.inf, (8,))


def test_actions_keep_within_the_bounds_of_the_pool():
    env = ludus.make_env("envpool:Humanoid-v5", 2)  # 0.4 as float32 is more than 0.4
    action = env._within_bounds(np.full((2, 17), 0.4, np.float32))
    assert action.dtype == np.float64 and (action <= 0.4).all()
    walker = ludus.make_env("envpool:BipedalWalker-v3", 2)
    action = np.ones((2, 4), np.float32)
    assert walker._within_bounds(action) is action


def test_info_is_summed_up_over_episodes():
    env = ludus.make_env("envpool:HalfCheetah-v5", 2, max_episode_steps=5)
    _, steps = play(env, [0, 1], [np.zeros((2, 6), np.float32)] * 4)
    assert set(steps[0].info[0].names) == {"reward_run", "reward_ctrl", "x_position", "x_velocity"}
    step = env.step(np.ones((2, 6), np.float32))
    means = InfoMeans()
    means.add(step.info, step.truncated, np.zeros(2, np.float32))
    # Four steps without and one with full control: each costs 0.1 for every one of six actions.
    assert means.figures()["info/reward_ctrl/last"] == pytest.approx(-0.6)
    assert means.figures()["info/reward_ctrl/mean"] == pytest.approx(-0.12)
    step = env.step(np.zeros((2, 6), np.float32))
    means = InfoMeans()
    means.add(step.info, np.ones(2, bool), np.zeros(2, np.float32))
    assert means.figures()["info/reward_ctrl/mean"] == pytest.approx(0.0), "a new episode starts from nothing"


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5", "Swimmer-v5", "Walker2d-v5"])
def test_mujoco_steps_are_those_of_gymnasium(name):
    """Put Gymnasium's simulator where EnvPool's is, which the observation tells, and step both."""
    gym, compared = gymnasium.make(name, disable_env_checker=True).unwrapped, 0
    gym.reset(seed=0)
    hidden = {"InvertedPendulum-v5": 0, "Swimmer-v5": 2}.get(name, 1)  # coordinates of the body in the world
    for seed in range(12):
        pool = raw_pool(name, seed)
        (obs,) = pool.reset()[0]
        for action in np.random.default_rng(seed).uniform(-1, 1, (40, 1, *gym.action_space.shape)).astype(np.float32):
            position, velocity = np.split(obs, [gym.model.nq - hidden])
            (obs,), (reward,), (terminated,), _, _ = pool.step(action * gym.action_space.high)
            if (np.abs(velocity) < 10).all():  # some show no more than 10
                gym.set_state(np.concatenate([np.zeros(hidden), position]), velocity)
                gym_obs, gym_reward, gym_terminated, _, _ = gym.step(action[0] * gym.action_space.high)
                np.testing.assert_allclose(obs, gym_obs, rtol=1e-6, atol=1e-6)
                assert reward == pytest.approx(gym_reward, abs=1e-6)
                assert terminated == gym_terminated
                compared += 1
            if terminated:
                break
    assert compared > 30


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux shows threads as files")
def test_closing_stops_the_threads():
    def threads():
        return len(list(Path("/proc/self/task").iterdir()))

    env = ludus.make_env("envpool:CartPole-v1", 4)
    env.reset(range(4))
    running = threads()
    env.close()
    assert threads() < running


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (
            "envpool:BipedalWalkr-v3",
            {},
            "env=envpool:BipedalWalkr-v3: no such environment; did you mean BipedalWalker-",
        ),
        ("envpool:qqqqqq", {}, "env=envpool:qqqqqq: no such environment"),
        ("envpool:BipedalWalker-v3", {"gravity": 3}, "envpool:BipedalWalker-v3 does not take them"),
        ("envpool:BipedalWalker-v3", {"hardcore": "x"}, "envpool:BipedalWalker-v3 does not take them"),
        ("envpool:BipedalWalker-v3", {"batch_size": 1}, "env_options.batch_size: not an option of envpool:Bipedal"),
        ("envpool:BipedalWalker-v3", {"max_episode_steps": 0}, "env_options.max_episode_steps=0: must be an integer"),
        ("envpool:Chess-v1", {}, "env=envpool:Chess-v1: has several players"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(env, options, message):
    with pytest.raises(ludus.LudusError) as caught:
        ludus.make_env(env, 2, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_environment_that_cannot_be_made_is_one_line(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such file\nand more")

    monkeypatch.setattr(envpool, "make_gymnasium", fail)
    with pytest.raises(ludus.LudusError, match=r"EnvPool cannot make it \(no such file\)$"):
        ludus.make_env("envpool:Hopper-v5")


def test_envpool_is_chosen_for_what_it_is_faithful_to(monkeypatch):
    for name in sorted(registry.FAITHFUL_IN_ENVPOOL):
        assert ludus.make_env(name, 2).id == f"envpool:{name}"
    assert ludus.make_env("BipedalWalker-v3", 2, max_episode_steps=9).id == "envpool:BipedalWalker-v3"
    # What EnvPool has otherwise or may not have at all is Gymnasium's.
    assert isinstance(ludus.make_env("LunarLander-v3", 2), GymnasiumEnv)
    assert ludus.make_env("BipedalWalker-v3", 2, hardcore=True).id == "gym:BipedalWalker-v3"
    assert ludus.make_env("gym:BipedalWalker-v3", 2).id == "gym:BipedalWalker-v3"
    assert ludus.make_env("CartPole-v1", 2).id == "jax:CartPole-v1"
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    assert ludus.make_env("BipedalWalker-v3", 2).id == "gym:BipedalWalker-v3"


def test_a_missing_envpool_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    monkeypatch.delitem(sys.modules, "ludus.envs.adapters.envpool", raising=False)
    with pytest.raises(ludus.LudusError, match=r'needs EnvPool \(pip install "ludus\[envpool\]"\)'):
        ludus.make_env("envpool:BipedalWalker-v3")


def test_missing_assets_are_one_line():
    code = "import ludus; ludus.make_env('envpool:CartPole-v1')"
    environment = {"ENVPOOL_ASSETS_PATH": "/nowhere", "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(
        'LudusError: env=envpool:CartPole-v1: EnvPool lacks its assets (pip install "ludus[envpool]")'
    )


@pytest.mark.slow
def test_a_policy_trained_here_plays_in_gymnasium():
    env = ludus.make_env("envpool:LunarLander-v3", 4, max_episode_steps=50)
    trainer = ludus.Trainer(
        ludus.PPO(batch_size=256, minibatch_size=64),
        env,
        ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=0),
    )
    result = trainer.train(total_steps=512)
    assert result.episodes >= 8
    first, again = trainer.evaluate(5), trainer.evaluate(5)
    np.testing.assert_array_equal(first.returns, again.returns)
    assert first.lengths.max() <= 50
    elsewhere = ludus.evaluate(
        trainer.policy, ludus.make_env("gym:LunarLander-v3", 2, max_episode_steps=50), episodes=3
    )
    assert len(elsewhere.returns) == 3
