"""Figures of health against NumPy, when they are journalled, and that they change nothing."""

import dataclasses

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sac_cases

import ludus
from ludus.algorithms import diagnostics
from ludus.algorithms.hyperparameters import as_arrays
from ludus.report.html.make import make_report
from ludus.runs.journal import read_journal
from ludus.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
TINY = {"batch_size": 64, "minibatch_size": 32, "epochs_per_update": 2, "learning_rate": 1e-3}


def figures_of(algorithm, state, rollout, update) -> tuple[dict, dict, object]:
    """One update: its health by name, its metrics, and the state after it."""
    new, metrics = update(as_arrays(algorithm), state, rollout, KEY)
    made = jax.jit(type(algorithm).diagnostics)(as_arrays(algorithm), state, new, metrics["gradient"], rollout)
    return jax.tree.map(np.asarray, made).columns(), metrics, new


def ppo_case(spec=cases.DISCRETE, **changes):
    algorithm = cases.small_ppo(**changes)
    rng = np.random.default_rng(0)
    state = cases.random_state(algorithm, spec, rng)
    return algorithm, state, cases.random_rollout(state, rng)


def norm(arrays) -> float:
    return float(np.sqrt(sum(np.sum(np.asarray(x, np.float64) ** 2) for x in arrays)))


# Norms


@pytest.mark.requirement("S4.17", "S4.21")
def test_norms_of_ppo_are_those_of_each_layer_and_each_network():
    algorithm, state, rollout = ppo_case(cases.CONTINUOUS, max_grad_norm=1e9)
    figures, metrics, new = figures_of(algorithm, state, rollout, cases.update)
    network = state.network
    # From moments that are zero, Adam's first one is a tenth of the gradient, and nothing was clipped.
    held = {
        "gradient_norm": network.unravel(10 * new.optimizer.mu),
        "update_norm": [a - b for a, b in zip(new.parameters, state.parameters, strict=True)],
        "parameter_norm": new.parameters,
        "adam_first_moment_norm": network.unravel(new.optimizer.mu),
        "adam_second_moment_norm": network.unravel(new.optimizer.nu),
    }
    layers = {"actor_head/layer", "actor_head/log_std", "actor_torso/layers/0", "critic_head", "critic_torso/layers/0"}
    expected = {}
    for quantity, arrays in held.items():
        by_name = dict(zip(network.names, arrays, strict=True))
        for group in layers | {"actor", "critic"}:
            belonging = {name: x for name, x in by_name.items() if name.startswith(group)}
            expected[f"{quantity}/{group}"] = norm(belonging.values())
    assert {name for name in figures if not name.startswith(("histogram/", "saturation/"))} == expected.keys()
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value, rel=1e-5), name
        assert value > 0
    both = norm([figures["gradient_norm/actor"], figures["gradient_norm/critic"]])
    assert metrics["gradient_norm"] == pytest.approx(both, rel=1e-5)


def test_what_actor_and_critic_share_counts_for_neither():
    algorithm, state, rollout = ppo_case(network=ludus.GRU(memory_size=4, hidden_sizes=(5,), shared=True))
    figures, metrics, _ = figures_of(algorithm, state, rollout, cases.update)
    whole = norm(figures[f"gradient_norm/{network}"] for network in ("actor", "critic", "shared"))
    assert metrics["gradient_norm"] == pytest.approx(whole, rel=1e-5)
    shared = norm(figures[f"gradient_norm/{layer}"] for layer in ("from_input", "from_memory"))
    assert figures["gradient_norm/shared"] == pytest.approx(shared, rel=1e-5)


def test_the_gradient_is_that_of_the_last_step_before_clipping():
    one, state, rollout = ppo_case(max_grad_norm=1e-3)
    _, metrics, _ = figures_of(one, state, rollout, cases.update)
    assert norm([metrics["gradient"]]) == pytest.approx(float(metrics["gradient_norm"]), rel=1e-5)
    assert metrics["gradient_norm"] > 1e-2
    two = dataclasses.replace(one, epochs_per_update=2)
    _, after_two, _ = figures_of(two, state, rollout, cases.update)
    mean = float(after_two["gradient_norm"])
    first = float(metrics["gradient_norm"])  # one minibatch holds all rows, so the first epoch is the one before
    assert norm([after_two["gradient"]]) == pytest.approx(2 * mean - first, rel=1e-4)


