"""The sequence door: `train` with the document's names trains the networks it is given, by the core's PPO."""

import dataclasses
import inspect
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from flax import nnx
from loguru import logger

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.ppo_state import EpochState
from ludus.algorithms.samples import Memories, Samples
from ludus.compat import sequence
from ludus.compat.sequence import TransformerPolicyNetwork, TransformerRewardModel, TransformerValueNetwork, train
from ludus.envs.native.classic_control import CartPole
from ludus.envs.sequence.task import SequenceTask
from ludus.networks.network import network_for
from ludus.networks.recurrence import memory_of
from ludus.spaces import Box, Discrete
from ludus.types import Spec

SIZES = {"nhead": 2, "num_layers": 1, "dim_feedforward": 16, "model_dim": 8}
FAST = {"episodes_per_iteration": 4, "branches": 0, "policy_lr": 1e-3}


def networks(inputs=3, actions=2, seed=0):
    rngs = nnx.Rngs(seed)
    policy = TransformerPolicyNetwork(inputs, actions, **SIZES, rngs=rngs)
    return policy, TransformerValueNetwork(inputs, **SIZES, rngs=rngs)


def numbers(net):
    return [np.array(leaf) for leaf in jax.tree.leaves(nnx.state(net, nnx.Param))]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.requirement("S0.1")
