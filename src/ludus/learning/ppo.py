"""Proximal policy optimisation, clipped (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

The details follow Huang et al. 2022 ('The 37 implementation details of PPO'); `docs/en/ppo.md` lists each one, where it
is here, which test holds it, and where `ludus` deliberately differs.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ludus.learning.algorithm import check_hyperparameters, static, traced
from ludus.learning.faults import first_fault
from ludus.learning.health import action_histograms, gradient_histogram, moments, norms, ravel
from ludus.learning.losses import approximate_kl, clipped_surrogate, value_loss
from ludus.learning.minibatch import accumulated, blank_padding, minibatch_indices, scan_minibatches
from ludus.learning.normalize import (
    CLIP,
    RunningStatistics,
    empty_statistics,
    explained_variance,
    location_and_scale,
    measure,
    normalize,
    standard_deviation,
    standardize,
    update_statistics,
)
from ludus.learning.observations import check_observation_space, observation_statistics, without_masks
from ludus.learning.returns import discounted_returns, generalized_advantages
from ludus.networks.actor_critic import MLP, ActorCritic, NetworkBuilder
from ludus.networks.distributions import restricted, sampling_noise
from ludus.networks.layers import check_action_space, to_environment
from ludus.networks.memory import one_step_each, through_time
from ludus.networks.network import Leaves, Network, network_for
from ludus.rows import Figures
from ludus.types import LudusError, Mode, Rollout, Spec, Transition, split_mask

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


ADAM = optax.scale_by_adam(eps=1e-5)
"""Detail 3: Adam with epsilon 1e-5."""


def _adam_state(size: int) -> optax.ScaleByAdamState:
    """What `ADAM.init` returns, without compiling anything for it."""
    zeros = np.zeros(size, np.float32)
    return jax.device_put(optax.ScaleByAdamState(np.int32(0), zeros, zeros.copy()))


STEP_METRICS = (
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "gradient_norm", "updates", "evaluated"
)  # fmt: skip
"""What each minibatch reports, as one vector; the last two count steps taken and minibatches looked at."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPOPolicy:
    """What acting needs: parameters and the observation statistics they were trained with.

    Statistics are a tree like the observation, with None for what is not normalised.
    """

    parameters: Leaves
    observations: Any
    network: Network = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPOCritic:
    """What valuing needs: parameters and the statistics of observations, returns and rewards."""

    parameters: Leaves
    observations: Any
    returns: RunningStatistics | None
    rewards: RunningStatistics | None
    network: Network = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPOState:
    """Everything PPO learns or remembers between updates."""

    parameters: Leaves
    optimizer: Any
    observations: Any
    returns: RunningStatistics | None
    rewards: RunningStatistics | None
    discounted: jax.Array
    network: Network = field(metadata={"static": True})


class Samples(NamedTuple):
    """One row for each transition `[N, ...]`; with memory, one row for each environment `[B, T, ...]`."""

    obs: Any
    mask: jax.Array | None
    action: Any
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    ended: jax.Array | None
    memory: Any
    weight: Any


class Estimates(NamedTuple):
    """Value and target are in the critic's units, advantages in those of the (scaled) reward."""

    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    returns: RunningStatistics | None


