"""Observation and action spaces: small, hashable, free of any environment library.

They stand beside `types` and not inside `envs`, because networks and algorithms read them too.
"""

from dataclasses import dataclass

import numpy as np

Bound = float | tuple[float, ...]


@dataclass(frozen=True)
class Discrete:
    """The integers 0 .. n-1."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        """A single integer has no axes."""
        return ()

    @property
    def dtype(self) -> str:
        """Indices are 32-bit everywhere."""
        return "int32"


@dataclass(frozen=True)
class Box:
    """Arrays of one shape with a lower and an upper bound for every entry (either may be infinite)."""

    low: Bound
    high: Bound
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Round the bounds to float32, as environments do: equal spaces compare equal wherever they come from."""
        object.__setattr__(self, "low", _compact(np.asarray(self.low)))
        object.__setattr__(self, "high", _compact(np.asarray(self.high)))

    @classmethod
    def from_arrays(cls, low: np.ndarray, high: np.ndarray, dtype: str = "float32") -> "Box":
        """Build a box from bound arrays; bounds that are equal everywhere are kept as one number."""
        low, high = np.broadcast_arrays(low, high)
        return cls(tuple(low.ravel().tolist()), tuple(high.ravel().tolist()), low.shape, dtype)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bound as float32 arrays of the box's shape."""
        low = np.reshape(np.asarray(self.low, np.float32), self._bound_shape(self.low))
        high = np.reshape(np.asarray(self.high, np.float32), self._bound_shape(self.high))
        return np.broadcast_to(low, self.shape), np.broadcast_to(high, self.shape)

    @property
    def is_bounded(self) -> bool:
        """Whether every entry has two finite bounds."""
        return all(bool(np.isfinite(bound).all()) for bound in self.bounds)

    def _bound_shape(self, bound: Bound) -> tuple[int, ...]:
        return self.shape if isinstance(bound, tuple) else ()


Space = Discrete | Box


def _compact(bound: np.ndarray) -> Bound:
    with np.errstate(over="ignore"):  # a bound beyond float32 is no bound
        flat = np.asarray(bound, np.float32).ravel()
    if flat.size and (flat == flat[0]).all():
        return float(flat[0])
    return tuple(float(entry) for entry in flat)
