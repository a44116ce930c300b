"""Distributions against float64, and sampling against the probabilities it promises."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from ludus.networks.distributions import Categorical, Gaussian, TanhGaussian, sampling_noise
from ludus.spaces import Box, Discrete

FORBIDDEN = -np.inf
LARGEST_NOISE = np.float32(0.99999994)  # the largest float32 below 1: what a uniform draw can return

sample = jax.jit(lambda logits, noise: Categorical(logits).sample(noise))


@pytest.mark.requirement("S1.9")
def test_categorical_numbers_equal_float64_in_300_random_cases():
    rng = np.random.default_rng(0)
    assert max(cases.categorical_error(rng) for _ in range(300)) <= 1e-5


@pytest.mark.requirement("S1.9")
def test_gaussian_numbers_equal_float64_in_300_random_cases():
    rng = np.random.default_rng(1)
    assert max(cases.gaussian_error(rng) for _ in range(300)) <= 1e-5


@pytest.mark.requirement("S1.9")
def test_batches_are_rows_of_their_own():
    rng = np.random.default_rng(2)
    logits, action = rng.normal(size=(5, 3, 4)).astype(np.float32), rng.integers(4, size=(5, 3))
    mean, log_std, move = rng.normal(size=(3, 5, 3, 4)).astype(np.float32)
    for distribution, move_or_action in ((Categorical(logits), action), (Gaussian(mean, log_std), move)):
        rows = [
            type(distribution)(*(leaf[i, j] for leaf in distribution)).log_prob(move_or_action[i, j])
            for i, j in np.ndindex(5, 3)
        ]
        np.testing.assert_allclose(distribution.log_prob(move_or_action), np.reshape(rows, (5, 3)), rtol=1e-5)
        assert distribution.entropy().shape == distribution.kl(distribution).shape == (5, 3)
        np.testing.assert_allclose(distribution.kl(distribution), 0, atol=1e-6)


def test_forbidden_actions_leave_everything_finite_and_have_no_gradient():
    logits = jnp.array([0.5, FORBIDDEN, -1.0])

    def total(logits):
        return Categorical(logits).log_prob(jnp.int32(2)) + Categorical(logits).entropy()

    value, gradient = jax.value_and_grad(total)(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all() and gradient[1] == 0
    assert Categorical(logits).log_prob(jnp.int32(1)) == -np.inf
    assert Categorical(logits).kl(Categorical(jnp.zeros(3))) > 0
    assert Categorical(jnp.zeros(3)).kl(Categorical(logits)) == np.inf


def test_huge_logits_stay_finite():
    policy = Categorical(jnp.array([1e4, -1e4, 0.0]))
    assert policy.entropy() == 0 and policy.log_prob(jnp.int32(0)) == 0 and policy.log_prob(jnp.int32(1)) == -2e4


@pytest.mark.requirement("S1.9")
def test_uniform_noise_becomes_actions_in_proportion_to_their_probabilities():
    logits = jnp.array([0.0, 1.0, FORBIDDEN, -1.0, 2.0])
    draws = 100_000
    actions = np.asarray(sample(jnp.broadcast_to(logits, (draws, 5)), jax.random.uniform(jax.random.key(0), (draws,))))
    p = np.exp(oracles.categorical_log_probabilities(logits))
    gap = np.abs(np.bincount(actions, minlength=5) / draws - p)
    assert (gap <= 5 * np.sqrt(p * (1 - p) / draws)).all()
    assert actions.dtype == np.int32


def test_each_action_owns_the_stretch_of_noise_that_its_probability_gives_it():
    logits = np.log(np.array([0.25, 0.5, 0.25], np.float32))
    noise = np.array([0.0, 0.24, 0.26, 0.74, 0.76, LARGEST_NOISE], np.float32)
    np.testing.assert_array_equal(sample(np.tile(logits, (6, 1)), noise), [0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize("n", [2, 3, 8, 33])
def test_an_action_of_probability_zero_is_never_drawn_not_even_at_the_edges(n):
    rng = np.random.default_rng(n)
    logits = rng.normal(scale=3.0, size=(64, n)).astype(np.float32)
    allowed = rng.random((64, n)) < 0.5
    allowed[np.arange(64), rng.integers(n, size=64)] = True
    logits = np.where(allowed, logits, FORBIDDEN)
    edges = np.cumsum(np.asarray(jax.nn.softmax(logits)), axis=-1)  # where rounding could slip into the neighbour
    around = np.concatenate([np.nextafter(edges, 0), edges, np.nextafter(edges, 2)], axis=-1).astype(np.float32)
    noises = np.concatenate([np.zeros((64, 1)), around, np.full((64, 1), LARGEST_NOISE)], axis=-1)
    for noise in np.clip(noises, 0, LARGEST_NOISE).astype(np.float32).T:
        assert allowed[np.arange(64), np.asarray(sample(logits, noise))].all()


@pytest.mark.requirement("S1.9")
def test_gaussian_samples_have_the_mean_deviation_and_independence_they_promise():
    draws, mean, log_std = 100_000, np.array([1.0, -2.0]), np.array([-1.0, 0.5])
    noise = sampling_noise(Box(-1.0, 1.0, (2,)), jax.random.key(0), (draws,))
    actions = np.asarray(Gaussian(jnp.array(mean), jnp.array(log_std)).sample(noise), np.float64)
    std = np.exp(log_std)
    assert (np.abs(actions.mean(axis=0) - mean) <= 5 * std / np.sqrt(draws)).all()
    assert (np.abs(actions.std(axis=0) / std - 1) <= 5 / np.sqrt(2 * draws)).all()
    assert abs(np.corrcoef(actions.T)[0, 1]) <= 5 / np.sqrt(draws)


def test_modes_are_the_likeliest_actions():
    assert Categorical(jnp.array([0.1, 3.0, 2.0])).mode() == 1
    np.testing.assert_array_equal(Gaussian(jnp.array([1.0, -2.0]), jnp.zeros(2)).mode(), [1.0, -2.0])


def test_noise_has_one_number_for_a_choice_and_one_for_each_dimension_of_a_box():
    key = jax.random.key(0)
    assert sampling_noise(Discrete(4), key, (5, 3)).shape == (5, 3)
    assert sampling_noise(Box(-1.0, 1.0, (2, 3)), key, (5, 3)).shape == (5, 3, 6)
    uniform = sampling_noise(Discrete(4), key, (10_000,))
    assert uniform.min() >= 0 and uniform.max() < 1


def test_the_entropy_of_a_squashed_gaussian_is_the_mean_of_its_surprise():
    mean = np.array([[0.0, -0.5], [1.5, 3.0], [-4.0, 0.2]], np.float32)
    log_std = np.array([[0.0, -2.0], [0.5, -1.0], [-3.0, 0.3]], np.float32)
    distribution = TanhGaussian(mean, log_std)
    noise = np.random.default_rng(0).standard_normal((200_000, 3, 2)).astype(np.float32)
    surprise = -np.asarray(distribution.log_prob(distribution.sample(noise)), np.float64)
    error = surprise.std(axis=0) / np.sqrt(len(noise))
    assert (np.abs(np.asarray(distribution.entropy()) - surprise.mean(axis=0)) < 4 * error).all()


@pytest.mark.parametrize("log_std", [-5.0, -1.0, 0.0, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("mean", [0.0, 0.7, -3.0, 12.0])
def test_the_entropy_of_a_squashed_gaussian_equals_its_integral_in_float64(mean, log_std):
    """H = -integral of p(u) log(p(u) / (1 - tanh(u)^2)), by half a million steps."""
    std = np.exp(log_std)
    u = mean + std * np.linspace(-12.0, 12.0, 500_001)
    log_p = -0.5 * ((u - mean) / std) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    log_slope = 2 * (np.log(2.0) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
    expected = -(np.exp(log_p) * (log_p - log_slope)).sum() * (u[1] - u[0])
    got = TanhGaussian(jnp.full(1, mean), jnp.full(1, log_std)).entropy()
    assert got == pytest.approx(expected, rel=1e-5, abs=2e-5)
