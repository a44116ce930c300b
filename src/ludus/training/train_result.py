"""The result of a call to `train`."""

from dataclasses import dataclass
from pathlib import Path

from ludus.runs.console import duration
from ludus.runs.recorder import Recorder
from ludus.training.evaluation import Evaluation
from ludus.training.schedule import Judge


@dataclass(frozen=True)
class TrainResult:
    """The result of a call to `train`."""

    steps: int
    episodes: int
    updates: int
    iterations: int
    seconds: float
    stopped_by: str
    converged: bool
    evaluation: Evaluation | None
    run_dir: Path | None

    def __str__(self) -> str:
        """A few lines for people."""
        reached = f"\n{self.evaluation}" if self.evaluation else ""
        where = f"\nrun folder {self.run_dir}" if self.run_dir else ""
        return (
            f"{self.steps:,} steps, {self.episodes:,} episodes, {self.updates:,} updates in {duration(self.seconds)}, "
            f"stopped by {self.stopped_by}{reached}{where}"
        )


def reached(record: Recorder, judge: Judge, stopped_by: str, evaluation: Evaluation | None) -> TrainResult:
    """Return what a run has reached by now; `evaluation` is that at its end."""
    return TrainResult(
        steps=record.steps,
        episodes=record.episodes,
        updates=record.updates,
        iterations=record.iterations,
        seconds=record.elapsed,
        stopped_by=stopped_by,
        converged=judge.has_converged,
        evaluation=evaluation,
        run_dir=record.folder.path if record.folder else None,
    )
