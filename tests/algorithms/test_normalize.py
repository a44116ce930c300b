"""Running statistics against NumPy over all data at once, and the safety of every division."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ludus.algorithms.normalize import (
    CLIP,
    RunningStatistics,
    empty_statistics,
    explained_variance,
    location_and_scale,
    normalize,
    standardize,
    update_statistics,
)
from ludus.algorithms.observations import observation_statistics
from ludus.spaces import FeatureGroup, grouped, join_groups, split_groups, structured

take_in = jax.jit(update_statistics)
normalized = jax.jit(normalize)


def taken_in(batches: list[np.ndarray]) -> RunningStatistics:
    stats = empty_statistics(batches[0].shape[2:])
    for batch in batches:
        stats = take_in(stats, batch)
    return stats


@pytest.mark.parametrize("lengths", [[64], [1, 63], [32, 32], [1, 2, 4, 8, 49]])
def test_statistics_equal_those_of_all_data_however_it_is_cut(lengths):
    data = np.random.default_rng(0).normal([3.0, -1.0], [2.0, 0.5], (64, 4, 2)).astype(np.float32)
    stats = taken_in(np.split(data, np.cumsum(lengths)[:-1]))
    everything = data.astype(np.float64).reshape(-1, 2)
    np.testing.assert_allclose(stats.mean, everything.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(stats.variance, everything.var(axis=0), rtol=1e-5)
    assert stats.count == 256


def test_a_large_offset_does_not_swallow_the_variance():
    data = np.random.default_rng(1).normal(1e4, 1.0, (512, 4)).astype(np.float32)
    stats = taken_in(np.split(data, 16))
    assert stats.mean == pytest.approx(data.astype(np.float64).mean(), abs=5e-3)
    assert stats.variance == pytest.approx(data.astype(np.float64).var(), rel=1e-3)


def test_rows_that_are_not_valid_are_left_out_whatever_they_hold():
    rng = np.random.default_rng(2)
    data, valid = rng.normal(size=(16, 4, 2)).astype(np.float32), rng.random((16, 4)) < 0.6
    garbage = np.where(valid[..., None], data, np.nan)
    before = taken_in([data])
    stats = update_statistics(before, garbage, valid)
    seen = np.concatenate([data.reshape(-1, 2), data[valid]]).astype(np.float64)
    np.testing.assert_allclose(stats.mean, seen.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(stats.variance, seen.var(axis=0), rtol=1e-5)
    assert stats.count == len(seen)


def test_a_batch_without_valid_rows_changes_nothing():
    some = taken_in([np.random.default_rng(3).normal(size=(8, 4, 2)).astype(np.float32)])
    for before in (some, empty_statistics((2,))):
        after = update_statistics(before, np.full((8, 4, 2), np.nan, np.float32), np.zeros((8, 4), bool))
        jax.tree.map(np.testing.assert_array_equal, after, before)


def test_integer_data_is_taken_in_as_numbers():
    stats = taken_in([np.array([[0, 255], [255, 0]], np.uint8)])
    assert (float(stats.mean), float(stats.variance)) == (127.5, 127.5**2)


def test_normalised_data_has_mean_zero_and_deviation_one_and_is_clipped():
    data = np.random.default_rng(4).normal(5.0, 3.0, (64, 8)).astype(np.float32)
    stats = taken_in([data])
    scaled = np.asarray(normalize(stats, data))
    assert (scaled.mean(), scaled.std()) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))
    np.testing.assert_array_equal(normalize(stats, np.array([1e9, -1e9], np.float32)), [CLIP, -CLIP])
    assert CLIP == 10


def test_empty_statistics_and_none_change_nothing_within_the_clip():
    x = np.linspace(-9.0, 9.0, 7, dtype=np.float32)
    np.testing.assert_array_equal(normalize(None, x * 100), x * 100)
    np.testing.assert_array_equal(normalize(empty_statistics(()), x), x)
    assert location_and_scale(None) == (0.0, 1.0)


@pytest.mark.requirement("S1.30")
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e4])
def test_constant_data_is_normalised_to_something_finite(constant):
    data = np.full((64, 4), constant, np.float32)
    stats = taken_in([data, data])
    assert np.isfinite(normalize(stats, data)).all()
    assert np.isfinite(normalize(stats, data + 1)).all()
    assert stats.variance >= 0


def equal_weights(n: int) -> jax.Array:
    return jnp.full(n, 1 / n)


@pytest.mark.requirement("S1.8")
@pytest.mark.requirement("S0.15")
def test_a_minibatch_is_standardised_by_the_rows_that_count():
    x, weight = np.random.default_rng(5).normal(3.0, 2.0, 50).astype(np.float32), np.zeros(50, np.float32)
    weight[:30] = 1 / 30
    chosen = x[:30].astype(np.float64)
    expected = (x - chosen.mean()) / (chosen.std() + 1e-8)
    np.testing.assert_allclose(standardize(x, weight), expected, atol=1e-5)


@pytest.mark.requirement("S0.15")
def test_one_sample_is_standardised_to_zero():
    np.testing.assert_array_equal(standardize(jnp.array([123.4]), equal_weights(1)), [0.0])


@pytest.mark.requirement("S1.8")
@pytest.mark.requirement("S1.30")
def test_equal_samples_are_standardised_to_zeros():
    for n in (2, 3, 10, 48, 64, 100):
        for constant in (0.1, 5.0, 123.4, -1e4):
            assert np.abs(standardize(jnp.full(n, constant), equal_weights(n))).max() < 1e-3


def test_explained_variance_is_its_formula_and_zero_for_a_constant_target():
    rng = np.random.default_rng(6)
    target, prediction = rng.normal(size=(2, 8, 4)).astype(np.float32)
    valid = rng.random((8, 4)) < 0.5
    for rows in (None, valid):
        chosen = np.s_[:] if rows is None else valid
        expected = 1 - (target - prediction)[chosen].var(dtype=np.float64) / target[chosen].var(dtype=np.float64)
        assert explained_variance(prediction, target, rows) == pytest.approx(expected, rel=1e-5)
    assert explained_variance(target, target, None) == 1
    assert explained_variance(prediction, jnp.ones((8, 4)), None) == 0
    assert explained_variance(prediction, target, np.zeros((8, 4), bool)) == 0


GROUPS = grouped([FeatureGroup("ego", (2,)), FeatureGroup("cars", (2, 3, 3), valid=2)], -9.0, 9.0)


def cars_and_more(steps: int) -> np.ndarray:
    """A rollout `[steps, 4, 20]` in which half of the tokens are missing, and hold numbers of another kind."""
    rng = np.random.default_rng(steps)
    x = rng.normal(3.0, 2.0, (steps, 4, 20)).astype(np.float32)
    cars = x[..., 2:].reshape(steps, 4, 6, 3)
    cars[..., 2] = rng.integers(0, 2, cars.shape[:-1])
    cars[cars[..., 2] == 0, :2] = 1e6
    return x


@pytest.mark.requirement("S2.26")
def test_tokens_of_a_group_are_measured_together_and_those_that_are_not_there_not_at_all():
    batches, stats = [cars_and_more(5), cars_and_more(3)], observation_statistics(GROUPS)
    valid = np.ones((5, 4), bool)
    valid[2, 1] = False
    for x, rows in zip(batches, (jnp.asarray(valid), None), strict=True):
        stats = take_in(stats, jnp.asarray(x), rows)
    seen = np.concatenate([batches[0][valid], batches[1].reshape(-1, 20)]).astype(np.float64)
    cars = seen[:, 2:].reshape(-1, 3)
    cars = cars[cars[:, 2] == 1]
    for i, rows in enumerate((seen[:, :2], cars)):
        np.testing.assert_allclose(stats.groups[i].mean, rows.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(stats.groups[i].variance, rows.var(axis=0), rtol=1e-4, atol=1e-6)
        assert stats.groups[i].count == len(rows)
    made = np.asarray(normalized(stats, jnp.asarray(batches[1])))
    assert made.shape == batches[1].shape
    before, after = (x[..., 2:].reshape(-1, 3) for x in (batches[1], made))
    there = before[:, 2] == 1
    expected = (before[there, :2] - cars[:, :2].mean(axis=0)) / np.sqrt(cars[:, :2].var(axis=0) + 1e-8)
    np.testing.assert_allclose(after[there, :2], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(after[~there], 0.0)
    np.testing.assert_array_equal(after[:, 2], before[:, 2], "what says which are there stays")


def test_a_dict_of_groups_is_normalised_as_the_flat_vector():
    x, space = cars_and_more(4), structured(GROUPS)
    flat = take_in(observation_statistics(GROUPS), jnp.asarray(x))
    parts = {name: jnp.asarray(part) for name, part in split_groups(GROUPS, x).items()}
    apart = normalized(take_in(observation_statistics(space), parts), parts)
    np.testing.assert_allclose(join_groups(GROUPS, apart), normalized(flat, jnp.asarray(x)), rtol=1e-5, atol=1e-6)
