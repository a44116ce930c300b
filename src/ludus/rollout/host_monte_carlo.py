"""Monte-Carlo rollouts of host environments: the twin of `monte_carlo.py`, which says what its functions do.

A second batch of the same environments is brought to where the first is, once for each branch, by what the exact resume
of a run has: most environments play their running episodes again.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from ludus.envs.base import HostEnv
from ludus.rollout.acting import Actor, act, layout_of
from ludus.rollout.host_carry import HostCarry, seeds_from
from ludus.rollout.monte_carlo import NEVER, FirstBranch, Origin, Valuing, keys_of, valued
from ludus.runtime.packing import choose_rows
from ludus.runtime.rng import stream
from ludus.spaces import Box, Leaf, integer_bounds, map_leaves
from ludus.types import Array, Branching, LudusError, Mode, Transition, Tree, split_mask


class HostPoint(NamedTuple):
    """Origin host environments are."""

    saved: dict[str, Any]
    """A snapshot of them."""
    obs: Tree
    """What they show there."""


class BranchStep(NamedTuple):
    """One step of a branch in every environment."""

    step: Transition
    memory: Tree
    """The policy's, after it."""


def here(env: HostEnv, carry: HostCarry) -> Origin:
    """Return where the environments are now; the carry must be the latest."""
    return Origin(HostPoint(env.snapshot(), carry.env.obs), carry.memory)


def roll_out(  # noqa: PLR0913  each part of a rollout is given by itself
    algorithm: Actor,
    env: HostEnv,
    policy: Tree,
    origin: Origin,
    key: jax.Array,
    depth: int,
    branches: int = 1,
    *,
    mode: Mode = "sample",
    first: FirstBranch = FirstBranch(),  # noqa: B008  a NamedTuple cannot change
) -> Transition:
    """Play `branches` rollouts from where each environment is, and return their steps as NumPy's arrays."""
    twin = env.twin()
    try:
        made = []
        for branch in range(branches):
            numbers = FirstBranch(int(first.branch) + branch, first.state)
            rows = [row.step for row in _played(algorithm, twin, policy, origin, key, depth, mode, numbers)]
            # Nothing follows where all have ended: what is missing is not valid.
            blank = jax.tree.map(np.zeros_like, rows[-1])
            made.append(jax.tree.map(lambda *x: np.stack(x), *rows, *[blank] * (depth - len(rows))))
    finally:
        twin.close()
    return jax.tree.map(lambda *x: np.stack(x, axis=1), *made)


def returns(  # noqa: PLR0913  each part of a rollout is given by itself
    algorithm: Valuing,
    env: HostEnv,
    policy: Tree,
    critic: Tree,
    origin: Origin,
    key: jax.Array,
    branching: Branching,
    *,
    mode: Mode = "sample",
    first: FirstBranch = FirstBranch(),  # noqa: B008
    begin_with: Tree = None,
) -> np.ndarray:
    """Return the discounted return of each branch `[branches, N]`; `env` is a `twin`, which may be used again."""
    depth = NEVER if branching.depth is None else branching.depth
    made = []
    for branch in range(branching.branches):
        numbers = FirstBranch(int(first.branch) + branch, first.state)
        rows = _played(algorithm, env, policy, origin, key, depth, mode, numbers, begin_with)
        made.append(_return_of(algorithm, policy, critic, origin, rows, float(branching.gamma)))
    return np.stack(made)


def _played(  # noqa: PLR0913, PLR0917  each part of a rollout is given by itself
    algorithm: Actor,
    twin: HostEnv,
    policy: Tree,
    origin: Origin,
    key: jax.Array,
    depth: int,
    mode: Mode,
    number: FirstBranch,
    begin_with: Tree = None,
) -> Iterator[BranchStep]:
    """Play one branch in every environment until all have ended; its first action may be given."""
    step_key, noise_key = jax.random.split(key)
    seeds = seeds_from(jax.random.fold_in(step_key, number.branch), twin.num_envs, int(number.state))
    obs, memory = twin.branch_off(origin.env.saved, seeds), origin.memory
    _check_same(twin, obs, origin.env.obs)
    active, layout = np.ones(twin.num_envs, bool), None
    for t in range(depth):
        obs = jax.tree.map(np.array, obs)  # the environment's own may be written into
        noise = None if mode == "greedy" else _noise(algorithm, policy, noise_key, t, twin.num_envs, number)
        layout = layout or layout_of(algorithm, policy, memory, obs, noise, mode)
        after, packed = act(algorithm, policy, memory, obs, None, noise, np.int32(0), mode)
        action, extras = layout.unpack([np.array(packed)])
        action = begin_with if t == 0 and begin_with is not None else action
        outcome = twin.step(jax.tree.map(np.copy, action))
        memory = choose_rows(active, after, memory) if jax.tree.leaves(memory) else memory
        told = jax.tree.map(np.array, (outcome.reward, outcome.terminated, outcome.truncated, outcome.next_obs))
        yield BranchStep(Transition(obs, action, *told, extras, active), memory)
        active, obs = active & ~(told[1] | told[2]), outcome.obs
        if not active.any():
            return


