"""Algorithms and networks by name, to and from plain data: what config files and saved policies hold."""

import dataclasses
from typing import Any

import numpy as np

from ludus.learning.ppo import PPO
from ludus.learning.sac import SAC
from ludus.networks.actor_critic import NETWORKS
from ludus.types import LudusError

ALGORITHMS: dict[str, type] = {"ppo": PPO, "sac": SAC}

CUSTOM = "custom"
"""Stands for a network or optimiser that only the user's own code can build again."""


def describe(algorithm: Any) -> dict[str, Any]:
    """Return an algorithm as plain data: its name, hyperparameters and network."""
    name = name_of(algorithm)
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    values["network"] = _describe_network(values["network"])
    values["optimizer"] = None if values["optimizer"] is None else CUSTOM
    return {"name": name, **values}


def name_of(algorithm: Any) -> str:
    """Return the name of an algorithm; one that has none here is refused, since nothing could build it again."""
    for name, kind in ALGORITHMS.items():
        if type(algorithm) is kind:
            return name
    own, known = type(algorithm).__name__, " or ".join(f"ludus.{kind.__name__}" for kind in ALGORITHMS.values())
    raise LudusError(
        f"algorithm={own}: an algorithm of your own, even a subclass, cannot be trained or saved yet; it must be "
        f"{known}"
    )


def build(description: dict[str, Any], instead: str = "pass it again, as load_policy(..., algorithm=...)") -> Any:
    """Return the algorithm of a description; for what only the user's code can build, say what to do instead."""
    values = dict(description)
    name, network, optimizer = values.pop("name"), values.pop("network"), values.pop("optimizer", None)
    for what, given in (("network", network["name"]), ("optimizer", optimizer)):
        if given == CUSTOM:
            raise LudusError(f"algorithm.{what} is your own code: {instead}")
    return ALGORITHMS[name](**values, network=builder(network))


def builder(description: dict[str, Any]) -> Any:
    """Return what builds the network of a description; None if that is the user's own code."""
    values = dict(description)
    name = values.pop("name")
    return None if name == CUSTOM else NETWORKS[name](**values)


def _describe_network(network: Any) -> dict[str, Any]:
    for name, kind in NETWORKS.items():
        if type(network) is kind:
            fields = dataclasses.asdict(network)
            return {"name": name, **{k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}}
    return {"name": CUSTOM}
