"""SAC whose actor learns from demonstrations too (Lu et al. 2022, https://arxiv.org/abs/2212.11419).

The actor's loss has a second term: `imitation` times the demonstrations' negative log-likelihood. As in TD3+BC
(Fujimoto and Gu 2021, https://arxiv.org/abs/2106.06860) both terms are brought to one size, here by
max(1, mean |min Q|), so that a weight means the same whatever the rewards are. Everything else is SAC's (`sac.py`),
which this is built around: with weight 0 it is SAC. The examples are part of the state, so a resumed run goes on with
those that it began with.
"""

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ludus.algorithms.base import Algorithm, Update
from ludus.algorithms.demonstrated import Examples, blank_examples, examples_of, segment_steps
from ludus.algorithms.hyperparameters import check_hyperparameters, static, traced
from ludus.algorithms.imitation import floored, log_likelihood, squared_error
from ludus.algorithms.normalize import normalize
from ludus.algorithms.optimizer import without_optimizer
from ludus.algorithms.sac import METRICS as SAC_METRICS
from ludus.algorithms.sac import SAC
from ludus.algorithms.sac_state import Guide, SACCritic, SACPolicy, SACState
from ludus.algorithms.validation import check_demonstrations, check_shares
from ludus.networks.builders import MLP
from ludus.networks.distributions import TanhGaussian
from ludus.networks.soft_actor_critic import Past, TorsoConfig
from ludus.runtime import placement
from ludus.runtime.demonstration_file import read_demonstrations
from ludus.runtime.packing import MetricVector
from ludus.types import Mode, Rollout, Spec, Tree

