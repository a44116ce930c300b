"""Domain randomisation: an environment whose numbers, such as the length of a pole, are drawn anew for every episode.

A scenario is the drawn numbers. They take the place of the fields of the environment's dataclass, so whatever JAX
environment keeps its physics there can be randomised as it is (Tobin et al. 2017, https://arxiv.org/abs/1703.06907).
"""

import difflib
import math
import zlib
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ludus.envs.base import Action, Environment, Observation, State
from ludus.envs.scenarios.base import Parameters, Scenario, ScenarioEnvironment, Split
from ludus.types import Array, LudusError, Step

FORMS = "uniform:LOW:HIGH or loguniform:LOW:HIGH"
DIFFICULTY = "difficulty"
"""The parameter that ranges follow: at 0 they have shrunk to the environment's own value, at 1 they are whole."""


@dataclass(frozen=True)
class Range:
    """A range that a number is drawn from: evenly between two bounds, or evenly in its logarithm."""

    low: float
    high: float
    is_log: bool = False

    def draw(self, key: jax.Array, nominal: float, difficulty: Array) -> jax.Array:
        """Draw a number; with a difficulty below 1, from a range that lies nearer to the nominal value."""
        low, high, center = (math.log(x) if self.is_log else x for x in (self.low, self.high, nominal))
        share = jnp.clip(difficulty, 0.0, 1.0)
        low, high = center + share * (low - center), center + share * (high - center)
        number = low + (high - low) * jax.random.uniform(key)
        return jnp.exp(number) if self.is_log else number


Ranges = tuple[tuple[str, Range], ...]
"""By the name of a field, in the order of the names."""


@dataclass(frozen=True)
class Randomized(ScenarioEnvironment):
    """An environment some of whose numbers are drawn for every episode, or led by a curriculum."""

    env: Environment
    ranges: Ranges = ()
    held_out: Ranges = ()
    """The ranges of evaluation, where they are others than those of training."""
    led: tuple[str, ...] = ()
    """Numbers that are what a curriculum says at the start of an episode."""

    def __post_init__(self) -> None:
        """Be like the environment, and have the parameters: the difficulty, if anything is drawn, and what is led."""
        shared = ("observation_space", "action_space", "max_episode_steps", "return_threshold")
        parameters = ({DIFFICULTY: 1.0} if self.ranges else {}) | {name: self._nominal(name) for name in self.led}
        vars(self).update({name: getattr(self.env, name) for name in shared}, parameters=parameters)

    def generate(self, key: jax.Array, split: Split, parameters: Parameters) -> Scenario:
        """Draw the numbers of one episode, each from a key that its name alone decides."""
        ranges = dict(self.ranges)
        if split == "evaluation":
            ranges |= dict(self.held_out)
        difficulty = parameters.get(DIFFICULTY, 1.0)
        made = {}
        for name in sorted({*dict(self.ranges), *dict(self.held_out), *self.led}):
            nominal, own = self._nominal(name), jax.random.fold_in(key, zlib.crc32(name.encode()))
            drawn = ranges[name].draw(own, nominal, difficulty) if name in ranges else parameters.get(name, nominal)
            made[name] = jnp.asarray(drawn, jnp.float32)
        return made

    def begin(self, scenario: Scenario, key: jax.Array) -> tuple[State, Observation]:
        """Start an episode with the drawn numbers."""
        state, obs = replace(self.env, **scenario).reset(key)  # ty: ignore[invalid-argument-type]
        return {"drawn": scenario, "inner": state}, obs

    def step(self, state: State, action: Action, key: jax.Array) -> tuple[State, Step]:
        """Advance one step with the drawn numbers."""
        after, step = replace(self.env, **state["drawn"]).step(state["inner"], action, key)  # ty: ignore[invalid-argument-type]
        return {"drawn": state["drawn"], "inner": after}, step

    def action_mask(self, state: State) -> jax.Array | None:
        """Return the environment's own mask."""
        return replace(self.env, **state["drawn"]).action_mask(state["inner"])  # ty: ignore[invalid-argument-type]

    def _nominal(self, name: str) -> float:
        return float(getattr(self.env, name))


