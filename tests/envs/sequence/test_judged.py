"""Tasks whose rewards come from a judge: they are its own, at every step, and the task's are told besides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import ludus
from ludus.envs.sequence.judged import JudgedTask
from ludus.envs.sequence.vector_toy import vector_toy
from ludus.networks.judges import judge_of
from ludus.networks.sequence_networks import TransformerPolicyNetwork, TransformerRewardModel

SIZES = {"nhead": 2, "num_layers": 2, "dim_feedforward": 24, "model_dim": 8}
MODEL = TransformerRewardModel(3, **SIZES)
ACTIONS = [1, 0, 2, 3, 1, 0, 2]


def played(judge, horizon=7):
    """The states of an episode, the rewards of its steps, and those of the task."""
    task = JudgedTask(vector_toy(3, 4, horizon), judge)
    step = jax.jit(task.step)
    state, obs = task.reset(jax.random.key(0))
    seen, rewards, own = [obs], [], []
    for action in ACTIONS[:horizon]:
        state, outcome = step(state, jnp.int32(action), jax.random.key(1))
        seen.append(outcome.obs)
        rewards.append(float(outcome.reward))
        own.append(float(outcome.info["task_reward"]))
    assert bool(outcome.terminated)
    return np.asarray(seen), rewards, own


@pytest.mark.slow
@pytest.mark.requirement("S0.13")
@pytest.mark.parametrize("sequence_length", [3, 20])
def test_every_reward_is_the_models_of_the_latest_states(sequence_length):
    """So it is however the model remembers: by keys, by a window, or as a function that is shown all anew."""
    by_keys = judge_of(MODEL, sequence_length, 3, 7)
    by_function = judge_of(lambda rows, padding: MODEL(rows, padding), sequence_length, 3, 7)
    for judge in (by_keys, by_function):
        seen, rewards, own = played(judge)
        for t, reward in enumerate(rewards):
            latest = seen[max(0, t + 2 - sequence_length) : t + 2, None]
            assert reward == pytest.approx(float(MODEL(latest)[0, 0]), abs=1e-5)
            assert own[t] == pytest.approx(-np.square(seen[t + 1]).sum(), rel=1e-5)


@pytest.mark.requirement("S0.13")
def test_a_constant_model_gives_constant_rewards():
    constant = nnx.clone(MODEL)
    constant.head.kernel[...] = jnp.zeros_like(constant.head.kernel[...])
    constant.head.bias[...] = jnp.full(1, 2.5)
    assert played(judge_of(constant, 10, 3, 7))[1] == [2.5] * 7
    assert played(judge_of(lambda rows, padding: jnp.full((rows.shape[1], 1), 1.5), 10, 3, 7))[1] == [1.5] * 7


def test_a_judge_keeps_the_model_as_it_was():
    model = nnx.clone(MODEL)
    judge = judge_of(model, 4, 3, 2)
    before = played(judge, 2)[1]
    model.head.bias[...] = model.head.bias[...] + 1.0
    assert played(judge, 2)[1] == before and model.sequence_length == 10


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (TransformerRewardModel(4, **SIZES), "reward_model: takes states of length 4 and has 1 outputs"),
        (TransformerPolicyNetwork(3, 2, **SIZES), "has 2 outputs"),
        (lambda rows, padding: rows[-1], r"must return rewards \(B, 1\).*got \(1, 3\)"),
        (lambda rows: rows, "reward_model: raised TypeError"),
    ],
)
def test_what_is_no_reward_model_is_one_line(model, words):
    with pytest.raises(ludus.LudusError, match=words):
        judge_of(model, 10, 3, 5)
