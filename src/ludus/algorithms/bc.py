"""Behaviour cloning: a policy that acts as demonstrations do (Pomerleau 1991, https://doi.org/10.1162/neco.1991.3.1.88).

Each iteration makes passes over the demonstrations, in shuffled minibatches, towards what was done there being likely.
The rollouts of the present policy are short and show how it does: nothing is learnt from them. So everything else of a
run (evaluations, checkpoints, exact resume, reports) is as for every algorithm. `docs/en/demonstrations.md` says how
demonstrations are made. From top to bottom: hyperparameters, state, init, act, update, loss.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ludus.algorithms.base import Algorithm, Update
from ludus.algorithms.demonstrated import (
    Examples,
    blank_examples,
    divided,
    examples_of,
    rows_in_minibatch,
    segment_steps,
    statistics_of,
)
from ludus.algorithms.diagnostics import Learnt, update_diagnostics
from ludus.algorithms.finite_checks import first_fault, unless_faulty
from ludus.algorithms.hyperparameters import check_hyperparameters, static, traced
from ludus.algorithms.imitation import agreement, floored, log_likelihood, squared_error
from ludus.algorithms.minibatch import blank_padding, minibatch_indices, scan_minibatches
from ludus.algorithms.normalize import normalize
from ludus.algorithms.observations import observation_statistics, without_masks
from ludus.algorithms.optimizer import Optimizer, over_vector, without_optimizer
from ludus.algorithms.ppo import PPO
from ludus.algorithms.ppo_state import PPOPolicy
from ludus.algorithms.sac import SAC
from ludus.algorithms.sac_state import SACPolicy
from ludus.algorithms.validation import check_bc, check_bc_settings
from ludus.networks.builders import MLP, NetworkBuilder
from ludus.networks.distributions import restricted
from ludus.networks.network import Leaves, Network, network_for
from ludus.networks.recurrence import memory_of, span
from ludus.networks.soft_actor_critic import Past, soft_networks
from ludus.runtime.demonstration_file import read_demonstrations
from ludus.runtime.packing import MetricVector
from ludus.types import Mode, Rollout, Spec, Tree

FIGURES = {
    "nll": "mean of -log p(a), the demonstrated action's negative log-likelihood, in nats; of real numbers in units "
    "where their bounds are -1 and 1",
    "accuracy": "share of steps where the greedy action is the demonstrated one, by all of its integers; absent if "
    "actions have none",
    "action_error": "mean of (greedy - demonstrated)^2 over the real numbers of an action, in units where their bounds "
    "are -1 and 1; absent if actions have none",
}
METRICS = {
    "policy_loss": "mean over minibatches of what is minimised: nll, or with `loss=mse` the squared error of real "
    "numbers in place of their likelihood",
    **FIGURES,
    **{f"held_out_{name}": f"{name} of the demonstrations that are held out, after the update" for name in FIGURES},
    "gradient_norm": "mean global norm of the gradient before clipping",
    "learning_rate": "Adam's step size at this update",
}
"""Every metric of an update and its formula; without `held_out_`, of each minibatch before its gradient step."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BCState:
    """Everything behaviour cloning learns, and what it learns from."""

    parameters: Leaves
    optimizer: Tree
    observations: Tree
    """Statistics of the demonstrations' observations, which stay as they are; None if those are not normalised."""
    examples: Examples
    held_out: Examples | None
    network: Network = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BC(Algorithm):
    """Hyperparameters of behaviour cloning."""

    demonstrations: str = static("", "file or folder of demonstrations, as `ludus record` writes them; required")
    actor: str = static("ppo", "actor of which algorithm to train: ppo (any actions) or sac (bounded real numbers)")
    loss: str = static("nll", "what is minimised: nll, or mse (of real numbers the squared error; their spread stays)")
    learning_rate: float = traced(1e-3, "Adam's step size; ignored if `optimizer` is given", 0.0)
    max_grad_norm: float = traced(0.5, "gradients are scaled down to this global norm", 0.0)
    min_deviation: float = traced(
        0.05, "no standard deviation is driven below this, in units where bounds are -1 and 1", 1e-6
    )
    held_out_share: float = static(0.1, "share of the episodes to measure by, which are never learnt from", 0.0)
    minibatch_size: int = static(256, "steps of demonstrations in each gradient step", 1)
    epochs_per_update: int = static(1, "passes over the demonstrations in each iteration", 1)
    segment_length: int | None = static(
        None, "with a memory: steps learnt from in one piece; null: the longest episode, 256 at most", 1
    )
    unroll_length: int = static(1, "steps that the policy plays in each environment at each iteration", 1)
    normalize_observations: bool = static(True, "shift and scale observations by statistics of the demonstrations")
    network: NetworkBuilder = static(MLP(), "actor: mlp, gru, transformer, or your own builder")
    optimizer: optax.GradientTransformation | None = static(None, "any Optax transformation", configurable=False)

    def __post_init__(self) -> None:
        """Check what can be checked without an environment."""
        check_hyperparameters(self)
        check_bc_settings(self)

    def rollout_length(self, num_envs: int) -> int:
        """Steps that the present policy plays in each environment."""
        return self.unroll_length

    def validate(self, spec: Spec) -> None:
        """Refuse what cannot work, the demonstrations' spaces among it."""
        check_bc(self, spec)

    def init(self, key: jax.Array, spec: Spec) -> BCState:
        """Read the demonstrations and build the network."""
        shown = read_demonstrations(self.demonstrations)
        learnt, kept = divided(shown, self.held_out_share)
        network = self._network(spec)
        length = segment_steps(shown, self.segment_length) if self._has_memory(network) else None
        examples = examples_of(learnt, spec, self.minibatch_size, length)
        held_out = None if kept is None else examples_of(kept, spec, self.minibatch_size, length)
        statistics = statistics_of(learnt) if self.normalize_observations else None
        return self._state(network, key, statistics, examples, held_out)

    def blank(self, spec: Spec) -> BCState:
        """A state without demonstrations: the policy has none."""
        network = self._network(spec)
        statistics = observation_statistics(spec.observation_space) if self.normalize_observations else None
        blank = blank_examples(spec, self._has_memory(network))
        return self._state(network, jax.random.key(0), statistics, blank, None)

    def _state(
        self, network: Network, key: jax.Array, statistics: Tree, examples: Examples, held_out: Examples | None
    ) -> BCState:
        parameters = network.initialize(key)
        like = np.zeros(network.size, np.float32) if self.optimizer is None else parameters
        return BCState(parameters, self._optimizer(network).init(like), statistics, examples, held_out, network)

    def _network(self, spec: Spec) -> Network:
        """The network whose actor is trained: PPO's, critic and all, or SAC's actor alone."""
        config: Any = self.network
        return network_for(config, spec) if self.actor == "ppo" else soft_networks(config, spec).actor

    def _has_memory(self, network: Network) -> bool:
        return network.has_memory if self.actor == "ppo" else hasattr(self.network, "unit")

    @property
    def _acting(self) -> PPO | SAC:
        """The algorithm that acts with such a network, of which only the functions of a policy are called."""
        config: Any = self.network
        return PPO(network=config) if self.actor == "ppo" else SAC(network=config)

    def policy(self, state: BCState) -> PPOPolicy | SACPolicy:
        """The policy of the algorithm whose actor it is."""
        if self.actor == "ppo":
            return PPOPolicy(state.parameters, state.observations, state.network)
        return SACPolicy(state.parameters, state.observations, jnp.int32(0), state.network)

    def initial_memory(self, policy: Tree, n: int) -> Tree:
        """Whatever the actor remembers at the start of an episode."""
        return self._acting.initial_memory(policy, n)

    def noise(self, policy: Tree, key: jax.Array, shape: tuple[int, ...]) -> Tree:
        """Noise for `shape` sampled actions."""
        return self._acting.noise(policy, key, shape)

    def act(self, policy: Tree, memory: Tree, obs: Tree, noise: Tree, mode: Mode) -> tuple[Tree, Tree, Tree]:
        """Act as the other algorithm does."""
        return self._acting.act(policy, memory, obs, noise, mode)

    def distribution(self, policy: Tree, memory: Tree, obs: Tree) -> tuple[Tree, Any]:
        """Return the new memory and the distribution over actions."""
        return self._acting.distribution(policy, memory, obs)

    def update(self, state: BCState, rollout: Rollout, key: jax.Array) -> Update:
        """Epochs of shuffled minibatches of demonstrations; of the rollout it is only seen whether it is sound."""
        steps, _ = without_masks(blank_padding(rollout.steps))
        size = rows_in_minibatch(state.examples, self.minibatch_size)
        counts = state.examples.weight.reshape(len(state.examples.weight), -1).any(axis=1)
        indices = minibatch_indices(key, len(counts), size, self.epochs_per_update, counts)
        start = state.parameters, state.optimizer, jnp.zeros(state.network.size)
        step = partial(self.gradient_step, state)
        (parameters, optimizer, gradient), reports = scan_minibatches(step, start, state.examples, indices)
        metrics = _means(jax.tree.map(lambda x: x.sum(axis=0), reports))  # [minibatches, k] -> [k]
        learnt, before = (parameters, optimizer), (state.parameters, state.optimizer)
        fault = first_fault(
            observation=(steps.obs, steps.next_obs), reward=steps.reward, loss=metrics["policy_loss"],
            gradient=metrics["gradient_norm"], parameter=learnt,
        )  # fmt: skip
        parameters, optimizer = unless_faulty(fault, learnt, before)
        new = replace(state, parameters=parameters, optimizer=optimizer)
        metrics |= {f"held_out_{name}": value for name, value in self._held_out(new).items()}
        metrics["learning_rate"] = jnp.asarray(self.learning_rate)
        return Update(new, metrics, len(indices), fault, gradient)

    def gradient_step(
        self, state: BCState, before: tuple[Leaves, Tree, jax.Array], part: Examples
    ) -> tuple[tuple[Leaves, Tree, jax.Array], MetricVector]:
        """One gradient step on one minibatch; reports sums over the steps that count, and how many they are."""
        parameters, optimizer_state, _ = before
        gradient, sums = jax.grad(self._loss, has_aux=True)(parameters, state, part)
        network = state.network
        gradient = network.ravel(gradient)
        change, optimizer_state = self._optimizer(network).update(gradient, optimizer_state, parameters)
        parameters = tuple(p + d for p, d in zip(parameters, network.unravel(change), strict=True))
        norm = sums["count"] * jnp.sqrt(jnp.sum(jnp.square(gradient)))
        return (parameters, optimizer_state, gradient), sums | MetricVector.stacked({"gradient_norm": norm})

    def _loss(self, parameters: Leaves, state: BCState, part: Examples) -> tuple[jax.Array, MetricVector]:
        """Mean loss over the steps that count."""
        sums = self._sums(parameters, state, part)
        return sums["policy_loss"] / jnp.maximum(sums["count"], 1.0), sums

    def _sums(self, parameters: Leaves, state: BCState, part: Examples) -> MetricVector:
        """Sums over the steps that count, and how many they are."""
        space = state.network.spec.action_space
        part = part._replace(obs=normalize(state.observations, part.obs))
        if part.ended is not None:
            part = jax.tree.map(lambda x: x.swapaxes(0, 1), part)  # [N, L] -> [L, N]
        chosen = self._distribution(state.network.merge(parameters), state.network, part)
        chosen = floored(chosen, self.min_deviation)
        real = squared_error(space, chosen, part.action)
        terms = {"nll": -log_likelihood(chosen, part.action)}
        terms["policy_loss"] = self._minimised(space, chosen, part, terms["nll"], real)
        if (right := agreement(space, chosen, part.action)) is not None:
            terms["accuracy"] = right
        if real is not None:
            terms["action_error"] = real
        sums = {name: jnp.sum(jnp.where(part.weight > 0, term, 0.0)) for name, term in terms.items()}
        return MetricVector.stacked({**sums, "count": part.weight.sum()})

    def _minimised(self, space: Any, chosen: Any, part: Examples, nll: jax.Array, real: jax.Array | None) -> jax.Array:
        if self.loss == "nll" or real is None:
            return nll
        return real - log_likelihood(chosen, part.action, space)

    def _distribution(self, module: Any, network: Network, part: Examples) -> Any:
        """Return the distributions at all steps, time-major with a memory, which is blank at every row's first."""
        if self.actor == "sac":
            return module(part.obs if part.ended is None else Past(None, part.obs, None, part.ended))
        if part.ended is None:
            features = module.remember((), part.obs)[1]
        else:
            memory = memory_of(module, "actor").initial_memory(part.ended.shape[1])
            features = span(module, "actor", memory, part.obs, None, part.ended, len(part.ended)).features
        return restricted(network.spec.action_space, module.actor(features), part.mask)

    def _held_out(self, state: BCState) -> dict[str, jax.Array]:
        """Return the figures of what is held out; none if nothing is."""
        if state.held_out is None:
            return {}
        size = rows_in_minibatch(state.held_out, self.minibatch_size)
        indices = jnp.arange(len(state.held_out.weight)).reshape(-1, size)
        _, sums = scan_minibatches(
            lambda carry, part: (carry, self._sums(state.parameters, state, part)), (), state.held_out, indices
        )
        means = _means(jax.tree.map(lambda x: x.sum(axis=0), sums))
        return {name: means[name] for name in FIGURES if name in means}

    def _optimizer(self, network: Network) -> Optimizer:
        """Over one vector of all parameters."""
        own = None if self.optimizer is None else over_vector(self.optimizer, network)
        return Optimizer(self.learning_rate, own, max_norm=self.max_grad_norm)

    def for_acting(self) -> "BC":
        """Return it without the user's optimiser."""
        return without_optimizer(self)

    def with_policy(self, state: BCState, policy: PPOPolicy | SACPolicy) -> BCState:
        """Take over the parameters that the actor uses, and the statistics of observations."""
        if self.actor == "sac":
            return replace(state, parameters=policy.parameters, observations=policy.observations)
        parameters = state.network.exchanged(state.parameters, policy.parameters, "actor")
        return replace(state, parameters=parameters, observations=policy.observations)

    def diagnostics(self, old: BCState, new: BCState, gradient: jax.Array, rollout: Rollout) -> MetricVector:
        """Norms by layer, and histograms of the gradient and of the actions that the policy took."""
        learnt = Learnt(new.network.names, new.network.owners, old.parameters, new.parameters, gradient, new.optimizer)
        return update_diagnostics(learnt, new.network.spec, rollout.steps)


def _means(sums: MetricVector) -> dict[str, jax.Array]:
    """Return the mean of each figure over the steps that count."""
    totals = sums.scalars()
    count = jnp.maximum(totals.pop("count"), 1.0)
    return {name: total / count for name, total in totals.items()}
