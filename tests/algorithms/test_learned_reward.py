"""Rewards that are learnt: their losses against NumPy in float64, what they are learnt from, and what they pay."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CONTINUOUS, DISCRETE, NUM_ENVS, random_rollout, random_state, small_ppo

import ludus
from ludus.algorithms.base import Algorithm, Update
from ludus.algorithms.finite_checks import FAULTS
from ludus.algorithms.hyperparameters import as_arrays, at, scheduled
from ludus.algorithms.labelled import Round, ask, drawn, nothing_asked
from ludus.algorithms.losses import bradley_terry, discrimination
from ludus.algorithms.offline_reward import evaluate_reward, fit_preferences
from ludus.algorithms.reward_alarm import signs, trend
from ludus.algorithms.reward_judgement import calibration_error
from ludus.algorithms.reward_model import load_reward_model, save_reward_model
from ludus.algorithms.segments import Pool, Segments, draw_segments, put_in, segments_of
from ludus.runtime.demonstrations import from_arrays
from ludus.runtime.preference_file import Preferences
from ludus.spaces import Box
from ludus.types import LudusError, Rollout, Spec, Transition

KEY = jax.random.key(0)
SMALL = {"network": ludus.MLP((8,)), "segment_length": 4, "pool_size": 16, "fit_steps": 5, "batch_size": 8}
LABELS = SMALL | {"labels": 40, "queries": 8, "held_out": 4}
SPACES = Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (2,))


# Losses


def softplus(x):
    return np.logaddexp(0.0, np.float64(x))


def test_bradley_terry_and_discrimination_equal_float64():
    rng = np.random.default_rng(0)
    apart = np.concatenate([rng.normal(size=200) * 5, [0.0, 80.0, -80.0]]).astype(np.float32)
    label = rng.choice([0.0, 0.5, 1.0], size=len(apart)).astype(np.float32)
    plain = label * softplus(-apart) + (1 - label) * softplus(apart)
    np.testing.assert_allclose(bradley_terry(apart, label), plain, rtol=1e-5, atol=1e-6)
    first = 0.9 / (1 + np.exp(-np.float64(apart))) + 0.05
    mixed = -(label * np.log(first) + (1 - label) * np.log(1 - first))
    np.testing.assert_allclose(bradley_terry(apart, label, 0.1), mixed, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bradley_terry(apart, label, 0.0), plain, rtol=1e-5, atol=1e-6)
    slopes = jax.vmap(jax.grad(lambda x, y: bradley_terry(x, y, 0.0)))(apart, label)
    np.testing.assert_allclose(slopes, 1 / (1 + np.exp(-np.float64(apart))) - label, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(discrimination(apart, 1.0), softplus(-apart), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(discrimination(apart, 0.0), softplus(apart), rtol=1e-5, atol=1e-6)


def test_the_calibration_error_is_that_of_the_definition():
    rng = np.random.default_rng(1)
    predicted, weight = rng.random(500).astype(np.float32), (rng.random(500) < 0.8).astype(np.float32)
    label = (rng.random(500) < predicted**2).astype(np.float32)
    expected = 0.0
    for low in np.arange(10) / 10:
        rows = (weight > 0) & (predicted >= low) & (predicted < low + 0.1)
        expected += abs((predicted[rows].astype(np.float64) - label[rows]).sum())
    assert float(calibration_error(predicted, label, weight)) == pytest.approx(expected / weight.sum(), rel=1e-4)
    assert np.isnan(calibration_error(predicted, label, np.zeros_like(weight)))


# Segments


def rollout_of(num_steps, num_envs, rng, padded=False) -> Transition:
    """Observations are numbered: environment, step."""
    number = np.arange(num_steps * num_envs, dtype=np.float32).reshape(num_steps, num_envs)
    ended = rng.random((num_steps, num_envs)) < 0.15
    cut = rng.random((num_steps, num_envs)) < 0.1
    after = np.concatenate([number[1:], number[:1] + 1000])
    after = np.where(ended | cut, -number - 1, after)[..., None].astype(np.float32)
    valid = rng.random((num_steps, num_envs)) < 0.9 if padded else None
    action, reward = rng.normal(size=(2, num_steps, num_envs)).astype(np.float32)
    return Transition(number[..., None], action[..., None], reward, ended, cut, after, {}, valid)


@pytest.mark.parametrize("padded", [False, True])
def test_segments_are_pieces_of_single_episodes_and_every_such_piece_can_be_drawn(padded):
    rng = np.random.default_rng(2)
    steps, length = rollout_of(30, 5, rng, padded), 4
    pieces = {}
    for t in range(30 - length + 1):
        for b in range(5):
            rows = slice(t, t + length)
            over = (steps.terminated | steps.truncated)[rows, b]
            if not over[:-1].any() and (steps.valid is None or steps.valid[rows, b].all()):
                pieces[float(steps.obs[t, b, 0])] = t, b
    made, is_there = draw_segments(steps, KEY, 200, length)
    found = np.asarray(made.obs)[np.asarray(is_there), :, 0]
    assert sorted(found[:, 0].tolist()) == sorted(pieces) and 0 < len(pieces) < 150
    for i, begin in enumerate(found[:, 0].tolist()):
        t, b = pieces[begin]
        np.testing.assert_array_equal(found[i, :-1], steps.obs[t : t + length, b, 0])
        assert found[i, -1] == steps.next_obs[t + length - 1, b, 0]
        np.testing.assert_array_equal(made.reward[i], steps.reward[t : t + length, b])
        np.testing.assert_array_equal(made.action[i], steps.action[t : t + length, b])
        assert made.terminated[i] == steps.terminated[t + length - 1, b]


def numbered(values) -> Segments:
    values = np.asarray(values, np.float32)
    row = np.broadcast_to(values[:, None], (len(values), 2))
    return Segments(np.zeros((len(values), 3, 1), np.float32), row[..., None], row, np.zeros(len(values), bool))


def test_a_pool_keeps_the_newest_and_knows_how_old_they_are():
    pool = Pool(jax.tree.map(jnp.asarray, numbered(np.zeros(8))), jnp.int32(0))
    there = np.array([True] * 3 + [False])
    for first in (1, 4, 7):  # until it is full, all that is there is put in
        pool = put_in(pool, numbered(np.arange(first, first + 4)), there)
    assert int(pool.total) == 9
    np.testing.assert_array_equal(pool.segments.reward[:, 0], [9, 2, 3, 4, 5, 6, 7, 8])
    is_filled, order = pool.order()
    np.testing.assert_array_equal(np.asarray(pool.segments.reward[:, 0])[np.argsort(order)], np.arange(2, 10))
    assert is_filled.all()
    later = put_in(pool, numbered([20, 21, 22, 23]), np.array([False, True, True, True]))
    held = set(np.asarray(later.segments.reward).ravel().tolist())
    assert int(later.total) == 10 and 21 in held and 22 not in held
    newest = np.asarray(later.segments.reward)[np.asarray(later.drawn(KEY, (200,), 2)), 0]
    assert set(newest.tolist()) == {9.0, 21.0}


def test_demonstrations_are_cut_into_segments_to_their_last_step():
    rng = np.random.default_rng(3)
    obs, action = rng.uniform(-1, 1, (12, 3)).astype(np.float32), rng.uniform(-1, 1, (12, 2)).astype(np.float32)
    ended = np.zeros(12, bool)
    ended[[1, 11]] = True
    made = segments_of(from_arrays(*SPACES, obs, action, terminated=ended, final_obs=obs[:2] * 0.5), 4)
    np.testing.assert_array_equal(made.action, [action[2:6], action[6:10], action[8:12]])
    np.testing.assert_array_equal(made.obs[2], [*obs[8:12], obs[1] * 0.5])
    np.testing.assert_array_equal(made.terminated, [False, False, True])
    with pytest.raises(LudusError, match=r"^demonstrations: no episode has 11 steps.*the longest has 10$"):
        segments_of(from_arrays(*SPACES, obs, action, terminated=ended, final_obs=obs[:2]), 11)


# Labels


def test_questions_are_asked_when_due_where_members_disagree_and_by_chance_where_they_are_held_out():
    spec = Spec(Box(-1.0, 1.0, (1,)), Box(-1.0, 1.0, (1,)), 1)
    data = nothing_asked(10, 2, 2, spec)
    pool = Pool(jax.tree.map(jnp.asarray, numbered(np.arange(32))), jnp.int32(32))

    def disputed(slots):
        return jnp.abs(slots[:, 0] - slots[:, 1]).astype(jnp.float32)

    def answer(slots, key):
        return (slots[:, 0] > slots[:, 1]).astype(jnp.float32), jnp.ones(len(slots), bool)

    terms = Round(jnp.int32(6), 2, 4, 16, 5)
    for asked in (4, 6, 6):
        data = ask(data, pool, terms, disputed, answer, jax.random.fold_in(KEY, asked))
        assert int(data.asked) == int(data.is_answered.sum()) == asked
    first, second = np.asarray(data.segments.reward[:6, :, 0]).T
    np.testing.assert_array_equal(data.label[:6], first > second)
    apart = np.abs(first - second)
    assert apart[[0, 1, 2, 3, 5]].min() > 20  # of 64 candidates the most disputed
    assert (first != second).all()
    np.testing.assert_array_equal(data.weights(5), [1, 1, 1, 1, 0, 1, 0, 0, 0, 0])
    rows = np.asarray(drawn(data.weights(5), KEY, (1000,)))
    assert set(rows.tolist()) == {0, 1, 2, 3, 5}
    full = data
    for i in range(3):
        full = ask(full, pool, terms._replace(due=jnp.int32(99)), disputed, answer, jax.random.fold_in(KEY, i))
    assert int(full.asked) == 10  # the budget


def test_a_synthetic_labeller_has_the_faults_that_it_is_given():
    returns = np.stack([np.linspace(-2, 2, 4000), np.zeros(4000)], axis=1).astype(np.float32)
    sure, answered = ludus.PreferenceReward().answer(returns, KEY)
    np.testing.assert_array_equal(sure, np.heaviside(returns[:, 0], 0.5))
    assert answered.all() and float(ludus.PreferenceReward().answer(np.zeros((1, 2), np.float32), KEY)[0][0]) == 0.5
    wrong = ludus.PreferenceReward(label_error=0.25).answer(returns, KEY)[0]
    assert (wrong != sure).mean() == pytest.approx(0.25, abs=0.03)
    warm = np.asarray(ludus.PreferenceReward(label_temperature=0.5).answer(returns, KEY)[0])
    near = np.abs(returns[:, 0]) < 0.2
    assert warm[returns[:, 0] > 1.5].mean() > 0.9 and 0.3 < warm[near].mean() < 0.7
    assert not ludus.PreferenceReward(labeller="file").answer(returns, KEY)[1].any()


# Fitting


def judged_pairs(count, seed, length=6, reward=lambda obs, action, after: obs[..., 0] - 2 * np.abs(action[..., 1])):
    """Segments of chance, and preferences by a reward that is not linear."""
    rng = np.random.default_rng(seed)
    obs, action = (rng.uniform(-1, 1, (count * length, size)).astype(np.float32) for size in (3, 2))
    final, ended = rng.uniform(-1, 1, (count, 3)).astype(np.float32), np.arange(count * length) % length == length - 1
    demos = from_arrays(*SPACES, obs, action, truncated=ended, final_obs=final)
    paid = reward(demos.obs, demos.action, demos.next_obs).astype(np.float32)
    demos = dataclasses.replace(demos, reward=paid)
    first, second = rng.integers(0, count, (2, 1000))
    second = np.where(first == second, (second + 1) % count, second)
    return demos, Preferences(first, second, (demos.returns[first] > demos.returns[second]).astype(np.float32))


@pytest.mark.slow
@pytest.mark.requirement("S0.20")
def test_preferences_are_learnt_so_that_those_held_out_are_agreed_with(tmp_path):
    demos, preferences = judged_pairs(200, 4)
    source = ludus.PreferenceReward(network=ludus.MLP((32,)), fit_steps=1500, learning_rate=3e-3)
    model, figures = fit_preferences(source, demos, preferences)
    assert figures["reward_accuracy"] > 0.9 and figures["reward_calibration_error"] < 0.1
    others, theirs = judged_pairs(200, 5)
    fresh = evaluate_reward(model, others, theirs)
    assert fresh["accuracy"] > 0.9 and fresh["correlation"] > 0.95
    # What it pays has mean 0 and deviation 1 over the segments, for each member.
    said = np.asarray(model.state.normalized(model.state.of_segments(segments_of(demos, 6))))
    np.testing.assert_allclose(said.mean(axis=(1, 2)), 0.0, atol=1e-4)
    np.testing.assert_allclose(said.std(axis=(1, 2)), 1.0, atol=1e-3)
    # Its file holds all of it.
    save_reward_model(model, tmp_path / "model.safetensors")
    again = load_reward_model(tmp_path / "model.safetensors")
    step = demos.obs[0], demos.action[0], demos.next_obs[0]
    assert float(again(*step)) == float(model(*step)) == pytest.approx(said.mean(axis=0)[0, 0], abs=1e-5)
    assert again(demos.obs[:5], demos.action[:5], demos.next_obs[:5]).shape == (5,)


@pytest.mark.slow
@pytest.mark.parametrize("network", [ludus.GRU(8, (8,)), ludus.Transformer(8, 16, 1, 2, 16, (8,))], ids=["gru", "tf"])
def test_a_reward_of_what_went_before_is_learnt_with_a_memory_alone(network):
    """A step is worth something if the first observation of its segment was positive."""

    def reward(obs, action, after):
        starts = obs.reshape(-1, 6, 3)[:, :1, 0]
        return np.repeat(np.sign(starts), 6, axis=1).ravel() * obs[..., 1]

    demos, preferences = judged_pairs(200, 6, reward=reward)
    accuracy = {}
    for name, chosen in (("memory", network), ("none", ludus.MLP((16,)))):
        source = ludus.PreferenceReward(network=chosen, fit_steps=1000, learning_rate=5e-3, members=1)
        accuracy[name] = fit_preferences(source, demos, preferences)[1]["reward_accuracy"]
    assert accuracy["memory"] > max(0.85, accuracy["none"] + 0.08)


# The algorithm around an algorithm


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Witness(Algorithm):
    """Learns nothing, and keeps the rewards that it was paid."""

    def init(self, key: jax.Array, spec: Spec) -> Any:
        return jnp.zeros((8, NUM_ENVS))

    def policy(self, state: Any) -> Any:
        return state

    def act(self, policy: Any, memory: Any, obs: Any, noise: Any, mode: Any) -> Any:
        raise NotImplementedError

    def update(self, state: Any, rollout: Rollout, key: jax.Array) -> Update:
        return Update(rollout.steps.reward, {}, 0)

    def rollout_length(self, num_envs: int) -> int:
        return 8


def rollout_for(spec, seed=0, **changes) -> Rollout:
    ppo = small_ppo()
    rng = np.random.default_rng(seed)
    made = random_rollout(random_state(ppo, spec, rng), rng)
    return made._replace(steps=made.steps._replace(**changes))


def around(source, spec=CONTINUOUS, algorithm=None):
    algorithm = ludus.LearnedReward(Witness() if algorithm is None else algorithm, source)
    algorithm.validate(spec)
    return algorithm, algorithm.init(KEY, spec)


@jax.jit
def updated(algorithm, state, rollout, key):
    made = algorithm.update(state, rollout, key)
    return made.state, made.metrics, made.fault


def equal(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


class Model(NamedTuple):
    path: str
    model: Any


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Model:
    """A reward model in a file, for the spaces of `CONTINUOUS`."""
    algorithm, state = around(ludus.PreferenceReward(**LABELS))
    model = ludus.RewardModel(algorithm.reward, state.fitted.model, CONTINUOUS, "probe")
    scaled = dataclasses.replace(model.state, scale=jnp.full(3, 2.0), offset=jnp.arange(3.0))
    path = tmp_path_factory.mktemp("reward") / "model.safetensors"
    save_reward_model(dataclasses.replace(model, state=scaled), path)
    return Model(str(path), scaled)


@pytest.mark.requirement("S0.13")
def test_what_is_learnt_from_is_what_the_reward_model_says_of_every_step(given):
    algorithm, state = around(ludus.PreferenceReward(**LABELS, model=given.path))
    rollout = rollout_for(CONTINUOUS)
    made, figures, fault = updated(algorithm, state, rollout, KEY)
    said = []
    for leaves in zip(*(np.asarray(x) for x in given.model.parameters), strict=True):
        module = given.model.network.merge(leaves)
        seen = jnp.concatenate([rollout.steps.obs, rollout.steps.action, rollout.steps.next_obs], axis=-1)
        said.append(module.head(module.torso(seen))[..., 0])
    expected = np.mean([(np.asarray(x) - i) / 2.0 for i, x in enumerate(said)], axis=0)
    np.testing.assert_allclose(made.learner, expected, atol=1e-5)
    assert fault == 0 and float(figures["reward_disagreement"]) > 0
    # The same rollout is paid the same, whatever the key: nothing is left to chance, and nothing was learnt meanwhile.
    again, _, _ = updated(algorithm, state, rollout, jax.random.key(1))
    np.testing.assert_array_equal(again.learner, made.learner)
    assert equal(made.fitted, state.fitted)
    # Where members disagree, less is paid.
    wary = dataclasses.replace(algorithm, reward=dataclasses.replace(algorithm.reward, disagreement_coef=1.5))
    less, _, _ = updated(wary, state, rollout, KEY)
    apart = np.std([(np.asarray(x) - i) / 2.0 for i, x in enumerate(said)], axis=0)
    np.testing.assert_allclose(less.learner, expected - 1.5 * apart, atol=1e-5)


@pytest.mark.requirement("S0.13")
def test_a_constant_reward_model_gives_constant_rewards_whatever_the_environment_pays(given):
    algorithm, state = around(ludus.PreferenceReward(**LABELS, model=given.path))
    constant = [np.zeros_like(x) for x in state.fitted.model.parameters]
    names = state.fitted.model.network.names
    constant[names.index("head/bias")] += 5.0
    model = dataclasses.replace(state.fitted.model, parameters=tuple(constant))
    state = dataclasses.replace(state, fitted=state.fitted._replace(model=model))
    for seed in (0, 1):
        made, _, _ = updated(algorithm, state, rollout_for(CONTINUOUS, seed), KEY)
        np.testing.assert_allclose(made.learner, np.mean([(5.0 - i) / 2.0 for i in range(3)]), rtol=1e-6)


@pytest.mark.slow
def test_learning_a_policy_never_moves_the_reward_model(given):
    source = ludus.PreferenceReward(**LABELS, model=given.path)
    algorithm, state = around(source, algorithm=small_ppo())
    made, _, _ = updated(algorithm, state, rollout_for(CONTINUOUS), KEY)
    assert equal(made.fitted, state.fitted) and not equal(made.learner.parameters, state.learner.parameters)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
def test_a_model_that_is_learnt_changes_only_where_there_is_something_new(spec):
    source = ludus.PreferenceReward(**LABELS, first_labels=1.0)
    algorithm, state = around(source, spec)
    labels, seen = [], []
    for i in range(7):
        before = state
        state, figures, _ = updated(algorithm, state, rollout_for(spec, i), jax.random.fold_in(KEY, i))
        labels.append(int(figures["labels"]))
        seen.append(not equal(before.fitted, state.fitted))
        assert np.isfinite(float(figures["reward_loss"])) == seen[-1]
    assert labels[-2:] == [40, 40] and labels == sorted(labels) and seen[-1] is False and seen[0] is True
    assert float(state.pool.total) > 0 and np.isfinite(state.learner).all()


@pytest.mark.slow
@pytest.mark.requirement("S0.20")
def test_returns_are_learnt_so_that_rewards_add_up_to_them():
    source = ludus.RegressionReward(
        **(LABELS | {"labels": 200, "queries": 40, "fit_steps": 150, "pool_size": 64, "network": ludus.MLP((32,))}),
        first_labels=1.0, learning_rate=5e-3,
    )  # fmt: skip
    algorithm, state = around(source)
    for i in range(8):
        rollout = rollout_for(CONTINUOUS, i)
        paid = 3.0 * rollout.steps.obs[..., 0] + 7.0
        rollout = rollout._replace(steps=rollout.steps._replace(reward=paid.astype(np.float32)))
        state, figures, _ = updated(algorithm, state, rollout, jax.random.fold_in(KEY, i))
        told = float(figures["reward_explained_variance"])
    assert told > 0.9 or np.isnan(told)
    assert float(figures["reward_correlation"]) > 0.95
    np.testing.assert_allclose(state.learner.mean(), paid.mean(), atol=1.0)  # in units of the returns


def test_figures_of_returns_are_of_whole_episodes_across_rollouts(given):
    algorithm, state = around(ludus.PreferenceReward(**LABELS, model=given.path))
    sums, sums_true, ends, ends_true = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS), [], []
    for i in range(3):
        rollout = rollout_for(CONTINUOUS, i)
        state, figures, _ = updated(algorithm, state, rollout, KEY)
        ends, ends_true = [], []
        for t in range(8):
            sums, sums_true = sums + np.asarray(state.learner)[t], sums_true + rollout.steps.reward[t]
            over = np.asarray(rollout.steps.terminated | rollout.steps.truncated)[t]
            ends, ends_true = [*ends, *sums[over]], [*ends_true, *np.asarray(sums_true)[over]]
            sums, sums_true = np.where(over, 0, sums), np.where(over, 0, sums_true)
    assert ends and float(figures["learned_return"]) == pytest.approx(np.mean(ends), rel=1e-4)
    assert float(figures["true_return"]) == pytest.approx(np.mean(ends_true), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("source", [ludus.PreferenceReward(**LABELS), ludus.RegressionReward(**LABELS)], ids=["p", "r"])
def test_padding_changes_nothing(source):
    algorithm, state = around(source)
    valid = np.arange(8)[:, None] < np.array([8, 6, 5, 8])
    rollout = rollout_for(CONTINUOUS, valid=valid)

    def soiled(x):
        return np.where(valid.reshape(8, NUM_ENVS, *[1] * (x.ndim - 2)), x, np.asarray(77).astype(x.dtype))

    dirty = jax.tree.map(soiled, rollout.steps)._replace(valid=valid)
    pair = [updated(algorithm, state, rollout._replace(steps=x), KEY) for x in (rollout.steps, dirty)]
    (one, figures, _), (other, same, _) = pair
    assert equal(dataclasses.replace(one, learner=0), dataclasses.replace(other, learner=0))
    assert {k: float(v) for k, v in figures.items() if v == v} == {k: float(v) for k, v in same.items() if v == v}
    assert not np.asarray(one.learner)[~valid].any() and np.asarray(one.learner)[valid].any()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["obs", "reward"])
def test_a_number_that_is_none_leaves_everything_as_it_was(what):
    algorithm, state = around(ludus.PreferenceReward(**LABELS))
    rollout = rollout_for(CONTINUOUS)
    broken = np.array(getattr(rollout.steps, what))
    broken.ravel()[3] = np.nan
    made, _, fault = updated(algorithm, state, rollout._replace(steps=rollout.steps._replace(**{what: broken})), KEY)
    assert FAULTS[int(fault)] == {"obs": "observation"}.get(what, what)
    assert equal(made, state)


def test_a_memory_of_the_reward_goes_on_from_rollout_to_rollout_and_begins_anew_where_they_do():
    source = ludus.PreferenceReward(**(LABELS | {"network": ludus.GRU(4, (4,))}))
    algorithm, state = around(source)
    model = dataclasses.replace(state.fitted.model, scale=jnp.ones(3))
    state = dataclasses.replace(state, fitted=state.fitted._replace(model=model))
    halves = [rollout_for(CONTINUOUS, seed) for seed in (0, 1)]
    none = np.zeros((8, NUM_ENVS), bool)
    halves = [x._replace(steps=x.steps._replace(terminated=none, truncated=none)) for x in halves]
    whole = jax.tree.map(lambda *x: np.concatenate(x), *(x.steps for x in halves))
    judge = jax.jit(algorithm._judge)
    at_once = judge(state.fitted, state.memory, whole, False)
    first = judge(state.fitted, state.memory, halves[0].steps, False)
    second = judge(state.fitted, first.memory, halves[1].steps, False)
    np.testing.assert_allclose(at_once.reward, np.concatenate([first.reward, second.reward]), atol=1e-5)
    anew = judge(state.fitted, first.memory, halves[1].steps, True)
    np.testing.assert_allclose(anew.reward, judge(state.fitted, state.memory, halves[1].steps, False).reward, atol=1e-6)
    assert np.abs(anew.reward - second.reward).max() > 1e-4
    other = algorithm.with_envs(dataclasses.replace(state, memory=first.memory, learner=0), 6)
    assert jax.tree.leaves(other.memory)[0].shape[:2] == (3, 6) and other.paid.true.shape == (6,)


# Hyperparameters of parts


def test_the_hyperparameters_of_its_parts_follow_schedules_and_have_names():
    algorithm = ludus.LearnedReward(
        small_ppo(learning_rate="linear:1:0"), ludus.PreferenceReward(learning_rate="linear:2:1", **LABELS)
    )
    assert scheduled(algorithm) == ["learning_rate", "reward.learning_rate"]
    now = at(as_arrays(algorithm), np.float32(0.25))
    assert (float(now.algorithm.learning_rate), float(now.reward.learning_rate)) == (0.75, 1.75)
    assert algorithm.clip_epsilon == algorithm.algorithm.clip_epsilon
    assert algorithm.values_actions is False and algorithm.is_on_policy is True


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ludus.PreferenceReward(members=0), "^reward.members=0: must be at least 1$"),
        (lambda: ludus.PreferenceReward(labeller="me"), "^reward.labeller=me: must be synthetic or file$"),
        (lambda: ludus.PreferenceReward(inputs=("obs", "obs")), "^reward.inputs=.* must be some of obs, action"),
        (lambda: ludus.PreferenceReward(labels=2.5), "^reward.labels=2.5: must be an integer$"),
        (lambda: ludus.RegressionReward(label_noise=-1.0), "^reward.label_noise=-1.0: must be at least 0$"),
        (lambda: ludus.DemonstrationReward(demonstrations=3), "^reward.demonstrations=3: must be a file"),
        (
            lambda: around(ludus.PreferenceReward(segment_length=9)),
            "^reward.segment_length=9: must be at most",
        ),
        (lambda: around(ludus.DemonstrationReward(**SMALL)), "^reward.demonstrations: required, but not given"),
        (lambda: around(ludus.PreferenceReward(**LABELS, model="none.safetensors")), "^none.safetensors: no such"),
        (lambda: around("preferences"), "^reward='preferences': must be one such as ludus.PreferenceReward"),
    ],
)
def test_rewards_that_cannot_be_are_refused_by_name(make, message):
    with pytest.raises(LudusError, match=message):
        make()


def test_a_reward_model_of_other_spaces_is_refused(given):
    with pytest.raises(LudusError, match=r"^reward.model=.*: its action space is Box.*, and not Discrete"):
        around(ludus.PreferenceReward(**LABELS, model=given.path), DISCRETE)


def test_demonstrations_of_other_spaces_are_refused(tmp_path):
    demos, _ = judged_pairs(10, 0)
    with pytest.raises(LudusError, match=r"^reward.demonstrations=.*: their observation space is Box.*, and not Box"):
        around(ludus.DemonstrationReward(**SMALL, demonstrations=demos))


# The alarm


def pool_of(true) -> Pool:
    return Pool(jax.tree.map(jnp.asarray, numbered(true)), jnp.int32(len(true)))


NOBODY = (jnp.nan, jnp.nan, 0.0)


@pytest.mark.parametrize(
    ("learned", "true", "agreement", "expected"),
    [
        (1.0, -1.0, NOBODY, True),
        (1.0, 1.0, NOBODY, False),
        (-1.0, -1.0, NOBODY, False),
        (0.0, -1.0, NOBODY, False),
        (1.0, None, NOBODY, False),
        (1.0, None, (0.95, 0.5, 50.0), True),
        (1.0, None, (0.95, 0.93, 50.0), False),
        (1.0, 1.0, (0.95, 0.5, 50.0), False),
    ],
)
def test_the_alarm_goes_off_where_the_learned_reward_rises_and_the_true_one_or_agreement_falls(
    learned, true, agreement, expected
):
    rng = np.random.default_rng(7)
    time = np.linspace(-1, 1, 128)
    rewards = learned * time + 0.5 * rng.normal(size=128)
    of_env = np.zeros(128) if true is None else true * time + 0.5 * rng.normal(size=128)
    seen = signs(pool_of(of_env), jnp.asarray(rewards, jnp.float32), agreement, 4.0)
    assert bool(seen.is_alarm) is expected
    half = pool_of(of_env)._replace(total=jnp.int32(100))
    assert not signs(half, jnp.asarray(rewards, jnp.float32), agreement, 4.0).is_alarm
    assert np.isnan(seen.correlation) == (true is None)


def test_a_trend_is_the_slope_in_its_standard_errors():
    rng = np.random.default_rng(8)
    x, y = np.arange(60.0), rng.normal(size=60) + 0.05 * np.arange(60)
    fit, cov = np.polyfit(x, y, 1, cov=True)
    got = float(trend(jnp.asarray(x), jnp.asarray(y, jnp.float32), jnp.ones(60)))
    assert got == pytest.approx(fit[0] / np.sqrt(cov[0, 0]), rel=1e-3)
    assert float(trend(jnp.arange(5.0), jnp.ones(5), jnp.ones(5))) == 0.0
