"""Padding rows change nothing: no loss, no statistic, no metric, whatever lies in them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    CONTINUOUS,
    DISCRETE,
    NORMALIZED,
    NUM_ENVS,
    NUM_STEPS,
    RECURRENT,
    SEVERAL,
    VALUE_CLIPPING,
    random_rollout,
    random_state,
    small_ppo,
    update,
    update_errors,
)

from ludus.algorithms.hyperparameters import as_arrays
from ludus.spaces import Box
from ludus.types import Rollout

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
PADDED = 2 * NUM_STEPS


def ragged(steps: int = NUM_STEPS) -> np.ndarray:
    """Episodes of four different lengths, the rest padding."""
    return np.arange(steps)[:, None] < np.array([steps, steps - 2, 3, 1])


def padded(rollout: Rollout, garbage: float) -> Rollout:
    """Append as many rows again, full of garbage."""

    def longer(x: np.ndarray) -> np.ndarray:
        junk = x if x.dtype != np.float32 else np.full_like(x, garbage)
        return np.concatenate([x, junk])

    valid = np.arange(PADDED)[:, None] < np.full(NUM_ENVS, NUM_STEPS)
    return rollout._replace(steps=jax.tree.map(longer, rollout.steps)._replace(valid=valid))


@pytest.mark.requirement("S3.12")
def test_an_update_with_padding_equals_the_update_without():
    algorithm = as_arrays(small_ppo(**NORMALIZED, **VALUE_CLIPPING))
    state = random_state(algorithm, DISCRETE, np.random.default_rng(0))
    rollout = random_rollout(state, np.random.default_rng(1))
    steps = rollout.steps
    steps.truncated[-1] = ~steps.terminated[-1]  # padding begins where an episode ends
    expected, metrics = update(algorithm, state, rollout, KEY)
    got, padded_metrics = update(algorithm, state, padded(rollout, np.nan), KEY)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected)
    assert set(metrics) == set(padded_metrics)
    for name, value in metrics.items():
        assert padded_metrics[name] == pytest.approx(np.asarray(value), rel=1e-5, abs=1e-6), name


@pytest.mark.requirement("S3.12")
@pytest.mark.parametrize(
    ("spec", "changes"),
    [(CONTINUOUS, NORMALIZED | SEVERAL), (DISCRETE, RECURRENT)],
    ids=["continuous, normalised", "recurrent"],
)
def test_ragged_padding_equals_float64_numpy_over_the_valid_rows(spec, changes):
    """Minibatches of 8 or 16 rows over 20 valid ones: some are filled by half, some skipped."""
    algorithm = small_ppo(**changes)
    rng = np.random.default_rng(2)
    state = random_state(algorithm, spec, rng)
    errors = update_errors(algorithm, state, with_ends(random_rollout(state, rng, valid=ragged())), KEY)
    assert max(errors.values()) <= 1e-5, errors


def holes(steps: int = NUM_STEPS) -> np.ndarray:
    """An episode lost in the middle, one at the start, one at the end, none: what broken workers leave."""
    valid = np.ones((steps, NUM_ENVS), bool)
    valid[2:5, 0] = valid[:3, 1] = valid[-2:, 2] = False
    return valid


@pytest.mark.parametrize(
    ("spec", "changes"),
    [(CONTINUOUS, NORMALIZED | SEVERAL), (DISCRETE, RECURRENT)],
    ids=["continuous, normalised", "recurrent"],
)
def test_lost_episodes_equal_float64_numpy_over_the_rest_whatever_lies_in_them(spec, changes):
    algorithm = small_ppo(**changes)
    rng = np.random.default_rng(2)
    state = random_state(algorithm, spec, rng)
    rollout = with_ends(random_rollout(state, rng, valid=holes()))
    errors = update_errors(algorithm, state, rollout, KEY)
    assert max(errors.values()) <= 1e-5, errors
    steps, garbage = rollout.steps, np.where(holes(), 0, np.nan)
    littered = rollout._replace(
        steps=steps._replace(
            obs=steps.obs + garbage[:, :, None].astype(np.float32),
            next_obs=steps.next_obs + garbage[:, :, None].astype(np.float32),
            reward=(steps.reward + garbage).astype(np.float32),
            truncated=steps.truncated & steps.valid,
        )
    )
    results = [update(as_arrays(algorithm), state, each, KEY) for each in (rollout, littered)]
    jax.tree.map(np.testing.assert_array_equal, *results)


def with_ends(rollout: Rollout) -> Rollout:
    """End every episode where its padding begins, and zero what comes after."""
    valid = rollout.steps.valid
    last = valid & ~np.vstack([valid[1:], np.zeros((1, NUM_ENVS), bool)])
    steps = rollout.steps._replace(
        terminated=rollout.steps.terminated & valid & ~last,
        truncated=(rollout.steps.truncated & valid) | last | ~valid,
        reward=np.where(valid, rollout.steps.reward, 0),
    )
    return rollout._replace(steps=steps)


@pytest.mark.requirement("S3.12")
def test_what_lies_in_padding_never_matters_to_a_single_bit():
    algorithm = as_arrays(small_ppo(**NORMALIZED, **VALUE_CLIPPING))
    state = random_state(algorithm, DISCRETE, np.random.default_rng(0))
    rollout = random_rollout(state, np.random.default_rng(1))
    results = [update(algorithm, state, padded(rollout, junk), KEY) for junk in (0.0, np.nan, np.inf, -1e30)]
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, other, results[0])
    assert results[0][1]["fault"] == 0 and results[0][1]["updates"] == 1


@pytest.mark.requirement("S3.12")
def test_a_rollout_of_padding_alone_teaches_nothing():
    algorithm = as_arrays(small_ppo(**NORMALIZED, **VALUE_CLIPPING))
    state = random_state(algorithm, DISCRETE, np.random.default_rng(0))
    rollout = padded(random_rollout(state, np.random.default_rng(1)), np.nan)
    nothing = rollout._replace(steps=rollout.steps._replace(valid=np.zeros((PADDED, NUM_ENVS), bool)))
    new, metrics = update(algorithm, state, nothing, KEY)
    assert metrics["updates"] == 0 and metrics["fault"] == 0
    same = dataclasses.replace(new, discounted=state.discounted)  # every episode has ended, so no return is running
    jax.tree.map(np.testing.assert_array_equal, same, state)


@pytest.mark.requirement("S0.15")
def test_one_valid_sample_has_no_policy_loss_and_no_nan():
    algorithm = as_arrays(small_ppo(**NORMALIZED, **VALUE_CLIPPING))
    state = random_state(algorithm, DISCRETE, np.random.default_rng(0))
    rollout = padded(random_rollout(state, np.random.default_rng(1)), np.nan)
    valid = np.zeros((PADDED, NUM_ENVS), bool)
    valid[0, 0] = True
    new, metrics = update(algorithm, state, rollout._replace(steps=rollout.steps._replace(valid=valid)), KEY)
    assert metrics["policy_loss"] == 0 and metrics["fault"] == 0 and metrics["updates"] == 1
    assert new.observations.count == state.observations.count + 1


def test_padding_of_a_sharp_policy_over_many_dimensions_changes_nothing():
    algorithm = small_ppo()
    spec = dataclasses.replace(CONTINUOUS, action_space=Box(-1.0, 1.0, (40,)))
    state = algorithm.init(KEY, spec)
    named = zip(state.network.names, state.parameters, strict=True)
    sharp = tuple(jnp.full_like(leaf, -4.0) if name == "actor_head/log_std" else leaf for name, leaf in named)
    state = dataclasses.replace(state, parameters=sharp)
    rollout = with_ends(random_rollout(state, np.random.default_rng(1), valid=ragged()))
    _, metrics = update(as_arrays(algorithm), state, rollout, KEY)
    assert metrics["fault"] == 0


def names_and_shapes(state):
    return zip(state.network.names, state.network.shapes, strict=True)
