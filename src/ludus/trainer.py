"""The conductor: runs iterations in chunks, and between them records, evaluates, saves and stops.

It is the same text for both kinds of environment.
"""

import contextlib
import math
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ludus import autotuning, withheld
from ludus.callback import Callback
from ludus.compilation import compile_clock, default_device, enable_compilation_cache
from ludus.convergence import Convergence
from ludus.counting import Budget
from ludus.critic import FINAL as FINAL_CRITIC
from ludus.critic import Critic, save_critic
from ludus.evaluation import Evaluation
from ludus.film_process import FilmProcess
from ludus.interrupt import Interrupt
from ludus.iteration import Context, TrainState, copied, handed_over
from ludus.judging import Judge
from ludus.keeping import Keeper
from ludus.learning.faults import FAULTS, MASK
from ludus.learning.registry import name_of
from ludus.loop import CAPACITY, Loop
from ludus.policy import FINAL, Policy, save_policy
from ludus.progress import record_of, take_up
from ludus.retreat import LONG_SECONDS, Retreat
from ludus.run_config import config_of, identity_of
from ludus.settings import Settings
from ludus.showing import Showing
from ludus.tracking.console import duration
from ludus.tracking.records import Recorder, RecordOptions
from ludus.tracking.run_folder import RunFolder
from ludus.tracking.trackers import trackers
from ludus.types import Left, LudusError, Watch

CHUNK_SECONDS = 0.5
"""Chunks are cut to about this long, so that progress, signals and time limits are heeded."""


@dataclass(frozen=True)
class TrainResult:
    """What a call to `train` reached."""

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


