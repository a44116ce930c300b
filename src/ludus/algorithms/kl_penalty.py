"""A penalty on how far PPO's policy moves away from a reference, fixed or adaptive (Schulman et al. 2017, section 4).

The reference is the policy before each update, from which the divergence KL(old || new) is measured as in that paper;
or the policy that training started from, to which it is KL(new || start), as is usual where a learnt reward is only to
be trusted near the policies that it was learnt from (Ziegler et al. 2019, arXiv 1909.08593). Divergences are exact,
from the distributions themselves. A reference with a memory has one of its own along the rollouts.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.normalize import normalize
from ludus.algorithms.ppo_state import Penalty, PPOPolicy, PPOState
from ludus.networks.distributions import Distribution, restricted
from ludus.networks.recurrence import memory_of, span
from ludus.types import Array, Rollout, Transition, Tree

if TYPE_CHECKING:
    from ludus.algorithms.ppo import PPO

METRICS = {
    "kl": "mean over the rollout of the divergence between reference and policy after the update: KL(old || new), or "
    "KL(new || start) with `kl_reference=start`",
    "kl_coef": "weight of the penalty in this update",
    "kl_penalty": "mean of kl_coef times that divergence over minibatches: a part of total_loss",
}
"""Further metrics of an update with a penalty, and their formulas."""

REFERENCES = ("before", "start")
TOLERANCE = 1.5
"""An adaptive coefficient is left alone while the divergence is within this factor of its target."""
LEAST, MOST = 1e-6, 1e6
"""It stays between these: one that had become 0 could never be doubled."""


def begun(ppo: "PPO", policy: PPOPolicy, num_envs: int) -> Penalty | None:
    """Return what is remembered of the penalty where training begins with a policy; None without a penalty."""
    if ppo.kl_coef is None and ppo.kl_target is None:
        return None
    start = 1.0 if ppo.kl_coef is None else ppo.kl_coef
    coefficient = () if ppo.kl_target is None else jax.device_put(np.asarray(start, np.float32))
    if ppo.kl_reference == "before":
        return Penalty(coefficient)
    # Arrays of its own: those of the policy are given away with every update.
    return anew(Penalty(coefficient, jax.device_put(jax.tree.map(np.array, policy))), num_envs)


def anew(penalty: Penalty | None, num_envs: int) -> Penalty | None:
    """Return the penalty for so many environments: the reference's memory begins anew."""
    reference = None if penalty is None else penalty.reference
    if penalty is None or reference is None:
        return penalty
    return penalty._replace(memory=jax.device_put(jax.tree.map(np.array, _start(reference, num_envs))))


def _start(policy: PPOPolicy, n: int) -> Tree:
    return memory_of(policy.network.merge(policy.parameters), "actor").initial_memory(n)


@dataclass(frozen=True)
class Leash:
    """An update's penalty; one without a distribution holds nothing."""

    ppo: "PPO"
    """With the coefficient of this update."""
    rollout: Rollout
    mask: jax.Array | None
    distribution: Distribution | None = None
    """What the reference chooses from at each step `[T, B, ...]`."""
    penalty: Penalty | None = None
    """With the reference's memory after the last step."""

    def after(self, policy: PPOPolicy) -> tuple[Penalty | None, dict[str, jax.Array]]:
        """Return what is remembered after an update that led to this policy, and the update's metrics."""
        if self.distribution is None or self.penalty is None:
            return None, {}
        ppo, valid = self.ppo, self.rollout.steps.valid
        new, _ = along(policy, self.rollout.memory, self.rollout.steps, self.mask)
        kl = jnp.mean(divergence(ppo, self.distribution, new), where=valid)
        metrics = {"kl": kl, "kl_coef": jnp.asarray(ppo.kl_coef, jnp.float32)}
        if ppo.kl_target is None:
            return self.penalty, metrics
        return self.penalty._replace(coefficient=adapted(metrics["kl_coef"], kl, ppo.kl_target)), metrics


def leash(ppo: "PPO", state: PPOState, rollout: Rollout, mask: jax.Array | None) -> Leash:
    """Return the penalty of an update: what the reference would have chosen from along the rollout."""
    held, own = state.penalty, PPOPolicy(state.parameters, state.observations, state.network)
    if held is None:
        return Leash(ppo, rollout, mask)
    if ppo.kl_target is not None:
        ppo = replace(ppo, kl_coef=held.coefficient)
    if held.reference is None:
        return Leash(ppo, rollout, mask, along(own, rollout.memory, rollout.steps, mask)[0], held)
    start = _start(held.reference, rollout.steps.reward.shape[1])
    memory = jax.tree.map(lambda a, b: jnp.where(rollout.is_start, a, b), start, held.memory)
    distribution, memory = along(held.reference, memory, rollout.steps, mask)
    return Leash(ppo, rollout, mask, distribution, held._replace(memory=memory))


def along(policy: PPOPolicy, memory: Tree, steps: Transition, mask: jax.Array | None) -> tuple[Distribution, Tree]:
    """Return a policy's distributions along a rollout `[T, B, ...]`, and its memory after the last step."""
    module, ended = policy.network.merge(policy.parameters), steps.terminated | steps.truncated
    seen = span(module, "actor", memory, normalize(policy.observations, steps.obs), None, ended, len(ended))
    chosen = restricted(policy.network.spec.action_space, module.actor(seen.features), mask)
    return chosen, jax.tree.map(lambda x: x[-1], seen.memories)


def divergence(ppo: "PPO", reference: Tree, policy: Tree) -> jax.Array:
    """KL(reference || policy) of two distributions, but KL(policy || reference) where that is the policy of the start.

    A distribution of the user's own needs `kl(other)` for it, as ours have.
    """
    return policy.kl(reference) if ppo.kl_reference == "start" else reference.kl(policy)


def penalty(ppo: "PPO", reference: Tree, policy: Tree) -> jax.Array:
    """Return the term of the loss, one value for each sample."""
    assert ppo.kl_coef is not None  # a leash has seen to it
    return ppo.kl_coef * divergence(ppo, reference, policy)


def adapted(coefficient: Array, kl: Array, target: Array) -> jax.Array:
    """Return the coefficient twice as large after more than 1.5 times the target, half after less than target / 1.5."""
    factor = jnp.where(kl > TOLERANCE * target, 2.0, jnp.where(kl < target / TOLERANCE, 0.5, 1.0))
    return jnp.clip(coefficient * factor, LEAST, MOST)
