"""Streams of randomness: distinct by purpose, seed and number, and without a trace of each other."""

import itertools

import jax
import numpy as np
import pytest

from ludus.rollout.host import seeds_from
from ludus.runtime.rng import folded, spread, stream

PURPOSES = ("init", "rollout", "update", "evaluation", "reset")


def words(keys: jax.Array) -> list[tuple[int, int]]:
    return [tuple(row) for row in np.asarray(jax.random.key_data(keys)).reshape(-1, 2).tolist()]


@pytest.mark.requirement("S1.36")
def test_a_stream_is_the_same_every_time():
    assert words(stream(7, "init")) == words(stream(7, "init"))
    # Written down, so that no release changes what a seed means without anyone noticing.
    assert words(stream(0, "init")) == [(3501147124, 3394689249)]


def test_every_seed_and_purpose_has_a_stream_of_its_own():
    keys = [words(stream(seed, purpose))[0] for seed, purpose in itertools.product(range(50), PURPOSES)]
    assert len(set(keys)) == len(keys)


def test_large_seeds_differ_too():
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**63]
    assert len({words(stream(seed, "init"))[0] for seed in seeds}) == len(seeds)


def test_spread_keys_are_distinct_within_a_shape_and_between_streams():
    keys = [spread(stream(seed, purpose), (16, 8)) for seed, purpose in itertools.product(range(4), PURPOSES)]
    assert keys[0].shape == (16, 8)
    everything = [pair for key in keys for pair in words(key)]
    assert len(set(everything)) == len(everything)


def test_a_longer_spread_begins_like_a_shorter_one():
    key = stream(0, "rollout")
    assert words(spread(key, (64,)))[:16] == words(spread(key, (16,))) == words(spread(key, (4, 4)))


def test_neighbours_of_a_spread_are_not_correlated():
    draws, n = 4096, 8
    numbers = np.asarray(
        jax.jit(jax.vmap(lambda key: jax.random.normal(key, (draws,))))(spread(stream(0, "noise"), (n,)))
    )
    correlation = np.corrcoef(numbers)[np.triu_indices(n, 1)]
    assert np.abs(correlation).max() < 5 / np.sqrt(draws)
    assert np.abs(numbers.mean(axis=1)).max() < 5 / np.sqrt(draws)


def test_the_first_draw_of_every_spread_key_is_uniform():
    """One number from each of many keys, as an environment's reset would take it."""
    keys = spread(stream(3, "reset"), (4000,))
    first = np.asarray(jax.jit(jax.vmap(jax.random.uniform))(keys))
    counts = np.histogram(first, bins=20, range=(0, 1))[0]
    assert np.sum((counts - 200) ** 2 / 200) < 19 + 6 * np.sqrt(2 * 19)
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 5 / np.sqrt(4000)


def test_a_host_seed_depends_on_its_own_number_alone():
    many = seeds_from(stream(5, "reset"), 100)
    assert seeds_from(stream(5, "reset"), 10) == many[:10]
    assert seeds_from(stream(5, "reset"), 20, start=37) == many[37:57]


def test_host_seeds_are_distinct_and_fit_what_environments_accept():
    seeds = [seeds_from(stream(seed, purpose), 200) for seed in range(3) for purpose in PURPOSES]
    everything = list(itertools.chain(*seeds))
    assert len(set(everything)) == len(everything)
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in everything)


def test_folding_a_tree_folds_each_of_its_keys():
    keys = {"rollout": stream(0, "rollout"), "update": stream(0, "update")}
    after = folded(keys, np.uint32(12))
    for name, key in keys.items():
        assert words(after[name]) == words(jax.random.fold_in(key, 12))
    assert words(folded(keys, np.uint32(13))["update"]) != words(after["update"])
