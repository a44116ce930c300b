"""Rollouts of host environments: a Python loop into arrays that are moved to the device once."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.compilation import Options, jit
from ludus.envs.base import HostEnv
from ludus.rows import Layout, choose_rows
from ludus.types import EpisodeStats, Mode, Rollout, RolloutKeys, Transition

Body = Callable[[Any, Any, Any], tuple[Any, dict[str, Any]]]


class HostState(NamedTuple):
    """What every environment shows, and what its running episode has gathered."""

    obs: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray


class Carry(NamedTuple):
    """What goes on from rollout to rollout: the environments and the policy's memory."""

    env: HostState
    memory: Any


def seeds_from(key: jax.Array, count: int, start: int = 0) -> list[int]:
    """Return seeds for environments or episodes `start` to `start + count - 1`, each by its number alone."""
    words = np.asarray(jax.random.key_data(key)).tolist()
    sequences = (np.random.SeedSequence([*words, i]) for i in range(start, start + count))
    return [int(sequence.generate_state(1)[0] >> 1) for sequence in sequences]


def begin(algorithm: Any, env: HostEnv, policy: Any, key: jax.Array) -> Carry:
    """Start every environment from its own seed."""
    n = env.num_envs
    obs = np.array(env.reset(seeds_from(key, n)))
    return Carry(HostState(obs, np.zeros(n, np.float32), np.zeros(n, np.int32)), algorithm.initial_memory(policy, n))


@partial(jax.jit, static_argnames=("mode",))
def _act(
    algorithm: Any, policy: Any, memory: Any, obs: Any, ended: Any, noise: Any, t: Any, mode: Mode
) -> tuple[Any, jax.Array]:
    """Act for one step; it reads its row of noise itself and answers in one packed matrix."""
    if jax.tree.leaves(memory):
        memory = choose_rows(ended, algorithm.initial_memory(policy, len(obs)), memory)
    row = None if noise is None else jax.tree.map(lambda x: x[t], noise)
    memory, action, extras = algorithm.act(policy, memory, obs, row, mode)
    return memory, Layout((action, extras)).pack((action, extras))[0]


@partial(jax.jit, static_argnames=("shape",))
def _noise(algorithm: Any, policy: Any, key: jax.Array, shape: tuple[int, int]) -> Any:
    return algorithm.noise(policy, key, shape)


def start(algorithm: Any, env: HostEnv, policy: Any, key: jax.Array) -> Carry:
    """Run `begin`."""
    return begin(algorithm, env, policy, key)


def compile_update(update: Callable, options: Options, donate: tuple[str, ...]) -> Callable:
    """Return `update` compiled: here it is a program of its own."""
    return jit(update, options, donate=donate)


@partial(jax.jit, static_argnames=("mode",))
def _choose(algorithm: Any, policy: Any, memory: Any, obs: Any, noise: Any, mode: Mode) -> tuple[Any, Any]:
    row = None if noise is None else jax.tree.map(lambda x: x[0], noise)
    return algorithm.act(policy, memory, obs, row, mode)[1:]


def _layout(algorithm: Any, policy: Any, memory: Any, obs: Any, noise: Any, mode: Mode) -> Layout:
    """How `_act` packs its answer. Nothing runs: a jitted function is asked for its shapes, which JAX remembers."""
    return Layout(jax.eval_shape(partial(_choose, mode=mode), algorithm, policy, memory, obs, noise))


