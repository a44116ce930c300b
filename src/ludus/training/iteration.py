"""One iteration, the whole of training: collect, then update. Written once for both kinds of environment."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.diagnostics import is_due, when
from ludus.algorithms.finite_checks import FAULTS, MASK, checked
from ludus.algorithms.hyperparameters import at, scheduled, value_of
from ludus.envs.base import AnyEnv
from ludus.rollout.runner import runner
from ludus.runtime import counters as counting
from ludus.runtime.compilation import Options
from ludus.runtime.counters import Counters
from ludus.runtime.rng import folded
from ludus.training import cohorts
from ludus.training import curriculum as curricula
from ludus.training.cohorts import Cohorts
from ludus.training.curriculum import Curriculum
from ludus.training.distributed.mesh import ONE, Devices
from ludus.types import Array, Counted, Course, EpisodeStats, LudusError, Rollout, Tree, Valuation, Watch


class Plan(NamedTuple):
    """The settings that are compiled into an iteration."""

    env: AnyEnv
    num_steps: int
    threshold: int
    """From how many steps on no other episode begins, where rollouts hold whole ones; 0 where they do not."""
    options: Options
    record_episodes: bool = False
    """Whether rows hold the return and length of every single episode."""
    counts_episodes: bool = False
    """Whether a number of episodes ends the run: the last rollout is cut where it is reached."""
    devices: Devices = ONE
    """Those that it is spread over."""
    watch: Watch | None = None
    """Told of every step of a rollout that runs in Python; never compiled in."""


class Context(NamedTuple):
    """The values that the iterations of one call to `train` share: traced values, so none of them is compiled in."""

    algorithm: Algorithm
    keys: Tree
    limits: Counters
    success_return: Array
    """From which return on an episode counts as a success; NaN if none does."""
    health_frequency: Array = None
    """Iterations between rows with figures of health; None compiles none."""
    curriculum: Curriculum = {}  # noqa: RUF012  a NamedTuple's default; never written to
    """What leads the environment's parameters."""
    scenarios: Tree = ()
    """Those of a stored set that are on the device."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The whole of training: what a checkpoint must hold for a run to go on as if nothing had happened."""

    learner: Tree
    carry: Tree
    iteration: Array
    counters: Counters
    cohorts: Cohorts
    curriculum: curricula.State = field(default_factory=dict)


UNCOUNTED = ("cut", "info", "returns", "lengths", "told", "seconds")
"""Parts of a rollout's statistics that the update has no use for."""


def learn(
    context: Context,
    learner: Tree,
    counters: Counters,
    number: Array,
    rollout: Rollout,
    stats: EpisodeStats,
    key: jax.Array,
) -> tuple[Tree, Counters, dict[str, Any]]:
    """Update from one rollout and count it, unless it was faulty; `halt` is set when the run is over."""
    limits = context.limits
    rollout = rollout._replace(progress=_progress(counters, limits))
    algorithm = at(context.algorithm, rollout.progress)
    update = checked(algorithm.update(learner, rollout, key), learner, rollout)
    names = scheduled(context.algorithm)
    extra: dict[str, Any] = {f"hyperparameter/{name}": value_of(algorithm, name) for name in names}
    if context.health_frequency is not None:
        figures = partial(algorithm.diagnostics, learner, update.state, update.gradient, rollout)
        extra["health"] = when(is_due(number + 1, context.health_frequency), figures)
    is_stuck = (update.fault != 0) & (stats.stuck >= 0)
    fault = jnp.where(is_stuck, FAULTS.index(MASK), update.fault)
    healthy = fault == 0
    after: Any = Counters(counting.add(counters.steps, stats.steps), counting.add(counters.episodes, stats.episodes))
    after = jax.tree.map(lambda new, old: jnp.where(healthy, new, old), after, counters)
    over = counting.reached(after.steps, limits.steps) | counting.reached(after.episodes, limits.episodes)
    counts = {name: x for name, x in stats._asdict().items() if name not in UNCOUNTED}
    row = {**counts, **update.metrics, **extra, "updates": update.updates, "fault": fault}
    row["reward_mean"] = _mean(rollout.steps.reward, rollout.steps.valid)
    return update.state, after, {**row, "halt": (over | ~healthy).astype(jnp.int32)}


def episodes_left(counts_episodes: bool, context: Context, state: TrainState) -> jax.Array | None:
    """Return after how many more episodes the run is over; None if no number of episodes ends it."""
    return counting.left(state.counters.episodes, context.limits.episodes) if counts_episodes else None


def course(context: Context, state: TrainState) -> Course:
    """Return what the starts of the next rollout are drawn by."""
    if not context.curriculum:
        return Course(data=context.scenarios)
    progress = _progress(state.counters, context.limits)
    return Course(curricula.values(context.curriculum, state.curriculum, progress), context.scenarios)