def _return_of(
    algorithm: Valuing, policy: Tree, critic: Tree, origin: Origin, rows: Iterator[BranchStep], gamma: float
) -> np.ndarray:
    """Add up the discounted rewards of one branch, and what the critic says of what comes after it."""
    shown, memory, critic_memory = origin.env.obs, origin.memory, origin.critic_memory
    count = len(jax.tree.leaves(shown)[0])
    total, weight, terminated = np.zeros(count, np.float32), np.ones(count, np.float32), np.zeros(count, bool)
    for (obs, _, reward, is_terminal, _, next_obs, _, active), after in rows:
        if jax.tree.leaves(critic_memory):
            seen = compiled_valued(algorithm, policy, critic, (memory, critic_memory), obs)[0]
            critic_memory = choose_rows(active, seen, critic_memory)
        total += np.where(active, weight * reward, np.float32(0))
        weight = np.where(active, weight * np.float32(gamma), weight)
        shown = jax.tree.map(partial(_chosen, active), next_obs, shown)
        terminated, memory = terminated | (active & is_terminal), after
    if critic is None:
        return total
    value = np.asarray(compiled_valued(algorithm, policy, critic, (memory, critic_memory), shown)[1])
    return total + np.where(terminated, np.float32(0), weight * value)


def _check_same(twin: HostEnv, obs: Tree, expected: Tree) -> None:
    """Refuse an environment that shows something else when it is brought to the same place."""
    pairs = zip(jax.tree.leaves(obs), jax.tree.leaves(expected), strict=True)
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs):
        raise LudusError(
            f"env={twin.id}: cannot be cloned in the midst of an episode: the same seed and actions show something "
            "else the second time; let it draw from self.np_random alone, or give it ludus_snapshot and ludus_restore"
        )


def _chosen(mask: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)


compiled_valued = jax.jit(valued)
"""`monte_carlo.valued` as a program of its own."""


@partial(jax.jit, static_argnames=("count",))
def _noise(algorithm: Actor, policy: Tree, key: jax.Array, t: Array, count: int, number: FirstBranch) -> Tree:
    """Draw the noise of one step of one branch, as `act` reads it: `[1, N, ...]`."""
    keys = keys_of(key, t, 1, count, number)
    return jax.tree.map(lambda x: x[None], jax.vmap(lambda key: algorithm.noise(policy, key, ()))(keys))


TRIAL_STEPS = 3


def check_branching(env: HostEnv, branching: Branching) -> None:
    """Refuse environments that have no twin, and those that do not come back to where they were in a short trial."""
    twin = env.twin()
    try:
        seeds = seeds_from(stream(0, "cloning"), twin.num_envs)
        obs = jax.tree.map(np.array, twin.reset(seeds))
        action = map_leaves(lambda leaf: np.broadcast_to(_some(leaf), (twin.num_envs, *leaf.shape)), env.action_space)
        for _ in range(0 if split_mask(obs)[1] is not None else TRIAL_STEPS):  # with masks it may be forbidden
            obs = jax.tree.map(np.array, twin.step(jax.tree.map(np.copy, action)).obs)
        _check_same(twin, twin.branch_off(twin.snapshot(), seeds), obs)
    finally:
        twin.close()


def _some(leaf: Leaf) -> np.ndarray:
    """Return an action that a space has: the one nearest to 0."""
    low, high = leaf.bounds if isinstance(leaf, Box) else cast(tuple, integer_bounds(leaf))
    return np.clip(0, low, high).astype(leaf.dtype)
