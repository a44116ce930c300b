"""The conductor: runs iterations in chunks, and between them records, evaluates, saves and stops."""

import contextlib
import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from ludus.algorithms.base import Algorithm
from ludus.algorithms.critic import Critic
from ludus.algorithms.policy import Policy
from ludus.algorithms.reward_model import reward_model_of
from ludus.envs.base import AnyEnv
from ludus.runs.folder import RunFolder
from ludus.runs.recorder import Recorder
from ludus.runtime.compilation import compile_clock, enable_compilation_cache
from ludus.runtime.interrupt import Interrupt
from ludus.runtime.placement import on_first
from ludus.training.budget import Budget
from ludus.training.callback import Callback, Callbacks, Function
from ludus.training.changes import Changes
from ludus.training.checkpoint_writer import Keeper
from ludus.training.ending import Ending, check_healthy
from ludus.training.evaluation import Evaluation
from ludus.training.film_process import FilmProcess
from ludus.training.iteration import Context, TrainState, copied, handed_over
from ludus.training.kept_episodes import Showing
from ludus.training.labelling import labelling_of
from ludus.training.loop import CAPACITY, Loop
from ludus.training.preflight import check_budget, check_parts, completed
from ludus.training.progress import Terms
from ludus.training.resume_point import ResumePoint
from ludus.training.retreat import Retreat
from ludus.training.run_config import config_of, made_with, meaning_of
from ludus.training.run_writer import RunWriter
from ludus.training.schedule import Judge
from ludus.training.settings import Settings, record_options
from ludus.training.stopping import Convergence
from ludus.training.train_result import TrainResult, reached
from ludus.training.trained import Trained
from ludus.types import Left, LudusError, Tree

CHUNK_SECONDS = 0.5
"""Chunks are cut to about this long, so that progress, signals and time limits are heeded."""


