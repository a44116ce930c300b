"""What is drawn of a long series, and rolling statistics, against plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import linregress

from ludus.report.figures import series
from ludus.report.figures.series import block_means, rolling, share_at_least, thin, trend

SERIES = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), max_size=200).map(np.array)


@given(SERIES)
@settings(max_examples=200, deadline=None)
def test_a_short_series_is_drawn_whole(values):
    assert np.array_equal(thin(values.astype(float)), np.flatnonzero(np.isfinite(values.astype(float))))


@given(st.integers(0, 2**32 - 1), st.integers(100, 500))
@settings(max_examples=100, deadline=None)
def test_of_a_long_series_no_extreme_of_any_bucket_is_lost(seed, count):
    random = np.random.default_rng(seed)
    values = random.normal(size=count)
    values[random.choice(count, count // 5)] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "MOST_POINTS", 40)
        patch.setattr(series, "BUCKETS", 7)
        kept = thin(values)
    known = np.flatnonzero(np.isfinite(values))
    assert len(kept) <= 2 * 7 + 2 and np.all(np.diff(kept) > 0) and np.isfinite(values[kept]).all()
    size = -(-len(known) // 7)
    for low in range(0, len(known), size):
        bucket = values[known[low : low + size]]
        assert {bucket.min(), bucket.max()} <= set(values[kept])
    assert {known[0], known[-1]} <= set(kept)


@given(SERIES, st.integers(1, 30))
@settings(max_examples=200, deadline=None)
def test_rolling_statistics_are_those_of_a_loop(values, window):
    values = values.astype(float)
    made = rolling(values, window)
    for i in range(len(values)):
        recent = values[max(0, i + 1 - window) : i + 1]
        recent = recent[np.isfinite(recent)]
        assert made.count[i] == len(recent)
        if len(recent):
            scale = 1e-6 * max(1.0, np.abs(values[np.isfinite(values)]).max())
            assert made.mean[i] == pytest.approx(recent.mean(), abs=scale)
            assert made.deviation[i] == pytest.approx(recent.std(), abs=1e3 * scale)
        else:
            assert np.isnan(made.mean[i])


def test_the_share_that_reaches_a_target():
    values = np.array([1.0, 3.0, np.nan, 3.0, 2.0])
    assert share_at_least(values, 3.0, 3).tolist() == pytest.approx([0, 1 / 2, 1 / 2, 1, 1 / 2])


def test_a_trend_is_a_regression():
    random = np.random.default_rng(0)
    x, y = np.arange(30.0), random.normal(size=30)
    made, known = trend(x, y), linregress(x, y)
    assert made is not None
    assert made.slope == pytest.approx(known.slope) and made.intercept == pytest.approx(known.intercept)
    assert made.t == pytest.approx(known.slope / known.stderr)
    assert trend(x, 2 * x + 1) == pytest.approx((2.0, 1.0, np.inf), abs=1e-9)
    assert trend(np.zeros(5), x[:5]) is None and trend(x[:2], y[:2]) is None


def test_means_of_blocks():
    assert block_means(np.array([1.0, 3.0, np.nan, 5.0, 7.0]), 2).tolist() == [2.0, 6.0]
    assert block_means(np.array([]), 2).tolist() == []
