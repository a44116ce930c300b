"""Observations of any space, for every algorithm: refused, normalised, freed of their masks."""

import itertools
from typing import Any

import jax

from ludus.algorithms.normalize import (
    RunningStatistics,
    TokenRows,
    TokenStatistics,
    empty_statistics,
    empty_token_statistics,
)
from ludus.networks.vectors import check_leaves
from ludus.spaces import Box, Leaf, Space, map_leaves
from ludus.types import Transition, split_mask


def check_observation_space(algorithm: str, space: Space) -> None:
    """Refuse by name what no encoder can make a vector of."""
    check_leaves(f"{algorithm}: observation space", space)


def observation_statistics(space: Space) -> Any:
    """Return empty statistics for each leaf of real numbers; None for images, choices and bits, which have no scale.

    A leaf is measured entry by entry, unless it names the groups of tokens that it is made of.
    """

    def statistics(leaf: Leaf) -> RunningStatistics | TokenStatistics | None:
        if isinstance(leaf, Box) and leaf.groups:
            return empty_token_statistics(token_rows(leaf), len(leaf.shape))
        return empty_statistics(leaf.shape) if isinstance(leaf, Box) and leaf.is_float else None

    return map_leaves(statistics, space)


def token_rows(space: Box) -> tuple[TokenRows, ...]:
    """Return the place of each group that a space names."""
    starts = itertools.accumulate((group.size for group in space.groups), initial=0)
    groups = zip(starts, space.groups, strict=False)
    return tuple(TokenRows(start, group.tokens, group.shape[-1], group.valid) for start, group in groups)


def without_masks(steps: Transition) -> tuple[Transition, jax.Array | None]:
    """Take the masks of allowed actions out of the observations; padding allows everything, so that it is finite."""
    (obs, mask), (next_obs, _) = split_mask(steps.obs), split_mask(steps.next_obs)
    if mask is not None and steps.valid is not None:
        mask = mask | ~steps.valid[..., None]
    return steps._replace(obs=obs, next_obs=next_obs), mask
