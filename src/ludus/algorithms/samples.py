"""PPO's samples: rewards, values, advantages and targets along a rollout, and the rows that minibatches are made of.

Without a memory every transition is a row. With one, a row is a segment of consecutive steps and the memory before the
first of them, so that slopes can be carried back through the segment.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ludus.algorithms.advantages import discounted_returns, generalized_advantages
from ludus.algorithms.normalize import (
    CLIP,
    RunningStatistics,
    location_and_scale,
    measure,
    normalize,
    standard_deviation,
    update_statistics,
)
from ludus.algorithms.ppo_state import PPOState
from ludus.networks.actor_critic import ActorCritic
from ludus.networks.distributions import Distribution
from ludus.networks.layers import Part
from ludus.networks.recurrence import memory_of, span
from ludus.runtime import placement
from ludus.types import Array, Rollout, Transition, Tree


class Memories(NamedTuple):
    """The memories at the first step of every segment `[S, B, ...]`; the critic's are `()` if it shares the actor's."""

    actor: Tree = ()
    critic: Tree = ()


class Values(NamedTuple):
    """The critic's values along a rollout, in its own units."""

    values: jax.Array
    """Of each step's observation, and of its true successor: `[2, T, B]`."""
    memories: Memories
    critic_memory: Tree
    """The critic's own memory after the last step."""


class Estimates(NamedTuple):
    """Value and target are in the critic's units, advantages in those of the (scaled) reward."""

    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    returns: RunningStatistics | None
    """The statistics of targets, this rollout included."""
    memories: Memories
    critic_memory: Tree
    """After the last step."""
    reference: Distribution | None = None
    """What the policy is kept near to; None without a penalty on the divergence from it."""


class Samples(NamedTuple):
    """One row for each transition `[N, ...]`; with memory, one row for each segment of steps `[N, L, ...]`."""

    obs: Tree
    mask: jax.Array | None
    action: Tree
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    ended: jax.Array | None = None
    memories: Memories = Memories()
    weight: Array = None
    """None where all rows weigh the same."""
    reference: Distribution | None = None

    @property
    def segment_length(self) -> int:
        """Steps in each row."""
        return 1 if self.ended is None else self.ended.shape[1]


def scaled_rewards(
    state: PPOState, steps: Transition, gamma: Array
) -> tuple[jax.Array, RunningStatistics | None, jax.Array]:
    """Details 30 and 31: divide by the deviation of the running discounted return, this rollout included; clip.

    Returns the rewards, their statistics, and the sums that the next rollout goes on with.
    """
    if state.rewards is None:
        return steps.reward, None, state.discounted
    ended = steps.terminated | steps.truncated
    totals = discounted_returns(steps.reward, ended, state.discounted, gamma)
    rewards = update_statistics(state.rewards, totals, steps.valid)
    reward = jnp.clip(steps.reward / standard_deviation(rewards), -CLIP, CLIP)
    return reward, rewards, jnp.where(ended[-1], 0.0, totals[-1])


def values_along(state: PPOState, steps: Transition, rollout: Rollout, every: int) -> Values:
    """Values of states and of their true successors in one pass, and the memories before every `every`-th step.

    Each device values its own environments.
    """
    share = partial(_values_of_share, rollout.is_start, every)
    memories = Memories(1, () if state.network.shares_memory else 1)
    out: Any = Values(2, memories, () if state.network.shares_memory else 0)  # ty: ignore[invalid-argument-type]
    remembered = rollout.memory, state.critic_memory
    return placement.each(share, None, 1, 0, out=out)(replace(state, critic_memory=()), steps, remembered)


