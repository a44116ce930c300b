"""Monte-Carlo rollouts: depth, ends, closed forms, and that all at once and one by one are the same."""

from functools import cache

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chain import Chain, Coin, chain_value

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.envs.batch import JaxEnv
from ludus.envs.native.classic_control import CLASSIC
from ludus.rollout import monte_carlo
from ludus.rollout.monte_carlo import FirstBranch, Origin
from ludus.rollout.runner import runner
from ludus.runtime.rng import stream
from ludus.types import Branching, LudusError, Spec


def in_parts(algorithm, env, where, branching):
    made = jax.jit(lambda where: monte_carlo.returns_in_parts(algorithm, env, (), (), where, KEY, branching))
    return made(where)


def at_states(env: JaxEnv, numbers, lengths=None) -> Origin:
    """Origin the chain is in states of these numbers, after episodes of these lengths."""
    batch = jax.tree.map(jnp.array, env.reset(jax.random.split(jax.random.key(0), len(numbers))))
    obs = jnp.array(numbers, jnp.float32)[:, None]
    lengths = batch.episode_length if lengths is None else jnp.array(lengths, jnp.int32)
    return Origin(batch._replace(env=obs, obs=obs, episode_length=lengths))


KEY = stream(0, "branches")
roll_out = jax.jit(monte_carlo.roll_out, static_argnames=("env", "depth", "branches", "mode"))


def returns(algorithm, env, critic, where, branching, key=KEY, first=FirstBranch()):  # noqa: B008
    """Run `monte_carlo.returns` as a program."""
    return program(env, branching[:2])(algorithm, critic, where, key, branching.gamma, first)


@cache
def program(env, extent):
    def run(algorithm, critic, where, key, gamma, first):
        return monte_carlo.returns(algorithm, env, (), critic, where, key, Branching(*extent, gamma), first=first)

    return jax.jit(run)


CHAIN = JaxEnv(Chain(), 2, "chain")


@pytest.mark.requirement("S0.12")
def test_a_rollout_holds_states_actions_log_probabilities_and_rewards_until_the_end():
    steps = roll_out(Coin(1.0), CHAIN, (), at_states(CHAIN, [0, 2]), KEY, depth=5, branches=3)
    assert steps.obs.shape == (5, 3, 2, 1) and steps.extras["log_prob"].shape == steps.action.shape == (5, 3, 2)
    for branch in range(3):
        np.testing.assert_array_equal(steps.valid[:, branch], [[1, 1], [1, 1], [1, 0], [1, 0], [0, 0]])
        np.testing.assert_array_equal(steps.obs[:4, branch, 0, 0], [0, 1, 2, 3])
        np.testing.assert_array_equal(steps.next_obs[:2, branch, 1, 0], [3, 4])
        np.testing.assert_array_equal(steps.reward[:4, branch, 0], [1, 2, 3, 4])
        np.testing.assert_array_equal(steps.terminated[:4, branch], [[0, 0], [0, 1], [0, 1], [1, 1]])
    assert not np.asarray(steps.truncated)[np.asarray(steps.valid)].any()


def test_the_depth_and_the_time_limit_cut_a_rollout():
    where = at_states(CHAIN, [0, 0], lengths=[0, 4])
    steps = roll_out(Coin(0.0), CHAIN, (), where, KEY, depth=3)
    np.testing.assert_array_equal(steps.valid[:, 0], [[1, 1], [1, 1], [1, 0]])
    np.testing.assert_array_equal(steps.truncated[:2, 0], [[0, 0], [0, 1]])
    assert not np.asarray(steps.terminated).any()


@pytest.mark.requirement("S0.10", "S0.14")
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_returns_are_the_chains_closed_forms(gamma):
    """From state 1 to the end are three steps that earn 2, 3 and 4; cut after two, the critic says 300 of state 3."""
    env, critic = Coin(1.0), ()
    where = at_states(CHAIN, [1, 3])
    whole = returns(env, CHAIN, critic, where, Branching(2, None, gamma))
    np.testing.assert_allclose(whole, [[2 + 3 * gamma + 4 * gamma**2, 4.0]] * 2)
    cut = returns(env, CHAIN, critic, where, Branching(2, 2, gamma))
    np.testing.assert_allclose(cut, [[2 + 3 * gamma + 300 * gamma**2, 4.0]] * 2)
    alone = returns(env, CHAIN, None, where, Branching(2, 2, gamma))
    np.testing.assert_allclose(alone, [[2 + 3 * gamma, 4.0]] * 2)


