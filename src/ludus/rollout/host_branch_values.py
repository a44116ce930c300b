"""Values of the states that a rollout of host environments passes through; the twin of `branch_values.py`.

A rollout cannot come back to a state, so branches are played before the step that leads on from it, in environments of
their own.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager

import jax
import numpy as np

from ludus.envs.base import HostEnv, HostStep
from ludus.rollout.branch_values import critic_memory_at
from ludus.rollout.host_monte_carlo import HostPoint, compiled_valued, returns
from ludus.rollout.monte_carlo import FirstBranch, Origin, Valuing
from ludus.runtime.compilation import compile_clock
from ludus.runtime.packing import choose_rows
from ludus.types import BRANCH_VALUE, NEXT_BRANCH_VALUE, Tree, Valuation


class NoBranchValues:
    """Values nothing: for rollouts whose algorithm asks for no branches."""

    @property
    def seconds(self) -> dict[str, float]:
        """No time that it took."""
        return {}

    def before(self, t: int, obs: Tree, memory: Tree, ended: np.ndarray) -> None:
        """Do nothing."""

    def after(self, t: int, memory: Tree, outcome: HostStep) -> None:
        """Do nothing."""

    def added_to(self, extras: Tree) -> Tree:
        """Return a rollout's extras as they are."""
        return extras


class BranchValues:
    """Values the states of one rollout, step by step."""

    def __init__(
        self,
        algorithm: Valuing,
        env: HostEnv,
        twin: HostEnv,
        policy: Tree,
        valuation: Valuation,
        key: jax.Array,
        num_steps: int,
        is_start: bool,
    ):
        """Make room; branches are played in `twin`."""
        self.algorithm, self.env, self.twin, self.policy = algorithm, env, twin, policy
        self.valuation, self.key = valuation, key
        self._value = np.zeros((num_steps + 1, env.num_envs), np.float32)
        self._beyond = np.zeros((num_steps, env.num_envs), np.float32)
        self._ended = np.zeros((num_steps, env.num_envs), bool)
        self._start = algorithm.initial_memory(policy, env.num_envs)
        self._critic_start = algorithm.initial_memory(valuation.critic, env.num_envs)
        self._critic_memory = critic_memory_at(algorithm, valuation, is_start, env.num_envs)
        self._origin, self._seconds = Origin(None), 0.0

    @property
    def seconds(self) -> dict[str, float]:
        """The time that it took, under the journal's name."""
        return {"seconds/branches": self._seconds}

    def before(self, t: int, obs: Tree, memory: Tree, ended: np.ndarray) -> None:
        """Play the branches from where the environments are; episodes have just begun where `ended`."""
        if jax.tree.leaves(memory):
            memory = choose_rows(ended, self._start, memory)
        if jax.tree.leaves(self._critic_memory):
            self._critic_memory = choose_rows(ended, self._critic_start, self._critic_memory)
        if self.env.needs_restart:  # its episodes are lost: nothing is learnt from this step
            return
        began, compiled, obs = time.perf_counter(), compile_clock().total, jax.tree.map(np.array, obs)
        self._origin = Origin(HostPoint(self.env.snapshot(), obs), memory, self._critic_memory)
        first = FirstBranch(0, t * self.env.num_envs)
        critic, branching = self.valuation.critic, self.valuation.branching
        each = returns(self.algorithm, self.twin, self.policy, critic, self._origin, self.key, branching, first=first)
        self._value[t] = each.mean(axis=0)
        self._seconds += max(time.perf_counter() - began - (compile_clock().total - compiled), 0.0)

    def after(self, t: int, memory: Tree, outcome: HostStep) -> None:
        """Take in what the step led to; `memory` is the policy's after it."""
        if self._origin.env is None:
            return
        critic, seen = self.valuation.critic, self._critic_memory
        if jax.tree.leaves(seen):
            memories = self._origin.memory, seen
            seen = compiled_valued(self.algorithm, self.policy, critic, memories, self._origin.env.obs)[0]
        self._ended[t] = outcome.terminated | outcome.truncated
        if outcome.truncated.any():
            successor = jax.tree.map(np.array, outcome.next_obs)
            beyond = compiled_valued(self.algorithm, self.policy, critic, (memory, seen), successor)[1]
            self._beyond[t] = np.where(outcome.terminated, np.float32(0), beyond)
        self._critic_memory, self._origin = seen, Origin(None)

    def added_to(self, extras: Tree) -> Tree:
        """Return a rollout's extras with the values of its states among them."""
        following = np.where(self._ended, self._beyond, self._value[1:])
        return {**extras, BRANCH_VALUE: self._value[:-1], NEXT_BRANCH_VALUE: following}


@contextmanager
def branch_values(
    algorithm: Valuing,
    env: HostEnv,
    policy: Tree,
    valuation: Valuation | None,
    key: jax.Array,
    num_steps: int,
    is_start: bool,
) -> Generator[BranchValues | NoBranchValues]:
    """Return what values the states of a rollout, with environments for branches that are closed after it."""
    if valuation is None:
        yield NoBranchValues()
        return
    twin = env.twin()
    try:
        yield BranchValues(algorithm, env, twin, policy, valuation, key, num_steps, is_start)
    finally:
        twin.close()
