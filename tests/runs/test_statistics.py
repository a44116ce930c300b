"""Interquartile means and bootstrap intervals against values worked out by hand, by SciPy and in closed form."""

import itertools

import numpy as np
import pytest
from scipy.stats import trim_mean

from ludus.runs.statistics import bootstrap, estimate, interquartile_mean, interval, mean_interval


def test_the_interquartile_mean_is_the_mean_of_the_middle_half():
    assert interquartile_mean(np.array([100.0, 1, 2, 3])) == 2.5  # 1 and 100 are cut
    assert interquartile_mean(np.array([-1e9, 1, 2, 3, 4, 5, 6, 1e9])) == 3.5


@pytest.mark.parametrize("count", range(1, 30))
def test_it_is_scipys_trimmed_mean(count):
    scores = np.random.default_rng(count).normal(size=(count, 3))
    assert np.allclose(interquartile_mean(scores), trim_mean(scores, 0.25, axis=0), rtol=1e-14, atol=0)


def test_the_bootstrap_of_two_scores_has_three_values_in_known_proportions():
    samples = bootstrap([np.array([0.0, 1.0])], resamples=40_000)
    values, counts = np.unique(samples, return_counts=True)
    assert values.tolist() == [0.0, 0.5, 1.0]
    assert np.allclose(counts / 40_000, [0.25, 0.5, 0.25], atol=0.01)


def test_the_bootstrap_distribution_is_that_of_every_possible_draw():
    scores = np.array([0.0, 1.0, 3.0, 10.0, 12.0])
    draws = np.array(list(itertools.product(scores, repeat=5))).T
    every = interquartile_mean(draws)  # all 3125 draws, equally likely
    samples = bootstrap([scores], resamples=100_000)
    for quantile in (0.025, 0.25, 0.5, 0.75, 0.975):
        # Discrete distributions: compare the share of draws at or below, not the quantile itself.
        at = np.quantile(every, quantile)
        assert np.mean(samples <= at + 1e-12) == pytest.approx(np.mean(every <= at + 1e-12), abs=0.006)


def test_draws_stay_within_their_stratum():
    """Two tasks of four runs: a draw of all eight has always four of either, so the middle half is half and half."""
    low, high = np.zeros(4), np.ones(4)
    assert set(bootstrap([low, high], resamples=500)) == {0.5}
    pooled = bootstrap([np.concatenate([low, high])], resamples=500)
    assert len(set(pooled)) > 3  # without strata a draw may have more of one task than of the other


def test_the_interval_of_many_scores_is_the_normal_one():
    """For normal scores the interquartile mean's standard error is about 1.09 times that of the mean."""
    scores = np.random.default_rng(0).normal(size=400)
    low, high = interval(bootstrap([scores], resamples=4000))
    assert (high - low) / 2 == pytest.approx(1.96 * 1.09 * scores.std() / np.sqrt(400), rel=0.15)
    assert low < interquartile_mean(scores) < high


def test_the_same_scores_give_the_same_interval():
    scores = [3.0, 1.0, 4.0, 1.0, 5.0]
    assert estimate(scores) == estimate(scores)
    assert not np.array_equal(bootstrap([np.array(scores)], seed=1), bootstrap([np.array(scores)], seed=2))


def test_one_score_has_no_interval_and_equal_scores_have_an_empty_one():
    assert estimate([7.0]) == (7.0, None, 1)
    assert estimate([7.0, 7.0, 7.0]) == (7.0, (7.0, 7.0), 3)


def test_curves_are_drawn_whole_and_in_portions(monkeypatch):
    curves = np.random.default_rng(0).normal(size=(5, 7))
    whole = bootstrap([curves], resamples=100)
    assert whole.shape == (100, 7)
    monkeypatch.setattr("ludus.runs.statistics.MOST_DRAWN", 35 * 30)
    portions = bootstrap([curves], resamples=100)
    assert portions.shape == (100, 7)
    assert np.isin(np.round(bootstrap([curves[:, :1]], 50), 9), np.round(every_mean(curves[:, 0]), 9)).all()


def every_mean(scores: np.ndarray) -> np.ndarray:
    return interquartile_mean(np.array(list(itertools.product(scores, repeat=len(scores)))).T)


def test_the_interval_of_a_mean():
    low, high = mean_interval(np.array([10.0]), np.array([5.0]), np.array([100]))
    assert np.allclose([low[0], high[0]], [10 - 0.979982, 10 + 0.979982], atol=1e-6)
