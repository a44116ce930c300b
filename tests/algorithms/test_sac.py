"""SAC's update against float64 NumPy, and what each hyperparameter promises."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from places import DOCS, TESTS
from sac_cases import (
    NUM_ENVS,
    NUM_STEPS,
    SPEC,
    UPDATE_CASES,
    log_prob,
    random_rollout,
    random_state,
    random_update_errors,
    small_sac,
    tanh_gaussian_error,
    update,
)

from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.replay import empty_replay
from ludus.algorithms.sac import METRICS, SAC, SACState
from ludus.networks.builders import GRU, MLP
from ludus.networks.distributions import TanhGaussian
from ludus.spaces import Box, Discrete
from ludus.types import LudusError, Rollout, Spec

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
PAGE = DOCS / "sac.md"


def learn(algorithm: SAC, state: SACState, rollout: Rollout, key: jax.Array = KEY):
    return update(as_arrays(algorithm), state, rollout, key)


def case(algorithm: SAC, seed: int = 0) -> tuple[SACState, Rollout]:
    rng = np.random.default_rng(seed)
    return random_state(algorithm, rng), random_rollout(rng)


def differs(one, other) -> bool:
    return any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


# The whole update against the reference


@pytest.mark.requirement("S2.15")
@pytest.mark.parametrize("case", UPDATE_CASES)
def test_a_whole_sac_update_equals_float64_numpy(case):
    for seed in range(3):
        errors = random_update_errors(case, np.random.default_rng([7, seed]))
        assert max(errors.values()) <= 1e-5, errors


# The distribution


@pytest.mark.requirement("S2.15")
def test_squashed_log_probabilities_equal_fifty_digits_in_300_random_cases():
    assert max(tanh_gaussian_error(np.random.default_rng([3, i])) for i in range(300)) <= 1e-5


def test_a_squashed_density_integrates_to_one():
    action = np.linspace(-1, 1, 200_002)[1:-1]
    for mean, log_std in ((0.0, 0.0), (0.7, -0.5), (-0.4, -1.5)):
        parts = (np.full((len(action), 1), x, np.float32) for x in (mean, log_std))
        density = np.exp(np.asarray(log_prob(*parts, np.arctanh(action)[:, None].astype(np.float32)), np.float64))
        assert density.sum() * (action[1] - action[0]) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("u", [-1e4, -40.0, -9.1, 0.0, 9.1, 40.0, 1e4])
def test_actions_that_round_to_their_bounds_have_finite_densities_and_slopes(u):
    mean, log_std = jnp.float32([u - 0.5]), jnp.float32([0.3])
    value, slopes = jax.value_and_grad(lambda m, s: TanhGaussian(m, s).log_prob(jnp.float32([u])), (0, 1))(
        mean, log_std
    )
    assert np.isfinite(value) and np.isfinite(slopes).all()
    assert np.abs(TanhGaussian(mean, log_std).squash(jnp.float32([u]))) <= 1


def test_samples_are_the_mean_and_deviation_times_noise_and_squashing_is_tanh():
    distribution = TanhGaussian(jnp.float32([0.3, -2.0]), jnp.float32([-1.0, 0.5]))
    noise = np.float32([1.5, -0.25])
    u = np.array([0.3 + 1.5 * np.exp(-1.0), -2.0 - 0.25 * np.exp(0.5)])
    np.testing.assert_allclose(distribution.sample(noise), u, rtol=1e-6)
    np.testing.assert_allclose(distribution.squash(distribution.sample(noise)), np.tanh(u), rtol=1e-6)
    np.testing.assert_array_equal(distribution.mode(), distribution.mean)


# What learning starts from


@pytest.mark.requirement("S2.6")
def test_there_are_two_critics_that_differ_and_targets_that_equal_them():
    state = small_sac().init(KEY, SPEC)
    learner = state.learner
    jax.tree.map(np.testing.assert_array_equal, learner.target_critics, learner.parameters.critics)
    kernels = [leaf for leaf in learner.parameters.critics if leaf.ndim == 3]
    assert kernels and all(leaf.shape[0] == 2 and (leaf[0] != leaf[1]).all() for leaf in kernels)
    obs, action = np.random.default_rng(0).normal(size=(2, 64, 3)).astype(np.float32)
    for i in (0, 1):
        critic = state.networks.critic.merge([leaf[i] for leaf in learner.parameters.critics])
        value = np.asarray(critic(obs, np.tanh(action[:, :2])))
        assert (value < 0).any() and (value > 0).any()


@pytest.mark.requirement("S2.6")
def test_the_first_policy_is_nearly_the_same_everywhere_with_a_deviation_of_nearly_one():
    state = small_sac(network=MLP((64, 64), "relu")).init(KEY, SPEC)
    actor = state.networks.actor.merge(state.learner.parameters.actor)
    distribution = actor(np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32))
    assert np.abs(distribution.mean).max() < 0.1 and np.abs(distribution.log_std).max() < 0.1


def test_the_log_deviation_is_held_between_minus_twenty_and_two():
    state = small_sac().init(KEY, SPEC)
    leaves = dict(zip(state.networks.actor.names, state.learner.parameters.actor, strict=True))
    for bias, expected in ((1e3, 2.0), (-1e3, -20.0)):
        moved = (leaves | {"log_std/bias": leaves["log_std/bias"] + bias}).values()
        np.testing.assert_array_equal(state.networks.actor.merge(moved)(np.ones((1, 3))).log_std, expected)


@pytest.mark.requirement("S2.15")
def test_the_temperature_starts_at_alpha_and_is_left_alone_if_it_is_fixed():
    for alpha in (0.05, 1.0, 3.0):
        state = small_sac(alpha=alpha).init(KEY, SPEC)
        assert np.exp(state.learner.parameters.log_alpha) == pytest.approx(alpha, rel=1e-6)
    fixed = small_sac(alpha=0.3, automatic_alpha=False, network=MLP((5,), "tanh"))
    state, rollout = case(fixed)
    new, metrics = learn(fixed, state, rollout)
    assert new.learner.parameters.log_alpha == state.learner.parameters.log_alpha
    assert metrics["alpha"] == pytest.approx(0.3) and metrics["alpha_loss"] == 0


@pytest.mark.requirement("S2.15")
def test_a_learnt_temperature_rises_below_the_target_entropy_and_falls_above_it():
    algorithm = small_sac(learning_rate=1e-2)
    state, rollout = case(algorithm)
    state = dataclasses.replace(state, learner=algorithm.init(KEY, SPEC).learner)
    entropy = float(learn(algorithm, state, rollout)[1]["entropy"])
    before = float(state.learner.parameters.log_alpha)
    for target, sign in ((entropy + 2, 1), (entropy - 2, -1)):
        new, _ = learn(small_sac(learning_rate=1e-2, target_entropy=target), state, rollout)
        assert sign * (float(new.learner.parameters.log_alpha) - before) > 0.01


def test_the_target_entropy_is_minus_the_number_of_actions_unless_given():
    state, rollout = case(small_sac())
    one, other, third = (learn(small_sac(target_entropy=t), state, rollout)[0] for t in (None, -2.0, -1.0))
    alphas = [float(new.learner.parameters.log_alpha) for new in (one, other, third)]
    assert alphas[0] == pytest.approx(alphas[1], rel=1e-6) and alphas[0] != pytest.approx(alphas[2], rel=1e-4)


# Targets


@pytest.mark.requirement("S2.9")
@pytest.mark.requirement("S2.15")
def test_the_successor_matters_to_sac_unless_the_episode_terminated():
    algorithm = small_sac(batch_size=128, replay_size=12, network=MLP((5,), "tanh"))
    state, rollout = algorithm.init(KEY, SPEC), random_rollout(np.random.default_rng(0))
    steps = rollout.steps
    for flags in (steps.terminated, steps.truncated):
        flags[:] = False
    steps.terminated[1, 0], steps.truncated[1, 1], steps.terminated[1, 2], steps.truncated[1, 2] = (
        True,
        True,
        True,
        True,
    )
    before, _ = learn(algorithm, state, rollout)
    for b, matters in ((0, False), (1, True), (2, False)):
        next_obs = steps.next_obs.copy()
        next_obs[1, b] += 3.0
        after, _ = learn(algorithm, state, rollout._replace(steps=steps._replace(next_obs=next_obs)))
        assert differs(after.learner, before.learner) == matters


@pytest.mark.requirement("S2.15")
@pytest.mark.parametrize("tau", [0.0, 0.25, 1.0])
def test_targets_follow_by_tau(tau):
    algorithm = small_sac(tau=tau, updates_per_step=1 / 12)
    state, rollout = case(algorithm)
    new, metrics = learn(algorithm, state, rollout)
    assert metrics["updates"] == 1
    for got, old, critic in zip(
        new.learner.target_critics, state.learner.target_critics, new.learner.parameters.critics, strict=True
    ):
        np.testing.assert_allclose(got, (1 - tau) * old + tau * critic, rtol=1e-5, atol=1e-6)


def test_only_terminated_rows_are_without_a_future_when_gamma_is_large():
    """With every row terminated, targets are rewards: gamma and the temperature matter to no critic."""
    state, rollout = case(small_sac())
    ended = rollout._replace(steps=rollout.steps._replace(terminated=np.ones((NUM_STEPS, NUM_ENVS), bool)))
    start = small_sac().init(KEY, SPEC)
    start = dataclasses.replace(start, learner=state.learner)
    once = {"updates_per_step": 1 / 12}
    plain, other = small_sac(**once), small_sac(**once, gamma=0.1)
    one, two = (learn(algorithm, start, ended)[0].learner.parameters for algorithm in (plain, other))
    jax.tree.map(np.testing.assert_array_equal, one.critics, two.critics)


# Acting


BOUNDS = Box((-0.3, -5.0, 0.0), (2.0, -1.0, 1e-3), (3,))


def acting(space: Box = BOUNDS, **changes):
    algorithm = small_sac(network=MLP((5,), "tanh"), **changes)
    state = algorithm.init(KEY, Spec(SPEC.observation_space, space, NUM_ENVS))
    return algorithm, algorithm.policy(state), jax.jit(algorithm.act, static_argnums=4)


def noise_of(algorithm: SAC, policy, n: int, scale: float = 1.0):
    noise = jax.tree.map(lambda x: x[0], algorithm.noise(policy, KEY, (1, n)))
    return noise._replace(normal=scale * noise.normal)


def test_actions_reach_uneven_bounds_and_never_pass_them():
    algorithm, policy, act = acting()
    low, high = BOUNDS.bounds
    for scale in (0.1, 1.0, 1e3, 1e30):
        obs = np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float32)
        _, action, extras = act(policy, (), obs, noise_of(algorithm, policy, 2000, scale), "explore")
        action = np.asarray(action)
        assert action.dtype == np.float32 and (action >= low).all() and (action <= high).all()
        assert np.abs(extras["unit_action"]).max() <= 1
    # One unit in the last place is what mapping onto the box may cost.
    np.testing.assert_allclose(action.min(axis=0), low, rtol=2e-7, atol=1e-10)
    np.testing.assert_allclose(action.max(axis=0), high, rtol=2e-7, atol=1e-10)


def test_the_environment_gets_the_action_in_its_own_units_and_the_replay_in_units_of_the_bounds():
    algorithm, policy, act = acting()
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    noise = noise_of(algorithm, policy, 50)
    _, action, extras = act(policy, (), obs, noise, "explore")
    distribution = policy.network.merge(policy.parameters)(obs)
    unit = np.tanh(distribution.mean + np.exp(distribution.log_std) * noise.normal)
    np.testing.assert_allclose(extras["unit_action"], unit, rtol=1e-5, atol=1e-6)
    low, high = BOUNDS.bounds
    np.testing.assert_allclose(action, low + (high - low) * (unit + 1) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.requirement("S2.17")
def test_greedy_actions_are_the_squashed_mean_without_noise_even_during_warm_up():
    _, policy, act = acting(learning_starts=1000)
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    _, action, extras = act(policy, (), obs, None, "greedy")
    mean = policy.network.merge(policy.parameters)(obs).mean
    np.testing.assert_allclose(extras["unit_action"], np.tanh(mean), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(action, act(policy, (), obs, None, "greedy")[1])


@pytest.mark.requirement("S2.11")
def test_actions_are_uniform_within_the_bounds_during_warm_up_and_the_policys_own_afterwards():
    algorithm, policy, act = acting(learning_starts=7000)
    obs = np.zeros((10_000, 3), np.float32)
    noise = noise_of(algorithm, policy, 10_000)
    assert noise.is_warmup.tolist() == [True] * 7000 + [False] * 3000
    _, action, extras = act(policy, (), obs, noise, "explore")
    random, own = np.asarray(extras["unit_action"])[:7000], np.asarray(extras["unit_action"])[7000:]
    for column in random.T:
        counts, _ = np.histogram(column, bins=20, range=(-1, 1))
        assert counts.sum() == 7000
        assert ((counts - 350) ** 2 / 350).sum() < 19 + 5 * np.sqrt(2 * 19)
    assert np.abs(np.corrcoef(random.T)[np.triu_indices(3, 1)]).max() < 0.06
    np.testing.assert_allclose(own, _own_action(policy, obs, noise)[7000:], rtol=1e-5, atol=1e-6)
    low, high = BOUNDS.bounds
    np.testing.assert_allclose(np.asarray(action)[:7000], low + (high - low) * (random + 1) / 2, rtol=1e-5, atol=1e-6)


def _own_action(policy, obs, noise):
    distribution = policy.network.merge(policy.parameters)(obs)
    return np.tanh(distribution.mean + np.exp(distribution.log_std) * noise.normal)


def test_warm_up_is_counted_step_by_step_through_a_rollout():
    algorithm, policy, _ = acting(learning_starts=8)
    noise = algorithm.noise(policy, KEY, (NUM_STEPS, NUM_ENVS))
    assert noise.is_warmup.astype(int).tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0], [0, 0, 0]]


def test_the_sac_policy_sees_observations_scaled_by_its_own_statistics():
    algorithm = small_sac(normalize_observations=True)
    state = random_state(algorithm, np.random.default_rng(0))
    obs, stats = np.float32([[1, 2, 3], [1e6, -1e6, 0]]), state.observations
    _, _, extras = jax.jit(algorithm.act, static_argnums=4)(algorithm.policy(state), (), obs, None, "greedy")
    seen = np.clip((obs - stats.mean) / np.sqrt(stats.variance), -10, 10)
    actor = state.networks.actor.merge(state.learner.parameters.actor)
    np.testing.assert_allclose(extras["unit_action"], np.tanh(actor(seen).mean), rtol=1e-4)


def test_discrete_observations_are_never_normalised_by_sac():
    state = small_sac(normalize_observations=True).init(KEY, Spec(Discrete(5), SPEC.action_space, NUM_ENVS))
    assert state.observations is None and state.replay.frames.dtype == np.int32


# Counting


@pytest.mark.requirement("S2.11")
@pytest.mark.requirement("S2.14")
def test_an_update_counts_warm_up_down_and_owes_what_it_did_not_make():
    algorithm = small_sac(learning_starts=20, updates_per_step=0.3125)
    state = algorithm.init(KEY, SPEC)
    made = []
    for i in range(5):
        state, metrics = learn(algorithm, state, random_rollout(np.random.default_rng(i)))
        made.append(int(metrics["updates"]))
        assert int(state.warmup_left) == max(20 - 12 * (i + 1), 0)
        assert int(metrics["replay_size"]) == min(12 * (i + 1), 29)
        assert sum(made) == int(0.3125 * max(12 * (i + 1) - 20, 0))
        figures = {name: float(x) for name, x in metrics.items() if name in METRICS and name != "replay_size"}
        assert len(figures) == 8 and all(np.isfinite(x) == (made[-1] > 0) for x in figures.values())
    assert made == [0, 1, 4, 3, 4]


def test_padding_is_not_counted_stored_or_learnt_from():
    algorithm = small_sac(learning_starts=3, normalize_observations=True, updates_per_step=1.0)
    valid = np.ones((NUM_STEPS, NUM_ENVS), bool)
    valid[2:, 1], valid[1:, 2] = False, False
    rollout = random_rollout(np.random.default_rng(0), valid=valid)
    rollout.steps.truncated[~valid] = False
    for junk in (0.0, np.nan):
        steps = jax.tree.map(lambda x: x.copy(), rollout.steps)
        for field in (steps.obs, steps.next_obs, steps.reward, steps.extras["unit_action"]):
            field[~valid] = junk
        state, metrics = learn(algorithm, algorithm.init(KEY, SPEC), rollout._replace(steps=steps))
        assert (int(metrics["fault"]), int(metrics["updates"]), int(metrics["replay_size"])) == (0, 4, 7)
        assert (int(state.warmup_left), float(state.observations.count)) == (0, 7.0)
        np.testing.assert_allclose(state.observations.mean, rollout.steps.obs[valid].mean(axis=0), rtol=1e-5)


def test_statistics_take_in_each_fresh_observation_once_however_many_gradient_steps_are_made():
    few, many = small_sac(normalize_observations=True), small_sac(normalize_observations=True, updates_per_step=3.0)
    rng = np.random.default_rng(0)
    rollouts = [random_rollout(rng) for _ in range(3)]
    ends = []
    for algorithm in (few, many):
        state = algorithm.init(KEY, SPEC)
        for rollout in rollouts:
            state, _ = learn(algorithm, state, rollout)
        ends.append(state.observations)
    seen = np.concatenate([rollout.steps.obs.reshape(-1, 3) for rollout in rollouts])
    for stats in ends:
        assert float(stats.count) == len(seen)
        np.testing.assert_allclose(stats.mean, seen.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(stats.variance, seen.var(axis=0), rtol=1e-5)


def test_each_gradient_step_draws_anew():
    """Two steps on one batch would not equal two steps on two: the second must see other rows and other noise."""
    algorithm = small_sac(learning_rate=0.0, updates_per_step=1 / 12)
    state, rollout = case(algorithm)
    losses = {}
    for seed in range(3):
        losses[seed] = float(learn(algorithm, state, rollout, jax.random.key(seed))[1]["critic_loss"])
    assert len(set(losses.values())) == 3
    _, one = learn(algorithm, state, rollout)
    _, two = learn(dataclasses.replace(algorithm, updates_per_step=2 / 12), state, rollout)
    assert int(two["updates"]) == 2 and one["critic_loss"] != pytest.approx(float(two["critic_loss"]), rel=1e-6)


# Optimisers and hyperparameters


@pytest.mark.requirement("S4.8")
def test_any_optax_optimizer_is_followed_by_sac_and_the_learning_rate_then_ignored():
    once = {"updates_per_step": 1 / 12}
    plain, own = small_sac(**once), small_sac(**once, optimizer=optax.sgd(0.1), learning_rate=0.0)
    state, rollout = case(plain)
    fresh = dataclasses.replace(
        state, learner=state.learner._replace(optimizers=plain.init(KEY, SPEC).learner.optimizers)
    )
    start = dataclasses.replace(
        state, learner=state.learner._replace(optimizers=own.init(KEY, SPEC).learner.optimizers)
    )
    adam, sgd = learn(plain, fresh, rollout)[0].learner, learn(own, start, rollout)[0].learner
    critics = jax.tree.map(lambda mu: mu / 0.1, adam.optimizers.critics.mu)
    for new, old, gradient in zip(sgd.parameters.critics, state.learner.parameters.critics, critics, strict=True):
        np.testing.assert_allclose(new, old - 0.1 * gradient, rtol=1e-5, atol=1e-6)
    gradient = adam.optimizers.log_alpha.mu / 0.1
    assert sgd.parameters.log_alpha == pytest.approx(
        float(state.learner.parameters.log_alpha - 0.1 * gradient), rel=1e-4
    )
    assert differs(sgd.parameters.actor, state.learner.parameters.actor)


def test_changing_a_number_of_sac_compiles_nothing():
    algorithm = small_sac()
    state, rollout = case(algorithm)
    learn(algorithm, state, rollout)
    programs = update._cache_size()
    for change in ({"learning_rate": 1e-5}, {"gamma": 1}, {"tau": 0.1}, {"alpha": 0.5}, {"updates_per_step": 0}):
        learn(dataclasses.replace(algorithm, **change), state, rollout)
    assert update._cache_size() == programs


def test_the_defaults_of_sac_are_those_of_its_paper_where_it_has_them():
    default = SAC()
    assert (default.learning_rate, default.gamma, default.tau) == (3e-4, 0.99, 0.005)
    assert (default.batch_size, default.replay_size) == (256, 1_000_000)
    assert (default.automatic_alpha, default.target_entropy, default.updates_per_step) == (True, None, 1.0)
    assert default.network == MLP((256, 256), "relu")


# Metrics


def test_an_update_reports_every_metric_of_the_table_and_no_other():
    algorithm = small_sac()
    _, metrics = learn(algorithm, *case(algorithm))
    assert set(metrics) == set(METRICS) | {"fault", "updates", "gradient"}


def test_the_sac_page_lists_every_metric_and_names_tests_that_exist():
    page = PAGE.read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page.partition("## Metrics")[2], re.MULTILINE)) == set(METRICS)
    named = set(re.findall(r"`(test_\w+)`", page))
    tests = TESTS.rglob("test_*.py")
    assert named and named <= {name for path in tests for name in re.findall(r"def (test_\w+)", path.read_text())}


def test_the_sac_page_names_every_hyperparameter():
    page = PAGE.read_text()
    assert {field.name for field in dataclasses.fields(SAC)} <= set(re.findall(r"`(\w+)`", page))


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 1.5}, "algorithm.gamma=1.5: must be between 0 and 1"),
        ({"tau": -0.1}, "algorithm.tau=-0.1: must be between 0 and 1"),
        ({"tau": 1.1}, "algorithm.tau=1.1: must be between 0 and 1"),
        ({"alpha": -1.0}, "algorithm.alpha=-1.0: must be at least 0"),
        ({"alpha": float("nan")}, "algorithm.alpha=nan: must be a finite number"),
        ({"updates_per_step": -1}, "algorithm.updates_per_step=-1: must be at least 0"),
        ({"learning_starts": -1}, "algorithm.learning_starts=-1: must be at least 0"),
        ({"learning_starts": 2.5}, "algorithm.learning_starts=2.5: must be an integer"),
        ({"batch_size": 0}, "algorithm.batch_size=0: must be at least 1"),
        ({"replay_size": 0}, "algorithm.replay_size=0: must be at least 1"),
        ({"unroll_length": 0}, "algorithm.unroll_length=0: must be at least 1"),
        ({"network": "mlp"}, "algorithm.network='mlp': must be a network"),
    ],
)
def test_numbers_that_cannot_work_for_sac_are_refused_by_name(changes, message):
    with pytest.raises(LudusError, match=re.escape(message)) as caught:
        small_sac(**changes)
    assert "\n" not in str(caught.value)


class Torsoless:
    """No configuration of a network for SAC."""


@pytest.mark.parametrize(
    ("changes", "space", "message"),
    [
        ({}, Discrete(3), "SAC: action space Discrete"),
        ({}, Box(-np.inf, np.inf, (2,)), "must be a Box of floats with finite bounds"),
        ({}, Box((-1.0, -1.0), (1.0, np.inf), (2,)), "must be a Box of floats with finite bounds"),
        ({}, Box(0, 5, (2,), "int32"), "must be a Box of floats with finite bounds"),
        ({"network": Torsoless()}, SPEC.action_space, "algorithm.network=Torsoless: SAC needs torso"),
        ({"network": Torsoless}, SPEC.action_space, "algorithm.network=Torsoless: SAC needs torso"),
        ({"network": GRU(4, (5,))}, SPEC.action_space, "algorithm.replay_size=29: must hold one sequence"),
        ({"replay_size": 11}, SPEC.action_space, "algorithm.replay_size=11: must hold one iteration"),
    ],
)
def test_environments_that_cannot_work_for_sac_are_refused_in_one_line(changes, space, message):
    with pytest.raises(LudusError, match=message) as caught:
        small_sac(**changes).validate(Spec(SPEC.observation_space, space, NUM_ENVS))
    assert "\n" not in str(caught.value)


def test_what_can_work_for_sac_is_accepted():
    small_sac(replay_size=12).validate(SPEC)
    SAC().validate(SPEC)
    SAC().validate(Spec(Discrete(5), BOUNDS, 1))


@pytest.mark.requirement("S2.13")
def test_every_environment_contributes_the_unroll_length():
    assert small_sac(unroll_length=5).rollout_length(1) == small_sac(unroll_length=5).rollout_length(64) == 5


# Memory


def test_an_update_copies_nothing_of_the_replays_size():
    algorithm = small_sac(replay_size=100_000, normalize_observations=True)
    example = np.zeros(3, np.float32), np.zeros(2, np.float32)
    replay = jax.eval_shape(lambda: empty_replay(100_000, NUM_ENVS, NUM_STEPS * NUM_ENVS, *example))
    state = dataclasses.replace(dataclasses.replace(algorithm, replay_size=29).init(KEY, SPEC), replay=replay)
    rollout = jax.tree.map(jnp.asarray, random_rollout(np.random.default_rng(0)))
    program = jax.jit(SAC.update, donate_argnums=1).lower(as_arrays(algorithm), state, rollout, KEY).compile()
    rings = [f"[{replay.num_frames}", f"[{replay.num_slots}"]
    text = program.as_text().splitlines()
    assert any(ring in line for line in text for ring in rings)
    assert [line for line in text if " copy(" in line and any(ring in line for ring in rings)] == []
    assert program.memory_analysis().temp_size_in_bytes < 100_000
