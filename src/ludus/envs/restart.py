"""When the starts of new episodes are made: all of them beforehand, or each when an episode ends.

Beforehand is one program without a branch, and wins where a start is a few random numbers. Where a reset builds a
world, or a state is large, a start for every step of every environment would be made and stored for the few that are
used. Either way a start comes from the key of its step and environment alone, so the choice changes no number.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from ludus.types import Tree

MOST_BYTES = 256
"""Bytes of a state with its observation, up to which starts may be stored for every step of a rollout."""
MOST_WORK, MOST_SHARE = 1024.0, 1 / 16
"""Operations of a reset that may be made beforehand: so many, about what it costs to look for episodes that ended; or
this share of those of a step."""
RANDOM_WORK, LOOP_ROUNDS = 50.0, 1000
"""Operations that a random number takes, and rounds of a loop whose length is not known."""


def is_made_ahead(reset: core.Jaxpr, step: core.Jaxpr, start: Tree) -> bool:
    """Say whether starts, of the shapes of `start`, are made beforehand: by work and size, never by the clock.

    Both are counted on the traced functions, so that the answer is the same on every machine.
    """
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(start))
    return size <= MOST_BYTES and work(reset) <= max(MOST_WORK, MOST_SHARE * work(step))


def work(program: core.Jaxpr) -> float:
    """Count the operations of a traced function, to within a factor of a few."""
    return sum(map(_work_of, program.eqns))


def _work_of(equation: core.JaxprEqn) -> float:
    name, parameters = equation.primitive.name, equation.params
    inside = [work(part) for part in _programs(parameters)]
    numbers = max((math.prod(getattr(made.aval, "shape", ())) for made in equation.outvars), default=0)
    if name == "cond":
        return max(inside)
    if inside:
        rounds = {"scan": parameters.get("length", 1), "while": LOOP_ROUNDS}.get(name, 1)
        return rounds * sum(inside)
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        factors = getattr(equation.invars[0].aval, "shape", ())
        return 2.0 * numbers * math.prod(factors[axis] for axis in contracted)
    return numbers * (RANDOM_WORK if name.startswith(("random_", "threefry")) else 1.0)


def _programs(parameters: dict[str, Any]) -> Iterator[core.Jaxpr]:
    """Yield the functions that an operation calls."""
    for value in parameters.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, core.ClosedJaxpr | core.Jaxpr):
                yield part.jaxpr if isinstance(part, core.ClosedJaxpr) else part


def restarted(ended: jax.Array, keys: jax.Array, start: Callable[[jax.Array], Tree], running: Tree) -> Any:
    """Return `running` `[B, ...]` with the rows that ended replaced by starts, each from its own key.

    Ended rows are gathered into a small batch and replaced, again and again while any are left: what is made is in
    proportion to what is used, and nothing is where no episode ended.
    """
    num_envs = len(ended)
    size = batch_size(num_envs)

    def go_on(state: tuple[Tree, jax.Array]) -> tuple[Tree, jax.Array]:
        running, left = state
        # The n-th row that is left; beyond the last one, places outside of the batch, which are dropped.
        places = jnp.searchsorted(left.cumsum(), jnp.arange(1, size + 1))
        rows = jnp.where(places < num_envs, places, num_envs + jnp.arange(size))
        fresh = jax.vmap(start)(keys.at[rows].get(mode="clip"))

        def put(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[rows].set(new, mode="drop", unique_indices=True, indices_are_sorted=True)

        return jax.tree.map(put, running, fresh), put(left, jnp.zeros(size, bool))

    return jax.lax.while_loop(lambda state: state[1].any(), go_on, (running, ended))[0]


def batch_size(num_envs: int) -> int:
    """Return how many starts are made at once: on a CPU four cost hardly more than one, on a GPU many more do not."""
    return min(num_envs, max(4, num_envs // 64))