def test_a_truncated_branch_is_worth_what_the_critic_says_and_a_terminated_one_nothing():
    where = at_states(CHAIN, [2, 3], lengths=[5, 5])
    got = returns(Coin(1.0), CHAIN, (), where, Branching(1, None, 0.5))
    np.testing.assert_allclose(got, [[3 + 0.5 * 300, 4.0]])


@pytest.mark.requirement("S0.10", "S0.22")
@pytest.mark.parametrize("depth", [3, None])
def test_the_mean_of_branches_is_the_value(depth):
    where = at_states(CHAIN, [0, 2], lengths=[0, 1])
    got = returns(Coin(0.6), CHAIN, (), where, Branching(4000, depth, 0.9))
    wanted = [chain_value(0, 6, 0.6, 0.9, depth or 99), chain_value(2, 5, 0.6, 0.9, depth or 99)]
    error = np.abs(np.mean(got, axis=0) - np.array(wanted)) / (np.std(got, axis=0) / np.sqrt(4000))
    assert (error < 4).all(), error


def test_slips_are_drawn_for_each_branch_by_itself():
    env = JaxEnv(Chain(slips=0.5), 2, "chain")
    got = returns(Coin(1.0), env, None, at_states(env, [0, 0]), Branching(64, 1, 1.0))
    assert 0.3 < np.mean(got) < 0.7 and len(np.unique(np.asarray(got), axis=0)) == 4


@pytest.mark.slow
@pytest.mark.requirement("S0.10")
def test_all_at_once_is_one_by_one_and_a_key_is_one_outcome():
    env = JaxEnv(Chain(slips=0.3), 3, "chain")
    where = at_states(env, [0, 1, 2])
    coin, seven = Coin(0.6), Branching(7, 4, 0.9)
    steps = roll_out(coin, env, (), where, KEY, 4, 7)
    together = returns(coin, env, (), where, seven)
    for branch in range(7):
        for state in range(3):
            first, here = FirstBranch(branch, state), jax.tree.map(lambda x, i=state: x[i : i + 1], where)
            alone = roll_out(coin, env, (), here, KEY, 4, 1, first=first)
            jax.tree.map(
                lambda a, b, k=branch, i=state: np.testing.assert_array_equal(a[:, 0, 0], b[:, k, i]), alone, steps
            )
            one = returns(coin, env, (), here, Branching(1, 4, 0.9), first=first)
            np.testing.assert_allclose(one[0, 0], together[branch, state], rtol=1e-6)
    parts = in_parts(coin, env, where, seven)
    np.testing.assert_allclose(parts, together, rtol=1e-6)
    again = returns(coin, env, (), where, seven)
    np.testing.assert_array_equal(again, together)
    other = returns(coin, env, (), where, seven, key=stream(1, "branches"))
    assert not np.array_equal(other, together)


def test_many_states_are_played_in_parts(monkeypatch):
    env = JaxEnv(Chain(slips=0.3), 5, "chain")
    where, coin, four = at_states(env, [0, 1, 2, 3, 0]), Coin(0.6), Branching(4, 4, 0.9)
    together = returns(coin, env, (), where, four)
    monkeypatch.setattr(monte_carlo, "MOST_LANES", 8)
    np.testing.assert_allclose(in_parts(coin, env, where, four), together, rtol=1e-6)


def ppo_on(env):
    ppo = as_arrays(ludus.PPO(batch_size=64, minibatch_size=32, network=ludus.MLP(hidden_sizes=(8,))))
    state = ppo.init(stream(0, "init"), Spec(env.observation_space, env.action_space, env.num_envs))
    return ppo, ppo.policy(state), ppo.critic(state)


