"""A batch whose environments run in workers, and which survives what they do.

A worker that raises, dies, hangs or answers nonsense is noticed, named and, if so configured, replaced: its running
episodes are dropped, and nothing of them is learnt from. How workers are run and spoken with is the transport's matter.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from ludus.envs.base import Action, HostEnv, HostStep, Observation
from ludus.envs.host import shared_generators
from ludus.envs.host.action_log import EpisodeLog, Recalled
from ludus.envs.workers.pool import WorkerPool
from ludus.envs.workers.shared_memory import NO_SEED, map_tree
from ludus.envs.workers.transport import Fault, Transport
from ludus.spaces import leaves
from ludus.types import LudusError

START_SECONDS = 60.0
"""Time to make an environment and to reset it for the first time, where assets may have to be loaded."""
RESTARTS = 3
"""A worker is restarted so often without ending an episode; then the batch gives up."""

OnFault = Literal["restart", "stop"]
_log = logging.getLogger(__name__)


class WorkerOptions(NamedTuple):
    """The user's options about workers."""

    timeout: float = 5.0
    """Seconds that one environment may take for one step or reset."""
    on_fault: OnFault = "restart"
    """A worker at fault is replaced (restart), or ends the run (stop)."""
    is_proven: bool = False
    """True if such environments have been made before: a fault while they are made is then one like any other."""

    def check(self) -> None:
        """Refuse what makes no sense."""
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, Real) or not 0 < self.timeout < math.inf:
            raise LudusError(f"worker_timeout={self.timeout}: must be a number of seconds above 0")
        if self.on_fault not in get_args(OnFault):
            raise LudusError(f"on_worker_fault={self.on_fault}: must be one of {', '.join(get_args(OnFault))}")


@dataclass
class History:
    """The record that a supervisor keeps of one worker."""

    was_reset: bool = False
    """True once the process that runs now has begun episodes."""
    steps_before: int = 0
    """Steps of the batch before the process that runs now was started."""
    restarts: int = 0
    """Restarts since it last ended an episode."""
    all_restarts: int = 0


