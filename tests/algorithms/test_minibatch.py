"""Every epoch visits every row once, in an order of its own, with padding last."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ludus.algorithms.minibatch import (
    INDEX_BITS,
    accumulated,
    argsort_at_once,
    blank_padding,
    minibatch_indices,
    scan_minibatches,
    weighted_means,
)
from ludus.types import Transition

MANY = 20_000
assert MANY > 1 << INDEX_BITS, "too few rows for the order of many rows to be tested"


@pytest.mark.requirement("S3.4")
@pytest.mark.requirement("S1.16")
@pytest.mark.parametrize(
    ("rows", "size", "epochs"), [(12, 4, 3), (12, 12, 2), (5, 1, 1), (48, 16, 10), (MANY, 5_000, 2)]
)
def test_each_epoch_visits_each_row_exactly_once(rows, size, epochs):
    indices = np.asarray(minibatch_indices(jax.random.key(0), rows, size, epochs))
    assert indices.shape == (epochs * rows // size, size)
    np.testing.assert_array_equal(np.sort(indices.reshape(epochs, rows), axis=1), [range(rows)] * epochs)


@pytest.mark.requirement("S3.4")
@pytest.mark.parametrize("rows", [64, MANY])
def test_epochs_and_keys_give_different_orders(rows):
    first, second = np.asarray(minibatch_indices(jax.random.key(0), rows, rows, 2))
    other = np.asarray(minibatch_indices(jax.random.key(1), rows, rows, 1))[0]
    assert (first != second).any() and (first != other).any() and (first != np.arange(rows)).any()


def test_every_row_is_as_likely_to_come_at_every_position():
    rows, repeats = 8, 4000
    draw = jax.jit(jax.vmap(lambda key: minibatch_indices(key, rows, rows, 1)[0]))
    orders = np.asarray(draw(jax.random.split(jax.random.key(0), repeats)))
    counts = np.stack([np.bincount(orders[:, position], minlength=rows) for position in range(rows)])
    chi_square = np.sum((counts - repeats / rows) ** 2 / (repeats / rows))
    # 49 degrees of freedom: mean 49, deviation 10; six deviations away is no accident.
    assert chi_square < 49 + 60


@pytest.mark.parametrize("rows", [32, MANY])
def test_padding_comes_last_in_every_epoch(rows):
    valid = np.random.default_rng(0).random(rows) < 0.5
    indices = np.asarray(minibatch_indices(jax.random.key(0), rows, 8, 3, valid)).reshape(3, rows)
    np.testing.assert_array_equal(valid[indices], [np.sort(valid)[::-1]] * 3)
    np.testing.assert_array_equal(np.sort(indices, axis=1), [range(rows)] * 3)


@pytest.mark.parametrize("rows", [1, 2, 3, 10])
def test_one_sort_of_all_rows_sorts_each_of_them(rows):
    """What a GPU does with many rows; equal numbers stay in the order of their indices."""
    numbers = np.random.default_rng(0).integers(0, 2**32, (rows, 500), np.uint32)
    numbers[:, 100:200] = numbers[:, :100]
    coarse = numbers >> np.uint32((rows - 1).bit_length())
    np.testing.assert_array_equal(argsort_at_once(jnp.asarray(numbers)), np.argsort(coarse, axis=1, stable=True))


def test_padding_at_the_end_does_not_change_the_order_of_the_rest():
    padded = np.asarray(minibatch_indices(jax.random.key(3), 24, 24, 1, np.arange(24) < 16))[0]
    np.testing.assert_array_equal(padded[:16], minibatch_indices(jax.random.key(3), 16, 16, 1)[0])


def test_a_scan_hands_each_step_its_rows_and_skips_what_it_is_told_to():
    samples = {"x": jnp.arange(6.0), "n": jnp.arange(6), "flag": jnp.arange(6) % 2 == 0}
    indices = jnp.array([[0, 3], [5, 1], [2, 4]])

    def step(total, part):
        return total + part["x"].sum(), jnp.stack([part["x"].sum(), part["n"].sum(), part["flag"].sum()])

    total, rows = scan_minibatches(step, jnp.float32(0), samples, indices)
    assert total == 15
    np.testing.assert_array_equal(rows, [[3, 3, 1], [6, 6, 0], [6, 6, 2]])
    total, rows = scan_minibatches(step, jnp.float32(0), samples, indices, lambda _, part: ~part["flag"].any())
    assert total == 9
    np.testing.assert_array_equal(rows, [[3, 3, 1], [0, 0, 0], [6, 6, 2]])


@pytest.mark.requirement("S1.37")
@pytest.mark.parametrize("parts", [1, 2, 3, 12])
def test_accumulation_sums_over_all_parts(parts):
    x = jnp.arange(24.0).reshape(12, 2)
    got = accumulated(lambda part: (part.sum(axis=0), jnp.square(part).sum()), x, parts)
    np.testing.assert_allclose(got[0], x.sum(axis=0))
    np.testing.assert_allclose(got[1], jnp.square(x).sum())


@pytest.mark.requirement("S1.37")
def test_accumulation_needs_less_memory():
    weights, rows = jnp.zeros((32, 32)), jnp.zeros((4096, 32))

    def loss(weights, part):
        for _ in range(4):
            part = jnp.tanh(part @ weights)
        return part.sum()

    def bytes_needed(parts):
        program = jax.jit(lambda w, x: accumulated(lambda part: jax.grad(loss)(w, part), x, parts))
        return program.lower(weights, rows).compile().memory_analysis().temp_size_in_bytes

    assert bytes_needed(8) < 0.5 * bytes_needed(1)


def test_padding_rows_become_zeros_that_end_their_episode():
    valid = np.array([[True, True], [True, False]])
    rows = np.full((2, 2), np.nan, np.float32)
    ends = np.zeros((2, 2), bool)
    steps = Transition(rows[..., None], rows, rows, ends, ends, rows[..., None], {"log_prob": rows}, valid)
    blank = blank_padding(steps)
    for leaf in (blank.obs[..., 0], blank.reward, blank.next_obs[..., 0], blank.extras["log_prob"]):
        np.testing.assert_array_equal(np.isnan(leaf), valid)
        assert leaf[1, 1] == 0
    np.testing.assert_array_equal(blank.truncated, ~valid)
    np.testing.assert_array_equal(blank.valid, valid)
    assert not blank.terminated.any()
    assert blank_padding(steps._replace(valid=None)).reward is rows


def test_means_are_found_by_the_names_of_their_terms():
    rng = np.random.default_rng(0)
    terms = {"one": rng.normal(size=(3, 2)), "two": rng.normal(size=(3, 2)) > 0, "three": rng.normal(size=(3, 2))}
    weight = rng.random((3, 2))
    means = weighted_means(jax.tree.map(jnp.asarray, terms), jnp.asarray(weight / weight.sum()))
    for name in ("three", "one", "two"):
        np.testing.assert_allclose(means[name], np.average(terms[name], weights=weight), rtol=1e-5)
    with pytest.raises(ValueError):
        means["four"]
