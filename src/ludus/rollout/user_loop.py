"""Steps of a loop that the user wrote: checked one by one, and recorded into rollouts of one fixed shape."""

from typing import Any, NamedTuple

import jax
import numpy as np

from ludus.runtime.packing import PackedLayout
from ludus.spaces import Space, allows_any, flatten, leaves, mask_size, unflatten
from ludus.types import Array, Branching, LudusError, Masked, Rollout, Spec, Transition, Tree, split_mask

NUMBERS = "bfui"
"""The kinds of NumPy types that hold numbers."""


class Chosen(NamedTuple):
    """Actions whose outcome was not observed yet: where they were chosen, what `act` answered, the memory after it."""

    obs: Any
    row: np.ndarray
    layout: PackedLayout
    memory: Any


class Record:
    """The rollout that is being recorded: arrays `[T, n, ...]` of which the first `filled` rows are there."""

    def __init__(self, length: int, chosen: Chosen, memory: Tree):
        """Reserve the rows. Fresh arrays for each rollout: the device may keep using the last ones without a copy."""

        def room(tree: Tree) -> Any:
            return jax.tree.map(lambda x: np.zeros((length, *x.shape), x.dtype), tree)

        n = len(chosen.row)
        self.layout, self.memory, self.filled = chosen.layout, memory, 0
        self.obs, self.next_obs, self.rows = room(chosen.obs), room(split_mask(chosen.obs)[0]), room(chosen.row)
        self.reward = np.zeros((length, n), np.float32)
        self.terminated, self.truncated = np.zeros((length, n), bool), np.zeros((length, n), bool)

    def add(self, chosen: Chosen, next_obs: Tree, reward: Array, terminated: Array, truncated: Array) -> None:
        """Write one row."""
        t = self.filled
        _write(self.obs, t, chosen.obs)
        _write(self.next_obs, t, next_obs)
        self.rows[t], self.reward[t] = chosen.row, reward
        self.terminated[t], self.truncated[t] = terminated, truncated
        self.filled += 1

    def rollout(self, progress: float) -> Rollout:
        """Return the rollout; rows that were not filled are padding.

        Where it was cut short, its last row counts as truncated: it bootstraps from its true successor, as the last
        row of a full rollout does, and nothing reaches it from the padding after it.
        """
        valid, truncated = None, self.truncated
        if self.filled < len(self.reward):
            valid = np.zeros(self.reward.shape, bool)
            valid[: self.filled] = True
            truncated = truncated.copy()
            truncated[self.filled - 1] |= ~self.terminated[self.filled - 1]
        action, extras = self.layout.unpack([self.rows])
        steps = Transition(self.obs, action, self.reward, self.terminated, truncated, self.next_obs, extras, valid)
        return Rollout(jax.device_put(steps), self.memory, np.float32(progress))


class Shown:
    """Checks what comes from outside against the spaces, and makes it arrays of one batch."""

    def __init__(self, spec: Spec):
        """Keep the spaces and the number of environments."""
        self.spec = spec

    def observations(self, name: str, obs: Tree) -> tuple[Any, bool]:
        """Return observations as arrays `[num_envs, ...]` of the space's types, and whether that axis was missing."""
        n, (obs, mask) = self.spec.num_envs, split_mask(obs)
        named = leaves(self.spec.observation_space)
        try:
            arrays = [np.asarray(x) for x in flatten(self.spec.observation_space, obs)]
        except ValueError as error:
            raise LudusError(f"{name} is unlike its space: {error}") from error
        is_single = n == 1 and arrays[0].shape == named[0][1].shape
        for index, ((part, leaf), array) in enumerate(zip(named, arrays, strict=True)):
            wanted = leaf.shape if is_single else (n, *leaf.shape)
            where = f"{name} {part!r}" if part else name
            if array.shape != wanted:
                raise LudusError(f"{where} has shape {array.shape}, but must have {wanted} for {n} environments")
            if array.dtype.kind not in NUMBERS:
                raise LudusError(f"{where} holds something else than numbers ({array.dtype})")
            with np.errstate(over="ignore", invalid="ignore"):
                # A copy: the environment may reuse its own.
                arrays[index] = array.reshape(n, *leaf.shape).astype(leaf.dtype)
            if not np.isfinite(array).all() or not np.isfinite(arrays[index]).all():
                raise LudusError(f"{where} holds a NaN or an infinity")
        batch = unflatten(self.spec.observation_space, arrays)
        return (batch if mask is None else Masked(batch, self._mask(name, mask))), is_single

    def _mask(self, name: str, mask: Array) -> np.ndarray:
        """Return masks `[num_envs, size]`, each of which leaves something to choose."""
        space, n = self.spec.action_space, self.spec.num_envs
        size, given = mask_size(space), np.asarray(mask)
        if size is None:
            raise LudusError(f"{name} has an action_mask, but masks are for Discrete and MultiDiscrete, not {space}")
        if given.size != n * size or given.shape[-1] != size or given.dtype.kind not in "bui":
            raise LudusError(f"{name}: action_mask must hold {n} x {size} booleans for {space}, got {given.shape}")
        allowed = given.astype(bool).reshape(n, size)
        if not allows_any(space, allowed).all():
            raise LudusError(f"{name}: action_mask forbids every action, but must allow at least one of {space}")
        return allowed

    def numbers(self, name: str, value: Any) -> np.ndarray:
        """Return one finite number for each environment."""
        n, array = self.spec.num_envs, np.asarray(value)
        if array.size != n or array.dtype.kind not in NUMBERS:
            got = f"shape {array.shape}" if array.dtype.kind in NUMBERS else repr(value)
            raise LudusError(f"observe: {name} must hold one number for each of {n} environments, got {got}")
        if not np.isfinite(array).all():
            raise LudusError(f"observe: {name}={value}: must be finite")
        return array.reshape(n)

    def flags(self, name: str, value: Any) -> np.ndarray:
        """Return yes or no for each environment."""
        array = self.numbers(name, value)
        if not ((array == 0) | (array == 1)).all():
            raise LudusError(f"observe: {name}={value}: must be True or False")
        return array.astype(bool)


def as_space(name: str, space: object) -> Space:
    """Return a space of ours, translated from Gymnasium's if it must be."""
    if isinstance(space, Space):
        return space
    try:
        from ludus.envs.adapters.gymnasium_spaces import as_space as translated
    except ImportError as error:
        raise LudusError(f"{name} {space!r}: must be a space of ludus.spaces, such as Box or Discrete") from error
    return translated(space, name)


def _write(room: Tree, t: int, rows: Tree) -> None:
    for array, leaf in zip(jax.tree.leaves(room), jax.tree.leaves(rows), strict=True):
        array[t] = leaf


def check_branching(branching: Branching | None) -> None:
    """Refuse branches: nobody here can bring a world back to where it was."""
    if branching is not None:
        raise LudusError(
            "algorithm.advantages=monte_carlo: branches begin in states of an environment that can be copied, and an "
            "Agent has none; use ludus.Trainer, or algorithm.advantages=gae"
        )
