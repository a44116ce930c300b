"""Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905).

Twin critics and their slowly following targets, a squashed Gaussian actor, a temperature that is learnt or fixed, and
a replay that lives in the learner's state. `docs/en/sac.md` lists the details and the test of each. From top to bottom:
hyperparameters, init, act, update, one gradient step. What is learnt and remembered is in `sac_state.py`. With a memory
sequences are drawn in place of transitions (`sequence_replay.py`): nothing else is different.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ludus.algorithms.base import Algorithm, Update
from ludus.algorithms.diagnostics import Learnt, ravel, update_diagnostics
from ludus.algorithms.finite_checks import first_fault, unless_faulty
from ludus.algorithms.hyperparameters import check_hyperparameters, static, traced
from ludus.algorithms.minibatch import blank_padding
from ludus.algorithms.normalize import normalize, update_statistics
from ludus.algorithms.observations import observation_statistics
from ludus.algorithms.optimizer import Optimizer, without_optimizer
from ludus.algorithms.replay import Drawn, Replay
from ludus.algorithms.sac_state import (
    Guide,
    Learner,
    Minibatch,
    Noise,
    Parameters,
    PartUpdate,
    SACCritic,
    SACPolicy,
    SACState,
)
from ludus.algorithms.saturation import sac_saturation
from ludus.algorithms.schedules import Schedule
from ludus.algorithms.sequence_replay import draw, empty, store
from ludus.algorithms.validation import check_sac, check_sac_devices
from ludus.algorithms.work import sac_work
from ludus.networks.action_scaling import action_size, from_environment, to_environment
from ludus.networks.builders import MLP
from ludus.networks.distributions import TanhGaussian
from ludus.networks.network import Leaves
from ludus.networks.soft_actor_critic import NUM_CRITICS, SoftNetworks, TorsoConfig, critic_values, soft_networks
from ludus.runtime import placement
from ludus.runtime.packing import MetricVector
from ludus.types import Mode, Rollout, Spec, Tree

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

STEP_METRICS = ("critic_loss", "policy_loss", "alpha_loss", "alpha", "entropy", "q_value", "gradient_norm")
"""What one gradient step reports."""


Steps = tuple[Learner, MetricVector, Parameters]
"""After some gradient steps: the learner, the sums of what they report, and the last gradient."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SAC(Algorithm):
    """Hyperparameters of soft actor-critic."""

    values_actions = True
    is_on_policy = False

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
    segment_length: int = static(
        16, "with a memory: steps of each sequence that are learnt from; divides batch_size", 1
    )
    burn_in: int = static(16, "with a memory: steps before those, which only fill it", 0)
    normalize_observations: bool = static(False, "shift and scale observations by running statistics")
    network: TorsoConfig = static(MLP((256, 256), "relu"), "actor and critics: mlp, gru, transformer, or your own")
    optimizer: optax.GradientTransformation | None = static(None, "any Optax transformation", configurable=False)

    def __post_init__(self) -> None:
        """Check what can be checked without an environment."""
        check_hyperparameters(self)

    def rollout_length(self, num_envs: int) -> int:
        """Steps that each environment takes between updates."""
        return self.unroll_length

    def validate(self, spec: Spec) -> None:
        """Refuse what cannot work, before anything is compiled."""
        check_sac(self, spec)

    def check_devices(self, spec: Spec, count: int) -> None:
        """Refuse batches and replays that so many devices cannot share evenly."""
        check_sac_devices(self, spec, count)

    def init(self, key: jax.Array, spec: Spec) -> SACState:
        """Build networks, optimisers, statistics and an empty replay."""
        networks = soft_networks(self.network, spec)
        actor_key, *critic_keys = jax.random.split(key, 1 + NUM_CRITICS)
        critics = networks.stacked([networks.critic.initialize(critic_key) for critic_key in critic_keys])
        alpha = self.alpha(0.0) if isinstance(self.alpha, Schedule) else self.alpha
        log_alpha = jax.device_put(np.log(np.float32(max(alpha, 1e-8))))
        actor = networks.with_encoder(networks.actor.initialize(actor_key), critics)
        parameters = Parameters(actor, critics, log_alpha)
        optimizers = Parameters(*(self._optimizer.init(part) for part in parameters))
        return SACState(
            Learner(parameters, jax.tree.map(jnp.copy, critics), optimizers),
            observation_statistics(spec.observation_space) if self.normalize_observations else None,
            empty(self, spec, networks),
            jax.device_put(np.int32(self.learning_starts)),
            jax.device_put(np.float32(0.0)),
            networks,
        )

    def policy(self, state: SACState) -> SACPolicy:
        """The actor and what it needs."""
        actor = state.learner.parameters.actor
        return SACPolicy(actor, state.observations, state.warmup_left, state.networks.actor)

    def critic(self, state: SACState) -> SACCritic:
        """Both critics and what they need."""
        return SACCritic(state.learner.parameters.critics, state.observations, state.networks.critic)

    def initial_memory(self, policy: SACPolicy | SACCritic, n: int) -> Tree:
        """Whatever the actor, or both critics, remember at the start of an episode."""
        return policy.initial_memory(n)

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

    def act(self, policy: SACPolicy, memory: Tree, obs: Tree, noise: Tree, mode: Mode) -> tuple[Tree, Tree, Tree]:
        """Sample (to explore, uniformly while warming up) or take the mean (greedy), squashed into the bounds."""
        memory, distribution = self.distribution(policy, memory, obs)
        if mode == "greedy":
            action = distribution.squash(distribution.mode())
        else:
            action = distribution.squash(distribution.sample(noise.normal))
        if mode == "explore":
            action = jnp.where(noise.is_warmup[:, None], noise.uniform, action)
        return memory, to_environment(policy.network.spec.action_space, action), {"unit_action": action}

    def distribution(self, policy: SACPolicy, memory: Tree, obs: Tree) -> tuple[Tree, TanhGaussian]:
        """Return the new memory and the distribution over actions."""
        return policy.step(memory, obs)

    def value(self, critic: SACCritic, memory: Tree, obs: Tree, action: Tree) -> tuple[Tree, jax.Array]:
        """Return the new memory and the lesser of both critics' values of actions as the environment takes them."""
        return critic.step(memory, obs, from_environment(critic.network.spec.action_space, action))

    def update(self, state: SACState, rollout: Rollout, key: jax.Array, guide: Guide | None = None) -> Update:
        """Store the rollout, then make the gradient steps that its environment steps have earned.

        A guide is what the actor is to heed besides the critics.
        """
        steps = blank_padding(rollout.steps)
        data_fault = first_fault(
            observation=(steps.obs, steps.next_obs), reward=steps.reward, action=steps.extras["unit_action"]
        )
        replay = store(state.networks, state.replay, steps, steps.extras["unit_action"])
        observations = update_statistics(state.observations, steps.obs, steps.valid)
        count = jnp.int32(steps.reward.size) if steps.valid is None else steps.valid.sum(dtype=jnp.int32)
        warmup_left = jnp.maximum(state.warmup_left - count, 0)
        owed = state.owed_updates + (count - (state.warmup_left - warmup_left)) * self.updates_per_step
        updates = jnp.where(data_fault == 0, jnp.maximum(jnp.floor(owed), 0), 0).astype(jnp.int32)

        learner, means, gradient = self._gradient_steps(state, replay, observations, updates, key, guide)
        # The last gradient is looked at here, so that the loop is the same program whether or not it is diagnosed too.
        fault = first_fault(
            loss=(means["critic_loss"], means["policy_loss"]),
            gradient=(means["gradient_norm"], gradient),
            parameter=(learner, observations),
        )
        fault = jnp.where(data_fault > 0, data_fault, fault)
        # The replay is never compared as a whole: with its old ends it is the old one, and large ones are not copied.
        new = learner, observations, replay.ends, warmup_left, owed - updates
        old = state.learner, state.observations, state.replay.ends, state.warmup_left, state.owed_updates
        learner, observations, ends, *counts = unless_faulty(fault, new, old)
        new = SACState(learner, observations, replace(replay, ends=ends), *counts, state.networks)
        means["learning_rate"] = jnp.asarray(self.learning_rate)
        metrics, gradient = jax.tree.map(lambda x: jnp.where(updates > 0, x, jnp.nan), (means, gradient))
        metrics["replay_size"] = replay.ends.size.astype(jnp.float32)
        return Update(new, metrics, updates, fault, gradient)

    def _gradient_steps(
        self,
        state: SACState,
        replay: Replay,
        observations: Tree,
        updates: jax.Array,
        key: jax.Array,
        guide: Guide | None,
    ) -> tuple[Learner, dict[str, jax.Array], Parameters]:
        """Make so many steps; returns the mean of each of `STEP_METRICS` over them, and the last gradient."""

        def step(i: jax.Array, carry: Steps) -> Steps:
            learner, totals, _ = placement.whole(carry)
            sample_key, noise_key = jax.random.split(jax.random.fold_in(key, i))
            drawn = draw(self, state.networks, replay, sample_key, partial(normalize, observations))
            noise = jax.random.normal(noise_key, (2, *drawn.action.shape))
            shown = () if guide is None else guide.draw(jax.random.fold_in(sample_key, 1), observations)
            learner, report, gradient = share(self, learner, drawn, noise, shown)
            return learner, jax.tree.map(jnp.add, totals, report), gradient

        rows = 1 if state.networks.has_memory else 0  # the axis of what is drawn along which devices share it
        share = placement.each(
            partial(type(self)._gradient_step, networks=state.networks, guide=guide),
            *(None, None, rows, rows + 1, rows),
            out=None,
        )
        gradient = jax.tree.map(jnp.zeros_like, state.learner.parameters)
        start = state.learner, MetricVector.zeros(STEP_METRICS), gradient
        learner, totals, gradient = jax.lax.fori_loop(0, updates, step, start)
        means = jax.tree.map(lambda total: total / jnp.maximum(updates, 1), totals)
        return learner, means.scalars(), gradient

    def _gradient_step(
        self,
        learner: Learner,
        drawn: Drawn,
        noise: jax.Array,
        shown: Tree,
        networks: SoftNetworks,
        guide: Guide | None = None,
    ) -> Steps:
        """One gradient step of the critics, then of the actor against them, then of the temperature."""
        log_alpha = learner.parameters.log_alpha
        weight = drawn.weight / jnp.maximum(placement.total(drawn.weight.sum()), 1.0)
        batch = Minibatch(drawn, weight, jnp.exp(log_alpha) if self.automatic_alpha else jnp.asarray(self.alpha))
        critics = self.update_critics(networks, learner, batch, noise[0])
        actor = self.update_actor(networks, learner, critics.parameters, batch, noise[1], guide, shown)
        temperature = self.update_temperature(learner, batch, log_prob=actor.mean)
        new = Learner(
            Parameters(actor.parameters, critics.parameters, temperature.parameters),
            self.update_targets(learner.target_critics, critics.parameters),
            Parameters(actor.optimizer, critics.optimizer, temperature.optimizer),
        )
        report = {
            "critic_loss": critics.loss / NUM_CRITICS,
            "policy_loss": actor.loss,
            "alpha_loss": temperature.loss,
            "alpha": batch.alpha,
            "entropy": -actor.mean,
            "q_value": critics.mean,
            "gradient_norm": optax.tree.norm((critics.gradient, actor.gradient, temperature.gradient)),
        }
        gradient = Parameters(actor.gradient, critics.gradient, temperature.gradient)
        return new, MetricVector.stacked(report), gradient

    def update_critics(
        self, networks: SoftNetworks, learner: Learner, batch: Minibatch, noise: jax.Array
    ) -> PartUpdate:
        """Both critics towards y = r + gamma (1 - terminated) (min Q' - alpha log pi), eq. 5 and 6; `mean` is of Q."""
        drawn, parameters = batch.drawn, learner.parameters
        actor = networks.actor.merge(parameters.actor)
        next_action, next_log_prob = _sampled(actor(drawn.next_obs), noise)
        next_value = critic_values(networks.critic, learner.target_critics, drawn.next_obs, next_action).min(axis=0)
        goes_on = 1.0 - drawn.terminated
        target = drawn.reward + self.gamma * goes_on * (next_value - batch.alpha * next_log_prob)

        def loss(critics: Leaves) -> tuple[jax.Array, jax.Array]:
            values = critic_values(networks.critic, critics, drawn.obs, drawn.action)
            error = 0.5 * jnp.sum(batch.weight * jnp.square(values - target))
            return error, jnp.sum(batch.weight * values) / NUM_CRITICS

        return self._descend(loss, parameters.critics, learner.optimizers.critics)

    def update_actor(
        self,
        networks: SoftNetworks,
        learner: Learner,
        critics: Leaves,
        batch: Minibatch,
        noise: jax.Array,
        guide: Guide | None = None,
        shown: Tree = (),
    ) -> PartUpdate:
        """The actor towards less alpha log pi - min Q, eq. 7 to 9; `mean` is of log pi.

        An encoder that it shares is the critics', and stays theirs. A guide adds its term.
        """
        obs, actor = batch.drawn.obs, networks.with_encoder(learner.parameters.actor, critics)

        def loss(leaves: Leaves) -> tuple[jax.Array, jax.Array]:
            module = networks.actor.merge(networks.without_slope(leaves))
            action, log_prob = _sampled(module(obs), noise)
            value = critic_values(networks.critic, critics, obs, action).min(axis=0)
            term = jnp.sum(batch.weight * (batch.alpha * log_prob - value))
            if guide is not None:
                size = placement.total(jnp.sum(batch.weight * jnp.abs(jax.lax.stop_gradient(value))))
                term += guide.loss(module, shown, size)
            return term, jnp.sum(batch.weight * log_prob)

        made = self._descend(loss, actor, learner.optimizers.actor)
        return made._replace(parameters=networks.with_encoder(made.parameters, critics))

    def update_temperature(self, learner: Learner, batch: Minibatch, log_prob: jax.Array) -> PartUpdate:
        """The temperature, if it is learnt, so that the entropy comes to its target, eq. 18."""
        log_alpha, optimizer = learner.parameters.log_alpha, learner.optimizers.log_alpha
        if not self.automatic_alpha:
            return PartUpdate(log_alpha, optimizer, jnp.zeros(()), jnp.zeros(()), log_prob)
        size = batch.drawn.action.shape[-1]
        target_entropy = -float(size) if self.target_entropy is None else self.target_entropy
        # The derivative of -alpha (log pi + target) by log alpha is the loss itself.
        loss = -batch.alpha * (log_prob + target_entropy)
        change, optimizer = self._optimizer.update(loss, optimizer, log_alpha)
        return PartUpdate(log_alpha + change, optimizer, loss, loss, log_prob)

    def update_targets(self, targets: Leaves, critics: Leaves) -> Leaves:
        """The target critics a share `tau` of the way towards the critics."""
        return jax.tree.map(lambda target, new: target + self.tau * (new - target), targets, critics)

    def _descend(
        self, loss: Callable[[Leaves], tuple[jax.Array, jax.Array]], parameters: Leaves, optimizer: Tree
    ) -> PartUpdate:
        """One step down a loss that is returned with a mean of something else."""
        (value, mean), gradient = placement.total(jax.value_and_grad(loss, has_aux=True)(parameters))
        change, optimizer = self._optimizer.update(gradient, optimizer, parameters)
        return PartUpdate(jax.tree.map(jnp.add, parameters, change), optimizer, gradient, value, mean)

    @property
    def _optimizer(self) -> Optimizer:
        return Optimizer(self.learning_rate, self.optimizer)

    def blank(self, spec: Spec) -> SACState:
        """A state with the smallest replay: neither policy nor critic has one."""
        smallest = replace(self, replay_size=self.unroll_length * spec.num_envs)
        return smallest.init(jax.random.key(0), spec)

    def discount(self) -> float:
        """Return the discount factor of its values."""
        return float(self.gamma)

    def for_acting(self) -> "SAC":
        """Return it without the user's optimiser."""
        return without_optimizer(self)

    def begin_with(self, state: SACState, policy: SACPolicy) -> SACState:
        """Take over the actor, which plays the steps before learning starts in place of chance."""
        rate = self.updates_per_step
        owed = -self.learning_starts * (rate(0.0) if isinstance(rate, Schedule) else rate)
        state = state.with_policy(replace(policy, warmup_left=jnp.zeros_like(state.warmup_left)))
        return replace(state, owed_updates=jnp.asarray(owed, jnp.float32))

    def with_policy(self, state: SACState, policy: SACPolicy) -> SACState:
        """Take over the actor, the statistics of observations and the steps of warm-up that are left."""
        return state.with_policy(policy)

    def with_critic(self, state: SACState, critic: SACCritic) -> SACState:
        """Take over both critics and the statistics of observations; the targets begin where the critics are."""
        return state.with_critic(critic)

    def diagnostics(self, old: SACState, new: SACState, gradient: Parameters, rollout: Rollout) -> MetricVector:
        """Norms by layer and for actor, critics (both together) and temperature, if learnt; histograms; saturation."""
        before, after, slopes, optimizers = (
            parts if self.automatic_alpha else parts._replace(log_alpha=())
            for parts in (old.learner.parameters, new.learner.parameters, gradient, new.learner.optimizers)
        )
        names = [f"actor/{name}" for name in new.networks.actor.names]
        names += [f"critics/{name}" for name in new.networks.critic.names] + ["alpha"] * self.automatic_alpha
        owners = [name.partition("/")[0] for name in names]
        vector = ravel(jax.tree.leaves(slopes))
        learnt = Learnt(names, owners, jax.tree.leaves(before), jax.tree.leaves(after), vector, optimizers)
        return update_diagnostics(learnt, new.networks.actor.spec, rollout.steps) | sac_saturation(new, rollout)

    def work(self, spec: Spec, total_steps: int | None) -> float:
        """Floating-point operations of learning from so many steps."""
        return sac_work(self, spec, total_steps)


def _sampled(distribution: TanhGaussian, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions in units of the bounds, and their log-probability, from the sample before it was squashed."""
    unsquashed = distribution.sample(noise)
    return distribution.squash(unsquashed), distribution.log_prob(unsquashed)
