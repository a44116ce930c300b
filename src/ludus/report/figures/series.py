"""Long series: thinned out for drawing, smoothed, and summed up. NaN stands for an unknown value."""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np

MOST_POINTS = 4000
"""A series of so many points is drawn whole."""
BUCKETS = 1000
"""A longer one is drawn as so many buckets, each with its lowest and its highest point."""
_buckets: ContextVar[int | None] = ContextVar("buckets", default=None)


@contextlib.contextmanager
def coarsely(buckets: int) -> Generator[None]:
    """Draw with so many buckets meanwhile: a page that is sent every second has to be small."""
    token = _buckets.set(buckets)
    try:
        yield
    finally:
        _buckets.reset(token)


def resolution() -> tuple[int, int]:
    """Return how many points are drawn whole, and into how many buckets more of them are put."""
    buckets = _buckets.get() or BUCKETS
    return MOST_POINTS * buckets // BUCKETS, buckets


def thin(values: np.ndarray) -> np.ndarray:
    """Return the positions of the points to draw: every known one or, of a long series, the extremes of each bucket.

    Nothing is averaged and no outlier is lost: the lowest and the highest point of every bucket are kept as they are,
    and so are the first and the last point of the whole.
    """
    known = np.flatnonzero(np.isfinite(values))
    most, count = resolution()
    if len(known) <= most:
        return known
    size = -(-len(known) // count)
    empty = np.full(-len(known) % size, np.nan)
    buckets = np.concatenate([values[known], empty]).reshape(-1, size)
    first = np.arange(len(buckets)) * size
    lowest, highest = np.nanargmin(buckets, axis=1), np.nanargmax(buckets, axis=1)
    return known[np.unique(np.concatenate([first + lowest, first + highest, [0, len(known) - 1]]))]


class Rolling(NamedTuple):
    """Mean, standard deviation and number of the known values among the latest `window`, at each position."""

    mean: np.ndarray
    deviation: np.ndarray
    count: np.ndarray


def rolling(values: np.ndarray, window: int) -> Rolling:
    """Look back over the latest `window` positions from each one; the first ones have fewer to look at."""
    known = np.isfinite(values)
    centre = values[known].mean() if known.any() else 0.0  # squares of small numbers lose fewer digits
    moved = np.where(known, values - centre, 0.0)
    count = _sums(known.astype(np.float64), window)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = _sums(moved, window) / count
        variance = _sums(moved**2, window) / count - mean**2
        deviation = np.sqrt(np.maximum(variance, 0.0))
    return Rolling(np.where(count > 0, mean + centre, np.nan), np.where(count > 0, deviation, np.nan), count)


def _sums(values: np.ndarray, window: int) -> np.ndarray:
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    return total[ends] - total[np.maximum(ends - window, 0)]


def share_at_least(values: np.ndarray, target: float, window: int) -> np.ndarray:
    """Return the share of the known values among the latest `window` that reach a target, at each position."""
    reached = np.where(np.isfinite(values), (values >= target).astype(np.float64), np.nan)
    return np.clip(rolling(reached, window).mean, 0.0, 1.0)


class Trend(NamedTuple):
    """A straight line through a series, by least squares, and how far its slope is from none."""

    slope: float
    intercept: float
    t: float
    """The slope in units of its standard error; infinite for a perfect line."""


def trend(x: np.ndarray, y: np.ndarray) -> Trend | None:
    """Fit a line to the known points; None if there are fewer than three or they lie at one x."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 3 or np.ptp(x) == 0:
        return None
    dx, dy = x - x.mean(), y - y.mean()
    spread = float((dx * dx).sum())
    slope = float((dx * dy).sum()) / spread
    residual = dy - slope * dx
    error = float(np.sqrt((residual * residual).sum() / (len(x) - 2) / spread))
    t = slope / error if error > 1e-12 * abs(slope) else np.copysign(np.inf, slope) if slope else 0.0
    return Trend(slope, float(y.mean() - slope * x.mean()), float(t))


def block_means(values: np.ndarray, blocks: int) -> np.ndarray:
    """Return the means of the known values, cut into so many blocks of equal length (fewer if they are few)."""
    known = values[np.isfinite(values)]
    parts = np.array_split(known, max(1, min(blocks, len(known))))
    return np.array([part.mean() for part in parts if len(part)])