class Trainer:
    """Trains one algorithm on one environment."""

    def __init__(
        self,
        algorithm: Any,
        env: Any,
        settings: Settings = Settings(),  # noqa: B008  frozen
        *,
        run_dir: str | Path | None = None,
    ):
        """Check everything that can be checked before anything is compiled.

        Args:
            algorithm: such as `ludus.PPO()`.
            env: made by `ludus.make_env`.
            settings: the seed, when to evaluate, save and stop, and what is recorded.
            run_dir: folder for the journal, the configuration and the policy; None writes nothing.
        """
        _check_parts(algorithm, env, settings)
        self.device = default_device()
        compile_clock().lap()
        enable_compilation_cache()
        threshold = getattr(env, "return_threshold", None)
        self.algorithm, self.env = algorithm, env
        self.settings = settings = _with_threshold(settings, threshold)
        self.loop = Loop(algorithm, env, settings)
        convergence = Convergence(settings.convergence, threshold)
        limits = {"clip_epsilon": getattr(algorithm, "clip_epsilon", None)}
        options = RecordOptions(
            settings.success,
            settings.success_return,
            settings.log_frequency,
            limits,
            settings.recent_episodes_window,
            settings.loguru,
        )
        self.record = Recorder(settings.verbose, options)
        say = self.record.console.say
        self.keeper = Keeper(settings.checkpoint, settings.num_checkpoints, say, lambda: self.record.counts)
        self.films = FilmProcess(settings.video_frequency, say)
        self.showing = Showing(settings.record_behaviour, say)
        self.judge = Judge(
            settings,
            convergence,
            self.record,
            self.keeper,
            policy=lambda: self.policy,
            evaluate=lambda episodes, watch: self.loop.evaluate(self.state.learner, episodes, watch),
            is_single=env.num_envs == 1,
        )
        if run_dir is not None:
            withheld.check("env_options", dict(env.options))
            withheld.check("env_wrappers", getattr(env, "env_wrappers", ()))
            self._settle_in(RunFolder(run_dir, settings.permissions == "group"))
        self.final_episodes = settings.eval_episodes_final
        self.retreat = Retreat()
        self.configured_by: Sequence[str] = ()
        """Files that its settings came from, for the record."""
        self._source: Any = None
        self._budget: Budget | None = None
        self._state: TrainState | None = None
        self._first_learner: Any = None
        """What was handed over before there was a state: it will begin with that."""
        self._last_policy: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse other parts than those it was made with: programs and record are made for these."""
        if name in ("algorithm", "env", "settings") and name in self.__dict__:
            raise LudusError(
                f"trainer.{name}: cannot be exchanged; make a new Trainer, and let it go on from what this one has "
                "learnt with `new.learner = old.learner`"
            )
        super().__setattr__(name, value)

    @property
    def state(self) -> TrainState:
        """The whole of training, as it is now; the next chunk takes its arrays over."""
        return self._state if self._state is not None else self._ready()

    @property
    def learner(self) -> Any:
        """All that was learnt: networks, optimiser, normalisers; a copy, which an `Agent` can go on from."""
        return copied(self.state.learner)

    @learner.setter
    def learner(self, learner: Any) -> None:
        is_early = self._state is None and self._source is None  # `train` will compile all of it at once
        own = self.loop.fresh_learner() if is_early else self.state.learner
        new = handed_over(self.algorithm, own, learner, self.env.num_envs)
        if is_early:
            self._first_learner = new
        else:
            self._state = replace(self.state, learner=new)

    @property
    def policy(self) -> Policy:
        """The policy as it is now; training on does not change it."""
        state = self.algorithm.policy(self.state.learner)
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            state = self._last_policy  # an exception broke a chunk that had taken the state over
        return Policy(self.loop.arrays, self._copied(state), self.loop.spec, self.env.id)

    @property
    def critic(self) -> Critic | None:
        """The critic as it is now; None if an exception has left nothing of it."""
        state = self.algorithm.critic(self.state.learner)
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            return None
        return Critic(self.loop.arrays, self._copied(state), self.loop.spec, self.env.id)

    def evaluate(self, episodes: int = 100) -> Evaluation:
        """Evaluate the policy as it is now, on environments and seeds that training never sees."""
        return self.loop.evaluate(self.state.learner, episodes)

    @classmethod
    def resume(
        cls, run: str | Path, start: int | str = "latest", *, algorithm: Any = None, env: Any = None, **changes: Any
    ) -> "Trainer":
        """Return a trainer that goes on with a run, from one of its checkpoints; call `train` on it.

        Args:
            run: the run folder.
            start: "latest", "best" (by `checkpoint.best_by`) or the step of a checkpoint. What the run did after
                it is taken back.
            algorithm: the algorithm, if it held your own network or optimiser.
            env: the environment, if it was made from your own class or object.
            changes: other values for settings that do not change what the state means, such as `total_steps`,
                `eval_frequency` or `checkpoint.keep_last`; `fallback=True` takes the last good checkpoint if the
                one asked for is damaged.
        """
        from ludus.resume import resume

        return resume(cls, run, start, algorithm, env, changes)

    def train(
        self,
        total_steps: int | None = None,
        max_episodes: int | None = None,
        max_seconds: float | None = None,
        callback: Callable[[dict[str, Any]], Any] | None = None,
    ) -> TrainResult:
        """Train until a budget is spent.

        The iteration that reaches `total_steps` is the last, and whole; the one that reaches `max_episodes` is cut
        there. Counts go on from call to call; a run that convergence ended is judged anew. A resumed run without a
        budget goes on to the one it had. SIGINT (Ctrl-C), SIGTERM, SIGUSR1 and SIGHUP end the run with everything
        saved, and so does `max_seconds`: after the current chunk, or in the midst of an iteration that takes long,
        which is then as if it had not been begun. A tenth of `max_seconds` is kept for the evaluation at the end.

        `callback(metrics)` is called after every iteration, or after every episode with `record_episodes`, and ends
        the run by returning False. `metrics` has `episode`, `iteration`, `step_metrics` (the journal's figures, and
        `avg_reward`) and `eval_metrics` (None unless there was an evaluation).
        """
        budget = Budget(total_steps, max_episodes, max_seconds)
        if not any(budget) and self._budget is not None:
            budget = self._budget
        if budget.total_steps is not None and budget.total_steps <= self.record.steps and self._source is None:
            raise LudusError(f"total_steps={budget.total_steps}: {self.record.steps} steps are done already")
        if self.record.folder is None and (self.settings.tracking.mlflow or self.settings.video_frequency):
            name = "tracking.mlflow" if self.settings.tracking.mlflow else "video_frequency"
            raise LudusError(f"{name}: is made from what the run writes down; give run_dir")
        self.record.options.limits["total_steps"] = budget.total_steps
        heard = None if callback is None else Callback(callback, self.record.console.say)
        self.judge.begin(heard, is_resumed=self._source is not None)
        context = self.loop.context(budget)
        self.loop.settle(budget, None if self._source is None else self._source.compiler_options())
        with self.films, self.record.console.hearing(), Interrupt() as interrupt:
            self._begin(context, budget)
            stopped_by, evaluation = "", None
            try:
                stopped_by = self._run(context, budget, interrupt)
                if interrupt.requested is None:
                    self.judge.look_back()
                self._save()
                if interrupt.requested is None and self.final_episodes:
                    until = budget.training_seconds(is_evaluated=False)
                    evaluation = self.judge.evaluated_finally(interrupt, self.final_episodes, until)
                if interrupt.requested is not None and evaluation is None:
                    stopped_by = _name_of(interrupt)  # though the budget be spent: the last evaluation is still to come
                self.judge.ended(evaluation)
            except BaseException as error:
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                if not isinstance(error, LudusError | KeyboardInterrupt):
                    self.record.console.note(traceback.format_exc())
                self.record.failed(error)
                with contextlib.suppress(LudusError):  # what went wrong first is what the user must hear of
                    self._finish(status, f"{type(error).__name__}: {error}")
                raise
            finally:
                self.record.console.stop()
            self.films.wait = is_over = interrupt.requested is None
            self._finish("finished" if is_over else "interrupted", stopped_by, interrupt)
        return self._result(stopped_by, evaluation)

    def _begin(self, context: Context, budget: Budget) -> None:
        """Build or load the state, and write down what is about to run."""
        record, placement = self.record, getattr(self.env, "placement", "")
        facts = f"{self.env.num_envs} environments", placement, f"seed {self.settings.seed}", str(self.device)
        record.console.say(" · ".join([self.env.id, *filter(None, facts)]))
        record.console.start()
        record.console.at("compiling")
        try:
            if self._source is not None:
                self._state = self._state or self._ready(context)
                self._source.go_on(self)
                self._source = None
            record.begin(config_of(self, budget), identity_of(self))
            if not autotuning.is_measuring():
                self._note_kernels()  # whoever begins again after a kill reads the same
            self._state = self._state or self._ready(context)
            self._note_kernels()
        except BaseException as error:
            record.console.stop()
            record.failed(error)
            with contextlib.suppress(LudusError):
                if self._source is not None and record.folder is not None:
                    record.folder.close()  # the run is as it was
                elif record.folder is not None and "status" in record.folder.identity:
                    record.end("failed", f"{type(error).__name__}: {error}")
            raise

    def _run(self, context: Context, budget: Budget, interrupt: Interrupt) -> str:
        """Run chunks until something ends the run; return what it was."""
        record, length, pace = self.record, 1, math.inf
        if self._is_spent(budget):
            return self._spent_by(budget)
        until, told = budget.training_seconds(bool(self.final_episodes)), []
        self.retreat.come_back(self.loop.runner, self.env, self.state)
        while True:
            if not self.judge.judge(interrupt, budget, until):
                self.judge.hold(told)
                return _name_of(interrupt) if interrupt.requested is not None else "max_seconds"
            if reason := self.judge.ended_early(told):
                return reason
            if interrupt.requested is not None:  # it came while something was compiled or saved
                return _name_of(interrupt)
            if self.keeper.is_due(record.iterations, record.steps, record.elapsed):
                self._save()
            self.keeper.settle(wait=False)
            self.films.if_due(self)
            self.showing.prepare(self)
            gap = self.judge.until_next(budget, self.loop.steps_per_iteration)
            length = min(length, gap, self.films.until_next(record.iterations))
            self._last_policy = copied(self.algorithm.policy(self.state.learner))
            self.retreat.prepare(pace, self.state, self._snapshot)
            began, compiled = time.perf_counter(), compile_clock().total
            try:
                self._state, rows = self.loop(context, self.state, length, self._watch(interrupt, until))
            except Left:
                self._state = self.retreat.go_back()
                self.judge.hold(told)
                return _name_of(interrupt) if interrupt.requested is not None else "max_seconds"
            seconds = max(time.perf_counter() - began - (compile_clock().total - compiled), 1e-9)
            told = record.iterations_made(rows, seconds, budget)
            self.judge.saw(told)
            pace = seconds / len(rows["halt"])
            if reason := self._stopped_by(rows, interrupt, budget, pace):
                self.judge.hold(told)
                return reason
            length = min(CAPACITY, 2 * length, max(1, int(length * CHUNK_SECONDS / seconds)))

    def _copied(self, tree: Any) -> Any:
        """Copy arrays; not by a program where one was left running, which another would have to wait for."""
        return jax.tree.map(np.array, tree) if self.retreat.was_used else copied(tree)

    def _watch(self, interrupt: Interrupt, until: float) -> Watch:
        """Return what is told of a chunk while it runs: it gives the chunk up where it must and can."""
        console, record, retreat = self.record.console, self.record, self.retreat

        def tell(what: str, done: int, total: int) -> None:
            console.at(what, done, total)
            if retreat.is_ready and (interrupt.requested is not None or record.elapsed >= until):
                raise Left

        return Watch(tell, expects_long=retreat.is_ready)

    def _stopped_by(self, rows: dict[str, np.ndarray], interrupt: Interrupt, budget: Budget, pace: float) -> str | None:
        """Return what ends the run after the chunk that was just made, whose iterations took `pace` seconds each."""
        if rows["fault"][-1]:
            raise LudusError(self._fault_message(FAULTS[int(rows["fault"][-1])], int(rows["stuck"][-1])))
        if rows["halt"][-1]:
            return self._spent_by(budget)
        if interrupt.requested is not None:
            return _name_of(interrupt)
        # A long iteration is not begun if its end would be too late.
        ahead = pace if pace > LONG_SECONDS else 0.0
        is_late = self.record.elapsed + ahead >= budget.training_seconds(bool(self.final_episodes))
        return "max_seconds" if is_late else None

    def _is_spent(self, budget: Budget) -> bool:
        record = self.record
        return record.steps >= (budget.total_steps or np.inf) or record.episodes >= (budget.max_episodes or np.inf)

    def _spent_by(self, budget: Budget) -> str:
        return "total_steps" if self.record.steps >= (budget.total_steps or np.inf) else "max_episodes"

    def _save(self) -> None:
        """Write a checkpoint of everything, unless there is one of this very moment."""
        folder, record = self.record.folder, self.record
        if folder is None or record.iterations == self.keeper.last["iteration"]:
            return
        folder.check_place()
        trouble = folder.trouble
        self._note_kernels()

        def journal_first() -> None:
            if trouble:
                raise LudusError(trouble)
            folder.sync()

        env = self._snapshot() if self.retreat.env is None else self.retreat.env
        self.keeper.save(self.state, env, record_of(self, folder), journal_first)

    def _snapshot(self) -> dict[str, Any]:
        """Return where the environments are; where every rollout starts its episodes anew, that does not matter."""
        return self.loop.runner.snapshot(self.env) if self.settings.collect == "steps" else {}

    def _note_kernels(self) -> None:
        """Write down with which GPU kernels this process computes, as far as it has compiled by now."""
        folder = self.record.folder
        if folder is None or self.device.platform != "gpu":
            return
        with contextlib.suppress(OSError):  # not written down, they are not known, and a resume says so
            if (noted := autotuning.keep(folder.path)) != folder.identity.get("autotuning"):
                folder.write_identity(autotuning=noted)

    def _fault_message(self, name: str, stuck: int) -> str:
        """Say what went wrong in the iteration that has not happened; `stuck` is where a mask allowed nothing."""
        record, what = self.record, f"{name} is not finite (NaN or Inf)"
        if name == MASK:
            step, index = divmod(stuck, self.env.num_envs)
            what = f"{self.env.id}: the {MASK} of environment {index} forbids every action in step {step + 1}"
        return (
            f"training stopped: {what} in iteration {record.iterations + 1}, "
            f"after {record.steps:,} steps and {record.updates:,} updates; the state is kept as it was before"
        )

    def _result(self, stopped_by: str, evaluation: Evaluation | None) -> TrainResult:
        record = self.record
        return TrainResult(
            steps=record.steps,
            episodes=record.episodes,
            updates=record.updates,
            iterations=record.iterations,
            seconds=record.elapsed,
            stopped_by=stopped_by,
            converged=self.judge.has_converged,
            evaluation=evaluation,
            run_dir=record.folder.path if record.folder else None,
        )

    def _finish(self, status: str, reason: str, interrupt: Interrupt | None = None) -> None:
        """Save the policy, if there is one and a place for it, and write down how the run ended."""
        try:
            try:
                self._save_learned()
            finally:
                self.keeper.close()  # when a run is over, nothing may go on writing
        except LudusError as error:
            self.record.end("failed", str(error))
            raise
        if status == "finished" and interrupt is not None:
            self.showing.record(self, lambda: interrupt.requested is not None)
        facts = {"converged": self.judge.has_converged, "best_avg_reward": self.judge.convergence.best_avg_reward}
        if (best := self.keeper.best) is not None:
            facts["best"] = best
        self.record.end(status, reason, **facts)

    def _save_learned(self) -> None:
        if self.record.folder and self._state is not None:
            self.record.folder.check_place()
            save_policy(self.policy, self.record.folder.path / FINAL)
            if (critic := self.critic) is not None:
                save_critic(critic, self.record.folder.path / FINAL_CRITIC)

    def _ready(self, context: Context | None = None) -> TrainState:
        """Return the state that a run begins with or goes on from, with what is needed compiled."""
        learner, self._first_learner = self._first_learner, None
        self._state = self.loop.begin(context, self.loop.fresh_learner() if learner is None else learner)
        if self._source is not None:
            self._state = self._source.load(self, self._state)
        return self._state

    def _settle_in(self, folder: RunFolder) -> None:
        """From now on everything is written to this folder."""
        self.record.folder = folder
        self.record.trackers = trackers(self.settings.tracking, self.record.console.say)
        self.keeper.open(folder.path)

    def go_on_from(self, source: Any, folder: RunFolder, budget: Budget) -> None:
        """Take over a run: `train` will load its state from `source`."""
        self._source, self._budget = source, budget
        self._settle_in(folder)
        if source.record is None:
            return
        try:
            take_up(self, source.record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LudusError(f"{source.checkpoint.path}: its record is damaged ({error})") from error
        assert self.keeper.checkpoints is not None
        self.keeper.checkpoints.base = {name: list(names) for name, (*_, names) in source.checkpoint.blocks.items()}

    def watch(self, source: Any) -> None:
        """Take the state from a checkpoint, and leave the run that it belongs to alone."""
        self._source = source
        self._source.check_meaning(self)
        self._state = self._ready()


def _name_of(interrupt: Interrupt) -> str:
    """Return how a run that a signal ended says so."""
    return "interrupt" if interrupt.requested in (None, signal.SIGINT) else interrupt.requested.name


def _check_parts(algorithm: Any, env: Any, settings: Any) -> None:
    if isinstance(algorithm, type) or not hasattr(algorithm, "validate"):
        raise LudusError(f"algorithm={algorithm!r}: must be an algorithm such as ludus.PPO()")
    name_of(algorithm)
    if not hasattr(env, "num_envs") or not hasattr(env, "remake"):
        raise LudusError(f"env={env!r}: must be made by ludus.make_env")
    if not isinstance(settings, Settings):
        raise LudusError(f"settings={settings!r}: must be ludus.Settings(...)")
    if settings.deterministic and not autotuning.is_deterministic():
        raise LudusError(
            f"deterministic=true: JAX runs already; set XLA_FLAGS={autotuning.DETERMINISTIC}=true before it starts"
        )
    if jax.config.values["jax_enable_x64"]:
        raise LudusError("jax_enable_x64 is on, and ludus computes in 32 bits: switch it off (JAX_ENABLE_X64=0)")


def _with_threshold(settings: Settings, threshold: float | None) -> Settings:
    """Return the settings with the return from which on an episode of this environment is a success."""
    wanted = threshold if settings.success_return is None else settings.success_return
    if wanted is None and settings.success == "return":
        raise LudusError("success=return: the environment names no return that counts as solved; give success_return")
    return replace(settings, success_return=None if wanted is None else float(wanted))
