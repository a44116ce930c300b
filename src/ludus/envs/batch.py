"""A batch of one JAX environment: vmap, same-step reset, time limit, episode statistics."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.base import Action, Environment, Observation, State, Supply
from ludus.envs.restart import is_made_ahead, restarted
from ludus.envs.scenarios.base import Scenario, ScenarioEnvironment, generated
from ludus.envs.scenarios.held_out import held_out, num_held_out
from ludus.envs.scenarios.randomized import led
from ludus.envs.scenarios.source import Source
from ludus.envs.scenarios.stored import ScenarioSet
from ludus.envs.scenarios.supply import StoredSupply
from ludus.runtime import placement
from ludus.runtime.packing import choose_rows
from ludus.runtime.rng import spread
from ludus.runtime.summation import add
from ludus.spaces import Space, map_leaves
from ludus.types import Course, LudusError, Masked, Step, Tree

Shown = tuple[State, Observation]
"""States of the copies and what they show."""


class BatchState(NamedTuple):
    """The state of every copy, its observation, and the sums of its running episode."""

    env: State
    obs: Observation
    episode_return: jax.Array
    return_rest: jax.Array
    """The part of the return that `episode_return`, a float32, is too coarse to hold."""
    episode_length: jax.Array
    info: dict[str, jax.Array] = {}  # noqa: RUF012  a NamedTuple's default; never written to
    """Running sum of every number that the environment puts into `Step.info`."""


class EpisodeSoFar(NamedTuple):
    """The sums of each copy's running episode, up to and including the latest step."""

    episode_return: jax.Array
    episode_length: jax.Array
    info_total: dict[str, jax.Array]
    info_last: dict[str, jax.Array]
    scenario: Any = ()
    """The number of its scenario, where it comes from a stored set."""


class Placed(NamedTuple):
    """A state, and the number in its set of the scenario that it is in."""

    scenario: jax.Array
    state: State


class Draw(NamedTuple):
    """The randomness of one step: a key for the dynamics, and what an episode starts from that follows on an end.

    That is a start made beforehand, or the key that it will be made from (`JaxEnv.makes_starts_ahead`); None where
    nothing follows, and an ended copy stays where it is.
    """

    key: jax.Array
    start: Shown | jax.Array | None