def _values_of_share(
    is_start: Array, every: int, state: PPOState, steps: Transition, remembered: tuple[Tree, Tree]
) -> Values:
    rollout = Rollout(steps, remembered[0], is_start=is_start)
    state = replace(state, critic_memory=remembered[1])
    network, module = state.network, state.network.merge(state.parameters)
    ended = steps.terminated | steps.truncated
    obs, next_obs = normalize(state.observations, steps.obs), normalize(state.observations, steps.next_obs)
    memory = rollout.memory if network.shares_memory else _critic_memory(state, module, rollout)
    judged = span(module, "critic", memory, obs, next_obs, ended, every)
    values = module.critic(jax.tree.map(lambda *x: jnp.stack(x), judged.features, judged.next_features))
    before, after = (jax.tree.map(lambda x, part=part: x[part], judged.memories) for part in (slice(-1), -1))
    if network.shares_memory:
        return Values(values, Memories(before, ()), ())
    if every == len(ended):
        acted = jax.tree.map(lambda x: x[None], rollout.memory)
    else:
        acted = span(module, "actor", rollout.memory, obs, None, ended, every).memories
        acted = jax.tree.map(lambda x: x[:-1], acted)
    return Values(values, Memories(acted, before), after)


def _critic_memory(state: PPOState, module: ActorCritic, rollout: Rollout) -> Tree:
    """Return the critic's own memory at the first step: that of before, unless all episodes begin there."""
    start = memory_of(module, "critic").initial_memory(rollout.steps.reward.shape[1])
    return jax.tree.map(lambda a, b: jnp.where(rollout.is_start, a, b), start, state.critic_memory)


def estimates_along(
    state: PPOState, steps: Transition, rollout: Rollout, every: int, gamma: Array, gae_lambda: Array
) -> Estimates:
    """Values of states and of their true successors, then advantages and targets `[T, B]`."""
    along = values_along(state, steps, rollout, every)
    mean, scale = location_and_scale(state.returns)
    value, next_value = mean + scale * along.values
    advantage = generalized_advantages(
        steps.reward, value, next_value, steps.terminated, steps.truncated, gamma, gae_lambda
    )
    target = advantage + value
    if state.returns is None:
        return Estimates(value, advantage, target, None, along.memories, along.critic_memory)
    returns = update_statistics(state.returns, target, steps.valid)
    mean, scale = location_and_scale(measure(state.returns, returns))
    target = (target - mean) / scale
    return Estimates(along.values[0], advantage, target, returns, along.memories, along.critic_memory)


def samples_of(
    state: PPOState, steps: Transition, mask: jax.Array | None, estimates: Estimates, length: int
) -> Samples:
    """Lay a rollout out in rows that can be shuffled: transitions, or segments of `length` steps with a memory."""
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
        weight=None if steps.valid is None else steps.valid.astype(jnp.float32),
        reference=estimates.reference,
    )
    if not has_memory:
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), by_time)  # [T, B] -> [T * B]
    by_time = _whole_segments(by_time, -len(steps.reward) % length)
    memories = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), estimates.memories)  # [S, B] -> [S * B]
    return jax.tree.map(lambda x: _in_segments(x, length), by_time)._replace(memories=memories)


def _whole_segments(by_time: Samples, missing: int) -> Samples:
    """Add so many steps that weigh nothing, for a rollout that segments do not divide."""
    if not missing:
        return by_time
    weight = jnp.ones_like(by_time.advantage) if by_time.weight is None else by_time.weight
    longer = jax.tree.map(lambda x: jnp.concatenate([x, *[x[-1:]] * missing]), by_time._replace(weight=weight))
    return longer._replace(weight=longer.weight.at[-missing:].set(0.0))


def _in_segments(x: jax.Array, length: int) -> jax.Array:
    """Return `[T, B, ...]` as segments `[S * B, L, ...]`."""
    return x.reshape(-1, length, *x.shape[1:]).swapaxes(1, 2).reshape(-1, length, *x.shape[2:])


def features_of(module: ActorCritic, part: Part, samples: Samples) -> Tree:
    """Return what the actor or the critic sees of samples, after its memory."""
    if samples.ended is None:
        return memory_of(module, part).remember((), samples.obs)[1]
    memory = samples.memories.actor if part == "actor" else samples.memories.critic
    obs, ended = jax.tree.map(lambda x: x.swapaxes(0, 1), (samples.obs, samples.ended))  # [N, L] -> [L, N]
    features = span(module, part, memory, obs, None, ended, len(ended)).features
    return jax.tree.map(lambda x: x.swapaxes(0, 1), features)  # [L, N] -> [N, L]
