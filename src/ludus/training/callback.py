"""Callbacks: users' own objects and functions that hear how training goes, and may change it or end it."""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

from ludus.runs.metrics import COUNTS, OWN_FIELDS, SUMMARY_ALIASES, also_called
from ludus.runtime import own_parts
from ludus.types import LudusError

if TYPE_CHECKING:
    from ludus.training.evaluation import Evaluation

KEY = "callbacks"
HEARS = ("on_start", "on_rollout", "on_evaluation", "on_end")
FIGURE = re.compile(r"[A-Za-z][\w./-]{0,99}", re.ASCII)
"""What a figure of a callback's can be called."""


class Controls(Protocol):
    """The ways in which a callback can act on a run."""

    @property
    def counts(self) -> dict[str, int]:
        """Iterations, steps, episodes and updates so far."""
        ...

    @property
    def hyperparameters(self) -> dict[str, float]:
        """The numbers of the algorithm that can be changed, as they are now."""
        ...

    @property
    def figures(self) -> dict[str, float]:
        """Those that were changed, under their names in the journal."""
        ...

    def change(self, name: str, value: float) -> None:
        """Change one of them from the next iteration on."""
        ...


@dataclass(frozen=True)
class Event:
    """Something that has happened, and what a callback can do about it."""

    metrics: dict[str, Any]
    """The row of the journal that is about to be written; empty at the start and at the end."""
    evaluation: "Evaluation | None" = None
    """The evaluation that was just made, episode by episode; at the end the last one."""
    is_resumed: bool = False
    """At the start: whether the run goes on from a checkpoint."""
    stopped_by: str | None = None
    """At the end: what has ended the run, such as `total_steps`."""
    _controls: Controls | None = None
    _figures: dict[str, float] | None = None
    _stops: list[bool] = dataclasses.field(default_factory=list)

    @property
    def iteration(self) -> int:
        """Iterations so far; at a rollout, its own number."""
        return self._of_run.counts["iteration"]

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self._of_run.counts["steps"]

    @property
    def episodes(self) -> int:
        """Episodes finished so far."""
        return self._of_run.counts["episodes"]

    @property
    def hyperparameters(self) -> dict[str, float]:
        """The numbers of the algorithm that can be changed, as they are now."""
        return self._of_run.hyperparameters

    def add(self, name: str, value: float) -> None:
        """Add a figure to the row of the journal: it must be a finite number with a name of its own."""
        if self._figures is None:
            raise LudusError(f"add: {name}: there is no row to add to at the start and at the end of a run")
        if not isinstance(name, str) or not FIGURE.fullmatch(name):
            raise LudusError(f"add: {name!r} must be a name of letters, digits and _ . / -")
        if name in (*self.metrics, *self._figures, *OWN_FIELDS, *COUNTS):
            raise LudusError(f"add: {name}: the journal has a figure of that name")
        number = number_of(f"add: {name}", value)
        self._figures[name] = number

    def set(self, name: str, value: float) -> None:
        """Change a traced hyperparameter, such as `learning_rate`, from the next iteration on; nothing is recompiled.

        The journal has what it came to as `hyperparameter/<name>`, and a resumed run goes on with it.
        """
        self._of_run.change(name, number_of(f"algorithm.{name}", value))

    def stop(self) -> None:
        """End the run after this iteration, with everything saved."""
        self._stops.append(True)

    @property
    def _of_run(self) -> Controls:
        assert self._controls is not None
        return self._controls


class Callback:
    """Hears how training goes: inherit from it, and write what you want to hear.

    What it decides should follow from the event alone: what it remembers itself is not saved with a checkpoint.
    """

    def on_start(self, event: Event) -> None:
        """Training begins or goes on."""

    def on_rollout(self, event: Event) -> None:
        """An iteration (one collect and one update) was made."""

    def on_evaluation(self, event: Event) -> None:
        """The policy was evaluated."""

    def on_end(self, event: Event) -> None:
        """The run is over, by itself or by a signal; not told if an error ended it."""


Function = Callable[[dict[str, Any]], Any]


def number_of(what: str, value: Any) -> float:
    """Return a finite number as Python's own; LudusError if it is none."""
    if type(value).__module__ != "builtins" and getattr(value, "ndim", None) == 0:
        value = value.item()  # of NumPy or JAX
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise LudusError(f"{what}={value!r}: must be a finite number")
    return float(value)


