"""Observation and action spaces: small, hashable, free of any environment library.

They stand beside `types` and not inside `envs`, because networks and algorithms read them too. A value of a `Dict` or
`Tuple` is a dict or tuple of values: a pytree, whose leaves JAX orders just as `leaves` does.
"""

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

Bound = float | tuple[float, ...]


@dataclass(frozen=True)
class Discrete:
    """The integers start .. start + n - 1."""

    n: int
    start: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """A single integer has no axes."""
        return ()

    @property
    def dtype(self) -> str:
        """Indices are 32-bit everywhere."""
        return "int32"


@dataclass(frozen=True)
class MultiDiscrete:
    """An array of integers: entry i is one of start[i] .. start[i] + nvec[i] - 1."""

    nvec: Any
    """How many values each entry has; tuples within tuples for an array of more than one axis."""
    start: Any = 0

    def __post_init__(self) -> None:
        """Take lists and arrays too; starts that are equal everywhere are kept as one number."""
        starts = np.broadcast_to(np.asarray(self.start), np.shape(self.nvec))
        first = int(starts.flat[0]) if starts.size else 0
        object.__setattr__(self, "nvec", _nested(np.asarray(self.nvec)))
        object.__setattr__(self, "start", first if (starts == first).all() else _nested(starts))

    @property
    def shape(self) -> tuple[int, ...]:
        """As `nvec`."""
        return np.shape(self.nvec)

    @property
    def dtype(self) -> str:
        """Indices are 32-bit everywhere."""
        return "int32"

    @property
    def sizes(self) -> list[int]:
        """The number of values of each entry, in one row."""
        return np.ravel(self.nvec).tolist()


@dataclass(frozen=True)
class MultiBinary:
    """Arrays of zeros and ones of one shape; an integer is the length of a vector."""

    shape: Any

    def __post_init__(self) -> None:
        """Make a length a shape."""
        shape = (self.shape,) if isinstance(self.shape, int) else self.shape
        object.__setattr__(self, "shape", tuple(int(side) for side in shape))

    @property
    def dtype(self) -> str:
        """As all integers here."""
        return "int32"


@dataclass(frozen=True)
class FeatureGroup:
    """A part of an observation: tokens of one kind, such as the cars that are seen, or the points of a road.

    Encoders with attention read observations group by group (docs/en/networks.md).
    """

    name: str
    shape: tuple[int, ...]
    """The last axis holds the features of one token; those before it count tokens, and without any there is one."""
    valid: int | None = None
    """The feature that is 1 where a token is there and 0 where it only fills the shape; None: all are there."""
    ordered: tuple[int, ...] = ()
    """Axes along which a place has a meaning, as that of past steps; along the others, tokens may change places."""

    def __post_init__(self) -> None:
        """Take lists too; refuse what is no part of any observation."""
        object.__setattr__(self, "shape", tuple(int(side) for side in self.shape))
        object.__setattr__(self, "ordered", tuple(int(axis) for axis in self.ordered))
        if not self.shape or min(self.shape) < 1:
            raise ValueError(
                f"group {self.name!r}: shape={self.shape} must be [..., tokens, features], each at least 1"
            )
        if self.valid is not None and not 0 <= self.valid < self.shape[-1]:
            raise ValueError(f"group {self.name!r}: valid={self.valid} is none of its {self.shape[-1]} features")
        if not all(0 <= axis < len(self.shape) - 1 for axis in self.ordered):
            raise ValueError(f"group {self.name!r}: ordered={self.ordered} must be axes of tokens of {self.shape}")

    @property
    def size(self) -> int:
        """The count of its numbers."""
        return math.prod(self.shape)

    @property
    def tokens(self) -> int:
        """The count of its tokens."""
        return math.prod(self.shape[:-1])


