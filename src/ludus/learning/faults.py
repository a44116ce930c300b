"""Finding the first NaN or infinity of an update, inside the compiled program."""

from typing import Any

import jax
import jax.numpy as jnp

MASK = "action_mask"
FAULTS = ("", "observation", "reward", "action", "loss", "gradient", "parameter", MASK)
"""Where a fault was first seen; `metrics["fault"]` is an index into this tuple. NaN spreads in this order.

`MASK` is what lies behind an action that is none: a mask of allowed actions that forbids all of them.
"""


def first_fault(**quantities: Any) -> jax.Array:
    """Index into FAULTS of the earliest named quantity that is not finite; 0 if all are."""
    codes = jnp.asarray([FAULTS.index(name) for name in quantities])
    broken = jnp.stack([~_all_finite(tree) for tree in quantities.values()])
    return jnp.where(broken, codes, len(FAULTS)).min() % len(FAULTS)


def _all_finite(tree: Any) -> jax.Array:
    leaves = [leaf.reshape(-1) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.isfinite(jnp.concatenate(leaves)).all() if leaves else jnp.asarray(True)
