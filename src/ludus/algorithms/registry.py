"""Algorithms and networks by name, to and from plain data: what config files and saved policies hold.

Ours have a short name. A user's own is named by its module, as in `my_module:MyPPO`, or was registered; what lies in a
script or a function has no name, and must be passed again.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from ludus.algorithms.base import Algorithm, check_algorithm
from ludus.algorithms.bc import BC
from ludus.algorithms.bc_sac import BCSAC
from ludus.algorithms.demonstration_reward import DemonstrationReward
from ludus.algorithms.hyperparameters import register
from ludus.algorithms.learned_reward import LearnedReward
from ludus.algorithms.ppo import PPO
from ludus.algorithms.preference_reward import PreferenceReward
from ludus.algorithms.regression_reward import RegressionReward
from ludus.algorithms.reward_source import RewardSource
from ludus.algorithms.sac import SAC
from ludus.algorithms.schedules import Function, Schedule
from ludus.networks.builders import NETWORKS
from ludus.networks.encoders import ENCODERS
from ludus.runtime import user_code
from ludus.types import LudusError

ALGORITHMS: dict[str, type] = {"ppo": PPO, "sac": SAC, "bc": BC, "bc_sac": BCSAC}
REWARDS: dict[str, type] = {
    "preferences": PreferenceReward,
    "demonstrations": DemonstrationReward,
    "regression": RegressionReward,
}
"""Sources of rewards that are learnt."""

CUSTOM = "custom"
"""Stands for a part that only the user's own code can build again."""


def register_algorithm(name: str, kind: type) -> None:
    """Let `algorithm=name` stand for a class of your own, in this process.

    Args:
        name: without a colon; another class may not have it.
        kind: a frozen dataclass whose instances keep the protocol `ludus.Algorithm`.
    """
    if not isinstance(kind, type):
        raise LudusError(f"register_algorithm: {kind!r} must be a class")
    user_code.enter(ALGORITHMS, name, kind, "register_algorithm")
    register(kind)


def describe(algorithm: Algorithm | RewardSource) -> dict[str, Any]:
    """Return an algorithm as plain data: its name, hyperparameters and network.

    With a learned reward that is what the algorithm inside is, and besides what its reward is.
    """
    if isinstance(algorithm, LearnedReward):
        return {**describe(algorithm.algorithm), "reward": describe(algorithm.reward)}
    fields = dataclasses.fields(algorithm) if dataclasses.is_dataclass(algorithm) else ()
    return {"name": name_of(algorithm), **{f.name: _plain(f.name, getattr(algorithm, f.name)) for f in fields}}


def name_of(algorithm: Algorithm | RewardSource) -> str:
    """Return the name by which an algorithm can be made again; `CUSTOM` if it has none."""
    if isinstance(algorithm, LearnedReward):
        return name_of(algorithm.algorithm)
    known = (name for name, kind in (ALGORITHMS | REWARDS).items() if type(algorithm) is kind)
    return next(known, None) or user_code.name_of(type(algorithm)) or CUSTOM


def build(
    description: dict[str, Any],
    instead: str = "pass it again, as load_policy(..., algorithm=...)",
    saved_in: str | None = None,
) -> Algorithm:
    """Return the algorithm of a description; for what only the user's code can build, say what to do instead.

    `saved_in` names the file that the description was read from: code that it names is followed by the rule of
    `runtime.user_code`.
    """
    values = dict(description)
    name, reward = values.pop("name"), values.pop("reward", None)
    network = values.get("network")
    chosen = ("", name), (".network", _name_in(network)), (".network.encoder", _name_in(_encoder_in(network)))
    for what, value in (*chosen, *_named(values)):
        if value == CUSTOM:
            raise LudusError(f"algorithm{what} is your own code: {instead}")
    if saved_in is not None:
        user_code.check_saved(code_in(description), saved_in)
    if "network" in values:
        values["network"] = builder(values["network"])
    kind = class_of(name)
    try:
        made = kind(**values)
    except TypeError as error:
        raise LudusError(f"algorithm={name}: cannot be made with {sorted(values)} ({error})") from error
    return made if reward is None else LearnedReward(made, build(reward, instead))  # ty: ignore[invalid-argument-type]


