"""The place of a process among those that train together: as it is told by settings, or by what has started it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ludus.types import LudusError

LAUNCHERS = ("none", "slurm", "variables")
LEAST_SECONDS = 3.0
"""Less patience than this takes a busy process for a lost one."""


@dataclass(frozen=True)
class HostOptions:
    """The processes that train together."""

    count: int = 1
    """How many there are; each runs the same command."""
    number: int | None = None
    """The number of this one, from 0 to count - 1."""
    address: str | None = None
    """HOST:PORT at which process 0 can be reached by all; it takes the port after that one too."""
    launcher: str = "none"
    """Where the above come from if not given: none, slurm, variables (WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT)."""
    patience: float = 300.0
    """Seconds to wait for the others at the start."""
    timeout: float = 30.0
    """Seconds of silence, or of no progress at a step that takes less, after which a process counts as lost."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.launcher not in LAUNCHERS:
            raise LudusError(f"hosts.launcher={self.launcher}: must be one of {', '.join(LAUNCHERS)}")
        for name, low in (("count", 1), ("number", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
                raise LudusError(f"hosts.{name}={value}: must be an integer of at least {low}")
        for name in ("patience", "timeout"):
            if not LEAST_SECONDS <= getattr(self, name) < 1e6:
                raise LudusError(f"hosts.{name}={getattr(self, name)}: must be at least {LEAST_SECONDS:g} seconds")


class Seat(NamedTuple):
    """The place of one process among those that train together."""

    count: int
    number: int
    host: str
    port: int


def seat_of(options: HostOptions, variables: Mapping[str, str] = os.environ) -> Seat | None:
    """Return the place of this process; None if it trains alone. LudusError if something is missing or wrong."""
    told = _told(options.launcher, variables)
    count = options.count if options.count > 1 else int(told.get("count", 1))
    if count == 1:
        return None
    number = told.get("number") if options.number is None else options.number
    address = options.address or told.get("address")
    if number is None:
        raise LudusError(f"hosts.number: is missing; give each of the {count} processes its own, from 0 to {count - 1}")
    if not 0 <= int(number) < count:
        raise LudusError(f"hosts.number={number}: must be from 0 to {count - 1}, less than hosts.count={count}")
    if not address:
        raise LudusError("hosts.address: is missing; give HOST:PORT of process 0, the same to all processes")
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65535:
        raise LudusError(f"hosts.address={address}: must be HOST:PORT, such as 10.0.0.1:29400")
    return Seat(count, int(number), host, int(port))


def _told(launcher: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return what a launcher says of its processes."""
    if launcher == "none":
        return {}
    slurm = {"count": "SLURM_NTASKS", "number": "SLURM_PROCID", "nodes": "SLURM_STEP_NODELIST", "job": "SLURM_JOB_ID"}
    hand = {"count": "WORLD_SIZE", "number": "RANK", "host": "MASTER_ADDR", "port": "MASTER_PORT"}
    names = slurm if launcher == "slurm" else hand
    if missing := [name for name in names.values() if not variables.get(name)]:
        hint = "start it with srun" if launcher == "slurm" else "torchrun and its like set them"
        raise LudusError(f"hosts.launcher={launcher}: {missing[0]} is not set; {hint}")
    told = {key: variables[name] for key, name in names.items()}
    for key in ("count", "number", *({"job", "port"} & told.keys())):
        if not told[key].isdigit():
            raise LudusError(f"hosts.launcher={launcher}: {names[key]}={told[key]}: must be a whole number")
    if launcher == "slurm":
        told |= {"host": first_node(told["nodes"]), "port": str(20_000 + int(told["job"]) % 20_000)}
    return {"count": told["count"], "number": told["number"], "address": f"{told['host']}:{told['port']}"}


def first_node(nodes: str) -> str:
    """Return the first of SLURM's list of nodes, such as `gpu[003-007,12],cpu1`."""
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    if found is None:
        raise LudusError(f"SLURM_STEP_NODELIST={nodes}: names no node")
    return "".join(part or "" for part in found.groups())
