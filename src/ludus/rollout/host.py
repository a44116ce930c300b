"""Rollouts of host environments: a Python loop into arrays that are moved to the device once."""

import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.compilation import Options, compile_clock, jit, wait_for
from ludus.envs.base import HostEnv, HostStep
from ludus.envs.episode_info import InfoMeans, episode_figures
from ludus.rollout.sampling import episode_noise, sampling_key
from ludus.rollout.valid import cut_short, within
from ludus.rollout.watched import Enough, Look, Watched
from ludus.rows import Layout, choose_rows
from ludus.summing import add
from ludus.types import EpisodeStats, Left, LudusError, Match, Mode, Rollout, RolloutKeys, Transition, Watch, split_mask

Body = Callable[[Any, Any, Any], tuple[Any, dict[str, Any]]]


REPLAYS = 3
"""So often a batch of evaluation episodes is played again if one of them broke."""


class HostState(NamedTuple):
    """What every environment shows, and what its running episode has gathered."""

    obs: Any
    episode_return: np.ndarray
    return_rest: np.ndarray
    """What `episode_return` leaves out by being a float32."""
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
    n, env.needs_restart = env.num_envs, False
    obs = jax.tree.map(np.array, env.reset(seeds_from(key, n)))
    nothing = np.zeros(n, np.float32)
    return Carry(HostState(obs, nothing, nothing, np.zeros(n, np.int32)), algorithm.initial_memory(policy, n))


@partial(jax.jit, static_argnames=("mode",))
def _act(
    algorithm: Any, policy: Any, memory: Any, obs: Any, ended: Any, noise: Any, t: Any, mode: Mode
) -> tuple[Any, jax.Array]:
    """Act for one step; it reads its row of noise itself and answers in one packed matrix."""
    if jax.tree.leaves(memory):
        memory = choose_rows(ended, algorithm.initial_memory(policy, len(ended)), memory)
    row = None if noise is None else jax.tree.map(lambda x: x[t], noise)
    memory, action, extras = algorithm.act(policy, memory, obs, row, mode)
    return memory, Layout((action, extras)).pack((action, extras))[0]


@partial(jax.jit, static_argnames=("shape",))
def _noise(algorithm: Any, policy: Any, key: jax.Array, shape: tuple[int, int]) -> Any:
    return algorithm.noise(policy, key, shape)


def start(algorithm: Any, env: HostEnv, policy: Any, key: jax.Array) -> Carry:
    """Run `begin`."""
    return begin(algorithm, env, policy, key)


def snapshot(env: HostEnv) -> dict[str, Any]:
    """What it takes, besides the carry, to come back to where the environments are."""
    return env.snapshot()


def restore(env: HostEnv, saved: dict[str, Any], carry: Carry) -> bool:
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


def _layout(algorithm: Any, policy: Any, memory: Any, obs: Any, noise: Any, mode: Mode) -> Layout:
    """How `_act` packs its answer. Nothing runs: only shapes are asked for, and only once."""
    leaves, treedef = jax.tree.flatten((algorithm, policy, memory, obs, noise))
    return _layout_of(treedef, tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves), mode)


@lru_cache(maxsize=64)
def _layout_of(treedef: Any, leaves: tuple[tuple[tuple[int, ...], np.dtype], ...], mode: Mode) -> Layout:
    def choose(algorithm: Any, policy: Any, memory: Any, obs: Any, noise: Any) -> tuple[Any, Any]:
        row = None if noise is None else jax.tree.map(lambda x: x[0], noise)
        return algorithm.act(policy, memory, obs, row, mode)[1:]

    return Layout(jax.eval_shape(choose, *treedef.unflatten([jax.ShapeDtypeStruct(*leaf) for leaf in leaves])))