class Callbacks:
    """All that hear of one run. One that raises is named and not called again, and the run goes on."""

    def __init__(self, given: Sequence[Any], say: Callable[[str], None], controls: Controls):
        """Refuse what can hear nothing.

        Args:
            given: names, `Callback` objects, and functions of one argument, the metrics.
            say: prints one line for the user.
            controls: of the run.
        """
        self._say, self._controls = say, controls
        self._objects: list[Any] = []
        self._functions: list[_Plain] = []
        for entry in given:
            made = own_parts.made(KEY, entry, calls=False)
            if any(hasattr(made, name) for name in HEARS):
                self._objects.append(made)
            else:
                self._functions.append(_Plain(made, say))
        self._is_to_stop = False

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._objects or self._functions)

    @property
    def hears_rollouts(self) -> bool:
        """Whether one of them wants to hear of every single iteration: then they are made one by one."""
        quiet = Callback.on_rollout
        return bool(self._functions) or any(
            getattr(type(one), "on_rollout", quiet) is not quiet for one in self._objects
        )

    @property
    def wants_stop(self) -> bool:
        """Whether one of them has ended the run."""
        return self._is_to_stop or any(one.wants_stop for one in self._functions)

    def start(self, is_resumed: bool) -> None:
        """Tell that training begins."""
        self._tell("on_start", {}, is_resumed=is_resumed)

    def figures(self, row: dict[str, Any], evaluation: Any = None) -> dict[str, float]:
        """Tell of a row of the journal before it is written; return what is to be added to it."""
        is_rollout, added = row["kind"] == "train", {}
        made_with = self._controls.figures if is_rollout else {}
        if self._objects:
            name, shown = "on_rollout" if is_rollout else "on_evaluation", {**row, **made_with}
            del shown["kind"]
            self._tell(name, shown, added, evaluation=evaluation)
        return {**made_with, **added}

    def end(self, stopped_by: str, evaluation: Any) -> None:
        """Tell that the run is over."""
        self._tell("on_end", {}, evaluation=evaluation, stopped_by=stopped_by)

    def told(
        self, rows: list[dict[str, Any]], latest: dict[str, float], evaluation: Any, has_ended: bool = False
    ) -> None:
        """Tell the functions of rows that were written, the last of them with the evaluation that followed it."""
        for one in self._functions:
            one(rows, latest, evaluation, has_ended)

    def _tell(self, name: str, metrics: dict[str, Any], figures: dict[str, float] | None = None, **facts: Any) -> None:
        for one in list(self._objects):
            stops: list[bool] = []
            event = Event(metrics, _controls=self._controls, _figures=figures, _stops=stops, **facts)
            try:
                getattr(one, name, _nothing)(event)
            except Exception as error:
                self._objects.remove(one)
                self._say(_farewell(type(one).__qualname__, error))
            self._is_to_stop |= bool(stops)


def _nothing(event: Event) -> None:
    """Hear nothing."""


def _farewell(name: str, error: Exception) -> str:
    told = f": {error}" if isinstance(error, LudusError) else f" raised {type(error).__name__}: {error}"
    return f"callback {name}{told}; training goes on without it"


class _Plain:
    """Calls a function with the metrics after every iteration, or episode; False ends the run."""

    def __init__(self, function: Function, say: Callable[[str], None]):
        """Refuse what cannot be called with one argument."""
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        try:
            inspect.signature(function).bind({})
        except (TypeError, ValueError) as error:
            reason = error if callable(function) else "it cannot be called"
            raise LudusError(
                f"callback={self.name}: must be a function of one argument, the metrics, or a ludus.Callback ({reason})"
            ) from error
        self.function, self.say = function, say
        self.wants_stop = False
        self._has_failed = False

    def __call__(
        self, rows: list[dict[str, Any]], latest: dict[str, float], evaluation: Any, has_ended: bool = False
    ) -> None:
        """Tell of journal rows, the last of them with the evaluation that followed it, if one did.

        Of a run that has ended it hears to the end; of an evaluation for which there is no row left, by itself.
        """
        if has_ended and not rows and evaluation is not None and "iteration" in latest:
            rows = [{name: value for name, value in latest.items() if not name.startswith("eval_")}]
        for i, row in enumerate(rows):
            summary = evaluation.summary() if evaluation is not None and i == len(rows) - 1 else None
            for metrics in _metrics(row, latest, summary):
                if self.wants_stop and not has_ended:
                    return
                self._tell(metrics)

    def _tell(self, metrics: dict[str, Any]) -> None:
        if self._has_failed:
            return
        try:
            self.wants_stop = self.function(metrics) is False
        except Exception as error:
            self._has_failed = True
            self.say(_farewell(self.name, error))


def _metrics(row: dict[str, Any], latest: dict[str, float], summary: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield one set of metrics for each episode, if the row holds them one by one, else one for the iteration."""
    figures = {name: value for name, value in row.items() if name not in ("kind", "seq")}
    step = {"episode_return_mean": latest.get("episode_return_mean", math.nan), **figures}
    returns, lengths = row.get("episode_returns"), row.get("episode_lengths", [])
    episodes = [(row["episodes"], step)]
    if returns is not None:
        first = row["episodes"] - len(returns) + 1
        ends = enumerate(zip(returns, lengths, strict=True), first)
        episodes = [(number, step | {"episode_return_mean": r, "episode_length_mean": n}) for number, (r, n) in ends]
    for number, told in episodes:
        is_last = number == row["episodes"]
        yield {
            "episode": number,
            "iteration": row["iteration"],
            "step_metrics": {**told, **also_called(told)},
            "eval_metrics": _named_evaluation(summary) if summary and is_last else None,
        }


def _named_evaluation(summary: dict[str, Any]) -> dict[str, Any]:
    return {**summary, **{name: summary[ours] for name, ours in SUMMARY_ALIASES.items()}}
