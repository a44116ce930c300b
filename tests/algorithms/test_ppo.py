"""PPO's update against float64 NumPy, and what each hyperparameter promises."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from cases import (
    CONTINUOUS,
    DISCRETE,
    NORMALIZED,
    NUM_ENVS,
    NUM_STEPS,
    OBSERVATION_SPACE,
    RATIO_CASES,
    RECURRENT,
    SEVERAL,
    UPDATE_CASES,
    VALUE_CLIPPING,
    collected,
    minibatch_weights,
    random_rollout,
    random_state,
    random_update_errors,
    ratio_error,
    small_ppo,
    update,
    update_errors,
)
from flax import nnx
from oracles import flat

from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.ppo import METRICS, PPO, PPOState
from ludus.networks.actor_critic import ActionHead, ActorCritic
from ludus.spaces import Box, Discrete
from ludus.types import LudusError, Rollout, Spec

KEY = jax.random.key(0)


def learn(algorithm: PPO, state: PPOState, rollout: Rollout, key: jax.Array = KEY):
    return update(as_arrays(algorithm), state, rollout, key)


def fixed_case(algorithm: PPO, spec: Spec = DISCRETE, seed: int = 0, **options) -> tuple[PPOState, Rollout]:
    rng = np.random.default_rng(seed)
    state = random_state(algorithm, spec, rng)
    return state, random_rollout(state, rng, **options)._replace(progress=jnp.float32(0.0))


def first_gradient(state: PPOState) -> np.ndarray:
    """Return the (clipped) gradient of the only step that Adam has made."""
    assert state.optimizer.count == 1
    return np.asarray(state.optimizer.mu) / 0.1


# The whole update against the reference


@pytest.mark.requirement("S1.4")
@pytest.mark.requirement("S1.5")
@pytest.mark.requirement("S3.6")
@pytest.mark.requirement("S3.7")
@pytest.mark.requirement("S3.8")
@pytest.mark.requirement("S4.9")
@pytest.mark.parametrize("case", UPDATE_CASES)
def test_a_whole_update_equals_float64_numpy(case):
    rng = np.random.default_rng(0)
    for _ in range(3):
        errors = random_update_errors(case, rng)
        assert max(errors.values()) <= 1e-5, errors


@pytest.mark.requirement("S3.36")
def test_an_update_that_stops_early_equals_float64_numpy():
    algorithm = small_ppo(**SEVERAL, learning_rate=0.04, target_kl=0.01)
    state, rollout = fixed_case(algorithm, spread=0.0)
    assert max(update_errors(algorithm, state, rollout, KEY).values()) <= 1e-5


def test_two_updates_in_a_row_equal_float64_numpy():
    """The second starts from Adam's moments and counters, not from zero."""
    algorithm = small_ppo(**NORMALIZED, **VALUE_CLIPPING)
    state, rollout = fixed_case(algorithm)
    state, _ = learn(algorithm, state, rollout)
    errors = update_errors(algorithm, state, random_rollout(state, np.random.default_rng(1)), KEY)
    assert max(errors.values()) <= 1e-5, errors


@pytest.mark.requirement("S3.8")
def test_values_are_clipped_around_those_from_before_the_update():
    algorithm = small_ppo(**NORMALIZED, **VALUE_CLIPPING, **SEVERAL, learning_rate=0.01)
    state, rollout = fixed_case(algorithm)
    errors = update_errors(algorithm, state, rollout, KEY)
    assert max(errors.values()) <= 1e-5, errors
    free = dataclasses.replace(algorithm, value_clip_epsilon=1e9)
    held, moved = (flat(learn(each, state, rollout)[0].parameters) for each in (algorithm, free))
    assert np.abs(held - moved).max() > 1e-3


def test_a_scaled_reward_is_clipped_at_ten_deviations():
    algorithm = small_ppo(**NORMALIZED, **VALUE_CLIPPING)
    state, rollout = fixed_case(algorithm)
    state = dataclasses.replace(state, rewards=state.rewards._replace(count=jnp.float32(1e6)))
    rollout.steps.reward[3, 2], rollout.steps.reward[4, 1] = 1e2, -1e2
    assert np.abs(rollout.steps.reward / np.sqrt(state.rewards.variance)).max() > 20
    errors = update_errors(algorithm, state, rollout, KEY)
    assert max(errors.values()) <= 1e-5, errors


