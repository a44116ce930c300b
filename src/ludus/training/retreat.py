"""A place to go back to while an iteration takes long: the whole of training as it was before, until it is over.

A rollout of a slow environment, or one great update, may take minutes; a scheduler that sends SIGTERM does not wait for
so long. What a compiled program has taken over cannot be had back, and an environment that was stepped cannot be asked
where it had been: so both are written down before an iteration that may be long. Short ones are waited for instead.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ludus.envs.base import AnyEnv
from ludus.envs.host.action_log import Growing
from ludus.rollout.runner import Runner
from ludus.training.iteration import TrainState, copied
from ludus.types import Array, Tree

LONG_SECONDS = 2.0
"""An iteration that takes longer is not waited for."""
MOST_BYTES = 1 << 30
"""A state with more than this (a great replay) is not copied: its iterations are waited for, however long they are."""


class Retreat:
    """The state of a run before the iteration that is being made, if that may take long."""

    def __init__(self) -> None:
        """There is nothing to go back to."""
        self._state: TrainState | None = None
        self._before: dict[str, Any] = {}
        self.env: dict[str, Any] | None = None
        """Where the environments were when the run was left; None if they are where the state says."""

    @property
    def is_ready(self) -> bool:
        """Whether the iteration can be given up."""
        return self._state is not None

    @property
    def was_used(self) -> bool:
        """Whether the last iteration was given up."""
        return self.env is not None

    def prepare(self, pace: float, state: TrainState, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Before an iteration: write everything down, if the last one took long or there was none yet."""
        self._state = None
        leaves = jax.tree.leaves(state)
        is_here = all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves)  # not with other processes
        if pace > LONG_SECONDS and is_here and sum(getattr(leaf, "nbytes", 0) for leaf in leaves) <= MOST_BYTES:
            self._before = snapshot()
            self._state = jax.tree.map(_copy, state)

    def go_back(self) -> TrainState:
        """The iteration was given up: return the state from before; `env` is where the environments were then."""
        assert self._state is not None
        self.env, state, self._state = self._before, self._state, None
        return jax.tree.map(jax.device_put, state)

    def copied(self, tree: Tree) -> Tree:
        """Copy arrays; not by a program where one was left running, which another would have to wait for."""
        return jax.tree.map(np.array, tree) if self.was_used else copied(tree)

    def come_back(self, runner: Runner, env: AnyEnv, state: TrainState) -> None:
        """Before the run goes on in this process: bring the environments to where the state says they are."""
        if self.env:
            saved = {name: x.between(0, x.count) if isinstance(x, Growing) else x for name, x in self.env.items()}
            runner.restore(env, saved, state.carry)
        self.env = None


def _copy(leaf: Array) -> Array:
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        data = np.array(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(jax.device_put(data), impl=jax.random.key_impl(leaf))
    return np.array(leaf)
