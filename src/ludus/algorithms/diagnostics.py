"""Health of an update: norms of gradients, updates, parameters and moments by layer and network; histograms.

The figures are computed inside the compiled program and change nothing in it. `docs/en/metrics.md` has their formulas.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ludus.runtime.packing import MetricVector
from ludus.spaces import Box, Discrete, Leaf, MultiDiscrete, Space, flatten, leaves
from ludus.types import Array, Spec, Transition, Tree

METRICS = {
    "gradient_norm/<layer>": "norm of a layer's part of the last minibatch's gradient, before clipping",
    "update_norm/<layer>": "norm of what the whole update changed: parameters after it minus parameters before it",
    "parameter_norm/<layer>": "norm of the parameters after the update",
    "adam_first_moment_norm/<layer>": "norm of Adam's running mean of gradients (mu), not corrected for its start",
    "adam_second_moment_norm/<layer>": "norm of Adam's running mean of squared gradients (nu), likewise",
}
"""Every figure and its formula; norms are Euclidean. The same names with a network's name hold all of its layers."""

HISTOGRAMS = {
    "histogram/gradient": "entries of the last minibatch's gradient, before clipping, between their least and greatest",
    "histogram/action": "actions of the rollout, as the environment took them",
    "histogram/action/<i>": "component i of the actions, if they have several; of the first 8",
}
"""Every histogram and what it counts; the bins between low and high are equally wide."""

NUM_BINS = 32
"""Bins of a histogram; integers that have fewer values get a bin for each."""
NUM_COMPONENTS = 8
"""So many components of an action have histograms."""
WITHIN_LAYER = ("kernel", "bias")
"""Parameters that make up one layer; any other counts as a layer of its own."""

MOMENTS = {"mu": "adam_first_moment_norm", "nu": "adam_second_moment_norm"}
"""What Optax calls the running means in its states, and what they are called here."""

BLOCK = 1 << 16
"""Entries of a vector that are looked at together: more would cost memory, fewer time."""


def is_due(number: Array, frequency: Array) -> Any:
    """Return whether iteration `number`, counted from 1, has figures: every `frequency`-th, and 1, 2, 4, ... before.

    So a run that is shorter than that has figures too.
    """
    return (number % frequency == 0) | ((number < frequency) & (number & (number - 1) == 0))


def when(due: jax.Array, figures: Callable[[], MetricVector | None]) -> MetricVector | None:
    """Compute figures where they are due; elsewhere each of them is NaN, which is not journalled."""
    nothing = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), jax.eval_shape(figures))
    return jax.lax.cond(due, figures, lambda: nothing)


class Learnt(NamedTuple):
    """The parameters before and after an update."""

    names: Sequence[str]
    """Of the parameters."""
    owners: Sequence[str]
    """The network that each belongs to."""
    before: Sequence[jax.Array]
    after: Sequence[jax.Array]
    gradient: jax.Array
    """Of all parameters, as one vector."""
    optimizer: Tree
    """The optimiser's state after the update."""


def update_diagnostics(learnt: Learnt, spec: Spec, steps: Transition) -> MetricVector:
    """Return norms by layer and network, and histograms of the gradient and of the actions of a rollout."""
    parameters = ravel(learnt.after)
    vectors = {
        "gradient_norm": learnt.gradient,
        "update_norm": parameters - ravel(learnt.before),
        "parameter_norm": parameters,
        **(moments(learnt.optimizer, learnt.after) or moments(learnt.optimizer, [learnt.gradient])),
    }
    figures = norms(vectors, learnt.names, [x.size for x in learnt.after], learnt.owners)
    actions = action_histograms(spec.action_space, steps.action, steps.valid)
    return figures | gradient_histogram(learnt.gradient) | actions


def layer_of(name: str) -> str:
    """Return the layer that an array belongs to: the path of the module that holds a kernel and a bias."""
    path, _, last = name.rpartition("/")
    return path if path and last in WITHIN_LAYER else name


def ravel(arrays: Iterable[jax.Array]) -> jax.Array:
    """Return arrays as one vector."""
    return jnp.concatenate([jnp.ravel(x).astype(jnp.float32) for x in arrays])


def norms(
    vectors: Mapping[str, jax.Array], names: Sequence[str], sizes: Sequence[int], networks: Sequence[str]
) -> MetricVector:
    """Return `<vector>/<layer>` and `<vector>/<network>`: Euclidean norms of the parts of each vector.

    Args:
        vectors: what is measured, each with the entries of all arrays one after the other.
        names: the arrays' names.
        sizes: their numbers of entries.
        networks: the network that each belongs to.
    """
    owners = list(zip(map(layer_of, names), networks, strict=True))
    runs = [(owner, sum(sizes[i] for i in run)) for owner, run in groupby(range(len(names)), owners.__getitem__)]
    groups = list(dict.fromkeys([layer for layer, _ in owners] + list(networks)))
    belongs = np.asarray([[group in owner for group in groups] for owner, _ in runs], np.float32)  # [runs, groups]
    squares = _sums(jnp.square(jnp.stack(list(vectors.values()))), np.asarray([size for _, size in runs]))
    roots = jnp.sqrt(jnp.matmul(squares, belongs, precision="highest"))  # [vectors, groups]
    return MetricVector(roots.ravel(), tuple((f"{name}/{group}", ()) for name in vectors for group in groups))


