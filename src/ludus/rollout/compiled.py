"""Rollouts of JAX environments: one `lax.scan`, nothing leaves the device."""

import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.compilation import Options, compiler_options, jit, wait_for
from ludus.envs.vector import Draw, EpisodeSoFar, VectorEnv, VectorState
from ludus.rollout.sampling import episode_noise, sampling_key
from ludus.rollout.valid import cut_short, within
from ludus.rollout.watched import Enough, Look, Watched
from ludus.rows import Layout, choose_rows
from ludus.seeding import spread
from ludus.spaces import allows_any
from ludus.types import IS_SUCCESS, EpisodeStats, Left, Match, Mode, Rollout, RolloutKeys, Transition, Watch, split_mask

PIECE_STEPS, PIECE_SECONDS = 16, 0.2
"""Evaluations are played in pieces: the first has so many steps, the others take about so long."""

Body = Callable[[Any, Any, Any], tuple[Any, dict[str, Any]]]


class Carry(NamedTuple):
    """What goes on from rollout to rollout: the environments and the policy's memory."""

    env: VectorState
    memory: Any


def begin(algorithm: Any, env: VectorEnv, policy: Any, key: jax.Array) -> Carry:
    """Start every environment from its own key."""
    keys = spread(key, (env.num_envs,))
    return Carry(env.reset(keys), algorithm.initial_memory(policy, env.num_envs))


def collect(  # noqa: PLR0913  each part of a rollout is given by itself
    algorithm: Any,
    env: VectorEnv,
    policy: Any,
    carry: Carry,
    keys: RolloutKeys,
    num_steps: int,
    threshold: int = 0,
    episodes_left: Any = None,
    *,
    watch: Watch | None = None,
) -> tuple[Carry, Rollout, EpisodeStats]:
    """Run `num_steps` steps in every environment; nobody can watch them, they are part of a compiled program.

    With a `threshold`, every environment starts afresh and contributes whole episodes, one after the other, until
    they have so many steps (1: a single episode); `num_steps` is the room there is for them, and an episode that has
    not ended there is cut. With `episodes_left`, the rollout is over at the end of the last of so many episodes, and
    the environments stay where they are by then. `valid` is False on rows after that.
    """
    if threshold:
        carry = begin(algorithm, env, policy, keys.begin)
    start = algorithm.initial_memory(policy, env.num_envs)
    is_partial = bool(threshold) or episodes_left is not None

    def step(state: tuple[Carry, Any, Any], inputs: Any) -> tuple[Any, Any]:
        carry, active, left = state
        draw, noise, t = inputs
        memory, action, extras = algorithm.act(policy, carry.memory, carry.env.obs, noise, "explore")
        after, outcome = env.step(carry.env, action, draw)
        ended = outcome.terminated | outcome.truncated
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
        return (after, active, left), (transition, outcome.info)

    noise = algorithm.noise(policy, keys.noise, (num_steps, env.num_envs))
    inputs = env.draw(keys.step, keys.start, num_steps), noise, jnp.arange(num_steps)
    active = jnp.ones(env.num_envs, bool) if is_partial else None
    (after, _, _), (steps, episode) = jax.lax.scan(step, (carry, active, episodes_left), inputs)
    stats = episode_stats(steps, episode)._replace(stuck=_first_stuck(env, steps.obs))
    if is_partial:
        steps, cut = cut_short(steps, is_whole=bool(threshold))
        stats = stats._replace(cut=cut)
    return after, Rollout(steps, carry.memory), stats


def episode_stats(steps: Transition, episode: EpisodeSoFar) -> EpisodeStats:
    """Sum up the episodes that ended, from running totals `[T, B]`."""
    episode_return, episode_length = episode.episode_return, episode.episode_length
    ended = steps.terminated | steps.truncated
    steps_taken = jnp.asarray(ended.size, jnp.int32)
    if steps.valid is not None:
        ended, steps_taken = ended & steps.valid, steps.valid.sum(dtype=jnp.int32)
    counted = jnp.stack([jnp.ones_like(episode_return), episode_return, episode_length.astype(jnp.float32)])
    episodes, return_sum, length_sum = jnp.where(ended, counted, 0.0).sum(axis=(1, 2))
    figures = _info_figures(episode)
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


