"""Acting from Python: one compiled call for each step of all environments, and one array fetched from it."""

from functools import lru_cache, partial
from typing import Any, Protocol

import jax
import numpy as np

from ludus.runtime.packing import PackedLayout, choose_rows
from ludus.spaces import Leaf
from ludus.types import Array, Mode, Tree


class Actor(Protocol):
    """The part of an algorithm that a rollout needs."""

    def initial_memory(self, policy: Tree, n: int) -> Tree:
        """Return a policy's memory at the start of `n` episodes; `()` if it has none."""
        ...

    def noise(self, policy: Tree, key: jax.Array, shape: tuple[int, ...]) -> Tree:
        """Draw what exploration needs for `shape` actions."""
        ...

    def act(self, policy: Tree, memory: Tree, obs: Tree, noise: Tree, mode: Mode) -> tuple[Tree, Tree, Tree]:
        """Choose actions for a batch: new memory, actions for the environment, extras for learning."""
        ...


@partial(jax.jit, static_argnames=("mode",))
def act(
    algorithm: Actor, policy: Tree, memory: Tree, obs: Tree, ended: Array | None, noise: Tree, t: Array, mode: Mode
) -> tuple[Tree, jax.Array]:
    """Act for one step: new memory, and actions and extras in one packed matrix.

    Row `t` of the noise is read here. Where `ended` is True an episode begins, and its memory is that of a start.
    """
    if ended is not None and jax.tree.leaves(memory):
        memory = choose_rows(ended, algorithm.initial_memory(policy, len(ended)), memory)
    row = None if noise is None else jax.tree.map(lambda x: x[t], noise)
    memory, action, extras = algorithm.act(policy, memory, obs, row, mode)
    return memory, PackedLayout((action, extras)).pack((action, extras))[0]


@partial(jax.jit, static_argnames=("shape",))
def draw_noise(algorithm: Actor, policy: Tree, key: jax.Array, shape: tuple[int, int]) -> Tree:
    """Draw the noise of a whole rollout."""
    return algorithm.noise(policy, key, shape)


def layout_of(algorithm: Actor, policy: Tree, memory: Tree, obs: Tree, noise: Tree, mode: Mode) -> PackedLayout:
    """Return how `act` packs its answer. No program runs: only shapes are asked for, and only once."""
    leaves, treedef = jax.tree.flatten((algorithm, policy, memory, obs, noise))
    return _layout_of(treedef, tuple((leaf.shape, _dtype(leaf)) for leaf in leaves), mode)


def _dtype(leaf: Leaf) -> Any:
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf.dtype if is_key else np.dtype(leaf.dtype)


@lru_cache(maxsize=64)
def _layout_of(treedef: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...], mode: Mode) -> PackedLayout:
    def choose(algorithm: Actor, policy: Tree, memory: Tree, obs: Tree, noise: Tree) -> tuple[Tree, Tree]:
        row = None if noise is None else jax.tree.map(lambda x: x[0], noise)
        return algorithm.act(policy, memory, obs, row, mode)[1:]

    return PackedLayout(jax.eval_shape(choose, *treedef.unflatten([jax.ShapeDtypeStruct(*leaf) for leaf in leaves])))