def _sums(rows: jax.Array, sizes: np.ndarray) -> jax.Array:
    """Return the sums of consecutive runs of each row: `[rows, sum(sizes)]` to `[rows, runs]`.

    By products with a matrix that says what belongs where: a reduction for each run would take a second to compile.
    """
    stops = np.cumsum(sizes)
    starts, block = stops - sizes, min(BLOCK, rows.shape[1])
    count = -(-rows.shape[1] // block)
    rows = jnp.pad(rows, ((0, 0), (0, count * block - rows.shape[1])))
    blocks = rows.reshape(len(rows), count, block).swapaxes(0, 1)  # [rows, count * block] -> [count, rows, block]

    def add(total: jax.Array, part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        number, entries = part
        position = number * block + jnp.arange(block)[:, None]
        belongs = (position >= starts) & (position < stops)  # [block, runs]
        return total + jnp.matmul(entries, belongs.astype(jnp.float32), precision="highest"), None

    return jax.lax.scan(add, jnp.zeros((len(rows), len(sizes))), (jnp.arange(count), blocks))[0]


def moments(optimizer: Tree, like: Sequence[jax.Array]) -> dict[str, jax.Array]:
    """Return the running means of an Optax state as vectors; one that is not there for all of `like` is left out."""
    found = {}
    for field, name in MOMENTS.items():
        held = jax.tree.leaves([tree for _, tree in optax.tree_utils.tree_get_all_with_path(optimizer, field)])
        if [jnp.shape(x) for x in held] == [jnp.shape(x) for x in like]:
            found[name] = ravel(held)
    return found


def counts(values: jax.Array, weight: jax.Array | None, low: jax.Array, width: jax.Array, bins: int) -> jax.Array:
    """Count each row of `values` `[rows, n]` in bins of one width from `low` on, both `[rows]`.

    Values beyond an end are counted in the bin at that end; where `weight` `[n]` is False, a value is not counted.
    """
    index = jnp.clip(jnp.floor((values - low[:, None]) / width[:, None]), 0, bins - 1).astype(jnp.int32)
    if weight is not None:
        index = jnp.where(weight, index, bins)
    rows = jnp.arange(len(values))[:, None]
    return jnp.zeros((len(values), bins), jnp.int32).at[rows, index].add(1, mode="drop")


def gradient_histogram(gradient: jax.Array) -> MetricVector:
    """Count the entries of a gradient, a vector."""
    low, high = gradient.min()[None], gradient.max()[None]
    counted = counts(gradient[None], None, low, _width(low, high, NUM_BINS), NUM_BINS)
    return _histograms(["histogram/gradient"], [_packed(low[0], high[0], counted[0])])


def action_histograms(space: Space, action: Tree, valid: jax.Array | None) -> MetricVector:
    """Count the actions of a rollout `[T, B, ...]`, component by component."""
    made: list[jax.Array] = []
    weight = None if valid is None else valid.ravel()
    for (_, leaf), x in zip(leaves(space), flatten(space, action), strict=True):
        size = min(math.prod(leaf.shape), NUM_COMPONENTS - len(made))
        values = x.reshape(-1, math.prod(leaf.shape))[:, :size].T.astype(jnp.float32)  # [T, B, ...] -> [size, T * B]
        made += _leaf_histograms(leaf, values, weight)
    several = len(made) > 1
    return _histograms([f"histogram/action/{i}" if several else "histogram/action" for i in range(len(made))], made)


def _leaf_histograms(leaf: Leaf, values: jax.Array, weight: jax.Array | None) -> list[jax.Array]:
    """Return the histogram of each component of `values` `[components, n]`."""
    size = len(values)
    if isinstance(leaf, Box):
        low, high = (jnp.asarray(bound.ravel()[:size]) for bound in leaf.bounds)
        is_bounded = jnp.isfinite(low) & jnp.isfinite(high)
        counted = True if weight is None else weight
        low = jnp.where(is_bounded, low, jnp.where(counted, values, jnp.inf).min(axis=1))
        high = jnp.where(is_bounded, high, jnp.where(counted, values, -jnp.inf).max(axis=1))
        bins = np.full(size, NUM_BINS)
    else:
        sizes, start = _integers(leaf, size)
        low, high = jnp.asarray(start, jnp.float32), jnp.asarray(start + sizes, jnp.float32)
        bins = np.minimum(sizes, NUM_BINS)
    tables = counts(values, weight, low, _width(low, high, bins), int(bins.max(initial=0)))
    return [_packed(low[i], high[i], tables[i, : bins[i]]) for i in range(size)]


def _histograms(names: list[str], vectors: list[jax.Array]) -> MetricVector:
    return MetricVector(
        jnp.concatenate(vectors), tuple((name, x.shape) for name, x in zip(names, vectors, strict=True))
    )


def _integers(leaf: Leaf, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many values each of the first components of an integer space has, and the least of them."""
    if isinstance(leaf, Discrete | MultiDiscrete):
        sizes = leaf.n if isinstance(leaf, Discrete) else leaf.nvec
        start = np.broadcast_to(np.asarray(leaf.start), np.shape(sizes))
        return np.ravel(sizes)[:size], np.ravel(start)[:size]
    return np.full(size, 2), np.zeros(size, int)


def _width(low: jax.Array, high: jax.Array, bins: Array) -> jax.Array:
    # Where all values are equal, any width puts them into the first bin.
    return jnp.maximum((high - low) / bins, jnp.finfo(jnp.float32).tiny)


def _packed(low: jax.Array, high: jax.Array, counted: jax.Array) -> jax.Array:
    """Return a histogram as one vector: low, high, counts."""
    return jnp.concatenate([jnp.stack([low, high]), counted.astype(jnp.float32)])
