"""Finding the first NaN or infinity of an update, inside the compiled program."""

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ludus.algorithms.base import Update
from ludus.algorithms.minibatch import blank_padding
from ludus.runtime import placement
from ludus.types import Rollout, Tree

Kind = TypeVar("Kind")

MASK = "action_mask"
FAULTS = ("", "observation", "reward", "action", "loss", "gradient", "parameter", MASK)
"""Where a fault was first seen; `metrics["fault"]` is an index into this tuple. NaN spreads in this order.

`MASK` is what lies behind an action that is none: a mask of allowed actions that forbids all of them.
"""


def first_fault(**quantities: Tree) -> jax.Array:
    """Index into FAULTS of the earliest named quantity that is not finite; 0 if all are."""
    codes = jnp.asarray([FAULTS.index(name) for name in quantities])
    broken = jnp.stack([~_all_finite(tree) for tree in quantities.values()])
    return jnp.where(broken, codes, len(FAULTS)).min() % len(FAULTS)


def unless_faulty(fault: jax.Array, new: Kind, old: Kind) -> Kind:
    """Return the new state, or the old one where there is a fault."""
    return jax.tree.map(lambda new, old: jnp.where(fault == 0, new, old), new, old)


class CheckedUpdate(NamedTuple):
    """An `Update` whose fault is known."""

    state: Tree
    metrics: dict[str, jax.Array]
    updates: jax.Array
    fault: jax.Array
    gradient: Tree


def checked(update: Update, before: Tree, rollout: Rollout) -> CheckedUpdate:
    """Look for NaN where the algorithm has not done so: there the state is as it was before."""
    metrics = {name: jnp.asarray(value, jnp.float32) for name, value in update.metrics.items()}
    updates = jnp.asarray(update.updates, jnp.int32)
    if update.fault is not None:
        return CheckedUpdate(update.state, metrics, updates, jnp.asarray(update.fault, jnp.int32), update.gradient)
    steps = blank_padding(rollout.steps)
    fault = first_fault(
        observation=(steps.obs, steps.next_obs), reward=steps.reward, action=steps.action, parameter=update.state
    )
    return CheckedUpdate(unless_faulty(fault, update.state, before), metrics, updates, fault, update.gradient)


def _all_finite(tree: Tree) -> jax.Array:
    leaves = [leaf.reshape(-1) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if placement.num_devices() > 1:  # together, parameters would be shared out as environments are
        leaves = [jnp.isfinite(leaf).all()[None] for leaf in leaves]
        return jnp.concatenate(leaves).all() if leaves else jnp.asarray(True)
    return jnp.isfinite(jnp.concatenate(leaves)).all() if leaves else jnp.asarray(True)
