"""Advantages and returns against explicit sums over each episode's steps."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import ludus
from ludus.algorithms.advantages import branch_advantages, discounted_returns, generalized_advantages
from ludus.algorithms.hyperparameters import as_arrays
from ludus.rollout import compiled
from ludus.runtime.rng import stream
from ludus.types import BRANCH_VALUE, NEXT_BRANCH_VALUE, LudusError, RolloutKeys, Spec, Transition

NO, YES = np.zeros((3, 1), bool), np.array([[False], [False], [True]])


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


@pytest.mark.requirement("S1.6")
@pytest.mark.requirement("S1.7")
def test_advantages_equal_the_double_sum_on_300_random_rollouts():
    rng = np.random.default_rng(0)
    assert max(cases.advantage_error(rng) for _ in range(300)) <= 1e-5


@pytest.mark.requirement("S0.14")
@pytest.mark.parametrize(("gamma", "returns"), [(0.0, [1, 2, 3]), (0.5, [2.75, 3.5, 3]), (1.0, [6, 5, 3])])
def test_with_lambda_one_and_no_critic_advantages_are_discounted_sums(gamma, returns):
    zeros = column(0, 0, 0)
    got = generalized_advantages(column(1, 2, 3), zeros, zeros, YES, NO, gamma, 1.0)
    np.testing.assert_allclose(got[:, 0], returns)


@pytest.mark.requirement("S1.6")
def test_with_lambda_zero_an_advantage_is_its_own_temporal_difference():
    got = generalized_advantages(column(1, 2, 3), column(4, 5, 6), column(5, 6, 7), YES, NO, 0.5, 0.0)
    np.testing.assert_allclose(got[:, 0], [1 + 2.5 - 4, 2 + 3 - 5, 3 - 6])


@pytest.mark.requirement("S1.6")
@pytest.mark.requirement("S3.14")
@pytest.mark.parametrize(
    ("terminated", "truncated", "last"), [(YES, NO, 3), (NO, YES, 53), (YES, YES, 3), (NO, NO, 53)]
)
def test_only_a_termination_stops_the_bootstrap(terminated, truncated, last):
    got = generalized_advantages(column(1, 2, 3), column(0, 0, 0), column(0, 0, 100), terminated, truncated, 0.5, 0.95)
    assert got[2, 0] == last


@pytest.mark.requirement("S1.6")
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_leaks_in_from_the_episode_after_an_end(end):
    ends = {"terminated": NO.copy(), "truncated": NO.copy()}
    ends[end][1] = True
    quiet, loud = (
        generalized_advantages(
            column(1, 2, reward), column(0, 0, 0), column(0, 0, 0), **ends, gamma=0.9, gae_lambda=0.9
        )
        for reward in (0, 1e6)
    )
    np.testing.assert_array_equal(quiet[:2], loud[:2])
    assert loud[2, 0] == 1e6


@pytest.mark.requirement("S1.11")
def test_advantages_are_one_backward_scan():
    program = jax.make_jaxpr(generalized_advantages)(*[column(0, 0, 0)] * 3, NO, NO, 0.9, 0.9)
    scans = [equation for equation in program.eqns if equation.primitive.name == "scan"]
    assert [scan.params["reverse"] for scan in scans] == [True]


def test_integer_rewards_do_not_truncate_advantages():
    zeros = column(0, 0, 0)
    got = generalized_advantages(jnp.array([[1], [2], [3]]), zeros, zeros, YES, NO, 0.5, 1.0)
    np.testing.assert_allclose(got[:, 0], [2.75, 3.5, 3])


@pytest.mark.requirement("S0.14")
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 1.0])
def test_running_returns_equal_the_sum_since_the_episode_began(gamma):
    rng, returns = np.random.default_rng(1), jax.jit(discounted_returns)
    for _ in range(20):
        reward, start = rng.normal(size=(16, 4)).astype(np.float32), rng.normal(size=4).astype(np.float32)
        ended = np.logical_or(*cases.episode_ends(rng, reward.shape))
        got = returns(reward, ended, start, gamma)
        np.testing.assert_allclose(got, oracles.discounted_returns(reward, ended, start, gamma), atol=1e-5)


@pytest.mark.requirement("S0.14")
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_advantages_by_branches_equal_a_loop(gamma):
    rng = np.random.default_rng(1)
    reward, value, following = rng.normal(size=(3, 7, 4)).astype(np.float32)
    terminated, truncated = rng.random((2, 7, 4)) < 0.3
    extras = {BRANCH_VALUE: value, NEXT_BRANCH_VALUE: following}
    got = branch_advantages(Transition((), (), reward, terminated, truncated, (), extras), gamma)
    for t in range(7):
        for i in range(4):
            beyond = 0.0 if terminated[t, i] else float(following[t, i])
            assert abs(got[t, i] - (float(reward[t, i]) + gamma * beyond - float(value[t, i]))) < 1e-5
    with pytest.raises(LudusError, match="=monte_carlo: this rollout has no branches") as error:
        branch_advantages(Transition((), (), reward, terminated, truncated, (), {}), gamma)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.requirement("S0.14")
@pytest.mark.parametrize("normalize_rewards", [False, True])
def test_ppo_learns_by_them_and_its_critic_by_the_rollouts_returns(normalize_rewards):
    """Values that the critic itself might have said are generalised advantages with lambda 0: both updates are one."""
    env = ludus.make_env("jax:CartPole-v1", num_envs=4)
    options = {"batch_size": 64, "minibatch_size": 32, "network": ludus.MLP((8,)), "gae_lambda": 0.0}
    options["normalize_rewards"] = normalize_rewards
    plain, own = (as_arrays(ludus.PPO(**options, advantages=kind)) for kind in ("gae", "monte_carlo"))
    state = plain.init(stream(0, "init"), Spec(env.observation_space, env.action_space, 4))
    keys = RolloutKeys(*(stream(1, name) for name in RolloutKeys._fields))
    policy, critic = plain.policy(state), plain.critic(state)
    carry = compiled.start(plain, env, policy, keys.begin)
    rollout = jax.jit(lambda carry: compiled.collect(plain, env, policy, carry, keys, 16)[1])(carry)
    value, following = (
        plain.value(critic, (), x.reshape(-1, 4))[1].reshape(16, 4) for x in (rollout.steps.obs, rollout.steps.next_obs)
    )

    def update(algorithm, shift):
        extras = {BRANCH_VALUE: value + shift, NEXT_BRANCH_VALUE: following}
        steps = rollout.steps._replace(extras=rollout.steps.extras | extras)
        return jax.jit(lambda r: algorithm.update(state, r, stream(2, "update")).metrics)(rollout._replace(steps=steps))

    expected, got = update(plain, 0.0), update(own, 0.0)
    if not normalize_rewards:  # with it, generalised advantages are of scaled rewards
        for name, metric in expected.items():
            np.testing.assert_allclose(metric, got[name], rtol=1e-3, atol=1e-4, err_msg=name)
    other = update(own, np.linspace(0, 5, 64).reshape(16, 4).astype(np.float32))
    assert abs(other["policy_loss"] - got["policy_loss"]) > 1e-3
    np.testing.assert_allclose(other["explained_variance"], expected["explained_variance"], rtol=1e-5)