def test_a_rare_reward_is_worth_what_it_was_clipped_to():
    """A 1 at the end of 1,000 steps: returns deviate by sqrt(0.001), so that it counts as 10 sqrt(0.001) = 0.316."""
    length = 1000
    algorithm = small_ppo(
        batch_size=4 * length, minibatch_size=4 * length, normalize_rewards=True, gamma=1, gae_lambda=1
    )
    state = algorithm.init(KEY, DISCRETE)
    state = dataclasses.replace(state, parameters=jax.tree.map(jnp.zeros_like, state.parameters))  # values nothing
    rollout = random_rollout(state, np.random.default_rng(0), length)
    last = np.broadcast_to(np.arange(length)[:, None] == length - 1, (length, 4))
    steps = rollout.steps._replace(reward=last.astype(np.float32), terminated=last, truncated=np.zeros_like(last))
    after, metrics = learn(algorithm, state, rollout._replace(steps=steps))
    deviation = np.sqrt(1e-3 - 1e-6)
    assert after.rewards.variance == pytest.approx(deviation**2, rel=1e-4)
    assert metrics["value_loss"] == pytest.approx(0.5 * 10**2, rel=1e-4)  # every target is 10


def test_returns_that_differ_after_many_equal_ones_are_measured_by_themselves():
    algorithm = small_ppo(normalize_returns=True, value_coef=0.5)
    state, rollout = fixed_case(algorithm)
    state = algorithm.init(KEY, DISCRETE)
    steps = rollout.steps
    equal = steps._replace(reward=np.full_like(steps.reward, 3.0), terminated=np.ones_like(steps.terminated))
    for i in range(5):
        state, metrics = learn(algorithm, state, rollout._replace(steps=equal), jax.random.key(i))
        assert metrics["value_loss"] < 10
    assert np.sqrt(state.returns.variance) < 1e-2, "next to nothing"
    errors = update_errors(algorithm, state, rollout, KEY)
    assert max(errors.values()) <= 1e-5, errors
    _, metrics = learn(algorithm, state, rollout)
    assert metrics["value_loss"] < 10, "normalised targets have a mean square of about 1"
    norms = {"actor": 0.0, "critic": 0.0}
    parts = zip(state.network.names, state.network.unravel(metrics["gradient"]), strict=True)
    for name, part in parts:
        norms[name.partition("_")[0]] += float(jnp.square(part).sum())
    assert norms["actor"] > 1e-4 * norms["critic"], "the critic leaves the actor its share"


# Ratios


@pytest.mark.requirement("S0.16")
@pytest.mark.parametrize("case", RATIO_CASES)
def test_every_ratio_is_one_until_a_parameter_moves(case):
    assert ratio_error(case, np.random.default_rng(0)) < 1e-6


@pytest.mark.requirement("S0.16")
@pytest.mark.parametrize("case", RATIO_CASES)
def test_ratios_leave_one_once_parameters_move(case):
    spec, changes = UPDATE_CASES[case]
    algorithm = small_ppo(**changes, learning_rate=1e-2)
    state = random_state(algorithm, spec, np.random.default_rng(0))
    _, metrics = learn(algorithm, state, collected(algorithm, state))
    assert metrics["approx_kl"] > 1e-5


# The loss


@pytest.mark.requirement("S1.3")
@pytest.mark.requirement("S1.5")
@pytest.mark.requirement("S1.14")
def test_the_defaults_are_those_of_the_specification():
    default = PPO()
    assert (default.learning_rate, default.value_coef, default.entropy_coef) == (3e-4, 0.5, 0.01)
    assert (default.gamma, default.gae_lambda, default.clip_epsilon, default.max_grad_norm) == (0.99, 0.95, 0.2, 0.5)
    assert (default.batch_size, default.minibatch_size, default.epochs_per_update) == (2048, 64, 10)
    assert default.value_clip_epsilon is None and default.target_kl is None


@pytest.mark.requirement("S1.5")
def test_the_total_loss_is_the_sum_of_its_reported_terms():
    algorithm = small_ppo(value_coef=0.7, entropy_coef=0.3)
    _, metrics = learn(algorithm, *fixed_case(algorithm))
    total = metrics["policy_loss"] + 0.7 * metrics["value_loss"] - 0.3 * metrics["entropy"]
    assert metrics["total_loss"] == pytest.approx(float(total), abs=1e-6)
    assert set(metrics) == set(METRICS) | {"fault", "updates", "gradient"}


