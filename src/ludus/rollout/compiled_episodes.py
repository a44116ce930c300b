"""Episodes of JAX environments: side by side in one program for evaluation, or one of them with all its steps."""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.batch import BatchState, Draw, EpisodeSoFar, JaxEnv
from ludus.rollout.acting import Actor
from ludus.rollout.compiled import info_figures
from ludus.rollout.episodes import Enough, Look, Played, Watched, episode_noise, lookahead_key, sampling_key
from ludus.rollout.lookahead import ahead
from ludus.rollout.monte_carlo import Origin, Valuing
from ludus.runtime.compilation import compiler_options, jit, wait_for
from ludus.runtime.rng import spread
from ludus.types import Array, Left, Lookahead, Match, Mode, Tree, split_mask

PIECE_STEPS, PIECE_SECONDS = 16, 0.2
"""Evaluations are played in pieces: the first has so many steps, the others take about so long."""


class Playing(NamedTuple):
    """Episodes, one in each lane, after `t` steps."""

    t: jax.Array
    env: BatchState
    memory: Tree
    active: jax.Array
    """Which lanes count, and have not come to an end."""
    episode: EpisodeSoFar
    critic_memory: Tree = ()
    """Of a critic that looks ahead."""


def _play_begin(
    algorithm: Actor,
    env: JaxEnv,
    policy: Tree,
    key: jax.Array,
    episodes: jax.Array,
    lanes: int,
    scenarios: Tree,
    critic: Tree = None,
) -> Playing:
    """Start an episode in each of `lanes` copies, of which the first `episodes` count."""
    state = env.remake(lanes).begin(spread(jax.random.split(key)[0], (lanes,)), scenarios)
    nothing = EpisodeSoFar(state.episode_return, state.episode_length, state.info, state.info)
    active = jnp.arange(lanes) < episodes
    judge = () if critic is None else algorithm.initial_memory(critic, lanes)
    return Playing(jnp.int32(0), state, algorithm.initial_memory(policy, lanes), active, nothing, judge)


def _play_on(  # noqa: PLR0913, PLR0917  each part of a rollout is given by itself
    algorithm: Valuing,
    env: JaxEnv,
    policy: Tree,
    key: jax.Array,
    playing: Playing,
    stop: jax.Array,
    mode: Mode,
    extent: tuple[int, int] | None = None,
    judge: tuple[Tree, Array] = (None, 1.0),
) -> Playing:
    """Go on up to step `stop`, or until all episodes have ended; no transition is kept.

    `extent` and `judge` are the halves of a `Lookahead`: what shapes the program, and what does not.
    """
    lanes = len(playing.active)
    env, step_key, noise_key = env.remake(lanes), jax.random.split(key)[1], sampling_key(key)

    def running(playing: Playing) -> jax.Array:
        return playing.active.any() & (playing.t < stop)

    def step(playing: Playing) -> Playing:
        t, state, memory, active, episode, judging = playing
        origin = Origin(state, memory, judging)
        noise = None if mode == "greedy" else episode_noise(algorithm, policy, noise_key, t, lanes)
        memory, action, _ = algorithm.act(policy, memory, state.obs, noise, mode)
        if extent is not None:
            own = jax.random.fold_in(lookahead_key(key), t)
            action, judging = ahead(algorithm, env, policy, Lookahead(*extent, *judge), origin, own)
        keys = spread(jax.random.fold_in(step_key, t), (lanes,))
        # An ended copy needs no fresh start: whatever it does from then on is not counted.
        state, outcome = env.step(state, action, Draw(keys, None))
        episode = jax.tree.map(partial(jnp.where, active), outcome.info, episode)
        active = active & ~(outcome.terminated | outcome.truncated)
        return Playing(t + 1, state, memory, active, episode, judging)

    return jax.lax.while_loop(running, step, playing)