def test_a_step_that_target_kl_forbids_leaves_the_gradient_of_the_one_before():
    algorithm, state, rollout = ppo_case(epochs_per_update=3, target_kl=1e-9)
    once = dataclasses.replace(algorithm, epochs_per_update=1, target_kl=None)
    rollout = rollout._replace(
        steps=rollout.steps._replace(extras=rollout.steps.extras | {"log_prob": own_log_prob(once, state, rollout)})
    )
    _, stopped, _ = figures_of(algorithm, state, rollout, cases.update)
    _, first, _ = figures_of(once, state, rollout, cases.update)
    assert stopped["updates"] == 1
    np.testing.assert_allclose(stopped["gradient"], first["gradient"], rtol=1e-5, atol=1e-7)


def own_log_prob(algorithm, state, rollout):
    distribution = algorithm.distribution(algorithm.policy(state), (), rollout.steps.obs)[1]
    return distribution.log_prob(rollout.steps.extras["sample"])


@pytest.mark.requirement("S4.17", "S4.21")
@pytest.mark.parametrize("automatic", [True, False])
def test_norms_of_sac_are_those_of_each_layer_of_actor_and_critics_and_of_the_temperature(automatic):
    algorithm = sac_cases.small_sac(automatic_alpha=automatic)
    rng = np.random.default_rng(0)
    state, rollout = sac_cases.random_state(algorithm, rng), sac_cases.random_rollout(rng)
    figures, _, new = figures_of(algorithm, state, rollout, sac_cases.update)
    parameters, optimizers, before = new.learner.parameters, new.learner.optimizers, state.learner.parameters
    assert norm(parameters.critics) == pytest.approx(figures["parameter_norm/critics"], rel=1e-5)
    assert norm(optimizers.critics.nu) == pytest.approx(figures["adam_second_moment_norm/critics"], rel=1e-5)
    changes = [a - b for a, b in zip(parameters.actor, before.actor, strict=True)]
    assert norm(changes) == pytest.approx(figures["update_norm/actor"], rel=1e-4)
    head = [x for name, x in zip(new.networks.critic.names, parameters.critics, strict=True) if name.startswith("head")]
    assert norm(head) == pytest.approx(figures["parameter_norm/critics/head"], rel=1e-5)
    assert {name for name in figures if name.startswith("gradient_norm/actor/")} == {
        f"gradient_norm/actor/{layer}" for layer in ("mean", "log_std", "torso/layers/0", "torso/layers/1")
    }
    assert ("update_norm/alpha" in figures) == automatic
    if automatic:
        assert figures["parameter_norm/alpha"] == pytest.approx(abs(float(parameters.log_alpha)), rel=1e-5)


def test_sac_without_a_gradient_step_has_no_gradient_to_speak_of():
    algorithm = sac_cases.small_sac(learning_starts=1000)
    rng = np.random.default_rng(0)
    state = algorithm.init(KEY, sac_cases.SPEC)
    figures, metrics, _ = figures_of(algorithm, state, sac_cases.random_rollout(rng), sac_cases.update)
    assert metrics["updates"] == 0
    assert np.isnan(figures["gradient_norm/actor"]) and np.isnan(figures["histogram/gradient"]).any()
    assert figures["update_norm/actor"] == 0


@pytest.mark.parametrize(
    ("optimizer", "held"),
    [
        (optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), {"first", "second"}),
        (optax.adam(1e-3, mu_dtype=jnp.bfloat16), {"first", "second"}),
        (optax.lion(1e-3), {"first"}),
        (optax.rmsprop(1e-3), {"second"}),
        (optax.sgd(1e-2), set()),
        (optax.chain(optax.scale_by_adam(), optax.adam(1e-3)), set()),
    ],
    ids=["chain", "half", "lion", "rmsprop", "sgd", "two"],
)
@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_moments_of_a_users_own_optimiser_are_reported_if_it_has_them(optimizer, held, kind):
    algorithm = cases.small_ppo(optimizer=optimizer) if kind == "ppo" else sac_cases.small_sac(optimizer=optimizer)
    spec = cases.DISCRETE if kind == "ppo" else sac_cases.SPEC
    state = algorithm.init(KEY, spec)
    optimizers = state.optimizer if kind == "ppo" else state.learner.optimizers
    arrays = state.parameters if kind == "ppo" else jax.tree.leaves(state.learner.parameters)
    found = diagnostics.moments(optimizers, arrays)
    assert set(found) == {f"adam_{which}_moment_norm" for which in held}
    assert all(len(vector) == sum(x.size for x in arrays) for vector in found.values())


def test_long_vectors_are_summed_block_by_block(monkeypatch):
    monkeypatch.setattr(diagnostics, "BLOCK", 7)
    rows = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    got = diagnostics._sums(jnp.asarray(rows), np.asarray([5, 1, 20, 14]))
    np.testing.assert_allclose(got, np.add.reduceat(rows, [0, 5, 6, 26], axis=1), rtol=1e-5, atol=1e-5)


