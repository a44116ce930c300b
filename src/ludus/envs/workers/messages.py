"""Messages between a pool and its workers: commands and answers of one byte, and texts behind those that are rare.

What is sent as objects goes between a process and its own children alone.
"""

import os
import select
import struct
from collections.abc import Callable
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from ludus.types import LudusError

STEP, RESET, RESTORE, SAVE, ACTIONS, CLOSE = b"s", b"r", b"e", b"w", b"a", b"c"
READY, DONE, LAYOUT, NAMES, FAULT = b"R", b"D", b"L", b"N", b"F"
LENGTH = struct.Struct("<I")


class Channels(NamedTuple):
    """File descriptors that a worker inherits."""

    commands: int
    answers: int
    recipe: int
    control: int
    actions: int
    results: int
    crash: int


class Recipe(NamedTuple):
    """Facts that a worker needs about the environments. `main` tells where the user's script is, if `make` is in it."""

    make: bytes
    id: str
    options: dict[str, Any]
    num_envs: int
    num_workers: int
    main: dict[str, Any]

    @classmethod
    def of(
        cls, make: Callable[[], object], id: str, options: dict[str, Any], num_envs: int, num_workers: int
    ) -> "Recipe":
        """Pack what makes an environment; LudusError if it cannot leave this process."""
        blob = sendable(make, id)
        return cls(blob, id, options, num_envs, num_workers, _main_module(blob, id))


def sendable(make: Callable[[], object], id: str) -> bytes:
    """Return what a worker makes its environments from; LudusError if that cannot leave this process."""
    try:
        return bytes(ForkingPickler.dumps(make))
    except Exception as error:  # pickling calls the user's own methods, which may raise anything
        reason = " ".join(str(error).split())
        raise LudusError(
            f"{id}: cannot be sent to workers ({reason}); define its class or function at the top level of a module, "
            "or use num_workers=0"
        ) from error


def is_from_script(blob: bytes) -> bool:
    """Say whether something that was made sendable comes from the script that is being run."""
    return b"__main__" in blob


def _main_module(blob: bytes, id: str) -> dict[str, Any]:
    """Say where a worker finds the user's script, if it needs it."""
    if not is_from_script(blob):
        return {}
    where = {name: value for name, value in spawn.get_preparation_data("").items() if name.startswith("init_main")}
    if not where:
        raise LudusError(
            f"{id}: is defined in a session, which workers cannot import; put it into a file, or use num_workers=0"
        )
    return where


def send(file: int, code: bytes, payload: bytes | memoryview | None = None) -> None:
    """Write a message: one byte, or a byte, a length and what it is about."""
    message = memoryview(code if payload is None else code + LENGTH.pack(len(payload)) + bytes(payload))
    while message:
        message = message[os.write(file, message) :]


def receive(file: int, limit: float | None = None) -> bytes:
    """Read what stands behind a byte; TimeoutError after `limit` seconds in which nothing came, EOFError at the end."""
    (length,) = LENGTH.unpack(read(file, LENGTH.size, limit))
    return read(file, length, limit)


def read(file: int, length: int, limit: float | None = None) -> bytes:
    """Read so many bytes; errors as those of `receive`."""
    poller, parts = select.poll(), b""
    poller.register(file, select.POLLIN)
    while len(parts) < length:
        if not poller.poll(None if limit is None else 1000 * limit):
            raise TimeoutError
        part = os.read(file, length - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts
