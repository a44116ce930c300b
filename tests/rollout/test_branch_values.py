"""Values of a rollout's states by branches: closed forms, ends, memories, both collectors, and what stays as it was."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chain import Chain, Coin, chain_value
from dressed import DressedEnv

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.minibatch import blank_padding
from ludus.envs.batch import JaxEnv
from ludus.envs.native.classic_control import CLASSIC
from ludus.rollout import compiled, host, monte_carlo
from ludus.rollout.monte_carlo import FirstBranch, Origin
from ludus.runtime.packing import choose_rows
from ludus.runtime.rng import stream
from ludus.types import BRANCH_VALUE, NEXT_BRANCH_VALUE, Branching, RolloutKeys, Spec, Valuation

KEYS = RolloutKeys(*(stream(1, name) for name in RolloutKeys._fields))
HOW = {"steps": (0, None), "episodes": (1, None), "trajectories": (6, None), "limited": (0, 3)}


def coin_rollout(env, coin, branching, num_steps):
    def make():
        carry = compiled.begin(coin, env, (), KEYS.begin)
        valuation = Valuation(branching, ())
        return compiled.collect(coin, env, (), carry, KEYS, num_steps, valuation=valuation)[1].steps

    return jax.jit(make)()


def values_of(steps):
    return np.asarray(steps.extras[BRANCH_VALUE]), np.asarray(steps.extras[NEXT_BRANCH_VALUE])


@pytest.mark.requirement("S0.10", "S0.14", "S0.22")
@pytest.mark.parametrize(("depth", "num_envs"), [(None, 2), (3, 1), (1, 1)])
def test_the_values_are_unbiased(depth, num_envs):
    """The Bellman equation knows the values of the chain under a coin; branches differ from them by chance alone."""
    count, env = 3000, JaxEnv(Chain(), num_envs, "chain")
    steps = coin_rollout(env, Coin(0.6), Branching(count, depth, 0.9), 9)
    value, following = values_of(steps)
    state, length = np.zeros(num_envs, int), np.zeros(num_envs, int)
    ends = set()
    for t in range(9):
        for i in range(num_envs):
            wanted = chain_value(int(state[i]), 6 - int(length[i]), 0.6, 0.9, depth or 99)
            # No return deviates by more than half of the range that returns of this chain have, which the cut sets.
            assert abs(value[t, i] - wanted) < 4 * 200 / np.sqrt(count), (t, i)
            state[i] += int(steps.action[t, i])
            length[i] += 1
            terminated, truncated = bool(steps.terminated[t, i]), bool(steps.truncated[t, i])
            ends |= {"terminated"} if terminated else {"truncated"} if truncated else set()
            if terminated or truncated:
                assert following[t, i] == (0.0 if terminated else 100.0 * state[i])
                state[i] = length[i] = 0
            elif t < 8:
                assert following[t, i] == value[t + 1, i]
    assert ends == {"terminated", "truncated"} or num_envs == 1
    after = chain_value(int(state[0]), 6 - int(length[0]), 0.6, 0.9, depth or 99)
    if not (steps.terminated[-1, 0] or steps.truncated[-1, 0]):
        assert abs(following[-1, 0] - after) < 4 * 200 / np.sqrt(count), "the state that the rollout leaves off in"


class Branchable(DressedEnv):
    """A dressed environment that can go back to a state."""

    def snapshot(self):
        return {"state": self.state}

    def twin(self):
        return Branchable(self.inner)

    def branch_off(self, saved, seeds):
        self.state = saved["state"]
        return jax.tree.map(np.asarray, self.state.obs)


NETWORKS = {
    "memory": ludus.GRU(memory_size=8, hidden_sizes=(16,)),
    "shared memory": ludus.GRU(memory_size=8, hidden_sizes=(16,), shared=True),
    "none": ludus.MLP(hidden_sizes=(8,)),
}


def parts(network, num_envs=3):
    env = JaxEnv(CLASSIC["CartPole-v1"](), num_envs, "CartPole-v1", max_episode_steps=11)
    ppo = ludus.PPO(
        batch_size=14 * num_envs, minibatch_size=14, network=NETWORKS[network], advantages="monte_carlo", branches=3,
        branch_depth=4,
    )  # fmt: skip
    state = ppo.init(stream(0, "init"), Spec(env.observation_space, env.action_space, num_envs))
    # An actor's last layer begins with numbers next to zero; here what it remembers is to decide what it does.
    larger = jax.tree.map(lambda x: x * 3.0 / (jnp.abs(x).max() + 1e-9), state.parameters)
    state = replace(state, parameters=larger)
    return env, as_arrays(ppo), state, ppo.policy(state)


def both_rollouts(network, how):
    env, ppo, state, policy = parts(network)
    begun = compiled.begin(ppo, env, policy, KEYS.begin)
    extent = HOW[how]

    def collect(carry, has_branches):
        valuation = valuation_at(ppo, state, carry) if has_branches else None
        return compiled.collect(ppo, env, policy, carry, KEYS, 14, *extent, valuation=valuation)[:2]

    made = jax.jit(collect, static_argnums=1)
    dressed = Branchable(env)
    dressed.use(begun.env, KEYS, 14)
    dressed.reset = lambda seeds: jax.tree.map(np.asarray, begun.env.obs)
    start = host.begin(ppo, dressed, policy, KEYS.begin)
    valuation = valuation_at(ppo, state, start)
    on_host = host.collect(ppo, dressed, policy, start, KEYS, 14, *extent, valuation=valuation)[1]
    return made(begun, True), made(begun, False), on_host


def valuation_at(ppo, state, carry):
    return Valuation(ppo.branching(), ppo.critic(state), ppo.critic_memory(state, carry.memory))


@pytest.mark.slow
@pytest.mark.requirement("S0.10")
@pytest.mark.parametrize(
    ("network", "how"),
    [("memory", "steps"), ("memory", "episodes"), ("memory", "limited"), ("shared memory", "steps"),
     ("none", "trajectories")],
)  # fmt: skip
def test_both_collectors_give_the_same_values_and_leave_the_rollout_as_it_was(network, how):
    (carry, rollout), (plain_carry, plain), on_host = both_rollouts(network, how)
    steps = rollout.steps
    ended = np.asarray(steps.terminated) | np.asarray(steps.truncated)
    assert ended.any()
    extras = {name: x for name, x in steps.extras.items() if name not in (BRANCH_VALUE, NEXT_BRANCH_VALUE)}
    without = rollout._replace(steps=steps._replace(extras=extras))
    jax.tree.map(np.testing.assert_array_equal, (carry, without), (plain_carry, plain))
    for a, b in zip(values_of(blank_padding(steps)), values_of(blank_padding(on_host.steps)), strict=True):
        assert np.abs(a).max() > 0.1
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.requirement("S0.10", "S0.22")
def test_branches_begin_with_the_memories_of_their_states():
    """Step by step: the critic and the policy remember what they saw, and branches of each state go on from there."""
    env, ppo, state, policy = parts("memory", num_envs=2)
    critic, branching = ppo.critic(state), ppo.branching()
    carry = compiled.begin(ppo, env, policy, KEYS.begin)
    valuation = valuation_at(ppo, state, carry)
    steps = jax.jit(lambda carry: compiled.collect(ppo, env, policy, carry, KEYS, 14, valuation=valuation))(carry)[1]
    steps = steps.steps
    draws, chances = env.draw(KEYS.step, KEYS.start, 14), env.chances(ludus.types.Course())
    memory, seen, batch = ppo.initial_memory(policy, 2), ppo.initial_memory(critic, 2), carry.env

    @jax.jit
    def valued(batch, memory, seen, t):
        at, first = Origin(batch, memory, seen), FirstBranch(0, t * 2)
        return monte_carlo.returns(ppo, env, policy, critic, at, KEYS.branch, branching, first=first).mean(axis=0)

    step = jax.jit(env.step)
    for t in range(14):
        np.testing.assert_allclose(steps.extras[BRANCH_VALUE][t], valued(batch, memory, seen, t), rtol=1e-4, atol=1e-4)
        memory, _ = ppo.distribution(policy, memory, batch.obs)
        seen, _ = ppo.value(critic, seen, batch.obs)
        successor = ppo.value(critic, seen, steps.next_obs[t])[1]
        cut = np.asarray(steps.truncated[t] & ~steps.terminated[t])
        np.testing.assert_allclose(steps.extras[NEXT_BRANCH_VALUE][t][cut], successor[cut], rtol=1e-4, atol=1e-4)
        batch, outcome = step(batch, steps.action[t], jax.tree.map(lambda x, t=t: x[t], draws), chances)
        ended = outcome.terminated | outcome.truncated
        memory = choose_rows(ended, ppo.initial_memory(policy, 2), memory)
        seen = choose_rows(ended, ppo.initial_memory(critic, 2), seen)
    assert np.asarray(steps.truncated).any() or np.asarray(steps.terminated).any()


def test_no_branches_are_played_from_padding():
    """A state that no row needs takes no part: its branches end at once, and what they say is never looked at."""
    env = JaxEnv(Chain(), 2, "chain")
    batch = env.reset(jax.random.split(jax.random.key(0), 2))
    at = Origin(batch, wanted=jnp.array([True, False]))
    got = monte_carlo.returns(Coin(1.0), env, (), None, at, KEYS.branch, Branching(2, None, 1.0))
    np.testing.assert_array_equal(got, [[10.0, 0.0]] * 2)
