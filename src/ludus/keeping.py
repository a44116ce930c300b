"""Keeping a run: when checkpoints and policies are saved, and what is done when that fails.

Training waits for a copy of what changed; all else happens on another thread.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ludus import files
from ludus.checkpoint import Checkpoints, Retention, Snapshot
from ludus.snapshot import Written, first_bad, take
from ludus.types import LudusError

OnError = Literal["continue", "stop"]
POLICIES = Path("policies")
BEST_RETURN, BEST_EVALUATION = "best_return_pi_ckpt", "best_eval_pi_ckpt"


@dataclass(frozen=True)
class CheckpointOptions:
    """When checkpoints are written, and which are kept."""

    every_iterations: int = 200
    """Write one after so many iterations; 0: not by iterations."""
    every_steps: int = 0
    """Write one after so many environment steps; 0: not by steps."""
    every_minutes: float = 10.0
    """Write one after so many minutes; 0: not by time."""
    keep_last: int = 3
    """Keep so many of the latest, at least 1."""
    keep_best: int = 1
    """Keep so many of the best by `best_by`."""
    keep_every: int = 0
    """Keep every n-th besides; 0: none."""
    best_by: str | None = None
    """The journal's figure that best means; null: eval_return_mean, or episode_return_mean without evaluations."""
    on_error: str = "continue"
    """What follows if one cannot be written: continue (and try again) or stop."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        lows = {"every_iterations": 0, "every_steps": 0, "every_minutes": 0, "keep_last": 1, "keep_best": 0}
        for name, low in {**lows, "keep_every": 0}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < 2**53:
                raise LudusError(f"checkpoint.{name}={value}: must be a number of at least {low}")
        if self.on_error not in get_args(OnError):
            raise LudusError(f"checkpoint.on_error={self.on_error}: must be one of {', '.join(get_args(OnError))}")


class Keeper:
    """Saves one run. Without a folder it saves nothing."""

    def __init__(self, run: Path | None, options: CheckpointOptions, say: Callable[[str], None]):
        """Nothing is written yet."""
        self.options, self.say = options, say
        retention = Retention(options.keep_last, options.keep_best, options.keep_every)
        self.checkpoints = None if run is None else Checkpoints(run, retention)
        self.folder = run
        self.written: Written = {}
        """Counts of long arrays when the last checkpoint that was finished was taken."""
        self.ordinal = 0
        self.last = {"iteration": 0, "steps": 0, "seconds": 0.0}
        self._writer: ThreadPoolExecutor | None = None
        self._jobs: list[tuple[str, Future]] = []
        self._complaints: dict[str, str] = {}
        """What keeps a kind of file from being written: that another kind can be says nothing of this one."""

    def until_next(self, iterations: int, steps: int, steps_per_iteration: int) -> int:
        """Return how many iterations may be made at once so that none at which a checkpoint is due is passed."""
        gaps = [2**31]
        if self.checkpoints is None:
            return gaps[0]
        if every := int(self.options.every_iterations):
            gaps.append(every - iterations % every)
        if every := int(self.options.every_steps):
            gaps.append(-(-(every - steps % every) // steps_per_iteration))
        return min(gaps)

    def is_due(self, iterations: int, steps: int, seconds: float) -> bool:
        """Whether a checkpoint should be written now."""
        if self.checkpoints is None or iterations == self.last["iteration"]:
            return False
        o, last = self.options, self.last
        return bool(
            (o.every_iterations and iterations // o.every_iterations > last["iteration"] // o.every_iterations)
            or (o.every_steps and steps // o.every_steps > last["steps"] // o.every_steps)
            or (o.every_minutes and seconds - last["seconds"] >= 60 * o.every_minutes)
        )

    def save(self, state: Any, env: dict[str, Any], record: dict[str, Any], before: Callable[[], None]) -> None:
        """Copy the state and let the other thread write it; `before` is called there first."""
        assert self.checkpoints is not None
        self.settle()
        arrays, blocks, written = take(state, env, self.written)
        self.ordinal += 1
        snapshot = Snapshot(record["steps"], arrays, blocks, {**record, "ordinal": self.ordinal, "written": written})
        self.last = {"iteration": record["iteration"], "steps": record["steps"], "seconds": record["elapsed_seconds"]}

        def write() -> None:
            before()
            if bad := first_bad(snapshot.arrays, snapshot.blocks):
                raise LudusError(f"{bad} holds a NaN or an infinity: this state is not saved")
            assert self.checkpoints is not None
            self.checkpoints.save(snapshot)
            self.written = written

        self.write(write, "checkpoint")

    def write(self, job: Callable[[], None], what: str = "policy") -> None:
        """Let the other thread write something, after all that was given to it before."""
        self._writer = self._writer or ThreadPoolExecutor(1, "ludus-writer")
        self._jobs.append((what, self._writer.submit(job)))

    def settle(self, wait: bool = True) -> None:
        """Look at what was written (all of it, if `wait`); say once what went wrong, or stop if so configured."""
        while self._jobs and (wait or self._jobs[0][1].done()):
            what, job = self._jobs.pop(0)
            error = job.exception()
            if error is not None and not isinstance(error, OSError | LudusError):
                raise error
            text = None if error is None else getattr(error, "strerror", None) or str(error)
            if text and self.options.on_error == "stop":
                raise LudusError(f"{self.folder}: {what} cannot be saved ({text}); checkpoint.on_error=stop")
            if text and text != self._complaints.get(what):
                self.say(f"{self.folder}: {what} cannot be saved ({text}); training goes on, the last one stays")
            if what in self._complaints and not text:
                self.say(f"{self.folder}: {what} is saved again")
            self._complaints = {name: said for name, said in self._complaints.items() if name != what}
            if text:
                self._complaints[what] = text

    def close(self) -> None:
        """Wait for everything and end the other thread; LudusError if the last thing to write failed."""
        try:
            self.settle()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
                self._writer = None
        for what, text in self._complaints.items():
            raise LudusError(f"{self.folder}: {what} cannot be saved ({text})")

    def warn_of_full_disk(self) -> None:
        """Say so if the disk has not room for two checkpoints like the last."""
        if self.checkpoints is not None and self.folder is not None and self.folder.exists():
            free, needed = files.free_bytes(self.folder), 2 * self.checkpoints.last_bytes
            if free < needed:
                self.say(
                    f"{self.folder}: only {free / 1e6:,.0f} MB are free, and two checkpoints take {needed / 1e6:,.0f}"
                )
