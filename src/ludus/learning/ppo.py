"""Proximal policy optimisation, clipped (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

The details follow Huang et al. 2022 ('The 37 implementation details of PPO'); `docs/ppo.md` lists each one, where it
is here, which test holds it, and where `ludus` deliberately differs.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ludus.learning.algorithm import FAULTS, check_hyperparameters, static, traced
from ludus.learning.losses import approximate_kl, clipped_surrogate, value_loss
from ludus.learning.minibatch import minibatch_indices
from ludus.learning.normalize import (
    CLIP,
    RunningStatistics,
    empty_statistics,
    normalize,
    standard_deviation,
    update_statistics,
)
from ludus.learning.returns import discounted_returns, generalized_advantages
from ludus.networks.actor_critic import MLP, ActorCritic, NetworkBuilder
from ludus.networks.distributions import sampling_noise
from ludus.networks.layers import SUPPORTED_SPACES, to_environment
from ludus.networks.network import Network, network_for
from ludus.rows import Layout, choose_rows
from ludus.spaces import Box
from ludus.types import LudusError, Mode, Rollout, Spec, Transition

METRICS = {
    "policy_loss": "mean of -min(r A, clip(r, 1-eps, 1+eps) A) over minibatches",
    "value_loss": "mean of 1/2 (V - target)^2, in units of normalised returns if those are normalised",
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
class PPOPolicy:
    """What acting needs: parameters and the observation statistics they were trained with."""

    parameters: jax.Array
    observations: RunningStatistics | None
    network: Network = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPOState:
    """Everything PPO learns or remembers between updates."""

    parameters: jax.Array
    optimizer: Any
    observations: RunningStatistics | None
    returns: RunningStatistics | None
    rewards: RunningStatistics | None
    discounted: jax.Array
    network: Network = field(metadata={"static": True})


class Samples(NamedTuple):
    """One row for each transition `[N, ...]`; with memory, one row for each environment `[B, T, ...]`."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    ended: jax.Array | None
    memory: Any
    weight: jax.Array | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPO:
    """Hyperparameters of clipped PPO."""

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
    target_kl: float | None = traced(
        None, "stop an update's epochs once approx_kl exceeds 1.5 times this; null: off", 0.0
    )
    batch_size: int = static(2048, "transitions collected for each update, over all environments", 1)
    minibatch_size: int = static(64, "transitions in each gradient step", 1)
    epochs_per_update: int = static(10, "passes over the collected transitions", 1)
    accumulation_steps: int = static(1, "parts each minibatch is cut into to save memory; the gradient is the same", 1)
    anneal_learning_rate: bool = static(True, "decrease the learning rate linearly to zero over the run")
    normalize_observations: bool = static(False, "shift and scale observations by running statistics")
    normalize_rewards: bool = static(False, "divide rewards by the running deviation of the discounted return")
    normalize_returns: bool = static(False, "let the critic predict normalised returns")
    network: NetworkBuilder = static(MLP(), "actor and critic: mlp, gru, or your own builder")
    optimizer: optax.GradientTransformation | None = static(None, "any Optax transformation", configurable=False)

    def __post_init__(self) -> None:
        """Check what can be checked without an environment."""
        check_hyperparameters(self)
        if self.batch_size % self.minibatch_size:
            raise LudusError(
                f"algorithm.minibatch_size={self.minibatch_size}: must divide algorithm.batch_size={self.batch_size}"
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

    def validate(self, spec: Spec) -> None:
        """Refuse what cannot work, before anything is compiled."""
        for name, space in (("observation", spec.observation_space), ("action", spec.action_space)):
            if not isinstance(space, SUPPORTED_SPACES):
                raise LudusError(f"PPO: {name} space {space} is not supported; Discrete and Box are")
        if self.batch_size % spec.num_envs:
            raise LudusError(f"num_envs={spec.num_envs}: must divide algorithm.batch_size={self.batch_size}")
        length = self.rollout_length(spec.num_envs)
        if network_for(self.network, spec).has_memory and (self.minibatch_size // self.accumulation_steps) % length:
            raise LudusError(
                f"algorithm.minibatch_size={self.minibatch_size}: with a memory, minibatches are whole environments, "
                f"so every part must be a multiple of batch_size / num_envs = {length}"
            )

    def init(self, key: jax.Array, spec: Spec) -> PPOState:
        """Build networks, optimiser and statistics."""
        network = network_for(self.network, spec)
        parameters = network.initialize(key)
        optimizer = self.optimizer.init(network.unravel(parameters)) if self.optimizer else ADAM.init(parameters)
        is_box = isinstance(spec.observation_space, Box)
        return PPOState(
            parameters,
            optimizer,
            empty_statistics(spec.observation_space.shape) if self.normalize_observations and is_box else None,
            empty_statistics(()) if self.normalize_returns else None,
            empty_statistics(()) if self.normalize_rewards else None,
            jnp.asarray(np.zeros(spec.num_envs, np.float32)),
            network,
        )

    def policy(self, state: PPOState) -> PPOPolicy:
        """Parameters and observation statistics."""
        return PPOPolicy(state.parameters, state.observations, state.network)

    def initial_memory(self, policy: PPOPolicy, n: int) -> Any:
        """Whatever the network remembers at the start of an episode."""
        return policy.network.merge(policy.parameters).initial_memory(n)

    def noise(self, policy: PPOPolicy, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Noise for `shape` sampled actions."""
        return sampling_noise(policy.network.spec.action_space, key, shape)

    def act(self, policy: PPOPolicy, memory: Any, obs: Any, noise: Any, mode: Mode) -> tuple[Any, Any, Any]:
        """Sample (explore) or take the mode (greedy); the sample is kept as it was before clipping to the bounds."""
        module = policy.network.merge(policy.parameters)
        memory, features = module.remember(memory, _normalized(policy.observations, obs))
        distribution = module.actor(features)
        sample = distribution.mode() if mode == "greedy" else distribution.sample(noise)
        extras = {"sample": sample, "log_prob": distribution.log_prob(sample)}
        return memory, to_environment(policy.network.spec.action_space, sample), extras

    def update(self, state: PPOState, rollout: Rollout, key: jax.Array) -> tuple[PPOState, dict[str, jax.Array]]:
        """Advantages once, then epochs of shuffled minibatches; statistics last, so that all epochs see the old ones."""
        steps = _blank_padding(rollout.steps)
        rewards, discounted, reward = self._scale_rewards(state, steps)
        estimates = self._estimate(state, steps._replace(reward=reward), rollout.memory)
        samples = self._samples(state, steps, estimates, rollout.memory)
        learning_rate = self.learning_rate * (1.0 - rollout.progress if self.anneal_learning_rate else 1.0)
        learner, metrics = self._epochs(state, samples, key, learning_rate)
        new = PPOState(
            learner.parameters,
            learner.optimizer,
            state.observations and update_statistics(state.observations, steps.obs, steps.valid),
            estimates.returns,
            rewards,
            discounted,
            state.network,
        )
        fault = _first_fault(steps, metrics, new.parameters)
        new = jax.tree.map(lambda a, b: jnp.where(fault == 0, a, b), new, state)
        explained = _explained_variance(estimates, steps.valid)
        return new, metrics | {"fault": fault, "explained_variance": explained, "learning_rate": learning_rate}

    def _scale_rewards(self, state: PPOState, steps: Transition) -> tuple[Any, jax.Array, jax.Array]:
        """Detail 30: divide by the deviation of the running discounted return, which this rollout is counted into first."""
        if state.rewards is None:
            return None, state.discounted, steps.reward
        ended = steps.terminated | steps.truncated
        totals = discounted_returns(steps.reward, ended, state.discounted, self.gamma)
        rewards = update_statistics(state.rewards, totals, steps.valid)
        reward = jnp.clip(steps.reward / standard_deviation(rewards), -CLIP, CLIP)
        return rewards, jnp.where(ended[-1], 0.0, totals[-1]), reward

    def _estimate(self, state: PPOState, steps: Transition, memory: Any) -> "Estimates":
        """Values of states and of their true successors in one batched call, then advantages and targets `[T, B]`."""
        module = state.network.merge(state.parameters)
        obs, next_obs = (_normalized(state.observations, x) for x in (steps.obs, steps.next_obs))
        after, features = _through_time(module, memory, obs, steps.terminated | steps.truncated)
        _, next_features = _flat_time(module.remember, after, next_obs)
        values = module.critic(jnp.stack([features, next_features]))
        mean, scale = _location_and_scale(state.returns)
        raw_value, next_value = mean + scale * values
        advantage = generalized_advantages(
            steps.reward, raw_value, next_value, steps.terminated, steps.truncated, self.gamma, self.gae_lambda
        )
        target = advantage + raw_value
        returns = state.returns and update_statistics(state.returns, target, steps.valid)
        # The first rollout has no older statistics to be measured by, so it is measured by its own.
        used = state.returns and jax.tree.map(
            lambda a, b: jnp.where(state.returns.count > 0, a, b), state.returns, returns
        )
        mean, scale = _location_and_scale(used)
        return Estimates(values[0], advantage, (target - mean) / scale, returns)

    def _samples(self, state: PPOState, steps: Transition, estimates: "Estimates", memory: Any) -> Samples:
        """Lay a rollout out in rows that can be shuffled: transitions, or whole environments if there is a memory."""
        by_time = Samples(
            _normalized(state.observations, steps.obs),
            steps.extras["sample"],
            steps.extras["log_prob"],
            estimates.value,
            estimates.advantage,
            estimates.target,
            (steps.terminated | steps.truncated) if state.network.has_memory else None,
            None,
            None if steps.valid is None else steps.valid.astype(jnp.float32),
        )
        if state.network.has_memory:
            return jax.tree.map(lambda x: x.swapaxes(0, 1), by_time)._replace(memory=memory)  # [T, B] -> [B, T]
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), by_time)._replace(memory=())  # [T, B] -> [T * B]

    def _epochs(self, state: PPOState, samples: Samples, key: jax.Array, learning_rate: Any) -> tuple["Learner", Any]:
        """Run every minibatch of every epoch; metrics are means over the gradient steps that were made."""
        rows, transitions = len(samples.advantage), samples.advantage.size
        has_data = None if samples.weight is None else samples.weight.reshape(rows, -1).any(axis=1)
        size = self.minibatch_size * rows // transitions
        indices = minibatch_indices(key, rows, size, self.epochs_per_update, has_data)
        layout = Layout(samples)
        packed = layout.pack(samples)
        may_skip = self.target_kl is not None or samples.weight is not None

        def minibatch(learner: Learner, index: jax.Array) -> tuple[Learner, jax.Array]:
            part = layout.unpack([x[index] for x in packed])
            part = part._replace(weight=jnp.ones_like(part.advantage) if part.weight is None else part.weight)
            if not may_skip:
                return self._step(state.network, learning_rate, learner, part)
            skip = learner.stopped | ~part.weight.any()
            step = lambda learner, part: self._step(state.network, learning_rate, learner, part)  # noqa: E731
            nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(step, learner, part)[1])
            return jax.lax.cond(skip, lambda learner, _: (learner, nothing), step, learner, part)

        learner = Learner(state.parameters, state.optimizer, jnp.asarray(False))
        learner, rows = jax.lax.scan(minibatch, learner, indices)  # rows: [minibatches, len(STEP_METRICS)]
        totals = rows.sum(axis=0)
        metrics = dict(zip(STEP_METRICS, totals / jnp.maximum(totals[-1], 1.0), strict=True))
        metrics["total_loss"] = self._total(metrics["policy_loss"], metrics["value_loss"], metrics["entropy"])
        del metrics["evaluated"]
        return learner, metrics | {"updates": totals[-2].astype(jnp.int32)}

    def _step(self, network: Network, learning_rate: Any, learner: "Learner", part: Samples) -> tuple["Learner", Any]:
        """One gradient step on one minibatch."""
        part = part._replace(weight=part.weight / part.weight.sum())
        part = part._replace(advantage=_standardize(part.advantage, part.weight))
        gradient, metrics = self._gradient(network, learner.parameters, part)
        norm = jnp.sqrt(jnp.sum(jnp.square(gradient)))
        gradient = gradient * jnp.minimum(1.0, self.max_grad_norm / (norm + 1e-8))
        parameters, optimizer = self._descend(network, learning_rate, learner, gradient)
        new = Learner(parameters, optimizer, learner.stopped)
        if self.target_kl is not None:
            stopped = metrics[STEP_METRICS.index("approx_kl")] > 1.5 * self.target_kl
            new = jax.tree.map(lambda a, b: jnp.where(stopped, b, a), new, learner)._replace(stopped=stopped)
        return new, jnp.concatenate([metrics, jnp.stack([norm, 1.0 - new.stopped, 1.0])])

    def _descend(
        self, network: Network, learning_rate: Any, learner: "Learner", gradient: jax.Array
    ) -> tuple[Any, Any]:
        if self.optimizer is None:
            direction, optimizer = ADAM.update(gradient, learner.optimizer)
            return learner.parameters - learning_rate * direction, optimizer
        # The user's transformation sees the tree that the module holds, so masks by name work.
        tree = network.unravel(learner.parameters)
        change, optimizer = self.optimizer.update(network.unravel(gradient), learner.optimizer, tree)
        # It has its own step size; annealing still applies to it.
        scale = learning_rate / self.learning_rate
        return learner.parameters + scale * network.ravel(change), optimizer

    def _gradient(self, network: Network, parameters: jax.Array, part: Samples) -> tuple[jax.Array, jax.Array]:
        """Gradient and metrics of a minibatch, in `accumulation_steps` parts whose sum it is."""
        differentiate = jax.grad(self._loss, has_aux=True)
        if self.accumulation_steps == 1:
            return differentiate(parameters, network, part)
        parts = jax.tree.map(lambda x: x.reshape(self.accumulation_steps, -1, *x.shape[1:]), part)  # [n] -> [k, n / k]

        def accumulate(total: Any, piece: Samples) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, differentiate(parameters, network, piece)), None

        zeros = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype),
            jax.eval_shape(
                lambda piece: differentiate(parameters, network, piece), jax.tree.map(lambda x: x[0], parts)
            ),
        )
        return jax.lax.scan(accumulate, zeros, parts)[0]

    def _loss(self, parameters: jax.Array, network: Network, part: Samples) -> tuple[jax.Array, jax.Array]:
        """L = -L_clip + c1 L_value - c2 H (eq. 9, as a loss); weights sum to one over the whole minibatch."""
        module = network.merge(parameters)
        features = _sample_features(module, part)
        distribution, value = module.actor(features), module.critic(features)
        log_ratio = distribution.log_prob(part.action) - part.log_prob
        ratio = jnp.exp(log_ratio)

        terms = jnp.stack(
            [
                clipped_surrogate(ratio, part.advantage, self.clip_epsilon),
                value_loss(value, part.value, part.target, self.value_clip_epsilon),
                distribution.entropy(),
                approximate_kl(log_ratio),
                jnp.abs(ratio - 1.0) > self.clip_epsilon,
            ]
        )
        means = terms.reshape(len(terms), -1) @ part.weight.ravel()
        return self._total(*means[:3]), means

    def _total(self, policy_loss: jax.Array, critic_loss: jax.Array, entropy: jax.Array) -> jax.Array:
        return policy_loss + self.value_coef * critic_loss - self.entropy_coef * entropy


ADAM = optax.scale_by_adam(eps=1e-5)
"""Detail 3: Adam with epsilon 1e-5."""


STEP_METRICS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "gradient_norm",
    "updates",
    "evaluated",
)
"""What each minibatch reports, as one vector; the last two count steps taken and minibatches looked at."""


class Learner(NamedTuple):
    """What changes from minibatch to minibatch."""

    parameters: jax.Array
    optimizer: Any
    stopped: jax.Array


class Estimates(NamedTuple):
    """Value and target are in the critic's units, advantages in those of the (scaled) reward."""

    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    returns: RunningStatistics | None


def _blank_padding(steps: Transition) -> Transition:
    """Make padding rows zeros that end their episode, so that whatever lay in them can reach nothing."""
    if steps.valid is None:
        return steps
    blank = jax.tree.map(jnp.zeros_like, steps)._replace(truncated=jnp.ones_like(steps.truncated))
    return choose_rows(steps.valid, steps, blank)


def _normalized(statistics: RunningStatistics | None, obs: Any) -> Any:
    return obs if statistics is None else normalize(statistics, obs)


def _location_and_scale(statistics: RunningStatistics | None) -> tuple[Any, Any]:
    return (0.0, 1.0) if statistics is None else (statistics.mean, standard_deviation(statistics))


def _through_time(module: ActorCritic, memory: Any, obs: Any, ended: jax.Array) -> tuple[Any, Any]:
    """Memory after each step (before it is cleared at an episode's end) and features, both `[T, B, ...]`."""
    if not jax.tree.leaves(memory):
        return module.remember(memory, obs)
    start = module.initial_memory(ended.shape[1])

    def step(memory: Any, inputs: Any) -> tuple[Any, Any]:
        obs_t, ended_t = inputs
        memory, features = module.remember(memory, obs_t)
        return choose_rows(ended_t, start, memory), (memory, features)

    return jax.lax.scan(step, memory, (obs, ended))[1]


def _flat_time(remember: Any, memory: Any, obs: Any) -> tuple[Any, Any]:
    """Apply `remember` to `[T, B, ...]` as to one long batch."""
    shape = jax.tree.leaves(obs)[0].shape[:2]
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (memory, obs))  # [T, B] -> [T * B]
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), remember(*flat))  # [T * B] -> [T, B]


