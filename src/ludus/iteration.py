"""One iteration, the whole of training: collect, then update. Written once for both kinds of environment."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus import cohorts, counting
from ludus.cohorts import Cohorts
from ludus.compilation import Options
from ludus.counting import Counters
from ludus.learning.faults import FAULTS, MASK
from ludus.learning.health import is_due, when
from ludus.rollout import runner
from ludus.seeding import folded
from ludus.types import Counted, EpisodeStats, LudusError, Rollout, Watch


class Plan(NamedTuple):
    """What is compiled into an iteration."""

    env: Any
    num_steps: int
    threshold: int
    """From how many steps on no other episode begins, where rollouts hold whole ones; 0 where they do not."""
    options: Options
    record_episodes: bool = False
    """Whether rows hold the return and length of every single episode."""
    counts_episodes: bool = False
    """Whether a number of episodes ends the run: the last rollout is cut where it is reached."""
    watch: Watch | None = None
    """Told of every step of a rollout that runs in Python; never compiled in."""


class Context(NamedTuple):
    """What the iterations of one call to `train` share: traced values, so none of them is compiled in."""

    algorithm: Any
    keys: Any
    limits: Counters
    success_return: Any
    """From which return on an episode counts as a success; NaN if none does."""
    health_frequency: Any = None
    """Iterations between rows with figures of health; None compiles none."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The whole of training: what a checkpoint must hold for a run to go on as if nothing had happened."""

    learner: Any
    carry: Any
    iteration: Any
    counters: Counters
    cohorts: Cohorts


UNCOUNTED = ("cut", "info", "returns", "lengths", "told", "seconds")
"""Parts of a rollout's statistics that the update has no use for."""


def learn(
    context: Context,
    learner: Any,
    counters: Counters,
    number: Any,
    rollout: Rollout,
    stats: EpisodeStats,
    key: jax.Array,
) -> tuple[Any, Counters, dict[str, jax.Array]]:
    """Update from one rollout and count it, unless it was faulty; `halt` is set when the run is over."""
    limits = context.limits
    progress = jnp.maximum(
        counting.share(counters.steps, limits.steps), counting.share(counters.episodes, limits.episodes)
    )
    rollout = rollout._replace(progress=jnp.minimum(progress, 1.0))
    before = learner
    learner, metrics = context.algorithm.update(before, rollout, key)
    gradient = metrics.pop("gradient")
    if context.health_frequency is not None:
        figures = partial(context.algorithm.health, before, learner, gradient, rollout)
        metrics["health"] = when(is_due(number + 1, context.health_frequency), figures)
    is_stuck = (metrics["fault"] != 0) & (stats.stuck >= 0)
    metrics["fault"] = jnp.where(is_stuck, FAULTS.index(MASK), metrics["fault"])
    healthy = metrics["fault"] == 0
    after = Counters(counting.add(counters.steps, stats.steps), counting.add(counters.episodes, stats.episodes))
    after = jax.tree.map(lambda new, old: jnp.where(healthy, new, old), after, counters)
    over = counting.reached(after.steps, limits.steps) | counting.reached(after.episodes, limits.episodes)
    counts = {name: x for name, x in stats._asdict().items() if name not in UNCOUNTED}
    row = {**counts, **metrics, "reward_mean": _mean(rollout.steps.reward, rollout.steps.valid)}
    return learner, after, {**row, "halt": (over | ~healthy).astype(jnp.int32)}


def episodes_left(counts_episodes: bool, context: Context, state: TrainState) -> jax.Array | None:
    """Return after how many more episodes the run is over; None if no number of episodes ends it."""
    return counting.left(state.counters.episodes, context.limits.episodes) if counts_episodes else None


def iteration(plan: Plan, context: Context, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
    """Collect, then update: the whole of training, written once for both kinds of environment."""
    keys = folded(context.keys, state.iteration)
    policy = context.algorithm.policy(state.learner)
    left = episodes_left(plan.counts_episodes, context, state)
    carry, rollout, stats = runner(plan.env).collect(
        context.algorithm, plan.env, policy, state.carry, keys["rollout"], plan.num_steps, plan.threshold, left,
        watch=plan.watch,
    )  # fmt: skip
    update = runner(plan.env).compile_update(learn, plan.options, donate=("learner",))
    # On the host, names in `info` come and go: they may not be part of what is compiled.
    counted = stats._replace(**dict.fromkeys(UNCOUNTED, ()))
    learner, counters, row = update(
        context, state.learner, state.counters, state.iteration, rollout, counted, keys["update"]
    )
    running = np.zeros(plan.env.num_envs, np.int32) if plan.threshold else carry.env.episode_length
    steps, counted = rollout.steps, stats._replace(info=(), seconds=())
    ended = counted, steps.terminated, steps.valid, running, context.success_return
    before = state.carry, state.iteration, state.cohorts
    (carry, number, waiting), counted = _go_on(row["fault"] == 0, carry, before, *ended)
    row |= {
        **counted._asdict(),
        "successes": (stats.returns >= context.success_return).sum(dtype=np.int32),
        **stats.info,
        **dict(stats.seconds),
    }
    if plan.threshold:
        row["episodes_cut"] = stats.cut
    if plan.record_episodes:
        row |= {"episode_returns": stats.returns.ravel(), "episode_lengths": stats.lengths.ravel()}
    return TrainState(learner, carry, number, counters, waiting), row


def _mean(reward: jax.Array, valid: jax.Array | None) -> jax.Array:
    return reward.mean() if valid is None else jnp.where(valid, reward, 0.0).sum() / jnp.maximum(valid.sum(), 1)


@jax.jit
def _go_on(
    healthy: jax.Array, carry: Any, before: tuple[Any, Any, Cohorts], *ended: Any
) -> tuple[tuple[Any, Any, Cohorts], Counted]:
    """Where the environments are after an iteration, its number, and which episodes wait; and those that count.

    If the iteration was faulty, it has not happened, and all is as `before`.
    """
    waiting, counted = cohorts.count(before[2], *ended)
    after = carry, before[1] + 1, waiting
    return jax.tree.map(lambda a, b: jnp.where(healthy, a, b), after, before), counted


def handed_over(algorithm: Any, state: Any, other: Any, num_envs: int) -> Any:
    """Return `state` with what `other` has learnt, maybe in another number of environments."""
    if hasattr(algorithm, "moved") and type(other) is type(state):
        other = algorithm.moved(other, num_envs)
    return grafted(state, other)


def grafted(state: Any, other: Any) -> Any:
    """Return `state` with the numbers of `other`, which must be of the same shapes; LudusError if it is not."""
    ours, theirs = (jax.tree.leaves(tree) for tree in (state, other))
    if [(x.shape, x.dtype) for x in ours] != [(x.shape, x.dtype) for x in theirs]:
        raise LudusError("learner: was made by another algorithm or network, or for other spaces or num_envs")
    return jax.tree.unflatten(jax.tree.structure(state), copied(theirs))


@jax.jit
def copied(tree: Any) -> Any:
    """Copy every array, in one call."""
    return jax.tree.map(jnp.copy, tree)
