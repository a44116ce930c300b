"""What follows from how a run does: when it is evaluated, which policy is its best, and what ends it early."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ludus.callback import Callback
from ludus.convergence import CHECK_EVERY, Convergence
from ludus.counting import Budget
from ludus.evaluation import Evaluation
from ludus.interrupt import Interrupt
from ludus.keeping import BEST_EVERY, SIGN, Keeper
from ludus.loop import FINAL_EPISODES
from ludus.policy import Policy
from ludus.settings import Settings
from ludus.tracking.records import Recorder


class Judge:
    """Judges one run between its chunks; changes nothing of what is learnt."""

    def __init__(
        self,
        settings: Settings,
        convergence: Convergence,
        record: Recorder,
        keeper: Keeper,
        *,
        policy: Callable[[], Policy],
        evaluate: Callable[[int], Evaluation],
        is_single: bool,
    ):
        """Nothing has been seen.

        `policy` and `evaluate` are of the policy as it is when they are called; `is_single` says that there is one
        environment, whose episodes are known one by one.
        """
        self.settings, self.convergence, self.record, self.keeper = settings, convergence, record, keeper
        self._policy, self._evaluate, self.is_single = policy, evaluate, is_single
        self.callback: Callback | None = None
        self.confirmation: Evaluation | None = None
        """The evaluation, as long as the policy is as it was then, that had to say whether it has converged."""
        self._evaluation: Evaluation | None = None

    @property
    def score(self) -> float | None:
        """What checkpoints are compared by, as it is now: the higher the better."""
        options = self.settings.checkpoint
        default = "eval_return_mean" if self.settings.eval_frequency else "recent_return_mean"
        value = self.record.latest.get(options.best_by or default)
        return None if value is None else SIGN[options.best_mode if options.best_by else "max"] * value

    def begin(self, callback: Callback | None, is_resumed: bool) -> None:
        """Judge one call to `train`. Where the rule has ended the run before, who trains on wants it judged anew."""
        self.callback, self.confirmation = callback, None
        if not is_resumed and self.convergence.ends_run:
            self.convergence.begin_anew()

    def restore(self, convergence: dict[str, Any] | None) -> None:
        """Go on from where the record says the run was, with what the rule of convergence remembered, if it did."""
        if convergence:
            self.convergence.restore(convergence)

    def until_next(self, budget: Budget, steps_per_iteration: int) -> int:
        """Return how many iterations may be made at once without passing one after which something is due."""
        settings, record = self.settings, self.record
        gap = self.keeper.until_next(record.iterations, record.steps, steps_per_iteration, budget.total_steps)
        if self.keeper.checkpoints is not None and (every := self._best_every):
            gap = min(gap, every - record.iterations % every)
        if settings.convergence.rule == "window":
            gap = min(gap, CHECK_EVERY - record.iterations % CHECK_EVERY)
        if self.callback is not None or (settings.eval_frequency and settings.eval_by == "episodes"):
            gap = 1  # nobody knows in which iteration the next episode ends
        elif settings.eval_frequency:
            gap = min(gap, settings.eval_frequency - record.iterations % settings.eval_frequency)
        return max(1, gap)

    def judge(self, interrupt: Interrupt, budget: Budget) -> bool:
        """Evaluate and keep the best where that is due, once; return False if a signal came in between."""
        record, keeper = self.record, self.keeper
        if keeper.passes_milestone(record.steps, budget.total_steps):
            keeper.keep_milestones(record.steps, budget.total_steps, self._policy())
        if record.iterations and (every := self._best_every) and record.iterations % every == 0:
            self._keep_if_best()
        by_evaluation = self._is_to_evaluate() or self._is_to_confirm()
        if not keeper.is_to_judge(record.iterations, by_evaluation):
            return True
        if by_evaluation:
            confirms = self._is_to_confirm()
            episodes = FINAL_EPISODES if confirms else self.settings.eval_episodes
            if (evaluation := self.evaluated(interrupt, episodes)) is None:
                return False
            self.confirmation = evaluation if confirms else None
            self.convergence.saw_evaluation(evaluation.returns.tolist())
            keeper.marks.episodes_evaluated, self._evaluation = record.episodes, evaluation
        self._keep_if_best()
        keeper.judged(record.iterations, self.score)
        return True

    def evaluated(self, interrupt: Interrupt, episodes: int) -> Evaluation | None:
        """Evaluate, journal that and keep the best; None if a signal cut it short, which changes nothing."""
        try:
            interrupt.at_once = True
            evaluation = self._evaluate(episodes)
        except KeyboardInterrupt:
            return None
        finally:
            interrupt.at_once = False
        self.record.evaluated(evaluation)  # a row is written whole, and once
        self.keeper.keep_if_best("evaluation", evaluation.summary()["mean_return"], self._policy)
        if self._is_best_by("evaluation"):
            self.keeper.keep_if_best("figure", self.score, self._policy)
        return evaluation

    def evaluated_finally(self, interrupt: Interrupt, episodes: int) -> Evaluation | None:
        """Evaluate the policy that the run ends with, unless that was just done, and judge the run by it."""
        if self.confirmation is None and (evaluation := self.evaluated(interrupt, episodes)) is not None:
            self.convergence.saw_evaluation(evaluation.returns.tolist())
            return evaluation
        return self.confirmation

    def saw(self, rows: list[dict[str, Any]]) -> None:
        """Let convergence see the episodes that count from each iteration on; one by one if their order is known.

        That of a single environment is: they end as they begin.
        """
        self.confirmation = None
        for row in rows:
            if self.is_single and "episode_returns" in row:
                for total in row["episode_returns"]:
                    self.convergence.saw_episodes(1, np.nan if total is None else total)
            elif "counted_return_mean" in row:
                count = row["counted_episodes"]
                self.convergence.saw_episodes(count, count * row["counted_return_mean"])

    def ended_early(self, rows: list[dict[str, Any]]) -> str | None:
        """Tell the callback of the latest iterations; return what ends the run before its budget, if something does."""
        evaluation, self._evaluation = self._evaluation, None
        if self.callback is not None:
            self.callback(rows, self.record.latest, evaluation)
            if self.callback.wants_stop:
                return "callback"
        is_time = self.settings.convergence.rule != "window" or self._is_to_confirm()
        return "convergence" if is_time and self.convergence.ends_run else None

    def _is_to_confirm(self) -> bool:
        """Whether an evaluation must say if the policy does as well as recent episodes did."""
        is_time = self.settings.convergence.rule == "window" and self.record.iterations % CHECK_EVERY == 0
        return is_time and self.convergence.is_converged

    def look_back(self) -> None:
        """When a run is over: its last policy may be its best, and is if there were too few episodes to tell."""
        self._keep_if_best()
        if self.keeper.marks.best_return is None and self.record.iterations:
            self.keeper.keep_unjudged(self._policy)

    @property
    def _best_every(self) -> int:
        """Iterations between two looks at the recent return, besides those after evaluations; 0: none."""
        return int(self.settings.checkpoint.best_every) or (0 if self.settings.eval_frequency else BEST_EVERY)

    def _keep_if_best(self) -> None:
        self.keeper.keep_if_best("return", self.record.recent_return, self._policy)
        if self._is_best_by("train"):
            self.keeper.keep_if_best("figure", self.score, self._policy)

    def _is_best_by(self, kind: str) -> bool:
        """Whether the best is judged by a figure of this kind of row: the policy is then as it was for that row."""
        by = self.settings.checkpoint.best_by
        return by is not None and by.startswith("eval_") == (kind == "evaluation")

    def _is_to_evaluate(self) -> bool:
        every, record = self.settings.eval_frequency, self.record
        if not every or self.settings.eval_by == "iterations":
            return bool(every) and record.iterations % every == 0
        return record.episodes // every > self.keeper.marks.episodes_evaluated // every