@pytest.mark.requirement("S0.16")
def test_an_action_that_paid_becomes_likelier_and_one_that_did_not_rarer():
    algorithm = small_ppo(learning_rate=1e-2, entropy_coef=0.0, gamma=0.0)
    state, rollout = fixed_case(algorithm, spread=0.0)
    steps = rollout.steps._replace(obs=np.ones_like(rollout.steps.obs))
    steps = steps._replace(reward=(steps.extras["sample"] == 2).astype(np.float32))
    model, before = oracles.Model(state.network), flat(state.parameters)
    log_p = oracles.categorical_log_probabilities(model.outputs(before, np.ones(3))[0])
    steps = steps._replace(extras=steps.extras | {"log_prob": log_p[steps.extras["sample"]].astype(np.float32)})
    state, _ = learn(algorithm, state, rollout._replace(steps=steps))
    after = oracles.categorical_log_probabilities(model.outputs(flat(state.parameters), np.ones(3))[0])
    assert after[2] > log_p[2] and after[0] < log_p[0] and after[1] < log_p[1]


def test_the_entropy_bonus_raises_the_entropy():
    algorithm = small_ppo(learning_rate=1e-2, entropy_coef=100.0, value_coef=0.0)
    state, rollout = fixed_case(algorithm)
    entropies = []
    for _ in range(5):
        state, metrics = learn(algorithm, state, rollout)
        entropies.append(float(metrics["entropy"]))
    assert entropies == sorted(entropies) and entropies[-1] > entropies[0] + 0.01


@pytest.mark.requirement("S0.17")
def test_the_value_loss_falls_on_a_fixed_batch():
    algorithm = small_ppo(learning_rate=1e-2, gamma=0.0)  # with gamma 0 the targets are the rewards
    state, rollout = fixed_case(algorithm)
    losses = []
    for _ in range(10):
        state, metrics = learn(algorithm, state, rollout)
        losses.append(float(metrics["value_loss"]))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.requirement("S3.9")
def test_the_value_loss_reaches_the_critic_and_nothing_else():
    algorithm = small_ppo(value_coef=0.0, max_grad_norm=1e9)
    state, rollout = fixed_case(algorithm)
    model, gradients = oracles.Model(state.network), {}
    for weight in (0.0, 1.0):
        new, _ = learn(dataclasses.replace(algorithm, value_coef=weight), state, rollout)
        gradients[weight] = model.by_name(first_gradient(new))
    for name in state.network.names:
        if name.startswith("actor"):
            np.testing.assert_allclose(gradients[1.0][name], gradients[0.0][name], atol=1e-7)
        else:
            assert not gradients[0.0][name].any() and gradients[1.0][name].any()


# Advantages and targets


@pytest.mark.requirement("S1.6")
@pytest.mark.requirement("S3.14")
def test_the_value_of_the_successor_matters_unless_the_episode_terminated():
    algorithm = small_ppo()
    state, rollout = fixed_case(algorithm)
    steps = rollout.steps._replace(terminated=np.zeros((NUM_STEPS, NUM_ENVS), bool))
    steps.terminated[2, 1] = True
    steps.truncated[2, 1], steps.truncated[4, 2] = False, True
    before, _ = learn(algorithm, state, rollout._replace(steps=steps))
    for t, b, matters in ((2, 1, False), (4, 2, True), (0, 0, True)):
        next_obs = steps.next_obs.copy()
        next_obs[t, b] += 3.0
        after, _ = learn(algorithm, state, rollout._replace(steps=steps._replace(next_obs=next_obs)))
        assert (flat(after.parameters) != flat(before.parameters)).any() == matters


@pytest.mark.requirement("S1.8")
def test_the_scale_and_offset_of_advantages_do_not_matter_to_the_policy():
    algorithm = small_ppo(gamma=0.0, value_coef=0.0, entropy_coef=0.0)
    state, rollout = fixed_case(algorithm)
    value = oracles.PPOReference(algorithm, state, rollout).value

    def gradient(advantage):
        reward = (advantage + value).astype(np.float32)
        return first_gradient(learn(algorithm, state, rollout._replace(steps=rollout.steps._replace(reward=reward)))[0])

    advantage = np.random.default_rng(1).normal(size=value.shape)
    np.testing.assert_allclose(gradient(advantage), gradient(50 * advantage + 7), atol=1e-6)


