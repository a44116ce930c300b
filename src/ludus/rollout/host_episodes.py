"""Episodes of host environments: in batches for evaluation, or one of them with all its steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from ludus.envs.base import HostEnv
from ludus.envs.host.info_stats import episode_figures
from ludus.rollout.acting import Actor, act, layout_of
from ludus.rollout.episodes import Enough, Look, Played, Watched, episode_noise, lookahead_key, sampling_key
from ludus.rollout.host import added
from ludus.rollout.host_carry import seeds_from
from ludus.rollout.host_lookahead import HostLookahead, looking_ahead
from ludus.rollout.monte_carlo import Valuing
from ludus.runtime.compilation import jit
from ludus.types import Array, Left, LudusError, Match, Mode, Tree, split_mask

REPLAYS = 3
"""So often a batch of evaluation episodes is played again if one of them broke."""


def play(algorithm: Valuing, env: HostEnv, policy: Tree, key: jax.Array, match: Match) -> Played:
    """Play episodes on separate environments: returns, lengths, their info's means, and which were cut.

    Episode `i` depends on the key and `i` alone. Where time ends it, the batches that were whole by then are kept: in
    one that is still being played, the short episodes would have ended first.
    """
    episodes, whole = match.episodes, 0
    returns, lengths, is_cut = np.zeros(episodes, np.float32), np.zeros(episodes, np.int32), np.zeros(episodes, bool)
    info: dict[str, np.ndarray] = {}
    if episodes == 0:
        return Played(returns, lengths, info, is_cut)
    n = min(episodes, env.num_envs)
    separate = env.remake(n)
    ahead = looking_ahead(algorithm, separate, policy, match.lookahead, lookahead_key(key))
    try:
        for first in range(0, episodes, n):
            count = min(n, episodes - first)
            # A short last batch is filled up; what the extra environments do is not counted.
            seeds, active = seeds_from(key, n, first), np.arange(n) < count
            noise = (
                None
                if match.mode == "greedy"
                else partial(_episode_noise, algorithm, policy, sampling_key(key), first, n)
            )
            played = None
            for _ in range(REPLAYS + 1):
                played = played or _play_batch(algorithm, separate, policy, seeds, active, match, first, noise, ahead)
            if played is None:
                raise LudusError(
                    f"{env.id}: an evaluation episode broke {REPLAYS + 1} times (episodes {first} to "
                    f"{first + count - 1}, seeds {seeds[:count]}); an episode that broke is never counted"
                )
            batch, whole = slice(first, first + count), first + count
            returns[batch], lengths[batch], is_cut[batch] = (
                x[:count] for x in (played.returns, played.lengths, played.is_cut)
            )
            for name, values in played.info.items():
                info.setdefault(name, np.full(episodes, np.nan))[batch] = values[:count]
    except Left:
        pass
    finally:
        separate.close()
        if ahead is not None:
            ahead.twin.close()
    kept = {name: values[:whole] for name, values in info.items()}
    return Played(returns[:whole], lengths[:whole], kept, is_cut[:whole])


@partial(jax.jit, static_argnames=("count",))
def _episode_noise(algorithm: Actor, policy: Tree, key: jax.Array, first: Array, count: int, t: Array) -> Any:
    """Noise for one step as `_act` reads it: `[1, count, ...]`."""
    return jax.tree.map(lambda x: x[None], episode_noise(algorithm, policy, key, t, count, first))


def _play_batch(  # noqa: PLR0913, PLR0917  each part of a rollout is given by itself
    algorithm: Valuing,
    env: HostEnv,
    policy: Tree,
    seeds: list[int],
    active: np.ndarray,
    match: Match,
    first: int,
    noise: Callable[[int], Any] | None,
    ahead: HostLookahead | None = None,
) -> Played | None:
    """Play one episode in each active lane; None if one of them broke. What its info did not give is NaN.

    `noise(t)` draws what step `t` needs to sample its actions; without it they are greedy. `first` is the number of
    the first of the episodes.
    """
    n, obs = len(seeds), env.reset(seeds)
    returns, rest, lengths = np.zeros(n, np.float32), np.zeros(n, np.float32), np.zeros(n, np.int32)
    is_cut = np.zeros(n, bool)
    info: dict[str, np.ndarray] = {}
    kept = np.zeros(n, bool)  # no memory is cleared on the way: each lane plays one episode
    memory, t = algorithm.initial_memory(policy, n), 0
    mode: Mode = "greedy" if noise is None else "sample"
    layout = layout_of(algorithm, policy, memory, obs, noise and noise(0), mode)
    if ahead is not None:
        ahead.begin(first)
    while active.any():
        if match.watch is not None:
            match.watch.tell("evaluating", first + n - int(active.sum()), match.episodes)
        before = memory
        memory, packed = act(algorithm, policy, memory, obs, kept, noise and noise(t), np.int32(0), mode)
        action = layout.unpack([np.array(packed)])[0] if ahead is None else ahead.action(t, env, before, obs)
        outcome = env.step(action)
        if outcome.broken is not None and (outcome.broken & active).any():
            return None
        returns, rest = added(returns, rest, np.where(active, outcome.reward, np.float32(0)))
        lengths += active
        obs, t = outcome.obs, t + 1
        ended = outcome.terminated | outcome.truncated
        is_cut |= active & ~ended & (t == match.max_steps)
        over = active & (ended | is_cut)
        if over.any():
            for name, rows, values in episode_figures(outcome.info, over):
                info.setdefault(name, np.full(n, np.nan))[rows] = values
        active = active & ~over
    return Played(returns, lengths, info, is_cut)


def watch(
    look: Look, parts: Tree, memory: Tree, env: HostEnv, key: jax.Array, index: int, most: int, enough: Enough
) -> Watched:
    """Play episode `index` of those that `play` plays with a key, step by step; the twin of `compiled.watch`."""
    seed, lane, looking = seeds_from(key, 1, index)[0], env.remake(1), jit(look, ())
    rows: list[Any] = []
    try:
        obs = lane.reset([seed])
        while True:
            obs = jax.tree.map(np.array, obs)
            memory, action, figures = jax.device_get(looking(parts, memory, obs))
            outcome = lane.step(jax.tree.map(np.array, action))
            if outcome.broken is not None and outcome.broken.any():
                raise LudusError(f"{lane.id}: the episode broke (seed {seed})")
            rows.append((split_mask(obs)[0], action, np.array(outcome.reward), figures))
            ended = bool(outcome.terminated[0]), bool(outcome.truncated[0])
            if any(ended) or len(rows) >= most or enough():
                break
            obs = outcome.obs
        final = jax.tree.map(np.array, outcome.next_obs)
        figures = jax.device_get(looking(parts, memory, final))[2]
    finally:
        lane.close()
    whole = jax.tree.map(lambda *steps: np.stack(steps), *rows)
    return Watched(*whole, split_mask(final)[0], figures, *ended, seed)
