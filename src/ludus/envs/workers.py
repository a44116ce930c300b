"""Host environments in several processes: a batch that is stepped in parallel, and that survives what its parts do.

Each worker has a contiguous slice of the batch. Observations, actions, rewards and flags lie in memory that all share;
a step is one byte to each worker and one byte back. Threads are not offered: Gymnasium's Python environments hold the
interpreter's lock while they step (`benchmarks/workers.py` measures it), so threads only add their own cost.

A worker that raises, dies, hangs or answers nonsense is noticed, named and, if so configured, replaced. Workers are
started as fresh interpreters: to fork a process in which JAX has threads would be unsafe, and `multiprocessing` would
run the user's script again in each of them.
"""

import contextlib
import json
import logging
import math
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
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from ludus import processes
from ludus.envs import worker_process
from ludus.envs.base import HostStep
from ludus.envs.episode_info import EpisodeInfo
from ludus.envs.recall import EpisodeLog, Recalled
from ludus.envs.worker_process import (
    ACTIONS,
    CLOSE,
    DONE,
    FAULT,
    LAYOUT,
    LENGTH,
    NAMES,
    NO_SEED,
    READY,
    RESET,
    RESTORE,
    STEP,
    Channels,
    Control,
    Recipe,
    anonymous_file,
    map_tree,
    results_like,
    row_shapes,
    send,
    shared_arrays,
)
from ludus.types import LudusError

START_SECONDS = 60.0
"""Time to make an environment and to reset it for the first time, where assets may have to be loaded."""
CLOSE_SECONDS = 2.0
"""Time to close environments before their process is ended."""
TELLING_SECONDS = 1.0
"""Time for a worker that hangs to write down where it is, on a machine that may be busy."""
RESTARTS = 3
"""A worker is restarted so often without ending an episode; then the batch gives up."""
WORKER_COST_SECONDS = 50e-6
"""What each worker adds to a step, measured by `benchmarks/workers.py` and rounded up."""
WORTHWHILE = 0.8
"""Workers are chosen if a step of the batch would take at most this share of what it takes in one process."""

OnFault = Literal["restart", "stop"]
_log = logging.getLogger(__name__)


class Fault(NamedTuple):
    """What went wrong in a worker, in words, and its traceback if it left one."""

    summary: str
    trace: str = ""
    is_whole: bool = False
    """Whether the summary says all by itself, as our own errors do."""


class WorkerOptions(NamedTuple):
    """How a batch of workers behaves."""

    timeout: float = 5.0
    """Seconds that one environment may take for one step or reset."""
    on_fault: OnFault = "restart"
    """Whether a worker at fault is replaced, or ends the run."""
    is_proven: bool = False
    """Whether such environments have been made before: a fault while they are made is then one like any other."""

    def check(self) -> None:
        """Refuse what makes no sense."""
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, Real) or not 0 < self.timeout < math.inf:
            raise LudusError(f"worker_timeout={self.timeout}: must be a number of seconds above 0")
        if self.on_fault not in get_args(OnFault):
            raise LudusError(f"on_worker_fault={self.on_fault}: must be one of {', '.join(get_args(OnFault))}")


@dataclass(eq=False)
class Worker:
    """One process, the pipes to it, and what is remembered of it."""

    number: int
    rows: slice
    process: subprocess.Popen
    commands: int
    answers: int
    crash: int
    info: EpisodeInfo | None = None
    knows_actions: bool = False
    was_reset: bool = False
    is_busy: bool = False
    since: float = 0.0
    last_seen: tuple[int, int] = (0, 0)

    def send(self, command: bytes, payload: Any = None) -> None:
        """Give a command; a worker that is gone will be noticed when its answer is waited for."""
        self.is_busy, self.since = True, time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            send(self.commands, command, payload)

    def end(self) -> None:
        """End the process and whatever it has started itself, and free what belongs to it; it may have died before."""
        processes.guard_of(os.getpid()).end(self.process)
        for file in (self.commands, self.answers, self.crash):
            with contextlib.suppress(OSError):
                os.close(file)
        self.commands = self.answers = self.crash = -1