class WorkerEnv(HostEnv):
    """A batch of Gymnasium environments, spread over `num_workers` workers."""

    def __init__(
        self,
        make: Callable[[], object],
        num_envs: int,
        id: str,
        options: dict[str, Any],
        num_workers: int,
        worker_options: WorkerOptions = WorkerOptions(),  # noqa: B008  a NamedTuple cannot change
        transport: Callable[..., Transport] = WorkerPool,
    ):
        """Start the workers and wait until every environment is made."""
        if num_workers > num_envs:
            raise LudusError(f"num_workers={num_workers}: more workers than environments (num_envs={num_envs})")
        self.make, self.num_envs, self.id, self.options = make, num_envs, id, options
        self.num_workers, self.worker_options = num_workers, worker_options
        self._transport = transport
        self._pool = transport(make, num_envs, id, options, num_workers)
        self._workers = range(num_workers)
        self._histories = [History() for _ in self._workers]
        self._broken = np.zeros(num_envs, bool)
        self._was_interrupted = False
        """True if there are answers that nobody has seen, because the call that waited for them was interrupted."""
        self._steps = 0
        self._outcome: tuple[HostStep, HostStep] | None = None
        """The transport's latest outcome, and the same with what is broken."""
        self._is_made = False
        self._start_all()
        self._is_made = True
        self.observation_space, self.action_space = self._pool.spaces
        self._log = EpisodeLog(num_envs, self.action_space)

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start an episode in each of the first environments, seeded one by one."""
        self._settle()
        self._broken[:] = self._was_interrupted = False
        self._log.begin(seeds)
        each = [*seeds, *[NO_SEED] * (self.num_envs - len(seeds))]
        asked = {worker: each[rows] for worker, rows in enumerate(self._pool.rows) if rows.start < len(seeds)}
        for worker, fault in self._reset(asked):
            self._replace(worker, fault, asked[worker])
        return self._pool.results.obs

    def step(self, action: Action) -> HostStep:
        """Advance every environment; those that ended have been reset, those of a lost worker are `broken`."""
        self._settle()
        self._broken[:], self._was_interrupted = self._was_interrupted, False
        self._log.add(action)
        self._pool.step(action)
        self._steps += 1
        for worker, fault in self._pool.wait(self._workers, self.worker_options.timeout):
            self._replace(worker, fault)
            self._forget(worker)
        self._count_episodes()
        return self._judged()

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return what it takes to come back to where the environments are.

        A worker that is found at fault meanwhile is left to the next step.
        """
        restarts = [history.all_restarts for history in self._histories]
        saved = {**self._log.snapshot(), "restarts": np.asarray(restarts, np.int64)}
        if self._pool.is_open and not self._pool.unanswered():
            for worker in self._workers:
                self._pool.save(worker)
            if not self._pool.wait(self._workers, self.worker_options.timeout):
                saved["generators"] = self._pool.generators
        return saved

    def restore(self, saved: dict[str, np.ndarray]) -> Recalled:
        """Come back to where a snapshot was taken by playing the running episodes again, all workers at once."""
        recorded = self._log.restore(saved)
        restarts = saved.get("restarts", np.zeros(0, np.int64)).tolist()
        if len(restarts) == self.num_workers:
            for history, count in zip(self._histories, restarts, strict=True):
                history.all_restarts = count
        seeds = self._log.seeds.tolist()
        # Only when they were reset are the shapes of results known.
        self._fail_on(self._reset({worker: seeds[rows] for worker, rows in enumerate(self._pool.rows)}), "be reset")
        for worker in self._workers:
            self._pool.restore(worker, self._part_of(saved, recorded, worker))
        self._fail_on(self._pool.wait(self._workers, START_SECONDS), "play its episode again")
        results, is_lost = self._pool.results, self._pool.results.terminated.copy()
        if results.truncated.any():
            _log.warning(shared_generators.WARNING, self.id)
        generators = saved.get("generators")
        if generators is not None and len(generators) != self.num_workers and shared_generators.was_used(generators):
            is_lost[:] = True
        return Recalled(results.obs, results.reward.copy(), is_lost)

    def restart(self) -> Observation:
        """Start every running episode anew, from its own seed."""
        return self.reset(self._log.running_seeds())

    def remake(self, num_envs: int) -> "WorkerEnv":
        """Return separate environments of the same kind, in workers of their own."""
        num_workers, options = min(self.num_workers, num_envs), self.worker_options._replace(is_proven=True)
        return WorkerEnv(self.make, num_envs, self.id, self.options, num_workers, options, self._transport)

    def twin(self) -> HostEnv:
        """Return a second batch, for branches; it runs in this process."""
        from ludus.envs.adapters.gymnasium import GymnasiumEnv

        return GymnasiumEnv(cast(Any, self.make), self.num_envs, self.id, self.options)

    def close(self) -> None:
        """Close the environments and end the workers."""
        self._pool.close()

    @property
    def worker_settings(self) -> dict[str, Any]:
        """The keys about workers that `make_env` was given, for the record: a number where "auto" was asked for."""
        timeout, on_fault, _ = self.worker_options
        return {"num_workers": self.num_workers, "worker_timeout": timeout, "on_worker_fault": on_fault}

    def _start_all(self) -> None:
        for worker in self._workers:
            self._pool.start(worker)
        for worker, fault in self._pool.wait(self._workers, START_SECONDS):
            self._start_again(worker, fault)
            while faults := self._pool.wait([worker], START_SECONDS):
                self._start_again(*faults[0])

    def _settle(self) -> None:
        """Wait for answers that an interrupted call has left behind."""
        if not self._pool.is_open:
            raise LudusError(f"{self.id}: its workers are closed; make it anew with make_env")
        if busy := self._pool.unanswered():
            self._was_interrupted = True
            for worker, fault in self._pool.wait(busy, self.worker_options.timeout):
                self._replace(worker, fault)

    def _reset(self, asked: dict[int, list[int]]) -> list[tuple[int, Fault]]:
        limit = self.worker_options.timeout
        if not all(self._histories[worker].was_reset for worker in asked):
            limit = max(limit, START_SECONDS)
        for worker, seeds in asked.items():
            self._histories[worker].was_reset = True
            self._pool.reset(worker, seeds)
        return self._pool.wait(list(asked), limit)

    def _part_of(
        self, saved: dict[str, np.ndarray], recorded: list[list[np.ndarray] | None], worker: int
    ) -> dict[str, np.ndarray]:
        """Return what a worker needs of a snapshot: of its own environments, and of its own process."""
        rows = self._pool.rows[worker]
        part = {name: saved[name][rows] for name in ("seeds", "episodes", "lengths")}
        for k in range(len(leaves(self.action_space))):
            parts = [actions[k] for actions in recorded[rows] if actions is not None]
            part[f"actions/{k}"] = np.concatenate([saved[f"actions/{k}"][:0], *parts])
        if len(saved.get("generators", ())) == self.num_workers:
            part["generators"] = saved["generators"][worker : worker + 1]
        return part

    def _fail_on(self, faults: list[tuple[int, Fault]], doing: str) -> None:
        for worker, fault in faults:
            report = self._report(worker, fault)
            self.close()
            raise _error(f"{report}; it could not {doing}", fault.trace)

    def _judged(self) -> HostStep:
        """Return the transport's outcome with what is broken: the same arrays as long as no worker is replaced."""
        if self._outcome is None or self._outcome[0] is not self._pool.outcome:
            broken = self._broken if self.worker_options.on_fault == "restart" else None
            self._outcome = self._pool.outcome, self._pool.outcome._replace(broken=broken)
        return self._outcome[1]

    def _count_episodes(self) -> None:
        """Remember how many episodes have ended since each seed; a worker that ends one has proven itself."""
        results = self._pool.results
        ended = results.terminated | results.truncated
        if ended.any():
            self._log.end(ended)
            for history, rows in zip(self._histories, self._pool.rows, strict=True):
                if history.restarts and ended[rows].any():
                    history.restarts = 0

    def _forget(self, worker: int) -> None:
        """Let the rows of a replaced worker say that nothing happened in them."""
        rows, results = self._pool.rows[worker], self._pool.results
        self._broken[rows] = True
        results.reward[rows] = 0
        results.terminated[rows] = results.truncated[rows] = False
        map_tree(lambda true, now: np.copyto(true[rows], now[rows]), results.next_obs, results.obs)

    def _fresh_seeds(self, worker: int) -> list[int]:
        """Return seeds for the environments of a worker that was lost: not those that led there, but no others."""
        lost = self._histories[worker].all_restarts
        sequences = (np.random.SeedSequence([int(seed), lost]) for seed in self._log.seeds[self._pool.rows[worker]])
        return [int(sequence.generate_state(1)[0] >> 1) for sequence in sequences]

    def _replace(self, worker: int, fault: Fault | None, seeds: list[int] | None = None) -> None:
        """Put a fresh worker in the place of one at fault, reset with these seeds or with fresh ones; or give up."""
        while fault is not None:
            self._start_again(worker, fault)
            seeds_now = seeds or self._fresh_seeds(worker)
            self._log.begin(seeds_now, self._pool.rows[worker])
            faults = self._pool.wait([worker], START_SECONDS) or self._reset({worker: seeds_now})
            fault = faults[0][1] if faults else None

    def _start_again(self, worker: int, fault: Fault) -> None:
        """End a worker at fault, say so, and start another in its place; or give up."""
        history = self._histories[worker]
        report = fault.summary if fault.is_whole and not history.was_reset else self._report(worker, fault)
        is_hopeless = not (self.worker_options.is_proven or self._is_made)  # nobody has seen one work yet
        self._pool.end(worker)
        if is_hopeless or self.worker_options.on_fault == "stop" or history.restarts == RESTARTS:
            self.close()
            tried = f" (given up after {RESTARTS} restarts without the end of an episode)"
            raise _error(report + (tried if history.restarts else ""), fault.trace)
        dropped = ", its running episodes are dropped" if history.was_reset else ""
        trace = f"\n{fault.trace.rstrip()}" if fault.trace else ""
        _log.warning("%s; worker %d is restarted%s%s", report, worker, dropped, trace)
        self._histories[worker] = History(False, self._steps, history.restarts + 1, history.all_restarts + 1)
        self._pool.start(worker)

    def _report(self, worker: int, fault: Fault) -> str:
        """Say in one line which environment was at fault and what led there."""
        (row, is_resetting), history = self._pool.place(worker), self._histories[worker]
        doing = "resetting" if is_resetting else "stepping" if history.was_reset else "being made"
        told = ""
        if history.was_reset:
            told = f"; seed {self._log.seed(row)}, episode {self._log.episodes[row] + 1}, step {self._log.length(row)}"
        if self._steps > history.steps_before and self._pool.last_action is not None:
            last = map_tree(lambda x: np.array2string(x[row], threshold=32, separator=", "), self._pool.last_action)
            told += f", last action {last}".replace("\n", "")
        return f"{self.id}: environment {row} (worker {worker}, {doing}{told}) {fault.summary}"


def _error(message: str, trace: str) -> LudusError:
    """Return an error of one line; the traceback of another process is a note to it."""
    error = LudusError(message)
    if trace:
        error.add_note(trace.rstrip())
    return error
