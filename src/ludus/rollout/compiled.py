"""Rollouts of JAX environments: one `lax.scan`, and no array leaves the device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.batch import BatchState, EpisodeSoFar, JaxEnv
from ludus.rollout.acting import Actor
from ludus.rollout.branch_values import branch_values, critic_memory_at, passed
from ludus.rollout.monte_carlo import Origin, Valuing
from ludus.rollout.valid import cut_short, within
from ludus.runtime import placement
from ludus.runtime.compilation import Options, compiler_options, jit
from ludus.runtime.packing import choose_rows
from ludus.runtime.rng import spread
from ludus.spaces import allows_any
from ludus.types import (
    IS_SUCCESS,
    Array,
    Course,
    EpisodeStats,
    Rollout,
    RolloutKeys,
    Transition,
    Tree,
    Valuation,
    Watch,
    split_mask,
)

NO_COURSE = Course()


class Carry(NamedTuple):
    """The state that goes on from rollout to rollout: the environments and the policy's memory."""

    env: BatchState
    memory: Tree
    starts: Tree = ()
    """What the drawing of scenarios remembers."""


def begin(algorithm: Actor, env: JaxEnv, policy: Tree, key: jax.Array, course: Course = NO_COURSE) -> Carry:
    """Start every environment from its own key."""
    state = env.reset(placement.split(spread(key, (env.num_envs,))), env.chances(course))
    return Carry(state, algorithm.initial_memory(policy, env.num_envs), course.starts)


def collect(  # noqa: PLR0913  each part of a rollout is given by itself
    algorithm: Valuing,
    env: JaxEnv,
    policy: Tree,
    carry: Carry,
    keys: RolloutKeys,
    num_steps: int,
    threshold: int = 0,
    episodes_left: Array | None = None,
    *,
    course: Course = NO_COURSE,
    watch: Watch | None = None,
    valuation: Valuation | None = None,
) -> tuple[Carry, Rollout, EpisodeStats]:
    """Run `num_steps` steps in every environment; nobody can watch them, they are part of a compiled program.

    With a `threshold`, every environment starts afresh and contributes whole episodes, one after the other, until
    they have so many steps (1: a single episode); `num_steps` is the room there is for them, and an episode that has
    not ended there is cut. With `episodes_left`, the rollout is over at the end of the last of so many episodes, and
    the environments stay where they are by then. `valid` is False on rows after that. With a `valuation`, `extras`
    hold what branches say of each state.
    """
    policy, course = placement.whole(policy), course._replace(starts=carry.starts)
    carry = begin(algorithm, env, policy, keys.begin, course) if threshold else carry
    carry, chances = carry._replace(starts=()), env.chances(course)  # the same for the whole rollout
    start = algorithm.initial_memory(policy, env.num_envs)
    critic_start = critic_memory_at(algorithm, valuation, True, env.num_envs)
    critic_memory = critic_memory_at(algorithm, valuation, bool(threshold), env.num_envs)
    is_partial = bool(threshold) or episodes_left is not None

    def step(state: tuple[Carry, Any, Any, Tree], inputs: Tree) -> tuple[Any, Any]:
        carry, active, left, critic_memory = state
        draw, noise, t = inputs
        memory, action, extras = algorithm.act(policy, carry.memory, carry.env.obs, noise, "explore")
        after, outcome = env.step(carry.env, action, draw, chances)
        ended, through = outcome.terminated | outcome.truncated, ()
        if valuation is not None:
            origin = Origin(carry.env, carry.memory, critic_memory)
            seen, through = passed(algorithm, policy, valuation.critic, origin, memory, outcome.obs)
            critic_memory = choose_rows(ended, critic_start, seen)
        after = Carry(after, choose_rows(ended, start, memory))
        valid = active if left is None else within(active, ended, left)
        transition = Transition(
            carry.env.obs, action, outcome.reward, outcome.terminated, outcome.truncated, outcome.obs, extras, valid
        )
        if left is not None:
            left = left - (valid & ended).sum(dtype=jnp.int32)
            after = after if threshold else choose_rows(active, after, carry)
            active = active & (left > 0)
        if threshold:
            active = active & ~(ended & (t + 1 >= threshold))
        return (after, active, left, critic_memory), (transition, outcome.info, through)

    noise = algorithm.noise(policy, keys.noise, (num_steps, env.num_envs))
    inputs = env.draw(keys.step, keys.start, num_steps, chances), noise, jnp.arange(num_steps)
    inputs = *placement.split(inputs[:2], axis=1), inputs[2]
    active = jnp.ones(env.num_envs, bool) if is_partial else None
    begun = carry, active, episodes_left, critic_memory
    (after, _, _, critic_memory), (steps, episode, through) = jax.lax.scan(step, begun, inputs)
    if valuation is not None:
        last = Origin(after.env, after.memory, critic_memory)
        values = branch_values(algorithm, env, policy, valuation, through, last, steps, keys.branch)
        steps = steps._replace(extras={**steps.extras, **values})
    stats = episode_stats(steps, episode)._replace(stuck=_first_stuck(env, steps.obs))
    starts, figures = env.settle(course.starts, _ended(steps), episode)
    stats = stats._replace(info={**stats.info, **figures})
    if is_partial:
        steps, cut = cut_short(steps, is_whole=bool(threshold))
        stats = stats._replace(cut=cut)
    return after._replace(starts=starts), Rollout(steps, carry.memory, is_start=bool(threshold)), stats


