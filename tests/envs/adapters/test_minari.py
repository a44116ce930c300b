"""Minari's data sets, made by Minari itself, as demonstrations."""

import sys
import warnings

import gymnasium
import numpy as np
import pytest
import zoo

import ludus
from ludus.envs.adapters.minari import read_minari
from ludus.spaces import flatten
from ludus.types import LudusError

minari = pytest.importorskip("minari")
# Minari leaves its temporary folders to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def made(env, name, episodes=3, most=1000):
    """A data set of random actions; and what happened, step by step."""
    collector, happened = minari.DataCollector(env, data_format="arrow"), []
    collector.action_space.seed(0)
    for episode in range(episodes):
        obs, _ = collector.reset(seed=episode)
        for _ in range(most):
            action = collector.action_space.sample()
            after, reward, terminated, truncated, _ = collector.step(action)
            happened.append((obs, action, reward, terminated, truncated, after))
            obs = after
            if terminated or truncated:
                break
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of descriptions that are not given
        collector.create_dataset(name)
    collector.close()
    return happened


def check(demonstrations, happened):
    seen, acted = demonstrations.observation_space, demonstrations.action_space
    for row, (obs, action, reward, terminated, truncated, after) in enumerate(happened):
        for space, arrays, value in (
            (seen, demonstrations.obs, obs),
            (acted, demonstrations.action, action),
            (seen, demonstrations.next_obs, after),
        ):
            for ours, theirs in zip(flatten(space, arrays), flatten(space, value), strict=True):
                np.testing.assert_allclose(ours[row], theirs, rtol=1e-6)
        assert demonstrations.reward[row] == np.float32(reward)
        assert (demonstrations.terminated[row], demonstrations.truncated[row]) == (terminated, truncated)
    assert len(demonstrations) == len(happened)


def test_a_data_set_is_what_happened():
    happened = made(gymnasium.make("CartPole-v1"), "cartpole/random-v0")
    demonstrations = read_minari("cartpole/random-v0")
    check(demonstrations, happened)
    assert (demonstrations.num_episodes, demonstrations.env) == (3, "gym:CartPole-v1")
    env = ludus.make_env("CartPole-v1")
    assert (demonstrations.observation_space, demonstrations.action_space) == (env.observation_space, env.action_space)


def test_dicts_and_tuples_are_kept():
    case = zoo.CASES["nested"]
    happened = made(zoo.RandomGym(case), "nested/random-v0")
    check(read_minari("nested/random-v0"), happened)


def test_an_episode_without_an_end_is_cut_there():
    made(gymnasium.make("Pendulum-v1"), "pendulum/random-v0", episodes=2, most=5)
    demonstrations = read_minari("pendulum/random-v0")
    assert demonstrations.lengths.tolist() == [5, 5] and demonstrations.truncated.sum() == 2


def test_what_is_not_there_is_one_line():
    with pytest.raises(LudusError, match="nowhere/at-all-v0: Minari cannot load it") as error:
        read_minari("nowhere/at-all-v0")
    assert "\n" not in str(error.value)


def test_without_minari_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(LudusError, match="needs Minari: pip install"):
        read_minari("cartpole/random-v0")
