"""A policy that was never learnt: it stands where one is asked for and its actions do not matter."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ludus.algorithms.base import Algorithm, Update
from ludus.algorithms.hyperparameters import register
from ludus.algorithms.policy import Policy
from ludus.networks.action_scaling import action_size, to_environment
from ludus.spaces import Box, Space
from ludus.types import LudusError, Mode, Rollout, Spec, Tree


@dataclass(frozen=True)
class Idle(Algorithm):
    """Always take the middle of a box of actions, as for an environment in which a rule acts in the agent's place."""

    space: Space

    def validate(self, spec: Spec) -> None:
        """Refuse nothing."""
        return

    def init(self, key: jax.Array, spec: Spec) -> Tree:
        """Return that there is nothing to learn."""
        return ()

    def policy(self, state: Tree) -> Tree:
        """Return that there is nothing to know."""
        return ()

    def act(self, policy: Tree, memory: Tree, obs: Tree, noise: Tree, mode: Mode) -> tuple[Tree, Tree, Tree]:
        """Do the same whatever is seen."""
        count = len(jax.tree.leaves(obs)[0])
        return memory, to_environment(self.space, jnp.zeros((count, action_size(self.space)))), ()

    def update(self, state: Tree, rollout: Rollout, key: jax.Array) -> Update:
        """Learn nothing."""
        return Update(state, {}, 0)

    def value(self, critic: Tree, memory: Tree, obs: Tree, action: Tree) -> tuple[Tree, jax.Array]:
        """Expect nothing."""
        return memory, jnp.zeros(len(jax.tree.leaves(obs)[0]))

    def rollout_length(self, num_envs: int) -> int:
        """Ask for a step at a time."""
        return 1


def idle_policy(spec: Spec, env_id: str) -> Policy:
    """Return the policy that does nothing in an environment whose actions are a box."""
    if not isinstance(spec.action_space, Box):
        raise LudusError(f"{env_id}: only a box of actions has a middle, not {spec.action_space}")
    return Policy(Idle(spec.action_space), (), spec, env_id)


register(Idle)
