"""Recording a run: each iteration and each evaluation becomes a row of the journal and a word on the console."""

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ludus.runs.console import Console, duration
from ludus.runs.folder import RunFolder
from ludus.runs.health_watch import HealthWatch
from ludus.runs.metrics import COUNTS, EPISODES, EVALUATION
from ludus.runs.reward_watch import RewardWatch
from ludus.runs.statistics_block import Recent, block
from ludus.runs.trackers.base import Tracker
from ludus.types import FIGURES, IS_SUCCESS, Counted

LOG = "log.txt"
"""The log of a run: the lines that its console showed."""
SUCCESS_RULES = ("auto", "info", "return", "terminated")
SUCCESS_TOLD = "info/is_success/last"
"""The figure by which an environment tells itself whether an episode succeeded."""


def success_rule(asked: str, success_return: float | None, is_told: bool) -> str | None:
    """Return the rule by which the episodes of a run succeed: info, return or terminated; None if there is none.

    To terminate is to fail in most tasks, and never happens in others: that rule must be asked for.
    """
    if asked != "auto":
        return asked
    return "info" if is_told else "return" if success_return is not None else None


More = Callable[[dict[str, Any], Any], dict[str, float]]


class RecordOptions(NamedTuple):
    """The options about what is made of a run's numbers."""

    success: str = "auto"
    """What makes an episode a success: one of `SUCCESS_RULES`."""
    success_return: float | None = None
    log_frequency: int = 0
    """Iterations between blocks of statistics; 0: none."""
    clip_epsilon: float | None = None
    """The algorithm's clip range, for the block; None if it has none."""
    window: int = 100
    """Episodes over which recent figures are averaged."""
    loguru: bool = False
    """Whether Loguru is told as well."""


class EpisodeSums(NamedTuple):
    """The episodes that count from one iteration on, summed up."""

    count: int
    total: float
    length: float = 0.0
    successes: float | None = None


