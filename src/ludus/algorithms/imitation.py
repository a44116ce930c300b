"""The nearness of a policy's distributions to actions that were demonstrated; leading axes are batch axes."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ludus.networks.distributions import Composite, Gaussian, TanhGaussian
from ludus.spaces import Box, Leaf, Space, leaves
from ludus.types import Array, Tree

MOST = 0.999
"""An action is brought this near to its bounds at most before tanh is undone: at the bounds there is no inverse."""


def log_likelihood(distribution: Any, action: Tree, without_boxes: Space | None = None) -> Any:
    """Return log p(action) `[...]`; of a squashed one its density in (-1, 1).

    Given a space, its boxes are left out: 0 if it has nothing else.
    """
    if without_boxes is None:
        return distribution.log_prob(_unsquashed(distribution, action))
    others = [p.log_prob(a) for leaf, p, a in _parts(without_boxes, distribution, action) if not isinstance(leaf, Box)]
    return sum(others)


def agreement(space: Space, distribution: Any, action: Tree) -> jax.Array | None:
    """Return whether the greedy action is the given one, by all its integers; None if it has none."""
    same = [_same(p.mode(), a, leaf) for leaf, p, a in _parts(space, distribution, action) if not isinstance(leaf, Box)]
    return jnp.stack(same).all(axis=0) if same else None


def squared_error(space: Space, distribution: Any, action: Tree) -> jax.Array | None:
    """Return the mean squared distance between the greedy action's real numbers and the given ones; None for none."""
    gaps = [_greedy(p) - a for leaf, p, a in _parts(space, distribution, action) if isinstance(leaf, Box)]
    return jnp.mean(jnp.square(jnp.concatenate(gaps, axis=-1)), axis=-1) if gaps else None


def floored(distribution: Any, least: Array) -> Any:
    """Return a distribution whose deviations are no smaller than `least`: below that, no slope drives them on.

    Demonstrations of a policy without chance have no deviation at all, and their likelihood no bound.
    """
    if isinstance(distribution, Composite):
        return Composite(tuple(floored(part, least) for part in distribution.parts))
    if isinstance(distribution, Gaussian | TanhGaussian):
        return distribution._replace(log_std=jnp.maximum(distribution.log_std, jnp.log(least)))
    return distribution


def _parts(space: Space, distribution: Any, action: Tree) -> Iterator[tuple[Leaf, Any, Any]]:
    """Yield each leaf of the space with its distribution and its action."""
    is_joint = isinstance(distribution, Composite)
    distributions, actions = (distribution.parts, action) if is_joint else ([distribution], [action])
    for (_, leaf), part, value in zip(leaves(space), distributions, actions, strict=True):
        yield leaf, part, value


def _same(mode: jax.Array, action: jax.Array, leaf: Leaf) -> jax.Array:
    equal = mode == action
    return equal.all(axis=-1) if leaf.shape else equal


def _greedy(distribution: Any) -> jax.Array:
    mode = distribution.mode()
    return distribution.squash(mode) if isinstance(distribution, TanhGaussian) else mode


def _unsquashed(distribution: Any, action: Tree) -> Any:
    return jnp.arctanh(jnp.clip(action, -MOST, MOST)) if isinstance(distribution, TanhGaussian) else action