def collect(  # noqa: PLR0913  each part of a rollout is given by itself
    algorithm: Any,
    env: HostEnv,
    policy: Any,
    carry: Carry,
    keys: RolloutKeys,
    num_steps: int,
    threshold: int = 0,
    episodes_left: Any = None,
    *,
    watch: Watch | None = None,
) -> tuple[Carry, Rollout, EpisodeStats]:
    """Run `num_steps` steps in every environment; see `compiled.collect`, whose twin this is.

    `watch` is told of every step, and may give the rollout up by raising `Left`.
    """
    n = env.num_envs
    if threshold:
        carry = begin(algorithm, env, policy, keys.begin)
    obs, memory = carry.env.obs, carry.memory
    noise = _noise(algorithm, policy, keys.noise, (num_steps, n))
    layout = _layout(algorithm, policy, memory, obs, noise, "explore")
    rows = np.zeros((num_steps, n, layout.width), np.float32)
    sheet, ended = _Sheet(num_steps, carry.env, threshold, episodes_left), np.zeros(n, bool)
    seconds, compiled = {"seconds/act": 0.0, "seconds/environment": 0.0}, compile_clock().total
    for t in range(num_steps):
        if watch is not None:
            watch.tell("collecting", t * n, num_steps * n)
        began = time.perf_counter()
        memory, packed = _act(algorithm, policy, memory, obs, ended, noise, np.int32(t), "explore")
        rows[t] = packed
        action = layout.unpack([rows[t].copy()])[0]  # a copy: the environment may write into it
        chosen = time.perf_counter()
        _write(sheet.steps.obs, t, obs)
        outcome = _restarted(env, obs) if env.needs_restart else env.step(action)
        seconds["seconds/act"] += chosen - began
        seconds["seconds/environment"] += time.perf_counter() - chosen
        ended = sheet.add(t, outcome)
        obs = outcome.obs
        if sheet.is_full:
            break
    seconds["seconds/act"] = max(seconds["seconds/act"] - (compile_clock().total - compiled), 0.0)
    if jax.tree.leaves(memory):
        memory = choose_rows(jnp.asarray(ended), algorithm.initial_memory(policy, n), memory)
    steps, stats = sheet.finished(*layout.unpack([rows]))
    after = Carry(sheet.state(obs), memory)
    return after, Rollout(jax.device_put(steps), carry.memory), stats._replace(seconds=seconds)


class _Sheet:
    """What a rollout writes down, row by row; rows that it does not come to are zeros that are not valid."""

    def __init__(self, num_steps: int, start: HostState, threshold: int, episodes_left: Any):
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
        total, rest = _added(self._so_far.episode_return, self._so_far.return_rest, outcome.reward)
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

    def finished(self, action: Any, extras: Any) -> tuple[Transition, EpisodeStats]:
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

    def state(self, obs: Any) -> HostState:
        """Return where the environments are, which show `obs` by now."""
        _, total, rest, length = self._so_far
        gathered = total.astype(np.float32), rest.astype(np.float32), length.astype(np.int32)
        return HostState(jax.tree.map(np.array, obs), *gathered)


def _restarted(env: HostEnv, obs: Any) -> HostStep:
    """Start lost episodes anew; in their place is a step that has not happened, which nothing is learnt from."""
    env.needs_restart = False
    before, nothing = jax.tree.map(np.array, obs), np.zeros(env.num_envs, bool)
    started = env.restart()
    return HostStep(before, started, np.zeros(env.num_envs, np.float32), nothing, nothing, (), ~nothing)


def _room_for(num_steps: int, obs: Any) -> Any:
    return jax.tree.map(lambda leaf: np.zeros((num_steps, *leaf.shape), leaf.dtype), obs)


def _write(room: Any, t: int, obs: Any) -> None:
    for array, leaf in zip(jax.tree.leaves(room), jax.tree.leaves(obs), strict=True):
        array[t] = leaf