@pytest.mark.requirement("S1.30")
@pytest.mark.parametrize("changes", [{}, NORMALIZED | VALUE_CLIPPING])
def test_constant_rewards_and_observations_leave_everything_finite(changes):
    algorithm = small_ppo(**changes)
    state, rollout = fixed_case(algorithm)
    for _ in range(3):
        state, metrics = learn(algorithm, state, with_nothing_to_tell_apart(rollout))
        assert metrics["fault"] == 0 and all(np.isfinite(x).all() for x in metrics.values())


@pytest.mark.requirement("S1.30")
def test_equal_advantages_teach_the_actor_nothing():
    algorithm = small_ppo(entropy_coef=0.0, gamma=0.0)
    state, rollout = fixed_case(algorithm)
    new, _ = learn(algorithm, state, with_nothing_to_tell_apart(rollout))
    gradient = oracles.Model(state.network).by_name(first_gradient(new))
    assert all(np.abs(x).max() < 1e-4 for name, x in gradient.items() if name.startswith("actor"))


def with_nothing_to_tell_apart(rollout: Rollout) -> Rollout:
    obs = np.ones_like(rollout.steps.obs)
    steps = rollout.steps._replace(obs=obs, next_obs=obs, reward=np.full_like(rollout.steps.reward, 1.1))
    return rollout._replace(steps=steps)


# Gradients and optimisers


@pytest.mark.requirement("S1.13")
def test_large_gradients_are_scaled_down_to_the_limit_and_small_ones_left_alone():
    algorithm = small_ppo(max_grad_norm=1e6)
    state, rollout = fixed_case(algorithm)
    free, metrics = learn(algorithm, state, rollout)
    norm = float(metrics["gradient_norm"])
    assert np.linalg.norm(first_gradient(free)) == pytest.approx(norm, rel=1e-5)
    for limit in (0.1 * norm, 0.999 * norm, 1.001 * norm):
        held, metrics = learn(dataclasses.replace(algorithm, max_grad_norm=limit), state, rollout)
        expected = first_gradient(free) * min(1.0, limit / norm)
        np.testing.assert_allclose(first_gradient(held), expected, rtol=1e-5, atol=1e-8)
        assert np.linalg.norm(first_gradient(held)) <= limit * (1 + 1e-6)
        assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-6)  # what is reported is the norm before


@pytest.mark.requirement("S1.37")
def test_accumulation_gives_the_gradient_of_the_whole_minibatch():
    whole, in_parts = small_ppo(), small_ppo(accumulation_steps=4)
    state, rollout = fixed_case(whole)
    (one, metrics), (many, same_metrics) = learn(whole, state, rollout), learn(in_parts, state, rollout)
    np.testing.assert_allclose(first_gradient(many), first_gradient(one), atol=1e-6)
    for name, value in metrics.items():
        assert same_metrics[name] == pytest.approx(np.asarray(value), abs=1e-6), name


@pytest.mark.requirement("S1.16")
def test_every_epoch_makes_one_step_for_each_minibatch():
    algorithm = small_ppo(**SEVERAL)
    state, metrics = learn(algorithm, *fixed_case(algorithm))
    assert metrics["updates"] == state.optimizer.count == 2 * NUM_STEPS * NUM_ENVS // 8


def test_annealing_takes_the_step_size_linearly_to_zero():
    algorithm = small_ppo(learning_rate=1e-3)
    state, rollout = fixed_case(algorithm)
    change = {}
    for progress in (0.0, 0.25, 1.0):
        new, metrics = learn(algorithm, state, rollout._replace(progress=jnp.float32(progress)))
        change[progress] = flat(new.parameters) - flat(state.parameters)
        assert metrics["learning_rate"] == pytest.approx(1e-3 * (1 - progress))
    np.testing.assert_allclose(change[0.25], 0.75 * change[0.0], atol=1e-7)
    assert not change[1.0].any()