def test_arguments_and_defaults_are_the_documents():
    arguments = inspect.signature(train).parameters
    documented = [name for name, x in arguments.items() if x.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert " ".join(documented) == (
        "policy_net value_net reward_model num_iterations episodes_per_iteration max_depth sequence_length gamma "
        "clip_epsilon policy_lr value_lr"
    )
    assert [arguments[name].default for name in documented[3:]] == [1000, 10, 5, 10, 0.99, 0.2, 1e-4, 1e-3]


# One iteration's loss, on these networks


@pytest.fixture(scope="module")
def case():
    """Two whole episodes of three steps, with ratios and advantages of either sign, and what the networks say."""
    policy, value = networks()
    rng = np.random.default_rng(3)
    obs = rng.normal(size=(3, 2, 3)).astype(np.float32)
    logits = np.stack([policy(obs[: t + 1]) for t in range(3)]).astype(np.float64)
    values = np.stack([value(obs[: t + 1])[:, 0] for t in range(3)]).astype(np.float64)
    action = rng.integers(2, size=(3, 2)).astype(np.int32)
    logp = np.take_along_axis(oracles.categorical_log_probabilities(logits), action[..., None], -1)[..., 0]
    ratio = np.array([[0.5, 0.9], [1.0, 1.1], [1.6, 1.3]])
    advantage = np.array([[1.0, -1.0], [-2.0, 0.5], [1.5, -0.7]])
    target = rng.normal(size=(3, 2))
    builder = sequence._network(policy, value, 10, 3)
    network = network_for(builder, Spec(Box(-np.inf, np.inf, (3,)), Discrete(2), 2))
    ppo = ludus.PPO(
        network=builder, batch_size=6, minibatch_size=6, segment_length=3, normalize_returns=False,
        value_loss_scale=1.0, entropy_coef=0.0, value_coef=0.0, learning_rate=0.0, critic_learning_rate=1e-2,
    )  # fmt: skip
    module = network.merge(network.initialize(jax.random.key(0)))
    for ours, theirs in sequence._parts(module, policy, value):
        nnx.update(ours, nnx.state(theirs, nnx.Param))
    parameters = network.parameters_of(module)

    def row(x):
        return jnp.asarray(np.swapaxes(x, 0, 1), jnp.float32 if np.asarray(x).dtype.kind == "f" else None)

    memories = Memories(*(memory_of(module, part).initial_memory(2) for part in ("actor", "critic")))
    samples = Samples(
        row(obs), None, row(action), row(logp - np.log(ratio)), row(values), row(advantage), row(target),
        jnp.asarray([[False, False, True]] * 2), memories, jnp.full((2, 3), 1 / 6),
    )  # fmt: skip
    return ppo, network, parameters, samples, (ratio, advantage, values, target, logits)


@pytest.mark.requirement("S0.16", "S0.17")
def test_the_loss_is_that_of_a_hand_computation(case):
    ppo, network, parameters, samples, (ratio, advantage, values, target, logits) = case
    means = jax.jit(ppo._loss, static_argnums=1)(parameters, network, samples)[1].scalars()
    clipped = [oracles.clipped_surrogate(r, a, 0.2) for r, a in zip(ratio.ravel(), advantage.ravel(), strict=True)]
    assert float(means["policy_loss"]) == pytest.approx(np.mean(clipped), rel=1e-5)
    assert float(means["value_loss"]) == pytest.approx(np.mean((values - target) ** 2), rel=1e-4)
    assert float(means["clip_fraction"]) == pytest.approx(np.mean(np.abs(ratio - 1) > 0.2 + 1e-6), abs=1e-6)
    logp = oracles.categorical_log_probabilities(logits)
    assert float(means["entropy"]) == pytest.approx(-(np.exp(logp) * logp).sum(-1).mean(), rel=1e-5)


@pytest.mark.requirement("S0.16")
def test_a_sample_beyond_the_clip_in_its_advantages_direction_has_no_gradient(case):
    ppo, network, parameters, samples, (ratio, advantage, *_) = case
    slope = jax.jit(jax.grad(lambda p, part: ppo._loss(p, network, part)[0]))
    for t, b in np.ndindex(ratio.shape):
        alone = samples._replace(weight=jnp.zeros((2, 3)).at[b, t].set(1.0))
        norm = math.sqrt(sum(float(jnp.square(g).sum()) for g in slope(parameters, alone)))
        passed = ratio[t, b] > 1.2 if advantage[t, b] > 0 else ratio[t, b] < 0.8
        assert (norm == 0.0) == passed, (ratio[t, b], advantage[t, b], norm)


@pytest.mark.slow
@pytest.mark.requirement("S0.17")
def test_the_value_loss_falls_on_a_fixed_batch_and_the_frozen_policy_stays(case):
    ppo, network, parameters, samples, _ = case
    ppo, start = as_arrays(dataclasses.replace(ppo, value_coef=0.5)), np.zeros(network.size, np.float32)
    state = EpochState(
        parameters, ppo._optimizer(network).init(start), jnp.asarray(False), jnp.asarray(start), jax.random.key(0)
    )
    step = jax.jit(lambda state: ppo.gradient_step(network, 1.0, state, samples))
    losses = []
    for _ in range(60):
        state, report = step(state)
        losses.append(float(report["value_loss"]))
    assert losses[-1] < 0.3 * losses[0]
    for owner, a, b in zip(network.owners, parameters, state.parameters, strict=True):
        assert np.array_equal(a, b) == (owner == "actor")


# Whole trainings


@pytest.mark.slow
@pytest.mark.requirement("S0.3", "S0.5", "S0.18", "S0.13")
def test_both_networks_are_trained_in_place_on_the_models_rewards(tmp_path, monkeypatch):
    """Once with all: branches, other sizes of the value network, a window shorter than an episode."""
    monkeypatch.chdir(tmp_path)
    policy, lines, warnings = networks()[0], [], []
    value = TransformerValueNetwork(3, **SIZES | {"num_layers": 2})
    reward = TransformerRewardModel(3, **SIZES)
    reward.head.kernel[...] = jnp.zeros((8, 1))
    reward.head.bias[...] = jnp.ones(1)
    nets = policy, value, reward
    before, sinks = [numbers(net) for net in nets], []
    sinks = [logger.add(lines.append, format="{level} {message}"), logger.add(warnings.append, level="WARNING")]
    try:
        history = train(
            *nets, num_iterations=3, episodes_per_iteration=4, max_depth=2, branches=2, sequence_length=3, gamma=0.5,
            episode_length=6, policy_lr=1e-3,
        )  # fmt: skip
    finally:
        for sink in sinks:
            logger.remove(sink)
    assert [same(a, numbers(net)) for a, net in zip(before, nets, strict=True)] == [False, False, True]
    assert [(row["iteration"], row["episodes"]) for row in history] == [(1, 4), (2, 8), (3, 12)]
    assert [row["mean_return"] for row in history] == [6.0] * 3, "a reward of 1 at each of six steps"
    assert all({"policy_loss", "value_loss", "approx_kl", "task_reward"} <= row.keys() for row in history)
    assert policy.sequence_length == 3 and value.sequence_length == 3
    assert len(lines) == 3 and not warnings
    for number, line in enumerate(lines, 1):
        assert line.startswith(f"INFO iteration {number} ")
        assert all(name in line for name in ("policy_loss", "value_loss", "episode_return_mean")) and "[" not in line
    algorithm = history.trainer.algorithm
    assert (algorithm.learning_rate, algorithm.critic_learning_rate, algorithm.gamma) == (1e-3, 1e-3, 0.5)
    assert not list(tmp_path.iterdir()), "no folder is given, so nothing is written"


@pytest.mark.slow
@pytest.mark.requirement("S0.4", "S0.16", "S0.31")
def test_rates_of_zero_freeze_seeds_repeat_and_ratios_begin_at_one():
    ends = {}
    for name, more in {
        "policy": {"policy_lr": 0.0},
        "value": {"value_lr": 0.0},
        "one": {},
        "again": {},
        "other": {"seed": 1},
    }.items():
        policy, value = networks()
        before = numbers(policy), numbers(value)
        history = train(policy, value, None, num_iterations=2, **FAST | more)
        ends[name] = (numbers(policy), numbers(value)), history
        unchanged = same(before[0], numbers(policy)), same(before[1], numbers(value))
        assert unchanged == (name == "policy", name == "value")
    assert same(ends["one"][0][0], ends["again"][0][0]) and ends["one"][1] == ends["again"][1]
    assert not same(ends["one"][0][0], ends["other"][0][0])
    assert all(abs(row["approx_kl"]) < 1e-6 for row in ends["policy"][1]), "of a policy that stays, every ratio is 1"
    assert ends["one"][1][-1]["approx_kl"] > 1e-6, "of one that learns, those of later epochs are not"


@pytest.mark.slow
@pytest.mark.requirement("S0.31")
def test_a_run_can_be_gone_on_with_and_is_then_as_if_it_had_never_stopped(tmp_path):
    ends = []
    for stops in ([4], [2, 4]):
        run = tmp_path / f"run-{len(stops)}"
        for stop in stops:
            policy, value = networks(seed=stop)  # of a run that goes on, its own count
            if stop == stops[0]:
                policy, value = networks()
            history = train(policy, value, None, num_iterations=stop, run_dir=run, **FAST)
        ends.append((numbers(policy), numbers(value)))
        assert history[-1]["iteration"] == 4 and (run / "metrics.jsonl").exists()
    assert same(ends[0][0], ends[1][0]) and same(ends[0][1], ends[1][1])


@pytest.mark.slow
@pytest.mark.requirement("S0.19")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_the_toy_the_policy_comes_to_prefer_its_best_action(seed):
    policy, value = networks(10, 4, seed)
    train(policy, value, None, num_iterations=150, episodes_per_iteration=16, branches=0, policy_lr=3e-3, seed=seed)
    assert float(policy.probabilities(np.zeros((1, 1, 10)))[0, 0]) > 0.95


@pytest.mark.slow
@pytest.mark.requirement("S0.3")
def test_a_reward_model_that_is_to_learn_learns_the_tasks_rewards():
    policy, value = networks()
    reward = TransformerRewardModel(3, **SIZES)
    before, states = numbers(reward), np.zeros((1, 2, 3), np.float32)
    states[0, 1] = 1.0  # -3 in place of 0
    task = SequenceTask(start, move, gain, horizon=3)
    history = train(policy, value, reward, num_iterations=1, task=task, train_reward_model=True, **FAST)
    assert not same(before, numbers(reward))
    zero, one = np.asarray(reward(states))[:, 0]
    assert zero > one + 1.0, "the nearer to zero, the better"
    assert history[0]["mean_return"] == pytest.approx(3 * history[0]["task_reward"], rel=0.5)


def start(key):
    return jax.random.normal(key, (3,))


def move(state, action):
    return state + action


def gain(state, action, next_state):
    return -jnp.abs(next_state).sum()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy_net": 3}, "policy_net=int: must be a TransformerPolicyNetwork"),
        ({"value_net": networks()[0]}, "value_net: must have one output"),
        ({"value_net": networks(4)[1]}, "value_net: takes states of length 4, but policy_net of length 3"),
        ({"task": "VectorToy-v1"}, "task='VectorToy-v1': must be a SequenceTask"),
        ({"task": CartPole()}, "task: shows .*; policy_net takes vectors of length 3"),
        (
            {"task": SequenceTask(start, move, gain, num_actions=5)},
            "task: its actions are .*; policy_net chooses among 2",
        ),
        ({"task": SequenceTask(start, move, gain)}, "episode_length=None: the task's episodes may go on for ever"),
        ({"reward_model": TransformerRewardModel(4, **SIZES)}, "reward_model: takes states of length 4"),
        ({"train_reward_model": True}, "train_reward_model=True: needs a TransformerRewardModel"),
        ({"policy_lr": -1.0}, r"algorithm\.learning_rate=-1\.0"),
        ({"num_iterations": 0}, "num_iterations=0: must be an integer of at least 1"),
        ({"branches": -1}, "branches=-1: must be an integer of at least 0"),
        ({"minibatches": 9}, "minibatches=9: must be at most episodes_per_iteration=4"),
    ],
)
def test_what_cannot_be_trained_is_one_line(changes, words):
    policy, value = networks()
    given = {"policy_net": policy, "value_net": value, "reward_model": None, "episodes_per_iteration": 4} | changes
    with pytest.raises(ludus.LudusError, match=words) as caught:
        train(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.requirement("S0.18")
def test_importing_the_door_writes_nothing(tmp_path):
    subprocess.run([sys.executable, "-c", "import ludus.compat.sequence"], cwd=tmp_path, check=True)
    assert not list(tmp_path.iterdir())