class Learner(NamedTuple):
    """What changes from minibatch to minibatch."""

    parameters: Leaves
    optimizer: Any
    stopped: jax.Array
    gradient: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPO:
    """Hyperparameters of clipped PPO."""

    values_actions: ClassVar[bool] = False
    """Its critic judges observations alone."""
    is_on_policy: ClassVar[bool] = True

    learning_rate: float = traced(3e-4, "Adam's step size; ignored if `optimizer` is given", 0.0)
    gamma: float = traced(0.99, "discount factor", 0.0, 1.0)
    gae_lambda: float = traced(0.95, "trace decay of the advantage estimate; 1 gives Monte-Carlo returns", 0.0, 1.0)
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
    batch_size: int = static(2048, "transitions collected for each update, over all environments", 1)
    minibatch_size: int = static(64, "transitions in each gradient step, at least 2; an epoch's last may have fewer", 1)
    epochs_per_update: int = static(10, "passes over the collected transitions", 1)
    accumulation_steps: int = static(1, "parts each minibatch is cut into to save memory; the gradient is the same", 1)
    anneal_learning_rate: bool = static(
        True, "take the learning rate linearly to zero over total_steps or max_episodes"
    )
    normalize_observations: bool = static(False, "shift and scale observations by running statistics")
    normalize_rewards: bool = static(
        False, "divide rewards by the running deviation of the discounted return, then clip at ±10"
    )
    normalize_returns: bool = static(False, "let the critic predict normalised returns")
    network: NetworkBuilder = static(MLP(), "actor and critic: mlp, gru, or your own builder")
    optimizer: optax.GradientTransformation | None = static(None, "any Optax transformation", configurable=False)

    def __post_init__(self) -> None:
        """Check what can be checked without an environment."""
        check_hyperparameters(self)
        if self.minibatch_size > self.batch_size:
            raise LudusError(
                f"algorithm.minibatch_size={self.minibatch_size}: must be at most "
                f"algorithm.batch_size={self.batch_size}"
            )
        if self.minibatch_size % self.accumulation_steps:
            raise LudusError(
                f"algorithm.accumulation_steps={self.accumulation_steps}: "
                f"must divide algorithm.minibatch_size={self.minibatch_size}"
            )
        if self.value_clip_epsilon is not None and not (self.normalize_returns or self.normalize_rewards):
            raise LudusError(
                "algorithm.value_clip_epsilon needs algorithm.normalize_returns=true (or normalize_rewards): "
                "in raw units it would starve the critic"
            )

    def rollout_length(self, num_envs: int) -> int:
        """Steps that each environment contributes to one update."""
        return self.batch_size // num_envs

    def work(self, spec: Spec, total_steps: int | None) -> float:
        """Two for each parameter and sample forwards, four backwards, in every epoch."""
        if total_steps is None:
            return np.inf
        return 6.0 * network_for(self.network, spec).size * self.epochs_per_update * total_steps

    def validate(self, spec: Spec) -> None:
        """Refuse what cannot work, before anything is compiled."""
        check_observation_space("PPO", spec.observation_space)
        check_action_space("PPO", spec.action_space)
        if self.minibatch_size == 1:
            raise LudusError(
                "algorithm.minibatch_size=1: must be at least 2, "
                "since a single advantage is standardised to 0 and nothing could be learnt"
            )
        if self.batch_size % spec.num_envs:
            raise LudusError(f"num_envs={spec.num_envs}: must divide algorithm.batch_size={self.batch_size}")
        length, network = self.rollout_length(spec.num_envs), network_for(self.network, spec)
        network.check_actor_critic()
        if network.has_memory and (self.minibatch_size // self.accumulation_steps) % length:
            raise LudusError(
                f"algorithm.minibatch_size={self.minibatch_size}: with a memory, minibatches are whole environments, "
                f"so every part must be a multiple of batch_size / num_envs = {length}"
            )

    def init(self, key: jax.Array, spec: Spec) -> PPOState:
        """Build networks, optimiser and statistics."""
        network = network_for(self.network, spec)
        parameters = network.initialize(key)
        optimizer = self.optimizer.init(network.as_tree(parameters)) if self.optimizer else _adam_state(network.size)
        return PPOState(
            parameters,
            optimizer,
            observation_statistics(spec.observation_space) if self.normalize_observations else None,
            empty_statistics(()) if self.normalize_returns else None,
            empty_statistics(()) if self.normalize_rewards else None,
            jax.device_put(np.zeros(spec.num_envs, np.float32)),
            network,
        )

    def blank(self, spec: Spec) -> PPOState:
        """Any state will do."""
        return self.init(jax.random.key(0), spec)

    def moved(self, state: PPOState, num_envs: int) -> PPOState:
        """Return a state for another number of environments, whose running returns begin anew."""
        if len(state.discounted) == num_envs:
            return state
        return dataclasses.replace(state, discounted=jax.device_put(np.zeros(num_envs, np.float32)))

    def policy(self, state: PPOState) -> PPOPolicy:
        """Parameters and observation statistics."""
        return PPOPolicy(state.parameters, state.observations, state.network)

    def critic(self, state: PPOState) -> PPOCritic:
        """Parameters and statistics."""
        return PPOCritic(state.parameters, state.observations, state.returns, state.rewards, state.network)

    def initial_memory(self, policy: PPOPolicy | PPOCritic, n: int) -> Any:
        """Whatever the network remembers at the start of an episode."""
        return policy.network.merge(policy.parameters).initial_memory(n)

    def noise(self, policy: PPOPolicy, key: jax.Array, shape: tuple[int, ...]) -> Any:
        """Noise for `shape` sampled actions."""
        return sampling_noise(policy.network.spec.action_space, key, shape)

    def act(self, policy: PPOPolicy, memory: Any, obs: Any, noise: Any, mode: Mode) -> tuple[Any, Any, Any]:
        """Sample, or take the mode (greedy); the sample is kept as it was before clipping to the bounds."""
        memory, distribution = self.decide(policy, memory, obs)
        sample = distribution.mode() if mode == "greedy" else distribution.sample(noise)
        extras = {"sample": sample, "log_prob": distribution.log_prob(sample)}
        spec = policy.network.spec
        return memory, to_environment(spec.action_space, sample, spec.scaling), extras

    def decide(self, policy: PPOPolicy, memory: Any, obs: Any) -> tuple[Any, Any]:
        """Return the new memory and the distribution over actions."""
        module, (obs, mask) = policy.network.merge(policy.parameters), split_mask(obs)
        memory, features = module.remember(memory, normalize(policy.observations, obs))
        return memory, restricted(policy.network.spec.action_space, module.actor(features), mask)

    def value(self, critic: PPOCritic, memory: Any, obs: Any, action: None = None) -> tuple[Any, jax.Array]:
        """Return the new memory and the values of observations, in units of the environment's rewards.

        With normalised rewards, one that was clipped counts as `CLIP` deviations in it.
        """
        module, (obs, _) = critic.network.merge(critic.parameters), split_mask(obs)
        memory, features = module.remember(memory, normalize(critic.observations, obs))
        mean, scale = location_and_scale(critic.returns)
        value = mean + scale * module.critic(features)
        return memory, value if critic.rewards is None else value * standard_deviation(critic.rewards)

    def update(self, state: PPOState, rollout: Rollout, key: jax.Array) -> tuple[PPOState, dict[str, jax.Array]]:
        """Advantages once, then epochs of shuffled minibatches; statistics last: all epochs see the old ones."""
        steps, mask = without_masks(blank_padding(rollout.steps))
        rewards, discounted, reward = self._scale_rewards(state, steps)
        estimates = self._estimate(state, steps._replace(reward=reward), rollout.memory)
        samples = _samples(state, steps, mask, estimates, rollout.memory)
        annealing = 1.0 - rollout.progress if self.anneal_learning_rate else 1.0
        learner, metrics = self._epochs(state, samples, key, annealing)
        observations = update_statistics(state.observations, steps.obs, steps.valid)
        new = PPOState(
            learner.parameters, learner.optimizer, observations, estimates.returns, rewards, discounted, state.network
        )
        fault = first_fault(
            observation=(steps.obs, steps.next_obs),
            reward=steps.reward,
            action=steps.extras,
            loss=metrics["total_loss"],
            gradient=metrics["gradient_norm"],
            parameter=dataclasses.replace(new, optimizer=()),
        )
        new = jax.tree.map(lambda new, old: jnp.where(fault == 0, new, old), new, state)
        explained = explained_variance(estimates.value, estimates.target, steps.valid)
        learning_rate = jnp.asarray(self.learning_rate * annealing)
        return new, metrics | {"fault": fault, "explained_variance": explained, "learning_rate": learning_rate}

    def health(self, old: PPOState, new: PPOState, gradient: jax.Array, rollout: Rollout) -> Figures:
        """Norms by layer and for actor, critic and what they share; histograms of the gradient and the actions."""
        network, steps, parameters = new.network, rollout.steps, ravel(new.parameters)
        vectors = {
            "gradient_norm": gradient,
            "update_norm": parameters - ravel(old.parameters),
            "parameter_norm": parameters,
            **moments(new.optimizer, (gradient,) if self.optimizer is None else new.parameters),
        }
        sizes = [x.size for x in new.parameters]
        figures = norms(vectors, network.names, sizes, [_network_of(name) for name in network.names])
        actions = action_histograms(network.spec.action_space, steps.action, steps.valid)
        return figures | gradient_histogram(gradient) | actions

    def _scale_rewards(self, state: PPOState, steps: Transition) -> tuple[Any, jax.Array, jax.Array]:
        """Details 30 and 31: divide by the deviation of the running discounted return, this rollout included; clip."""
        if state.rewards is None:
            return None, state.discounted, steps.reward
        ended = steps.terminated | steps.truncated
        totals = discounted_returns(steps.reward, ended, state.discounted, self.gamma)
        rewards = update_statistics(state.rewards, totals, steps.valid)
        reward = jnp.clip(steps.reward / standard_deviation(rewards), -CLIP, CLIP)
        return rewards, jnp.where(ended[-1], 0.0, totals[-1]), reward

    def _estimate(self, state: PPOState, steps: Transition, memory: Any) -> Estimates:
        """Values of states and of their true successors in one batched call, then advantages and targets `[T, B]`."""
        module = state.network.merge(state.parameters)
        obs, next_obs = normalize(state.observations, steps.obs), normalize(state.observations, steps.next_obs)
        after, features = through_time(module, memory, obs, steps.terminated | steps.truncated)
        both = jax.tree.map(lambda *x: jnp.stack(x), features, one_step_each(module, after, next_obs))
        values = module.critic(both)
        mean, scale = location_and_scale(state.returns)
        value, next_value = mean + scale * values
        advantage = generalized_advantages(
            steps.reward, value, next_value, steps.terminated, steps.truncated, self.gamma, self.gae_lambda
        )
        target = advantage + value
        if state.returns is None:
            return Estimates(value, advantage, target, None)
        returns = update_statistics(state.returns, target, steps.valid)
        mean, scale = location_and_scale(measure(state.returns, returns))
        return Estimates(values[0], advantage, (target - mean) / scale, returns)

    def _epochs(self, state: PPOState, samples: Samples, key: jax.Array, annealing: Any) -> tuple[Learner, Any]:
        """Run every minibatch of every epoch; metrics are means over the gradient steps that were made."""
        rows = len(samples.advantage)
        size = self.minibatch_size if samples.ended is None else self.minibatch_size // self.rollout_length(rows)
        samples = _filled_up(samples, -rows % size)
        rows = len(samples.advantage)
        has_data = None if samples.weight is None else samples.weight.reshape(rows, -1).any(axis=1)
        indices = minibatch_indices(key, rows, size, self.epochs_per_update, has_data)
        may_skip = self.target_kl is not None or samples.weight is not None

        def skip(learner: Learner, part: Samples) -> jax.Array:
            return learner.stopped | (False if part.weight is None else ~part.weight.any())

        learner, steps = scan_minibatches(
            partial(self.gradient_step, state.network, annealing),
            Learner(state.parameters, state.optimizer, jnp.asarray(False), jnp.zeros(state.network.size)),
            samples,
            indices,
            skip if may_skip else None,
        )
        totals = steps.sum(axis=0)  # [minibatches, len(STEP_METRICS)] -> [len(STEP_METRICS)]
        metrics = dict(zip(STEP_METRICS, totals / jnp.maximum(totals[-1], 1.0), strict=True))
        del metrics["evaluated"]
        metrics["total_loss"] = self._total(metrics["policy_loss"], metrics["value_loss"], metrics["entropy"])
        gradient = jnp.where(totals[-2] > 0, learner.gradient, jnp.nan)
        return learner, metrics | {"updates": totals[-2].astype(jnp.int32), "gradient": gradient}

    def gradient_step(
        self, network: Network, annealing: Any, learner: Learner, part: Samples
    ) -> tuple[Learner, jax.Array]:
        """One gradient step on one minibatch; the second result is what `STEP_METRICS` names."""
        weight = jnp.ones_like(part.advantage) if part.weight is None else part.weight
        weight = weight / weight.sum()
        part = part._replace(weight=weight, advantage=standardize(part.advantage, weight))
        differentiate = jax.grad(self._loss, has_aux=True)
        gradient, terms = accumulated(
            lambda piece: differentiate(learner.parameters, network, piece), part, self.accumulation_steps
        )
        # One vector: the norm is one reduction and Adam one fused loop, where a dozen small arrays would be a dozen
        # of each. The parameters stay separate: a matrix kernel adds a bias in passing, but not a slice of a vector.
        gradient = network.ravel(gradient)
        norm = jnp.sqrt(jnp.sum(jnp.square(gradient)))
        clipped = gradient * jnp.minimum(1.0, self.max_grad_norm / (norm + 1e-8))
        new = Learner(*self._descend(network, annealing, learner, clipped), learner.stopped, gradient)
        if self.target_kl is not None:
            stopped = terms[STEP_METRICS.index("approx_kl")] > 1.5 * self.target_kl
            new = jax.tree.map(lambda new, old: jnp.where(stopped, old, new), new, learner)._replace(stopped=stopped)
        return new, jnp.concatenate([terms, jnp.stack([norm, 1.0 - new.stopped, 1.0])])

    def _descend(self, network: Network, annealing: Any, learner: Learner, gradient: jax.Array) -> tuple[Any, Any]:
        if self.optimizer is None:
            direction, optimizer = ADAM.update(gradient, learner.optimizer)
            change = network.unravel(-self.learning_rate * annealing * direction)
            return tuple(p + d for p, d in zip(learner.parameters, change, strict=True)), optimizer
        # The user's transformation sees the tree that the module holds, so masks by name work. It has its own step
        # size; annealing still applies to it.
        trees = network.as_tree(network.unravel(gradient)), learner.optimizer, network.as_tree(learner.parameters)
        change, optimizer = self.optimizer.update(*trees)
        change = jax.tree.leaves(change)
        return tuple(p + annealing * d for p, d in zip(learner.parameters, change, strict=True)), optimizer

    def _loss(self, parameters: Leaves, network: Network, part: Samples) -> tuple[jax.Array, jax.Array]:
        """L = -L_clip + c1 L_value - c2 H (eq. 9, as a loss); weights sum to one over the whole minibatch."""
        module = network.merge(parameters)
        features = _features(module, part)
        distribution = restricted(network.spec.action_space, module.actor(features), part.mask)
        value = module.critic(features)
        log_ratio = distribution.log_prob(part.action) - part.log_prob
        # Padding has weight 0, but the ratio of a blank row may overflow, and 0 times infinity is not 0.
        log_ratio = jnp.where(part.weight > 0, log_ratio, 0.0)
        ratio = jnp.exp(log_ratio)
        terms = jnp.stack(
            [
                clipped_surrogate(ratio, part.advantage, self.clip_epsilon),
                value_loss(value, part.value, part.target, self.value_clip_epsilon, self.value_loss_scale),
                distribution.entropy(),
                approximate_kl(log_ratio),
                jnp.abs(ratio - 1.0) > self.clip_epsilon,
            ]
        )
        means = jnp.matmul(terms.reshape(len(terms), -1), part.weight.ravel(), precision="highest")
        return self._total(*means[:3]), means

    def _total(self, policy_loss: jax.Array, critic_loss: jax.Array, entropy: jax.Array) -> jax.Array:
        return policy_loss + self.value_coef * critic_loss - self.entropy_coef * entropy


def _samples(state: PPOState, steps: Transition, mask: jax.Array | None, estimates: Estimates, memory: Any) -> Samples:
    """Lay a rollout out in rows that can be shuffled: transitions, or whole environments if there is a memory."""
    has_memory = state.network.has_memory
    by_time = Samples(
        obs=normalize(state.observations, steps.obs),
        mask=mask,
        action=steps.extras["sample"],
        log_prob=steps.extras["log_prob"],
        value=estimates.value,
        advantage=estimates.advantage,
        target=estimates.target,
        ended=(steps.terminated | steps.truncated) if has_memory else None,
        memory=None,
        weight=None if steps.valid is None else steps.valid.astype(jnp.float32),
    )
    if has_memory:
        return jax.tree.map(lambda x: x.swapaxes(0, 1), by_time)._replace(memory=memory)  # [T, B] -> [B, T]
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), by_time)  # [T, B] -> [T * B]


def _filled_up(samples: Samples, count: int) -> Samples:
    """Add so many rows that weigh nothing: the last minibatch of an epoch is shorter, but no other program."""
    if not count:
        return samples
    weight = jnp.ones_like(samples.advantage) if samples.weight is None else samples.weight
    more = jax.tree.map(lambda x: x[:count], samples._replace(weight=jnp.zeros_like(weight)))
    return jax.tree.map(lambda *x: jnp.concatenate(x), samples._replace(weight=weight), more)


def _network_of(name: str) -> str:
    """Whose a parameter is, as its name begins: the actor's, the critic's, or shared by both."""
    return next((network for network in ("actor", "critic") if name.startswith(network)), "shared")


def _features(module: ActorCritic, part: Samples) -> Any:
    if part.ended is None:
        return module.remember((), part.obs)[1]
    obs, ended = jax.tree.map(lambda x: x.swapaxes(0, 1), (part.obs, part.ended))  # [B, T] -> [T, B]
    features = through_time(module, part.memory, obs, ended)[1]
    return jax.tree.map(lambda x: x.swapaxes(0, 1), features)  # [T, B] -> [B, T]
