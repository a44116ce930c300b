"""Running the memory of an actor or a critic: step by step while acting, through whole spans of steps while learning.

Networks without a memory pass straight through. One whose `remember` a user wrote runs step by step through time.
"""

from typing import Protocol

import jax
import jax.numpy as jnp

from ludus.networks.actor_critic import ActorCritic, MemoryOf
from ludus.networks.layers import Part
from ludus.networks.memory import Span
from ludus.runtime.packing import choose_rows
from ludus.types import Tree


class Remembers(Protocol):
    """A network, or the memory of a part of one."""

    def initial_memory(self, n: int) -> Tree:
        """Return the memory of `n` environments at an episode's start; `()` for none."""
        ...

    def remember(self, memory: Tree, obs: Tree) -> tuple[Tree, Tree]:
        """Take in observations: the new memory and the features that actor or critic see."""
        ...


def memory_of(module: ActorCritic, part: Part) -> Remembers:
    """Return the memory of the actor or the critic; one that they share is the module's own."""
    own = getattr(module, "memory_of", None)  # a user's module need not have it
    return module if own is None else own(part)


def span(
    module: ActorCritic, part: Part, memory: Tree, obs: Tree, next_obs: Tree | None, ended: jax.Array, every: int
) -> Span:
    """Return features `[T, B, ...]` of observations and, if given, of their true successors; see `memory.Span`."""
    remembers = memory_of(module, part)
    if isinstance(remembers, MemoryOf):
        return remembers.span(memory, obs, next_obs, ended, every)
    if not jax.tree.leaves(memory):
        features, after = (None if x is None else remembers.remember(memory, x)[1] for x in (obs, next_obs))
        return Span(features, after, memory)
    start = remembers.initial_memory(ended.shape[1])

    def step(memory: Tree, inputs: tuple[Tree, jax.Array]) -> tuple[Tree, Tree]:
        obs_t, ended_t = inputs
        after, features = remembers.remember(memory, obs_t)
        return choose_rows(ended_t, start, after), (memory, after, features)

    last, (before, after, features) = jax.lax.scan(step, memory, (obs, ended))
    memories = jax.tree.map(lambda x, y: jnp.concatenate([x[::every], y[None]]), before, last)
    return Span(features, None if next_obs is None else _one_step_each(remembers, after, next_obs), memories)


def _one_step_each(remembers: Remembers, memory: Tree, obs: Tree) -> Tree:
    """Features of `obs` `[T, B, ...]`, each seen from the memory of its own row, in one long batch."""
    shape = jax.tree.leaves(obs)[0].shape[:2]
    flat_memory, flat_obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (memory, obs))  # [T, B] -> [T * B]
    features = remembers.remember(flat_memory, flat_obs)[1]
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), features)  # [T * B] -> [T, B]