def _first_stuck(env: VectorEnv, obs: Any) -> Any:
    """Return the first row `[T * B]` of observations whose mask forbids every action; -1 if there is none."""
    mask = split_mask(obs)[1]
    if mask is None:
        return jnp.int32(-1)
    is_stuck = ~allows_any(env.action_space, mask).ravel()
    return jnp.where(is_stuck.any(), is_stuck.argmax(), -1).astype(jnp.int32)


def _info_figures(episode: EpisodeSoFar) -> dict[str, Any]:
    """Return what episodes came to in each number of their `info`, by its journal name."""
    means = {f"info/{name}/mean": total / episode.episode_length for name, total in episode.info_total.items()}
    return means | {f"info/{name}/last": last for name, last in episode.info_last.items()}


def start(algorithm: Any, env: VectorEnv, policy: Any, key: jax.Array) -> Carry:
    """Run `begin` as a program of its own."""
    return jit(begin, compiler_options(0), static=("env",))(algorithm, env, policy, key)


def snapshot(env: VectorEnv) -> dict[str, Any]:
    """Nothing besides the carry: a JAX environment is all in there."""
    return {}


def restore(env: VectorEnv, saved: dict[str, Any], carry: Carry) -> bool:
    """Nothing to do: with the carry, the environments are where they were."""
    return True


def whole(collect: Callable) -> Callable:
    """Return a rollout, all of whose settings are given, as a program of its own."""
    return jax.jit(collect)


def compile_update(update: Callable, options: Options, donate: tuple[str, ...]) -> Callable:
    """Return `update` as it is: the loop around it is compiled as a whole."""
    return update


class Playing(NamedTuple):
    """Episodes, one in each lane, after `t` steps."""

    t: jax.Array
    env: VectorState
    memory: Any
    active: jax.Array
    """Which lanes count, and have not come to an end."""
    episode: EpisodeSoFar


def _play_begin(
    algorithm: Any, env: VectorEnv, policy: Any, key: jax.Array, episodes: jax.Array, lanes: int
) -> Playing:
    """Start an episode in each of `lanes` copies, of which the first `episodes` count."""
    state = env.remake(lanes).reset(spread(jax.random.split(key)[0], (lanes,)))
    nothing = EpisodeSoFar(state.episode_return, state.episode_length, state.info, state.info)
    active = jnp.arange(lanes) < episodes
    return Playing(jnp.int32(0), state, algorithm.initial_memory(policy, lanes), active, nothing)


def _play_on(
    algorithm: Any, env: VectorEnv, policy: Any, key: jax.Array, playing: Playing, stop: jax.Array, mode: Mode
) -> Playing:
    """Go on up to step `stop`, or until all episodes have ended; no transition is kept."""
    lanes = len(playing.active)
    env, step_key, noise_key = env.remake(lanes), jax.random.split(key)[1], sampling_key(key)

    def running(playing: Playing) -> jax.Array:
        return playing.active.any() & (playing.t < stop)

    def step(playing: Playing) -> Playing:
        t, state, memory, active, episode = playing
        noise = None if mode == "greedy" else episode_noise(algorithm, policy, noise_key, t, lanes)
        memory, action, _ = algorithm.act(policy, memory, state.obs, noise, mode)
        keys = spread(jax.random.fold_in(step_key, t), (lanes,))
        # An ended copy needs no fresh start: whatever it does from then on is not counted.
        state, outcome = env.step(state, action, Draw(keys, (state.env, state.obs)))
        episode = jax.tree.map(partial(jnp.where, active), outcome.info, episode)
        active = active & ~(outcome.terminated | outcome.truncated)
        return Playing(t + 1, state, memory, active, episode)

    return jax.lax.while_loop(running, step, playing)


