"""Distributions of many parts against float64 sums over every joint outcome, and masks that forbid some of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from ludus.networks.action_scaling import action_size, to_environment
from ludus.networks.distributions import (
    Bernoulli,
    Categorical,
    Composite,
    Gaussian,
    MultiCategorical,
    distribution_for,
    restricted,
    sampling_noise,
)
from ludus.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

SIZES = (3, 1, 4, 2)
CHOICES = MultiDiscrete(SIZES)
COINS = MultiBinary(5)
DRAWS = 60_000


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x - x.max()).sum()) - x.max()


def component_tables(space, outputs: np.ndarray) -> list[np.ndarray]:
    """Log probabilities of each component, one after the other."""
    outputs = np.asarray(outputs, np.float64)
    if isinstance(space, MultiBinary):
        return [np.array([-np.logaddexp(0, x), -np.logaddexp(0, -x)]) for x in outputs]
    return [log_softmax(part) for part in np.split(outputs, np.cumsum(space.sizes)[:-1])]


def joint(space, outputs: np.ndarray) -> dict[tuple[int, ...], float]:
    """Log probability of every joint outcome."""
    tables = component_tables(space, outputs)
    outcomes = itertools.product(*(range(len(table)) for table in tables))
    return {o: float(sum(table[value] for table, value in zip(tables, o, strict=True))) for o in outcomes}


@pytest.mark.parametrize("space", [CHOICES, MultiDiscrete((3, 3)), COINS], ids=repr)
def test_log_probability_entropy_and_divergence_equal_float64_sums_over_all_joint_outcomes(space):
    rng = np.random.default_rng(0)
    size = action_size(space)
    for scale in (0.1, 1.0, 5.0):
        one, two = rng.normal(scale=scale, size=(2, size)).astype(np.float32)
        p, q = joint(space, one), joint(space, two)
        assert sum(np.exp(list(p.values()))) == pytest.approx(1)
        mine, theirs = distribution_for(space, one, None), distribution_for(space, two, None)
        outcomes = np.array(list(p), np.int32)
        got = distribution_for(space, np.broadcast_to(one, (len(outcomes), size)), None).log_prob(outcomes)
        np.testing.assert_allclose(got, list(p.values()), rtol=1e-5, atol=1e-5)
        entropy = -sum(np.exp(x) * x for x in p.values())
        assert float(mine.entropy()) == pytest.approx(entropy, rel=1e-5, abs=1e-6)
        divergence = sum(np.exp(p[o]) * (p[o] - q[o]) for o in p)
        assert float(mine.kl(theirs)) == pytest.approx(divergence, rel=1e-4, abs=1e-5)
        assert tuple(np.asarray(mine.mode()).tolist()) == max(p, key=p.get)


@pytest.mark.parametrize("space", [CHOICES, COINS], ids=repr)
def test_joint_outcomes_are_drawn_as_often_as_they_are_likely(space):
    outputs = np.random.default_rng(1).normal(size=action_size(space)).astype(np.float32)
    noise = sampling_noise(space, jax.random.key(0), (DRAWS,))
    drawn = distribution_for(space, jnp.broadcast_to(outputs, (DRAWS, len(outputs))), None).sample(noise)
    assert drawn.dtype == jnp.int32 and drawn.shape == (DRAWS, len(component_tables(space, outputs)))
    outcomes, counts = np.unique(np.asarray(drawn), axis=0, return_counts=True)
    seen = {tuple(o.tolist()): count / DRAWS for o, count in zip(outcomes, counts, strict=True)}
    for outcome, log_p in joint(space, outputs).items():
        p = np.exp(log_p)
        assert abs(seen.get(outcome, 0.0) - p) <= 5 * np.sqrt(p * (1 - p) / DRAWS) + 1e-9


def test_extreme_coins_stay_finite():
    coins = Bernoulli(jnp.array([200.0, -200.0]))
    assert coins.log_prob(jnp.array([1, 0])) == 0 and coins.entropy() == 0
    assert coins.log_prob(jnp.array([0, 1])) == -400
    gradient = jax.grad(lambda x: Bernoulli(x).entropy() + Bernoulli(x).log_prob(jnp.array([0, 0])))(coins.logits)
    assert np.isfinite(gradient).all()


# Dict and Tuple


BODY = Dict({"arm": Tuple([Box(-1.0, 3.0, (2, 1)), Discrete(3, start=5)]), "grip": COINS, "leg": Box(0.0, 1.0, (1,))})


def test_parts_of_a_dict_are_independent_and_each_gets_its_own_outputs():
    rng = np.random.default_rng(2)
    outputs, log_std = rng.normal(size=(4, 11)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    assert action_size(BODY) == 11
    whole = distribution_for(BODY, outputs, log_std)
    parts = (
        Gaussian(outputs[:, :2], jnp.broadcast_to(log_std[:2], (4, 2))),
        Categorical(outputs[:, 2:5]),
        Bernoulli(outputs[:, 5:10]),
        Gaussian(outputs[:, 10:], jnp.broadcast_to(log_std[2:], (4, 1))),
    )
    jax.tree.map(np.testing.assert_array_equal, whole, Composite(parts))
    noise = sampling_noise(BODY, jax.random.key(0), (4,))
    action = whole.sample(noise)
    for part, sample, row in zip(parts, action, noise, strict=True):
        np.testing.assert_array_equal(part.sample(row), sample)
    other = distribution_for(BODY, outputs + 1, log_std - 1)
    for name, arguments in (("log_prob", (action,)), ("entropy", ()), ("kl", (other,))):
        total = np.zeros(4)
        for i, part in enumerate(parts):
            own = [argument.parts[i] if name == "kl" else argument[i] for argument in arguments]
            total += np.asarray(getattr(part, name)(*own), np.float64)
        np.testing.assert_allclose(getattr(whole, name)(*arguments), total, rtol=1e-5)


def test_noise_of_different_parts_is_different():
    noise = sampling_noise(Tuple([COINS, COINS]), jax.random.key(0), (7,))
    assert not np.intersect1d(*noise).size


def test_samples_reach_the_environment_in_its_own_terms():
    samples = (jnp.array([[-1.0, 9.0]]), jnp.array([2]), jnp.array([[1, 0, 1, 0, 0]]), jnp.array([[0.0]]))
    got = to_environment(BODY, samples)
    assert got.keys() == {"arm", "grip", "leg"}
    np.testing.assert_array_equal(got["arm"][0], [[[-1.0], [3.0]]])
    np.testing.assert_array_equal(got["arm"][1], [7])
    np.testing.assert_array_equal(got["leg"], [[0.5]])
    many = to_environment(MultiDiscrete([[2, 3], [4, 5]], start=[[0, 10], [0, -3]]), jnp.array([[1, 2, 3, 4]]))
    np.testing.assert_array_equal(many, [[[1, 12], [3, 1]]])
    assert many.dtype == got["arm"][1].dtype == jnp.int32


# Masks


def test_a_mask_forbids_and_the_rest_is_scaled_up():
    logits = np.array([0.5, 3.0, -1.0, 0.2], np.float32)
    mask = np.array([True, False, True, True])
    got = restricted(Discrete(4), Categorical(logits), mask)
    np.testing.assert_allclose(got.log_probabilities[mask], log_softmax(logits[mask]), rtol=1e-6)
    assert got.log_prob(jnp.int32(1)) == -np.inf and got.mode() == 0
    p = np.exp(log_softmax(logits[mask]))
    assert float(got.entropy()) == pytest.approx(-(p * np.log(p)).sum())


def test_a_mask_of_many_choices_is_one_component_after_the_other():
    rng = np.random.default_rng(3)
    outputs = rng.normal(size=action_size(CHOICES)).astype(np.float32)
    mask = np.array([True, False, True, True, False, True, True, False, False, True])
    got = restricted(CHOICES, distribution_for(CHOICES, outputs, None), mask)
    full = component_tables(CHOICES, np.where(mask, outputs, -np.inf))
    entropy = -sum((np.exp(t[np.isfinite(t)]) * t[np.isfinite(t)]).sum() for t in full)
    assert float(got.entropy()) == pytest.approx(entropy, rel=1e-5)
    noise = sampling_noise(CHOICES, jax.random.key(0), (5000,))
    many = MultiCategorical(jnp.broadcast_to(got.logits, (5000, *got.logits.shape)))
    drawn = np.asarray(many.sample(noise))
    offsets = np.cumsum([0, *SIZES[:-1]])
    assert mask[drawn + offsets].all(), "a forbidden value was drawn"
    assert {tuple(x) for x in drawn.tolist()} == set(itertools.product([0, 2], [0], [1, 2], [1]))


def test_no_mask_changes_nothing_and_gradients_of_the_forbidden_vanish():
    policy = Categorical(jnp.array([0.5, 3.0, -1.0]))
    assert restricted(Discrete(3), policy, None) is policy

    def total(outputs):
        mask = jnp.array([True, False, True, True, False, True, True, False, False, True])
        policy = restricted(CHOICES, distribution_for(CHOICES, outputs, None), mask)
        return policy.log_prob(jnp.array([2, 0, 1, 1])) + policy.entropy()

    gradient = jax.grad(total)(jnp.linspace(-1.0, 1.0, 10))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[np.array([1, 3, 4, 7, 8, 9])], 0)
    assert np.asarray(gradient)[np.array([0, 2, 5, 6])].all()


def test_the_oracle_agrees_with_the_one_of_single_choices():
    logits = np.array([0.3, -2.0, 1.0])
    np.testing.assert_allclose(log_softmax(logits), oracles.categorical_log_probabilities(logits))
