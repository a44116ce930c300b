"""The options of the environment `driving`, checked before anything is traced."""

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ludus.envs.scenarios.driving.drivers import DRIVERS
from ludus.envs.scenarios.driving.rewards import REWARDS, TERMINATIONS
from ludus.types import LudusError

CHOICES = {
    "others": ("idm", "log"),
    "driver": DRIVERS,
    "variant": ("none", "noisy", "adversarial"),
    "observation": ("flat", "structured"),
}
LEAST = {
    "num_cars": 1,
    "scenario_length": 1,
    "past_steps": 1,
    "objects": 1,
    "object_steps": 1,
    "road_points": 1,
    "traffic_lights": 1,
    "targets": 1,
}
MOST = {"num_cars": 32, "traffic_lights": 8, "road_points": 224}


def checked(env: Any) -> dict[str, Any]:
    """Return the options of an environment that are kept in another form; LudusError names one that is wrong."""
    for name, choices in CHOICES.items():
        value = getattr(env, name)
        if value not in choices:
            raise LudusError(f"env_options.{name}={value}: must be one of {', '.join(choices)}")
    for name, least in LEAST.items():
        value = getattr(env, name)
        most = env.num_cars if name == "objects" else MOST.get(name, math.inf)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            upper = f" and at most {most}" if most < math.inf else ""
            raise LudusError(f"env_options.{name}={value}: must be an integer of at least {least}{upper}")
    if env.others == "log" and env.variant == "adversarial":
        raise LudusError("env_options.variant=adversarial: an adversary does not follow a log; leave out others=log")
    return {
        "reward": _weights(env.reward),
        "termination_keys": _keys(env.termination_keys),
        "road_box": _box(env.road_box),
    }


def _weights(given: Any) -> tuple[tuple[str, float], ...]:
    if not isinstance(given, Mapping | tuple):
        raise LudusError(f"env_options.reward={given}: must be weights by name, as in env_options.reward.progress=1.0")
    given = dict(given)
    for name, weight in given.items():
        _check_known("env_options.reward", name, REWARDS)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise LudusError(f"env_options.reward.{name}={weight}: must be a finite number")
    return tuple((name, float(given.get(name, weight))) for name, weight in REWARDS.items())


def _keys(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise LudusError(f"env_options.termination_keys={given}: must be a list, as in [offroad,overlap]")
    keys = tuple(given)
    for key in keys:
        _check_known("env_options.termination_keys", key, TERMINATIONS)
    return keys


def _box(given: Any) -> tuple[float, float, float]:
    values = tuple(given) if isinstance(given, list | tuple) else ()
    if len(values) != 3 or not all(isinstance(x, int | float) and math.isfinite(x) and x > 0 for x in values):
        raise LudusError(f"env_options.road_box={given}: must be metres ahead, behind and aside, as in [70,5,20]")
    ahead, behind, aside = map(float, values)
    return ahead, behind, aside


def _check_known(where: str, name: object, known: Iterable[str]) -> None:
    names = list(known)
    if name not in names:
        close = difflib.get_close_matches(str(name), names, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        raise LudusError(f"{where}: there is no {name}; {hint}")