@pytest.mark.requirement("S3.36")
def test_a_large_kl_stops_the_update_and_freezes_parameters_and_optimiser():
    algorithm = small_ppo(**SEVERAL, learning_rate=0.04, target_kl=0.01)
    state, rollout = fixed_case(algorithm, spread=0.0)
    new, metrics = learn(algorithm, state, rollout)
    made = int(metrics["updates"])
    assert 0 < made < len(minibatch_weights(algorithm, rollout, KEY)) and new.optimizer.count == made
    free = small_ppo(**SEVERAL, learning_rate=0.04)
    expected = oracles.PPOReference(free, state, rollout).update(minibatch_weights(free, rollout, KEY)[:made])
    np.testing.assert_allclose(flat(new.parameters), expected.parameters, atol=1e-5)
    last = oracles.PPOReference(free, state, rollout).losses(
        expected.parameters, minibatch_weights(free, rollout, KEY)[made]
    )
    assert last["approx_kl"] > 1.5 * 0.01


@pytest.mark.requirement("S3.36")
def test_the_kl_limit_is_one_and_a_half_times_the_target():
    free = small_ppo(**SEVERAL)
    state, rollout = fixed_case(free)
    first = minibatch_weights(free, rollout, KEY)[0]
    kl = oracles.PPOReference(free, state, rollout).losses(flat(state.parameters), first)["approx_kl"]
    _, above = learn(dataclasses.replace(free, target_kl=kl / 1.51), state, rollout)
    _, below = learn(dataclasses.replace(free, target_kl=kl / 1.49), state, rollout)
    assert above["updates"] == 0 and below["updates"] > 0


@pytest.mark.requirement("S3.36")
def test_a_kl_limit_that_is_never_reached_changes_nothing():
    limited, free = small_ppo(**SEVERAL, target_kl=1e6), small_ppo(**SEVERAL)
    state, rollout = fixed_case(free)
    (one, metrics), (other, _) = learn(limited, state, rollout), learn(free, state, rollout)
    assert metrics["updates"] == 8
    np.testing.assert_allclose(flat(one.parameters), flat(other.parameters), atol=1e-6)


@pytest.mark.requirement("S4.8")
def test_any_optax_optimizer_is_followed_and_annealed():
    plain, own = small_ppo(), small_ppo(optimizer=optax.sgd(0.1))
    state, rollout = fixed_case(plain)
    gradient = first_gradient(learn(plain, state, rollout)[0])
    start = dataclasses.replace(state, optimizer=own.init(KEY, DISCRETE).optimizer)
    for progress in (0.0, 0.5):
        new, _ = learn(own, start, rollout._replace(progress=jnp.float32(progress)))
        expected = flat(state.parameters) - 0.1 * (1 - progress) * gradient
        np.testing.assert_allclose(flat(new.parameters), expected, atol=1e-6)


def test_the_learning_rate_is_ignored_if_an_optimizer_is_given():
    own = small_ppo(optimizer=optax.sgd(0.1), learning_rate=0.0)
    state, rollout = fixed_case(small_ppo())
    start = dataclasses.replace(state, optimizer=own.init(KEY, DISCRETE).optimizer)
    new, metrics = learn(own, start, rollout)
    assert metrics["fault"] == 0
    assert (flat(new.parameters) != flat(state.parameters)).any()


@pytest.mark.requirement("S4.8")
def test_an_optimizer_may_choose_parameters_by_name():
    def kernels(tree):
        return jax.tree_util.tree_map_with_path(lambda path, _: "kernel" in jax.tree_util.keystr(path), tree)

    plain, own = small_ppo(), small_ppo(optimizer=optax.adamw(1e-3, eps=1e-5, weight_decay=10.0, mask=kernels))
    state, rollout = fixed_case(plain)
    gradient = first_gradient(learn(plain, state, rollout)[0])
    start = dataclasses.replace(state, optimizer=own.init(KEY, DISCRETE).optimizer)
    new, _ = learn(own, start, rollout)
    adam = flat(state.parameters) - 1e-3 * gradient / (np.abs(gradient) + 1e-5)
    model = oracles.Model(state.network)
    got, undecayed, before = (model.by_name(x) for x in (flat(new.parameters), adam, flat(state.parameters)))
    for name in state.network.names:
        decay = 1e-2 * before[name] if name.endswith("kernel") else 0.0
        np.testing.assert_allclose(got[name], undecayed[name] - decay, atol=1e-6)


@pytest.mark.requirement("S1.10")
def test_changing_a_number_compiles_nothing():
    algorithm = small_ppo()
    state, rollout = fixed_case(algorithm)
    learn(algorithm, state, rollout)
    programs = update._cache_size()
    for change in ({"learning_rate": 1e-5}, {"gamma": 1}, {"clip_epsilon": 0.1}, {"entropy_coef": 0}):
        learn(dataclasses.replace(algorithm, **change), state, rollout)
    assert update._cache_size() == programs


