"""Coming back to states of an episode that was watched, and playing branches from them, one after the other."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.base import HostEnv
from ludus.envs.batch import BatchState, Draw, JaxEnv
from ludus.rollout.episodes import Look
from ludus.rollout.host_carry import seeds_from
from ludus.rollout.host_monte_carlo import HostPoint
from ludus.rollout.host_monte_carlo import returns as host_returns
from ludus.rollout.monte_carlo import FirstBranch, Origin, Valuing, returns
from ludus.runtime.compilation import compiler_options, jit
from ludus.runtime.rng import spread
from ludus.types import Array, Branching, Tree

Memories = tuple[Tree, Tree]
"""The policy's and the critic's."""
PlayBranch = Callable[[Origin, FirstBranch], Array]
"""Plays one branch from each state of an origin; returns their returns `[1, k]`."""


def revisit(
    look: Look, parts: Tree, memory: Memories, env: JaxEnv, key: jax.Array, index: int, at: Sequence[int]
) -> list[Origin]:
    """Play episode `index` of those that `watch` plays with a key once more; return where it is before steps `at`."""
    start_key, step_key = jax.random.split(key)
    options, lane = compiler_options(0), env.remake(1)
    state = jit(JaxEnv.begin, options, static=("self",))(lane, spread(start_key, (1,), index), lane.held_out(index, 1))
    program = jit(_revisit, options, static=("look", "env", "count"))
    rows = np.array(at, np.int32)
    state, memories = program(look, lane, parts, memory, state, step_key, np.uint32(index), rows, int(rows.max()) + 1)
    return [Origin(state, *memories)]


def _revisit(  # noqa: PLR0913, PLR0917  each part of a rollout is given by itself
    look: Look,
    env: JaxEnv,
    parts: Tree,
    memory: Memories,
    state: BatchState,
    key: jax.Array,
    index: Array,
    at: jax.Array,
    count: int,
) -> tuple[BatchState, Memories]:
    def step(carry: tuple[BatchState, Memories], t: jax.Array) -> tuple[Tree, Tree]:
        state, memory = carry
        after, action, _ = look(parts, memory, state.obs)
        own = spread(jax.random.fold_in(key, t), (1,), index)
        return (env.step(state, action, Draw(own, None))[0], after), carry

    passed = jax.lax.scan(step, (state, memory), jnp.arange(count))[1]
    return jax.tree.map(lambda x: x[at, 0], passed)  # [T, 1, ...] -> [k, ...]


def host_revisit(
    look: Look, parts: Tree, memory: Memories, env: HostEnv, key: jax.Array, index: int, at: Sequence[int]
) -> list[Origin]:
    """Play it once more step by step: one origin for each step; the twin of `revisit`."""
    lane, looking, found = env.remake(1), jit(look, ()), []
    try:
        obs = lane.reset(seeds_from(key, 1, index))
        for t in range(max(at) + 1):
            obs = jax.tree.map(np.array, obs)
            if t in at:
                found.append(Origin(HostPoint(lane.snapshot(), obs), *memory))
            memory, action, _ = jax.device_get(looking(parts, memory, obs))
            obs = lane.step(jax.tree.map(np.array, action)).obs
    finally:
        lane.close()
    return found


@contextmanager
def branching_off(
    algorithm: Valuing, env: JaxEnv, policy: Tree, critic: Tree, key: jax.Array, branching: Branching
) -> Generator[PlayBranch]:
    """Return what plays a branch from origins of `revisit`."""

    @jax.jit
    def play(parts: Tree, origin: Origin, first: FirstBranch, gamma: Array) -> jax.Array:
        algorithm, policy, critic = parts
        one = Branching(1, branching.depth, gamma)
        return returns(algorithm, env.remake(1), policy, critic, origin, key, one, first=first)

    gamma = np.float32(branching.gamma)
    yield lambda origin, first: play((algorithm, policy, critic), origin, FirstBranch(*map(np.uint32, first)), gamma)


@contextmanager
def host_branching_off(
    algorithm: Valuing, env: HostEnv, policy: Tree, critic: Tree, key: jax.Array, branching: Branching
) -> Generator[PlayBranch]:
    """Return what plays a branch from an origin of `host_revisit`."""
    lane = env.remake(1)
    twin = lane.twin()
    one = branching._replace(branches=1)
    try:
        yield lambda origin, first: host_returns(algorithm, twin, policy, critic, origin, key, one, first=first)
    finally:
        twin.close()
        lane.close()
