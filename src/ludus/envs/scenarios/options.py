"""An environment's options about its scenarios: numbers to draw, and a stored set with how it is sampled."""

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from ludus.envs.base import Environment
from ludus.envs.scenarios.base import ScenarioEnvironment
from ludus.envs.scenarios.randomized import randomized
from ludus.envs.scenarios.source import Sampling, Source
from ludus.envs.scenarios.stored import ScenarioSet, opened
from ludus.types import IS_SUCCESS, LudusError

MOST_BYTES = 1 << 30
"""Scenarios of so many bytes are on the device at a time, if nothing else was asked for."""
REFRESH = 50


class ScenarioOptions(NamedTuple):
    """The options that every environment in JAX has; all others are its own."""

    randomize: object = None
    """A range for each field to draw, as in `{"gravity": "uniform:5:15"}`."""
    eval_randomize: object = None
    """The ranges of evaluation, where they are others."""
    scenarios: object = None
    """The folder of a stored set."""
    scenario_sampling: object = "uniform"
    scenario_buffer: object = None
    """How many of its scenarios are on the device at a time, at least; None: all, if they fit into a gigabyte."""
    scenario_refresh: object = REFRESH
    """Iterations after which those on the device are exchanged, where they are not all."""


def taken(options: dict[str, Any]) -> tuple[ScenarioOptions, dict[str, Any]]:
    """Return what options say of scenarios, and the options of the environment itself."""
    own = {name: value for name, value in options.items() if name not in ScenarioOptions._fields}
    return ScenarioOptions(**{name: value for name, value in options.items() if name in ScenarioOptions._fields}), own


def arranged(env: Environment, id: str, about: ScenarioOptions) -> tuple[Environment, ScenarioSet | None]:
    """Return an environment with the scenarios that its options ask for, and the set that they come from, if any."""
    if about.randomize is not None or about.eval_randomize is not None:
        env = randomized(env, id, about.randomize, about.eval_randomize)
    if about.scenarios is None:
        for name in ("scenario_sampling", "scenario_buffer", "scenario_refresh"):
            if getattr(about, name) != ScenarioOptions._field_defaults[name]:
                raise LudusError(f"env_options.{name}: is about a stored set; give its folder as env_options.scenarios")
        return env, None
    if not isinstance(env, ScenarioEnvironment):
        raise LudusError(f"env_options.scenarios={about.scenarios}: {id} draws no scenarios; give randomize a range")
    return env, opened(str(about.scenarios), env, id)


def source_of(
    env: Environment, id: str, stored: ScenarioSet, about: ScenarioOptions, info_names: Sequence[str]
) -> Source:
    """Return how training draws from a set; `info_names` are what the environment says in its info."""
    assert isinstance(env, ScenarioEnvironment)  # or it would have no set
    sampling, buffer, refresh = about.scenario_sampling, about.scenario_buffer, about.scenario_refresh
    if sampling not in get_args(Sampling):
        raise LudusError(f"env_options.scenario_sampling={sampling}: must be one of {', '.join(get_args(Sampling))}")
    for name, value in (("scenario_buffer", 1 if buffer is None else buffer), ("scenario_refresh", refresh)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise LudusError(f"env_options.{name}={value}: must be an integer of at least 1")
    shards = stored.manifest.of("training")
    if not shards:
        raise LudusError(f"{stored.folder}: has no scenarios for training; ludus scenarios make and split give it some")
    each = shards[0].scenarios
    size = sum(kind.nbytes for kind in stored.manifest.kinds.values())
    wanted = buffer if isinstance(buffer, int) else max(1, MOST_BYTES // size)
    held = min(len(shards), max(1, wanted // each if buffer is None else -(-wanted // each)))
    threshold = None
    if sampling == "difficulty" and IS_SUCCESS not in info_names:
        threshold = env.return_threshold
        if threshold is None:
            raise LudusError(
                f"env_options.scenario_sampling=difficulty: {id} does not say when an episode fails; it needs "
                f"{IS_SUCCESS} in its info, or a return_threshold"
            )
    return Source(env, stored, sampling, held, int(refresh), threshold)  # ty: ignore[invalid-argument-type]
