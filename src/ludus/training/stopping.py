"""When a run has learnt what it can: three rules that end it early.

- **window**: the mean return of the latest `window` episodes has held the target for `patience` episodes in a row, and
  so does an evaluation of the policy as it is then: those episodes were played by many policies, none of which is it.
- **interval**: the confidence interval of an evaluation's mean return lies at or above the target.
- **plateau**: none of the latest `evaluations` evaluations was significantly better than the best one before them.

The rules see numbers only. Their memory is saved with every checkpoint, so a resumed run stops where it would have.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ludus.types import LudusError

Rule = Literal["none", "window", "interval", "plateau"]
CHECK_EVERY = 10
"""Iterations between two looks at the window, so that a run stops at the same one however it was cut into chunks."""


@dataclass(frozen=True)
class ConvergenceOptions:
    """The rule that ends a run before its budget is spent."""

    rule: str = "none"
    """none; window: recent episodes hold the target; interval: an evaluation surely does; plateau: nothing improves."""
    target_return: float | None = None
    """What the mean return must reach; null: the environment's own threshold, such as 475 for CartPole-v1."""
    window: int = 100
    """Rule window: episodes that are averaged."""
    patience: int = 10
    """Rule window: episodes in a row after which the mean must still hold the target."""
    evaluations: int = 5
    """Rule plateau: evaluations without significant improvement."""
    confidence: float = 0.95
    """Rules interval and plateau: how sure they must be."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.rule not in get_args(Rule):
            raise LudusError(f"convergence.rule={self.rule}: must be one of {', '.join(get_args(Rule))}")
        for name in ("window", "patience", "evaluations"):
            value, low = getattr(self, name), int(name != "patience")
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise LudusError(f"convergence.{name}={value}: must be an integer of at least {low}")
        if not 0.5 < self.confidence < 1:
            raise LudusError(f"convergence.confidence={self.confidence}: must lie between 0.5 and 1")
        if self.target_return is not None and not math.isfinite(self.target_return):
            raise LudusError(f"convergence.target_return={self.target_return}: must be a finite number")


@dataclass(frozen=True)
class Sample:
    """Mean, deviation (with n - 1) and number of an evaluation's returns."""

    mean: float
    deviation: float
    size: int

    @classmethod
    def of(cls, returns: Iterable[float]) -> "Sample":
        """Sum up returns."""
        values = [float(x) for x in returns]
        mean = math.fsum(values) / len(values)
        squares = math.fsum((x - mean) ** 2 for x in values)
        return cls(mean, math.sqrt(squares / max(len(values) - 1, 1)), len(values))

    @property
    def variance_of_mean(self) -> float:
        """The variance of the mean itself."""
        return self.deviation**2 / self.size


