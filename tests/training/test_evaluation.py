"""Evaluation: seeded, greedy or sampled, one episode each, whatever the number of environments."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from dressed import DressedEnv

import ludus
from ludus.envs.native.probes import PROBES
from ludus.spaces import Box, Discrete
from ludus.types import Step

pytestmark = pytest.mark.slow

ENVS = ["jax:CartPole-v1", "gym:CartPole-v1"]


def policy_for(env, **options) -> ludus.Policy:
    """One as it is before training: what is said of evaluations here is so of any."""
    return trainer_for(env, **options).policy


def trainer_for(env, **options) -> ludus.Trainer:
    ppo = ludus.PPO(batch_size=64, minibatch_size=32, **options)
    return ludus.Trainer(ppo, env, ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False))


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


class Endless(PROBES["endless-chain"]):
    max_episode_steps = None


@pytest.mark.parametrize("library", ["jax", "gym"])
def test_an_episode_that_never_ends_is_cut(library):
    env = ludus.make_env(Endless(), 4)
    env = env if library == "jax" else DressedEnv(env)
    made = ludus.evaluate(policy_for(env), env, episodes=3, max_steps=50)
    assert made.lengths.tolist() == [50, 50, 50]
    assert made.summary()["episodes_cut"] == 3 and "3 of them cut at 50 steps" in str(made)
    with pytest.raises(ludus.LudusError, match="max_steps=0: must be an integer of at least 1"):
        ludus.evaluate(policy_for(env), env, max_steps=0)


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_an_evaluation_is_the_same_whatever_the_pieces(pieces, monkeypatch):
    env = ludus.make_env("jax:CartPole-v1", 4)
    policy = policy_for(env)
    whole = ludus.evaluate(policy, env, episodes=6)
    monkeypatch.setattr("ludus.rollout.compiled_episodes.PIECE_STEPS", pieces)
    monkeypatch.setattr("ludus.rollout.compiled_episodes.PIECE_SECONDS", 1e-6)  # the pieces stay as short as they are
    cut = ludus.evaluate(policy, env, episodes=6)
    np.testing.assert_array_equal(whole.returns, cut.returns)
    np.testing.assert_array_equal(whole.lengths, cut.lengths)


def test_a_recurrent_policy_keeps_its_memory_within_an_episode_and_loses_it_between():
    env = ludus.make_env(PROBES["memory"](), 8)
    network = ludus.GRU(memory_size=8, hidden_sizes=(16,))
    ppo = ludus.PPO(batch_size=256, minibatch_size=64, learning_rate=1e-2, entropy_coef=0.0, network=network)
    trainer = ludus.Trainer(ppo, env, ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False))
    trainer.train(total_steps=40_000)
    policy = trainer.policy
    assert ludus.evaluate(policy, env, episodes=50).returns.mean() == 1.0
    for cue in (-1.0, 1.0):
        memory = policy.initial_memory()
        for obs in (cue, 0.0, 0.0):
            action, memory = policy(np.array([obs]), memory)
        assert action == (cue > 0)


def test_a_policy_trained_on_one_backend_plays_on_the_other():
    trainer = trainer_for(ludus.make_env("jax:CartPole-v1", 4))
    trainer.train(total_steps=256)
    assert len(ludus.evaluate(trainer.policy, ludus.make_env("gym:CartPole-v1", 4), episodes=4).returns) == 4


def test_what_does_not_fit_is_refused():
    env = ludus.make_env("CartPole-v1", 4)
    policy = policy_for(env)
    with pytest.raises(ludus.LudusError, match="episodes=0"):
        ludus.evaluate(policy, env, episodes=0)
    with pytest.raises(ludus.LudusError, match="seed=-1"):
        ludus.evaluate(policy, env, seed=-1)
    with pytest.raises(ludus.LudusError, match=r"its observation space .* is not the policy's"):
        ludus.evaluate(policy, ludus.make_env("Acrobot-v1", 4))


# Sampled actions


class Bandit(ludus.Environment):
    """Pays the number of the arm that is pulled, once."""

    observation_space, action_space = Box(-1.0, 1.0, (1,)), Discrete(3)

    def reset(self, key):
        return (), jnp.ones(1)

    def step(self, state, action, key):
        return (), Step(jnp.ones(1), action.astype(jnp.float32), jnp.bool_(True))


def leaning(env, weights) -> ludus.Policy:
    """A policy that pulls each arm as often as its weight says."""
    algorithm = ludus.PPO(batch_size=64, minibatch_size=32)
    policy = ludus.Trainer(algorithm, env, ludus.Settings(eval_frequency=0, verbose=False)).policy
    names = policy.state.network.names
    parameters = [jnp.zeros_like(leaf) for leaf in policy.state.parameters]
    parameters[names.index("actor_head/layer/bias")] = jnp.log(jnp.array(weights))
    return dataclasses.replace(policy, state=dataclasses.replace(policy.state, parameters=tuple(parameters)))


def test_sampled_episodes_follow_the_policys_probabilities_and_greedy_ones_its_choice():
    env = ludus.make_env(Bandit(), 4)
    policy = leaning(env, [0.5, 0.2, 0.3])
    assert not ludus.evaluate(policy, env, episodes=10).returns.any()
    returns = ludus.evaluate(policy, env, episodes=20_000, deterministic=False).returns
    shares = np.bincount(returns.astype(int), minlength=3) / len(returns)
    np.testing.assert_allclose(shares, [0.5, 0.2, 0.3], atol=5 * np.sqrt(0.25 / len(returns)))


@pytest.mark.parametrize("env", ENVS)
def test_sampled_episodes_depend_on_the_seed_and_their_number_alone(env):
    few, many = ludus.make_env(env, 2), ludus.make_env(env, 8)
    policy = policy_for(few)
    lengths = ludus.evaluate(policy, few, episodes=9, seed=5, deterministic=False).lengths
    np.testing.assert_array_equal(lengths, ludus.evaluate(policy, many, 9, 5, deterministic=False).lengths)
    np.testing.assert_array_equal(lengths[:4], ludus.evaluate(policy, few, 4, 5, deterministic=False).lengths)
    assert len(set(lengths.tolist())) > 3, "episodes do not share their noise"
    assert (lengths != ludus.evaluate(policy, few, 9, 5).lengths).any()
    assert (lengths != ludus.evaluate(policy, few, 9, 6, deterministic=False).lengths).any()


def test_a_policy_samples_by_its_probabilities_and_by_its_seed():
    policy = leaning(ludus.make_env(Bandit(), 4), [0.5, 0.2, 0.3])
    obs = np.ones((20_000, 1), np.float32)
    assert not policy(obs).any()
    actions = policy(obs, deterministic=False, seed=3)
    shares = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(shares, [0.5, 0.2, 0.3], atol=5 * np.sqrt(0.25 / len(actions)))
    np.testing.assert_array_equal(actions, policy(obs, deterministic=False, seed=3))
    assert (actions != policy(obs, deterministic=False, seed=4)).any()
    assert (policy(obs, deterministic=False) != policy(obs, deterministic=False)).any()
    assert policy(obs[0], deterministic=False).shape == ()
    with pytest.raises(ludus.LudusError, match="seed=3: goes with deterministic=False"):
        policy(obs, seed=3)


def test_sac_samples_from_its_actor_even_before_the_warm_up_is_over():
    """Warm-up is for training; the first actor's deviation is about 1, so that tanh leaves a third beyond 0.76."""
    env = ludus.make_env("Pendulum-v1", 2)
    policy = ludus.Trainer(ludus.SAC(), env, ludus.Settings(eval_frequency=0, verbose=False)).policy
    assert policy.state.warmup_left > 0
    obs = np.tile(np.array([1.0, 0.0, 0.0], np.float32), (20_000, 1))
    distribution = policy.algorithm.distribution(policy.state, (), obs[:1])[1]
    mean, std = float(distribution.mean[0, 0]), float(np.exp(distribution.log_std[0, 0]))
    drawn = np.arctanh(policy(obs, deterministic=False, seed=0)[:, 0].astype(np.float64) / 2)
    assert abs(drawn.mean() - mean) < 5 * std / np.sqrt(len(drawn))
    assert abs(drawn.std() / std - 1) < 5 / np.sqrt(2 * len(drawn))


def test_a_recurrent_policy_samples_with_its_memory():
    env = ludus.make_env(PROBES["memory"](), 4)
    policy = policy_for(env, network=ludus.GRU(memory_size=8, hidden_sizes=(4,)))
    greedy, memory = policy(np.ones((3, 1)), policy.initial_memory(3))
    sampled, other = policy(np.ones((3, 1)), policy.initial_memory(3), deterministic=False)
    assert greedy.shape == sampled.shape == (3,)
    np.testing.assert_array_equal(memory, other)
    assert len(ludus.evaluate(policy, env, episodes=5, deterministic=False).returns) == 5