def randomized(env: Environment, id: str, drawn: object, held_out: object = None) -> Environment:
    """Return an environment whose numbers are drawn as options say: text by field, as in `gravity: uniform:5:15`."""
    ranges, others = _ranges(env, id, "randomize", drawn), _ranges(env, id, "eval_randomize", held_out)
    return _checked(Randomized(env, ranges, others), "randomize") if ranges or others else env


def led(env: Environment, id: str, names: list[str]) -> Environment:
    """Return an environment of which a curriculum can lead these parameters; LudusError if it has no such ones."""
    if not names:
        return env
    known = env.parameters if isinstance(env, ScenarioEnvironment) else {}
    numbers = numbers_of(env.env if isinstance(env, Randomized) else env)
    drawn = dict(env.ranges) if isinstance(env, Randomized) else {}
    for name in names:
        if name in drawn:
            raise LudusError(f"curriculum.{name}: env_options.randomize draws it already; leave out one of both")
        if name not in known and name not in numbers:
            raise LudusError(f"curriculum.{name}: {id} has no such parameter{_hint(name, [*known, *numbers])}")
    extra = tuple(sorted(name for name in names if name not in known))
    if not extra:
        return env
    ready = replace(env, led=extra) if isinstance(env, Randomized) else Randomized(env, led=extra)
    return _checked(ready, "curriculum")


def numbers_of(env: Environment) -> list[str]:
    """Return the names of the fields that hold floats; none of an environment that draws scenarios of its own."""
    if not is_dataclass(env) or isinstance(env, ScenarioEnvironment):
        return []
    return [field.name for field in fields(env) if isinstance(getattr(env, field.name), float)]


def _ranges(env: Environment, id: str, key: str, given: object) -> Ranges:
    if given is None:
        return ()
    where = f"env_options.{key}"
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise LudusError(f"{where}={given!r}: must have a range for each name, as in {where}.gravity=uniform:5:15")
    if isinstance(env, ScenarioEnvironment):
        raise LudusError(f"{where}: {id} draws scenarios of its own; give it its own options")
    known = numbers_of(env)
    for name in given:
        if name not in known:
            raise LudusError(f"{where}.{name}: {id} has no such number{_hint(name, known)}")
    return tuple((name, _range(f"{where}.{name}", given[name], getattr(env, name))) for name in sorted(given))


def _range(where: str, text: object, nominal: float) -> Range:
    kind, *ends = str(text).split(":")
    try:
        low, high = map(float, ends)
    except ValueError:
        kind, low, high = "", 0.0, 0.0
    if kind not in ("uniform", "loguniform") or not math.isfinite(low) or not math.isfinite(high):
        raise LudusError(f"{where}={text}: must be {FORMS}")
    if low > high:
        raise LudusError(f"{where}={text}: is upside down; write {kind}:{ends[1]}:{ends[0]}")
    if kind == "loguniform" and min(low, nominal) <= 0:
        raise LudusError(f"{where}={text}: loguniform needs numbers above 0 (the environment's own is {nominal})")
    return Range(low, high, kind == "loguniform")


def _checked(made: Randomized, what: str) -> Randomized:
    """Refuse an environment whose code cannot do with numbers that are traced."""

    def played(key: Any) -> Any:
        state, _ = made.begin(made.generate(key, "training", made.parameters), key)
        return made.action_mask(state)

    names = ", ".join(sorted({*dict(made.ranges), *dict(made.held_out), *made.led}))
    try:
        jax.eval_shape(played, jax.eval_shape(lambda: jax.random.key(0)))
    except Exception as error:  # whatever the environment's own code raises
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise LudusError(
            f"{what} of {names}: {type(made.env).__name__} cannot do with traced numbers ({reason})"
        ) from error
    return made


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; it has {', '.join(known) or 'none'}"