class Convergence:
    """Watches the returns of one run. Without a target, the rules that need one are refused."""

    def __init__(self, options: ConvergenceOptions, return_threshold: float | None = None):
        """Begin with nothing seen."""
        self.options = options
        self.target = return_threshold if options.target_return is None else float(options.target_return)
        if options.rule in ("window", "interval") and self.target is None:
            raise LudusError(
                f"convergence.rule={options.rule}: the environment names no return that counts as solved; "
                "give convergence.target_return"
            )
        self.best_average: float | None = None
        """The highest mean of a whole window so far."""
        self.held = 0
        """Episodes in a row after which the window's mean held the target."""
        self.is_converged = False
        """Whether the rule was fulfilled; for the plateau, with the target reached if there is one."""
        self.has_arrived = False
        """Whether the evaluation at the end of the run reached the target; no part of what a checkpoint remembers."""
        self._recent: deque[tuple[int, float]] = deque()
        self._evaluations: list[Sample] = []

    @property
    def average(self) -> float | None:
        """Mean return of the latest window; None before there are as many episodes."""
        episodes = sum(count for count, _ in self._recent)
        return math.fsum(total for _, total in self._recent) / episodes if episodes >= self.options.window else None

    @property
    def best_avg_reward(self) -> float | None:
        """The highest mean of a window or, as long as none was whole, the mean of all episodes: one number for a run.

        It is what the founding documents call by this name, wherever it is written.
        """
        if self.best_average is not None or not self._recent:
            return self.best_average
        return math.fsum(total for _, total in self._recent) / sum(count for count, _ in self._recent)

    def saw_episodes(self, count: int, total: float) -> None:
        """Take in episodes that ended together, by their number and the sum of their returns."""
        if not count or not math.isfinite(total):
            return
        self._recent.append((count, total))
        episodes = sum(count for count, _ in self._recent)
        while episodes - self._recent[0][0] >= self.options.window:
            episodes -= self._recent.popleft()[0]
        if (average := self.average) is None:
            return
        self.best_average = average if self.best_average is None else max(self.best_average, average)
        if self.target is not None:
            self.held = self.held + count if average >= self.target else 0
        if self.options.rule == "window" and self.held > self.options.patience:
            self.is_converged = True

    def saw_evaluation(self, returns: Sequence[float]) -> None:
        """Take in the returns of one evaluation; those of one that is not finite can be compared with nothing.

        One that does not hold the target refutes what a window says.
        """
        rule = self.options.rule
        if rule == "window" and self.is_converged and self.target is not None:
            self.is_converged = sum(returns) / len(returns) >= self.target
            self.held = self.held if self.is_converged else 0
        if not all(map(math.isfinite, returns)):
            return
        sample = Sample.of(returns)
        self._evaluations.append(sample)
        if rule == "interval":
            self.is_converged = self._is_surely_there(sample)
        elif rule == "plateau" and self.is_flat:
            best = max(sample.mean for sample in self._evaluations)
            self.is_converged = self.target is None or best >= self.target

    def begin_anew(self) -> None:
        """Forget all but the best: whoever trains on after the rule ended a run wants it to judge what comes now."""
        self.held, self.is_converged = 0, False
        self._recent.clear()
        self._evaluations.clear()

    def saw_final(self, returns: Sequence[float], is_whole: bool = True) -> None:
        """Take in the evaluation at the end: whatever the rule, a run that reaches its target there has converged.

        Rule interval must be as sure as ever, and so must every rule of an evaluation that was cut short.
        """
        sample = Sample.of(returns)
        must_be_sure = self.options.rule == "interval" or not is_whole
        if self.target is not None and sample.mean >= self.target:
            self.has_arrived = self._is_surely_there(sample) or not must_be_sure

    def _is_surely_there(self, sample: Sample) -> bool:
        """Whether the confidence interval of a mean lies at or above the target."""
        quantile = _student_quantile(self.options.confidence, max(sample.size - 1, 1))
        margin = math.sqrt(sample.variance_of_mean) * quantile
        return self.target is not None and sample.mean - margin >= self.target

    @property
    def is_flat(self) -> bool:
        """Whether none of the latest evaluations was significantly better than the best one before them."""
        count = self.options.evaluations
        earlier, latest = self._evaluations[:-count], self._evaluations[-count:]
        if not earlier:
            return False
        best = max(earlier, key=lambda sample: sample.mean)
        return not any(_is_better(sample, best, self.options.confidence) for sample in latest)

    @property
    def ends_run(self) -> bool:
        """Whether the run is to stop now."""
        return self.is_converged or (self.options.rule == "plateau" and self.is_flat)

    def snapshot(self) -> dict[str, Any]:
        """Return what a resumed run must know, as JSON knows it."""
        return {
            "best_average": self.best_average,
            "held": self.held,
            "is_converged": self.is_converged,
            "recent": [list(pair) for pair in self._recent],
            "evaluations": [[sample.mean, sample.deviation, sample.size] for sample in self._evaluations],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        self.best_average, self.held = saved["best_average"], int(saved["held"])
        self.is_converged = bool(saved["is_converged"])
        self._recent = deque((int(count), float(total)) for count, total in saved["recent"])
        self._evaluations = [Sample(float(mean), float(dev), int(size)) for mean, dev, size in saved["evaluations"]]


def _is_better(new: Sample, old: Sample, confidence: float) -> bool:
    """Welch's test, one-sided: whether the mean behind `new` is above the one behind `old`."""
    variance = new.variance_of_mean + old.variance_of_mean
    difference = new.mean - old.mean
    if variance == 0:
        return difference > 0
    parts = [(sample.variance_of_mean**2, max(sample.size - 1, 1)) for sample in (new, old)]
    freedom = variance**2 / sum(square / size for square, size in parts)
    return difference / math.sqrt(variance) > _student_quantile(confidence, freedom)


def _student_quantile(probability: float, freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))
