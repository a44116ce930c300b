"""Hyperparameters that are changed while a run trains: checked, kept by checkpoints, and never a new compilation."""

import difflib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.hyperparameters import as_arrays, hyperparameters, is_traced, value_of, with_value
from ludus.algorithms.schedules import Schedule
from ludus.types import LudusError


class Changes:
    """The changes that were made to one run's algorithm."""

    def __init__(self, algorithm: Algorithm, use: Callable[[Algorithm], None], counts: Callable[[], dict[str, int]]):
        """Begin with nothing changed.

        Args:
            algorithm: as it was configured.
            use: lets the loop go on with another algorithm, whose hyperparameters are arrays.
            counts: returns how far the run is.
        """
        self._now: Any = algorithm
        self._use, self._counts = use, counts
        self.values: dict[str, float] = {}
        """The changed ones and their values."""

    @property
    def counts(self) -> dict[str, int]:
        """Iterations, steps, episodes and updates so far."""
        return self._counts()

    @property
    def hyperparameters(self) -> dict[str, float]:
        """The numbers that can be changed, as they are now."""
        given = {
            name: value_of(self._now, name)
            for name, place in hyperparameters(self._now).items()
            if is_traced(place.field)
        }
        return {name: float(x) for name, x in given.items() if x is not None and not isinstance(x, Schedule)}

    @property
    def figures(self) -> dict[str, float]:
        """The changed ones under their names in the journal."""
        return {f"hyperparameter/{name}": value for name, value in self.values.items()}

    def change(self, name: str, value: float) -> None:
        """Change one from the next iteration on; LudusError if it cannot be, and then nothing is changed."""
        key = f"algorithm.{name}={value:g}"
        place = hyperparameters(self._now).get(name)
        if place is None:
            raise LudusError(f"{key}: no such hyperparameter{_hint(name, list(self.hyperparameters))}")
        if not is_traced(place.field):
            raise LudusError(f"{key}: shapes the compiled program, and cannot be changed in a run; start a new one")
        now = value_of(self._now, name)
        if isinstance(now, Schedule):
            raise LudusError(f"{key}: follows a schedule, {now}; give it a number at the start to change it later")
        if now is None:
            raise LudusError(f"{key}: is null in this run, which cannot be changed; give it a number at the start")
        with np.errstate(over="ignore"):
            number = float(np.float32(value))  # as the program computes with it, so that a resumed run is exact
        if not math.isfinite(number):
            raise LudusError(f"{key}: must be a finite number of 32 bits")
        self._now = with_value(self._now, name, number)
        self.values[name] = number
        self._use(as_arrays(self._now))

    def snapshot(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on with the same hyperparameters, as JSON knows it."""
        return {"hyperparameters": dict(self.values)}

    def restore(self, record: dict[str, Any]) -> None:
        """Make the changes that the record of a checkpoint holds; earlier checkpoints do not say."""
        for name, value in record.get("hyperparameters", {}).items():
            self.change(name, value)


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; these can be changed: {', '.join(known) or 'none'}"