def valuation_of(algorithm: Algorithm, state: TrainState) -> Valuation | None:
    """Return how the states of the next rollout are to be valued by branches; None if they are not."""
    branching = algorithm.branching()
    if branching is None:
        return None
    memory = algorithm.critic_memory(state.learner, state.carry.memory)
    return Valuation(branching, algorithm.critic(state.learner), memory)


def iteration(plan: Plan, context: Context, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
    """Collect, then update: the whole of training, written once for both kinds of environment."""
    keys = folded(context.keys, state.iteration)
    algorithm, policy = _scheduled(context, state.counters), context.algorithm.policy(state.learner)
    left, drawn_by = episodes_left(plan.counts_episodes, context, state), course(context, state)
    valuation = valuation_of(algorithm, state)
    carry, rollout, stats = runner(plan.env).collect(
        algorithm, plan.env, policy, state.carry, keys["rollout"], plan.num_steps, plan.threshold, left,
        course=drawn_by, watch=plan.watch, valuation=valuation,
    )  # fmt: skip
    carry, rollout = plan.devices.place_rollout(carry, rollout)
    update = runner(plan.env).compile_update(learn, plan.options, ("learner",))
    # On the host, names in `info` come and go: they may not be part of what is compiled.
    counted = stats._replace(**dict.fromkeys(UNCOUNTED, ()))
    with plan.devices.in_use():
        learner, counters, row = update(
            context, state.learner, state.counters, state.iteration, rollout, counted, keys["update"]
        )
    running = np.zeros(plan.env.num_envs, np.int32) if plan.threshold else carry.env.episode_length
    steps, counted = rollout.steps, stats._replace(info=(), seconds=())
    ended = counted, steps.terminated, steps.valid, running, context.success_return
    before = (state.carry, state.curriculum), state.iteration, state.cohorts
    led = carry, curricula.after(context.curriculum, state.curriculum, stats)
    ((carry, stages), number, waiting), counted = _go_on(row["fault"] == 0, led, before, *ended)
    row |= {
        **counted._asdict(),
        "successes": (stats.returns >= context.success_return).sum(dtype=np.int32),
        **stats.info,
        **{f"curriculum/{name}": value for name, value in drawn_by.parameters.items()},
        **dict(stats.seconds),
    }
    if plan.threshold:
        row["episodes_cut"] = stats.cut
    if plan.record_episodes:
        row |= {"episode_returns": stats.returns.ravel(), "episode_lengths": stats.lengths.ravel()}
    return plan.devices.place(TrainState(learner, carry, number, counters, waiting, stages)), row


def _mean(reward: jax.Array, valid: jax.Array | None) -> jax.Array:
    return reward.mean() if valid is None else jnp.where(valid, reward, 0.0).sum() / jnp.maximum(valid.sum(), 1)


@jax.jit
def _go_on(
    healthy: jax.Array, carry: Tree, before: tuple[Tree, Array, Cohorts], *ended: Tree
) -> tuple[tuple[Tree, Array, Cohorts], Counted]:
    """Return where the environments are after an iteration, its number, the episodes that wait, and those that count.

    If the iteration was faulty, it has not happened, and all is as `before`.
    """
    waiting, counted = cohorts.count(before[2], *ended)
    after = carry, before[1] + 1, waiting
    return jax.tree.map(lambda a, b: jnp.where(healthy, a, b), after, before), counted


def _progress(counters: Counters, limits: Counters) -> jax.Array:
    """Return the share of the budget that is spent, in [0, 1]."""
    progress = jnp.maximum(
        counting.share(counters.steps, limits.steps), counting.share(counters.episodes, limits.episodes)
    )
    return jnp.minimum(progress, 1.0)


def _scheduled(context: Context, counters: Counters) -> Algorithm:
    """Return the algorithm as its schedules make it for this iteration."""
    return _at(context, counters) if scheduled(context.algorithm) else context.algorithm


@jax.jit
def _at(context: Context, counters: Counters) -> Algorithm:
    return at(context.algorithm, _progress(counters, context.limits))


def handed_over(algorithm: Algorithm, state: Tree, other: Tree, num_envs: int) -> Tree:
    """Return `state` with what `other` has learnt, maybe in another number of environments."""
    if type(other) is type(state):
        other = algorithm.with_envs(other, num_envs)
    return grafted(state, other)


def grafted(state: Tree, other: Tree) -> Tree:
    """Return `state` with the numbers of `other`, which must be of the same shapes; LudusError if it is not."""
    ours, theirs = (jax.tree.leaves(tree) for tree in (state, other))
    if [(x.shape, x.dtype) for x in ours] != [(x.shape, x.dtype) for x in theirs]:
        raise LudusError("learner: was made by another algorithm or network, or for other spaces or num_envs")
    return jax.tree.unflatten(jax.tree.structure(state), copied(theirs))


@jax.jit
def copied(tree: Tree) -> Tree:
    """Copy every array, in one call."""
    return jax.tree.map(jnp.copy, tree)
