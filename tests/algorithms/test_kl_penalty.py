"""PPO's penalty on divergence: what it holds on to, how its weight adapts, and that without it nothing is there.

That whole updates with it equal float64 NumPy is shown by the cases of `test_ppo.py`.
"""

import dataclasses

import jax
import numpy as np
import pytest
from cases import CONTINUOUS, DISCRETE, NORMALIZED, RECURRENT, random_rollout, random_state, small_ppo, update
from dressed import DressedEnv

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.kl_penalty import LEAST, METRICS, MOST, adapted
from ludus.envs.batch import JaxEnv
from ludus.envs.native.probes import Memory
from ludus.runs.journal import read_journal
from ludus.runs.metrics import metric_of
from ludus.training.state_arrays import differences
from ludus.training.verify import state_of

KEY = jax.random.key(0)
START = {"kl_reference": "start"}
SMALL = ludus.Transformer(context_length=5, model_dim=8, num_layers=1, num_heads=2, feedforward_dim=8)


def learnt(spec=DISCRETE, seed=0, **changes):
    """A state and what one update makes of it."""
    algorithm = small_ppo(**changes)
    state = random_state(algorithm, spec, np.random.default_rng(seed))
    rollout = random_rollout(state, np.random.default_rng(seed + 1))
    return algorithm, state, rollout, *update(as_arrays(algorithm), state, rollout, KEY)


def test_the_coefficient_doubles_halves_or_stays():
    for kl, factor in ((0.016, 2.0), (0.014, 1.0), (0.01, 1.0), (0.007, 1.0), (0.006, 0.5)):
        assert float(adapted(np.float32(3.0), np.float32(kl), 0.01)) == 3.0 * factor
    assert adapted(np.float32(LEAST), np.float32(0.0), 0.01) == np.float32(LEAST)
    assert adapted(np.float32(MOST), np.float32(1.0), 0.01) == np.float32(MOST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl_reference": "then"}, "^algorithm.kl_reference=then: must be before or start$"),
        ({"kl_reference": 3}, "^algorithm.kl_reference=3: must be a text like before$"),
        ({"kl_coef": -1.0}, "^algorithm.kl_coef=-1.0: must be at least 0$"),
        ({"kl_target": 0.0}, "^algorithm.kl_target=0.0: must be at least 1e-06$"),
        ({"kl_target": 0.1, "kl_coef": "linear:1:0"}, "^algorithm.kl_coef=linear:1:0: cannot follow a schedule"),
    ],
)
def test_penalties_that_cannot_be_are_refused_by_name(options, message):
    with pytest.raises(ludus.LudusError, match=message):
        ludus.PPO(**options)


def test_without_a_penalty_there_is_nothing_of_it():
    state = small_ppo().init(KEY, DISCRETE)
    assert state.penalty is None
    fixed = small_ppo(kl_coef=0.1).init(KEY, DISCRETE)
    assert jax.tree.leaves(fixed.penalty) == [], "nor has a fixed one anything to remember"


@pytest.mark.slow
@pytest.mark.requirement("S1.34")
def test_without_a_penalty_no_update_speaks_of_one():
    assert not set(METRICS) & learnt()[-1].keys()
    assert set(METRICS) <= learnt(kl_coef=0.5)[-1].keys()


@pytest.mark.slow
@pytest.mark.requirement("S1.34")
@pytest.mark.parametrize("reference", ["before", "start"])
@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_the_stronger_the_penalty_the_nearer_the_policy_stays(spec, reference):
    moved = [
        float(learnt(spec, kl_coef=weight, kl_reference=reference, epochs_per_update=20, learning_rate=0.01)[-1]["kl"])
        for weight in (0.0, 1.0, 100.0)
    ]
    assert moved[0] > 1.3 * moved[1] > 1.3 * moved[2] >= 0.0, moved