class WorkerEnv:
    """A batch of Gymnasium environments, spread over `num_workers` processes."""

    needs_restart = False
    return_threshold: float | None = None
    max_episode_steps: int | None = None
    env_wrappers: Sequence[Any] = ()
    """What `make_env` was told of wrappers, for the record."""

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        id: str,
        options: dict[str, Any],
        num_workers: int,
        worker_options: WorkerOptions = WorkerOptions(),  # noqa: B008  a NamedTuple cannot change
        placement: str = "",
    ):
        """Start the workers and wait until every environment is made."""
        if num_workers > num_envs:
            raise LudusError(f"num_workers={num_workers}: more workers than environments (num_envs={num_envs})")
        if worker_process.is_worker:
            raise LudusError(
                f"{id}: this script makes environment workers while a worker imports it; "
                "put what it does under `if __name__ == '__main__':`, or the environment into a module of its own"
            )
        self.make, self.num_envs, self.id, self.options = make, num_envs, id, options
        self.num_workers, self.worker_options, self.placement = num_workers, worker_options, placement
        blob = sendable(make, id)
        recipe = Recipe(blob, id, options, num_envs, num_workers, _main_module(blob, id))
        self._files = {name: anonymous_file(f"ludus-{name}") for name in ("recipe", "control", "actions", "results")}
        os.write(self._files["recipe"], ForkingPickler.dumps(tuple(recipe)))
        self._control = Control.shared(self._files["control"], num_envs, num_workers)
        self._control.seeds[:] = NO_SEED
        self._workers: list[Worker] = []
        self._end = weakref.finalize(self, _end, self._workers, list(self._files.values()))
        self._restarts, self._all_restarts = [0] * num_workers, [0] * num_workers
        self._broken = np.zeros(num_envs, bool)
        self._actions: Any = None
        self._results: Any = None
        self._step: HostStep | None = None
        self._spaces: Any = None
        self._is_made = False
        self._start_all()
        self._is_made = True
        self.observation_space, self.action_space = self._spaces
        self._log = EpisodeLog(num_envs, self.action_space)

    def reset(self, seeds: Sequence[int]) -> Any:
        """Start an episode in each of the first environments, seeded one by one."""
        self._settle()
        self._broken[:] = False
        self._control.seeds[:] = NO_SEED
        self._control.seeds[: len(seeds)] = seeds
        self._log.begin(seeds)
        asked = [worker for worker in self._workers if worker.rows.start < len(seeds)]
        for worker, fault in self._reset(asked):
            self._replace(worker, fault, [int(seed) for seed in self._control.seeds[worker.rows]])
        return self._results.obs

    def step(self, action: Any) -> HostStep:
        """Advance every environment; those that ended have been reset, those of a lost worker are `broken`."""
        was_interrupted = self._settle()
        if self._actions is None:
            self._actions = shared_arrays(self._files["actions"], row_shapes(action), self.num_envs)
        map_tree(np.copyto, self._actions, action)
        self._log.add(action)
        for worker in self._workers:
            if not worker.knows_actions:
                worker.send(ACTIONS, ForkingPickler.dumps(row_shapes(self._actions)))
                worker.knows_actions = True
            worker.send(STEP)
        faults = self._await(self._workers, self.worker_options.timeout)
        self._broken[:] = was_interrupted
        for worker, fault in faults:
            self._replace(worker, fault)
            self._forget(worker)
        self._count_episodes()
        assert self._step is not None
        return self._step

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return what it takes to come back to where the environments are."""
        return {**self._log.snapshot(), "restarts": np.asarray(self._all_restarts, np.int64)}

    def restore(self, saved: dict[str, np.ndarray]) -> Recalled:
        """Come back to where a snapshot was taken by playing the running episodes again, all workers at once."""
        log = {name: x for name, x in saved.items() if name != "restarts"}
        recorded = self._log.restore(log)
        restarts = saved.get("restarts", np.zeros(0, np.int64)).tolist()
        if len(restarts) == self.num_workers:
            self._all_restarts = restarts
        self._control.seeds[:] = self._log.seeds
        self._fail_on(self._reset(self._workers), "be reset")  # only then are the shapes of results known
        for worker in self._workers:
            rows = worker.rows
            mine = {name: log[name][rows] for name in ("seeds", "episodes", "lengths")}
            for k in range(len(log) - len(mine)):
                parts = [actions[k] for actions in recorded[rows] if actions is not None]
                mine[f"actions/{k}"] = np.concatenate([log[f"actions/{k}"][:0], *parts])
            worker.send(RESTORE, ForkingPickler.dumps(mine))
        self._fail_on(self._await(self._workers, START_SECONDS), "play its episode again")
        results = self._results
        return Recalled(results.obs, results.reward.copy(), results.terminated.copy())

    def _fail_on(self, faults: list[tuple[Worker, Fault]], doing: str) -> None:
        for worker, fault in faults:
            report = self._report(worker, fault)
            self.close()
            raise _error(f"{report}; it could not {doing}", fault.trace)

    def restart(self) -> Any:
        """Start every running episode anew, from its own seed."""
        return self.reset(self._log.running_seeds())

    def remake(self, num_envs: int) -> "WorkerEnv":
        """Return separate environments of the same kind, in processes of their own."""
        num_workers, options = min(self.num_workers, num_envs), self.worker_options._replace(is_proven=True)
        return WorkerEnv(self.make, num_envs, self.id, self.options, num_workers, options, self.placement)

    def close(self) -> None:
        """Close the environments and end the processes."""
        self._end()

    @property
    def worker_settings(self) -> dict[str, Any]:
        """What `make_env` was told about workers, for the record: a number where "auto" was asked for."""
        timeout, on_fault, _ = self.worker_options
        return {"num_workers": self.num_workers, "worker_timeout": timeout, "on_worker_fault": on_fault}

    def _start_all(self) -> None:
        base, extra = divmod(self.num_envs, self.num_workers)
        first = 0
        for number in range(self.num_workers):
            count = base + (number < extra)
            self._workers.append(self._launch(number, slice(first, first + count)))
            first += count
        for fault in self._await(self._workers, START_SECONDS):
            faults = [fault]
            while faults:
                faults = self._await([self._launch_again(*faults[0])], START_SECONDS)

    def _launch(self, number: int, rows: slice) -> Worker:
        commands, to_worker = os.pipe()
        from_worker, answers = os.pipe()
        crash = anonymous_file("ludus-crash")
        channels = Channels(commands, answers, *self._files.values(), crash)
        numbers = (number, rows.start, rows.stop - rows.start, os.getpid(), *channels)
        code = f"from ludus.envs.worker_process import serve; serve{numbers}"
        self._control.at[number] = 0, 0
        try:
            process = _spawner(os.getpid()).submit(_launch, code, channels).result()
        finally:
            os.close(commands)
            os.close(answers)
        return Worker(number, rows, process, to_worker, from_worker, crash, since=time.monotonic(), is_busy=True)

    def _settle(self) -> bool:
        """Wait for answers that an interrupted call has left behind, and say if it did: nobody has seen them."""
        if not self._end.alive:
            raise LudusError(f"{self.id}: its workers are closed; make it anew with make_env")
        busy = [worker for worker in self._workers if worker.is_busy]
        for worker, fault in self._await(busy, self.worker_options.timeout):
            self._replace(worker, fault)
        return bool(busy)

    def _reset(self, workers: list[Worker]) -> list[tuple[Worker, Fault]]:
        limit = self.worker_options.timeout
        if not all(worker.was_reset for worker in workers):
            limit = max(limit, START_SECONDS)
        for worker in workers:
            worker.was_reset = True
            worker.send(RESET)
        return self._await(workers, limit)

    def _count_episodes(self) -> None:
        """Remember how many episodes have ended since each seed; a worker that ends one has proven itself."""
        ended = self._results.terminated | self._results.truncated
        if ended.any():
            self._log.end(ended)
            for worker in self._workers:
                if self._restarts[worker.number] and ended[worker.rows].any():
                    self._restarts[worker.number] = 0

    def _forget(self, worker: Worker) -> None:
        """Let the rows of a replaced worker say that nothing happened in them."""
        rows = worker.rows
        self._broken[rows] = True
        self._results.reward[rows] = 0
        self._results.terminated[rows] = self._results.truncated[rows] = False
        map_tree(lambda true, now: np.copyto(true[rows], now[rows]), self._results.next_obs, self._results.obs)

    def _fresh_seeds(self, worker: Worker) -> list[int]:
        """Return seeds for the environments of a worker that was lost: not those that led there, but no others."""
        lost = self._all_restarts[worker.number]
        sequences = (np.random.SeedSequence([int(seed), lost]) for seed in self._log.seeds[worker.rows])
        return [int(sequence.generate_state(1)[0] >> 1) for sequence in sequences]

    def _replace(self, worker: Worker, fault: Fault | None, seeds: list[int] | None = None) -> None:
        """Put a fresh process in the place of one at fault, reset with these seeds or with fresh ones; or give up."""
        while fault is not None:
            worker = self._launch_again(worker, fault)
            seeds_now = seeds or self._fresh_seeds(worker)
            self._control.seeds[worker.rows] = seeds_now
            self._log.begin(seeds_now, worker.rows)
            faults = self._await([worker], START_SECONDS) or self._reset([worker])
            fault = faults[0][1] if faults else None

    def _launch_again(self, worker: Worker, fault: Fault) -> Worker:
        """End a worker at fault, say so, and start another in its place; or give up."""
        number = worker.number
        report = fault.summary if fault.is_whole and not worker.was_reset else self._report(worker, fault)
        is_hopeless = not (self.worker_options.is_proven or self._is_made)  # nobody has seen one work yet
        worker.end()
        if is_hopeless or self.worker_options.on_fault == "stop" or self._restarts[number] == RESTARTS:
            self.close()
            tried = f" (given up after {RESTARTS} restarts without the end of an episode)"
            raise _error(report + (tried if self._restarts[number] else ""), fault.trace)
        self._restarts[number] += 1
        self._all_restarts[number] += 1
        dropped = ", its running episodes are dropped" if worker.was_reset else ""
        trace = f"\n{fault.trace.rstrip()}" if fault.trace else ""
        _log.warning("%s; worker %d is restarted%s%s", report, number, dropped, trace)
        self._workers[number] = self._launch(number, worker.rows)
        return self._workers[number]

    def _await(self, workers: list[Worker], limit: float) -> list[tuple[Worker, Fault]]:
        """Wait for the answers of workers; return those that gave none, or a wrong one, and what was wrong."""
        waiting = {worker.answers: worker for worker in workers}
        poller, faults = select.poll(), []
        for file in waiting:
            poller.register(file, select.POLLIN)
        while waiting:
            ready = poller.poll(1000 * min(limit / 4, 1.0))
            for file, _ in ready:
                poller.unregister(file)
                worker = waiting.pop(file)
                fault = self._answered(worker, limit)
                worker.is_busy = False
                if fault is not None:
                    faults.append((worker, fault))
            if not ready:
                for file, worker in list(waiting.items()):
                    if self._is_stuck(worker, limit):
                        poller.unregister(file)
                        faults.append((waiting.pop(file), self._hanging(worker, limit)))
        return faults

    def _answered(self, worker: Worker, limit: float) -> Fault | None:
        """Take a worker's answer; return what is wrong with it."""
        code = os.read(worker.answers, 1)
        if code == DONE:
            return None
        if code not in (READY, LAYOUT, NAMES, FAULT):
            return Fault(f"answered with a byte that means nothing ({code!r})") if code else _death(worker)
        try:
            payload = _receive(worker.answers, limit)
        except (EOFError, TimeoutError):
            return _death(worker)
        if code == FAULT:
            told = json.loads(payload)
            whole = told["message"] is not None
            return Fault(told["message"], "", True) if whole else Fault(f"raised {told['summary']}", told["trace"])
        if code == NAMES:
            assert worker.info is not None
            worker.info.names[:] = json.loads(payload)
            return None
        return self._agreed(worker, code, ForkingPickler.loads(payload))

    def _agreed(self, worker: Worker, code: bytes, told: Any) -> Fault | None:
        """Take over what the first worker says of spaces and shapes; all others must say the same."""
        if code == READY:
            self._spaces = self._spaces or told
            return None if told == self._spaces else Fault(f"has other spaces than its siblings: {told}")
        if self._results is None:
            self._results = shared_arrays(self._files["results"], results_like(told), self.num_envs)
        mine = row_shapes(self._results.obs)
        if repr(map_tree(_signature, told)) != repr(map_tree(_signature, mine)):
            return Fault("has observations of other shapes than its siblings")
        worker.info = EpisodeInfo(worker.rows.stop - worker.rows.start, self._results.info[worker.rows])
        self._step = HostStep(
            *self._results[:5],
            info=[each.info for each in self._workers if each.info is not None],
            broken=self._broken if self.worker_options.on_fault == "restart" else None,
        )
        return None

    def _is_stuck(self, worker: Worker, limit: float) -> bool:
        """Whether one environment has been at work for longer than it may: each has the whole time for itself."""
        index, resets = self._control.at[worker.number].tolist()
        if (index, resets) != worker.last_seen:
            worker.last_seen, worker.since = (index, resets), time.monotonic()
        return time.monotonic() - worker.since > limit

    def _hanging(self, worker: Worker, limit: float) -> Fault:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.process.pid, signal.SIGUSR1)  # it writes down where it is, unless it is stopped
        deadline, told = time.monotonic() + TELLING_SECONDS, ""
        while time.monotonic() < deadline and (not told or told != _crash_text(worker)):
            told = _crash_text(worker)
            time.sleep(0.05)
        return Fault(f"gave no answer for {limit:g} s", told)

    def _report(self, worker: Worker, fault: Fault) -> str:
        """Say in one line which environment was at fault and what led there."""
        index, resets = self._control.at[worker.number].tolist()
        row = worker.rows.start + index
        doing = "resetting" if resets else "stepping" if worker.was_reset else "being made"
        history = ""
        if worker.was_reset:
            history = f"seed {self._log.seed(row)}, episode {self._log.episodes[row] + 1}, step {self._log.length(row)}"
        if worker.knows_actions and self._actions is not None:
            last = map_tree(lambda x: np.array2string(x[row], threshold=32, separator=", "), self._actions)
            history += f", last action {last}".replace("\n", "")
        where = f"{self.id}: environment {row} (worker {worker.number}, {doing}{'; ' if history else ''}{history})"
        return f"{where} {fault.summary}"


