"""A recorded episode is the evaluation's own, and every row of it belongs together."""

import jax
import numpy as np
import pytest
import zoo

import ludus
from ludus.algorithms.critic import Critic
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.policy import Policy
from ludus.envs.adapters.gymnasium import make_gymnasium
from ludus.training.evaluation import Evaluation
from ludus.training.record_episode import extremes, play_episode
from ludus.types import LudusError, Spec


def untrained(env, algorithm=None, seed=0):
    algorithm = algorithm or ludus.PPO(batch_size=64, minibatch_size=64)
    spec = Spec(env.observation_space, env.action_space, env.num_envs)
    state = algorithm.init(jax.random.key(seed), spec)
    parts = algorithm.policy(state), algorithm.critic(state)
    return [kind(as_arrays(algorithm), part, spec, env.id) for kind, part in zip((Policy, Critic), parts, strict=True)]


@pytest.mark.requirement("S2.29", "S4.24")
@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "gym:LunarLander-v3"])
def test_it_is_the_episode_that_the_evaluation_played(id):
    env = ludus.make_env(id, num_envs=2)
    policy, critic = untrained(env)
    evaluation = ludus.evaluate(policy, env, episodes=5, seed=3)
    for name, index in extremes(evaluation).items():
        episode = play_episode(policy, env, critic, seed=3, index=index)
        choose = {"worst": min, "best": max}[name]
        assert evaluation.returns[index] == choose(evaluation.returns)
        assert len(episode) == evaluation.lengths[index]
        np.testing.assert_allclose(episode.arrays["return"][-1], evaluation.returns[index], rtol=1e-5)
    other = play_episode(policy, env, critic, seed=4, index=0)
    assert not np.array_equal(other.arrays["obs"][0], play_episode(policy, env, seed=3, index=0).arrays["obs"][0])
    env.close()


def test_of_equals_the_first_is_the_extreme():
    assert extremes(Evaluation(np.array([2.0, 1.0, 1.0, 2.0]), np.ones(4))) == {"worst": 1, "best": 0}


def test_every_row_is_what_policy_critic_and_environment_say():
    env = ludus.make_env("Pendulum-v1", num_envs=2)
    policy, critic = untrained(env)
    episode = play_episode(policy, env, critic, seed=1, index=2)
    obs, arrays = episode.arrays["obs"], episode.arrays
    np.testing.assert_allclose(policy(obs), arrays["action"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(critic(obs), arrays["value"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(critic(arrays["final_obs"]), arrays["final_value"], rtol=1e-5, atol=1e-6)
    angle, speed = np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2]
    cost = angle**2 + 0.1 * speed**2 + 0.001 * arrays["action"][:, 0] ** 2
    np.testing.assert_allclose(arrays["reward"], -cost, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(arrays["return"], np.cumsum(arrays["reward"], dtype=np.float64).astype(np.float32))
    np.testing.assert_array_equal(arrays["signal/angle"], angle)
    assert episode.about.truncated and not episode.about.terminated and len(episode) == 200
    assert arrays["entropy"] == pytest.approx(0.5 * np.log(2 * np.pi * np.e), abs=1e-5)  # log_std begins at 0
    assert episode.about.gamma == pytest.approx(0.99) and episode.about.units["angular velocity"] == "rad/s"


def test_a_gymnasium_episode_can_be_played_again_from_its_seed_and_actions():
    env = ludus.make_env("gym:BipedalWalker-v3")
    policy, critic = untrained(env)
    episode = play_episode(policy, env, critic, index=1)
    again = make_gymnasium("BipedalWalker-v3", 1, {})
    obs = [again.reset([episode.about.env_seed])[0].copy()]
    for action, reward in zip(episode.arrays["action"], episode.arrays["reward"], strict=True):
        step = again.step(action[None])
        obs.append(step.next_obs[0].copy())
        assert step.reward[0] == reward
    np.testing.assert_array_equal(obs[:-1], episode.arrays["obs"])
    np.testing.assert_array_equal(obs[-1:], episode.arrays["final_obs"])
    assert episode.about.terminated and episode.about.discrete == (False,) * 4
    again.close()


def test_a_policy_with_a_memory_remembers_from_step_to_step():
    env = ludus.make_env("CartPole-v1")
    policy, critic = untrained(env, ludus.PPO(batch_size=64, minibatch_size=64, network=ludus.GRU()))
    episode = play_episode(policy, env, critic)
    memory, judged = policy.initial_memory(), critic.initial_memory()
    for obs, action, value in zip(*(episode.arrays[name] for name in ("obs", "action", "value")), strict=True):
        chosen, memory = policy(obs, memory)
        says, judged = critic(obs, memory=judged)
        assert chosen == action and says == pytest.approx(value, abs=1e-5)


def test_sac_values_its_actions_and_knows_its_entropy():
    env = ludus.make_env("Pendulum-v1")
    policy, critic = untrained(env, ludus.SAC())
    episode = play_episode(policy, env, critic)
    arrays = episode.arrays
    np.testing.assert_allclose(critic(arrays["obs"], arrays["action"]), arrays["value"], rtol=1e-5, atol=1e-5)
    assert np.isfinite(arrays["entropy"]).all() and (arrays["entropy"] < np.log(2)).all()  # at most uniform on (-1, 1)


@pytest.mark.parametrize("how", ["jax", "gymnasium"])
@pytest.mark.parametrize("name", ["dict", "masked choice", "nested"])
def test_spaces_of_every_kind_are_recorded_by_leaf(name, how):
    env = ludus.make_env(zoo.make(name, how))
    policy, _ = untrained(env)
    episode = play_episode(policy, env)
    assert episode.actions.shape == (len(episode), len(episode.about.discrete))
    assert (episode.actions >= episode.arrays["action_low"]).all()
    assert (episode.actions <= episode.arrays["action_high"]).all()
    assert episode.get("value") is None and episode.realised() is None
    if name == "dict":
        assert list(episode.tree("obs")) == ["bits", "kind", "pixels", "position"]
        assert "obs position 2" in episode.signals and not any("pixels" in signal for signal in episode.signals)
    env.close()


def test_a_policy_for_another_environment_is_refused():
    policy, _ = untrained(ludus.make_env("CartPole-v1"))
    with pytest.raises(LudusError, match="is not the policy's"):
        play_episode(policy, ludus.make_env("Pendulum-v1"))
