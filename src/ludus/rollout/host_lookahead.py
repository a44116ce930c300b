"""Look-ahead in host environments; the twin of `lookahead.py`, which says what it is."""

from functools import partial
from typing import Any

import jax
import numpy as np

from ludus.envs.base import HostEnv
from ludus.rollout.host_monte_carlo import HostPoint, compiled_valued, returns
from ludus.rollout.lookahead import best, candidates
from ludus.rollout.monte_carlo import FirstBranch, Origin, Valuing
from ludus.types import Branching, Lookahead, Tree

_candidates = partial(jax.jit, static_argnames=("space", "count"))(candidates)


class HostLookahead:
    """Looks ahead in the episodes of a batch; their branches are played in a `twin`."""

    def __init__(self, algorithm: Valuing, twin: HostEnv, policy: Tree, lookahead: Lookahead, key: jax.Array):
        """Begin with nothing played."""
        self.algorithm, self.twin, self.policy = algorithm, twin, policy
        self.lookahead, self.key = lookahead, key
        self._critic_memory: Tree = ()

    def begin(self, first: int) -> None:
        """Episodes from number `first` on begin."""
        critic, self._first = self.lookahead.critic, first
        self._critic_memory = () if critic is None else self.algorithm.initial_memory(critic, self.twin.num_envs)

    def action(self, t: int, env: HostEnv, memory: Tree, obs: Tree) -> Any:
        """Return the actions of step `t`; `memory` is the policy's before it."""
        lookahead, obs = self.lookahead, jax.tree.map(np.array, obs)
        critic, branching = lookahead.critic, Branching(lookahead.count, lookahead.depth, lookahead.gamma)
        tried_key, branch_key = jax.random.split(jax.random.fold_in(self.key, t))
        tried = _candidates(
            self.algorithm, self.policy, memory, obs, tried_key, env.action_space, lookahead.count, self._first
        )
        origin = Origin(HostPoint(env.snapshot(), obs), memory, self._critic_memory)
        play = partial(
            returns, self.algorithm, self.twin, self.policy, critic, origin, branch_key, branching,
            first=FirstBranch(0, self._first),
        )  # fmt: skip
        count = len(jax.tree.leaves(tried)[0])
        values = [
            play(begin_with=jax.tree.map(lambda x, c=c: np.array(x[c]), tried)).mean(axis=0) for c in range(count)
        ]
        if jax.tree.leaves(self._critic_memory):
            memories = memory, self._critic_memory
            self._critic_memory = compiled_valued(self.algorithm, self.policy, critic, memories, obs)[0]
        return jax.tree.map(np.array, best(tried, np.stack(values)))


def looking_ahead(
    algorithm: Valuing, env: HostEnv, policy: Tree, lookahead: Lookahead | None, key: jax.Array
) -> HostLookahead | None:
    """Return what looks ahead in `env`, if that is to be done; its `twin` is to be closed after it."""
    return None if lookahead is None else HostLookahead(algorithm, env.twin(), policy, lookahead, key)
