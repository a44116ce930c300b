"""Rollouts of host environments: a Python loop into arrays that are moved to the device once."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.base import HostEnv, HostStep
from ludus.envs.host.info_stats import InfoMeans
from ludus.rollout.acting import Actor, act, draw_noise, layout_of
from ludus.rollout.host_branch_values import branch_values
from ludus.rollout.host_carry import HostCarry, HostState, seeds_from
from ludus.rollout.monte_carlo import Valuing
from ludus.rollout.valid import cut_short, within
from ludus.runtime import placement
from ludus.runtime.compilation import Options, compile_clock, jit
from ludus.runtime.packing import choose_rows
from ludus.runtime.summation import add
from ludus.types import Array, Course, EpisodeStats, Rollout, RolloutKeys, Transition, Tree, Valuation, Watch


def begin(algorithm: Actor, env: HostEnv, policy: Tree, key: jax.Array, course: Course | None = None) -> HostCarry:
    """Start every environment from its own seed; nothing else decides how it starts."""
    n, env.needs_restart = env.num_envs, False
    obs = jax.tree.map(np.array, env.reset(seeds_from(key, n)))
    nothing = np.zeros(n, np.float32)
    return HostCarry(HostState(obs, nothing, nothing, np.zeros(n, np.int32)), algorithm.initial_memory(policy, n))


def start(algorithm: Actor, env: HostEnv, policy: Tree, key: jax.Array, course: Course | None = None) -> HostCarry:
    """Run `begin`."""
    return begin(algorithm, env, policy, key)


def snapshot(env: HostEnv) -> dict[str, Any]:
    """Return what it takes, besides the carry, to come back to where the environments are."""
    return env.snapshot()


def restore(env: HostEnv, saved: dict[str, Any], carry: HostCarry) -> bool:
    """Bring the environments to where they were; if they show anything else there, let them start new episodes.

    Returns whether they are where they were: bit by bit the same observations and returns.
    """
    recalled = env.restore(saved)
    shown, gathered = jax.tree.leaves(recalled.obs), recalled.episode_return
    same = [np.array_equal(a, b, equal_nan=True) for a, b in zip(shown, jax.tree.leaves(carry.env.obs), strict=True)]
    if gathered is not None:
        same.append(np.array_equal(gathered, carry.env.episode_return))
    env.needs_restart = bool(recalled.is_lost.any()) or not all(same)
    return not env.needs_restart


def whole(collect: Callable) -> Callable:
    """Return a rollout as it is: it runs in Python."""
    return collect


def compile_update(update: Callable, options: Options, donate: tuple[str, ...]) -> Callable:
    """Return `update` compiled: here it is a program of its own."""
    return jit(update, options, donate=donate)


def collect(  # noqa: PLR0913  each part of a rollout is given by itself
    algorithm: Valuing,
    env: HostEnv,
    policy: Tree,
    carry: HostCarry,
    keys: RolloutKeys,
    num_steps: int,
    threshold: int = 0,
    episodes_left: Array | None = None,
    *,
    course: Course | None = None,
    watch: Watch | None = None,
    valuation: Valuation | None = None,
) -> tuple[HostCarry, Rollout, EpisodeStats]:
    """Run `num_steps` steps in every environment; see `compiled.collect`, whose twin this is.

    `watch` is told of every step, and may give the rollout up by raising `Left`.
    """
    n = env.num_envs
    # A step is acted on one device: all of them would only wait for each other. The update is theirs.
    policy, carry, keys, valuation = placement.on_first((policy, carry, keys, valuation))
    if threshold:
        carry = begin(algorithm, env, policy, keys.begin)
    obs, memory = carry.env.obs, carry.memory
    noise = draw_noise(algorithm, policy, keys.noise, (num_steps, n))
    layout = layout_of(algorithm, policy, memory, obs, noise, "explore")
    rows = np.zeros((num_steps, n, layout.width), np.float32)
    sheet, ended = Sheet(num_steps, carry.env, threshold, episodes_left), np.zeros(n, bool)
    seconds, compiled = {"seconds/act": 0.0, "seconds/environment": 0.0}, compile_clock().total
    with branch_values(algorithm, env, policy, valuation, keys.branch, num_steps, bool(threshold)) as values:
        for t in range(num_steps):
            if watch is not None:
                watch.tell("collecting", t * n, num_steps * n)
            values.before(t, obs, memory, ended)
            began = time.perf_counter()
            memory, packed = act(algorithm, policy, memory, obs, ended, noise, np.int32(t), "explore")
            rows[t] = packed
            action = layout.unpack([rows[t].copy()])[0]  # a copy: the environment may write into it
            chosen = time.perf_counter()
            _write(sheet.steps.obs, t, obs)
            outcome = _restarted(env, obs) if env.needs_restart else env.step(action)
            seconds["seconds/act"] += chosen - began
            seconds["seconds/environment"] += time.perf_counter() - chosen
            values.after(t, memory, outcome)
            ended = sheet.add(t, outcome)
            obs = outcome.obs
            if sheet.is_full:
                break
        values.before(t + 1, obs, memory, ended)
    seconds["seconds/act"] = max(seconds["seconds/act"] - (compile_clock().total - compiled), 0.0)
    if jax.tree.leaves(memory):
        memory = choose_rows(jnp.asarray(ended), algorithm.initial_memory(policy, n), memory)
    action, extras = layout.unpack([rows])
    steps, stats = sheet.finished(action, values.added_to(extras))
    seconds |= values.seconds
    after = HostCarry(sheet.state(obs), memory)
    return (
        after,
        Rollout(jax.device_put(steps), carry.memory, is_start=bool(threshold)),
        stats._replace(seconds=seconds),
    )


class Sheet:
    """The record of a rollout, row by row; rows that it does not come to are zeros that are not valid."""

    def __init__(self, num_steps: int, start: HostState, threshold: int, episodes_left: Array):
        """Make room; see `compiled.collect`."""
        n = len(start.episode_return)
        shape = num_steps, n
        # Fresh arrays for each rollout: the device may keep using the last ones without a copy.
        self.steps = Transition(
            obs=_room_for(num_steps, start.obs),
            action=None,
            reward=np.zeros(shape, np.float32),
            terminated=np.zeros(shape, bool),
            truncated=np.zeros(shape, bool),
            next_obs=_room_for(num_steps, start.obs),
            extras=None,
            valid=np.zeros(shape, bool),
        )
        self.is_full = False
        self._returns, self._lengths = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
        self._told = np.full(shape, np.nan, np.float32)
        self._so_far = start._replace(obs=None)
        self._threshold, self._is_counting = threshold, episodes_left is not None
        self._left = np.inf if episodes_left is None else int(episodes_left)
        self._active, self._first = np.ones(n, bool), np.zeros(n, np.int32)
        self._info = InfoMeans()

    def add(self, t: int, outcome: HostStep) -> np.ndarray:
        """Write down what followed the action; return where an episode ended."""
        steps, broken = self.steps, outcome.broken
        is_over = ended = outcome.terminated | outcome.truncated
        if broken is not None:
            ended, is_over = ended | broken, ended & ~broken
        steps.reward[t], steps.terminated[t] = outcome.reward, outcome.terminated
        steps.truncated[t] = outcome.truncated if broken is None else outcome.truncated | broken
        steps.valid[t] = within(self._active, is_over, self._left) if self._is_counting else self._active
        if broken is not None:
            _drop_broken(steps.valid, self._first, t, broken)
        _write(steps.next_obs, t, outcome.next_obs)
        total, rest = added(self._so_far.episode_return, self._so_far.return_rest, outcome.reward)
        length = self._so_far.episode_length + 1
        self._returns[t], self._lengths[t] = total, length
        self._so_far = HostState(None, *(np.where(ended, 0, x) for x in (total, rest, length)))
        if ended.any():
            self._first[ended] = t + 1
            self._info.add(outcome.info, ended & steps.valid[t], self._told[t])
            self._ended(t, is_over)
        return ended

    def _ended(self, t: int, is_over: np.ndarray) -> None:
        """Count episodes that ended. One that was lost is not counted: it makes room for the next."""
        self._left -= (is_over & self.steps.valid[t]).sum()
        if self._threshold:
            is_enough = self.steps.valid[: t + 1].sum(axis=0) >= self._threshold
            self._active = self._active & ~(is_over & is_enough)
        self.is_full = self._left <= 0 or not self._active.any()

    def finished(self, action: Tree, extras: Tree) -> tuple[Transition, EpisodeStats]:
        """Return the rows and what their episodes came to."""
        steps = self.steps._replace(action=action, extras=extras)
        stats = _episode_stats(steps, self._returns, self._lengths)
        stats = stats._replace(told=self._told, info=self._info.figures())
        if self._threshold or self._is_counting:
            steps, cut = cut_short(steps, is_whole=bool(self._threshold))
            return steps, stats._replace(cut=cut)
        # Without a fault there is no mask, though a worker may have one: the update is the program that it is without
        # workers, to the last bit. The first fault, which is rare and slow anyway, compiles another.
        return (steps._replace(valid=None) if steps.valid.all() else steps), stats

    def state(self, obs: Tree) -> HostState:
        """Return where the environments are, which show `obs` by now."""
        _, total, rest, length = self._so_far
        gathered = total.astype(np.float32), rest.astype(np.float32), length.astype(np.int32)
        return HostState(jax.tree.map(np.array, obs), *gathered)


def _restarted(env: HostEnv, obs: Tree) -> HostStep:
    """Start lost episodes anew; in their place is a step that has not happened, which nothing is learnt from."""
    env.needs_restart = False
    before, nothing = jax.tree.map(np.array, obs), np.zeros(env.num_envs, bool)
    started = env.restart()
    return HostStep(before, started, np.zeros(env.num_envs, np.float32), nothing, nothing, (), ~nothing)


def _room_for(num_steps: int, obs: Tree) -> Any:
    return jax.tree.map(lambda leaf: np.zeros((num_steps, *leaf.shape), leaf.dtype), obs)


def _write(room: Tree, t: int, obs: Tree) -> None:
    for array, leaf in zip(jax.tree.leaves(room), jax.tree.leaves(obs), strict=True):
        array[t] = leaf


def added(total: np.ndarray, rest: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add rewards to sums; one that is not finite ends the run in its own time."""
    with np.errstate(invalid="ignore", over="ignore"):
        return add(total, rest, reward)


def _drop_broken(valid: np.ndarray, first: np.ndarray, t: int, broken: np.ndarray) -> None:
    """Take every row of the broken episodes out, from their first in this rollout up to now."""
    for i in np.flatnonzero(broken):
        valid[first[i] : t + 1, i] = False


def _episode_stats(steps: Transition, returns: np.ndarray, lengths: np.ndarray) -> EpisodeStats:
    ended = (steps.terminated | steps.truncated) & steps.valid
    over = returns[ended]
    return EpisodeStats(
        episodes=np.int32(len(over)),
        return_sum=np.float32(over.sum(dtype=np.float64)),
        return_min=np.float32(over.min(initial=np.inf)),
        return_max=np.float32(over.max(initial=-np.inf)),
        length_sum=np.float32(lengths[ended].sum()),
        steps=np.int32(steps.valid.sum()),
        terminations=np.int32((ended & steps.terminated).sum()),
        returns=np.where(ended, returns, np.float32(np.nan)),
        lengths=np.where(ended, lengths, 0),
    )
