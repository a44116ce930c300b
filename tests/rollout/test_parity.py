"""One algorithm, two ways to run it: both collectors give the same rollout, and one update the same parameters."""

import itertools

import jax
import numpy as np
import pytest
import zoo
from cases import told
from dressed import DressedEnv
from oracles import flat

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.minibatch import blank_padding
from ludus.envs.batch import JaxEnv
from ludus.envs.native.classic_control import CLASSIC
from ludus.envs.native.probes import PROBES
from ludus.rollout import compiled, host
from ludus.runtime.rng import stream
from ludus.types import RolloutKeys, Spec

pytestmark = pytest.mark.slow

SMALL = {"batch_size": 64, "minibatch_size": 32, "epochs_per_update": 2}
CASES = {
    "discrete": (CLASSIC["CartPole-v1"], ludus.PPO(**SMALL)),
    "continuous, normalised": (
        CLASSIC["Pendulum-v1"],
        ludus.PPO(**SMALL, normalize_observations=True, normalize_rewards=True, normalize_returns=True),
    ),
    "memory": (PROBES["memory"], ludus.PPO(**SMALL, network=ludus.GRU(memory_size=8, hidden_sizes=(16,)))),
    "dicts": (lambda: zoo.make("dict", "jax"), ludus.PPO(**SMALL, normalize_observations=True)),
    "masks": (lambda: zoo.make("masked multi-discrete", "jax"), ludus.PPO(**SMALL)),
}


HOW = {"steps": (0, None), "episodes": (1, None), "trajectories": (6, None), "limited": (0, 3)}
"""The threshold of whole episodes, and after how many episodes the run is over."""


def rollouts(case: str, how: str, num_envs: int = 4):
    make, ppo = CASES[case]
    env = JaxEnv(make(), num_envs, case, max_episode_steps=11)
    algorithm = as_arrays(ppo)
    state = ppo.init(stream(0, "init"), Spec(env.observation_space, env.action_space, num_envs))
    policy = ppo.policy(state)
    keys = RolloutKeys(*(stream(1, name) for name in RolloutKeys._fields))
    begun = compiled.begin(algorithm, env, policy, keys.begin)
    dressed = DressedEnv(env)
    dressed.use(begun.env, keys, 16)
    # Host and compiled rollouts begin from different random numbers.
    dressed.reset = lambda seeds: jax.tree.map(np.asarray, begun.env.obs)
    host_start = host.begin(algorithm, dressed, policy, keys.begin)
    program = jax.jit(compiled.collect, static_argnums=(1, 5, 6))
    return (
        (algorithm, state),
        program(algorithm, env, policy, begun, keys, 16, *HOW[how]),
        host.collect(algorithm, dressed, policy, host_start, keys, 16, *HOW[how]),
    )


def collected(env: JaxEnv, num_steps: int, threshold: int = 0, episodes_left=None):
    ppo = ludus.PPO(**SMALL)
    policy = ppo.policy(ppo.init(stream(0, "init"), Spec(env.observation_space, env.action_space, env.num_envs)))
    keys = RolloutKeys(*(stream(1, name) for name in RolloutKeys._fields))
    start = compiled.start(as_arrays(ppo), env, policy, keys.begin)
    program = jax.jit(compiled.collect, static_argnums=(1, 5, 6))
    return program(as_arrays(ppo), env, policy, start, keys, num_steps, threshold, episodes_left)


def shown(rollout):
    """The rollout with nothing in its padding: the host does not come to it."""
    return rollout._replace(steps=blank_padding(rollout.steps))


def assert_close(a, b) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), a, b)


@pytest.mark.requirement("S3.5")
@pytest.mark.parametrize(
    ("case", "how"),
    [
        *itertools.product(CASES, ("steps", "episodes")),
        *itertools.product(("memory", "masks"), ("trajectories", "limited")),
    ],
)
def test_both_collectors_give_the_same_rollout_and_the_same_update(case, how):
    (algorithm, state), (_, rollout, stats), (_, host_rollout, host_stats) = rollouts(case, how)
    assert (np.asarray(rollout.steps.terminated) | np.asarray(rollout.steps.truncated)).any()
    assert (rollout.steps.valid is None) == (host_rollout.steps.valid is None) == (how == "steps")
    assert_close(shown(rollout), shown(host_rollout))
    assert_close(stats, host_stats._replace(seconds=()))  # only the host can tell what its time went on
    update = jax.jit(lambda algorithm, state, rollout: told(algorithm, state, rollout, stream(2, "update")))
    learnt, metrics = update(algorithm, state, rollout)
    host_learnt, host_metrics = update(algorithm, state, host_rollout)
    assert not np.allclose(flat(learnt.parameters), flat(state.parameters))
    assert_close(learnt, host_learnt)
    assert_close(metrics, host_metrics)