def _added(total: np.ndarray, rest: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def play(
    algorithm: Any, env: HostEnv, policy: Any, key: jax.Array, match: Match
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Play episodes on separate environments: returns, lengths, their info's means, and which were cut.

    Episode `i` depends on the key and `i` alone. Where time ends it, the batches that were whole by then are kept: in
    one that is still being played, the short episodes would have ended first.
    """
    episodes, whole = match.episodes, 0
    returns, lengths, is_cut = np.zeros(episodes, np.float32), np.zeros(episodes, np.int32), np.zeros(episodes, bool)
    info: dict[str, np.ndarray] = {}
    if episodes == 0:
        return returns, lengths, info, is_cut
    n = min(episodes, env.num_envs)
    separate = env.remake(n)
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
                played = played or _play_batch(algorithm, separate, policy, seeds, active, match, first, noise)
            if played is None:
                raise LudusError(
                    f"{env.id}: an evaluation episode broke {REPLAYS + 1} times (episodes {first} to "
                    f"{first + count - 1}, seeds {seeds[:count]}); an episode that broke is never counted"
                )
            batch, whole = slice(first, first + count), first + count
            returns[batch], lengths[batch], is_cut[batch] = (x[:count] for x in played[:3])
            for name, values in played[3].items():
                info.setdefault(name, np.full(episodes, np.nan))[batch] = values[:count]
    except Left:
        pass
    finally:
        separate.close()
    return returns[:whole], lengths[:whole], {name: values[:whole] for name, values in info.items()}, is_cut[:whole]


@partial(jax.jit, static_argnames=("count",))
def _episode_noise(algorithm: Any, policy: Any, key: jax.Array, first: Any, count: int, t: Any) -> Any:
    """Noise for one step as `_act` reads it: `[1, count, ...]`."""
    return jax.tree.map(lambda x: x[None], episode_noise(algorithm, policy, key, t, count, first))


def _play_batch(
    algorithm: Any,
    env: HostEnv,
    policy: Any,
    seeds: list[int],
    active: np.ndarray,
    match: Match,
    first: int,
    noise: Callable[[int], Any] | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]] | None:
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
    layout = _layout(algorithm, policy, memory, obs, noise and noise(0), mode)
    while active.any():
        if match.watch is not None:
            match.watch.tell("evaluating", first + n - int(active.sum()), match.episodes)
        memory, packed = _act(algorithm, policy, memory, obs, kept, noise and noise(t), np.int32(0), mode)
        outcome = env.step(layout.unpack([np.array(packed)])[0])
        if outcome.broken is not None and (outcome.broken & active).any():
            return None
        returns, rest = _added(returns, rest, np.where(active, outcome.reward, np.float32(0)))
        lengths += active
        obs, t = outcome.obs, t + 1
        ended = outcome.terminated | outcome.truncated
        is_cut |= active & ~ended & (t == match.max_steps)
        over = active & (ended | is_cut)
        if over.any():
            for name, rows, values in episode_figures(outcome.info, over):
                info.setdefault(name, np.full(n, np.nan))[rows] = values
        active = active & ~over
    return returns, lengths, is_cut, info


IS_PURE = False
"""Whether an episode that another thread plays can disturb nothing: who knows what environments share."""


def watch(
    look: Look, parts: Any, memory: Any, env: HostEnv, key: jax.Array, index: int, most: int, enough: Enough
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

    def __call__(
        self, context: Any, state: Any, n: int, watch: Watch | None = None
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """Run once: the new state, and an array of one row for each name."""
        began, compiled, env = time.perf_counter(), compile_clock().total, self.plan.env
        try:
            state, row = self.body(self.plan._replace(watch=watch), context, state)
            wait_for(row["halt"], watch, "updating")
            row = jax.device_get(row)
        except Left:
            raise  # whoever gave it up knows where the environments were
        except BaseException:
            env.needs_restart = True
            raise
        # Where the iteration has not happened, the environments have gone on all the same: not where the state says.
        env.needs_restart = env.needs_restart or bool(row["fault"])
        elsewhere = sum(x for name, x in row.items() if name.startswith("seconds/"))
        elsewhere += compile_clock().total - compiled
        row["seconds/update"] = max(0.0, time.perf_counter() - began - elsewhere)
        return state, jax.tree.map(lambda x: np.asarray([x]), row)


def repeat(body: Body, plan: Any, capacity: int, options: Options) -> Repeat:
    """Return the loop of a plan."""
    return Repeat(body, plan)
