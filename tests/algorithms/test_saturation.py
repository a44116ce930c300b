"""Saturated layers are seen: the figure against NumPy, and one warning where it lasts, none where all is well."""

import dataclasses

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import sac_cases

import ludus
from ludus.algorithms.saturation import STEPS, ppo_saturation, sac_saturation
from ludus.runs.health_watch import LOOKS, HealthWatch
from ludus.runs.journal import read_journal

pytestmark = pytest.mark.slow


def shares(vector) -> dict[str, float]:
    return {name: float(value) for name, value in vector.scalars().items()}


def louder(state, factor: float):
    """A state whose weights are so many times as large."""
    return dataclasses.replace(state, parameters=tuple(factor * leaf for leaf in state.parameters))


def ppo_case(**changes):
    ppo = cases.small_ppo(**changes)
    state = cases.random_state(ppo, cases.DISCRETE, np.random.default_rng(0))
    return louder(state, 3.0), cases.random_rollout(state, np.random.default_rng(1), steps=STEPS + 4)


def beyond(activations, valid=None) -> float:
    beyond = np.abs(activations) > 0.99
    return float(beyond.mean() if valid is None else beyond[valid].mean())


@pytest.mark.parametrize("changes", [{}, {"normalize_observations": True}, {"network": ludus.GRU(4, (5,))}])
def test_shares_are_those_of_the_first_steps_of_a_rollout(changes):
    state, rollout = ppo_case(**changes)
    got = shares(jax.jit(ppo_saturation)(state, state, rollout))
    model, theta = oracles.Model(state.network), oracles.flat(state.parameters)
    p, steps = model.by_name(theta), rollout.steps
    obs, ended = steps.obs[:STEPS].astype(np.float64), (steps.terminated | steps.truncated)[:STEPS]
    if state.observations is not None:
        stats = oracles.Statistics.of(state.observations)
        obs = np.clip((obs - stats.mean) / stats.deviation, -10, 10)
    expected = {}
    for part, memory in (("actor", rollout.memory), ("critic", state.critic_memory)):
        features = obs
        if model.has_memory:
            features, _ = model.through_time(theta, np.asarray(memory, np.float64), obs, ended, part)
            expected[f"saturation/{part}_memory"] = beyond(features)
        hidden = np.tanh(features @ p[f"{part}_torso/layers/0/kernel"] + p[f"{part}_torso/layers/0/bias"])
        expected[f"saturation/{part}_torso/layers/0"] = beyond(hidden)
    assert got == pytest.approx(expected, abs=1e-6)
    assert any(0.01 < share < 0.99 for share in got.values())


def test_padding_is_not_looked_at():
    state, rollout = ppo_case()
    valid = np.random.default_rng(2).random(rollout.steps.reward.shape) < 0.6
    littered = jax.tree.map(np.array, rollout.steps)._replace(valid=valid)
    littered.obs[~valid] = np.nan
    got = shares(jax.jit(ppo_saturation)(state, state, rollout._replace(steps=littered)))
    p = oracles.Model(state.network).by_name(oracles.flat(state.parameters))
    obs = np.where(valid[..., None], rollout.steps.obs, 0.0)[:STEPS]
    hidden = np.tanh(obs @ p["actor_torso/layers/0/kernel"] + p["actor_torso/layers/0/bias"])
    assert got["saturation/actor_torso/layers/0"] == pytest.approx(beyond(hidden, valid[:STEPS]), abs=1e-6)


@pytest.mark.parametrize("network", [ludus.MLP((5,), "tanh"), ludus.MLP((5,), "relu"), ludus.GRU(4, (5,))])
def test_of_sac_both_critics_count_alike(network):
    sac = sac_cases.small_sac(network=network, segment_length=4, burn_in=3, replay_size=90)
    state, rollout = sac.init(jax.random.key(0), sac_cases.SPEC), sac_cases.random_rollout(np.random.default_rng(0))
    names, own = state.networks.critic.names, np.random.default_rng(1)
    critics = tuple(
        leaf + own.normal(scale=2.0, size=leaf.shape).astype(np.float32) for leaf in state.learner.parameters.critics
    )
    parameters = state.learner.parameters._replace(critics=critics)
    state = dataclasses.replace(state, learner=state.learner._replace(parameters=parameters))
    got = shares(jax.jit(sac_saturation)(state, rollout))
    if network.activation == "relu":
        assert got == {}, "whose units have no end to be at"
        return
    steps, both, remembered = rollout.steps, [], []
    for i in range(2):
        p = {name: np.asarray(leaf, np.float64)[i] for name, leaf in zip(names, critics, strict=True)}
        x, memory, rows = steps.obs.astype(np.float64), np.zeros((3, 4)), []
        if state.networks.has_memory:
            for obs, ended in zip(x, steps.terminated | steps.truncated, strict=True):
                memory = oracles.gru(p, memory, obs)
                rows.append(memory)
                memory = np.where(ended[:, None], 0.0, memory)
            x = np.stack(rows)
            remembered.append(beyond(x))
        inputs = np.concatenate([x, steps.extras["unit_action"]], axis=-1)
        both.append(beyond(np.tanh(inputs @ p["torso/layers/0/kernel"] + p["torso/layers/0/bias"])))
    assert got["saturation/critics/torso/layers/0"] == pytest.approx(np.mean(both), abs=1e-6)
    assert both[0] != both[1] and ("saturation/actor/memory" in got) == state.networks.has_memory
    if remembered:
        assert got["saturation/critics/memory"] == pytest.approx(np.mean(remembered), abs=1e-6)