def play(
    algorithm: Any, env: VectorEnv, policy: Any, key: jax.Array, match: Match
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Play episodes side by side, one in each lane: returns, lengths, their info's means, and which were cut.

    They are played in pieces that take no longer than a blink, so that signals and time limits are heeded. Where time
    ends it there are none: all have begun together, and those that have ended are the short ones.
    """
    count, lanes = match.episodes, max(match.lanes, match.episodes)
    begin = jit(_play_begin, compiler_options(0), static=("env", "lanes"))
    go_on = jit(_play_on, compiler_options(0), static=("env", "mode"))
    playing = begin(algorithm, env, policy, key, np.int32(count), lanes)
    active, t, steps = np.arange(lanes) < count, 0, PIECE_STEPS
    try:
        while t == 0 or (active.any() and t < match.max_steps):
            began, t = time.perf_counter(), min(t + steps, match.max_steps)
            playing = go_on(algorithm, env, policy, key, playing, np.int32(t), match.mode)
            wait_for(playing.active, match.watch, "evaluating", count - int(active.sum()), count)
            active = np.asarray(playing.active)
            pace = PIECE_SECONDS / (time.perf_counter() - began)
            steps = max(1, min(2 * steps, int(steps * pace)))
    except Left:  # nothing is fetched: a program may be running that it would have to wait for
        return np.zeros(0, np.float32), np.zeros(0, np.int32), {}, np.zeros(0, bool)
    played = jax.tree.map(lambda x: x[:count], jax.device_get(playing.episode))
    return played.episode_return, played.episode_length, _info_figures(played), active[:count]


IS_PURE = True
"""Whether an episode that another thread plays can disturb nothing."""
WATCHED_STEPS = 512
"""Steps of a watched episode that one program makes: in between, time can be looked at."""


def _watch(
    look: Look, env: VectorEnv, parts: Any, memory: Any, state: VectorState, key: jax.Array, index: Any, at: Any
) -> tuple[Any, ...]:
    """Go on with an episode from its step `at[0]`, for `at[1]` steps at most; return where it is, and the rows."""

    def step(carry: Any) -> Any:
        made, state, memory, _, rows = carry
        after, action, figures = look(parts, memory, state.obs)
        own = spread(jax.random.fold_in(key, at[0] + made), (1,), index)
        # Nothing follows the end: no start is needed.
        next_state, outcome = env.step(state, action, Draw(own, (state.env, state.obs)))
        row = split_mask(state.obs)[0], action, outcome.reward, figures
        rows = jax.tree.map(lambda room, x: room.at[made].set(x), rows, row)
        return made + 1, next_state, after, (outcome.obs, outcome.terminated, outcome.truncated), rows

    def running(carry: Any) -> jax.Array:
        made, _, _, (_, terminated, truncated), _ = carry
        return (made < at[1]) & ~(terminated | truncated)[0]

    nothing = jnp.zeros(1, bool)
    _, action, figures = jax.eval_shape(look, parts, memory, state.obs)
    row = split_mask(state.obs)[0], action, jnp.zeros(1), figures
    rows = jax.tree.map(lambda x: jnp.zeros((WATCHED_STEPS, *x.shape), x.dtype), row)
    carry = jnp.int32(0), state, memory, (state.obs, nothing, nothing), rows
    made, state, memory, end, rows = jax.lax.while_loop(running, step, carry)
    return state, memory, made, rows, (*end, look(parts, memory, end[0])[2])


def watch(
    look: Look, parts: Any, memory: Any, env: VectorEnv, key: jax.Array, index: int, most: int, enough: Enough
) -> Watched:
    """Play episode `index` of those that `play` plays with a key, of `most` steps at most, and return all of it."""
    start_key, step_key = jax.random.split(key)
    options, lane = compiler_options(0), env.remake(1)
    state = jit(VectorEnv.reset, options, static=("self",))(lane, spread(start_key, (1,), index))
    program, pieces, made = jit(_watch, options, static=("look", "env")), [], 0
    while True:
        at = np.array([made, min(most - made, WATCHED_STEPS)], np.int32)
        state, memory, count, rows, end = program(look, lane, parts, memory, state, step_key, np.uint32(index), at)
        count, rows, (obs, terminated, truncated, figures) = jax.device_get((count, rows, end))
        pieces.append(jax.tree.map(lambda x, count=count: x[:count], rows))
        made += int(count)
        if terminated[0] or truncated[0] or made >= most or enough():
            break
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)
    return Watched(*whole, split_mask(obs)[0], figures, bool(terminated[0]), bool(truncated[0]), None)


class Repeat:
    """A compiled loop that runs `body(plan, context, state) -> state, row` many times without leaving the device.

    The number of times is a traced value, so every chunk length up to `capacity` is the same program. The loop stops
    early when a row says `halt`.
    """

    def __init__(self, body: Body, plan: Any, capacity: int, options: Options):
        """Compile nothing yet: `options` are the compiler's."""
        # Jitted so that it is traced once, though its shapes are asked for before it is called.
        self.body, self.capacity = jax.jit(partial(body, plan)), capacity
        self.programs: dict[Any, tuple[Any, Layout]] = {}
        self.jitted = jax.jit(self._loop, donate_argnums=1, compiler_options=dict(options))

    def prepare(self, context: Any, make_state: Callable[[], Any]) -> None:
        """Compile for the state that `make_state` would return; only its shapes are asked for."""
        self._program(context, jax.eval_shape(make_state))

    def __call__(
        self, context: Any, state: Any, n: int, watch: Watch | None = None
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """Run at most `n` times (and at most `capacity`): the new state, and the rows of all, name by name."""
        program, layout = self._program(context, state)
        began = time.perf_counter()
        state, buffer, made = program(context, state, np.int32(min(n, self.capacity)))
        wait_for(made, watch, "training")
        rows = layout.unpack([np.asarray(buffer)[: int(made)]])
        rows["seconds/iteration"] = np.full(int(made), (time.perf_counter() - began) / max(1, int(made)))
        return state, rows

    def _program(self, context: Any, state: Any) -> tuple[Any, Layout]:
        leaves, treedef = jax.tree.flatten((context, state))
        key = treedef, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self.programs:
            row = jax.eval_shape(lambda context, state: _as_rows(self.body(context, state)[1]), context, state)
            program = self.jitted.lower(context, state, np.int32(0)).compile()
            self.programs[key] = program, Layout(row)
        return self.programs[key]

    def _loop(self, context: Any, state: Any, n: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        layout = Layout(jax.eval_shape(lambda: _as_rows(self.body(context, state)[1])))

        def going_on(carry: Any) -> jax.Array:
            _, _, i, halt = carry
            return (i < n) & (halt == 0)

        def step(carry: Any) -> Any:
            state, buffer, i, _ = carry
            state, row = self.body(context, state)
            packed = layout.pack(_as_rows(row))[0]
            return state, jax.lax.dynamic_update_slice(buffer, packed, (i, 0)), i + 1, row["halt"]

        buffer = jnp.zeros((self.capacity, layout.width), jnp.float32)
        return jax.lax.while_loop(going_on, step, (state, buffer, jnp.int32(0), jnp.int32(0)))[:3]


@lru_cache(maxsize=16)
def repeat(body: Body, plan: Any, capacity: int, options: Options) -> Repeat:
    """Return the loop of a plan; equal plans share one, and with it what was compiled."""
    return Repeat(body, plan, capacity, options)


def _as_rows(row: dict[str, Any]) -> dict[str, Any]:
    return jax.tree.map(lambda x: jnp.asarray(x)[None], row)