def collect(
    algorithm: Any, env: HostEnv, policy: Any, carry: Carry, keys: RolloutKeys, num_steps: int, whole_episodes: bool
) -> tuple[Carry, Rollout, EpisodeStats]:
    """Run `num_steps` steps in every environment; see `compiled.collect`, whose twin this is."""
    n = env.num_envs
    if whole_episodes:
        carry = begin(algorithm, env, policy, keys.begin)
    (obs, episode_return, episode_length), start_memory = carry
    noise = _noise(algorithm, policy, keys.noise, (num_steps, n))
    layout = _layout(algorithm, policy, start_memory, obs, noise, "explore")
    rows = np.empty((num_steps, n, layout.width), np.float32)
    # Fresh arrays for each rollout: the device may keep using the last ones without a copy.
    steps = Transition(
        obs=np.empty((num_steps, *obs.shape), obs.dtype),
        action=None,
        reward=np.empty((num_steps, n), np.float32),
        terminated=np.empty((num_steps, n), bool),
        truncated=np.empty((num_steps, n), bool),
        next_obs=np.empty((num_steps, *obs.shape), obs.dtype),
        extras=None,
        valid=np.empty((num_steps, n), bool) if whole_episodes else None,
    )
    returns, lengths = np.empty((num_steps, n), np.float32), np.empty((num_steps, n), np.int32)
    memory, ended, valid = start_memory, np.zeros(n, bool), np.ones(n, bool)
    for t in range(num_steps):
        steps.obs[t] = obs
        memory, packed = _act(algorithm, policy, memory, obs, ended, noise, np.int32(t), "explore")
        rows[t] = packed
        outcome = env.step(layout.unpack([rows[t].copy()])[0])  # a copy: the environment may write into it
        truncated = outcome.truncated
        if whole_episodes:
            steps.valid[t] = valid
            truncated = truncated | ((t == num_steps - 1) & ~outcome.terminated)
        ended = outcome.terminated | truncated
        steps.reward[t], steps.terminated[t], steps.truncated[t] = outcome.reward, outcome.terminated, truncated
        steps.next_obs[t] = outcome.next_obs
        episode_return, episode_length = episode_return + outcome.reward, episode_length + 1
        returns[t], lengths[t] = episode_return, episode_length
        episode_return, episode_length = np.where(ended, 0, episode_return), np.where(ended, 0, episode_length)
        valid = valid & ~ended
        obs = outcome.obs
    action, extras = layout.unpack([rows])
    steps = steps._replace(action=action, extras=extras)
    if jax.tree.leaves(memory):
        memory = choose_rows(jnp.asarray(ended), algorithm.initial_memory(policy, n), memory)
    state = HostState(np.array(obs), episode_return.astype(np.float32), episode_length.astype(np.int32))
    return Carry(state, memory), Rollout(jax.device_put(steps), start_memory), _episode_stats(steps, returns, lengths)


def _episode_stats(steps: Transition, returns: np.ndarray, lengths: np.ndarray) -> EpisodeStats:
    ended = steps.terminated | steps.truncated
    if steps.valid is not None:
        ended = ended & steps.valid
    returns, lengths = returns[ended], lengths[ended]
    return EpisodeStats(
        episodes=np.int32(len(returns)),
        return_sum=np.float32(returns.sum()),
        return_min=np.float32(returns.min(initial=np.inf)),
        return_max=np.float32(returns.max(initial=-np.inf)),
        length_sum=np.float32(lengths.sum()),
        steps=np.int32(ended.size if steps.valid is None else steps.valid.sum()),
    )


def play(
    algorithm: Any, env: HostEnv, policy: Any, key: jax.Array, episodes: int, max_steps: int, lanes: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Play greedy episodes on separate environments; episode `i` depends on the key and `i` alone."""
    if episodes == 0:
        return np.zeros(0, np.float32), np.zeros(0, np.int32)
    n = min(episodes, env.num_envs)
    separate = env.remake(n)
    returns, lengths = np.zeros(episodes, np.float32), np.zeros(episodes, np.int32)
    kept = np.zeros(n, bool)  # no memory is cleared on the way: each lane plays one episode
    try:
        for first in range(0, episodes, n):
            count = min(n, episodes - first)
            # A short last batch is filled up; what the extra environments do is not counted.
            obs = separate.reset(seeds_from(key, n, first))
            memory, active, t = algorithm.initial_memory(policy, n), np.arange(n) < count, 0
            layout = _layout(algorithm, policy, memory, obs, None, "greedy")
            while active.any() and t < max_steps:
                memory, packed = _act(algorithm, policy, memory, obs, kept, None, np.int32(0), "greedy")
                outcome = separate.step(layout.unpack([np.array(packed)])[0])
                part = slice(first, first + count)
                returns[part] += np.where(active, outcome.reward, 0)[:count]
                lengths[part] += active[:count]
                active = active & ~(outcome.terminated | outcome.truncated)
                obs, t = outcome.obs, t + 1
    finally:
        separate.close()
    return returns, lengths


class Repeat:
    """Runs `body(plan, context, state) -> state, row` from Python; the twin of `compiled.Repeat`.

    One call runs it once, whatever was asked for: a host environment may raise at any step, and then the caller must
    still hold the state of the last iteration that was finished.
    """

    def __init__(self, body: Body, plan: Any):
        """Nothing to compile here: what is compiled is compiled inside `body`."""
        self.body, self.plan = body, plan

    def prepare(self, context: Any, make_state: Callable[[], Any]) -> None:
        """Nothing to compile ahead."""

    def __call__(self, context: Any, state: Any, n: int) -> tuple[Any, dict[str, np.ndarray]]:
        """Run once: the new state, and an array of one row for each name."""
        state, row = self.body(self.plan, context, state)
        return state, {name: np.asarray([x]) for name, x in jax.device_get(row).items()}


def repeat(body: Body, plan: Any, capacity: int, options: Options) -> Repeat:
    """Return the loop of a plan."""
    return Repeat(body, plan)
