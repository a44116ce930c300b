"""The inside of an environment worker: it steps its share of a batch and writes what came out into shared memory.

Nothing here may import JAX: a worker should start fast, stay small and leave the accelerator alone. The messages are
one byte each way for a step; only what is rare carries a text behind it.
"""

import contextlib
import ctypes
import faulthandler
import json
import mmap
import os
import select
import signal
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np

from ludus.envs.base import HostStep
from ludus.envs.episode_info import CAPACITY, EpisodeInfo
from ludus.output import Output
from ludus.types import LudusError

STEP, RESET, RESTORE, ACTIONS, CLOSE = b"s", b"r", b"e", b"a", b"c"
READY, DONE, LAYOUT, NAMES, FAULT = b"R", b"D", b"L", b"N", b"F"
NO_SEED = -1
LENGTH = struct.Struct("<I")
ALIGNMENT = 64

is_worker = False
"""Whether this process is a worker: there, a script that makes workers is being run a second time."""


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
    """What a worker is told about the environments. `main` says where the user's script is, if `make` comes from it."""

    make: bytes
    id: str
    options: dict[str, Any]
    num_envs: int
    num_workers: int
    main: dict[str, Any]


class Results(NamedTuple):
    """What workers write: the fields of a `HostStep`, and the running totals of `info`."""

    next_obs: Any
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to the leaves of dicts and tuples, as `jax.tree.map` would."""
    if isinstance(tree, dict):
        return {name: map_tree(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    if isinstance(tree, tuple):
        parts = [map_tree(function, *both) for both in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return function(tree, *others)


def row_shapes(tree: Any) -> Any:
    """Return a tree of empty arrays that has the shapes and types of these rows."""
    return map_tree(lambda x: np.zeros((0, *np.shape(x)[1:]), np.asarray(x).dtype), tree)


def results_like(obs: Any) -> Results:
    """Return the shapes of everything a worker writes, given those of its observations."""
    flag = np.zeros(0, bool)
    return Results(obs, obs, np.zeros(0, np.float32), flag, flag, np.zeros((0, 3, CAPACITY)))


def anonymous_file(name: str) -> int:
    """Return a file in memory that has no name on disk, so that nothing can be left over."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def shared_arrays(file: int, shapes: Any, num_rows: int) -> Any:
    """Map a tree of arrays `[num_rows, ...]` into a file; whoever calls it with the same arguments sees the same."""
    offset = 0

    def place(shape: np.ndarray) -> tuple[np.ndarray, int]:
        nonlocal offset
        start, size = offset, num_rows * shape.dtype.itemsize * int(np.prod(shape.shape[1:]))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
        return shape, start

    placed: list[tuple[np.ndarray, int]] = []
    map_tree(lambda shape: placed.append(place(shape)), shapes)
    if os.fstat(file).st_size < offset:
        os.ftruncate(file, offset)
    memory, places = mmap.mmap(file, max(offset, 1)), iter(placed)

    def view(shape: np.ndarray) -> np.ndarray:
        return np.ndarray((num_rows, *shape.shape[1:]), shape.dtype, memory, next(places)[1])

    return map_tree(view, shapes)


class Control(NamedTuple):
    """What is shared before anything is known of the environments."""

    at: np.ndarray
    """For each worker: which of its environments is at work, and whether it resets."""
    seeds: np.ndarray
    """For each environment: the seed of its next reset."""

    @classmethod
    def shared(cls, file: int, num_envs: int, num_workers: int) -> "Control":
        """Map it into a file."""
        flat = shared_arrays(file, np.zeros(0, np.int64), 2 * num_workers + num_envs)
        return cls(flat[: 2 * num_workers].reshape(num_workers, 2), flat[2 * num_workers :])


def serve(number: int, first: int, count: int, parent: int, *channels: int) -> None:
    """Run worker `number`, which has environments `first` to `first + count - 1`, until it is told to close."""
    global is_worker
    is_worker = True
    files = Channels(*channels)
    _die_with(parent, files.commands)
    for file in files:
        os.set_inheritable(file, False)
    os.register_at_fork(after_in_child=lambda: list(map(os.close, files)))  # what it forks cannot speak for it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes its workers
    sys.stdout, sys.stderr = Output(sys.stdout), Output(sys.stderr)  # an environment may print, whoever reads
    faulthandler.enable(files.crash)
    faulthandler.register(signal.SIGUSR1, files.crash, all_threads=True)
    recipe = Recipe(*ForkingPickler.loads(os.pread(files.recipe, os.fstat(files.recipe).st_size, 0)))
    control = Control.shared(files.control, recipe.num_envs, recipe.num_workers)
    try:
        _Server(recipe, files, control, number, slice(first, first + count)).run()
    except BaseException as error:  # whatever an environment raises, SystemExit too, is the parent's to judge
        message = str(error) if isinstance(error, LudusError) else None
        summary = traceback.format_exception_only(error)[-1].strip()
        fault = {"message": message, "summary": summary, "trace": traceback.format_exc()}
        with contextlib.suppress(OSError):
            send(files.answers, FAULT, json.dumps(fault).encode())