class Trainer:
    """Trains one algorithm on one environment."""

    def __init__(
        self,
        algorithm: Algorithm,
        env: AnyEnv,
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
        check_parts(algorithm, env, settings)
        compile_clock().lap()
        enable_compilation_cache()
        self.algorithm, self.env = algorithm, (env := env.led(list(settings.curriculum)))
        self.settings = settings = completed(settings, algorithm, env)
        self.loop = Loop(algorithm, env, settings)
        self.record = Recorder(settings.verbose, record_options(algorithm, settings))
        self.changes = Changes(algorithm, self.loop.use, lambda: self.record.counts)
        say = self.record.console.say
        self.keeper = Keeper(settings.checkpoint, settings.num_checkpoints, say, lambda: self.record.counts)
        self.films = FilmProcess(settings.video_frequency, say)
        self.showing = Showing(algorithm, env, settings, say)
        self.judge = Judge(
            settings,
            Convergence(settings.convergence, env.return_threshold),
            self.record,
            self.keeper,
            policy=lambda: self.policy,
            evaluate=lambda episodes, watch: self.loop.evaluate(self.state.learner, episodes, watch),
            is_single=env.num_envs == 1,
        )
        self.writer = RunWriter(self.record, self.judge, self.keeper, self.changes, self.showing, self.loop.devices)
        if run_dir is not None:
            self.writer.create(run_dir, settings, env)
        self.final_episodes = settings.eval_episodes_final
        self.retreat = Retreat()
        self.configured_by: Sequence[str] = ()  # files that its settings came from, for the record
        self._source: ResumePoint | None = None
        self._budget: Budget | None = None
        self._state: TrainState | None = None
        self._first_learner: Tree = None  # what was handed over before there was a state, which will begin with it
        self._last_policy: Tree = None

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse other parts than those it was made with: programs and record are made for these."""
        if name in ("algorithm", "env", "settings") and name in self.__dict__:
            advice = "make a new Trainer, and let it go on from this one with `new.learner = old.learner`"
            raise LudusError(f"trainer.{name}: cannot be exchanged; {advice}")
        super().__setattr__(name, value)

    @property
    def state(self) -> TrainState:
        """The whole of training, as it is now; the next chunk takes its arrays over."""
        return self._state if self._state is not None else self._ready()

    @property
    def learner(self) -> Tree:
        """All that was learnt: networks, optimiser, normalisers; a copy, which an `Agent` can go on from."""
        return on_first(copied(self.state.learner))

    @learner.setter
    def learner(self, learner: Tree) -> None:
        is_early = self._state is None and self._source is None  # `train` will compile all of it at once
        own = self.loop.fresh_learner() if is_early else self.state.learner
        new = self.loop.devices.place_learner(handed_over(self.algorithm, own, learner, self.env.num_envs))
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
        return Policy(self.loop.arrays, self.retreat.copied(on_first(state)), self.loop.spec, self.env.id)

    @property
    def critic(self) -> Critic | None:
        """The critic as it is now; None if there is none, or if an exception has left nothing of it."""
        state = self.algorithm.critic(self.state.learner)
        if state is None or any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            return None
        return Critic(self.loop.arrays, self.retreat.copied(on_first(state)), self.loop.spec, self.env.id)

    def evaluate(self, episodes: int = 100) -> Evaluation:
        """Evaluate the policy as it is now, on environments and seeds that training never sees."""
        return self.loop.evaluate(self.state.learner, episodes)

    @classmethod
    def resume(
        cls,
        run: str | Path,
        start: int | str = "latest",
        *,
        algorithm: Algorithm | None = None,
        env: AnyEnv | None = None,
        **changes: Any,
    ) -> "Trainer":
        """Return a trainer that goes on with a run, from one of its checkpoints; call `train` on it.

        Args:
            run: the run folder.
            start: "latest", "best" (by `checkpoint.best_by`) or a checkpoint's step; what came after is taken back.
            algorithm: the algorithm, if it held your own network or optimiser.
            env: the environment, if it was made from your own class or object.
            changes: settings that leave the state its meaning, as `total_steps`; `fallback=True`: make do with damage.
        """
        from ludus.training.resume import resume

        return resume(cls, run, start, algorithm, env, changes)

    def train(
        self,
        total_steps: int | None = None,
        max_episodes: int | None = None,
        max_seconds: float | None = None,
        callback: Function | Callback | Sequence[Function | Callback] | None = None,
    ) -> TrainResult:
        """Train until a budget is spent.

        The iteration that reaches `total_steps` is the last, and whole; the one that reaches `max_episodes` is cut
        there. Counts go on from call to call; a run that convergence ended is judged anew. A resumed run without a
        budget goes on to the one it had. SIGINT (Ctrl-C), SIGTERM, SIGUSR1 and SIGHUP end the run with everything
        saved, and so does `max_seconds`: after the current chunk, or in the midst of an iteration that takes long,
        which is then as if it had not been begun. A tenth of `max_seconds` is kept for the evaluation at the end.

        A `callback` is a `ludus.Callback`, a function, or several of both, besides those of the settings. A function
        is called as `callback(metrics)` after every iteration, or after every episode with `record_episodes`, and
        ends the run by returning False. `metrics` has `episode`, `iteration`, `step_metrics` (the journal's figures,
        and `avg_reward`) and `eval_metrics` (None unless there was an evaluation).
        """
        budget = Budget(total_steps, max_episodes, max_seconds)
        budget = budget if any(budget) else self._budget or budget
        check_budget(budget, self.settings, self.record.steps if self._source is None else -1, self.record.folder)
        self.record.total_steps = budget.total_steps
        own = callback if isinstance(callback, list | tuple) else [callback] * (callback is not None)
        heard = Callbacks([*self.settings.callbacks, *own], self.record.console.say, self.changes)
        self.record.more = heard.figures
        self.judge.begin(heard, is_resumed=self._source is not None)
        self.loop.labelling = labelling_of(self.algorithm, self.env, self.writer.run_dir, self.record.console.say)
        context = self.loop.context(budget)
        self.loop.settle(budget, None if self._source is None else self._source.compiler_options())
        with self.films, self.record.console.hearing(), Interrupt() as interrupt:
            self._begin(context, budget)
            ending = Ending(budget, interrupt, self.record, bool(self.final_episodes))
            stopped_by, evaluation = self._until_over(context, ending)
            self.films.wait = is_over = ending.by_signal is None
            is_to_leave = (lambda: ending.by_signal is not None) if is_over else None
            self._finish("finished" if is_over else "interrupted", stopped_by, is_to_leave)
        return reached(self.record, self.judge, stopped_by, evaluation)

    def _begin(self, context: Context, budget: Budget) -> None:
        """Build or load the state, and write down what is about to run."""
        record, placement = self.record, self.env.placement
        facts = f"{self.env.num_envs} environments", placement, f"seed {self.settings.seed}", str(self.loop.devices)
        record.console.say(" · ".join([self.env.id, *filter(None, facts)]))
        record.console.start()
        record.console.at("compiling")
        try:
            if self._source is not None:
                self._state = self._state or self._ready(context)
                self.writer.go_on(self._source)
                self._source = None
            config = config_of(self.algorithm, self.env, self.settings, budget, self.writer.run_dir)
            self.writer.begin(config, self.settings.seed, self.loop.options, self.configured_by)
            self._state = self._state or self._ready(context)
            self.writer.note_kernels()
        except BaseException as error:
            self.writer.not_begun(error, is_resumed=self._source is not None)
            raise

    def _until_over(self, context: Context, ending: Ending) -> tuple[str, Evaluation | None]:
        """Train until something ends the run, save and evaluate; return what ended it, and the evaluation."""
        interrupt, evaluation = ending.interrupt, None
        try:
            self.judge.started()
            stopped_by = self._run(context, ending)
            if ending.by_signal is None:
                self.judge.look_back()
            self._save()
            if ending.by_signal is None and self.final_episodes:
                until = ending.budget.training_seconds(is_evaluated=False)
                evaluation = self.judge.evaluated_finally(interrupt, self.final_episodes, until)
            if evaluation is None:  # though the budget be spent: the last evaluation is still to come
                stopped_by = ending.by_signal or stopped_by
            self.judge.ended(evaluation, stopped_by)
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
        return stopped_by, evaluation

    def _run(self, context: Context, ending: Ending) -> str:
        """Run chunks until something ends the run; return what it was."""
        if ending.is_spent:
            return ending.by_budget
        length, pace, told = 1, math.inf, []
        self.retreat.come_back(self.loop.runner, self.env, self.state)
        while True:
            if not self.judge.judge(ending.interrupt, ending.budget, ending.until):
                self.judge.hold(told)
                return ending.in_the_midst
            if reason := self.judge.ended_early(told) or ending.by_signal:
                return reason  # a signal came while something was compiled or saved
            length = min(length, self._prepare(ending.budget))
            self.retreat.prepare(pace, self.state, self.loop.snapshot)
            began, compiled = time.perf_counter(), compile_clock().total
            try:
                self._state, rows = self.loop(context, self.state, length, ending.watch(self.retreat))
            except Left:
                self._state = self.loop.devices.place(self.retreat.go_back())
                self.judge.hold(told)
                return ending.in_the_midst
            seconds = max(time.perf_counter() - began - (compile_clock().total - compiled), 1e-9)
            told = self.record.iterations_made(rows, seconds, ending.budget)
            self.judge.saw(told)
            check_healthy(rows, self.env, self.record)
            pace = seconds / len(rows["halt"])
            if reason := ending.after(rows, pace):
                self.judge.hold(told)
                return reason
            length = min(CAPACITY, 2 * length, max(1, int(length * CHUNK_SECONDS / seconds)))

    def _prepare(self, budget: Budget) -> int:
        """Before a chunk, do what is due; return how many iterations may be made until something is due again."""
        record, folder = self.record, self.record.folder
        if self.keeper.is_due(record.iterations, record.steps, record.elapsed):
            self._save()
        self.keeper.settle(wait=False)
        if folder is not None:
            self.films.if_due(folder.path, self.env.id, record.counts, self._trained, self.keeper)
            if record.iterations:
                self.showing.prepare(self._trained)
        self._last_policy = copied(on_first(self.algorithm.policy(self.state.learner)))
        self._state, gap = self.loop.restocked(self.state, record.iterations)
        judged = self.judge.until_next(budget, self.loop.steps_per_iteration)
        return min(gap, judged, self.films.until_next(record.iterations))

    def _trained(self) -> Trained:
        reward = reward_model_of(self.algorithm, self.state.learner, self.loop.spec, self.env.id, self.retreat.copied)
        return Trained(self.policy, self.critic, reward)

    def _save(self) -> None:
        """Write a checkpoint of everything, unless there is one of this very moment."""
        if self.writer.folder is None or self.record.iterations == self.keeper.last["iteration"]:
            return
        env = self.loop.snapshot() if self.retreat.env is None else self.retreat.env
        meaning = meaning_of(self.algorithm, self.env, self.settings)
        terms = Terms(meaning, self.loop.spec.scaling, self.loop.options, made_with(self.loop.devices))
        self.writer.save(self.loop.gathered(self.state), env, terms)

    def _finish(self, status: str, reason: str, is_to_leave: Callable[[], bool] | None = None) -> None:
        trained = None if self._state is None else self._trained
        self.writer.finish(status, reason, trained, is_to_leave)

    def _ready(self, context: Context | None = None) -> TrainState:
        """Return the state that a run begins with or goes on from, with what is needed compiled."""
        learner, self._first_learner = self._first_learner, None
        first = self.loop.fresh_learner if self._source else self.loop.first_learner
        learner = first() if learner is None else learner
        if self._source is None:
            self._state = self.loop.begin(context, learner)
        else:
            # Nothing else holds the blank state: its memory is free when it is read anew.
            load, num_envs = self._source.load, self.env.num_envs
            state, written = load(self.loop.begin(context, learner), num_envs, self.loop.restore)
            self._state = self.loop.shared(state)
            self.keeper.write_anew(written)
        return self._state

    def go_on_from(self, source: ResumePoint, folder: RunFolder, budget: Budget) -> None:
        """Take over a run: `train` will load its state from `source`."""
        self._budget = budget
        self.writer.open(folder, self.settings.tracking, self.settings.storage)
        self.watch(source)
        source.take_up(self.record, self.judge, self.changes, self.keeper)

    def watch(self, source: ResumePoint) -> None:
        """Take the state from a checkpoint; alone, this leaves the run that it belongs to as it is."""
        self._source, self.loop.spec = source, source.spec(self.loop.spec)