# Histograms


def counted(vector) -> tuple[float, float, list[int]]:
    low, high, *counts = np.asarray(vector).tolist()
    return low, high, [int(count) for count in counts]


def test_the_gradients_histogram_counts_every_entry_once_between_least_and_greatest():
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    (vector,) = jax.jit(diagnostics.gradient_histogram)(jnp.asarray(values)).columns().values()
    low, high, counts = counted(vector)
    expected, edges = np.histogram(values.astype(np.float64), bins=32)
    assert (low, high) == (edges[0], edges[-1])
    assert sum(counts) == 5000
    assert np.abs(np.asarray(counts) - expected).max() <= 2  # an entry on the edge of two bins may fall into either
    (vector,) = jax.jit(diagnostics.gradient_histogram)(jnp.full(9, 2.5)).columns().values()
    assert counted(vector) == (2.5, 2.5, [9] + [0] * 31)


SPACES = {
    "discrete": (Discrete(3, start=-1), np.int32([[-1, 0], [1, 1], [1, 1]]), [(-1, 2, [1, 1, 4])]),
    "many values": (Discrete(64), np.int32([[0, 1], [63, 2]]), [(0, 64, [2, 1] + [0] * 29 + [1])]),
    "multi-discrete": (
        MultiDiscrete((2, 3), start=(0, 5)), np.int32([[[0, 5], [1, 7]]]), [(0, 2, [1, 1]), (5, 8, [1, 0, 1])]
    ),
    "multi-binary": (MultiBinary(1), np.int32([[[0], [1], [1]]]), [(0, 2, [1, 2])]),
    "box": (Box(-1.0, 1.0, (1,)), np.float32([[[-1.0], [1.0], [0.99]]]), [(-1, 1, [1] + [0] * 30 + [2])]),
    "unbounded": (
        Box(-np.inf, np.inf, (1,)),
        np.float32([[[-4.0], [4.0], [0.1]]]),
        [(-4, 4, [1] + [0] * 15 + [1] + [0] * 14 + [1])],
    ),
    "dict": (
        Dict({"arm": Box(0.0, 1.0, (1,)), "leg": Discrete(2)}),
        {"arm": np.float32([[[0.0]]]), "leg": np.int32([[1]])},
        [(0, 1, [1] + [0] * 31), (0, 2, [0, 1])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPACES)
def test_actions_are_counted_component_by_component(name):
    space, action, expected = SPACES[name]
    got = jax.jit(diagnostics.action_histograms, static_argnums=0)(space, action, None).columns()
    assert [counted(vector) for vector in got.values()] == expected
    several = [f"histogram/action/{i}" for i in range(len(expected))]
    assert list(got) == (several if len(expected) > 1 else ["histogram/action"])


def test_padding_is_not_counted_and_no_more_than_eight_components_are():
    action = np.random.default_rng(0).normal(size=(5, 2, 11)).astype(np.float32)
    valid = np.ones((5, 2), bool)
    action[3:], valid[3:] = 1e6, False
    count = jax.jit(diagnostics.action_histograms, static_argnums=0)
    figures = count(Box(-np.inf, np.inf, (11,)), action, valid)
    got = [counted(vector) for vector in figures.columns().values()]
    assert len(got) == 8
    assert all(sum(counts) == 6 and high < 10 for _, high, counts in got)


# In a run


def trained(tmp_path, name, env="jax:CartPole-v1", algorithm=None, total_steps=448, num_envs=4, **options):
    run = None if name is None else tmp_path / name
    env = ludus.make_env(env, num_envs=num_envs)
    trainer = ludus.Trainer(
        algorithm or ludus.PPO(**TINY), env, ludus.Settings(eval_frequency=0, verbose=False, **options), run_dir=run
    )
    trainer.final_episodes = 0
    trainer.train(total_steps=total_steps)
    rows = [] if run is None else [row for row in read_journal(run) if row["kind"] == "train"]
    return trainer, rows


def healthy_rows(rows: list[dict]) -> list[int]:
    return [row["iteration"] for row in rows if any("_norm/" in name or "histogram/" in name for name in row)]


@pytest.mark.requirement("S4.17", "S4.18")
@pytest.mark.parametrize("env", ["jax:CartPole-v1", "gym:CartPole-v1"])
def test_every_so_many_rows_have_figures_of_health_and_training_is_the_same_without(tmp_path, env):
    watched, rows = trained(tmp_path, "watched", env, health_frequency=3)
    assert healthy_rows(rows) == [1, 2, 3, 6]
    histogram = rows[2]["histogram/action"]
    assert histogram["low"] == 0 and histogram["high"] == 2 and sum(histogram["counts"]) == 64
    assert rows[2]["update_norm/actor_head/layer"] > 0
    assert sum(rows[5]["histogram/gradient"]["counts"]) == watched.state.learner.network.size
    alone, rows = trained(tmp_path, "alone", env, health_frequency=0)
    assert healthy_rows(rows) == []
    for a, b in zip(jax.tree.leaves(watched.state), jax.tree.leaves(alone.state), strict=True):
        assert np.array_equal(a, b), "bit by bit"


@pytest.mark.requirement("S4.21")
def test_a_run_shorter_than_the_frequency_has_figures_too(tmp_path):
    _, rows = trained(tmp_path, "short")
    assert len(rows) == 7 and healthy_rows(rows) == [1, 2, 4]
    drawn = {figure.key: figure for figure in make_report([tmp_path / "short"]).figures}
    assert {"gradient_flow", "optimiser", "gradients", "actions"} <= drawn.keys()
    assert drawn["gradient_flow"].panels[0].traces
    due = [n for n in range(1, 41) if diagnostics.is_due(np.int32(n), np.int32(10))]
    assert due == [1, 2, 4, 8, 10, 20, 30, 40]


@pytest.mark.parametrize("env", ["jax:Pendulum-v1", "gym:Pendulum-v1"])
def test_sac_learns_the_same_bits_with_and_without_figures_of_health(tmp_path, env):
    sac = ludus.SAC(
        learning_starts=64, batch_size=32, replay_size=1024, unroll_length=8, network=ludus.MLP((32, 32), "relu")
    )
    states = [trained(tmp_path, None, env, sac, health_frequency=every)[0].state for every in (0, 1)]
    for a, b in zip(*map(jax.tree.leaves, states), strict=True):
        assert np.array_equal(a, b), "bit by bit"


def test_without_health_nothing_of_it_is_compiled(tmp_path):
    texts = []
    for frequency in (0, 5):  # eight environments: no other test has compiled this loop
        trainer, _ = trained(tmp_path, None, num_envs=8, total_steps=64, health_frequency=frequency)
        texts = [program.as_text() for program, _ in trainer.loop.repeat.programs.values()]
        assert len(texts) == 1 + bool(frequency)
    without, watched = texts
    assert "conditional" in watched and "conditional" not in without
    carried = f"f32[{trainer.state.learner.network.size}]"
    most = [max(line.count(carried) for line in text.splitlines() if " while(" in line) for text in texts]
    assert most[1] == most[0] + 1, "the gradient goes round the loop of minibatches only if somebody looks at it"


def test_figures_are_due_by_the_runs_own_count_whatever_the_calls(tmp_path):
    trainer, _ = trained(tmp_path, "run", total_steps=128, health_frequency=3)
    trainer.train(total_steps=448)
    assert healthy_rows([row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]) == [1, 2, 3, 6]
    resumed = ludus.Trainer.resume(tmp_path / "run", total_steps=640, verbose=False, health_frequency=4)
    resumed.final_episodes = 0
    resumed.train()
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert healthy_rows(rows) == [1, 2, 3, 6, 8]
    assert all(isinstance(value, int | float) for value in resumed.record.latest.values())


def test_sac_in_a_run(tmp_path):
    sac = ludus.SAC(learning_starts=96, batch_size=8, replay_size=512, unroll_length=16, network=ludus.MLP((8,)))
    watched, rows = trained(tmp_path, "run", "Pendulum-v1", sac, total_steps=256, health_frequency=1)
    assert "gradient_norm/critics" not in rows[0] and rows[0]["parameter_norm/critics"] > 0, "it is warming up"
    assert rows[-1]["gradient_norm/alpha"] > 0
    assert sum(rows[0]["histogram/action"]["counts"]) == 64
    alone, _ = trained(tmp_path, "alone", "Pendulum-v1", sac, total_steps=256, health_frequency=0)
    for a, b in zip(jax.tree.leaves(watched.state.learner), jax.tree.leaves(alone.state.learner), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [-1, 2.5, True])
def test_a_frequency_that_makes_no_sense_is_refused(value):
    with pytest.raises(ludus.LudusError, match="health_frequency"):
        ludus.Trainer(
            ludus.PPO(**TINY), ludus.make_env("CartPole-v1", num_envs=4), ludus.Settings(health_frequency=value)
        )
