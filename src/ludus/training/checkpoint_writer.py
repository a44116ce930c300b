"""Keeping a run: when checkpoints and policies are saved, and what is done when that fails.

Training waits for a copy of what changed; all else happens on another thread.
"""

import contextlib
import errno
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ludus.algorithms.policy import Policy, save_policy
from ludus.runs.checkpoint.retention import Retention
from ludus.runs.checkpoint.store import Checkpoints, Snapshot
from ludus.runs.strict_json import strict
from ludus.runtime import files
from ludus.training.state_arrays import Written, first_bad, take
from ludus.types import LudusError, Tree

OnError = Literal["continue", "stop"]
POLICIES = Path("policies")
FIRST = "first_checkpoint"
"""Where run.json says at how many steps a run's first checkpoint was written; null: there was none yet. Without it,
checkpoints that were removed could be taken for none."""
EVERY = ("every_iterations", "every_steps", "every_minutes", "best_every")
KEPT = ("keep_last", "keep_best", "keep_every", "keep_bytes")
SIGN = {"max": 1.0, "min": -1.0}
"""What makes the best of a figure the highest."""
BEST_EVERY = 10
"""Iterations between two looks at the recent return, where nothing is evaluated meanwhile."""
BEST = {"figure": "best_pi_ckpt", "return": "best_return_pi_ckpt", "evaluation": "best_eval_pi_ckpt"}
"""Names of the policies that were best by `best_by`, by the mean return of recent episodes, and by an evaluation."""
Kind = Literal["figure", "return", "evaluation"]
BestMode = Literal["max", "min"]


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
    keep_bytes: int = 500_000_000
    """Keep all while they take no more bytes together; then old ones get sparser. 0: none but those above."""
    best_every: int = 0
    """Keep the policy whose recent return is the best, every so many iterations; 0: with evaluations, else every 10."""
    best_by: str | None = None
    """The journal's figure that best means; null: eval_return_mean, or recent_return_mean without evaluations."""
    best_mode: str = "max"
    """Whether the highest (max) or the lowest (min) of `best_by` is the best."""
    on_error: str = "continue"
    """What follows if one cannot be written: continue (and try again) or stop."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in (*EVERY, *KEPT):
            value, low = getattr(self, name), int(name == "keep_last")
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < 2**53:
                raise LudusError(f"checkpoint.{name}={value}: must be a number of at least {low}")
        for name, kind in (("on_error", OnError), ("best_mode", BestMode)):
            if getattr(self, name) not in get_args(kind):
                names = ", ".join(get_args(kind))
                raise LudusError(f"checkpoint.{name}={getattr(self, name)}: must be one of {names}")


@dataclass
class Marks:
    """The state of a run besides counts and arrays: it is saved with every checkpoint."""

    judged_at: int = 0
    """The iteration after which the policy was last judged."""
    episodes_evaluated: int = 0
    """Episodes that had ended when the policy was last evaluated."""
    milestones: int = 0
    """How many of the policies on the way have been saved."""
    best_return: float | None = None
    best_evaluation: float | None = None
    best_score: float | None = None
    """Of the checkpoints so far; like the next, the higher the better."""
    best_figure: float | None = None
    """By `best_by`, if that is set, of the policies so far."""
    best_figure_steps: int = 0


class Keeper:
    """Saves one run. Before it is given the run's folder it saves nothing."""

    def __init__(
        self,
        options: CheckpointOptions,
        num_checkpoints: int,
        say: Callable[[str], None],
        counts: Callable[[], dict[str, int]] = dict,
    ):
        """Begin with nothing written; `counts` tells the totals of the run as they are when it is called."""
        self.options, self.num_checkpoints, self.say, self._counts = options, num_checkpoints, say, counts
        self.kept_at: dict[str, dict[str, int]] = {}
        """The totals when a policy was last saved, by its name."""
        self.marks = Marks()
        self.checkpoints: Checkpoints | None = None
        self.folder: Path | None = None
        self.written: Written = {}
        """Counts of long arrays when the last checkpoint that was finished was taken."""
        self.ordinal = 0
        self.last = {"iteration": 0, "steps": 0, "seconds": 0.0}
        self._writer: ThreadPoolExecutor | None = None
        self._jobs: list[tuple[str, Future]] = []
        self._complaints: dict[str, str] = {}
        """What keeps a kind of file from being written: that another kind can be says nothing of this one."""
        self._is_best = self._has_warned = False
        self._first: int | None = None
        self._note_first: Callable[[int], None] | None = None

    def open(self, run: Path, note_first: Callable[[int], None] | None = None) -> None:
        """Write to this folder from now on; `note_first` writes down that the run has a checkpoint, of which step."""
        options = self.options
        self.folder, self._note_first = run, note_first
        files.sweep(run / POLICIES)
        self.checkpoints = Checkpoints(run, Retention(*(getattr(options, name) for name in KEPT)))

    def snapshot(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on comparing; `save` adds the rest."""
        return {"marks": asdict(self.marks), "best_by": self._best_by}

    def restore(self, record: dict[str, Any]) -> None:
        """Go on from what the record of a checkpoint says was saved and how good it was."""
        self.marks = Marks(**record["marks"])
        if record.get("best_by", self._best_by) != self._best_by:  # what was best by another figure says nothing
            self.marks.best_score = self.marks.best_figure = None
        self.ordinal = record["ordinal"]
        self.written = {name: (count, cycle) for name, (count, cycle) in record["written"].items()}
        self.last = {"iteration": record["iteration"], "steps": record["steps"], "seconds": record["elapsed_seconds"]}

    @property
    def _best_by(self) -> list[str | None]:
        """By which figure the best is judged, and how."""
        return [self.options.best_by, self.options.best_mode]

    def write_anew(self, written: Written) -> None:
        """Count long arrays from these numbers on, so that the next checkpoint writes the rows that were lost."""
        self.written |= written

    def until_next(self, iterations: int, steps: int, steps_per_iteration: int, total_steps: int | None) -> int:
        """Return how many iterations may be made at once so that none after which something is saved is passed."""
        gaps = [2**31]
        if self.checkpoints is None:
            return gaps[0]
        if every := int(self.options.every_iterations):
            gaps.append(every - iterations % every)
        if every := int(self.options.every_steps):
            gaps.append(-(-(every - steps % every) // steps_per_iteration))
        if (milestone := self._milestone(total_steps)) is not None:
            gaps.append(-(-(milestone - steps) // steps_per_iteration))
        return min(gaps)

    def passes_milestone(self, steps: int, total_steps: int | None) -> bool:
        """Whether one of the policies on the way is to be saved."""
        return (milestone := self._milestone(total_steps)) is not None and steps >= milestone

    def keep_milestones(self, steps: int, total_steps: int | None, policy: Policy) -> None:
        """Save the policy as the next of those on the way."""
        while self.passes_milestone(steps, total_steps):
            self.marks.milestones += 1
            self._keep_policy(f"pi_ckpt{self.marks.milestones}", policy)

    def is_to_judge(self, iterations: int, by_evaluation: bool) -> bool:
        """Whether the policy is to be compared with the best so far: after evaluations, and now and then besides."""
        every = self.options.every_iterations
        is_time = by_evaluation or (every and iterations % every == 0)
        return bool(is_time and iterations and self.marks.judged_at != iterations)

    def keep_if_best(self, kind: Kind, value: float | None, policy: Callable) -> None:
        """Save the policy if it is better than any before by this kind of figure; what is not finite says nothing."""
        best = getattr(self.marks, f"best_{kind}")
        if value is not None and math.isfinite(value) and (best is None or value > best):
            setattr(self.marks, f"best_{kind}", value)
            if kind == "figure":
                self.marks.best_figure_steps = self._counts().get("steps", 0)
            if self.checkpoints is not None:
                self._keep_policy(BEST[kind], policy())

    @property
    def best(self) -> dict[str, Any] | None:
        """The figure of the policy that is best by `best_by`, and when; None unless that is set and there is one."""
        by, mode, value = self.options.best_by, self.options.best_mode, self.marks.best_figure
        if by is None or value is None:
            return None
        return {"by": by, "mode": mode, "value": SIGN[mode] * value, "steps": self.marks.best_figure_steps}

    def evaluated(self, episodes: int) -> None:
        """Take note that the policy was evaluated when so many episodes had ended."""
        self.marks.episodes_evaluated = episodes

    def keep_unjudged(self, policy: Callable) -> None:
        """Save the policy as the best, which the first that is judged will replace."""
        if self.checkpoints is not None:
            self._keep_policy(BEST["return"], policy())

    def judged(self, iterations: int, score: float | None) -> None:
        """Take note that the policy was judged; the best by score is worth a checkpoint."""
        marks = self.marks
        if score is None and self.options.best_by and not marks.judged_at:
            self.say(f"checkpoint.best_by={self.options.best_by}: the journal has no such figure so far")
        marks.judged_at = iterations
        if score is not None and (marks.best_score is None or score > marks.best_score):
            marks.best_score, self._is_best = score, True

    def _milestone(self, total_steps: int | None) -> int | None:
        """Return the step at which the next of the policies on the way is saved."""
        number = self.marks.milestones + 1
        if self.checkpoints is None or total_steps is None or number > self.num_checkpoints:
            return None
        return -(-total_steps * number // (self.num_checkpoints + 1))

    def _keep_policy(self, name: str, policy: Policy) -> None:
        assert self.folder is not None
        path = self.folder / POLICIES / f"{name}.safetensors"
        self.kept_at[name] = self._counts()
        self.write(lambda: save_policy(policy, path))

    def is_due(self, iterations: int, steps: int, seconds: float) -> bool:
        """Whether a checkpoint should be written now."""
        if self.checkpoints is None or iterations == self.last["iteration"]:
            return False
        o, last = self.options, self.last
        return bool(
            self._is_best
            or (o.every_iterations and iterations // o.every_iterations > last["iteration"] // o.every_iterations)
            or (o.every_steps and steps // o.every_steps > last["steps"] // o.every_steps)
            or (o.every_minutes and seconds - last["seconds"] >= 60 * o.every_minutes)
        )

    def save(self, state: Tree, env: dict[str, Any], record: dict[str, Any], before: Callable[[], None]) -> None:
        """Copy the state and let the other thread write it; `before` is called there first."""
        assert self.checkpoints is not None
        self.settle()
        self._warn_of_full_disk()
        self._is_best = False
        arrays, blocks, written = take(state, env, self.written)
        self.ordinal += 1
        record = {**record, "ordinal": self.ordinal, "written": written}
        snapshot = Snapshot(record["steps"], arrays, blocks, _as_json(record))
        self.last = {"iteration": record["iteration"], "steps": record["steps"], "seconds": record["elapsed_seconds"]}

        def write() -> None:
            before()
            if bad := first_bad(snapshot.arrays, snapshot.blocks):
                raise LudusError(f"{bad} holds a NaN or an infinity: this state is not saved")
            assert self.checkpoints is not None
            self.checkpoints.save(snapshot)
            self.written = written
            self._first = self._first or snapshot.step

        self.write(write, "checkpoint")

    def write(self, job: Callable[[], None], what: str = "policy") -> None:
        """Let the other thread write something, after all that was given to it before."""
        self._writer = self._writer or ThreadPoolExecutor(1, "ludus-writer")
        self._jobs.append((what, self._writer.submit(self._if_there, job)))

    def _if_there(self, job: Callable[[], None]) -> None:
        """Do it, unless the run folder was moved or removed: no second one is begun in its place."""
        if self.folder is not None and not self.folder.is_dir():
            raise OSError(errno.ENOENT, "the run folder was moved or removed")
        job()

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
            if text and what not in self._complaints:
                self.say(f"{self.folder}: {what} cannot be saved ({text}); training goes on, the last one stays")
            if what in self._complaints and not text:
                self.say(f"{self.folder}: {what} is saved again")
            self._complaints = {name: said for name, said in self._complaints.items() if name != what}
            if text:
                self._complaints[what] = text
        if self._first is not None and self._note_first is not None:
            with contextlib.suppress(LudusError):  # it is tried again, and what is wrong will be said by others
                self._note_first(self._first)
                self._note_first = None

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

    def _warn_of_full_disk(self) -> None:
        """Say so, once, if the disk has not room for two checkpoints like the last."""
        if self.checkpoints is None or self.folder is None or self._has_warned or not self.checkpoints.last_bytes:
            return
        free, needed = files.free_bytes(self.folder), 2 * self.checkpoints.last_bytes
        if free < needed:
            self._has_warned = True
            self.say(f"{self.folder}: {free / 1e6:,.0f} MB are free, but two checkpoints take {needed / 1e6:,.0f} MB")


def _as_json(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as JSON knows it, which has no infinity: a figure that is none is unknown, a setting its text."""
    return {**strict(record), "meaning": strict(record["meaning"], not_finite=str)}
