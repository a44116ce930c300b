"""A function of the user's that hears how training goes, and may end it."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

from ludus.tracking.founding_names import founding_names
from ludus.types import LudusError

EVALUATION_NAMES = {
    "avg_reward": "mean_return",
    "std_reward": "std_return",
    "max_reward": "max_return",
    "min_reward": "min_return",
    "avg_length": "mean_length",
}
"""Names that `eval_metrics` has besides those of an evaluation's summary, and which of those each one stands for."""


class Callback:
    """Calls the user's function; one that raises is named and not called again, and the run goes on."""

    def __init__(self, function: Callable[[dict[str, Any]], Any], say: Callable[[str], None]):
        """Refuse what cannot be called with one argument."""
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        try:
            inspect.signature(function).bind({})
        except (TypeError, ValueError) as error:
            raise LudusError(
                f"callback={self.name}: must be a function of one argument, the metrics ({error})"
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
            self.say(f"callback {self.name} raised {type(error).__name__}: {error}; training goes on without it")


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
            "step_metrics": {**told, **founding_names(told)},
            "eval_metrics": _named_evaluation(summary) if summary and is_last else None,
        }


def _named_evaluation(summary: dict[str, Any]) -> dict[str, Any]:
    return {**summary, **{name: summary[ours] for name, ours in EVALUATION_NAMES.items()}}
