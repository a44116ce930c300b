"""The terms of PPO's loss against their definitions by cases, and the gradients that clipping must stop."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from ludus.algorithms.losses import approximate_kl, clipped_surrogate, value_loss

EPSILON = 0.2


@pytest.mark.requirement("S1.4")
@pytest.mark.requirement("S3.7")
def test_the_surrogate_equals_its_definition_by_cases():
    rng = np.random.default_rng(0)
    ratio, advantage = rng.uniform(0.2, 2.0, 1000).astype(np.float32), rng.normal(size=1000).astype(np.float32)
    expected = [oracles.clipped_surrogate(r, a, EPSILON) for r, a in zip(ratio, advantage, strict=True)]
    np.testing.assert_allclose(clipped_surrogate(ratio, advantage, EPSILON), expected, atol=1e-6)


@pytest.mark.requirement("S0.16")
@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [
        (1.3, 2.0, 0.0),  # likelier already, and good: stop
        (0.7, -2.0, 0.0),  # rarer already, and bad: stop
        (1.3, -2.0, 2.0),  # likelier, but bad: the way back is open
        (0.7, 2.0, -2.0),
        (1.0, 2.0, -2.0),
        (1.0, -2.0, 2.0),
    ],
)
def test_the_gradient_vanishes_only_past_the_clip_in_the_direction_of_the_advantage(ratio, advantage, slope):
    assert jax.grad(clipped_surrogate)(ratio, advantage, EPSILON) == slope


@pytest.mark.requirement("S0.17")
def test_the_value_loss_is_half_the_squared_error():
    assert value_loss(jnp.float32(3.0), jnp.float32(100.0), jnp.float32(1.0), None) == 2.0


@pytest.mark.requirement("S3.8")
def test_the_clipped_value_loss_is_the_elementwise_larger_one():
    rng = np.random.default_rng(1)
    value, old, target = rng.normal(size=(3, 1000)).astype(np.float32)
    expected = [oracles.value_loss(*triple, EPSILON) for triple in zip(value, old, target, strict=True)]
    np.testing.assert_allclose(value_loss(value, old, target, EPSILON), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.requirement("S3.8")
def test_clipping_stops_a_value_that_has_moved_far_towards_its_target_but_not_one_that_moved_away():
    slope = jax.grad(value_loss)
    assert slope(1.5, 1.0, 3.0, EPSILON) == 0.0
    assert slope(0.5, 1.0, 3.0, EPSILON) == -2.5


@pytest.mark.requirement("S3.36")
def test_the_kl_estimate_is_never_negative_and_equals_its_formula():
    small = np.float32(10.0) ** np.arange(-12, 0, dtype=np.float32)
    log_ratio = np.concatenate([-small, [0.0], small, np.linspace(-5, 5, 101)]).astype(np.float32)
    got, x = np.asarray(approximate_kl(log_ratio)), log_ratio.astype(np.float64)
    assert (got >= 0).all()
    np.testing.assert_allclose(got, np.expm1(x) - x, rtol=1e-5, atol=1e-8)


def test_the_kl_estimate_is_unbiased():
    """Its mean under the old policy is KL(old || new)."""
    old, new = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    estimate = approximate_kl(np.log(new / old).astype(np.float32))
    assert np.sum(old * np.asarray(estimate)) == pytest.approx(np.sum(old * np.log(old / new)), abs=1e-6)
