"""Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905).

Twin critics and their slowly following targets, a squashed Gaussian actor, a temperature that is learnt or fixed, and
a replay that lives in the learner's state. `docs/en/sac.md` lists the details and the test of each.
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
from ludus.learning.minibatch import blank_padding
from ludus.learning.normalize import normalize, update_statistics
from ludus.learning.observations import check_observation_space, observation_statistics
from ludus.networks.actor_critic import MLP
from ludus.networks.distributions import TanhGaussian
from ludus.networks.layers import action_size, from_environment, to_environment
from ludus.networks.network import Leaves, Network, network_for
from ludus.networks.soft_actor_critic import ActorOf, CriticOf
from ludus.replay import Replay, Sample, empty_replay, insert, sample
from ludus.rows import Figures
from ludus.spaces import Box, map_leaves
from ludus.types import LudusError, Mode, Rollout, Spec

METRICS = {
    "critic_loss": "mean of 1/2 (Q_i - y)^2 over both critics, y = r + gamma (1 - terminated) (min Q' - alpha log pi)",
    "policy_loss": "mean of alpha log pi - min Q_i",
    "alpha_loss": "mean of -alpha (log pi + target entropy); 0 if alpha is fixed",
    "alpha": "temperature: the weight of the policy's entropy",
    "entropy": "mean of -log pi, in nats, for actions in units where the bounds are -1 and 1",
    "q_value": "mean of both critics over the sampled transitions",
    "gradient_norm": "global norm of the gradients of critics, actor and temperature together",
    "learning_rate": "Adam's step size",
    "replay_size": "transitions in the replay",
}
"""Every metric of an update and its formula: means over the gradient steps of an iteration, absent if it made none."""

NUM_CRITICS = 2
STEP_METRICS = ("critic_loss", "policy_loss", "alpha_loss", "alpha", "entropy", "q_value", "gradient_norm")


class Networks(NamedTuple):
    """The static halves of the two kinds of network."""

    actor: Network
    critic: Network


class Parameters(NamedTuple):
    """What is learnt: arrays of the actor, of both critics (stacked), and the logarithm of the temperature."""

    actor: Any
    critics: Any
    log_alpha: Any


class Learner(NamedTuple):
    """What changes from gradient step to gradient step."""

    parameters: Parameters
    target_critics: Leaves
    optimizers: Parameters


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SACPolicy:
    """What acting needs: the actor, the observation statistics, and how many random steps are still to be taken."""

    parameters: Leaves
    observations: Any
    warmup_left: jax.Array
    network: Network = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SACCritic:
    """What valuing needs: both critics (stacked) and the observation statistics."""

    parameters: Leaves
    observations: Any
    network: Network = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SACState:
    """Everything SAC learns or remembers between updates."""

    learner: Learner
    observations: Any
    replay: Replay
    warmup_left: jax.Array
    owed_updates: jax.Array
    networks: Networks = field(metadata={"static": True})


class Noise(NamedTuple):
    """Exploration drawn ahead: normals for the policy, uniform actions for warm-up, and which of them to use."""

    normal: jax.Array
    uniform: jax.Array
    is_warmup: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SAC:
    """Hyperparameters of soft actor-critic."""

    values_actions: ClassVar[bool] = True
    """Its critics judge an observation and an action."""
    is_on_policy: ClassVar[bool] = False

    learning_rate: float = traced(3e-4, "Adam's step size for actor, critics and temperature", 0.0)
    gamma: float = traced(0.99, "discount factor", 0.0, 1.0)
    tau: float = traced(0.005, "share by which the target critics follow at each gradient step", 0.0, 1.0)
    alpha: float = traced(1.0, "temperature, or where it starts if it is learnt", 0.0)
    target_entropy: float | None = traced(None, "entropy that a learnt temperature aims at; null: -(action dimensions)")
    updates_per_step: float = traced(1.0, "gradient steps for each environment step after the warm-up", 0.0)
    learning_starts: int = static(1000, "environment steps with uniformly random actions before learning starts", 0)
    batch_size: int = static(256, "transitions in each gradient step", 1)
    replay_size: int = static(1_000_000, "the latest transitions to learn from", 1)
    unroll_length: int = static(32, "steps of each environment between updates", 1)
    automatic_alpha: bool = static(True, "learn the temperature; false keeps it at alpha")
    normalize_observations: bool = static(False, "shift and scale observations by running statistics")
    network: Any = static(MLP((256, 256), "relu"), "actor and critics: mlp, or your own")
    optimizer: optax.GradientTransformation | None = static(None, "any Optax transformation", configurable=False)

    def __post_init__(self) -> None:
        """Check what can be checked without an environment."""
        check_hyperparameters(self)

    def rollout_length(self, num_envs: int) -> int:
        """Steps that each environment takes between updates."""
        return self.unroll_length

    def work(self, spec: Spec, total_steps: int | None) -> float:
        """Two for each parameter and sample: critics 3 + 1 + 2 passes (learn, target, actor's loss), actor 1 + 3."""
        if total_steps is None:
            return np.inf
        networks = self._networks(spec)
        passes = 6 * NUM_CRITICS * networks.critic.size + 4 * networks.actor.size
        return 2.0 * passes * self.batch_size * float(self.updates_per_step) * total_steps

    def validate(self, spec: Spec) -> None:
        """Refuse what cannot work, before anything is compiled."""
        check_observation_space("SAC", spec.observation_space)
        space = spec.action_space
        if not (isinstance(space, Box) and space.is_float and space.is_bounded):
            raise LudusError(
                f"SAC: action space {space} is not supported; it must be a Box of floats with finite bounds (try PPO)"
            )
        for name in ("soft_actor", "soft_critic"):
            if not hasattr(self.network, name):
                raise LudusError(
                    f"algorithm.network={type(self.network).__name__}: SAC needs {name}(spec, rngs), which mlp has"
                )
        inserted = self.unroll_length * spec.num_envs
        if inserted > self.replay_size:
            raise LudusError(
                f"algorithm.replay_size={self.replay_size}: must hold one iteration, "
                f"unroll_length x num_envs = {inserted} transitions"
            )

    def init(self, key: jax.Array, spec: Spec) -> SACState:
        """Build networks, optimisers, statistics and an empty replay."""
        networks = self._networks(spec)
        actor_key, *critic_keys = jax.random.split(key, 1 + NUM_CRITICS)
        each = [networks.critic.initialize(critic_key) for critic_key in critic_keys]
        critics = tuple(jnp.stack(leaves) for leaves in zip(*each, strict=True))
        log_alpha = jax.device_put(np.log(np.float32(max(self.alpha, 1e-8))))
        parameters = Parameters(networks.actor.initialize(actor_key), critics, log_alpha)
        optimizers = Parameters(*(self._optimizer.init(part) for part in parameters))
        space = spec.observation_space
        obs = map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), space)
        action = np.zeros(action_size(spec.action_space), np.float32)
        return SACState(
            Learner(parameters, jax.tree.map(jnp.copy, critics), optimizers),
            observation_statistics(space) if self.normalize_observations else None,
            empty_replay(self.replay_size, spec.num_envs, self.unroll_length * spec.num_envs, obs, action),
            jax.device_put(np.int32(self.learning_starts)),
            jax.device_put(np.float32(0.0)),
            networks,
        )

    def blank(self, spec: Spec) -> SACState:
        """A state with the smallest replay: neither policy nor critic has one."""
        smallest = dataclasses.replace(self, replay_size=self.unroll_length * spec.num_envs)
        return smallest.init(jax.random.key(0), spec)

    def policy(self, state: SACState) -> SACPolicy:
        """The actor and what it needs."""
        actor = state.learner.parameters.actor
        return SACPolicy(actor, state.observations, state.warmup_left, state.networks.actor)

    def critic(self, state: SACState) -> SACCritic:
        """Both critics and what they need."""
        return SACCritic(state.learner.parameters.critics, state.observations, state.networks.critic)

    def settled(self, state: SACState) -> SACState:
        """Return the state with its target critics where its critics are, as they must be when these were loaded."""
        targets = jax.tree.map(jnp.copy, state.learner.parameters.critics)
        return dataclasses.replace(state, learner=state.learner._replace(target_critics=targets))

    def initial_memory(self, policy: SACPolicy | SACCritic, n: int) -> Any:
        """SAC's networks have no memory."""
        return ()

    def noise(self, policy: SACPolicy, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        """Noise for a rollout `[T, B]`; steps are counted through it, environment by environment."""
        size = action_size(policy.network.spec.action_space)
        normal_key, uniform_key = jax.random.split(key)
        index = jnp.arange(int(np.prod(shape)), dtype=jnp.int32).reshape(shape)
        return Noise(
            jax.random.normal(normal_key, (*shape, size)),
            jax.random.uniform(uniform_key, (*shape, size), minval=-1.0, maxval=1.0),
            index < policy.warmup_left,
        )

    def act(self, policy: SACPolicy, memory: Any, obs: Any, noise: Any, mode: Mode) -> tuple[Any, Any, Any]:
        """Sample (to explore, uniformly while warming up) or take the mean (greedy), squashed into the bounds."""
        memory, distribution = self.decide(policy, memory, obs)
        if mode == "greedy":
            action = distribution.squash(distribution.mode())
        else:
            action = distribution.squash(distribution.sample(noise.normal))
        if mode == "explore":
            action = jnp.where(noise.is_warmup[:, None], noise.uniform, action)
        return memory, to_environment(policy.network.spec.action_space, action), {"unit_action": action}

    def decide(self, policy: SACPolicy, memory: Any, obs: Any) -> tuple[Any, TanhGaussian]:
        """Return the memory and the distribution over actions."""
        return memory, policy.network.merge(policy.parameters)(normalize(policy.observations, obs))

    def value(self, critic: SACCritic, memory: Any, obs: Any, action: jax.Array) -> tuple[Any, jax.Array]:
        """Return the memory and the lesser of both critics' values of actions as the environment takes them."""
        unit_action = from_environment(critic.network.spec.action_space, action)
        values = _values(critic.network, critic.parameters, normalize(critic.observations, obs), unit_action)
        return memory, values.min(axis=0)

    def update(self, state: SACState, rollout: Rollout, key: jax.Array) -> tuple[SACState, dict[str, jax.Array]]:
        """Store the rollout, then make the gradient steps that its environment steps have earned."""
        steps = blank_padding(rollout.steps)
        data_fault = first_fault(
            observation=(steps.obs, steps.next_obs), reward=steps.reward, action=steps.extras["unit_action"]
        )
        replay = insert(state.replay, steps, steps.extras["unit_action"])
        observations = update_statistics(state.observations, steps.obs, steps.valid)
        count = jnp.int32(steps.reward.size) if steps.valid is None else steps.valid.sum(dtype=jnp.int32)
        warmup_left = jnp.maximum(state.warmup_left - count, 0)
        earned = (count - (state.warmup_left - warmup_left)) * self.updates_per_step
        owed = state.owed_updates + earned
        updates = jnp.where(data_fault == 0, jnp.floor(owed), 0).astype(jnp.int32)

        def step(i: jax.Array, carry: tuple[Learner, jax.Array, Parameters]) -> tuple[Learner, jax.Array, Parameters]:
            learner, totals, _ = carry
            sample_key, noise_key = jax.random.split(jax.random.fold_in(key, i))
            drawn = sample(replay, sample_key, self.batch_size)
            drawn = drawn._replace(
                obs=normalize(observations, drawn.obs), next_obs=normalize(observations, drawn.next_obs)
            )
            noise = jax.random.normal(noise_key, (2, *drawn.action.shape))
            learner, terms, gradient = self._step(state.networks, learner, drawn, noise)
            return learner, totals + terms, gradient

        totals = jnp.zeros(len(STEP_METRICS))
        gradient = jax.tree.map(jnp.zeros_like, state.learner.parameters)
        learner, totals, gradient = jax.lax.fori_loop(0, updates, step, (state.learner, totals, gradient))
        metrics = dict(zip(STEP_METRICS, totals / jnp.maximum(updates, 1), strict=True))
        # The last gradient is looked at here, so that the loop is the same program whether or not its health is too.
        fault = first_fault(
            loss=(metrics["critic_loss"], metrics["policy_loss"]),
            gradient=(metrics["gradient_norm"], gradient),
            parameter=(learner, observations),
        )
        fault = jnp.where(data_fault > 0, data_fault, fault)
        healthy = fault == 0
        # The replay is never compared as a whole: with its old ends it is the old one, and large ones are not copied.
        new = learner, observations, replay.ends, warmup_left, owed - updates
        old = state.learner, state.observations, state.replay.ends, state.warmup_left, state.owed_updates
        learner, observations, ends, *counts = jax.tree.map(lambda new, old: jnp.where(healthy, new, old), new, old)
        new = SACState(learner, observations, dataclasses.replace(replay, ends=ends), *counts, state.networks)
        metrics["learning_rate"] = jnp.asarray(self.learning_rate)
        metrics = {name: jnp.where(updates > 0, value, jnp.nan) for name, value in metrics.items()}
        metrics |= {"fault": fault, "updates": updates, "replay_size": replay.ends.size.astype(jnp.float32)}
        return new, metrics | {"gradient": jax.tree.map(lambda x: jnp.where(updates > 0, x, jnp.nan), gradient)}

    def health(self, old: SACState, new: SACState, gradient: Parameters, rollout: Rollout) -> Figures:
        """Norms by layer and for actor, critics (both together) and temperature, if learnt; histograms."""
        parts = 3 if self.automatic_alpha else 2
        leaves = jax.tree.leaves(new.learner.parameters[:parts])
        vector, parameters = ravel(jax.tree.leaves(gradient[:parts])), ravel(leaves)
        vectors = {
            "gradient_norm": vector,
            "update_norm": parameters - ravel(jax.tree.leaves(old.learner.parameters[:parts])),
            "parameter_norm": parameters,
            **moments(new.learner.optimizers[:parts], leaves),
        }
        names = [f"actor/{name}" for name in new.networks.actor.names]
        names += [f"critics/{name}" for name in new.networks.critic.names] + ["alpha"] * self.automatic_alpha
        figures = norms(vectors, names, [x.size for x in leaves], [name.partition("/")[0] for name in names])
        steps, space = rollout.steps, new.networks.actor.spec.action_space
        return figures | gradient_histogram(vector) | action_histograms(space, steps.action, steps.valid)

    def _step(
        self, networks: Networks, learner: Learner, drawn: Sample, noise: jax.Array
    ) -> tuple[Learner, jax.Array, Parameters]:
        """One gradient step of the critics, then of the actor against them, then of the temperature."""
        parameters, optimizers = learner.parameters, learner.optimizers
        weight = drawn.weight / jnp.maximum(drawn.weight.sum(), 1.0)
        alpha = jnp.exp(parameters.log_alpha) if self.automatic_alpha else jnp.asarray(self.alpha)

        actor = networks.actor.merge(parameters.actor)
        next_action, next_log_prob = _sampled(actor(drawn.next_obs), noise[0])
        next_value = _values(networks.critic, learner.target_critics, drawn.next_obs, next_action).min(axis=0)
        goes_on = 1.0 - drawn.terminated
        target = drawn.reward + self.gamma * goes_on * (next_value - alpha * next_log_prob)

        def critic_loss(critics: Leaves) -> tuple[jax.Array, jax.Array]:
            values = _values(networks.critic, critics, drawn.obs, drawn.action)
            return 0.5 * jnp.sum(weight * jnp.square(values - target)), jnp.sum(weight * values) / NUM_CRITICS

        (critic_term, value), critic_gradient = jax.value_and_grad(critic_loss, has_aux=True)(parameters.critics)
        critics, critic_optimizer = self._descend(parameters.critics, optimizers.critics, critic_gradient)

        def policy_loss(leaves: Leaves) -> tuple[jax.Array, jax.Array]:
            action, log_prob = _sampled(networks.actor.merge(leaves)(drawn.obs), noise[1])
            value = _values(networks.critic, critics, drawn.obs, action).min(axis=0)
            return jnp.sum(weight * (alpha * log_prob - value)), jnp.sum(weight * log_prob)

        (policy_term, log_prob), actor_gradient = jax.value_and_grad(policy_loss, has_aux=True)(parameters.actor)
        actor_leaves, actor_optimizer = self._descend(parameters.actor, optimizers.actor, actor_gradient)

        log_alpha, alpha_optimizer = parameters.log_alpha, optimizers.log_alpha
        alpha_gradient = jnp.zeros(())
        if self.automatic_alpha:
            size = drawn.action.shape[-1]
            target_entropy = -float(size) if self.target_entropy is None else self.target_entropy
            # The derivative of -alpha (log pi + target) by log alpha is the loss itself.
            alpha_gradient = -alpha * (log_prob + target_entropy)
            log_alpha, alpha_optimizer = self._descend(log_alpha, alpha_optimizer, alpha_gradient)

        follow = partial(jax.tree.map, lambda target, new: target + self.tau * (new - target))
        new = Learner(
            Parameters(actor_leaves, critics, log_alpha),
            follow(learner.target_critics, critics),
            Parameters(actor_optimizer, critic_optimizer, alpha_optimizer),
        )
        gradient = Parameters(actor_gradient, critic_gradient, alpha_gradient)
        norm = optax.tree.norm((critic_gradient, actor_gradient, alpha_gradient))
        terms = [critic_term / NUM_CRITICS, policy_term, alpha_gradient, alpha, -log_prob, value, norm]
        return new, jnp.stack(terms), gradient

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return optax.scale_by_adam() if self.optimizer is None else self.optimizer

    def _descend(self, parameters: Any, optimizer: Any, gradient: Any) -> tuple[Any, Any]:
        change, optimizer = self._optimizer.update(gradient, optimizer, parameters)
        # The user's transformation has its own step size, and its sign.
        factor = -self.learning_rate if self.optimizer is None else 1.0
        return jax.tree.map(lambda p, d: p + factor * d, parameters, change), optimizer

    def _networks(self, spec: Spec) -> Networks:
        return Networks(network_for(ActorOf(self.network), spec), network_for(CriticOf(self.network), spec))


def _sampled(distribution: TanhGaussian, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions in units of the bounds, and their log-probability, from the sample before it was squashed."""
    unsquashed = distribution.sample(noise)
    return distribution.squash(unsquashed), distribution.log_prob(unsquashed)


def _values(network: Network, critics: Leaves, obs: Any, action: jax.Array) -> jax.Array:
    """What each critic says, `[2, n]`."""

    def judge(leaves: Leaves) -> jax.Array:
        return network.merge(leaves)(obs, action)

    if network.has_filters:
        # Filters of two networks at once would be convolutions in groups, which take half as long again.
        return jnp.stack([judge(tuple(leaf[i] for leaf in critics)) for i in range(NUM_CRITICS)])
    return jax.vmap(judge)(critics)