@pytest.mark.slow
def test_a_penalty_of_weight_zero_changes_no_bit_of_what_is_learnt():
    plain, weightless = (learnt(**changes)[3] for changes in ({}, {"kl_coef": 0.0}))
    for a, b in zip(plain.parameters, weightless.parameters, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_another_weight_compiles_nothing():
    learnt(kl_coef=0.5)
    before = update._cache_size()
    learnt(kl_coef=0.25)
    assert update._cache_size() == before


@pytest.mark.slow
@pytest.mark.parametrize("changes", [RECURRENT, NORMALIZED], ids=["recurrent", "normalised"])
def test_the_reference_of_the_start_is_never_moved(changes):
    _, state, _, new, _ = learnt(kl_coef=0.5, **START, **changes)
    for a, b in zip(state.penalty.reference.parameters, new.penalty.reference.parameters, strict=True):
        np.testing.assert_array_equal(a, b)
    if changes is NORMALIZED:  # it sees what it saw then: its statistics are those of the start, too
        assert float(new.penalty.reference.observations.count) == 0.0 != float(new.observations.count)


@pytest.mark.slow
def test_the_memory_of_the_reference_begins_anew_where_episodes_do():
    algorithm, state, rollout, went_on, _ = learnt(kl_coef=0.5, **START, **RECURRENT)
    anew, _ = update(as_arrays(algorithm), state, rollout._replace(is_start=True), KEY)
    blank = state.penalty._replace(memory=np.zeros_like(state.penalty.memory))
    held = dataclasses.replace(state, penalty=blank, critic_memory=np.zeros_like(state.critic_memory))
    from_nothing, _ = update(as_arrays(algorithm), held, rollout, KEY)
    for a, b in zip(anew.parameters, from_nothing.parameters, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(anew.parameters, went_on.parameters, strict=True))
    ended = np.asarray(rollout.steps.terminated | rollout.steps.truncated)[-1]
    assert not np.asarray(went_on.penalty.memory)[ended].any() and np.asarray(went_on.penalty.memory)[~ended].any()


def test_a_policy_that_is_taken_over_is_where_training_starts_from():
    algorithm = small_ppo(kl_target=0.01, kl_coef=0.5, **START)
    state, other = (algorithm.init(jax.random.key(seed), DISCRETE) for seed in (0, 1))
    taken = algorithm.with_policy(state, algorithm.policy(other))
    assert float(taken.penalty.coefficient) == 0.5
    actors = [algorithm.policy(x).network.merge(x.parameters).actor for x in (other, taken.penalty.reference)]
    obs = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(*(actor(obs).logits for actor in actors))


@pytest.mark.slow
def test_for_another_number_of_environments_the_reference_stays_and_its_memory_begins_anew():
    algorithm, _, _, new, _ = learnt(kl_coef=0.5, **START, **RECURRENT)
    other = algorithm.with_envs(new, 6)
    assert other.penalty.memory.shape[0] == 6 and not np.asarray(other.penalty.memory).any()
    assert algorithm.with_envs(new, 4) is new


SETTINGS = ludus.Settings(
    verbose=False, eval_frequency=0, eval_episodes_final=0, record_behaviour=False,
    checkpoint=ludus.CheckpointOptions(every_iterations=1),
)  # fmt: skip


NETWORKS = {"mlp": ludus.MLP((5,)), "gru": ludus.GRU(4, (5,)), "transformer": SMALL}


def tiny(network: str, **changes) -> ludus.PPO:
    sizes = {"batch_size": 28, "minibatch_size": 14, "epochs_per_update": 1, "segment_length": 7}
    return ludus.PPO(
        network=NETWORKS[network], kl_target=0.01, anneal_learning_rate=False, **START, **(sizes | changes)
    )


def train(ppo, folder, iterations, env=None):
    env = ludus.make_env("CartPole-v1", num_envs=2) if env is None else env
    ludus.Trainer(ppo, env, SETTINGS, run_dir=folder).train(total_steps=28 * iterations)
    return read_journal(folder)


@pytest.mark.slow
@pytest.mark.requirement("S1.34")
@pytest.mark.parametrize(("network", "how"), [("mlp", "jax"), ("gru", "host"), ("transformer", "jax")])
def test_a_policy_that_does_not_move_does_not_diverge_from_its_start(tmp_path, network, how):
    """Over several rollouts, in which the reference's memory must have followed the policy's own."""
    env = DressedEnv(JaxEnv(Memory(), 2, "memory")) if how == "host" else None
    rows = train(tiny(network, learning_rate=0.0), tmp_path / "run", 4, env)
    for row in rows:
        assert abs(row["kl"]) < 1e-6 and abs(row["kl_penalty"]) < 1e-6
    assert [row["kl_coef"] for row in rows] == [1.0, 0.5, 0.25, 0.125]
    # What it costs is told of in the table that all figures stand in.
    assert all(metric_of(name).title for name in METRICS)


@pytest.mark.slow
@pytest.mark.requirement("S1.34", "S4.13")
def test_a_run_with_a_reference_and_a_memory_resumes_bit_by_bit(tmp_path):
    ppo = tiny("gru", learning_rate=0.01)
    assert train(ppo, tmp_path / "whole", 8)[-1]["kl"] > 1e-6
    train(ppo, tmp_path / "parts", 3)
    ludus.Trainer.resume(tmp_path / "parts", verbose=False, total_steps=28 * 8).train()
    state = state_of(tmp_path / "whole")
    assert differences(state, state_of(tmp_path / "parts")) == []
    assert {"learner/penalty/coefficient", "learner/penalty/memory"} <= state.keys()
    assert any(name.startswith("learner/penalty/reference") for name in state)
