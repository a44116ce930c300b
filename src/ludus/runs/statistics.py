"""Scores over a few seeds and their uncertainty: interquartile means with stratified bootstrap intervals.

The estimator and its interval are those that Agarwal et al. 2021 recommend (https://arxiv.org/abs/2108.13264) and
`rliable` implements: all in float64, and seeded, so that the same scores give the same interval.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
"""Bootstrap samples for each interval."""
CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959963984540054
"""The 97.5% quantile of the normal distribution."""
MOST_DRAWN = 4_000_000
"""Scores held in memory at once while they are drawn anew."""


class Estimate(NamedTuple):
    """An aggregate score, its confidence interval (None for a single score) and how many scores it is made of."""

    value: float
    interval: tuple[float, float] | None
    count: int


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of the scores along the first axis.

    A quarter of them, rounded down, is left out at each end: `scipy.stats.trim_mean(scores, 0.25)`.
    """
    scores = np.sort(np.asarray(scores, np.float64), axis=0)
    cut = len(scores) // 4
    return scores[cut : len(scores) - cut].mean(axis=0)


def bootstrap(strata: Sequence[np.ndarray], resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Return the interquartile means of the scores drawn anew, with replacement and within each stratum alone.

    Args:
        strata: the scores of each task, one for each run along the first axis: `[runs, ...]`, equal after that.
        resamples: how often they are drawn.
        seed: decides what is drawn.

    Returns:
        `[resamples, ...]`.
    """
    strata = [np.asarray(scores, np.float64) for scores in strata]
    random = np.random.default_rng(seed)
    drawn = []
    for size in _portions(resamples, sum(scores.size for scores in strata)):
        rows = [random.integers(0, len(scores), (size, len(scores))) for scores in strata]
        # each [size, runs, ...], then the runs of all strata first: [all runs, size, ...]
        sample = np.concatenate([scores[row] for scores, row in zip(strata, rows, strict=True)], axis=1)
        drawn.append(interquartile_mean(np.moveaxis(sample, 1, 0)))
    return np.concatenate(drawn)


def _portions(resamples: int, size: int) -> list[int]:
    portion = max(1, MOST_DRAWN // max(size, 1))
    return [min(portion, resamples - done) for done in range(0, resamples, portion)]


def interval(samples: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Return the percentiles of a bootstrap distribution, along the first axis, that enclose so much of it."""
    outside = (1 - confidence) / 2
    low, high = np.quantile(samples, [outside, 1 - outside], axis=0)
    return low, high


def estimate(*strata: Sequence[float] | np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """Return the interquartile mean of the scores of one or several tasks, with its 95% interval."""
    scores = [np.asarray(stratum, np.float64) for stratum in strata]
    every = np.concatenate(scores)
    value = float(interquartile_mean(every))
    if max(map(len, scores)) < 2:
        return Estimate(value, None, len(every))
    low, high = interval(bootstrap(scores, resamples, seed))
    return Estimate(value, (float(low), float(high)), len(every))


def mean_interval(mean: np.ndarray, deviation: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95% interval of means of so many independent values, by the central limit theorem."""
    half = NORMAL_QUANTILE * np.asarray(deviation, np.float64) / np.sqrt(np.maximum(count, 1))
    return mean - half, mean + half


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Return the 95% interval of a probability from the share of so many trials: Wilson's, which suits 0 and 1 too."""
    z = NORMAL_QUANTILE**2 / count
    middle, half = share + z / 2, float(np.sqrt(z * (share * (1 - share) + z / 4)))
    return max(0.0, (middle - half) / (1 + z)), min(1.0, (middle + half) / (1 + z))