@dataclass(frozen=True)
class Box:
    """Arrays of one shape with a lower and an upper bound for every entry (either may be infinite)."""

    low: Bound
    high: Bound
    shape: tuple[int, ...]
    dtype: str = "float32"
    groups: tuple[FeatureGroup, ...] = field(default=(), repr=False)
    """The parts that its numbers are of, one after the other in row-major order; none if nobody has said."""

    def __post_init__(self) -> None:
        """Round bounds and floats to float32, as we compute: equal spaces compare equal wherever they come from."""
        object.__setattr__(self, "low", _compact(np.asarray(self.low)))
        object.__setattr__(self, "high", _compact(np.asarray(self.high)))
        object.__setattr__(self, "dtype", "float32" if self.is_float else str(np.dtype(self.dtype)))
        groups = tuple(FeatureGroup(**group) if isinstance(group, Mapping) else group for group in self.groups)
        object.__setattr__(self, "groups", groups)
        if groups:
            self._check_groups()

    def _check_groups(self) -> None:
        names, size = [group.name for group in self.groups], sum(group.size for group in self.groups)
        if "" in names or len(set(names)) < len(names):
            raise ValueError(f"groups {names}: each needs a name of its own")
        if size != math.prod(self.shape) or not self.is_float:
            raise ValueError(f"groups {names} hold {size} floats, but the box is {self.dtype}{list(self.shape)}")

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

    @property
    def is_float(self) -> bool:
        """Whether its numbers are measured rather than counted: those can be normalised."""
        return np.dtype(self.dtype).kind == "f"

    def _bound_shape(self, bound: Bound) -> tuple[int, ...]:
        return self.shape if isinstance(bound, tuple) else ()


@dataclass(frozen=True)
class Dict:
    """Named values of other spaces."""

    spaces: Any
    """A mapping, or pairs of name and space; kept as pairs, sorted by name."""

    def __post_init__(self) -> None:
        """Sort by name, as JAX does."""
        pairs = dict(self.spaces)
        object.__setattr__(self, "spaces", tuple((name, pairs[name]) for name in sorted(pairs)))


@dataclass(frozen=True)
class Tuple:
    """Values of other spaces, one after the other."""

    spaces: Any
    """The spaces; kept as a tuple."""

    def __post_init__(self) -> None:
        """Take a list too."""
        object.__setattr__(self, "spaces", tuple(self.spaces))


Leaf = Discrete | MultiDiscrete | MultiBinary | Box
Space = Leaf | Dict | Tuple


def leaves(space: Space) -> list[tuple[str, Any]]:
    """Return every space that holds arrays, with its name: `""`, or a path such as `"arm/0"`."""
    return list(_walk(space, ""))


def flatten(space: Space, value: Any) -> list[Any]:
    """Take a value apart, in the order of `leaves`; a ValueError says what it lacks."""
    if not isinstance(space, Dict | Tuple):
        return [value]
    if isinstance(space, Dict) and not (isinstance(value, Mapping) and value.keys() == dict(space.spaces).keys()):
        got = f"keys {sorted(map(str, value))}" if isinstance(value, Mapping) else type(value).__name__
        raise ValueError(f"a dict with keys {[name for name, _ in space.spaces]} was expected, got {got}")
    if isinstance(space, Tuple) and not (isinstance(value, tuple | list) and len(value) == len(space.spaces)):
        got = f"{len(value)} values" if isinstance(value, tuple | list) else type(value).__name__
        raise ValueError(f"a tuple of {len(space.spaces)} values was expected, got {got}")
    return [leaf for key, part in _parts(space) for leaf in flatten(part, value[key])]


def unflatten(space: Space, values: Iterable[Any]) -> Any:
    """Put a value together again: the inverse of `flatten`."""
    values = iter(values)
    if isinstance(space, Dict):
        return {name: unflatten(part, values) for name, part in space.spaces}
    if isinstance(space, Tuple):
        return tuple(unflatten(part, values) for part in space.spaces)
    return next(values)


def map_leaves(function: Callable[[Any], Any], space: Space) -> Any:
    """Return `function` of every leaf, as a tree of the shape that values of the space have."""
    return unflatten(space, [function(leaf) for _, leaf in leaves(space)])


def grouped(groups: Sequence[FeatureGroup], low: float = -math.inf, high: float = math.inf) -> Box:
    """Return the space of one flat vector that holds groups, one after the other."""
    return Box(low, high, (sum(group.size for group in groups),), groups=tuple(groups))


