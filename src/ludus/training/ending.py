"""The ends of a call to `train`: its budget, a signal, the time it has, or a number that is none."""

import signal

import numpy as np

from ludus.algorithms.finite_checks import FAULTS, MASK
from ludus.envs.base import AnyEnv
from ludus.runs.recorder import Recorder
from ludus.runtime.interrupt import Interrupt
from ludus.training.budget import Budget
from ludus.training.retreat import LONG_SECONDS, Retreat
from ludus.types import Left, LudusError, Watch


class Ending:
    """Tells whether one call to `train` is over, and by what."""

    def __init__(self, budget: Budget, interrupt: Interrupt, record: Recorder, is_evaluated: bool):
        """`is_evaluated` says that an evaluation follows at the end, for which a part of the time is kept."""
        self.budget, self.interrupt, self.record = budget, interrupt, record
        self.until = budget.training_seconds(is_evaluated)
        """Seconds of the run after which training stops."""

    @property
    def by_signal(self) -> str | None:
        """The name of the signal that came; None if there was none."""
        asked = self.interrupt.requested
        return None if asked is None else "interrupt" if asked == signal.SIGINT else asked.name

    @property
    def in_the_midst(self) -> str:
        """Return what ended the run where something was cut short: a signal, else time."""
        return self.by_signal or "max_seconds"

    @property
    def is_spent(self) -> bool:
        """Whether no iteration may be made any more."""
        steps, episodes, _ = self.budget
        return self.record.steps >= (steps or np.inf) or self.record.episodes >= (episodes or np.inf)

    @property
    def by_budget(self) -> str:
        """Return which part of the budget is spent, when one is."""
        return "total_steps" if self.record.steps >= (self.budget.total_steps or np.inf) else "max_episodes"

    def after(self, rows: dict[str, np.ndarray], pace: float) -> str | None:
        """Return what ends the run after the chunk that was just made, whose iterations took `pace` seconds each."""
        if rows["halt"][-1]:
            return self.by_budget
        if self.by_signal is not None:
            return self.by_signal
        # A long iteration is not begun if its end would be too late.
        ahead = pace if pace > LONG_SECONDS else 0.0
        return "max_seconds" if self.record.elapsed + ahead >= self.until else None

    def watch(self, retreat: Retreat) -> Watch:
        """Return what is told of a chunk while it runs: it gives the chunk up where it must and can."""

        def tell(what: str, done: int, total: int) -> None:
            self.record.console.at(what, done, total)
            if retreat.is_ready and (self.interrupt.requested is not None or self.record.elapsed >= self.until):
                raise Left

        return Watch(tell, expects_long=retreat.is_ready)


def check_healthy(rows: dict[str, np.ndarray], env: AnyEnv, record: Recorder) -> None:
    """Say what went wrong in the last iteration of a chunk, if something did: it has not happened."""
    if not rows["fault"][-1]:
        return
    name = FAULTS[int(rows["fault"][-1])]
    what = f"{name} is not finite (NaN or Inf)"
    if name == MASK:
        step, index = divmod(int(rows["stuck"][-1]), env.num_envs)
        what = f"{env.id}: the {MASK} of environment {index} forbids every action in step {step + 1}"
    raise LudusError(
        f"training stopped: {what} in iteration {record.iterations + 1}, "
        f"after {record.steps:,} steps and {record.updates:,} updates; the state is kept as it was before"
    )