# Acting


@pytest.mark.requirement("S4.6")
def test_the_environment_gets_a_clipped_action_and_learning_the_unclipped_sample():
    algorithm = small_ppo()
    spec = dataclasses.replace(CONTINUOUS, action_space=Box(-0.3, 2.0, (2,)))
    state = random_state(algorithm, spec, np.random.default_rng(0))
    obs, noise = np.ones((4, 3), np.float32), np.array([[9, -9], [0, 0], [-9, 9], [1, 1]], np.float32)
    act = jax.jit(algorithm.act, static_argnums=4)
    _, action, extras = act(algorithm.policy(state), (), obs, noise, "explore")
    policy, log_std, _ = oracles.Model(state.network).outputs(flat(state.parameters), obs)
    np.testing.assert_allclose(extras["sample"], policy + np.exp(log_std) * noise, rtol=1e-5)
    assert (np.abs(extras["sample"][0]) > 1).all()
    np.testing.assert_allclose(action, 0.85 + 1.15 * np.clip(extras["sample"], -1, 1), rtol=1e-5)
    expected = oracles.gaussian_log_prob(policy, log_std, extras["sample"])
    np.testing.assert_allclose(extras["log_prob"], expected, rtol=1e-5)
    _, greedy, extras = act(algorithm.policy(state), (), obs, None, "greedy")
    np.testing.assert_allclose(extras["sample"], policy, rtol=1e-5)
    np.testing.assert_allclose(greedy, 0.85 + 1.15 * np.clip(policy, -1, 1), rtol=1e-5)


def test_the_policy_sees_observations_scaled_by_its_own_statistics():
    algorithm = small_ppo(normalize_observations=True)
    state = random_state(algorithm, DISCRETE, np.random.default_rng(0))
    obs, stats = np.float32([[1, 2, 3], [1e6, -1e6, 0]]), state.observations
    noise = np.zeros(2, np.float32)
    _, _, extras = jax.jit(algorithm.act, static_argnums=4)(algorithm.policy(state), (), obs, noise, "explore")
    seen = np.clip((obs - stats.mean) / np.sqrt(stats.variance), -10, 10)
    logits = oracles.Model(state.network).outputs(flat(state.parameters), seen)[0]
    np.testing.assert_allclose(extras["log_prob"], oracles.categorical_log_probabilities(logits)[:, 0], rtol=1e-4)


# Networks of other kinds


class Shared(ActorCritic):
    """A user's own network: one layer that actor and critic share."""

    def __init__(self, spec: Spec, rngs: nnx.Rngs):
        self.torso = nnx.Linear(3, 6, rngs=rngs)
        self.head = ActionHead(6, spec.action_space, rngs=rngs)
        self.value = nnx.Linear(6, 1, rngs=rngs)

    def remember(self, memory, obs):
        return memory, nnx.relu(self.torso(obs))

    def actor(self, features):
        return self.head(features)

    def critic(self, features):
        return self.value(features)[..., 0]


@pytest.mark.requirement("S4.4")
@pytest.mark.requirement("S4.5")
def test_a_network_of_the_users_own_learns_like_any_other():
    algorithm = small_ppo(network=Shared)
    state = algorithm.init(KEY, CONTINUOUS)
    _, rollout = fixed_case(small_ppo(), CONTINUOUS)
    new, metrics = learn(algorithm, state, rollout)
    assert metrics["fault"] == 0
    for before, after in zip(state.parameters, new.parameters, strict=True):
        assert (before != after).any()


@pytest.mark.parametrize("name", ["observations", "returns", "rewards"])
def test_each_kind_of_normalisation_keeps_its_own_statistics(name):
    state = small_ppo(**{f"normalize_{name}": True}).init(KEY, DISCRETE)
    kept = {kind for kind in ("observations", "returns", "rewards") if getattr(state, kind) is not None}
    assert kept == {name}