class _Server:
    """The environments of one worker and where their results go."""

    def __init__(self, recipe: Recipe, files: Channels, control: Control, number: int, rows: slice):
        from ludus.envs.gymnasium import GymnasiumEnv

        if recipe.main:
            spawn.prepare(recipe.main)
        self.files, self.rows, self.num_envs = files, rows, recipe.num_envs
        self.seeds = control.seeds[rows]
        make = ForkingPickler.loads(recipe.make)
        count = rows.stop - rows.start
        self.batch = GymnasiumEnv(make, count, recipe.id, recipe.options, memoryview(control.at[number]))
        self.actions: Any = None
        self.results: Results | None = None
        self.names_told = 0
        send(files.answers, READY, ForkingPickler.dumps((self.batch.observation_space, self.batch.action_space)))

    def run(self) -> None:
        """Obey until told to close; the pipe's end says the same."""
        commands = self.files.commands
        while True:
            command = os.read(commands, 1)
            if command == STEP:
                self._write(self.batch.step(map_tree(np.array, self.actions)))
            elif command == RESET:
                self._reset()
            elif command == RESTORE:
                self._restore(self._payload())
            elif command == ACTIONS:
                actions = shared_arrays(self.files.actions, self._payload(), self.num_envs)
                self.actions = map_tree(lambda x: x[self.rows], actions)
            else:
                self.batch.close()
                return

    def _payload(self) -> Any:
        """Read what the parent, whose child this is, has sent behind a command."""
        (length,) = LENGTH.unpack(_read(self.files.commands, LENGTH.size))
        return ForkingPickler.loads(_read(self.files.commands, length))

    def _restore(self, saved: dict[str, np.ndarray]) -> None:
        """Play episodes again; returns lie where rewards do, and what was lost where terminations do."""
        recalled = self.batch.restore(saved)
        assert self.results is not None
        map_tree(np.copyto, self.results.obs, recalled.obs)
        self.results.reward[:], self.results.terminated[:] = recalled.episode_return, recalled.is_lost
        self._tell_names(self.batch.info)

    def _reset(self) -> None:
        seeds = self.seeds[self.seeds != NO_SEED].tolist()
        obs = self.batch.reset(seeds)
        if self.results is not None:
            map_tree(np.copyto, self.results.obs, obs)
            send(self.files.answers, DONE)
            return
        # Only now are the observations known as they really come, masks and all.
        shapes = row_shapes(obs)
        results = shared_arrays(self.files.results, results_like(shapes), self.num_envs)
        self.results = map_tree(lambda x: x[self.rows], results)
        map_tree(np.copyto, self.results.obs, obs)
        send(self.files.answers, LAYOUT, ForkingPickler.dumps(shapes))

    def _write(self, outcome: HostStep) -> None:
        assert self.results is not None
        map_tree(np.copyto, tuple(self.results[:5]), tuple(outcome[:5]))
        self._tell_names(outcome.info[0])

    def _tell_names(self, info: EpisodeInfo) -> None:
        """Answer, with the names in `info` if there are new ones."""
        assert self.results is not None
        names = info.names
        if names:
            self.results.info[:, :, : len(names)] = info.values[:, :, : len(names)]
        if len(names) > self.names_told:
            self.names_told = len(names)
            send(self.files.answers, NAMES, json.dumps(names).encode())
        else:
            os.write(self.files.answers, DONE)


def send(file: int, code: bytes, payload: Any = None) -> None:
    """Write a message: one byte, or a byte, a length and what it is about."""
    message = memoryview(code if payload is None else code + LENGTH.pack(len(payload)) + bytes(payload))
    while message:
        message = message[os.write(file, message) :]


def _read(file: int, length: int) -> bytes:
    parts = b""
    while len(parts) < length:
        part = os.read(file, length - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts


def _die_with(parent: int, commands: int) -> None:
    """End this process when its parent ends, however that happens and whatever an environment is doing then."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    threading.Thread(target=_watch, args=(commands,), daemon=True).start()
    if os.getppid() != parent:  # it ended before the kernel knew of our wish
        os._exit(1)


def _watch(commands: int) -> None:
    """Where there is no parent-death signal: the other end of the pipe closes with the parent."""
    poller = select.poll()
    poller.register(commands, 0)
    poller.poll()
    os.kill(os.getpid(), signal.SIGKILL)
