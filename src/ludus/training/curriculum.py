"""Curricula: parameters of an environment that follow the progress of a run, or the return that it reaches.

Written as hyperparameters that follow a schedule are (`algorithms/schedules.py`), with one form more:

    reached:RETURN:START:END:STAGES    from START to END in so many stages; the next one comes when the mean return of
                                       the episodes that have ended in this one is RETURN or more

An episode keeps the parameters that held when the rollout began in which it began. Evaluation has those of the full
task, whatever a curriculum says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms import schedules
from ludus.algorithms.hyperparameters import PROBES
from ludus.algorithms.schedules import Schedule
from ludus.types import Array, EpisodeStats, LudusError

FORMS = f"{schedules.FORMS}, reached:RETURN:START:END:STAGES, or a number"
LEAST_EPISODES = 20
"""Of a stage, before its mean return is looked at."""


class Stage(NamedTuple):
    """The place of a curriculum that follows the return."""

    number: Array
    """0 at the start."""
    episodes: Array
    """That ended in this stage."""
    return_sum: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Reached:
    """Stage after stage, as the return is reached."""

    threshold: float
    start: float
    end: float
    stages: float

    def value(self, stage: Stage) -> Array:
        """Return the parameter's value in a stage."""
        return self.start + (self.end - self.start) * jnp.minimum(stage.number / self.stages, 1.0)

    def after(self, stage: Stage, stats: EpisodeStats) -> Stage:
        """Return the stage after a rollout; its episodes count for the stage that they ended in."""
        episodes, total = stage.episodes + stats.episodes, stage.return_sum + stats.return_sum
        is_reached = (episodes >= LEAST_EPISODES) & (total >= self.threshold * episodes) & (stage.number < self.stages)
        return Stage(stage.number + is_reached, jnp.where(is_reached, 0, episodes), jnp.where(is_reached, 0.0, total))


Curriculum = dict[str, Schedule | Reached]
"""By the name of the environment's parameter."""
State = dict[str, Stage]
"""Of those that follow the return."""


def read(given: Mapping[str, Any]) -> dict[str, str]:
    """Check what settings say, and return it as text; LudusError for the first that is wrong."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise LudusError(f"curriculum={given!r}: must have schedules by parameter, as in {{gravity: linear:5:15}}")
    return {name: str(_parsed(name, value)) for name, value in given.items()}


def curriculum_of(texts: Mapping[str, str]) -> Curriculum:
    """Return the curriculum of checked settings, with arrays for its numbers: none of them is compiled in."""
    made = {name: _parsed(name, text).made for name, text in texts.items()}
    return jax.tree.map(np.float32, made)


def begin(curriculum: Curriculum) -> State:
    """Return the first stages."""
    stage = Stage(np.int32(0), np.int32(0), np.float32(0))
    return {name: stage for name, part in curriculum.items() if isinstance(part, Reached)}


def values(curriculum: Curriculum, state: State, progress: Array) -> dict[str, Array]:
    """Return what every parameter is in the rollout that comes next."""
    return {
        name: jnp.asarray(part.value(state[name]) if isinstance(part, Reached) else part(progress), jnp.float32)
        for name, part in curriculum.items()
    }


def after(curriculum: Curriculum, state: State, stats: EpisodeStats) -> State:
    """Return the stages after a rollout."""
    return {name: part.after(state[name], stats) for name, part in curriculum.items() if isinstance(part, Reached)}


class _Parsed(NamedTuple):
    made: Schedule | Reached
    text: str

    def __str__(self) -> str:
        return self.text


def _parsed(name: str, value: object) -> _Parsed:
    key = f"curriculum.{name}"
    text = str(value)
    kind, *rest = text.split(":")
    if kind == "reached":
        return _Parsed(_reached(f"{key}={text}", rest), text)
    try:
        schedule = schedules.parse(key, value if isinstance(value, Schedule) else text)
        assert schedule is not None  # a text is one, or is refused
        is_finite = np.isfinite(schedule.probed(PROBES)).all()
    except LudusError as error:
        raise LudusError(f"{key}={text}: must be {FORMS}") from error
    if not is_finite or isinstance(schedule, schedules.Function):
        raise LudusError(f"{key}={text}: must be {FORMS}, of finite numbers")
    return _Parsed(schedule, text)


def _reached(where: str, words: list[str]) -> Reached:
    try:
        threshold, start, end, stages = map(float, words)
    except ValueError as error:
        raise LudusError(f"{where}: must be reached:RETURN:START:END:STAGES, such as reached:400:0:1:10") from error
    if not np.isfinite([threshold, start, end]).all() or stages < 1 or stages != int(min(stages, 1e6)):
        raise LudusError(f"{where}: needs finite numbers, and a whole number of stages, 1 or more")
    return Reached(threshold, start, end, stages)
