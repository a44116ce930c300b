"""PPO with a memory: segments, a memory of the critic's own, and exact resume in the midst of an episode."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import DISCRETE, random_rollout, random_state, small_ppo, told
from dressed import DressedEnv

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.envs.batch import JaxEnv
from ludus.envs.native.probes import Memory
from ludus.runtime.rng import stream
from ludus.training.state_arrays import differences
from ludus.training.verify import state_of

pytestmark = pytest.mark.slow

SMALL = ludus.Transformer(context_length=5, model_dim=8, num_layers=2, num_heads=2, feedforward_dim=8)
NETWORKS = {
    "gru": ludus.GRU(4, (5,)),
    "gru, shared": ludus.GRU(4, (5,), shared=True),
    "transformer": SMALL,
    "transformer, shared": dataclasses.replace(SMALL, shared=True),
}
KEY = jax.random.key(7)


def collected(algorithm, env, steps=2):
    """A few iterations' worth of training on an environment; the state, and the rollout that comes next."""
    trainer = ludus.Trainer(algorithm, env, ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=0))
    trainer.train(total_steps=steps * algorithm.batch_size)
    state, runner = trainer.state, trainer.loop.runner
    from ludus.types import RolloutKeys

    keys = RolloutKeys(*(stream(3, name) for name in RolloutKeys._fields))
    arrays, policy = as_arrays(algorithm), algorithm.policy(state.learner)
    collect = runner.whole(
        lambda carry: runner.collect(arrays, env, policy, carry, keys, algorithm.rollout_length(env.num_envs))
    )
    return state.learner, collect(state.carry)[1]


@pytest.mark.requirement("S0.16")
@pytest.mark.parametrize("kind", ["jax", "host"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("segment_length", [None, 4])
def test_every_ratio_is_one_before_the_first_step(name, kind, segment_length):
    env = JaxEnv(Memory(), 4, "memory")
    env = env if kind == "jax" else DressedEnv(env)
    ppo = ludus.PPO(
        network=NETWORKS[name], batch_size=64, minibatch_size=32, epochs_per_update=1, segment_length=segment_length,
        learning_rate=0.01,
    )  # fmt: skip
    learner, rollout = collected(ppo, env)
    frozen = dataclasses.replace(ppo, learning_rate=0.0)
    metrics = jax.jit(told)(as_arrays(frozen), learner, rollout, KEY)[1]
    assert abs(float(metrics["approx_kl"])) < 1e-6 and float(metrics["clip_fraction"]) == 0.0


@pytest.mark.parametrize("name", NETWORKS)
def test_segments_learn_what_the_whole_rollout_does_but_for_slopes_through_their_starts(name):
    """With frozen memories (no slope reaches further back than a segment) values and advantages are the same."""
    whole = small_ppo(network=NETWORKS[name], minibatch_size=32, batch_size=32)
    parts = dataclasses.replace(whole, segment_length=2)
    rng = np.random.default_rng(4)
    state = whole.init(jax.random.key(1), DISCRETE)
    rollout = random_rollout_for(state, rng)
    one, other = (a._estimates(state, rollout.steps, rollout) for a in (as_arrays(whole), as_arrays(parts)))
    for x, y in ((one.value, other.value), (one.advantage, other.advantage)):
        np.testing.assert_allclose(x, y, atol=1e-5)
    assert jax.tree.leaves(other.memories)[0].shape[0] == 4 and jax.tree.leaves(one.memories)[0].shape[0] == 1
    for x, y in zip(jax.tree.leaves(one.critic_memory), jax.tree.leaves(other.critic_memory), strict=True):
        np.testing.assert_array_equal(x, y)


def random_rollout_for(state, rng):
    from ludus.types import Rollout, Transition

    shape = 8, state.network.spec.num_envs
    obs, next_obs = rng.normal(size=(2, *shape, 3)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.2
    extras = {"sample": rng.integers(3, size=shape).astype(np.int32), "log_prob": np.full(shape, -1.0, np.float32)}
    steps = Transition(
        obs, extras["sample"], rng.normal(size=shape).astype(np.float32), terminated, truncated, next_obs, extras
    )
    memory = small_ppo(network=state.network.build).initial_memory(
        small_ppo(network=state.network.build).policy(state), shape[1]
    )
    return Rollout(steps, memory)


def test_the_critic_remembers_over_rollouts_and_begins_anew_where_they_do():
    ppo = small_ppo(network=NETWORKS["gru"])
    state, rng = random_state(ppo, DISCRETE, np.random.default_rng(0)), np.random.default_rng(1)
    rollout = random_rollout(state, rng)
    update = jax.jit(told)
    went_on, _ = update(as_arrays(ppo), state, rollout, KEY)
    again, _ = update(as_arrays(ppo), state, rollout._replace(is_start=True), KEY)
    cleared = dataclasses.replace(state, critic_memory=jax.tree.map(np.zeros_like, state.critic_memory))
    from_nothing, _ = update(as_arrays(ppo), cleared, rollout, KEY)
    assert any((a != b).any() for a, b in zip(went_on.parameters, again.parameters, strict=True))
    for a, b in zip(again.parameters, from_nothing.parameters, strict=True):
        np.testing.assert_array_equal(a, b)
    ended = np.asarray(rollout.steps.terminated | rollout.steps.truncated)[-1]
    assert not np.asarray(went_on.critic_memory)[ended].any() and np.asarray(went_on.critic_memory)[~ended].any()


@pytest.mark.requirement("S4.13", "S0.31")
@pytest.mark.parametrize("env", ["CartPole-v1", "gym:CartPole-v1"])
@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_a_run_with_a_memory_resumes_bit_by_bit_in_the_midst_of_an_episode(tmp_path, env, name):
    ppo = ludus.PPO(
        network=NETWORKS[name], batch_size=28, minibatch_size=14, epochs_per_update=1, segment_length=7,
        anneal_learning_rate=False,
    )  # fmt: skip
    settings = ludus.Settings(
        verbose=False, eval_frequency=0, eval_episodes_final=2, record_behaviour=False,
        checkpoint=ludus.CheckpointOptions(every_iterations=1),
    )  # fmt: skip

    def train(folder, steps):
        workers = {"num_workers": 0} if env.startswith("gym:") else {}
        made = ludus.make_env(env, num_envs=2, **workers)
        ludus.Trainer(ppo, made, settings, run_dir=folder).train(total_steps=steps)

    train(tmp_path / "whole", 28 * 8)
    train(tmp_path / "parts", 28 * 3)
    ludus.Trainer.resume(tmp_path / "parts", verbose=False, total_steps=28 * 8).train()
    state = state_of(tmp_path / "whole")
    assert differences(state, state_of(tmp_path / "parts")) == []
    assert any(name.startswith("learner/critic_memory") for name in state)
    assert any(name.startswith("carry/memory") and value.any() for name, value in state.items())


@pytest.mark.parametrize(
    ("steps", "minibatch", "parts", "length"),
    [(64, 512, 1, 64), (256, 64, 1, 64), (256, 100, 1, 86), (113, 64, 1, 57), (8, 6, 2, 3), (5, 2, 1, 2), (5, 9, 3, 3)],
)
def test_without_a_length_segments_are_as_long_as_fits_and_all_alike(steps, minibatch, parts, length):
    ppo = ludus.PPO(minibatch_size=minibatch, accumulation_steps=parts)
    assert ppo._segment(steps) == length <= max(1, minibatch // parts)


@pytest.mark.parametrize("network", [ludus.GRU, ludus.Transformer])
@pytest.mark.parametrize("num_envs", [1, 2, 8, 16, 64])
def test_the_defaults_of_a_memory_suit_any_usual_number_of_environments(network, num_envs):
    ludus.PPO(network=network()).validate(dataclasses.replace(DISCRETE, num_envs=num_envs))


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_segments_that_do_not_divide_a_rollout_are_filled_up_with_steps_that_weigh_nothing(name):
    """As if the rollout had had such steps itself, after the end of every episode."""
    ppo = small_ppo(network=NETWORKS[name], segment_length=3, minibatch_size=12, batch_size=32)
    rng = np.random.default_rng(4)
    state = ppo.init(jax.random.key(1), DISCRETE)
    rollout = random_rollout_for(state, rng)
    rollout.steps.truncated[-1] = True
    longer = jax.tree.map(lambda x: np.concatenate([x, np.full_like(x[:1], 7)]), rollout.steps)
    longer = longer._replace(valid=np.arange(9)[:, None] < np.full(4, 8), truncated=longer.truncated | True)
    longer.truncated[:8] = rollout.steps.truncated
    update = jax.jit(told)
    (short, report), (long, other) = (
        update(as_arrays(ppo), state, rollout._replace(steps=steps), KEY) for steps in (rollout.steps, longer)
    )
    assert report["updates"] == other["updates"] == 3 and report["fault"] == other["fault"] == 0
    for a, b in zip(short.parameters, long.parameters, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert report["policy_loss"] == pytest.approx(float(other["policy_loss"]), abs=1e-6)


@pytest.mark.parametrize("segment_length", [None, 16])
def test_whole_trajectories_are_learnt_from_in_segments(segment_length):
    """Their room, 113 steps, is no multiple of anything."""
    ppo = ludus.PPO(network=NETWORKS["gru"], batch_size=512, minibatch_size=64, segment_length=segment_length)
    env = ludus.make_env("CartPole-v1", num_envs=8, max_episode_steps=50)
    settings = ludus.Settings(verbose=False, eval_frequency=0, collect="trajectories", eval_episodes_final=0)
    trainer = ludus.Trainer(ppo, env, settings)
    assert trainer.loop.num_steps == 113
    assert trainer.train(total_steps=1024).updates > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"segment_length": 3},
            "algorithm.segment_length=3: must divide the rollout's steps, batch_size / num_envs = 8",
        ),
        ({"segment_length": 4, "minibatch_size": 6}, r"every part must be a multiple of algorithm.segment_length=4"),
    ],
)
def test_segments_that_cannot_be_are_refused_by_name(changes, message):
    with pytest.raises(ludus.LudusError, match=message):
        small_ppo(**{"network": NETWORKS["gru"], "minibatch_size": 32, "batch_size": 32} | changes).validate(DISCRETE)
