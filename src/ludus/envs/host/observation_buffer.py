"""Observations of a batch of host environments: one array for each leaf of the space, and masks of actions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ludus.envs.base import HostEnv
from ludus.envs.host import answers
from ludus.spaces import Box, MultiDiscrete, allows_any, flatten, integer_bounds, leaves, mask_size, unflatten
from ludus.types import LudusError, Masked

MASK = "action_mask"
"""The entry of `info` in which Gymnasium environments say which actions are allowed."""


class ObservationBuffer:
    """Rows that single environments are put into, checked as they come.

    `value` is what the whole batch shows: an array `[num_envs, ...]`, or dicts and tuples of them, with masks if those
    are expected.
    """

    def __init__(self, env: HostEnv, where: Callable[[int], str]):
        """Reserve the arrays for a batch; `where(index)` says in an error which of its environments it is about."""
        self.env, self.where, self.space, self.action_space = env, where, env.observation_space, env.action_space
        self.names = [name for name, _ in leaves(self.space)]
        self.arrays = [np.zeros((env.num_envs, *leaf.shape), leaf.dtype) for _, leaf in leaves(self.space)]
        self.masks: np.ndarray | None = None
        self.value = unflatten(self.space, self.arrays)
        self._bounds = [integer_bounds(leaf) for _, leaf in leaves(self.space)]
        self._plain = self.arrays[0] if isinstance(self.space, Box) else None
        self._plain_shape = self.arrays[0].shape[1:]
        self._plain_types = [self.arrays[0].dtype, np.dtype(np.float64)][: 1 + (self.arrays[0].dtype.kind == "f")]

    def expect_masks(self) -> None:
        """Ask for a mask in every `info` from now on."""
        size = mask_size(self.action_space)
        if size is None:
            raise LudusError(
                f"{self.env.id}: info has an {MASK}, but masks are for Discrete and MultiDiscrete actions, "
                f"not for {self.action_space}"
            )
        self.masks = np.ones((self.env.num_envs, size), bool)
        self.value = Masked(unflatten(self.space, self.arrays), self.masks)

    def put(self, index: int, obs: object, info: dict[str, Any]) -> None:
        """Take in what one environment shows."""
        is_plain = self._plain is not None and type(obs) is np.ndarray and obs.shape == self._plain_shape
        if is_plain and obs.dtype in self._plain_types:
            self._plain[index] = obs  # the usual case, without a detour
        else:
            self._put_parts(index, obs)
        if self.masks is not None:
            self.masks[index] = self._mask(index, info)

    def copy(self, other: "ObservationBuffer") -> None:
        """Show what the other shows."""
        for mine, theirs in zip(self.arrays, other.arrays, strict=True):
            mine[:] = theirs
        if self.masks is not None:
            self.masks[:] = other.masks

    def check_choice(self) -> None:
        """Refuse masks that leave nothing to choose."""
        if self.masks is None:
            return
        stuck = ~allows_any(self.action_space, self.masks)
        if stuck.any():
            index = int(stuck.argmax())
            raise LudusError(
                f"{self.where(index)}: the {MASK} forbids every action, "
                f"but a running episode must allow at least one of {self.action_space}"
            )

    def _put_parts(self, index: int, obs: object) -> None:
        try:
            parts = flatten(self.space, obs)
        except ValueError as error:
            raise LudusError(f"{self.where(index)}: its observation is unlike its space: {error}") from error
        for name, array, part, bounds in zip(self.names, self.arrays, parts, self._bounds, strict=True):
            try:
                answers.put(array, index, part, bounds)
            except ValueError as error:
                which = f"observation {name!r}" if name else "observation"
                raise LudusError(f"{self.where(index)}: its {which} {error}") from error

    def _mask(self, index: int, info: dict[str, Any]) -> np.ndarray:
        size, given = mask_size(self.action_space), info.get(MASK)
        if isinstance(given, tuple | list) and isinstance(self.action_space, MultiDiscrete):
            given = np.concatenate([np.ravel(part) for part in given])  # Gymnasium's form: one mask for each component
        mask = np.asarray(given)
        if mask.shape != (size,) or mask.dtype.kind not in "bui" or not ((mask == 0) | (mask == 1)).all():
            got = "none" if given is None else f"{mask.dtype} of shape {mask.shape}"
            raise LudusError(
                f"{self.where(index)}: info[{MASK!r}] must hold {size} zeros and ones for {self.action_space}, "
                f"got {got}"
            )
        return mask
