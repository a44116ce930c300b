"""Proximal policy optimisation, clipped (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

The details follow Huang et al. 2022 ('The 37 implementation details of PPO'); `docs/en/ppo.md` lists each one, where it
is here, which test holds it, and where `ludus` deliberately differs. From top to bottom: hyperparameters, init, act,
update, loss. What is learnt and remembered is in `ppo_state.py`; what a minibatch is made of, in `samples.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ludus.algorithms.advantages import branch_advantages
from ludus.algorithms.base import Algorithm, Update
from ludus.algorithms.diagnostics import Learnt, update_diagnostics
from ludus.algorithms.finite_checks import first_fault, unless_faulty
from ludus.algorithms.hyperparameters import check_hyperparameters, static, traced
from ludus.algorithms.kl_penalty import anew, begun, leash, penalty
from ludus.algorithms.losses import approximate_kl, clipped_surrogate, value_loss
from ludus.algorithms.minibatch import accumulated, blank_padding, scan_minibatches, shuffled, weighted_means
from ludus.algorithms.normalize import (
    empty_statistics,
    explained_variance,
    standardize,
    update_statistics,
)
from ludus.algorithms.observations import observation_statistics, without_masks
from ludus.algorithms.optimizer import Optimizer, over_vector, rates_of_parts, without_optimizer
from ludus.algorithms.ppo_state import EpochState, PPOCritic, PPOPolicy, PPOState, blank_memory
from ludus.algorithms.samples import Estimates, Samples, estimates_along, features_of, samples_of, scaled_rewards
from ludus.algorithms.saturation import ppo_saturation
from ludus.algorithms.schedules import Schedule
from ludus.algorithms.validation import check_ppo, check_ppo_devices, check_ppo_settings
from ludus.algorithms.work import ppo_work
from ludus.networks.action_scaling import to_environment
from ludus.networks.builders import MLP, NetworkBuilder
from ludus.networks.distributions import restricted, sampling_noise
from ludus.networks.dropout import with_dropout
from ludus.networks.network import Leaves, Network, network_for
from ludus.runtime import placement
from ludus.runtime.packing import MetricVector
from ludus.types import Array, Branching, Mode, Rollout, Spec, Transition, Tree

METRICS = {
    "policy_loss": "mean of -min(r A, clip(r, 1-eps, 1+eps) A) over minibatches",
    "value_loss": "mean of 1/2 (V - target)^2, in units of normalised returns if those are normalised; "
    "`value_loss_scale` in place of 1/2 if it is given",
    "entropy": "mean entropy of the policy, in nats",
    "total_loss": "policy_loss + value_coef value_loss - entropy_coef entropy",
    "approx_kl": "mean of (r - 1) - log r, an estimate of KL(old || new)",
    "clip_fraction": "share of samples with |r - 1| > clip_epsilon",
    "gradient_norm": "mean global norm of the gradient before clipping",
    "explained_variance": "1 - Var(target - V) / Var(target), with V from before the update",
    "learning_rate": "Adam's step size at this update, after annealing",
}
"""Every metric of an update and its formula."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPO(Algorithm):
    """Hyperparameters of clipped PPO."""

    learning_rate: float = traced(3e-4, "Adam's step size; ignored if `optimizer` is given", 0.0)
    critic_learning_rate: float | None = traced(
        None, "step size of what the critic alone uses, then clipped by its own norm; null: learning_rate", 0.0
    )
    gamma: float = traced(0.99, "discount factor", 0.0, 1.0)
    gae_lambda: float = traced(0.95, "trace decay of the advantage estimate; 1 gives Monte-Carlo returns", 0.0, 1.0)
    advantages: str = static("gae", "estimate them by gae, or by branches from every state (monte_carlo)")
    branches: int = static(8, "with advantages=monte_carlo: rollouts from every state", 1)
    branch_depth: int | None = static(
        None, "after how many steps the critic ends a branch; null: where its episode ends", 1
    )
    clip_epsilon: float = traced(0.2, "how far the probability ratio may move from 1", 0.0)
    entropy_coef: float = traced(0.01, "weight of the entropy bonus")
    value_coef: float = traced(0.5, "weight of the value loss", 0.0)
    max_grad_norm: float = traced(0.5, "gradients are scaled down to this global norm", 0.0)
    value_clip_epsilon: float | None = traced(
        None, "clip value updates, in units of normalised returns; null: off", 0.0
    )
    value_loss_scale: float | None = traced(None, "what (V - target)^2 is multiplied by; null: 1/2", 0.0)
    target_kl: float | None = traced(
        None, "stop an update's epochs once approx_kl exceeds 1.5 times this; null: off", 0.0
    )
    kl_coef: float | None = traced(
        None, "weight of a penalty on KL to kl_reference; null: none, or 1 with kl_target", 0.0
    )
    kl_target: float | None = traced(
        None, "double or halve kl_coef so that each update's KL nears this; null: off", 1e-6
    )
    kl_reference: str = static("before", "stay near the policy before each update, or that of the run's start (start)")
    batch_size: int = static(2048, "transitions collected for each update, over all environments", 1)
    minibatch_size: int = static(64, "transitions in each gradient step, at least 2; an epoch's last may have fewer", 1)
    epochs_per_update: int = static(10, "passes over the collected transitions", 1)
    segment_length: int | None = static(
        None, "with a memory: steps that are learnt from in one piece; null: the rollout, if minibatches hold it", 1
    )
    accumulation_steps: int = static(1, "parts each minibatch is cut into to save memory; the gradient is the same", 1)
    anneal_learning_rate: bool = static(
        True, "take the learning rate linearly to zero over the budget, unless it has a schedule of its own"
    )
    normalize_observations: bool = static(False, "shift and scale observations by running statistics")
    normalize_rewards: bool = static(
        False, "divide rewards by the running deviation of the discounted return, then clip at ±10"
    )
    normalize_returns: bool = static(True, "let the critic predict normalised returns, whatever the size of rewards")
    network: NetworkBuilder = static(MLP(), "actor and critic: mlp, gru, transformer, or your own builder")
    optimizer: optax.GradientTransformation | None = static(None, "any Optax transformation", configurable=False)

    def __post_init__(self) -> None:
        """Check what can be checked without an environment."""
        check_hyperparameters(self)
        if isinstance(self.learning_rate, Schedule):
            object.__setattr__(self, "anneal_learning_rate", False)
        check_ppo_settings(self)

    def rollout_length(self, num_envs: int) -> int:
        """Steps that each environment contributes to one update."""
        return self.batch_size // num_envs

    def validate(self, spec: Spec) -> None:
        """Refuse what cannot work, before anything is compiled."""
        check_ppo(self, spec)

    def check_devices(self, spec: Spec, count: int) -> None:
        """Refuse minibatches that so many devices cannot share evenly."""
        length = self._segment(self.rollout_length(spec.num_envs)) if network_for(self.network, spec).has_memory else 1
        check_ppo_devices(self, length, count)

    def init(self, key: jax.Array, spec: Spec) -> PPOState:
        """Build networks, optimiser and statistics."""
        network = network_for(self.network, spec)
        parameters = network.initialize(key)
        like = np.zeros(network.size, np.float32) if self.optimizer is None else parameters
        observations = observation_statistics(spec.observation_space) if self.normalize_observations else None
        return PPOState(
            parameters,
            self._optimizer(network).init(like),
            observations,
            empty_statistics(()) if self.normalize_returns else None,
            empty_statistics(()) if self.normalize_rewards else None,
            jax.device_put(np.zeros(spec.num_envs, np.float32)),
            blank_memory(network, parameters, spec.num_envs),
            network,
            begun(self, PPOPolicy(parameters, observations, network), spec.num_envs),
        )

    def policy(self, state: PPOState) -> PPOPolicy:
        """Parameters and observation statistics."""
        return PPOPolicy(state.parameters, state.observations, state.network)

    def critic(self, state: PPOState) -> PPOCritic:
        """Parameters and statistics."""
        return PPOCritic(state.parameters, state.observations, state.returns, state.rewards, state.network)

    def initial_memory(self, policy: PPOPolicy | PPOCritic, n: int) -> Tree:
        """Whatever the actor, or the critic, remembers at the start of an episode."""
        return policy.initial_memory(n)

    def noise(self, policy: PPOPolicy, key: jax.Array, shape: tuple[int, ...]) -> Tree:
        """Noise for `shape` sampled actions."""
        return sampling_noise(policy.network.spec.action_space, key, shape)

    def act(self, policy: PPOPolicy, memory: Tree, obs: Tree, noise: Tree, mode: Mode) -> tuple[Tree, Tree, Tree]:
        """Sample, or take the mode (greedy); the sample is kept as it was before clipping to the bounds."""
        memory, distribution = self.distribution(policy, memory, obs)
        sample = distribution.mode() if mode == "greedy" else distribution.sample(noise)
        extras = {"sample": sample, "log_prob": distribution.log_prob(sample)}
        spec = policy.network.spec
        return memory, to_environment(spec.action_space, sample, spec.scaling), extras

    def distribution(self, policy: PPOPolicy, memory: Tree, obs: Tree) -> tuple[Tree, Any]:
        """Return the new memory and the distribution over actions."""
        return policy.step(memory, obs)

    def value(self, critic: PPOCritic, memory: Tree, obs: Tree, action: Tree = None) -> tuple[Tree, jax.Array]:
        """Return the new memory and the values of observations, in units of the environment's rewards."""
        return critic.step(memory, obs)

    def update(self, state: PPOState, rollout: Rollout, key: jax.Array) -> Update:
        """Advantages once, then epochs of shuffled minibatches; statistics last: all epochs see the old ones."""
        steps, mask = without_masks(blank_padding(rollout.steps))
        reward, rewards, discounted = scaled_rewards(state, steps, self.gamma)
        estimates = self._estimates(state, steps._replace(reward=reward), rollout)
        if self.advantages == "monte_carlo":
            estimates = estimates._replace(advantage=branch_advantages(steps, self.gamma))
        held = leash(self, state, rollout._replace(steps=steps), mask)
        estimates = estimates._replace(reference=held.distribution)
        samples = samples_of(state, steps, mask, estimates, self._segment(len(steps.reward)))
        annealing = 1.0 - rollout.progress if self.anneal_learning_rate else 1.0
        last, totals = held.ppo._epochs(state, samples, key, annealing)
        remembered, divergences = held.after(PPOPolicy(last.parameters, state.observations, state.network))
        observations = update_statistics(state.observations, steps.obs, steps.valid)
        new = PPOState(
            last.parameters, last.optimizer, observations, estimates.returns, rewards, discounted,
            estimates.critic_memory, state.network, remembered,
        )  # fmt: skip
        metrics = self._means(totals) | divergences
        fault = first_fault(
            observation=(steps.obs, steps.next_obs), reward=steps.reward, action=steps.extras,
            loss=metrics["total_loss"], gradient=metrics["gradient_norm"], parameter=replace(new, optimizer=()),
        )  # fmt: skip
        metrics["explained_variance"] = explained_variance(estimates.value, estimates.target, steps.valid)
        metrics["learning_rate"] = jnp.asarray(self.learning_rate * annealing)
        updates = totals["updates"]
        gradient = jnp.where(updates > 0, last.gradient, jnp.nan)
        return Update(unless_faulty(fault, new, state), metrics, updates.astype(jnp.int32), fault, gradient)

    def _estimates(self, state: PPOState, steps: Transition, rollout: Rollout) -> Estimates:
        """Values of states and of their true successors, then advantages and targets `[T, B]`."""
        return estimates_along(state, steps, rollout, self._segment(len(steps.reward)), self.gamma, self.gae_lambda)

    def _segment(self, steps: int) -> int:
        """Return how many steps of a rollout are learnt from in one piece: if not given, as many as fit, all alike."""
        if self.segment_length is not None:
            return min(self.segment_length, steps)
        return -(-steps // -(-steps * self.accumulation_steps // self.minibatch_size))

    def _epochs(
        self, state: PPOState, samples: Samples, key: jax.Array, annealing: Array
    ) -> tuple[EpochState, MetricVector]:
        """Run every minibatch of every epoch; returns the sums of what each of them reports."""
        part = self.minibatch_size // self.accumulation_steps
        size = part // samples.segment_length * self.accumulation_steps
        key, dropout = jax.random.split(key) if state.network.critic_drops else (key, None)
        samples, indices = shuffled(samples, size, self.epochs_per_update, key)

        def skip(before: EpochState, part: Samples) -> jax.Array:
            return before.stopped | (False if part.weight is None else ~part.weight.any())

        last, reports = scan_minibatches(
            partial(self.gradient_step, state.network, annealing),
            EpochState(state.parameters, state.optimizer, jnp.asarray(False), jnp.zeros(state.network.size), dropout),
            samples,
            indices,
            skip if self.target_kl is not None or samples.weight is not None else None,
        )
        return last, jax.tree.map(lambda x: x.sum(axis=0), reports)  # [minibatches, k] -> [k]

    def gradient_step(
        self, network: Network, annealing: Array, before: EpochState, part: Samples
    ) -> tuple[EpochState, MetricVector]:
        """One gradient step on one minibatch.

        The report holds the means over the minibatch, and counts steps taken (`updates`) and minibatches looked at.
        """
        # Each device has all of these two, and makes sums of its own: four sums over all devices would take longer.
        advantage, weight = placement.whole((part.advantage, part.weight))
        weight = jnp.ones_like(advantage) if weight is None else weight
        weight = placement.whole(weight / weight.sum())
        part = part._replace(weight=weight, advantage=placement.whole(standardize(advantage, weight)))
        differentiate = jax.grad(self._loss, has_aux=True)
        dropout, following = (None, None) if before.dropout is None else jax.random.split(before.dropout)

        def of_share(parameters: Leaves, share: Samples) -> tuple[Leaves, MetricVector]:
            drop = None if dropout is None else placement.own(dropout)
            return accumulated(
                lambda piece: differentiate(parameters, network, piece, drop), share, self.accumulation_steps
            )

        gradient, means = placement.summed(of_share, None, 0)(before.parameters, part)
        # One vector: the norm is one reduction and Adam one fused loop, where a dozen small arrays would be a dozen
        # of each. The parameters stay separate: a matrix kernel adds a bias in passing, but not a slice of a vector.
        gradient = network.ravel(gradient)
        norm = jnp.sqrt(jnp.sum(jnp.square(gradient)))
        optimizer = self._optimizer(network, annealing)
        change, optimizer_state = optimizer.update(gradient, before.optimizer, before.parameters)
        parameters = tuple(p + d for p, d in zip(before.parameters, network.unravel(change), strict=True))
        new = EpochState(parameters, optimizer_state, before.stopped, gradient, following)
        if self.target_kl is not None:
            stopped = means["approx_kl"] > 1.5 * self.target_kl
            new = jax.tree.map(lambda new, old: jnp.where(stopped, old, new), new, before)._replace(stopped=stopped)
        counts = {"gradient_norm": norm, "updates": 1.0 - new.stopped, "evaluated": 1.0}
        return new, means | MetricVector.stacked(counts)

    def _optimizer(self, network: Network, annealing: Array = 1.0) -> Optimizer:
        """Over one vector of all parameters; Adam's epsilon is detail 3."""
        own = None if self.optimizer is None else over_vector(self.optimizer, network)
        rate, apart = rates_of_parts(network, self.learning_rate, self.critic_learning_rate)
        return Optimizer(rate, own, annealing, self.max_grad_norm, 1e-5, apart)

    def _loss(
        self, parameters: Leaves, network: Network, part: Samples, dropout: jax.Array | None = None
    ) -> tuple[jax.Array, MetricVector]:
        """L = -L_clip + c1 L_value - c2 H (eq. 9, as a loss); weights sum to one over the whole minibatch.

        Given a key, the critic's own dropout is on; the actor's never is, or ratios would not begin at 1.
        """
        module = network.merge(parameters)
        features = features_of(module, "actor", part)
        distribution = restricted(network.spec.action_space, module.actor(features), part.mask)
        fitted = module if dropout is None else with_dropout(network.merge(parameters), dropout)
        value = module.critic(features if network.shares_memory else features_of(fitted, "critic", part))
        log_ratio = distribution.log_prob(part.action) - part.log_prob
        # Padding has weight 0, but the ratio of a blank row may overflow, and 0 times infinity is not 0.
        log_ratio = jnp.where(part.weight > 0, log_ratio, 0.0)
        ratio = jnp.exp(log_ratio)
        terms = {
            "policy_loss": clipped_surrogate(ratio, part.advantage, self.clip_epsilon),
            "value_loss": value_loss(value, part.value, part.target, self.value_clip_epsilon, self.value_loss_scale),
            "entropy": distribution.entropy(),
            "approx_kl": approximate_kl(log_ratio),
            "clip_fraction": jnp.abs(ratio - 1.0) > self.clip_epsilon,
        }
        if part.reference is not None:
            terms["kl_penalty"] = penalty(self, part.reference, distribution)
        means = weighted_means(terms, part.weight)
        return self._total(means.scalars()), means

    def _total(self, means: Mapping[str, jax.Array]) -> jax.Array:
        total = means["policy_loss"] + self.value_coef * means["value_loss"] - self.entropy_coef * means["entropy"]
        return total + means["kl_penalty"] if "kl_penalty" in means else total

    def _means(self, totals: MetricVector) -> dict[str, jax.Array]:
        """Metrics are means over the minibatches that were looked at."""
        sums = totals.scalars()
        del sums["updates"]
        count = jnp.maximum(sums.pop("evaluated"), 1.0)
        means = {name: total / count for name, total in sums.items()}
        return means | {"total_loss": self._total(means)}

    def branching(self) -> Branching | None:
        """Return how branches are played, if advantages are estimated by them."""
        if self.advantages == "gae":
            return None
        return Branching(self.branches, self.branch_depth, self.gamma)

    def critic_memory(self, state: PPOState, memory: Tree) -> Tree:
        """Return the critic's own, or the one that it shares with the actor."""
        return memory if state.network.shares_memory else state.critic_memory

    def discount(self) -> float:
        """Return the discount factor of its values."""
        return float(self.gamma)

    def for_acting(self) -> "PPO":
        """Return it without the user's optimiser."""
        return without_optimizer(self)

    def with_policy(self, state: PPOState, policy: PPOPolicy) -> PPOState:
        """Take over the parameters that the actor uses, and the statistics of observations: training starts anew."""
        return state.with_policy(policy, begun(self, policy, len(state.discounted)))

    def with_critic(self, state: PPOState, critic: PPOCritic) -> PPOState:
        """Take over the parameters that the critic uses, and all statistics."""
        return state.with_critic(critic)

    def with_envs(self, state: PPOState, num_envs: int) -> PPOState:
        """For another number of environments, running returns and memories begin anew."""
        return state.with_envs(num_envs, anew(state.penalty, num_envs))

    def diagnostics(self, old: PPOState, new: PPOState, gradient: jax.Array, rollout: Rollout) -> MetricVector:
        """Norms by layer and for actor, critic and what they share; histograms; shares of saturated activations."""
        learnt = Learnt(new.network.names, new.network.owners, old.parameters, new.parameters, gradient, new.optimizer)
        return update_diagnostics(learnt, new.network.spec, rollout.steps) | ppo_saturation(old, new, rollout)

    def work(self, spec: Spec, total_steps: int | None) -> float:
        """Floating-point operations of learning from so many steps."""
        return ppo_work(self, spec, total_steps)
