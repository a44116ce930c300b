"""Rows of pytrees: choosing between them, and laying many small arrays side by side in one matrix.

A dozen small arrays cost a dozen gathers, a dozen fetches or a dozen kernels to compile; one matrix costs one.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.types import Array, Tree


def choose_rows(mask: Array, new: Tree, old: Tree) -> Any:
    """Choose row by row between two pytrees of arrays `[B, ...]` by a mask `[B]`."""

    def choose(a: Tree, b: Tree) -> Any:
        return jnp.where(mask.reshape(mask.shape + (1,) * (jnp.ndim(b) - mask.ndim)), a, b)

    return jax.tree.map(choose, new, old)


class PackedLayout:
    """The places of a pytree's 32-bit leaves `[N, ...]` in one float32 matrix; other leaves are kept beside it."""

    def __init__(self, tree: Tree):
        """Read the layout off arrays or their shapes."""
        leaves, self.treedef = jax.tree.flatten(tree)
        self.shapes = [leaf.shape[1:] for leaf in leaves]
        self.dtypes = [np.dtype(leaf.dtype) for leaf in leaves]
        self.is_packed = [dtype.itemsize == 4 for dtype in self.dtypes]
        widths = [int(np.prod(s)) for s, packed in zip(self.shapes, self.is_packed, strict=True) if packed]
        self.width = sum(widths)
        self.columns = list(itertools.pairwise([0, *np.cumsum(widths, dtype=int).tolist()]))

    def pack(self, tree: Tree) -> list[Any]:
        """Return the matrix, then every leaf that is not 32 bits wide."""
        leaves = list(zip(jax.tree.leaves(tree), self.is_packed, strict=True))
        columns = [_bits(leaf, np.dtype(np.float32)).reshape(len(leaf), -1) for leaf, packed in leaves if packed]
        return [jnp.concatenate(columns, axis=1), *(leaf for leaf, packed in leaves if not packed)]

    def unpack(self, arrays: list[Any]) -> Any:
        """Return the pytree of any selection of rows, as arrays of the kind that was given (JAX or NumPy)."""
        matrix, *others = arrays
        parts, rest = (matrix[..., start:stop] for start, stop in self.columns), iter(others)
        leaves = [
            _bits(next(parts), dtype).reshape(*matrix.shape[:-1], *shape) if packed else next(rest)
            for shape, dtype, packed in zip(self.shapes, self.dtypes, self.is_packed, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, leaves)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MetricVector:
    """Named figures side by side in one vector: a program that returned a hundred small arrays would compile slowly."""

    vector: jax.Array
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = field(metadata={"static": True})
    """Each name and the shape of its figure: `()`, or `(n,)`."""

    @classmethod
    def of(cls, names: Sequence[str], scalars: jax.Array) -> "MetricVector":
        """Name the numbers of a vector."""
        return cls(scalars, tuple((name, ()) for name in names))

    @classmethod
    def stacked(cls, scalars: Mapping[str, Array]) -> "MetricVector":
        """Lay numbers side by side, under their names."""
        return cls.of(tuple(scalars), jnp.stack(list(scalars.values())))

    @classmethod
    def zeros(cls, names: Sequence[str]) -> "MetricVector":
        """Return numbers that are all 0, to add others to."""
        return cls.of(names, jnp.zeros(len(names)))

    def __getitem__(self, name: str) -> jax.Array:
        """Return one number by its name, where all figures are numbers."""
        return self.vector[..., self.shapes.index((name, ()))]

    def __or__(self, other: "MetricVector") -> "MetricVector":
        """Return the figures of both."""
        return MetricVector(jnp.concatenate([self.vector, other.vector]), self.shapes + other.shapes)

    def columns(self) -> dict[str, Any]:
        """Return each figure by name; of vectors `[rows, width]`, the figures of all rows."""
        stops = np.cumsum([math.prod(shape) for _, shape in self.shapes])
        parts = np.split(self.vector, stops[:-1], axis=-1)
        rows = self.vector.shape[:-1]
        return {name: part.reshape((*rows, *shape)) for (name, shape), part in zip(self.shapes, parts, strict=True)}

    def scalars(self) -> dict[str, jax.Array]:
        """Return each figure by name inside a compiled program, where all of them are numbers."""
        return {name: self.vector[i] for i, (name, _) in enumerate(self.shapes)}


def _bits(x: Tree, dtype: np.dtype) -> Any:
    if x.dtype == dtype:
        return x
    return x.view(dtype) if isinstance(x, np.ndarray) else jax.lax.bitcast_convert_type(x, dtype)