def episode_stats(steps: Transition, episode: EpisodeSoFar) -> EpisodeStats:
    """Sum up the episodes that ended, from running totals `[T, B]`."""
    episode_return, episode_length = episode.episode_return, episode.episode_length
    ended = _ended(steps)
    steps_taken = jnp.asarray(ended.size, jnp.int32)
    if steps.valid is not None:
        steps_taken = steps.valid.sum(dtype=jnp.int32)
    counted = jnp.stack([jnp.ones_like(episode_return), episode_return, episode_length.astype(jnp.float32)])
    episodes, return_sum, length_sum = jnp.where(ended, counted, 0.0).sum(axis=(1, 2))
    figures = info_figures(episode)
    return EpisodeStats(
        episodes=episodes.astype(jnp.int32),
        return_sum=return_sum,
        return_min=jnp.where(ended, episode_return, jnp.inf).min(),
        return_max=jnp.where(ended, episode_return, -jnp.inf).max(),
        length_sum=length_sum,
        steps=steps_taken,
        terminations=(ended & steps.terminated).sum(dtype=jnp.int32),
        returns=jnp.where(ended, episode_return, jnp.nan),
        lengths=jnp.where(ended, episode_length, 0),
        told=jnp.where(ended, episode.info_last.get(IS_SUCCESS, jnp.nan), jnp.nan),
        # Not a number if no episode ended, and then not journalled.
        info={name: jnp.where(ended, x, 0.0).sum() / episodes for name, x in figures.items()},
    )


def _ended(steps: Transition) -> jax.Array:
    """Return where an episode ended that counts."""
    ended = steps.terminated | steps.truncated
    return ended if steps.valid is None else ended & steps.valid


def _first_stuck(env: JaxEnv, obs: Tree) -> Any:
    """Return the first row `[T * B]` of observations whose mask forbids every action; -1 if there is none."""
    mask = split_mask(obs)[1]
    if mask is None:
        return jnp.int32(-1)
    is_stuck = ~allows_any(env.action_space, mask).ravel()
    return jnp.where(is_stuck.any(), is_stuck.argmax(), -1).astype(jnp.int32)


def info_figures(episode: EpisodeSoFar) -> dict[str, Any]:
    """Return what episodes came to in each number of their `info`, by its journal name."""
    means = {f"info/{name}/mean": total / episode.episode_length for name, total in episode.info_total.items()}
    return means | {f"info/{name}/last": last for name, last in episode.info_last.items()}


def start(algorithm: Actor, env: JaxEnv, policy: Tree, key: jax.Array, course: Course = NO_COURSE) -> Carry:
    """Run `begin` as a program of its own."""
    return jit(begin, compiler_options(0), static=("env",))(algorithm, env, policy, key, course)


def snapshot(env: JaxEnv) -> dict[str, Any]:
    """Return no arrays: the carry holds all of a JAX environment."""
    return {}


def restore(env: JaxEnv, saved: dict[str, Any], carry: Carry) -> bool:
    """Do nothing: with the carry, the environments are where they were."""
    return True


def whole(collect: Callable) -> Callable:
    """Return a rollout, all of whose settings are given, as a program of its own."""
    return jax.jit(collect)


def compile_update(update: Callable, options: Options, donate: tuple[str, ...]) -> Callable:
    """Return `update` as it is: the loop around it is compiled as a whole."""
    return update
