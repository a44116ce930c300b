"""What a batch of host environments shows: one array for each leaf of the observation space, and masks of actions."""

from typing import Any

import numpy as np

from ludus.spaces import MultiDiscrete, flatten, leaves, mask_size, unflatten
from ludus.types import LudusError, Masked

MASK = "action_mask"
"""Where Gymnasium environments put the actions that are allowed: an entry of `info`."""


class Shown:
    """Rows that single environments are put into, checked as they come.

    `value` is what the whole batch shows: an array `[num_envs, ...]`, or dicts and tuples of them, with masks if those
    are expected.
    """

    def __init__(self, env: Any):
        """Reserve the arrays for a `HostEnv`."""
        self.env, self.space, self.action_space = env, env.observation_space, env.action_space
        self.names = [name for name, _ in leaves(self.space)]
        self.arrays = [np.zeros((env.num_envs, *leaf.shape), leaf.dtype) for _, leaf in leaves(self.space)]
        self.masks: np.ndarray | None = None
        self.value = unflatten(self.space, self.arrays)
        self._plain = self.arrays[0] if self.names == [""] else None
        self._plain_shape = getattr(self.space, "shape", None)

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

    def put(self, index: int, obs: Any, info: dict[str, Any]) -> None:
        """Take in what one environment shows."""
        if self._plain is not None and getattr(obs, "shape", None) == self._plain_shape:
            self._plain[index] = obs  # the usual case, without a detour
        else:
            self._put_parts(index, obs)
        if self.masks is not None:
            self.masks[index] = self._mask(info)

    def copy(self, other: "Shown") -> None:
        """Show what the other shows."""
        for mine, theirs in zip(self.arrays, other.arrays, strict=True):
            mine[:] = theirs
        if self.masks is not None:
            self.masks[:] = other.masks

    def check_choice(self) -> None:
        """Refuse masks that leave nothing to choose."""
        if self.masks is None:
            return
        sizes = self.action_space.sizes if isinstance(self.action_space, MultiDiscrete) else [self.masks.shape[1]]
        starts = np.cumsum([0, *sizes[:-1]])
        stuck = ~np.logical_or.reduceat(self.masks, starts, axis=1).all(axis=1)
        if stuck.any():
            index = int(stuck.argmax())
            raise LudusError(
                f"{self.env.id}: the {MASK} of environment {index} forbids every action, "
                f"but a running episode must allow at least one of {self.action_space}"
            )

    def _put_parts(self, index: int, obs: Any) -> None:
        try:
            parts = flatten(self.space, obs)
        except ValueError as error:
            raise LudusError(f"{self.env.id}: returned an observation unlike its space: {error}") from error
        for name, array, part in zip(self.names, self.arrays, parts, strict=True):
            if np.shape(part) != array.shape[1:]:
                raise LudusError(
                    f"{self.env.id}: returned an observation{f' {name!r}' if name else ''} of shape {np.shape(part)}, "
                    f"but its observation space says {array.shape[1:]}"
                )
            array[index] = part

    def _mask(self, info: dict[str, Any]) -> np.ndarray:
        size, given = mask_size(self.action_space), info.get(MASK)
        if isinstance(given, tuple | list) and isinstance(self.action_space, MultiDiscrete):
            given = np.concatenate([np.ravel(part) for part in given])  # Gymnasium's form: one mask for each component
        mask = np.asarray(given)
        if mask.shape != (size,) or mask.dtype.kind not in "bui" or not ((mask == 0) | (mask == 1)).all():
            got = "none" if given is None else f"{mask.dtype} of shape {mask.shape}"
            raise LudusError(
                f"{self.env.id}: info[{MASK!r}] must hold {size} zeros and ones for {self.action_space}, got {got}"
            )
        return mask
