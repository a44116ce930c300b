"""Between the units in which policies act and those of an environment's actions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ludus.networks.vectors import byte_scale, check_leaves, vector_size
from ludus.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, flatten, leaves, unflatten
from ludus.types import LudusError, Scaling, Spec, Tree


def action_size(space: Space) -> int:
    """Number of outputs that the policy head needs for an action space."""
    return sum(vector_size(leaf) for _, leaf in leaves(space))


def action_scale(space: Box, scaling: Scaling = "bounds") -> tuple[np.ndarray, np.ndarray]:
    """Middle and half width of a box of actions, of its shape; 0 and 1 for an entry without two finite bounds."""
    low, high = space.bounds
    is_bounded = np.isfinite(low) & np.isfinite(high)
    if scaling == "bytes":
        is_bounded = np.full(space.shape, is_bounded.all())
    low, high = np.where(is_bounded, low, np.float32(-1)), np.where(is_bounded, high, np.float32(1))
    return 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low


def to_environment(space: Space, sample: Tree, scaling: Scaling = "bounds") -> Tree:
    """Return what the environment receives for a sampled action; a Dict or Tuple takes them in the order of `leaves`.

    Policies count integers from 0, and act in units where the bounds of a box are -1 and 1, so that one initial
    standard deviation suits every environment. Here integers are moved to their start; real numbers are mapped onto
    the box and clipped to it. An entry without two finite bounds takes them as they are.
    """
    if isinstance(space, Dict | Tuple):
        parts = zip(leaves(space), sample, strict=True)
        return unflatten(space, [to_environment(leaf, part, scaling) for (_, leaf), part in parts])
    if isinstance(space, Discrete):
        return sample + space.start if space.start else sample
    action = sample.reshape(*sample.shape[:-1], *space.shape)
    if isinstance(space, MultiDiscrete):
        return action + np.asarray(space.start, np.int32)
    if isinstance(space, MultiBinary):
        return action
    middle, half = action_scale(space, scaling)
    return jnp.clip(middle + half * action, *space.bounds).astype(space.dtype)


def from_environment(space: Space, action: Tree, scaling: Scaling = "bounds") -> Any:
    """Return actions as the environment takes them in the units of policies: what `to_environment` makes of a sample.

    Integers are counted from 0; boxes are flat vectors, in which finite bounds are -1 and 1. Of a Dict or Tuple the
    parts are a tuple, in the order of `leaves`.
    """
    if isinstance(space, Dict | Tuple):
        parts = zip(leaves(space), flatten(space, action), strict=True)
        return tuple(from_environment(leaf, part, scaling) for (_, leaf), part in parts)
    if isinstance(space, Discrete):
        return (action - space.start).astype(jnp.int32)
    flat = action.reshape(*action.shape[: action.ndim - len(space.shape)], -1)
    if isinstance(space, MultiDiscrete):
        return (flat - np.ravel(np.broadcast_to(space.start, space.shape))).astype(jnp.int32)
    if isinstance(space, MultiBinary):
        return flat.astype(jnp.int32)
    middle, half = (np.ravel(x) for x in action_scale(space, scaling))
    # Where both bounds are one number there is nothing to choose, and the middle stands for it.
    return (flat - middle) / np.where(half > 0, half, 1.0)


def settled(spec: Spec) -> Spec:
    """Return a spec that was saved, with today's scaling if it means the same for its spaces."""

    def is_same(scale: Callable, leaf: Box) -> bool:
        return all(map(np.array_equal, scale(leaf), scale(leaf, spec.scaling)))

    seen = [leaf for _, leaf in leaves(spec.observation_space) if isinstance(leaf, Box) and leaf.dtype == "uint8"]
    # Where all entries of a box have the same bounds, nothing changed: no array is made of a size that a file claims.
    acted = [leaf for _, leaf in leaves(spec.action_space) if isinstance(leaf, Box) and _is_uneven(leaf)]
    unchanged = all(is_same(byte_scale, leaf) for leaf in seen) and all(is_same(action_scale, leaf) for leaf in acted)
    return replace(spec, scaling="bounds") if unchanged else spec


def _is_uneven(space: Box) -> bool:
    return isinstance(space.low, tuple) or isinstance(space.high, tuple)


def check_action_space(algorithm: str, space: Space) -> None:
    """Refuse by name what no distribution is over."""
    check_leaves(f"{algorithm}: action space", space)
    for name, leaf in leaves(space):
        if isinstance(leaf, Box) and not leaf.is_float:
            where = f"{algorithm}: action space {leaf}" + (f" of {name!r}" if name else "")
            raise LudusError(f"{where} is not supported; a Box of actions must be of floats")