def workers_that_pay(step_seconds: float, num_envs: int, cores: int) -> int:
    """Return how many workers make a step of the batch fastest; 0 if none do so by enough."""
    alone = num_envs * step_seconds
    times = {
        count: math.ceil(num_envs / count) * step_seconds + count * WORKER_COST_SECONDS
        for count in range(2, min(num_envs, cores) + 1)
    }
    best = min(times, key=lambda count: times[count], default=0)
    return best if best and times[best] <= WORTHWHILE * alone else 0


def sendable(make: Callable[[], Any], id: str) -> bytes:
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
    """Whether something that was made sendable comes from the script that is being run."""
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


def _error(message: str, trace: str) -> LudusError:
    """Return an error of one line; the traceback of another process is a note to it."""
    error = LudusError(message)
    if trace:
        error.add_note(trace.rstrip())
    return error


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


def _receive(file: int, limit: float) -> bytes:
    (length,) = LENGTH.unpack(_read(file, LENGTH.size, limit))
    return _read(file, length, limit)


def _read(file: int, length: int, limit: float) -> bytes:
    poller, parts = select.poll(), b""
    poller.register(file, select.POLLIN)
    while len(parts) < length:
        if not poller.poll(1000 * limit):
            raise TimeoutError
        part = os.read(file, length - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts


def _death(worker: Worker) -> Fault:
    code = processes.guard_of(os.getpid()).end(worker.process)
    cause = f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    return Fault(cause, _crash_text(worker))


def _crash_text(worker: Worker) -> str:
    """Return what the interpreter wrote down when it crashed or was asked where it is."""
    return os.pread(worker.crash, 10_000, 0).decode(errors="replace")


def _end(workers: list[Worker], files: list[int]) -> None:
    """Ask every worker to close, end those that do not, and free the memory."""
    try:
        for worker in workers:
            if worker.commands >= 0:
                worker.send(CLOSE)
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in workers:
            # Not by waiting for the process: once that is done, its group is nobody's.
            with contextlib.suppress(EOFError, TimeoutError):
                while worker.answers >= 0:
                    _read(worker.answers, 1, max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            worker.end()
        for file in files:
            os.close(file)
        workers.clear()