def play(algorithm: Valuing, env: JaxEnv, policy: Tree, key: jax.Array, match: Match) -> Played:
    """Play episodes side by side, one in each lane: returns, lengths, their info's means, and which were cut.

    They are played in pieces that take no longer than a blink, so that signals and time limits are heeded. Where time
    ends it there are none: all have begun together, and those that have ended are the short ones.
    """
    count, lanes = match.episodes, max(match.lanes, match.episodes)
    begin = jit(_play_begin, compiler_options(0), static=("env", "lanes"))
    go_on = jit(_play_on, compiler_options(0), static=("env", "mode", "extent"))
    looks = match.lookahead
    judge, extent = (None, 1.0) if looks is None else looks[2:], None if looks is None else looks[:2]
    playing = begin(algorithm, env, policy, key, np.int32(count), lanes, env.held_out(0, lanes), judge[0])
    active, t, steps = np.arange(lanes) < count, 0, PIECE_STEPS
    try:
        while t == 0 or (active.any() and t < match.max_steps):
            began, t = time.perf_counter(), min(t + steps, match.max_steps)
            playing = go_on(algorithm, env, policy, key, playing, np.int32(t), match.mode, extent, judge)
            wait_for(playing.active, match.watch, "evaluating", count - int(active.sum()), count)
            active = np.asarray(playing.active)
            pace = PIECE_SECONDS / (time.perf_counter() - began)
            steps = max(1, min(2 * steps, int(steps * pace)))
    except Left:  # nothing is fetched: a program may be running that it would have to wait for
        return Played(np.zeros(0, np.float32), np.zeros(0, np.int32), {}, np.zeros(0, bool))
    played = jax.tree.map(lambda x: x[:count], jax.device_get(playing.episode))
    return Played(played.episode_return, played.episode_length, info_figures(played), active[:count])


WATCHED_STEPS = 512
"""Steps of a watched episode that one program makes: in between, time can be looked at."""


def _watch(
    look: Look, env: JaxEnv, parts: Tree, memory: Tree, state: BatchState, key: jax.Array, index: Array, at: Array
) -> tuple[Any, ...]:
    """Go on with an episode from its step `at[0]`, for `at[1]` steps at most; return where it is, and the rows."""

    def step(carry: Tree) -> Any:
        made, state, memory, _, rows = carry
        after, action, figures = look(parts, memory, state.obs)
        own = spread(jax.random.fold_in(key, at[0] + made), (1,), index)
        # Nothing follows the end: no start is needed.
        next_state, outcome = env.step(state, action, Draw(own, None))
        row = split_mask(state.obs)[0], action, outcome.reward, _with_scene(env, state, figures)
        rows = jax.tree.map(lambda room, x: room.at[made].set(x), rows, row)
        return made + 1, next_state, after, (outcome.obs, outcome.terminated, outcome.truncated), rows

    def running(carry: Tree) -> jax.Array:
        made, _, _, (_, terminated, truncated), _ = carry
        return (made < at[1]) & ~(terminated | truncated)[0]

    nothing = jnp.zeros(1, bool)
    _, action, figures = jax.eval_shape(look, parts, memory, state.obs)
    row = split_mask(state.obs)[0], action, jnp.zeros(1), jax.eval_shape(partial(_with_scene, env), state, figures)
    rows = jax.tree.map(lambda x: jnp.zeros((WATCHED_STEPS, *x.shape), x.dtype), row)
    carry = jnp.int32(0), state, memory, (state.obs, nothing, nothing), rows
    made, state, memory, end, rows = jax.lax.while_loop(running, step, carry)
    return state, memory, made, rows, (*end, look(parts, memory, end[0])[2])


def _with_scene(env: JaxEnv, state: BatchState, figures: Tree) -> Tree:
    """Return the figures of a step with what its picture is drawn from."""
    return {**figures, **{f"scene/{name}": x for name, x in env.scene(state).items()}}


def watch(
    look: Look, parts: Tree, memory: Tree, env: JaxEnv, key: jax.Array, index: int, most: int, enough: Enough
) -> Watched:
    """Play episode `index` of those that `play` plays with a key, of `most` steps at most, and return all of it."""
    start_key, step_key = jax.random.split(key)
    options, lane = compiler_options(0), env.remake(1)
    start = jit(JaxEnv.begin, options, static=("self",))
    state = start(lane, spread(start_key, (1,), index), lane.held_out(index, 1))
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