def _sample_features(module: ActorCritic, part: Samples) -> Any:
    if part.ended is None:
        return module.remember((), part.obs)[1]
    features = _through_time(module, part.memory, part.obs.swapaxes(0, 1), part.ended.swapaxes(0, 1))[1]
    return jax.tree.map(lambda x: x.swapaxes(0, 1), features)  # [T, B] -> [B, T]


def _standardize(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Detail 7: mean 0 and deviation 1 over one minibatch; zeros if all are equal."""
    x = x - jnp.sum(weight * x)
    return x / (jnp.sqrt(jnp.sum(weight * jnp.square(x))) + 1e-8)


def _explained_variance(estimates: Estimates, valid: jax.Array | None) -> jax.Array:
    def variance(x: jax.Array) -> jax.Array:
        return jnp.var(x, where=valid)

    spread = variance(estimates.target)
    return jnp.where(spread > 0, 1.0 - variance(estimates.target - estimates.value) / jnp.maximum(spread, 1e-12), 0.0)


def _first_fault(steps: Transition, metrics: dict[str, jax.Array], parameters: jax.Array) -> jax.Array:
    """Index into FAULTS of the earliest quantity that is not finite, 0 if all are: NaN spreads in this order."""
    inputs = {"observation": (steps.obs, steps.next_obs), "reward": steps.reward, "action": steps.extras}
    checked = [
        *((name, _all_finite(x)) for name, x in inputs.items()),
        ("loss", jnp.isfinite(metrics["total_loss"])),
        ("gradient", jnp.isfinite(metrics["gradient_norm"])),
        ("parameter", jnp.isfinite(parameters).all()),
    ]
    broken = jnp.stack([~healthy for _, healthy in checked])
    codes = jnp.asarray([FAULTS.index(name) for name, _ in checked])
    return jnp.where(broken, codes, len(FAULTS)).min() % len(FAULTS)


def _all_finite(tree: Any) -> jax.Array:
    leaves = [leaf.reshape(-1) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.isfinite(jnp.concatenate(leaves)).all() if leaves else jnp.asarray(True)
