"""The consequences of a run's results: when it is evaluated, which policy is its best, and what ends it early."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ludus.algorithms.policy import Policy
from ludus.runs.recorder import Recorder
from ludus.runtime.compilation import compile_clock
from ludus.runtime.interrupt import Interrupt
from ludus.training.budget import Budget
from ludus.training.callback import Callbacks
from ludus.training.checkpoint_writer import BEST_EVERY, SIGN, Keeper
from ludus.training.evaluation import Evaluation
from ludus.training.settings import Settings
from ludus.training.stopping import CHECK_EVERY, Convergence
from ludus.types import Left, Watch


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
        evaluate: Callable[[int, Watch | None], Evaluation],
        is_single: bool,
    ):
        """Begin with nothing seen.

        `policy` and `evaluate` are of the policy as it is when they are called; `is_single` says that there is one
        environment, whose episodes are known one by one.
        """
        self.settings, self.convergence, self.record, self.keeper = settings, convergence, record, keeper
        self._policy, self._evaluate, self.is_single = policy, evaluate, is_single
        self.callback: Callbacks | None = None
        self.confirmation: Evaluation | None = None
        """The evaluation, as long as the policy is as it was then, that had to say whether it has converged."""
        self._evaluation: Evaluation | None = None
        self._untold: list[dict[str, Any]] = []
        self._seconds, self._is_resumed = 0.0, False

    @property
    def score(self) -> float | None:
        """The figure that checkpoints are compared by, as it is now: the higher the better."""
        options = self.settings.checkpoint
        default = "eval_return_mean" if self.settings.eval_frequency else "recent_return_mean"
        value = self.record.latest.get(options.best_by or default)
        return None if value is None else SIGN[options.best_mode if options.best_by else "max"] * value

    @property
    def has_converged(self) -> bool:
        """Whether the run has learnt what it was to learn: by its rule, or by the evaluation at its end."""
        return self.convergence.is_converged or self.convergence.has_arrived

    def begin(self, callback: Callbacks | None, is_resumed: bool) -> None:
        """Judge one call to `train`. Where the rule has ended the run before, who trains on wants it judged anew."""
        self.callback, self.confirmation, self.convergence.has_arrived = callback, None, False
        self._is_resumed = is_resumed
        if not is_resumed and self.convergence.ends_run:
            self.convergence.begin_anew()

    def started(self) -> None:
        """Tell the callbacks that training begins."""
        if self.callback is not None:
            self.callback.start(self._is_resumed)

    def snapshot(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on judging, as JSON knows it, and how good the policy is now."""
        return {"convergence": self.convergence.snapshot(), "score": self.score}

    def restore(self, record: dict[str, Any]) -> None:
        """Go on from what the rule of convergence remembered, if the record of a checkpoint says it."""
        if convergence := record.get("convergence"):
            self.convergence.restore(convergence)

    def until_next(self, budget: Budget, steps_per_iteration: int) -> int:
        """Return how many iterations may be made at once without passing one after which something is due."""
        settings, record = self.settings, self.record
        gap = self.keeper.until_next(record.iterations, record.steps, steps_per_iteration, budget.total_steps)
        if self.keeper.checkpoints is not None and (every := self._best_every):
            gap = min(gap, every - record.iterations % every)
        if settings.convergence.rule == "window":
            gap = min(gap, CHECK_EVERY - record.iterations % CHECK_EVERY)
        if (self.callback is not None and self.callback.hears_rollouts) or (
            settings.eval_frequency and settings.eval_by == "episodes"
        ):
            gap = 1  # nobody knows in which iteration the next episode ends
        elif settings.eval_frequency:
            gap = min(gap, settings.eval_frequency - record.iterations % settings.eval_frequency)
        return max(1, gap)

    def judge(self, interrupt: Interrupt, budget: Budget, until: float = np.inf) -> bool:
        """Evaluate and keep the best where that is due, once; return False if a signal or `until` came first."""
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
            settings = self.settings
            episodes = settings.eval_episodes_final if confirms else 0
            evaluation = self._evaluated(interrupt, episodes or settings.eval_episodes, until)
            if evaluation is None or evaluation.asked is not None:
                return False
            self._record(evaluation)
            self.confirmation = evaluation if confirms else None
            self.convergence.saw_evaluation(evaluation.returns.tolist())
            keeper.evaluated(record.episodes)
            self._evaluation = evaluation
        self._keep_if_best()
        keeper.judged(record.iterations, self.score)
        return True

    def evaluated_finally(self, interrupt: Interrupt, episodes: int, until: float = np.inf) -> Evaluation | None:
        """Evaluate the policy that a run ends with, unless that was just done, and judge the run by it.

        None if a signal came, or not one batch of episodes was whole in time.
        """
        if self.confirmation is not None:
            return self._judged_finally(self.confirmation)
        if (evaluation := self._evaluated(interrupt, episodes, until)) is None:
            return None
        if not len(evaluation.returns):
            self.record.console.say(
                "final evaluation: not one batch of episodes came to its end in the time that was left; "
                "give more max_seconds, or a smaller eval_max_steps"
            )
            return None
        self._record(evaluation)
        self.convergence.saw_evaluation(evaluation.returns.tolist())
        return self._judged_finally(evaluation)

    def _judged_finally(self, evaluation: Evaluation) -> Evaluation:
        self.convergence.saw_final(evaluation.returns.tolist(), is_whole=evaluation.asked is None)
        return evaluation

    def _evaluated(self, interrupt: Interrupt, episodes: int, until: float) -> Evaluation | None:
        """Evaluate; None if a signal cut it short, which changes nothing."""

        def tell(what: str, done: int, total: int) -> None:
            self.record.console.at(what, done, total)
            if self.record.elapsed >= until:
                raise Left

        began, compiled = time.perf_counter(), compile_clock().total
        try:
            interrupt.at_once = True
            return self._evaluate(episodes, Watch(tell))
        except KeyboardInterrupt:
            return None
        finally:
            interrupt.at_once = False
            self._seconds = time.perf_counter() - began - (compile_clock().total - compiled)

    def _record(self, evaluation: Evaluation) -> None:
        """Journal an evaluation and keep the best."""
        self.record.evaluated(evaluation, max(0.0, self._seconds))  # a row is written whole, and once
        self.keeper.keep_if_best("evaluation", evaluation.summary()["mean_return"], self._policy)
        if self._is_best_by("evaluation"):
            self.keeper.keep_if_best("figure", self.score, self._policy)

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
        is_time = self.settings.convergence.rule != "window" or self._is_to_confirm()
        if is_time and self.convergence.ends_run:
            self.hold(rows)
            return "convergence"
        evaluation, self._evaluation = self._evaluation, None
        if self.callback is not None:
            self.callback.told(rows, self.record.latest, evaluation)
        return "callback" if self.callback is not None and self.callback.wants_stop else None

    def hold(self, rows: list[dict[str, Any]]) -> None:
        """Keep the last iterations of a run from the callback, until the evaluation at the end can go with them."""
        self._untold = rows

    def ended(self, evaluation: Evaluation | None, stopped_by: str) -> None:
        """Tell the callbacks that the run is over, and of the evaluation at its end (or the last one before it)."""
        rows, self._untold = self._untold, []
        evaluation, self._evaluation = evaluation or self._evaluation, None
        if self.callback is not None:
            self.callback.told(rows, self.record.latest, evaluation, has_ended=True)
            self.callback.end(stopped_by, evaluation)

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
