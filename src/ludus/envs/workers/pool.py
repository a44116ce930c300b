"""Workers as processes of this machine: how they are started, what they share, and how they are spoken with.

Each worker has consecutive environments of the batch. Observations, actions, rewards and flags lie in memory that all
share; a step is one byte to each worker and one byte back. Threads are not offered: Gymnasium's Python environments
hold the interpreter's lock while they step (`benchmarks/workers.py` measures it), so threads only add their own cost.

Workers are started as fresh interpreters: to fork a process in which JAX has threads would be unsafe, and
`multiprocessing` would run the user's script again in each of them.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from ludus.envs.base import Action, HostStep, Observation
from ludus.envs.host.info_stats import EpisodeInfo
from ludus.envs.workers import worker as worker_process
from ludus.envs.workers.messages import (
    ACTIONS,
    CLOSE,
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
    read,
    receive,
    send,
)  # fmt: skip
from ludus.envs.workers.shared_memory import (
    NO_SEED,
    Control,
    Results,
    anonymous_file,
    map_tree,
    results_like,
    row_shapes,
    shared_arrays,
)  # fmt: skip
from ludus.envs.workers.transport import Fault, Place
from ludus.runtime import processes
from ludus.spaces import Space
from ludus.types import LudusError

CLOSE_SECONDS = 2.0
"""Time to close environments before their process is ended."""
TELLING_SECONDS = 1.0
"""Time for a worker that hangs to write down where it is, on a machine that may be busy."""


@dataclass(eq=False)
class Worker:
    """One process, the pipes to it, and what is known of it."""

    process: subprocess.Popen
    commands: int
    answers: int
    crash: int
    info: EpisodeInfo | None = None
    knows_actions: bool = False
    is_busy: bool = False
    since: float = 0.0
    last_seen: tuple[int, int] = (0, 0)

    def send(self, command: bytes, payload: bytes | memoryview | None = None) -> None:
        """Give a command; a worker that is gone will be noticed when its answer is waited for."""
        self.is_busy, self.since = True, time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            send(self.commands, command, payload)

    def end(self) -> int:
        """End the process and whatever it has started itself, free what belongs to it, and return its exit code."""
        code = processes.guard_of(os.getpid()).end(self.process)
        for file in (self.commands, self.answers, self.crash):
            with contextlib.suppress(OSError):
                os.close(file)
        self.commands = self.answers = self.crash = -1
        return code

    def died(self) -> Fault:
        """Say how the process has ended."""
        code = processes.guard_of(os.getpid()).end(self.process)
        return Fault(
            f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}", self.crashed()
        )

    def crashed(self) -> str:
        """Return what the interpreter wrote down when it crashed or was asked where it is."""
        return os.pread(self.crash, 10_000, 0).decode(errors="replace")


class WorkerPool:
    """A `Transport` whose workers are child processes."""

    def __init__(self, make: Callable[[], object], num_envs: int, id: str, options: dict[str, Any], num_workers: int):
        """Get everything ready that the workers will share; none is started yet."""
        if worker_process.is_worker:
            raise LudusError(
                f"{id}: this script makes environment workers while a worker imports it; "
                "put what it does under `if __name__ == '__main__':`, or the environment into a module of its own"
            )
        self.num_envs, self.rows = num_envs, _slices(num_envs, num_workers)
        self.last_action: Action | None = None
        self._recipe = Recipe.of(make, id, options, num_envs, num_workers)
        self._files = {name: anonymous_file(f"ludus-{name}") for name in ("recipe", "control", "actions", "results")}
        os.write(self._files["recipe"], ForkingPickler.dumps(tuple(self._recipe)))
        self._control = Control.shared(self._files["control"], num_envs, num_workers)
        self._control.seeds[:] = NO_SEED
        self._workers: dict[int, Worker] = {}
        self._end = weakref.finalize(self, _end, self._workers, list(self._files.values()))
        self._spaces: tuple[Space, Space] | None = None
        self._results: Results | None = None
        self._outcome: HostStep | None = None

    @property
    def spaces(self) -> tuple[Space, Space]:
        """The spaces of observations and actions."""
        assert self._spaces is not None
        return self._spaces

    @property
    def results(self) -> Results:
        """The arrays that the workers write, in the memory that all share."""
        assert self._results is not None
        return self._results

    @property
    def outcome(self) -> HostStep:
        """The results as a step of the batch."""
        assert self._outcome is not None
        return self._outcome

    @property
    def generators(self) -> np.ndarray:
        """The state of each worker's random generators when `save` was answered, `[num_workers, words]`."""
        return self._control.generators.astype(np.uint32)

    @property
    def is_open(self) -> bool:
        """True until it is closed."""
        return self._end.alive

    def start(self, worker: int) -> None:
        """Start a process and let it make its environments."""
        rows = self.rows[worker]
        commands, to_worker = os.pipe()
        from_worker, answers = os.pipe()
        crash = anonymous_file("ludus-crash")
        channels = Channels(commands, answers, *self._files.values(), crash)
        numbers = (worker, rows.start, rows.stop - rows.start, os.getpid(), *channels)
        code = f"from ludus.envs.workers.worker import serve; serve{numbers}"
        self._control.at[worker] = 0, 0
        try:
            process = _spawner(os.getpid()).submit(_launch, code, channels).result()
        finally:
            os.close(commands)
            os.close(answers)
        self._workers[worker] = Worker(process, to_worker, from_worker, crash, since=time.monotonic(), is_busy=True)

    def reset(self, worker: int, seeds: Sequence[int]) -> None:
        """Start an episode in each of the worker's first environments, seeded one by one."""
        mine = self._control.seeds[self.rows[worker]]
        mine[:] = NO_SEED
        mine[: len(seeds)] = seeds
        self._workers[worker].send(RESET)

    def step(self, action: Action) -> None:
        """Let every worker advance its environments."""
        if self.last_action is None:
            self.last_action = shared_arrays(self._files["actions"], row_shapes(action), self.num_envs)
        map_tree(np.copyto, self.last_action, action)
        for worker in self._workers.values():
            if not worker.knows_actions:
                worker.send(ACTIONS, ForkingPickler.dumps(row_shapes(self.last_action)))
                worker.knows_actions = True
            worker.send(STEP)

    def restore(self, worker: int, saved: dict[str, np.ndarray]) -> None:
        """Let a worker come back to where a snapshot of its environments was taken."""
        self._workers[worker].send(RESTORE, ForkingPickler.dumps(saved))

    def save(self, worker: int) -> None:
        """Let a worker write down where the random generators of its process are."""
        self._workers[worker].send(SAVE)

    def unanswered(self) -> list[int]:
        """Return the workers that were given a command whose answer nobody has waited for."""
        return [number for number, worker in self._workers.items() if worker.is_busy]

    def place(self, worker: int) -> Place:
        """Return what a worker is doing."""
        index, is_resetting = self._control.at[worker].tolist()
        return Place(self.rows[worker].start + index, bool(is_resetting))

    def end(self, worker: int) -> None:
        """End a worker's process, and whatever that has started itself."""
        self._workers[worker].end()

    def close(self) -> None:
        """Close the environments and end the processes."""
        self._end()

    def wait(self, workers: Sequence[int], limit: float) -> list[tuple[int, Fault]]:
        """Wait for the answers of workers; return those that gave none, or a wrong one, and what was wrong."""
        waiting = {self._workers[number].answers: number for number in workers}
        poller, faults = select.poll(), []
        for file in waiting:
            poller.register(file, select.POLLIN)
        while waiting:
            ready = poller.poll(1000 * min(limit / 4, 1.0))
            for file, _ in ready:
                poller.unregister(file)
                number = waiting.pop(file)
                fault = self._answered(number, limit)
                self._workers[number].is_busy = False
                if fault is not None:
                    faults.append((number, fault))
            if not ready:
                for file, number in list(waiting.items()):
                    if self._is_stuck(number, limit):
                        poller.unregister(file)
                        faults.append((waiting.pop(file), _hanging(self._workers[number], limit)))
        return faults

    def _answered(self, number: int, limit: float) -> Fault | None:
        """Take a worker's answer; return what is wrong with it."""
        worker = self._workers[number]
        code = os.read(worker.answers, 1)
        if code == DONE:
            return None
        if code not in (READY, LAYOUT, NAMES, FAULT):
            return Fault(f"answered with a byte that means nothing ({code!r})") if code else worker.died()
        try:
            payload = receive(worker.answers, limit)
        except (EOFError, TimeoutError):
            return worker.died()
        if code == FAULT:
            told = json.loads(payload)
            is_whole = told["message"] is not None
            return Fault(told["message"] if is_whole else f"raised {told['summary']}", told["trace"], is_whole)
        if code == NAMES:
            assert worker.info is not None
            worker.info.names[:] = json.loads(payload)
            return None
        told = ForkingPickler.loads(payload)
        return self._agreed_on_spaces(told) if code == READY else self._agreed_on_shapes(number, told)

    def _agreed_on_spaces(self, told: tuple[Space, Space]) -> Fault | None:
        """Take over what the first worker says of spaces; all others must say the same."""
        self._spaces = self._spaces or told
        return None if told == self._spaces else Fault(f"has other spaces than its siblings: {told}")

    def _agreed_on_shapes(self, number: int, told: Observation) -> Fault | None:
        """Take over what the first worker says of the shapes of observations; all others must say the same."""
        if self._results is None:
            self._results = shared_arrays(self._files["results"], results_like(told), self.num_envs)
        if repr(map_tree(_signature, told)) != repr(map_tree(_signature, row_shapes(self.results.obs))):
            return Fault("has observations of other shapes than its siblings")
        rows = self.rows[number]
        self._workers[number].info = EpisodeInfo(rows.stop - rows.start, self.results.info[rows])
        infos = [self._workers[each].info for each in sorted(self._workers)]
        self._outcome = HostStep(*self.results[:5], info=[info for info in infos if info is not None])
        return None

    def _is_stuck(self, number: int, limit: float) -> bool:
        """Say whether one environment has been at work for longer than it may: each has the whole time for itself."""
        worker, at = self._workers[number], self._control.at[number]
        if tuple(at.tolist()) != worker.last_seen:
            worker.last_seen, worker.since = tuple(at.tolist()), time.monotonic()
        return time.monotonic() - worker.since > limit


