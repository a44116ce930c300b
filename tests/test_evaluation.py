"""Evaluation: seeded, greedy, one episode each, whatever the number of environments."""

import numpy as np
import pytest

import ludus
from ludus.envs.probes import PROBES

ENVS = ["jax:CartPole-v1", "gym:CartPole-v1"]


def policy_for(env, **options) -> ludus.Policy:
    ppo = ludus.PPO(batch_size=64, minibatch_size=32, **options)
    trainer = ludus.Trainer(ppo, env, ludus.Settings(eval_frequency=0, verbose=False))
    trainer.train(total_steps=256)
    return trainer.policy


@pytest.mark.requirement("S1.19")
@pytest.mark.parametrize("env", ENVS)
def test_the_summary_is_of_the_episodes(env):
    env = ludus.make_env(env, 4)
    evaluation = ludus.evaluate(policy_for(env), env, episodes=7, seed=1)
    summary = evaluation.summary()
    assert summary["episodes"] == len(evaluation.returns) == 7
    assert summary["mean_return"] == pytest.approx(evaluation.returns.mean())
    assert summary["std_return"] == pytest.approx(evaluation.returns.std())
    assert summary["min_return"] <= summary["mean_return"] <= summary["max_return"]
    np.testing.assert_array_equal(evaluation.returns, evaluation.lengths)  # CartPole pays 1 for each step


@pytest.mark.requirement("S2.17")
@pytest.mark.parametrize("env", ENVS)
def test_episodes_depend_on_the_seed_and_their_number_alone(env):
    few, many = ludus.make_env(env, 2), ludus.make_env(env, 8)
    policy = policy_for(few)
    returns = ludus.evaluate(policy, few, episodes=9, seed=5).returns
    np.testing.assert_array_equal(returns, ludus.evaluate(policy, many, episodes=9, seed=5).returns)
    np.testing.assert_array_equal(returns[:4], ludus.evaluate(policy, few, episodes=4, seed=5).returns)
    assert (returns != ludus.evaluate(policy, few, episodes=9, seed=6).returns).any()


def test_an_episode_that_never_ends_is_cut(monkeypatch):
    monkeypatch.setattr("ludus.evaluation.MAX_EPISODE_STEPS", 50)

    class Endless(PROBES["endless-chain"]):
        max_episode_steps = None

    env = ludus.make_env(Endless(), 4)
    assert ludus.evaluate(policy_for(env), env, episodes=3).lengths.tolist() == [50, 50, 50]


def test_a_recurrent_policy_keeps_its_memory_within_an_episode_and_loses_it_between():
    env = ludus.make_env(PROBES["memory"](), 8)
    network = ludus.GRU(memory_size=8, hidden_sizes=(16,))
    ppo = ludus.PPO(batch_size=256, minibatch_size=64, learning_rate=1e-2, entropy_coef=0.0, network=network)
    trainer = ludus.Trainer(ppo, env, ludus.Settings(eval_frequency=0, verbose=False))
    trainer.train(total_steps=40_000)
    policy = trainer.policy
    assert ludus.evaluate(policy, env, episodes=50).returns.mean() == 1.0
    for cue in (-1.0, 1.0):
        memory = policy.initial_memory()
        for obs in (cue, 0.0, 0.0):
            action, memory = policy(np.array([obs]), memory)
        assert action == (cue > 0)


def test_a_policy_trained_on_one_backend_plays_on_the_other():
    policy = policy_for(ludus.make_env("jax:CartPole-v1", 4))
    assert len(ludus.evaluate(policy, ludus.make_env("gym:CartPole-v1", 4), episodes=4).returns) == 4


def test_what_does_not_fit_is_refused():
    env = ludus.make_env("CartPole-v1", 4)
    policy = policy_for(env)
    with pytest.raises(ludus.LudusError, match="episodes=0"):
        ludus.evaluate(policy, env, episodes=0)
    with pytest.raises(ludus.LudusError, match="seed=-1"):
        ludus.evaluate(policy, env, seed=-1)
    with pytest.raises(ludus.LudusError, match=r"its observation space .* is not the policy's"):
        ludus.evaluate(policy, ludus.make_env("Acrobot-v1", 4))