def class_of(name: str) -> type:
    """Return the class that a name stands for, which may be imported for it."""
    if name in ALGORITHMS | REWARDS:
        return (ALGORITHMS | REWARDS)[name]
    if ":" not in name:
        raise LudusError(f"algorithm={name}: must be one of {', '.join(ALGORITHMS)}, or your own as in my_module:MyPPO")
    kind = user_code.load(name)
    if not isinstance(kind, type):
        raise LudusError(f"algorithm={name}: must be a class, got {type(kind).__name__}")
    register(kind)
    return kind


@functools.lru_cache
def with_defaults(name: str) -> Algorithm:
    """Return the algorithm that a name stands for with its defaults; LudusError if it is none or needs more."""
    kind = class_of(name)
    try:
        made = kind()
    except TypeError as error:
        raise LudusError(f"algorithm={name}: each of its fields needs a default ({error})") from error
    if ":" in name and not isinstance(made, RewardSource):  # others are not checked before they train
        check_algorithm(made)
    return made


def builder(description: dict[str, Any]) -> Any:
    """Return what builds the network of a description; None if that is the user's own code."""
    values = dict(description)
    name = values.pop("name")
    if name == CUSTOM:
        return None
    if name in NETWORKS:
        if name == "gru":  # before there was a choice, actor and critic shared the memory
            values = {"shared": True, **values}
        if isinstance(encoder := values.get("encoder"), dict):
            values["encoder"] = _encoder(encoder)
        return NETWORKS[name](**values)
    return _own(name, values)


def _encoder(description: dict[str, Any]) -> Any:
    """Return what builds the encoder of a description."""
    values = dict(description)
    name = values.pop("name")
    return ENCODERS[name](**values) if name in ENCODERS else _own(name, values)


def _own(name: str, values: dict[str, Any]) -> Any:
    """Return the user's own network or encoder: a class or function, or a dataclass with these fields."""
    found = user_code.load(name)
    return found(**values) if dataclasses.is_dataclass(found) else found


def code_in(description: dict[str, Any]) -> list[str]:
    """Return the names of users' own code in a description."""
    network = description.get("network")
    names = description.get("name"), _name_in(network), _name_in(_encoder_in(network))
    found, inside = [name for name in names if isinstance(name, str) and ":" in name], description.get("reward")
    return found + (code_in(inside) if isinstance(inside, dict) else [])


def _name_in(part: Any) -> Any:
    return part.get("name") if isinstance(part, dict) else None


def _encoder_in(network: Any) -> Any:
    return network.get("encoder") if isinstance(network, dict) else None


def _named(values: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(f".{name}", value) for name, value in values.items() if isinstance(value, str)]


def _plain(name: str, value: Any) -> Any:
    """Return a hyperparameter as JSON and YAML know it."""
    if name == "network":
        return _describe_part(NETWORKS, value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Schedule):
        return CUSTOM if isinstance(value, Function) else str(value)
    if isinstance(value, tuple):
        return [_plain("", entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else CUSTOM


def _describe_part(kinds: dict[str, type], part: Any) -> dict[str, Any]:
    """Ours by its short name; a user's own by that of a class, of a function, or of a dataclass and its fields."""
    known = next((name for name, kind in kinds.items() if type(part) is kind), None)
    is_made = dataclasses.is_dataclass(part) and not isinstance(part, type)
    name = known or user_code.name_of(type(part) if is_made else part)
    if name is None:
        return {"name": CUSTOM}
    fields = dataclasses.asdict(part) if is_made else {}
    if known and kinds is NETWORKS:
        fields["encoder"] = _describe_part(ENCODERS, part.encoder)
    return {"name": name, **{key: list(x) if isinstance(x, tuple) else x for key, x in fields.items()}}
