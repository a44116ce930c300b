"""An algorithm that learns from a reward which is itself learnt: an algorithm around an algorithm.

The environment's own reward is taken out of each rollout, and that of a model put in its place, before the algorithm
inside sees it; every so many iterations the model is fitted (`PreferenceReward`, `RegressionReward`,
`DemonstrationReward`). Model, optimiser and data are part of the learner's state. The true reward is kept for figures,
and for a synthetic labeller. Acting, policy and critic are those of the algorithm inside.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.base import Algorithm, Update, check_algorithm
from ludus.algorithms.finite_checks import checked, first_fault, unless_faulty
from ludus.algorithms.hyperparameters import part
from ludus.algorithms.minibatch import blank_padding
from ludus.algorithms.normalize import update_statistics
from ludus.algorithms.observations import check_observation_space, without_masks
from ludus.algorithms.ppo import PPO
from ludus.algorithms.preference_reward import PreferenceReward
from ludus.algorithms.reward_alarm import signs
from ludus.algorithms.reward_source import Fitted, Lesson, RewardSource
from ludus.algorithms.segments import Pool, draw_segments, put_in
from ludus.networks.action_scaling import check_action_space
from ludus.networks.reward_network import Judged
from ludus.runtime.packing import MetricVector, choose_rows
from ludus.types import Array, LudusError, Mode, Rollout, Spec, Transition, Tree

METRICS = {
    "learned_return": "mean return by the learned reward of the episodes that ended in this iteration, as they were "
    "paid; absent if none did",
    "true_return": "mean return by the environment's own reward of the same episodes",
    "reward_loss": "mean loss of the latest fit of the reward model, in rows where there was one",
    "reward_accuracy": "share of held-out preferences with a winner that the reward model puts the same way round; "
    "from demonstrations, mean share of steps told right, of those held out and of new ones of the policy",
    "reward_calibration_error": "mean distance between predicted probability and observed share of held-out "
    "preferences, over ten bins",
    "reward_temperature": "differences of learned rewards are divided by it to be log-odds of preferences",
    "reward_explained_variance": "1 - Var(return - prediction) / Var(return) of the returns that were held out",
    "reward_disagreement": "mean deviation between the members over the steps of the rollout, in units of the reward",
    "reward_correlation": "correlation of learned and true rewards over the segments of the latest iterations; absent "
    "where the environment pays nothing",
    "reward_trend": "slope of the learned reward over those segments, oldest first, in its standard errors",
    "true_reward_trend": "that of the true reward",
    "reward_alarm": "1 where the learned reward rises while the true one or the agreement with labels falls, else 0",
    "labels": "labels so far",
}
"""Every figure besides those of the algorithm inside, and its formula."""


class Paid(NamedTuple):
    """The sums that running episodes have been paid so far, `[B]`."""

    learned: Any
    true: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LearnedRewardState:
    """Everything that is learnt or remembered between updates."""

    learner: Tree
    """Of the algorithm inside."""
    fitted: Fitted
    data: Tree
    """What the reward is learnt from."""
    pool: Pool
    memory: Tree
    """The reward model's, at the next rollout's first step."""
    paid: Paid
    number: Array
    """Iterations so far."""


class Appraisal(NamedTuple):
    """The judgement of a rollout by the model."""

    memory: Tree
    reward: jax.Array
    disagreement: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LearnedReward(Algorithm):
    """An algorithm, and the source of its reward."""

    algorithm: Algorithm = part("the algorithm that learns from the reward", PPO())
    reward: RewardSource = part("the source that the reward is learnt from", PreferenceReward())

    def __post_init__(self) -> None:
        """Look at nothing yet: its parts have checked themselves, and inside JAX they may be anything."""

    def __getattr__(self, name: str) -> Any:
        """Return what the algorithm inside has: its hyperparameters, such as `clip_epsilon`."""
        if name.startswith("__") or "algorithm" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["algorithm"], name)

    @property
    def values_actions(self) -> bool:  # ty: ignore[incompatible-property-override]
        """Whether its critic judges an observation together with an action."""
        return self.algorithm.values_actions

    @property
    def is_on_policy(self) -> bool:  # ty: ignore[incompatible-property-override]
        """Whether it learns from each rollout alone."""
        return self.algorithm.is_on_policy

    def rollout_length(self, num_envs: int) -> int:
        """Return how many steps each environment contributes to one update."""
        return self.algorithm.rollout_length(num_envs)

    def validate(self, spec: Spec) -> None:
        """Refuse parts of another kind and what cannot work, before anything is compiled."""
        check_algorithm(self.algorithm)
        if isinstance(self.algorithm, LearnedReward):
            raise LudusError("algorithm: is a LearnedReward already; give it the algorithm inside")
        if not isinstance(self.reward, RewardSource):
            raise LudusError(f"reward={self.reward!r}: must be one such as ludus.PreferenceReward()")
        if self.algorithm.branching() is not None:
            raise LudusError(
                "algorithm.advantages=monte_carlo: branches are paid the environment's own reward; with a learned "
                "reward it must be gae"
            )
        self.algorithm.validate(spec)
        check_observation_space("reward", spec.observation_space)
        check_action_space("reward", spec.action_space)
        self.reward.validate(spec, self.rollout_length(spec.num_envs))

    def check_devices(self, spec: Spec, count: int) -> None:
        """Ask the algorithm within."""
        self.algorithm.check_devices(spec, count)

    def init(self, key: jax.Array, spec: Spec) -> LearnedRewardState:
        """Build the learner of the algorithm inside, the reward model, and what it learns from."""
        fitted = self.reward.init(jax.random.fold_in(key, 1), spec)
        return LearnedRewardState(
            self.algorithm.init(key, spec),
            fitted,
            self.reward.data(spec),
            self.reward.pool(spec),
            *_beginning(fitted, spec.num_envs),
            jax.device_put(np.int32(0)),
        )

    def blank(self, spec: Spec) -> LearnedRewardState:
        """Return a state of the right shapes."""
        return self.init(jax.random.key(0), spec)

    def update(self, state: LearnedRewardState, rollout: Rollout, key: jax.Array) -> Update:
        """Teach the reward model, pay the rollout by it, and let the algorithm inside learn from that."""
        inner_key, draw_key, learn_key = jax.random.split(key, 3)
        steps = blank_padding(without_masks(rollout.steps)[0])
        new = draw_segments(steps, draw_key, max(1, state.pool.size // 4), self.reward.segment_length)
        pool = put_in(state.pool, *new)
        fitted, data, metrics = self._taught(state, Lesson(pool, new, state.number, rollout.progress), steps, learn_key)
        judged = self._judge(fitted, state.memory, steps, rollout.is_start)
        fault = first_fault(
            observation=(steps.obs, steps.next_obs), reward=steps.reward, parameter=(fitted, data, pool)
        )
        reward = jnp.where(fault == 0, judged.reward, jnp.nan)  # so the algorithm inside keeps its state, too
        paid_rollout = rollout._replace(steps=rollout.steps._replace(reward=reward))
        inner = checked(self.algorithm.update(state.learner, paid_rollout, inner_key), state.learner, paid_rollout)
        paid, returns = _returns(state.paid, steps, judged.reward, rollout.is_start)
        agreement = self.reward.agreement(fitted.model, data)
        said = fitted.model.normalized(fitted.model.of_segments(pool.segments)).mean(axis=(0, 2))
        seen = signs(pool, said, agreement, self.reward.alarm)
        fault = jnp.where(fault > 0, fault, inner.fault)
        own = fitted, data, pool, judged.memory, paid, state.number + 1
        old = state.fitted, state.data, state.pool, state.memory, state.paid, state.number
        made = LearnedRewardState(inner.state, *unless_faulty(fault, own, old))
        figures = {
            **inner.metrics,
            **metrics,
            **returns,
            "reward_disagreement": judged.disagreement,
            "reward_correlation": seen.correlation,
            "reward_trend": seen.learned_trend,
            "true_reward_trend": seen.true_trend,
            "reward_alarm": seen.is_alarm.astype(jnp.float32),
        }
        return Update(made, figures, inner.updates, fault, inner.gradient)

    def _taught(
        self, state: LearnedRewardState, lesson: Lesson, steps: Transition, key: jax.Array
    ) -> tuple[Fitted, Tree, dict[str, jax.Array]]:
        """Return model and data after this iteration's lesson; a model that was given learns nothing."""
        if self.reward.model is not None:
            return state.fitted, state.data, {}
        model = state.fitted.model
        statistics = update_statistics(model.observations, steps.obs, steps.valid)
        seeing = state.fitted._replace(model=replace(model, observations=statistics))
        learnt = self.reward.learn(seeing, state.data, lesson, key)
        # What it is normalised by changes with the model alone, so that between fits a reward stays what it is.
        fitted = jax.tree.map(lambda new, old: jnp.where(learnt.is_new, new, old), learnt.fitted, state.fitted)
        return fitted, learnt.data, learnt.metrics

    def _judge(self, fitted: Fitted, memory: Tree, steps: Transition, is_start: Array) -> Appraisal:
        """Return rewards `[T, B]`: the members' mean, less a penalty where they disagree."""
        model, shown = fitted.model, Judged(steps.obs, steps.action, steps.next_obs)
        blank = model.initial_memory(steps.reward.shape[1])
        memory = jax.tree.map(lambda a, b: jnp.where(is_start, a, b), blank, memory)
        memory, said = model.judge(memory, shown, steps.terminated | steps.truncated)
        said = jax.lax.stop_gradient(model.normalized(said))
        apart, valid = said.std(axis=0), steps.valid
        reward = said.mean(axis=0) - self.reward.disagreement_coef * apart
        reward = reward if valid is None else jnp.where(valid, reward, 0.0)
        mean = apart.mean() if valid is None else jnp.where(valid, apart, 0.0).sum() / jnp.maximum(valid.sum(), 1)
        return Appraisal(memory, reward, mean)

    def policy(self, state: LearnedRewardState) -> Tree:
        """Return the policy of the algorithm inside."""
        return self.algorithm.policy(state.learner)

    def critic(self, state: LearnedRewardState) -> Tree | None:
        """Return its critic, which values states by the learned reward."""
        return self.algorithm.critic(state.learner)

    def initial_memory(self, policy: Tree, n: int) -> Tree:
        """Return the memory of its policy or critic."""
        return self.algorithm.initial_memory(policy, n)

    def noise(self, policy: Tree, key: jax.Array, shape: tuple[int, ...]) -> Tree:
        """Draw what its exploration needs."""
        return self.algorithm.noise(policy, key, shape)

    def act(self, policy: Tree, memory: Tree, obs: Tree, noise: Tree, mode: Mode) -> tuple[Tree, Tree, Tree]:
        """Act as it does."""
        return self.algorithm.act(policy, memory, obs, noise, mode)

    def value(self, critic: Tree, memory: Tree, obs: Tree, action: Tree = None) -> tuple[Tree, jax.Array]:
        """Value as it does, in units of the learned reward."""
        return self.algorithm.value(critic, memory, obs, action)

    def distribution(self, policy: Tree, memory: Tree, obs: Tree) -> tuple[Tree, Any]:
        """Return the distribution that its actions are drawn from."""
        return self.algorithm.distribution(policy, memory, obs)

    def discount(self) -> None:
        """Return none: its values are of other returns than the environment's."""

    def for_acting(self) -> Algorithm:
        """Return the algorithm inside as a saved policy describes it: acting needs no reward."""
        return self.algorithm.for_acting()

    def critic_memory(self, state: LearnedRewardState, memory: Tree) -> Tree:
        """Return its critic's memory before the next step."""
        return self.algorithm.critic_memory(state.learner, memory)

    def begin_with(self, state: LearnedRewardState, policy: Tree) -> LearnedRewardState:
        """Return a fresh state that begins with a policy that was learnt before."""
        return replace(state, learner=self.algorithm.begin_with(state.learner, policy))

    def with_policy(self, state: LearnedRewardState, policy: Tree) -> LearnedRewardState:
        """Return the state with another policy in it."""
        return replace(state, learner=self.algorithm.with_policy(state.learner, policy))

    def with_critic(self, state: LearnedRewardState, critic: Tree) -> LearnedRewardState:
        """Return the state with another critic in it."""
        return replace(state, learner=self.algorithm.with_critic(state.learner, critic))

    def with_envs(self, state: LearnedRewardState, num_envs: int) -> LearnedRewardState:
        """For another number of environments, what is remembered of running episodes begins anew."""
        learner = self.algorithm.with_envs(state.learner, num_envs)
        if len(state.paid.true) == num_envs:
            return replace(state, learner=learner)
        memory, paid = _beginning(state.fitted, num_envs)
        return replace(state, learner=learner, memory=memory, paid=paid)

    def diagnostics(self, old: Tree, new: Tree, gradient: Tree, rollout: Rollout) -> MetricVector | None:
        """Return how its update went."""
        return self.algorithm.diagnostics(old.learner, new.learner, gradient, rollout)

    def work(self, spec: Spec, total_steps: int | None) -> float:
        """Return roughly how much its learning takes; the reward model's is of the same kind."""
        return self.algorithm.work(spec, total_steps)