METRICS = {
    **SAC_METRICS,
    "policy_loss": "mean of alpha log pi - min Q_i, plus imitation times max(1, mean |min Q_i|) times nll",
    "imitation": "weight of the term that imitates",
    "nll": "mean of -log p(a) over a minibatch of demonstrations after the update, in nats, in units where bounds are "
    "-1 and 1",
    "action_error": "mean of (greedy - demonstrated)^2 over the same, in the same units",
}
"""Every metric of an update and its formula."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BCSACState:
    """The whole state of SAC, and the demonstrations."""

    sac: SACState
    examples: Examples


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BCSAC(Algorithm):
    """Hyperparameters of SAC, and of the term that imitates."""

    values_actions = True
    is_on_policy = False

    demonstrations: str = static("", "file or folder of demonstrations, as `ludus record` writes them; required")
    imitation: float = traced(1.0, "weight of imitation in the actor's loss; 0 is SAC", 0.0)
    imitation_batch_size: int = static(256, "steps of demonstrations in each gradient step", 1)
    min_deviation: float = static(0.05, "imitation drives no standard deviation below this, where bounds are -1 and 1")
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

    @property
    def sac(self) -> SAC:
        """SAC with the same hyperparameters, which does all but imitate."""
        return SAC(**{field.name: getattr(self, field.name) for field in fields(SAC)})

    def rollout_length(self, num_envs: int) -> int:
        """Steps that each environment takes between updates."""
        return self.unroll_length

    def validate(self, spec: Spec) -> None:
        """Refuse what cannot work, the demonstrations' spaces among it."""
        self.sac.validate(spec)
        check_demonstrations(self.demonstrations, spec)

    def check_devices(self, spec: Spec, count: int) -> None:
        """Refuse batches and replays that so many devices cannot share evenly."""
        self.sac.check_devices(spec, count)
        unit = self.segment_length if self._has_memory else 1
        check_shares("imitation_batch_size", self.imitation_batch_size, count, unit)

    def init(self, key: jax.Array, spec: Spec) -> BCSACState:
        """Begin as SAC does, and read the demonstrations."""
        shown = read_demonstrations(self.demonstrations)
        length = segment_steps(shown, self.segment_length) if self._has_memory else None
        return BCSACState(self.sac.init(key, spec), examples_of(shown, spec, 1, length))

    def blank(self, spec: Spec) -> BCSACState:
        """A state with the smallest replay and no demonstrations."""
        return BCSACState(self.sac.blank(spec), blank_examples(spec, self._has_memory))

    @property
    def _has_memory(self) -> bool:
        return hasattr(self.network, "unit")

    def update(self, state: BCSACState, rollout: Rollout, key: jax.Array) -> Update:
        """Update as SAC does, with an actor that heeds the demonstrations too."""

        def draw(key: jax.Array, statistics: Tree) -> Examples:
            drawn = self.rows(state.examples, key, statistics)
            return drawn._replace(weight=self.imitation * drawn.weight)

        guide = Guide(draw, partial(_loss, least=self.min_deviation))
        made = self.sac.update(state.sac, rollout, key, guide)
        sac: SACState = made.state
        drawn = self.rows(state.examples, jax.random.fold_in(key, 2**31), sac.observations)
        actor = sac.networks.actor.merge(sac.learner.parameters.actor)
        chosen = _chosen(actor, drawn, self.min_deviation)
        error: Any = squared_error(sac.networks.actor.spec.action_space, chosen, drawn.action)
        figures = {
            "imitation": jnp.asarray(self.imitation, jnp.float32),
            "nll": -jnp.sum(drawn.weight * log_likelihood(chosen, drawn.action)),
            "action_error": jnp.sum(drawn.weight * error),
        }
        return made._replace(state=replace(state, sac=sac), metrics=made.metrics | figures)

    def rows(self, examples: Examples, key: jax.Array, statistics: Tree) -> Examples:
        """Draw rows evenly, as the networks see them, time first with a memory; the weights sum to one."""
        size = max(1, self.imitation_batch_size // examples.segment_length)
        index = jax.random.randint(key, (size,), 0, len(examples.weight))
        drawn = jax.tree.map(lambda x: x[index], examples)
        drawn = drawn._replace(
            obs=normalize(statistics, drawn.obs), weight=drawn.weight / jnp.maximum(drawn.weight.sum(), 1.0)
        )
        if self._has_memory:
            return placement.split(jax.tree.map(lambda x: x.swapaxes(0, 1), drawn), axis=1)  # [N, L] -> [L, N]
        return placement.split(drawn)

    def policy(self, state: BCSACState) -> SACPolicy:
        """The actor and what it needs."""
        return self.sac.policy(state.sac)

    def critic(self, state: BCSACState) -> SACCritic:
        """Both critics and what they need."""
        return self.sac.critic(state.sac)

    def initial_memory(self, policy: SACPolicy | SACCritic, n: int) -> Tree:
        """Whatever the actor, or both critics, remember at the start of an episode."""
        return self.sac.initial_memory(policy, n)

    def noise(self, policy: SACPolicy, key: jax.Array, shape: tuple[int, ...]) -> Tree:
        """Noise for a rollout."""
        return self.sac.noise(policy, key, shape)

    def act(self, policy: SACPolicy, memory: Tree, obs: Tree, noise: Tree, mode: Mode) -> tuple[Tree, Tree, Tree]:
        """Act as SAC does, at random while warming up."""
        return self.sac.act(policy, memory, obs, noise, mode)

    def distribution(self, policy: SACPolicy, memory: Tree, obs: Tree) -> tuple[Tree, Any]:
        """Return the new memory and the distribution over actions."""
        return self.sac.distribution(policy, memory, obs)

    def value(self, critic: SACCritic, memory: Tree, obs: Tree, action: Tree) -> tuple[Tree, jax.Array]:
        """Return the new memory and the lesser of both critics' values."""
        return self.sac.value(critic, memory, obs, action)

    def discount(self) -> float:
        """Return the discount factor of its values."""
        return float(self.gamma)

    def for_acting(self) -> "BCSAC":
        """Return it without the user's optimiser."""
        return without_optimizer(self)

    def begin_with(self, state: BCSACState, policy: SACPolicy) -> BCSACState:
        """Take over the actor, which plays the steps before learning starts in place of chance."""
        return replace(state, sac=self.sac.begin_with(state.sac, policy))

    def with_policy(self, state: BCSACState, policy: SACPolicy) -> BCSACState:
        """Take over the actor, the statistics of observations and the steps of warm-up that are left."""
        return replace(state, sac=state.sac.with_policy(policy))

    def with_critic(self, state: BCSACState, critic: SACCritic) -> BCSACState:
        """Take over both critics and the statistics of observations."""
        return replace(state, sac=state.sac.with_critic(critic))

    def diagnostics(self, old: BCSACState, new: BCSACState, gradient: Tree, rollout: Rollout) -> MetricVector:
        """As SAC's; the actor's gradient is that of both terms."""
        return self.sac.diagnostics(old.sac, new.sac, gradient, rollout)

    def work(self, spec: Spec, total_steps: int | None) -> float:
        """SAC's, and the actor once more forwards and backwards."""
        return 1.3 * self.sac.work(spec, total_steps)


def _chosen(actor: Any, drawn: Examples, least: float) -> TanhGaussian:
    """Return the actor's distributions where something was demonstrated, no narrower than `least`."""
    return floored(actor(drawn.obs if drawn.ended is None else Past(None, drawn.obs, None, drawn.ended)), least)


def _loss(actor: Any, drawn: Examples, size: jax.Array, least: float) -> jax.Array:
    """The second term of the actor's loss; `size` is the mean size of the values that the first is made of."""
    nll = -log_likelihood(_chosen(actor, drawn, least), drawn.action)
    return jnp.maximum(size, 1.0) * jnp.sum(jnp.where(drawn.weight > 0, drawn.weight * nll, 0.0))
