"""Look-ahead: which actions are tried, what they are worth in closed form, and that both kinds of environment agree."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chain import Chain, Coin, chain_value
from dressed import DressedEnv

import ludus
from ludus.algorithms.hyperparameters import as_arrays, register
from ludus.envs.batch import JaxEnv
from ludus.envs.native.classic_control import CLASSIC
from ludus.rollout import monte_carlo
from ludus.rollout.host_lookahead import looking_ahead
from ludus.rollout.lookahead import ahead, best, candidates
from ludus.rollout.monte_carlo import Origin
from ludus.runtime.rng import stream
from ludus.spaces import Box, Discrete
from ludus.training.evaluation import evaluate_state
from ludus.types import Branching, Lookahead, LudusError, Masked, Match, Spec

KEY = stream(0, "look")
CHAIN = JaxEnv(Chain(), 2, "chain")


@dataclass(frozen=True)
class Lazy(Coin):
    """A coin that stays where it is when it does what it holds best."""

    def act(self, policy, memory, obs, noise, mode):
        memory, action, extras = super().act(policy, memory, obs, noise, mode)
        return memory, action if mode == "sample" else jnp.zeros_like(action), extras


register(Lazy)


def chain_at(numbers):
    batch = CHAIN.reset(jax.random.split(jax.random.key(0), len(numbers)))
    obs = jnp.array(numbers, jnp.float32)[:, None]
    return Origin(batch._replace(env=obs, obs=obs))


def test_all_actions_are_tried_and_the_greedy_one_stands_first_and_for_the_forbidden():
    obs = jnp.zeros((2, 1))
    tried = candidates(Lazy(0.5), (), (), obs, KEY, Discrete(3, start=-1), 5)
    np.testing.assert_array_equal(tried, [[0, 0], [-1, -1], [0, 0], [1, 1]])
    masked = Masked(obs, jnp.array([[True, True, False], [False, True, True]]))
    tried = candidates(Unmasked(0.5), (), (), masked, KEY, Discrete(3), 5)
    np.testing.assert_array_equal(tried, [[0, 0], [0, 0], [1, 1], [0, 2]])


@dataclass(frozen=True)
class Unmasked(Lazy):
    """Acts on what lies behind a mask."""

    def act(self, policy, memory, obs, noise, mode):
        return super().act(policy, memory, obs.obs, noise, mode)


register(Unmasked)


def test_where_there_are_too_many_so_many_are_sampled_each_state_by_its_own_number():
    obs, large = jnp.zeros((3, 1)), Discrete(1000)
    tried = candidates(Lazy(0.5), (), (), obs, KEY, large, 40)
    assert tried.shape == (41, 3) and not tried[0].any() and 0.3 < tried[1:].mean() < 0.7
    alone = candidates(Lazy(0.5), (), (), obs[:1], KEY, large, 40, first=2)
    np.testing.assert_array_equal(alone[:, 0], tried[:, 2])
    assert candidates(Lazy(0.5), (), (), obs, KEY, Box(-1.0, 1.0, ()), 4).shape == (5, 3)


def test_the_best_is_taken_and_of_equals_the_first():
    tried = {"a": jnp.array([[1, 2], [3, 4], [5, 6]])}
    np.testing.assert_array_equal(best(tried, np.array([[0, 1], [2, 1], [2, 0]]))["a"], [3, 2])


@pytest.mark.requirement("S0.10", "S0.22")
@pytest.mark.parametrize("depth", [1, 3])
def test_what_an_action_is_worth_is_the_bellman_equations(depth):
    count, gamma = 3000, 0.9
    for action in (0, 1):
        got = monte_carlo.returns(
            Coin(0.6), CHAIN, (), (), chain_at([1, 3]), KEY, Branching(count, depth, gamma),
            begin_with=jnp.full(2, action, jnp.int32),
        )  # fmt: skip
        for i, state in enumerate((1, 3)):
            after = state + action
            beyond = 0.0 if after == 4 else chain_value(after, 5, 0.6, gamma, depth - 1)
            error = np.std(got[:, i]) / np.sqrt(count)
            assert abs(np.mean(got[:, i]) - after - gamma * beyond) <= 4 * error + 1e-3


@pytest.mark.requirement("S0.10")
def test_a_policy_that_never_moves_plays_at_its_best_by_looking_ahead():
    plain = evaluate_state(Lazy(0.5), (), CHAIN, KEY, Match(3, 20))
    np.testing.assert_array_equal(plain.returns, [0, 0, 0])
    looking = Match(3, 20, lookahead=Lookahead(16, 3))
    made = [evaluate_state(Lazy(0.5), (), CHAIN, KEY, looking) for _ in range(2)]
    # The best that six steps can earn: it waits in state 3, which earns 3 each time, and goes on with the last.
    np.testing.assert_array_equal(made[0].returns, [1 + 2 + 3 + 3 + 3 + 4] * 3)
    np.testing.assert_array_equal(made[0].returns, made[1].returns)


class Branchable(DressedEnv):
    """A dressed environment that can go back to a state."""

    def snapshot(self):
        return {"state": self.state}

    def twin(self):
        return Branchable(self.inner)

    def branch_off(self, saved, seeds):
        self.state = saved["state"]
        return jax.tree.map(np.asarray, self.state.obs)


@pytest.mark.slow
@pytest.mark.requirement("S0.10")
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_both_kinds_of_environment_take_the_same_actions(name):
    env = JaxEnv(CLASSIC[name](), 3, name)
    ppo = ludus.PPO(batch_size=63, minibatch_size=21, network=ludus.GRU(memory_size=8, hidden_sizes=(16,)))
    state = ppo.init(stream(0, "init"), Spec(env.observation_space, env.action_space, 3))
    ppo, policy, critic = as_arrays(ppo), ppo.policy(state), ppo.critic(state)
    looks = Lookahead(3, 4, critic, np.float32(0.9))
    dressed = Branchable(env, seed=1)
    obs = dressed.reset([1, 2, 3])
    memory = ppo.initial_memory(policy, 3)
    looking = looking_ahead(ppo, dressed, policy, looks, KEY)
    looking.begin(0)
    seen = ppo.initial_memory(critic, 3)

    @jax.jit
    def expected(batch, memory, seen, t):
        key = jax.random.fold_in(KEY, t)
        at, (critic, gamma) = Origin(batch, memory, seen), looks[2:]
        return ahead(ppo, env, policy, Lookahead(3, 4, critic, gamma), at, key)

    for t in range(3):
        wanted, seen = expected(dressed.state, memory, seen, t)
        action = looking.action(t, dressed, memory, obs)
        np.testing.assert_allclose(action, wanted, rtol=1e-4, atol=1e-4)
        memory = ppo.distribution(policy, memory, obs)[0]
        obs = dressed.step(action).obs


@pytest.mark.slow
@pytest.mark.requirement("S0.10")
def test_a_poor_policy_plays_cartpole_better_with_rollouts():
    env = ludus.make_env("jax:CartPole-v1", num_envs=4)
    ppo = ludus.PPO(batch_size=256, minibatch_size=64, network=ludus.MLP((16, 16)))
    trainer = ludus.Trainer(ppo, env, ludus.Settings(seed=0, verbose=False, eval_episodes_final=0))
    trainer.train(total_steps=512)
    plain = ludus.evaluate(trainer.policy, env, 8, max_steps=200)
    looking = ludus.evaluate(trainer.policy, env, 8, max_steps=200, lookahead=8, lookahead_depth=20)
    assert looking.returns.mean() > 1.5 * plain.returns.mean()


@pytest.mark.parametrize(
    ("env", "more", "told"),
    [
        ("jax:CartPole-v1", {"lookahead": 0}, "lookahead=0: must be an integer of at least 1"),
        ("jax:CartPole-v1", {"lookahead": 2, "lookahead_depth": 0}, "lookahead_depth=0: must be"),
        ("jax:CartPole-v1", {"lookahead": 2, "deterministic": False}, "lookahead=2: takes the best action"),
        ("envpool:CartPole-v1", {"lookahead": 2}, "cannot be cloned in the midst of an episode"),
    ],
)
def test_what_cannot_look_ahead_is_refused_in_one_line(env, more, told):
    env = ludus.make_env(env, num_envs=2)
    agent = ludus.Agent(ludus.PPO(network=ludus.MLP((4,))), env.observation_space, env.action_space)
    with pytest.raises(LudusError, match=told) as error:
        ludus.evaluate(agent.policy, env, 2, **more)
    assert "\n" not in str(error.value)
    env.close()