def _slices(num_envs: int, num_workers: int) -> list[slice]:
    """Cut a batch into consecutive parts of almost the same size."""
    base, extra = divmod(num_envs, num_workers)
    stops = np.cumsum([base + (number < extra) for number in range(num_workers)]).tolist()
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def _hanging(worker: Worker, limit: float) -> Fault:
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.process.pid, signal.SIGUSR1)  # it writes down where it is, unless it is stopped
    deadline, told = time.monotonic() + TELLING_SECONDS, ""
    while time.monotonic() < deadline and (not told or told != worker.crashed()):
        told = worker.crashed()
        time.sleep(0.05)
    return Fault(f"gave no answer for {limit:g} s", told)


def _signature(x: np.ndarray) -> tuple[tuple[int, ...], str]:
    return x.shape[1:], str(x.dtype)


@lru_cache
def _spawner(process: int) -> ThreadPoolExecutor:
    """Return the thread that starts all workers of a process: the kernel ends them with it, so it must last."""
    return ThreadPoolExecutor(1, "ludus-workers")


def _launch(code: str, channels: Channels) -> subprocess.Popen:
    return processes.guard_of(os.getpid()).start(
        ["-c", code],
        accelerator=True,  # it is the environment's to use, if it computes at all
        pass_fds=channels,
        stdin=subprocess.DEVNULL,
    )


def _end(workers: dict[int, Worker], files: list[int]) -> None:
    """Ask every worker to close, end those that do not, and free the memory."""
    try:
        for worker in workers.values():
            if worker.commands >= 0:
                worker.send(CLOSE)
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in workers.values():
            # Not by waiting for the process: once that is done, its group is nobody's.
            with contextlib.suppress(EOFError, TimeoutError):
                while worker.answers >= 0:
                    read(worker.answers, 1, max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers.values():
            worker.end()
        for file in files:
            os.close(file)
        workers.clear()