# The warning


def trained(tmp_path, plant=None, network: ludus.MLP | ludus.GRU = ludus.MLP((8, 8)), iterations=5):  # noqa: B008
    """Train for a few iterations with something planted; the lines of the log that warn, and the journal's rows."""
    ppo = ludus.PPO(network=network, batch_size=64, minibatch_size=32, epochs_per_update=1)
    settings = ludus.Settings(
        verbose=False, eval_frequency=0, eval_episodes_final=0, record_behaviour=False, health_frequency=1
    )
    trainer = ludus.Trainer(ppo, ludus.make_env("CartPole-v1", num_envs=4), settings, run_dir=tmp_path / "run")
    if plant is not None:
        learner = trainer.learner
        named = zip(learner.network.names, learner.parameters, strict=True)
        trainer.learner = dataclasses.replace(learner, parameters=tuple(plant(name, leaf) for name, leaf in named))
    trainer.train(total_steps=64 * iterations)
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    return [line for line in lines if "warning" in line], read_journal(tmp_path / "run")


def dead_units(name, leaf):
    return leaf - 1e3 if name == "critic_torso/layers/0/bias" else leaf


def test_a_memory_that_was_driven_to_its_ends_is_warned_of_once(tmp_path):
    """The candidate is 1 whatever is seen, and so is the memory, after a few steps."""

    def plant(name, leaf):
        if name != "actor_memory/from_input/bias":
            return leaf
        return jnp.asarray(np.repeat([0.0, -30.0, 30.0], 8).astype(np.float32))  # nothing is kept; all is new, and 1

    lines, rows = trained(tmp_path, plant, ludus.GRU(8, (8,)), iterations=8)
    assert [row["saturation/actor_memory"] for row in rows] == [1.0] * 8
    assert len(lines) == 1 and "100% of the activations of actor_memory are saturated" in lines[0]
    assert rows[-1]["saturation/critic_memory"] < 0.5


@pytest.mark.parametrize("network", [ludus.MLP((8, 8)), ludus.GRU(8, (8,)), ludus.MLP((8, 8), "relu")])
def test_an_honest_network_is_not_spoken_of(tmp_path, network):
    lines, rows = trained(tmp_path, network=network)
    assert lines == []
    assert all(share < 0.5 for row in rows for name, share in row.items() if name.startswith("saturation/"))


def test_units_that_are_all_off_are_warned_of_by_their_gradient(tmp_path):
    lines, rows = trained(tmp_path, dead_units, ludus.MLP((8, 8), "relu"))
    assert rows[-1]["gradient_norm/critic_torso/layers/0"] == 0.0 < rows[-1]["gradient_norm/critic"]
    assert len(lines) == 1 and "the gradient of critic_torso/layers/0 is 0" in lines[0]


def test_it_is_said_after_several_looks_in_a_row_and_only_once():
    good, bad = ({"gradient_norm/actor": 1.0, "saturation/actor_memory": share} for share in (0.85, 0.95))
    watch = HealthWatch()
    said = [watch.saw(row) for row in (bad, bad, good, {"steps": 1}, bad, {"steps": 2}, bad, bad, bad)]
    assert [text is not None for text in said] == [False] * 7 + [True, False] and LOOKS == 3
    assert said[7].startswith("warning: 95% of the activations of actor_memory are saturated (beyond ±0.99) in 3 rows")
    assert "\n" not in said[7]


@pytest.mark.parametrize(
    ("row", "is_still"),
    [
        ({"gradient_norm/actor": 0.0, "gradient_norm/actor_torso/layers/0": 0.0}, False),  # nothing to learn, this once
        ({"gradient_norm/actor": 1.0, "gradient_norm/actor_torso/layers/0": 0.0}, True),
        ({"gradient_norm/critics": 1.0, "gradient_norm/critics/torso/layers/0": 0.0}, True),
        ({"gradient_norm/actor": 1.0, "gradient_norm/shared": 1.0, "gradient_norm/from_input": 0.0}, True),
        ({"gradient_norm/actor": 1.0, "gradient_norm/critic": 0.0, "gradient_norm/critic_head": 0.0}, False),
        ({"gradient_norm/alpha": 0.0, "gradient_norm/actor": 1.0}, False),
    ],
)
def test_a_gradient_of_zero_counts_where_others_of_the_network_have_one(row, is_still):
    watch = HealthWatch()
    assert [watch.saw(row) is not None for _ in range(LOOKS)] == [False, False, is_still]
