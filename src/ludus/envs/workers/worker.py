"""The process of an environment worker: it steps its part of a batch and writes the results into shared memory.

Nothing here may import JAX: a worker should start fast, stay small and leave the accelerator alone. The messages are
one byte each way for a step; only what is rare carries a text behind it.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
import threading
import traceback
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from ludus.envs.base import HostStep
from ludus.envs.host.info_stats import EpisodeInfo
from ludus.envs.workers.messages import (
    ACTIONS,
    DONE,
    FAULT,
    LAYOUT,
    NAMES,
    READY,
    RESET,
    RESTORE,
    SAVE,
    STEP,
    Channels,
    Recipe,
    receive,
    send,
)  # fmt: skip
from ludus.envs.workers.shared_memory import (
    NO_SEED,
    Control,
    Results,
    map_tree,
    results_like,
    row_shapes,
    shared_arrays,
)  # fmt: skip
from ludus.runtime.output import Output
from ludus.types import LudusError

is_worker = False
"""True in a worker: a script that makes workers there is being run a second time."""


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
        trace = traceback.format_exc() if message is None else "\n".join(getattr(error, "__notes__", ()))
        fault = {"message": message, "summary": summary, "trace": trace}
        with contextlib.suppress(OSError):
            send(files.answers, FAULT, json.dumps(fault).encode())


class _Server:
    """The environments of one worker and where their results go."""

    def __init__(self, recipe: Recipe, files: Channels, control: Control, number: int, rows: slice):
        from ludus.envs.adapters.gymnasium import GymnasiumEnv

        if recipe.main:
            spawn.prepare(recipe.main)
        self.files, self.rows, self.num_envs = files, rows, recipe.num_envs
        self.seeds, self.generators = control.seeds[rows], control.generators[number]
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
            elif command == SAVE:
                self.generators[:] = self.batch.generators.snapshot()
                send(self.files.answers, DONE)
            elif command == ACTIONS:
                actions = shared_arrays(self.files.actions, self._payload(), self.num_envs)
                self.actions = map_tree(lambda x: x[self.rows], actions)
            else:
                self.batch.close()
                return

    def _payload(self) -> Any:
        """Read what the parent, whose child this is, has sent behind a command."""
        return ForkingPickler.loads(receive(self.files.commands))

    def _restore(self, saved: dict[str, np.ndarray]) -> None:
        """Play episodes again; returns lie where rewards do, what was lost and what has drawn where the ends do."""
        recalled = self.batch.restore(saved)
        assert self.results is not None
        map_tree(np.copyto, self.results.obs, recalled.obs)
        self.results.reward[:], self.results.terminated[:] = recalled.episode_return, recalled.is_lost
        self.results.truncated[:] = recalled.has_drawn
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


def _die_with(parent: int, commands: int) -> None:
    """End this process when its parent ends, however that happens and whatever an environment is doing then."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    threading.Thread(target=_watch, args=(commands,), daemon=True).start()
    if os.getppid() != parent:  # it ended before the kernel knew of our wish
        os._exit(1)


def _watch(commands: int) -> None:
    """End with the parent where no signal tells of its death: the other end of the pipe closes with it."""
    poller = select.poll()
    poller.register(commands, 0)
    poller.poll()
    os.kill(os.getpid(), signal.SIGKILL)
