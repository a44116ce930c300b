"""Gymnasium's spaces: they are translated into ours, actions into theirs; and advice about frames for networks.

Besides its two siblings, this is the only file that imports Gymnasium.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from ludus.envs.base import Action
from ludus.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, flatten, leaves, unflatten
from ludus.types import LudusError

LONG_SIDE, MANY_PIXELS = 36, 20_000
"""A frame has two sides of at least so many pixels; one of more than so many in all is worth making smaller first."""

Rows = np.ndarray | Sequence[Any]
"""One action after the other."""
STACK = "{name:gymnasium.wrappers:FrameStackObservation,stack_size:4}"


def as_space(space: object, name: str) -> Space:
    """Translate a Gymnasium space, or refuse it by name."""
    match space:
        case gymnasium.spaces.Discrete():
            return Discrete(int(space.n), int(space.start))
        case gymnasium.spaces.MultiDiscrete():
            return MultiDiscrete(space.nvec.tolist(), space.start.tolist())
        case gymnasium.spaces.MultiBinary():
            return MultiBinary(space.shape)
        case gymnasium.spaces.Box():
            # Images stay bytes; all other numbers are kept as float32, which is what networks compute in.
            is_kept = space.dtype == np.uint8 or ("action space" in name and space.dtype.kind != "f")
            return Box.from_arrays(space.low, space.high, str(space.dtype) if is_kept else "float32")
        case gymnasium.spaces.Dict():
            return _as_dict(space, name)
        case gymnasium.spaces.Tuple():
            return Tuple([as_space(part, f"{name} {index}:") for index, part in enumerate(space.spaces)])
    raise LudusError(
        f"{name} {type(space).__name__} is not supported; Box, Discrete, MultiDiscrete, MultiBinary, and Dict and "
        "Tuple of them are"
    )


def _as_dict(space: gymnasium.spaces.Dict, name: str) -> Dict:
    """Translate what can be; if a part cannot, say how to leave it out."""
    parts: dict[str, Space] = {}
    refused: list[LudusError] = []
    for key, part in space.spaces.items():
        try:
            parts[str(key)] = as_space(part, f"{name} {key!r}:")
        except LudusError as error:
            refused.append(error)
    if refused:
        hint = ""
        if parts and name.endswith("observation space"):
            wrapper = f"{{name:gymnasium.wrappers:FilterObservation,filter_keys:[{','.join(parts)}]}}"
            hint = f"; leave it out: 'env_wrappers=[{wrapper}]'"
        raise LudusError(f"{refused[0]}{hint}")
    return Dict(list(parts.items()))


class NativeActions:
    """Turns batches of actions into Gymnasium's own types, one action for each environment."""

    def __init__(self, native: gymnasium.Space, space: Space):
        """Take the action space, as Gymnasium has it and as we have it."""
        self.space, self._leaves = space, list(_native_leaves(native))

    def rows(self, action: Action) -> Rows:
        """Return the actions `[n, ...]` one by one."""
        if not isinstance(self.space, Dict | Tuple):
            return _native_rows(self._leaves[0], action)
        parts = flatten(self.space, action)
        rows = [_native_rows(leaf, part) for leaf, part in zip(self._leaves, parts, strict=True)]
        return [unflatten(self.space, values) for values in zip(*rows, strict=True)]


def _native_leaves(space: gymnasium.Space) -> Iterator[gymnasium.Space]:
    """Yield the spaces that hold arrays, in the order of `ludus.spaces.leaves`."""
    if isinstance(space, gymnasium.spaces.Dict):
        for key in sorted(space.spaces):
            yield from _native_leaves(space.spaces[key])
    elif isinstance(space, gymnasium.spaces.Tuple):
        for part in space.spaces:
            yield from _native_leaves(part)
    else:
        yield space


def _native_rows(space: gymnasium.Space, action: np.ndarray) -> Rows:
    """Return actions `[n, ...]` in an environment's own type, without leaving its bounds by rounding."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return action.tolist()
    if space.dtype == action.dtype:
        return action
    action = action.astype(space.dtype)
    return np.clip(action, space.low, space.high) if isinstance(space, gymnasium.spaces.Box) else action


def frame_advice(id: str, space: Space) -> Iterator[str]:
    """Yield what to do about frames that networks would see slowly, or not as pictures."""
    for _, leaf in leaves(space):
        if not isinstance(leaf, Box) or leaf.dtype != "uint8":
            continue
        *_, width, height = sorted(leaf.shape) if len(leaf.shape) in (3, 4) else (0, 0)
        shape = " x ".join(map(str, leaf.shape))
        if len(leaf.shape) == 4 and width >= LONG_SIDE:
            wrappers = f"[gymnasium.wrappers:GrayscaleObservation,{STACK}]"
            yield (
                f"{id}: bytes of {shape} are no picture to a network, which will see {math.prod(leaf.shape)} numbers "
                f"in a row; make frames grey before they are stacked: 'env_wrappers={wrappers}'"
            )
        elif width * height > MANY_PIXELS:
            size = "{name:gymnasium.wrappers:ResizeObservation,shape:[84,84]}"
            wrappers = f"'env_wrappers=[gymnasium.wrappers:GrayscaleObservation,{size},{STACK}]'"
            if "ALE/" in id:
                wrappers = f"env_options.frameskip=1 'env_wrappers=[gymnasium.wrappers:AtariPreprocessing,{STACK}]'"
            yield (
                f"{id}: frames of {shape} take {width * height / 84**2:.1f} times as long to learn from as those of 84 "
                f"x 84 that are usual; to have those: {wrappers}"
            )