def structured(space: Box) -> Dict:
    """Return the space of the same numbers as a dict: an array for each group."""
    low, high = (split_groups(space, bound) for bound in space.bounds)
    boxes = {}
    for group in space.groups:
        box = Box.from_arrays(low[group.name], high[group.name])
        boxes[group.name] = Box(box.low, box.high, box.shape, groups=(group,))
    return Dict(boxes)


def split_groups(space: Box, value: Any) -> dict[str, Any]:
    """Take arrays `[..., *space.shape]` apart: of each group `[..., *group.shape]`, by name."""
    batch = value.shape[: value.ndim - len(space.shape)]
    flat, start, parts = value.reshape(*batch, -1), 0, {}
    for group in space.groups:
        parts[group.name] = flat[..., start : start + group.size].reshape(*batch, *group.shape)
        start += group.size
    return parts


def join_groups(space: Box, parts: Mapping[str, Any]) -> Any:
    """Put groups together again: the inverse of `split_groups`."""
    arrays = [parts[group.name] for group in space.groups]
    flat = [x.reshape(*x.shape[: x.ndim - len(g.shape)], -1) for x, g in zip(arrays, space.groups, strict=True)]
    joined = flat[0].__array_namespace__().concat(flat, axis=-1)  # of NumPy or of JAX
    return joined.reshape(*joined.shape[:-1], *space.shape)


def mask_size(space: Space) -> int | None:
    """Length of a mask of allowed actions: one entry for each value, components one after the other; None if unfit."""
    if isinstance(space, Discrete):
        return space.n
    return sum(space.sizes) if isinstance(space, MultiDiscrete) else None


def allows_any(space: Any, mask: Any) -> Any:
    """Return whether masks `[..., size]` of Discrete or MultiDiscrete allow one value at least of every component."""
    sizes = space.sizes if isinstance(space, MultiDiscrete) else (space.n,)
    stops = np.cumsum(sizes).tolist()
    allowed = [mask[..., stop - size : stop].any(axis=-1) for size, stop in zip(sizes, stops, strict=True)]
    return functools.reduce(operator.and_, allowed)


def integer_bounds(space: Space) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a space of integers, number by number; None for a Box."""
    if isinstance(space, Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, MultiDiscrete):
        start = np.asarray(space.start)
        return start, start + np.asarray(space.nvec) - 1
    return (0, 1) if isinstance(space, MultiBinary) else None


def to_data(space: Space) -> dict[str, Any]:
    """Return a space as plain data, which JSON can hold."""
    if isinstance(space, Dict):
        return {"kind": "Dict", "spaces": [[name, to_data(part)] for name, part in space.spaces]}
    if isinstance(space, Tuple):
        return {"kind": "Tuple", "spaces": [to_data(part) for part in space.spaces]}
    held = asdict(space)
    if not held.get("groups", True):
        del held["groups"]  # a file is as it was before boxes had groups
    return {"kind": type(space).__name__, **held}


def from_data(data: dict[str, Any]) -> Space:
    """Return the space of plain data; what is none raises KeyError, TypeError, ValueError or RecursionError."""
    kind, rest = data["kind"], {key: _as_tuples(value) for key, value in data.items() if key != "kind"}
    if kind == "Dict":
        return Dict(tuple((name, from_data(part)) for name, part in rest["spaces"]))
    if kind == "Tuple":
        return Tuple(tuple(from_data(part) for part in rest["spaces"]))
    kinds = {"Box": Box, "Discrete": Discrete, "MultiBinary": MultiBinary, "MultiDiscrete": MultiDiscrete}
    return kinds[kind](**rest)


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value


def _walk(space: Space, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(space, Dict | Tuple):
        yield name, space
        return
    for key, part in _parts(space):
        yield from _walk(part, f"{name}/{key}" if name else str(key))


def _parts(space: Dict | Tuple) -> Iterable[tuple[Any, Any]]:
    return space.spaces if isinstance(space, Dict) else enumerate(space.spaces)


def _nested(array: np.ndarray) -> Any:
    return tuple(_nested(row) for row in array) if array.ndim else int(array)


def _compact(bound: np.ndarray) -> Bound:
    with np.errstate(over="ignore"):  # a bound beyond float32 is no bound
        flat = np.asarray(bound, np.float32).ravel()
    if flat.size and (flat == flat[0]).all():
        return float(flat[0])
    return tuple(float(entry) for entry in flat)