class Recorder:
    """Keeps the totals of a run and tells them to its folder (if it has one) and to the console."""

    def __init__(self, verbose: bool, options: "RecordOptions"):
        """Begin with all counts at zero."""
        self.options = options
        self.folder: RunFolder | None = None
        self.trackers: Sequence[Tracker] = ()
        self.console = Console(verbose)
        self.more: More = lambda row, evaluation: {}
        """Returns what a row of the journal holds besides, such as figures of callbacks."""
        self.iterations = self.steps = self.episodes = self.updates = 0
        self.latest: dict[str, float] = {}
        """The latest value of every figure of the journal."""
        self._before = 0.0
        self._started: float | None = None
        """When time began to count; None while it does not."""
        self._recent: list[EpisodeSums] = []
        self._trouble: str | None = None
        self._has_warned, self._watches = False, (HealthWatch(), RewardWatch())
        self.total_steps: int | None = None
        """How many steps the run is to make, for the block."""

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, those of earlier processes included."""
        return self._before + (0.0 if self._started is None else time.perf_counter() - self._started)

    @property
    def recent_return(self) -> float | None:
        """Mean return of the latest episodes that count, of as many iterations as it takes to have a window of them.

        None before there are so many: the luck of a few episodes is not what a policy can do.
        """
        recent = self.recent
        return recent.mean_return if recent.episodes >= self.options.window else None

    @property
    def recent(self) -> Recent:
        """Return the figures of that window's episodes, however few they are so far."""
        known = [part.successes for part in self._recent if part.successes is not None]
        count = sum(part.count for part in self._recent)
        if not count:
            return Recent(0, None, None, None)
        length, total = (sum(part[i] for part in self._recent) / count for i in (2, 1))
        return Recent(count, length, total, sum(known) / count if len(known) == len(self._recent) else None)

    def snapshot(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on counting, as JSON knows it."""
        # Copies: it is written on another thread, while these lists go on growing.
        recent, latest = list(self._recent), dict(self.latest)
        return {**self.counts, "elapsed_seconds": self.elapsed, "recent": recent, "latest": latest}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on counting from there."""
        self.iterations, self.steps = saved["iteration"], saved["steps"]
        self.episodes, self.updates = saved["episodes"], saved["updates"]
        self._before, self._started = saved["elapsed_seconds"], None
        self._recent = [EpisodeSums(*part) for part in saved["recent"]]
        self.latest = dict(saved["latest"])

    @property
    def counts(self) -> dict[str, int]:
        """The totals under their journal names."""
        return dict(zip(COUNTS, (self.iterations, self.steps, self.episodes, self.updates), strict=True))

    def begin(self, config: dict[str, Any], identity: dict[str, Any]) -> None:
        """Write down what is about to run; from now on time counts."""
        self._started = time.perf_counter()
        if self.folder:
            if self.iterations == 0 and "status" not in self.folder.identity:
                self.folder.create()
            self.folder.write_config(config)
            started = self.folder.identity.get("started", round(time.time(), 3))
            self.folder.write_identity(**identity, host=socket.gethostname(), started=started, status="running")
            self.console.log = self.folder.path / LOG
            for tracker in self.trackers:
                tracker.begin(self.folder)

    def iterations_made(self, rows: dict[str, Any], seconds: float, budget: Any) -> list[dict[str, Any]]:
        """Count a chunk's iterations in, journal each, and show progress; a faulty one is not counted.

        Returns the rows of the journal.
        """
        if (health := rows.pop("health", None)) is not None:
            rows |= health.columns()
        healthy = {name: x[rows["fault"] == 0] for name, x in rows.items()}
        journal = self._rows(healthy, seconds)
        if not journal:
            return []
        for row in journal:
            row |= self.more(row, None)
            for warning in filter(None, (watch.saw(row) for watch in self._watches)):
                self.console.say(warning)
        self._append(journal)
        share = budget.share(self.steps, self.episodes, self.elapsed)
        facts = {
            "steps": self.steps,
            "steps_per_second": journal[-1]["steps_per_second"],
            "episode_return_mean": self.latest.get("episode_return_mean"),
            "remaining_seconds": self.elapsed * (1 - share) / share if share > 0 else None,
        }
        self.console.progress(share, facts)
        return journal

    def evaluated(self, evaluation: Any, seconds: float) -> None:
        """Journal an evaluation, which took so long, and say what it came to."""
        timing = {"seconds/evaluation": round(seconds, 6), "elapsed_seconds": round(self.elapsed, 6)}
        row = {"kind": "evaluation", **self.counts, **_evaluation_figures(evaluation.summary()), **timing}
        self._append([row | self.more(row, evaluation)])
        line = f"{self.steps:>12,} steps · evaluation {evaluation}"
        self.console.say(line)
        if self.options.loguru:
            log(line.strip())

    def failed(self, error: BaseException) -> None:
        """Keep what is known of an error besides its line, such as an environment's traceback, in the folder's log."""
        notes = getattr(error, "__notes__", None)
        if notes and self.folder is not None:
            self.console.note("\n".join([str(error), *notes]))
            notes.clear()  # who tells of the error need not repeat them

    def end(self, status: str, reason: str, **facts: Any) -> None:
        """Write down how the run ended, or stopped for a while."""
        self._before, self._started = self.elapsed, None  # what trackers still have to send is not training
        totals = " · ".join(f"{value:,} {name}" for name, value in self.counts.items() if name != "iteration")
        self.console.note(f"{status} · {reason} · {totals} · {duration(self.elapsed)}")
        if self.folder:
            try:
                self.folder.write_identity(status=status, exit_reason=reason, **self.counts, **facts)
            finally:
                self.folder.close()
            for tracker in self.trackers:
                tracker.end()

    def _append(self, rows: list[dict[str, Any]]) -> None:
        # JSON has no infinity; what overflowed is not known.
        rows = [{k: v for k, v in row.items() if not isinstance(v, float) or np.isfinite(v)} for row in rows]
        for row in rows:
            self.latest |= {name: value for name, value in row.items() if isinstance(value, int | float)}
        if self.folder is None:
            return
        self.folder.append(rows)
        for tracker in self.trackers:
            tracker.wake()
        if self.folder.journal.trouble != self._trouble:
            self._trouble = self.folder.journal.trouble
            trouble = f"{self._trouble}; its rows are kept in memory, training goes on"
            self.console.say(trouble if self._trouble else f"{self.folder.path}: the journal is written again")

    def _rows(self, rows: dict[str, np.ndarray], seconds: float) -> list[dict[str, Any]]:
        figures = _figures({name: x for name, x in rows.items() if name not in COUNTED}, len(rows["steps"]))
        timing = {
            "elapsed_seconds": round(self.elapsed, 6),
            "steps_per_second": round(float(rows["steps"].sum()) / max(seconds, 1e-9), 1),
        }
        journal = []
        for i in range(len(rows["steps"])):
            self.iterations += 1
            self.steps += int(rows["steps"][i])
            self.episodes += int(rows["episodes"][i])
            self.updates += int(rows["updates"][i])
            told = float(rows[f"info/{IS_SUCCESS}/last"][i]) if f"info/{IS_SUCCESS}/last" in rows else np.nan
            ended = {name: float(rows[name][i]) for name in ("episodes", "terminations", "successes")}
            success_rate = self._success_rate(**ended, told=told)
            episodes = _episode_figures(rows, i) | ({} if success_rate is None else {"success_rate": success_rate})
            episodes |= self._counted(rows, i)
            journal.append({"kind": "train", **self.counts, **episodes, **figures[i], **timing})
            self._log(journal[-1], int(rows["steps"][i]), self._success_rule(told))
            self._warn_of_cuts(journal[-1])
        return journal

    def _success_rate(self, episodes: float, terminations: float, successes: float, told: float) -> float | None:
        """Return the share of episodes that succeeded; None if there were none, or nothing tells.

        `told` is the share by what they said themselves, NaN if none did.
        """
        rule = self._success_rule(told)
        if not episodes or rule is None or (rule == "info" and not np.isfinite(told)):
            return None
        return told if rule == "info" else (successes if rule == "return" else terminations) / episodes

    def _success_rule(self, told: float) -> str | None:
        """Return what makes an episode a success. An environment that has told it once goes on to: it is one rule."""
        is_told = bool(np.isfinite(told)) or SUCCESS_TOLD in self.latest
        return success_rule(self.options.success, self.options.success_return, is_told)

    def _counted(self, rows: dict[str, np.ndarray], i: int) -> dict[str, Any]:
        """Remember the episodes that count from an iteration on; return its figures of them."""
        counted = dict(zip(FIGURES, rows["counted"][i].tolist(), strict=True))
        episodes, return_sum, length_sum = int(counted["episodes"]), counted["return_sum"], counted["length_sum"]
        figures: dict[str, Any] = {"counted_episodes": episodes}
        if episodes and np.isfinite(return_sum):
            told = counted["told_successes"] / counted["told"] if counted["told"] else np.nan
            rate = self._success_rate(episodes, counted["terminations"], counted["successes"], told)
            successes = None if rate is None else rate * episodes
            self._recent.append(EpisodeSums(episodes, return_sum, length_sum, successes))
            while sum(part.count for part in self._recent[1:]) >= self.options.window:
                del self._recent[0]
            figures["counted_return_mean"] = return_sum / episodes
            figures["counted_length_mean"] = length_sum / episodes
            if (recent := self.recent_return) is not None:
                figures["recent_return_mean"] = recent
        return figures | {f"episodes_{name}": int(rows[name][i]) for name in ("running", "waiting")}

    def _warn_of_cuts(self, row: dict[str, Any]) -> None:
        """Say so, once, if episodes are cut that should be whole."""
        if row.get("episodes_cut") and not self._has_warned:
            self._has_warned = True
            self.console.say(
                f"{row['episodes_cut']:.0f} episodes were cut where the rollout had no more room: they are learnt "
                "from, but not counted; a larger algorithm.batch_size has room for them"
            )

    def _log(self, row: dict[str, Any], rollout_length: int, rule: str | None) -> None:
        """Show the block of statistics, and tell the user's log, as often as they want that."""
        options = self.options
        if options.log_frequency and row["iteration"] % options.log_frequency == 0:
            recent = self.recent._replace(success_rule=rule or "no rule")
            limits = {"total_steps": self.total_steps, "clip_epsilon": options.clip_epsilon}
            self.console.say(block(row, rollout_length, recent, limits))
            if options.loguru:
                shown = {name: row[name] for name in LOGGED if name in row}
                log(" · ".join([f"iteration {row['iteration']:,}", *(f"{name} {x:,.6g}" for name, x in shown.items())]))


EPISODE_LISTS = tuple(metric.name for metric in EPISODES)
LOGGED = ("steps", "policy_loss", "value_loss", "critic_loss", "episode_return_mean")
"""Figures of an iteration that the log gets."""
COUNTED = (
    "steps", "episodes", "updates", "fault", "halt", "return_sum", "return_min", "return_max", "length_sum",
    "terminations", "successes", *EPISODE_LISTS, *Counted._fields, "stuck",
)  # fmt: skip
"""Columns of a chunk that become totals or episode figures; all others are metrics of the algorithm."""


def log(text: str) -> None:
    """Tell Loguru, whose sinks and levels are the user's: nothing is added to them or taken away."""
    from loguru import logger

    logger.info(text)


def _ended(rows: dict[str, np.ndarray], name: str, i: int) -> list[float | None]:
    """Return one figure of every episode that ended, out of an array with room for one at each step."""
    figures = rows[name][i][rows["episode_lengths"][i] > 0]
    return [x if np.isfinite(x) else None for x in figures.tolist()]


def _figures(columns: dict[str, np.ndarray], count: int) -> list[dict[str, Any]]:
    """Return the figures of each of so many rows by name; what is not finite is not known, and left out.

    A column of vectors holds histograms: low, high, counts.
    """
    figures: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, column in columns.items():
        is_known = np.isfinite(column if column.ndim == 1 else column.sum(axis=1))
        # Column by column: most are empty in most rows, and those cost nothing this way.
        for i in np.flatnonzero(is_known).tolist():
            figures[i][name] = float(column[i]) if column.ndim == 1 else _histogram(column[i])
    return figures


def _histogram(vector: np.ndarray) -> dict[str, Any]:
    low, high, *counts = vector.tolist()
    return {"low": low, "high": high, "counts": [int(count) for count in counts]}


def _episode_figures(rows: dict[str, np.ndarray], i: int) -> dict[str, Any]:
    episodes = int(rows["episodes"][i])
    lists = {name: _ended(rows, name, i) for name in EPISODE_LISTS if name in rows}
    if episodes == 0:
        return lists
    return {
        **lists,
        "episode_return_mean": float(rows["return_sum"][i]) / episodes,
        "episode_return_min": float(rows["return_min"][i]),
        "episode_return_max": float(rows["return_max"][i]),
        "episode_length_mean": float(rows["length_sum"][i]) / episodes,
    }


def _evaluation_figures(summary: dict[str, float]) -> dict[str, Any]:
    """Return what the journal says of one evaluation."""
    figures = {metric.name: summary[metric.summary] for metric in EVALUATION if metric.summary in summary}
    return figures | {f"eval_{name}": value for name, value in summary.items() if name.startswith("info/")}
