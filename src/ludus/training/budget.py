"""The budget that ends a run: steps, episodes or seconds, whichever comes first."""

import math
from typing import NamedTuple

from ludus.runtime.counters import UNLIMITED, Counters, from_int
from ludus.types import LudusError

FINAL_SHARE = 0.1
"""The part of `max_seconds` that is kept for the evaluation at the end."""


class Budget(NamedTuple):
    """When a run is over: whichever comes first."""

    total_steps: int | None
    max_episodes: int | None
    max_seconds: float | None

    def limits(self) -> Counters:
        """Check the numbers; return the limits that the compiled loop watches."""
        if self.total_steps is None and self.max_episodes is None and self.max_seconds is None:
            raise LudusError("train: give total_steps, max_episodes or max_seconds")
        for name, value in self._asdict().items():
            if value is not None and not 0 < value < UNLIMITED:
                raise LudusError(f"{name}={value}: must be greater than 0 and less than 2**64")
        steps, episodes = (UNLIMITED if x is None else int(x) for x in (self.total_steps, self.max_episodes))
        return Counters(from_int(steps), from_int(episodes))

    def training_seconds(self, is_evaluated: bool) -> float:
        """Return how long to train: if an evaluation follows at the end, a part of `max_seconds` is kept for it."""
        whole = math.inf if self.max_seconds is None else float(self.max_seconds)
        return whole * (1 - FINAL_SHARE) if is_evaluated else whole

    def share(self, steps: int, episodes: int, seconds: float) -> float:
        """Return how much of the budget is spent, in [0, 1]."""
        spent = ((steps, self.total_steps), (episodes, self.max_episodes), (seconds, self.max_seconds))
        return min(1.0, max(done / limit for done, limit in spent if limit))