def test_discrete_observations_are_never_normalised():
    state = small_ppo(**NORMALIZED).init(KEY, Spec(Discrete(5), Discrete(2), NUM_ENVS))
    assert state.observations is None and state.returns is not None and state.rewards is not None


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 1.5}, "algorithm.gamma=1.5: must be between 0 and 1"),
        ({"gamma": float("nan")}, "algorithm.gamma=nan"),
        ({"gae_lambda": -0.1}, "algorithm.gae_lambda=-0.1: must be between 0 and 1"),
        ({"learning_rate": -1.0}, "algorithm.learning_rate=-1.0: must be at least 0"),
        ({"clip_epsilon": -0.2}, "algorithm.clip_epsilon=-0.2"),
        ({"epochs_per_update": 0}, "algorithm.epochs_per_update=0: must be at least 1"),
        ({"minibatch_size": 0}, "algorithm.minibatch_size=0"),
        ({"minibatch_size": 33}, "algorithm.minibatch_size=33: must be at most algorithm.batch_size=32"),
        ({"accumulation_steps": 5}, "algorithm.accumulation_steps=5: must divide algorithm.minibatch_size=32"),
        ({"value_clip_epsilon": 0.2}, "algorithm.value_clip_epsilon needs algorithm.normalize_returns=true"),
        ({"learning_rate": lambda step: -1e-3}, "algorithm.learning_rate=<lambda>: its values must be at least 0"),
        ({"gamma": print}, "algorithm.gamma=print: is no function of progress"),
        ({"gamma": [0.9, 0.99]}, "algorithm.gamma=.0.9, 0.99.: must be a value like 0.99, not a list"),
    ],
)
def test_numbers_that_cannot_work_are_refused_by_name(changes, message):
    with pytest.raises(LudusError, match=message):
        small_ppo(**changes)


class Dropping(Shared):
    """Its answers are random."""

    def __init__(self, spec: Spec, rngs: nnx.Rngs):
        super().__init__(spec, rngs)
        self.layers = nnx.List([nnx.Dropout(0.1, rngs=rngs)])


class Batched(Shared):
    """Its answers depend on the others in the batch."""

    def __init__(self, spec: Spec, rngs: nnx.Rngs):
        super().__init__(spec, rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)


class Memoryless(nnx.Module):
    """Lacks a part of the contract."""

    remember, actor, critic = Shared.remember, Shared.actor, Shared.critic

    def __init__(self, spec: Spec, rngs: nnx.Rngs):
        self.torso = nnx.Linear(3, 6, rngs=rngs)


def test_layers_that_do_nothing_of_the_kind_are_welcome():
    def build(spec: Spec, rngs: nnx.Rngs) -> nnx.Module:
        network = Batched(spec, rngs)
        network.layers = nnx.List([nnx.Dropout(0.5, deterministic=True, rngs=rngs), nnx.LayerNorm(6, rngs=rngs)])
        network.norm.use_running_average = True
        return network

    small_ppo(network=build).validate(CONTINUOUS)


@pytest.mark.parametrize(
    ("changes", "spec", "message"),
    [
        (
            {"network": Dropping},
            CONTINUOUS,
            "algorithm.network=Dropping: its layer layers.0 is a Dropout, which is not",
        ),
        ({"network": Batched}, CONTINUOUS, "algorithm.network=Batched: its layer norm is a BatchNorm, which is not"),
        ({"network": Memoryless}, CONTINUOUS, "=Memoryless: has no initial_memory; inherit from ludus.ActorCritic"),
        ({}, Spec("a dictionary", Discrete(2), 4), "PPO: observation space a dictionary is not supported"),
        ({}, Spec(OBSERVATION_SPACE, "a tuple", 4), "PPO: action space a tuple is not supported"),
        ({}, dataclasses.replace(DISCRETE, num_envs=5), "num_envs=5: must divide algorithm.batch_size=32"),
        (
            RECURRENT | {"segment_length": 8, "accumulation_steps": 4},
            DISCRETE,
            "segments, so every part must be a multiple of algorithm.segment_length=8",
        ),
        ({"minibatch_size": 1}, DISCRETE, "algorithm.minibatch_size=1: must be at least 2, since a single advantage"),
    ],
)
def test_environments_that_cannot_work_are_refused_by_name(changes, spec, message):
    with pytest.raises(LudusError, match=message):
        small_ppo(**changes).validate(spec)


@pytest.mark.requirement("S1.17")
def test_what_can_work_is_accepted_and_the_batch_is_shared_among_environments():
    small_ppo().validate(DISCRETE)
    small_ppo(**RECURRENT).validate(CONTINUOUS)
    assert small_ppo().rollout_length(4) == 8 and PPO().rollout_length(8) == 256