@dataclass(frozen=True)
class JaxEnv:
    """`num_envs` copies of `env`; hashable, so that equal batches share one compiled program."""

    env: Environment
    num_envs: int
    id: str
    max_episode_steps: int | None = None
    """Time limit; None takes the environment's own."""
    options: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    """The options that `make_env` was given, for the record."""
    stored: ScenarioSet | None = None
    """The set that evaluation takes its scenarios from; None: those that the environment generates for it."""
    source: Source | None = None
    """How training draws scenarios from that set; None: the environment generates them."""

    env_wrappers: ClassVar[tuple[()]] = ()
    placement: ClassVar[str] = ""
    has_pictures: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Fill in the time limit."""
        if self.max_episode_steps is None:
            object.__setattr__(self, "max_episode_steps", self.env.max_episode_steps)

    @property
    def observation_space(self) -> Space:
        """The space of one copy's observations."""
        return self.env.observation_space

    @property
    def action_space(self) -> Space:
        """The space of one copy's actions."""
        return self.env.action_space

    @property
    def return_threshold(self) -> float | None:
        """The mean return from which on the task counts as solved."""
        return self.env.return_threshold

    @property
    def worker_settings(self) -> dict[str, Any]:
        """That there are none: it is stepped inside the compiled program."""
        return {"num_workers": 0}

    @property
    def num_held_out(self) -> int | None:
        """Number of scenarios in the evaluation set; None where episodes are not drawn from scenarios."""
        return num_held_out(self.env, self.stored) if isinstance(self.env, ScenarioEnvironment) else None

    @property
    def makes_starts_ahead(self) -> bool:
        """Whether a start is made for every step, though few are used: where that is cheaper than to look for ends."""
        return _outline(replace(self, num_envs=1)).makes_starts_ahead

    def remake(self, num_envs: int) -> "JaxEnv":
        """Return a batch of another size, for evaluation: its scenarios come from `held_out`."""
        return replace(self, num_envs=num_envs, source=None)

    def close(self) -> None:
        """Do nothing, for it holds nothing: both kinds of environment can be closed alike."""

    def supply(self, seed: int) -> Supply:
        """Return what a run with this seed draws its starts from."""
        return Supply() if self.source is None else StoredSupply(self.source, seed)

    def led(self, names: Sequence[str]) -> "JaxEnv":
        """Return environments whose parameters of these names a curriculum can lead."""
        if names and self.source is not None:
            raise LudusError(f"curriculum.{names[0]}: scenarios of a stored set are as they are; leave out scenarios")
        return replace(self, env=led(self.env, self.id, list(names))) if names else self

    def held_out(self, first: int, count: int) -> Scenario:
        """Return the scenarios of the episodes of an evaluation from number `first` on; () where there are none."""
        return held_out(self.env, self.stored, first, count) if isinstance(self.env, ScenarioEnvironment) else ()

    def kinds_held_out(self, count: int) -> list[str]:
        """Return of which kind the first `count` scenarios of the evaluation set are; nothing where there is none."""
        env = self.env
        if not isinstance(env, ScenarioEnvironment):
            return []
        names = [*env.templates["training"], *env.templates["evaluation"]]
        numbers = [
            int(number)
            for number in jax.vmap(lambda scenario: jnp.asarray(env.template(scenario)) + jnp.zeros((), jnp.int32))(
                self.held_out(0, count)
            )
        ]
        return [names[number] if number < len(names) else str(number) for number in numbers]

    def scene(self, state: BatchState) -> dict[str, jax.Array]:
        """Return what it takes to draw every copy and its observation does not show."""
        inner = state.env if self.source is None else state.env.state
        return dict(jax.vmap(self.env.scene)(inner))

    def begin(self, keys: jax.Array, scenarios: Scenario) -> BatchState:
        """Start the episodes of an evaluation, each from its own key and, where there are any, its own scenario."""
        if not isinstance(self.env, ScenarioEnvironment):
            return self.reset(keys)
        state, obs = jax.vmap(self.env.begin)(scenarios, keys)
        return self._begun(state, jax.vmap(self._shown)(state, obs))

    def reset(self, keys: jax.Array, chances: Any = ()) -> BatchState:
        """Start every copy, each from its own key `[B]`."""
        return self._begun(*jax.vmap(partial(self._start, chances=chances))(keys))

    def chances(self, course: Course) -> Any:
        """Return what the starts of a rollout are drawn by."""
        if self.source is not None:
            return self.source.chances(course.starts, course.data)
        return {**self.env.parameters, **course.parameters} if isinstance(self.env, ScenarioEnvironment) else ()

    def settle(self, starts: Tree, ended: jax.Array, episode: EpisodeSoFar) -> tuple[Tree, dict[str, Any]]:
        """Return what the drawing remembers after the episodes that ended in a rollout, and its figures."""
        if self.source is None:
            return starts, {}
        starts = self.source.settle(starts, episode.scenario, ended, episode)
        return starts, self.source.figures(starts)

    def draw(self, step_key: jax.Array, start_key: jax.Array, num_steps: int, chances: Any = ()) -> Draw:
        """Draw the randomness of `num_steps` steps at once: far cheaper than step by step."""
        shape = (num_steps, self.num_envs)
        keys, starts = spread(step_key, shape), spread(start_key, shape)
        start = partial(self._start, chances=chances)
        return Draw(keys, jax.vmap(jax.vmap(start))(starts) if self.makes_starts_ahead else starts)

    def step(self, state: BatchState, action: Action, draw: Draw, chances: Any = ()) -> tuple[BatchState, Step]:
        """Advance every copy and start the ended ones anew.

        The returned `Step` holds the true successor; the state's `obs` is what to act on next. `Step.info`
        is an `EpisodeSoFar`.
        """
        env_state, step = jax.vmap(self._advance)(state.env, action, draw.key)
        reward = jnp.asarray(step.reward, jnp.float32)
        episode_return, return_rest = add(state.episode_return, state.return_rest, reward)
        episode_length = state.episode_length + 1
        terminated = jnp.broadcast_to(step.terminated, reward.shape)
        truncated = jnp.broadcast_to(step.truncated, reward.shape)
        if self.max_episode_steps is not None:
            truncated = truncated | (episode_length >= self.max_episode_steps)
        ended = terminated | truncated
        before, after = (state.env, state.obs), (env_state, step.obs)
        env_state, obs = self._next(ended, draw.start, before, after, chances)
        last = {name: jnp.asarray(step.info[name], jnp.float32) for name in state.info}
        total = {name: state.info[name] + x for name, x in last.items()}
        after = BatchState(
            env_state,
            obs,
            jnp.where(ended, 0.0, episode_return),
            jnp.where(ended, 0.0, return_rest),
            jnp.where(ended, 0, episode_length),
            {name: jnp.where(ended, 0.0, x) for name, x in total.items()},
        )
        scenario = () if self.source is None else state.env.scenario
        so_far = EpisodeSoFar(episode_return, episode_length, total, last, scenario)
        return after, Step(step.obs, reward, terminated, truncated, so_far)

    @property
    def info_names(self) -> tuple[str, ...]:
        """The names under which its `Step.info` holds one number each."""
        return _outline(replace(self, num_envs=1)).info_names

    def _begun(self, env_state: State, obs: Observation) -> BatchState:
        count = len(jax.tree.leaves(obs)[0])
        zeros = jnp.zeros(count, jnp.float32)
        info = dict.fromkeys(self.info_names, zeros)
        return BatchState(env_state, obs, zeros, zeros, jnp.zeros(count, jnp.int32), info)

    def _next(self, ended: jax.Array, start: Any, before: Shown, after: Shown, chances: Any) -> Shown:
        """Return states and observations to go on from: those after the step, or where an episode ended its start."""
        if start is None:
            return choose_rows(ended, before, after)
        if self.makes_starts_ahead:
            return choose_rows(ended, start, after)
        return self._restarted(ended, start, after, chances)

    def _restarted(self, ended: jax.Array, keys: jax.Array, after: Shown, chances: Any) -> Shown:
        """Replace what has ended by new starts, each device those of its own copies."""

        def of_share(ended: jax.Array, keys: jax.Array, after: Shown, chances: Any) -> Shown:
            return restarted(ended, keys, partial(self._start, chances=chances), after)

        return placement.each(of_share, 0, 0, 0, None)(ended, keys, after, chances)

    def _start(self, key: jax.Array, chances: Any) -> Shown:
        """Start one copy from a key; `chances` is what all starts of a rollout are drawn by."""
        if not isinstance(self.env, ScenarioEnvironment):
            state, obs = self.env.reset(key)
            return state, self._shown(state, obs)
        of_scenario, of_start = jax.random.split(key)
        if self.source is None:
            scenario = generated(self.env, of_scenario, "training", chances or self.env.parameters)
            state, obs = self.env.begin(scenario, of_start)
            return state, self._shown(state, obs)
        number, scenario = self.source.draw(chances, of_scenario)
        state, obs = self.env.begin(scenario, of_start)
        return Placed(number, state), self._shown(state, obs)

    def _advance(self, state: State, action: Action, key: jax.Array) -> tuple[State, Step]:
        if self.source is None:
            state, step = self.env.step(state, action, key)
            return state, step._replace(obs=self._shown(state, step.obs))
        inner, step = self.env.step(state.state, action, key)
        return Placed(state.scenario, inner), step._replace(obs=self._shown(inner, step.obs))

    def _shown(self, state: State, obs: Observation) -> Observation:
        mask = self.env.action_mask(state)
        return obs if mask is None else Masked(obs, mask)


class _Outline(NamedTuple):
    """The shapes and types of an environment, known from tracing its functions."""

    info_names: tuple[str, ...]
    """The names under which its `Step.info` holds one number each."""
    makes_starts_ahead: bool


@lru_cache
def _outline(one: JaxEnv) -> _Outline:
    """Trace a reset and a step of a batch of one; of a stored set a start is never made that is not used."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    plain = replace(one, source=None)
    action = map_leaves(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), one.action_space)
    reset, start = jax.make_jaxpr(lambda key: plain._start(key, ()), return_shape=True)(key)
    step, (_, answer) = jax.make_jaxpr(plain._advance, return_shape=True)(start[0], action, key)
    info = answer.info if isinstance(answer.info, dict) else {}
    names = sorted(name for name, x in info.items() if getattr(x, "shape", None) == ())
    return _Outline(tuple(names), one.source is None and is_made_ahead(reset.jaxpr, step.jaxpr, start))