@pytest.mark.parametrize(("case", "how"), [*((case, "steps") for case in CASES), ("memory", "limited")])
def test_the_carry_goes_on_alike(case, how):
    _, (carry, _, _), (host_carry, _, _) = rollouts(case, how)
    assert_close(carry.memory, host_carry.memory)
    assert_close(carry.env.obs, host_carry.env.obs)
    assert_close(carry.env.episode_return, host_carry.env.episode_return)
    assert_close(carry.env.episode_length, host_carry.env.episode_length)


@pytest.mark.requirement("S0.5")
@pytest.mark.requirement("S3.14")
def test_whole_episodes_are_one_for_each_environment_and_cut_with_bootstrap():
    _, (_, rollout, stats), _ = rollouts("discrete", "episodes")
    steps = jax.tree.map(np.asarray, rollout.steps)
    ended = steps.terminated | steps.truncated
    assert stats.episodes == 4
    for env in range(4):
        length = int(steps.valid[:, env].sum())
        assert steps.valid[:length, env].all(), "valid rows come first"
        assert ended[length - 1, env], "the last valid row ends the episode"
        assert not ended[: length - 1, env].any(), "no valid row before it does"
    assert stats.steps == steps.valid.sum()
    assert stats.length_sum == steps.valid.sum()


@pytest.mark.requirement("S3.12", "S3.13")
def test_trajectories_are_whole_and_follow_each_other_until_there_are_enough_steps():
    _, rollout, stats = collected(JaxEnv(CLASSIC["CartPole-v1"](), 4, "short", 25), num_steps=54, threshold=30)
    steps = jax.tree.map(np.asarray, rollout.steps)
    ended, length = steps.terminated | steps.truncated, steps.valid.sum(axis=0)
    assert (length >= 30).all() and len(set(length)) > 1
    for env, count in enumerate(length):
        assert steps.valid[:count, env].all() and ended[count - 1, env], "it ends with the end of a trajectory"
        assert not ended[29 : count - 1, env].any(), "which is the first to pass the threshold"
    assert stats.episodes == (ended & steps.valid).sum() > 4 and stats.cut == 0
    assert stats.steps == stats.length_sum == length.sum()


@pytest.mark.requirement("S1.15")
@pytest.mark.parametrize("threshold", [0, 30], ids=["steps", "trajectories"])
def test_the_last_rollout_is_cut_at_the_episode_that_reached_the_limit(threshold):
    env = JaxEnv(CLASSIC["CartPole-v1"](), 4, "short", 25)
    carry, rollout, stats = collected(env, num_steps=54, threshold=threshold, episodes_left=np.int32(3))
    steps = jax.tree.map(np.asarray, rollout.steps)
    ended = steps.terminated | steps.truncated
    at = np.flatnonzero(steps.valid.any(axis=1))[-1]
    assert stats.episodes == 3 == (ended & steps.valid).sum() - stats.cut == np.isfinite(stats.returns).sum()
    assert steps.valid[:at].all() and not steps.valid[at + 1 :].any() and stats.steps == steps.valid.sum()
    assert stats.cut > 0 and ended[at][steps.valid[at]].all(), "other episodes are cut, for this update"
    if not threshold:
        running = np.asarray(carry.env.episode_length).sum()
        assert stats.steps == stats.length_sum + running, "and go on in their environments: nothing is lost"


def test_an_episode_longer_than_the_rollout_is_truncated_not_terminated_and_not_reported():
    _, rollout, stats = collected(JaxEnv(CLASSIC["Pendulum-v1"](), 2, "pendulum"), num_steps=8, threshold=1)
    assert np.asarray(rollout.steps.truncated)[-1].all()
    assert not np.asarray(rollout.steps.terminated).any()
    assert stats.episodes == 0 and stats.cut == 2, "nobody knows what its return would have been"
    assert np.isnan(np.asarray(stats.returns)).all() and stats.steps == 16


@pytest.mark.requirement("S1.12")
@pytest.mark.requirement("S2.9")
def test_next_obs_is_the_next_row_within_an_episode_and_the_true_end_at_its_end():
    _, (_, rollout, _), _ = rollouts("discrete", "steps")
    steps = jax.tree.map(np.asarray, rollout.steps)
    ended = steps.terminated | steps.truncated
    inside = ~ended[:-1]
    np.testing.assert_array_equal(steps.next_obs[:-1][inside], steps.obs[1:][inside])
    assert (np.abs(steps.next_obs[:-1][ended[:-1]] - steps.obs[1:][ended[:-1]]).max(axis=-1) > 1e-3).all()
    assert (np.abs(steps.obs[1:][ended[:-1]]) <= 0.05).all(), "a new episode starts in CartPole's reset range"


@pytest.mark.requirement("S4.6")
def test_unclipped_samples_are_stored_beside_what_the_environment_got():
    _, (_, rollout, _), _ = rollouts("continuous, normalised", "steps")
    sample, action = np.asarray(rollout.steps.extras["sample"]), np.asarray(rollout.steps.action)
    assert np.abs(sample).max() > 1.0, "some samples lie outside the bounds"
    np.testing.assert_allclose(action, 2.0 * np.clip(sample, -1, 1), atol=1e-6)