def _beginning(fitted: Fitted, num_envs: int) -> tuple[Tree, Paid]:
    """Return the reward model's memory and what was paid at the start of all episodes."""
    start = jax.eval_shape(lambda: fitted.model.initial_memory(num_envs))
    memory = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), start)
    return jax.device_put((memory, Paid(*(np.zeros(num_envs, np.float32) for _ in range(2)))))


def _returns(paid: Paid, steps: Transition, reward: jax.Array, is_start: Array) -> tuple[Paid, dict[str, jax.Array]]:
    """Return what running episodes were paid, and the mean returns of those that ended in a rollout; NaN for none."""
    ended, counts = steps.terminated | steps.truncated, jnp.ones_like(steps.terminated)
    counts = counts if steps.valid is None else steps.valid
    start = jax.tree.map(lambda x: jnp.where(is_start, 0.0, x), paid)

    def step(sums: Paid, row: tuple[jax.Array, ...]) -> tuple[Paid, Paid]:
        learned, true, over, is_real = row
        sums = Paid(*(a + jnp.where(is_real, b, 0.0) for a, b in zip(sums, (learned, true), strict=True)))
        return choose_rows(over & is_real, jax.tree.map(jnp.zeros_like, sums), sums), sums

    last, sums = jax.lax.scan(step, start, (reward, steps.reward, ended, counts))
    is_whole = ended & counts
    number = is_whole.sum()
    means = [jnp.where(is_whole, x, 0.0).sum() / number for x in sums]
    return last, dict(zip(("learned_return", "true_return"), means, strict=True))