def moved_on(env, ppo, policy, actions: int):
    """Start the environments and take some steps in them; return the carry."""
    run = runner(env)
    carry = run.start(ppo, env, policy, stream(3, "start"))
    for _ in range(actions):
        outcome = env.step(np.ones(env.num_envs, np.int64))
        length = carry.env.episode_length + 1
        carry = carry._replace(env=carry.env._replace(obs=jax.tree.map(np.array, outcome.obs), episode_length=length))
    return carry


@pytest.mark.slow
@pytest.mark.requirement("S0.10")
def test_a_gymnasium_environment_branches_as_its_twin_in_jax_does():
    host = ludus.make_env("gym:CartPole-v1", num_envs=3)
    native = JaxEnv(CLASSIC["CartPole-v1"](), 3, "CartPole-v1")
    ppo, policy, critic = ppo_on(native)
    carry = moved_on(host, ppo, policy, 4)
    at = runner(host).here(host, carry)
    batch = native.reset(jax.random.split(jax.random.key(0), 3))
    obs = jnp.asarray(carry.env.obs)
    there = Origin(batch._replace(env=obs, obs=obs, episode_length=jnp.asarray(carry.env.episode_length)))
    steps = runner(host).roll_out(ppo, host, policy, at, KEY, 12, 2)
    wanted = roll_out(ppo, native, policy, there, KEY, 12, 2)
    assert np.asarray(wanted.terminated).any() and steps.valid.dtype == bool
    valid = np.asarray(wanted.valid)
    np.testing.assert_array_equal(steps.valid, valid)
    for a, b in zip(jax.tree.leaves(steps), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a[valid], np.asarray(b)[valid], rtol=2e-4, atol=2e-4)
    branching, twin = Branching(2, 5, 0.9), host.twin()
    got = runner(host).returns(ppo, twin, policy, critic, at, KEY, branching)
    np.testing.assert_allclose(
        got, monte_carlo.returns(ppo, native, policy, critic, there, KEY, branching), rtol=1e-3, atol=1e-3
    )
    # The environments themselves have not moved.
    np.testing.assert_array_equal(runner(host).here(host, carry).env.saved["lengths"], [4, 4, 4])
    for env in (host, twin):
        env.close()


class Slippery(gymnasium.Env):
    """Shows a number that chance moves: from its own generator, or from the one that the process shares."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shares: bool = False, wild: bool = False):
        self.shares, self.wild = shares, wild

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        start = np.random.default_rng() if self.wild else self.np_random
        self.at = np.array([start.normal()], np.float32)
        return self.at.copy(), {}

    def step(self, action):
        luck = np.random.normal() if self.shares else self.np_random.normal()  # noqa: NPY002
        self.at = self.at + np.float32(luck)
        return self.at.copy(), float(self.at[0]), False, False, {}


def test_branches_of_a_gymnasium_environment_have_luck_of_their_own():
    env = ludus.make_env(Slippery, num_envs=2)
    ppo, policy, _ = ppo_on(env)
    carry = moved_on(env, ppo, policy, 3)
    at = runner(env).here(env, carry)
    steps = runner(env).roll_out(ppo, env, policy, at, KEY, 2, 3)
    np.testing.assert_array_equal(steps.obs[0], np.broadcast_to(carry.env.obs, (3, 2, 1)))
    assert len(np.unique(steps.next_obs[0])) == 6
    again = runner(env).roll_out(ppo, env, policy, at, KEY, 2, 3)
    jax.tree.map(np.testing.assert_array_equal, steps, again)
    future = env.step(np.ones(2, np.int64)).obs
    assert not np.isin(steps.next_obs[0], future).any(), "nobody sees what will come"
    env.close()


@pytest.mark.parametrize(
    ("options", "told"), [({"shares": True}, "np.random or random"), ({"wild": True}, "show something else")]
)
def test_an_environment_that_cannot_be_cloned_is_one_line(options, told):
    env = ludus.make_env(Slippery, num_envs=2, **options)
    ppo, policy, _ = ppo_on(env)
    at = runner(env).here(env, moved_on(env, ppo, policy, 3))
    with pytest.raises(LudusError, match=f"cannot be cloned in the midst of an episode: .*{told}") as error:
        runner(env).roll_out(ppo, env, policy, at, KEY, 2, 3)
    assert "\n" not in str(error.value)
    env.close()
