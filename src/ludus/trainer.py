"""The conductor: runs iterations in chunks, and between them records, evaluates, saves and stops.

It is the same text for both kinds of environment.
"""

import contextlib
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from ludus import __version__, counting
from ludus.callback import Callback
from ludus.compilation import Options, compile_clock, compiler_options, default_device, enable_compilation_cache
from ludus.convergence import CHECK_EVERY, Convergence, ConvergenceOptions
from ludus.counting import Budget, Counters
from ludus.critic import FINAL as FINAL_CRITIC
from ludus.critic import Critic, save_critic
from ludus.evaluation import Evaluation, evaluate_state
from ludus.film_process import FilmProcess
from ludus.interrupt import Interrupt
from ludus.iteration import Context, Plan, TrainState, copied, grafted, iteration
from ludus.keeping import CheckpointOptions, Keeper, Marks
from ludus.learning.algorithm import as_arrays
from ludus.learning.faults import FAULTS
from ludus.learning.registry import describe
from ludus.policy import FINAL, Policy, save_policy
from ludus.rollout import runner
from ludus.seeding import stream
from ludus.tracking.console import duration
from ludus.tracking.records import SUCCESS_RULES, Recorder, RecordOptions
from ludus.tracking.run_folder import RunFolder, plain
from ludus.tracking.tracker import TrackingOptions
from ludus.tracking.trackers import trackers
from ludus.types import LudusError, RolloutKeys, Spec

CAPACITY = 256
"""The most iterations that one chunk can hold; chunk lengths below it share one program."""
CHUNK_SECONDS = 0.5
"""Chunks are cut to about this long, so that progress, signals and time limits are heeded."""
FINAL_EPISODES = 100
"""Episodes of the evaluation at the end of a run."""
MEANING = ("env", "env_options", "num_envs", "seed", "collect", "algorithm")
"""Settings that a resumed run cannot change: the saved state would mean something else."""


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

    def __init__(  # noqa: PLR0913  each is a setting of its own
        self,
        algorithm: Any,
        env: Any,
        *,
        seed: int = 0,
        run_dir: str | Path | None = None,
        collect: Literal["steps", "episodes"] = "steps",
        eval_frequency: int = 50,
        eval_by: Literal["iterations", "episodes"] = "iterations",
        eval_episodes: int = 10,
        record_episodes: bool = False,
        success: str = "auto",
        success_return: float | None = None,
        log_frequency: int = 0,
        convergence: ConvergenceOptions = ConvergenceOptions(),  # noqa: B008  frozen
        checkpoint: CheckpointOptions = CheckpointOptions(),  # noqa: B008  frozen
        num_checkpoints: int = 3,
        health_frequency: int = 10,
        video_frequency: int = 0,
        tracking: TrackingOptions = TrackingOptions(),  # noqa: B008  frozen
        verbose: bool = True,
    ):
        """Check everything that can be checked before anything is compiled.

        Args:
            algorithm: such as `ludus.PPO()`.
            env: made by `ludus.make_env`.
            seed: the one number that all randomness comes from.
            run_dir: folder for the journal, the configuration and the policy; None writes nothing.
            collect: "steps" cuts episodes where a rollout ends; "episodes" gathers one whole episode in each
                environment, at most `batch_size / num_envs` steps long.
            eval_frequency: iterations between evaluations; 0 evaluates at the end only.
            eval_by: "episodes" lets `eval_frequency` count those instead.
            eval_episodes: episodes of each such evaluation.
            record_episodes: journal the return and length of every single episode, not only means.
            success: what makes an episode a success: "info" (its `is_success`), "return", "terminated", or "auto" for
                the first of these that the environment gives.
            success_return: the return from which on an episode is one; None takes the environment's own threshold.
            log_frequency: iterations between blocks of statistics; 0 shows none.
            convergence: what ends the run before its budget is spent.
            checkpoint: when the whole state is saved, and which of these checkpoints are kept.
            num_checkpoints: policies to keep from on the way, evenly spaced over `total_steps`.
            health_frequency: iterations between journal rows that also hold norms of gradients, updates, parameters
                and moments by layer, and histograms of gradients and actions; 0 computes none.
            video_frequency: iterations between films, which another process makes; 0 makes none.
            tracking: where the run is shown besides its folder.
            verbose: show progress.
        """
        if isinstance(algorithm, type) or not hasattr(algorithm, "validate"):
            raise LudusError(f"algorithm={algorithm!r}: must be an algorithm such as ludus.PPO()")
        if not hasattr(env, "num_envs") or not hasattr(env, "remake"):
            raise LudusError(f"env={env!r}: must be made by ludus.make_env")
        if jax.config.values["jax_enable_x64"]:
            raise LudusError("jax_enable_x64 is on, and ludus computes in 32 bits: switch it off (JAX_ENABLE_X64=0)")
        self.device = default_device()
        compile_clock().lap()
        self.spec = Spec(env.observation_space, env.action_space, env.num_envs)
        algorithm.validate(self.spec)
        _check_at_least(0, seed=seed, eval_frequency=eval_frequency, num_checkpoints=num_checkpoints)
        _check_at_least(0, log_frequency=log_frequency, health_frequency=health_frequency)
        _check_at_least(0, video_frequency=video_frequency)
        _check_at_least(1, eval_episodes=eval_episodes)
        _check_choice(("steps", "episodes"), collect=collect)
        _check_choice(("iterations", "episodes"), eval_by=eval_by)
        _check_choice(SUCCESS_RULES, success=success)
        threshold = getattr(env, "return_threshold", None)
        success_return = threshold if success_return is None else float(success_return)
        if success == "return" and success_return is None:
            raise LudusError(
                "success=return: the environment names no return that counts as solved; give success_return"
            )
        self.convergence = Convergence(convergence, threshold)
        if convergence.rule in ("interval", "plateau") and not eval_frequency:
            raise LudusError(f"convergence.rule={convergence.rule}: needs evaluations (eval_frequency is 0)")
        enable_compilation_cache()
        self.algorithm, self.env, self.seed, self.collect = algorithm, env, int(seed), collect
        self.eval_frequency, self.eval_by, self.eval_episodes = eval_frequency, eval_by, eval_episodes
        self.record_episodes, self.health_frequency = record_episodes, health_frequency
        self.runner = runner(env)
        limits = {"clip_epsilon": getattr(algorithm, "clip_epsilon", None)}
        options = RecordOptions(success, success_return, log_frequency, limits)
        self.record = Recorder(None if run_dir is None else RunFolder(run_dir), verbose, options)
        folder = None if run_dir is None else Path(run_dir)
        self.keeper = Keeper(folder, checkpoint, num_checkpoints, self.record.console.say)
        self.tracking, self.films = tracking, FilmProcess(video_frequency, self.record.console.say)
        if folder is not None:
            self.record.trackers = trackers(tracking, self.record.console.say)
        self.final_episodes = FINAL_EPISODES
        self._source: Any = None
        self._budget: Budget | None = None
        self._arrays = as_arrays(algorithm)
        self._state: TrainState | None = None
        self._repeat: Any = None
        self._last_policy: Any = None
        self._callback: Callback | None = None
        self._evaluation: Evaluation | None = None
        self._episodes_seen = 0
        self.options: Options = ()

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
        self._state = replace(self.state, learner=grafted(self.state.learner, learner))

    @property
    def policy(self) -> Policy:
        """The policy as it is now; training on does not change it."""
        state = self.algorithm.policy(self.state.learner)
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            state = self._last_policy  # an exception broke a chunk that had taken the state over
        return Policy(self._arrays, copied(state), self.spec, self.env.id)

    @property
    def critic(self) -> Critic | None:
        """The critic as it is now; None if an exception has left nothing of it."""
        state = self.algorithm.critic(self.state.learner)
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            return None
        return Critic(self._arrays, copied(state), self.spec, self.env.id)

    def evaluate(self, episodes: int = FINAL_EPISODES) -> Evaluation:
        """Evaluate the policy as it is now, on environments and seeds that training never sees."""
        policy = self.algorithm.policy(self.state.learner)
        return evaluate_state(self._arrays, policy, self.env, stream(self.seed, "evaluation"), episodes, FINAL_EPISODES)

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
        """Train until a budget is spent: the first iteration that reaches `total_steps` or `max_episodes` is the last.

        Counts go on from call to call. A resumed run without a budget goes on to the one it had. SIGINT (Ctrl-C),
        SIGTERM and SIGUSR1 end the run after the current chunk, with everything saved.

        `callback(metrics)` is called after every iteration, or after every episode with `record_episodes`, and ends
        the run by returning False. `metrics` has `episode`, `iteration`, `step_metrics` (the journal's figures, and
        `avg_reward`) and `eval_metrics` (None unless there was an evaluation).
        """
        self._callback = None if callback is None else Callback(callback, self.record.console.say)
        budget = Budget(total_steps, max_episodes, max_seconds)
        if not any(budget) and self._budget is not None:
            budget = self._budget
        if budget.total_steps is not None and budget.total_steps <= self.record.steps and self._source is None:
            raise LudusError(f"total_steps={budget.total_steps}: {self.record.steps} steps are done already")
        self.record.options.limits["total_steps"] = budget.total_steps
        context = self.context(budget)
        self._settle_program(budget)
        with self.films, Interrupt() as interrupt:
            self._begin(context, budget)
            stopped_by, evaluation = "", None
            try:
                stopped_by = self._run(context, budget, interrupt)
                self._save()
                if interrupt.requested is not None:
                    stopped_by = _name_of(interrupt)  # though the budget be spent: the last evaluation is still to come
                elif self.final_episodes:
                    evaluation, stopped_by = self._last_evaluation(interrupt, stopped_by)
            except BaseException as error:
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                with contextlib.suppress(LudusError):  # what went wrong first is what the user must hear of
                    self._finish(status, f"{type(error).__name__}: {error}")
                raise
            finally:
                self.record.console.stop()
            self.films.wait = is_over = interrupt.requested is None
            self._finish("finished" if is_over else "interrupted", stopped_by)
        return self._result(stopped_by, evaluation)

    def _begin(self, context: Context, budget: Budget) -> None:
        """Build or load the state, and write down what is about to run."""
        record, placement = self.record, getattr(self.env, "placement", "")
        facts = f"{self.env.num_envs} environments", placement, f"seed {self.seed}", str(self.device)
        record.console.say(" · ".join([self.env.id, *filter(None, facts)]))
        record.console.start()
        try:
            if self._source is not None:
                self._state = self._state or self._ready(context)
                self._source.go_on(self)
                self._source = None
            record.begin(self._config(budget), self._identity())
            self._state = self._state or self._ready(context)
        except BaseException as error:
            record.console.stop()
            with contextlib.suppress(LudusError):
                if self._source is not None and record.folder is not None:
                    record.folder.close()  # the run is as it was
                elif record.folder is not None and "status" in record.folder.identity:
                    record.end("failed", f"{type(error).__name__}: {error}")
            raise

    def _settle_program(self, budget: Budget) -> None:
        """Choose how the loop is compiled, by the first budget; it is kept from then on."""
        if self._repeat is None:
            recorded = None if self._source is None else self._source.compiler_options()
            work = self.algorithm.work(self.spec, budget.total_steps)
            self.options = compiler_options(work) if recorded is None else recorded
            num_steps = self.algorithm.rollout_length(self.env.num_envs)
            plan = Plan(self.env, num_steps, self.collect == "episodes", self.options, self.record_episodes)
            self._repeat = self.runner.repeat(iteration, plan, CAPACITY, self.options)

    def _run(self, context: Context, budget: Budget, interrupt: Interrupt) -> str:
        """Run chunks until something ends the run; return what it was."""
        record, length = self.record, 1
        if self._is_spent(budget):
            return self._spent_by(budget)
        told: list[dict[str, Any]] = []
        while True:
            if not self._judge(interrupt, budget):
                return _name_of(interrupt)
            if reason := self._ended_early(told):
                return reason
            if self.keeper.is_due(record.iterations, record.steps, record.elapsed):
                self._save()
            self.keeper.settle(wait=False)
            self.films.if_due(self)
            length = min(length, self._until_next(budget))
            self._last_policy = copied(self.algorithm.policy(self.state.learner))
            began = time.perf_counter()
            self._state, rows = self._repeat(context, self.state, length)
            seconds = time.perf_counter() - began
            rows["seconds/compile"] = np.where(
                np.arange(len(rows["halt"])) == 0, compile_clock().lap() or np.nan, np.nan
            )
            told = record.iterations_made(rows, seconds, budget)
            for row in told:
                self._watch(row)
            if reason := self._stopped_by(rows, interrupt, budget):
                self._ended_early(told)  # the callback hears of the last iteration too
                return reason
            length = min(CAPACITY, 2 * length, max(1, int(length * CHUNK_SECONDS / seconds)))

    def _stopped_by(self, rows: dict[str, np.ndarray], interrupt: Interrupt, budget: Budget) -> str | None:
        """Return what ended the run in the chunk that was just made, if something did."""
        if rows["fault"][-1]:
            raise LudusError(self._fault_message(FAULTS[int(rows["fault"][-1])]))
        if rows["halt"][-1]:
            return self._spent_by(budget)
        if interrupt.requested is not None:
            return _name_of(interrupt)
        return "max_seconds" if self.record.elapsed >= (budget.max_seconds or np.inf) else None

    def _is_spent(self, budget: Budget) -> bool:
        record = self.record
        return record.steps >= (budget.total_steps or np.inf) or record.episodes >= (budget.max_episodes or np.inf)

    def _spent_by(self, budget: Budget) -> str:
        return "total_steps" if self.record.steps >= (budget.total_steps or np.inf) else "max_episodes"

    def _watch(self, row: dict[str, Any]) -> None:
        """Let convergence see the episodes of an iteration, one by one where they are known."""
        if "episode_returns" in row:
            for total in row["episode_returns"]:
                self.convergence.saw_episodes(1, np.nan if total is None else total)
        elif "episode_return_mean" in row:
            count = row["episodes"] - self._episodes_seen
            self.convergence.saw_episodes(count, count * row["episode_return_mean"])
        self._episodes_seen = row["episodes"]

    def _ended_early(self, rows: list[dict[str, Any]]) -> str | None:
        """Tell the callback of the latest iterations; return what ends the run before its budget, if something does."""
        evaluation, self._evaluation = self._evaluation, None
        if self._callback is not None:
            self._callback(rows, self.record.latest, evaluation)
            if self._callback.wants_stop:
                return "callback"
        is_time = self.convergence.options.rule != "window" or self.record.iterations % CHECK_EVERY == 0
        return "convergence" if is_time and self.convergence.ends_run else None

    def _until_next(self, budget: Budget) -> int:
        """Return how many iterations may be made at once without passing one after which something is due."""
        record, per_iteration = self.record, self.env.num_envs * self.algorithm.rollout_length(self.env.num_envs)
        gap = self.keeper.until_next(record.iterations, record.steps, per_iteration, budget.total_steps)
        if self.convergence.options.rule == "window":
            gap = min(gap, CHECK_EVERY - record.iterations % CHECK_EVERY)
        if self._callback is not None or (self.eval_frequency and self.eval_by == "episodes"):
            gap = 1  # nobody knows in which iteration the next episode ends
        elif self.eval_frequency:
            gap = min(gap, self.eval_frequency - record.iterations % self.eval_frequency)
        return max(1, min(gap, self.films.until_next(record.iterations)))

    def _is_to_evaluate(self) -> bool:
        every, record = self.eval_frequency, self.record
        if not every or self.eval_by == "iterations":
            return bool(every) and record.iterations % every == 0
        return record.episodes // every > self.keeper.marks.episodes_evaluated // every

    def _judge(self, interrupt: Interrupt, budget: Budget) -> bool:
        """Evaluate and keep the best where that is due, once; return False if a signal came in between."""
        record, keeper = self.record, self.keeper
        if keeper.passes_milestone(record.steps, budget.total_steps):
            keeper.keep_milestones(record.steps, budget.total_steps, self.policy)
        by_evaluation = self._is_to_evaluate()
        if not keeper.is_to_judge(record.iterations, by_evaluation):
            return True
        if by_evaluation:
            if (evaluation := self._evaluated(interrupt, self.eval_episodes)) is None:
                return False
            self.convergence.saw_evaluation(evaluation.returns.tolist())
            keeper.marks.episodes_evaluated, self._evaluation = record.episodes, evaluation
            keeper.keep_if_best("evaluation", evaluation.summary()["mean_return"], lambda: self.policy)
        keeper.keep_if_best("return", record.recent_return, lambda: self.policy)
        keeper.judged(record.iterations, self._score())
        return True

    def _score(self) -> float | None:
        """Return what checkpoints are compared by, as it is now."""
        default = "eval_return_mean" if self.eval_frequency else "episode_return_mean"
        return self.record.latest.get(self.keeper.options.best_by or default)

    def _last_evaluation(self, interrupt: Interrupt, stopped_by: str) -> tuple[Evaluation | None, str]:
        if (evaluation := self._evaluated(interrupt, self.final_episodes)) is None:
            return None, _name_of(interrupt)
        self.keeper.keep_if_best("evaluation", evaluation.summary()["mean_return"], lambda: self.policy)
        return evaluation, stopped_by

    def _evaluated(self, interrupt: Interrupt, episodes: int) -> Evaluation | None:
        """Evaluate, and journal that; None if a signal cut it short, which it may: an evaluation changes nothing."""
        try:
            interrupt.at_once = True
            evaluation = self.evaluate(episodes)
        except KeyboardInterrupt:
            return None
        finally:
            interrupt.at_once = False
        self.record.evaluated(evaluation)  # a row is written whole, and once
        return evaluation

    def _save(self) -> None:
        """Write a checkpoint of everything, unless there is one of this very moment."""
        folder, record = self.record.folder, self.record
        if folder is None or record.iterations == self.keeper.last["iteration"]:
            return
        position = {"journal_rows": folder.rows, "journal_bytes": folder.bytes}
        trouble = folder.trouble

        def journal_first() -> None:
            if trouble:
                raise LudusError(trouble)
            folder.sync()

        saved = {
            **record.snapshot(),
            **position,
            "marks": asdict(self.keeper.marks),
            "convergence": self.convergence.snapshot(),
            "score": self._score(),
            "run": folder.identity["id"],
            "meaning": self.meaning(),
            "compiler_options": [list(option) for option in self.options],
            "made_with": self.made_with(),
        }
        # Where every rollout starts its episodes anew, it does not matter where the environments are.
        env = self.runner.snapshot(self.env) if self.collect == "steps" else {}
        self.keeper.save(self.state, env, saved, journal_first)

    def _fault_message(self, name: str) -> str:
        record = self.record
        return (
            f"training stopped: {name} is not finite (NaN or Inf) in iteration {record.iterations + 1}, "
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
            converged=self.convergence.is_converged,
            evaluation=evaluation,
            run_dir=record.folder.path if record.folder else None,
        )

    def _finish(self, status: str, reason: str) -> None:
        """Save the policy, if there is one and a place for it, and write down how the run ended."""
        try:
            try:
                self._save_learned()
            finally:
                self.keeper.close()  # when a run is over, nothing may go on writing
        except LudusError as error:
            self.record.end("failed", str(error))
            raise
        self.record.end(status, reason, converged=self.convergence.is_converged)

    def _save_learned(self) -> None:
        if self.record.folder and self._state is not None:
            save_policy(self.policy, self.record.folder.path / FINAL)
            if (critic := self.critic) is not None:
                save_critic(critic, self.record.folder.path / FINAL_CRITIC)

    def _keys(self) -> dict[str, Any]:
        rollout = RolloutKeys(*(stream(self.seed, f"rollout {name}") for name in RolloutKeys._fields))
        return {"rollout": rollout, "update": stream(self.seed, "update")}

    def _initial_state(self, learner: Any, begin: Callable) -> TrainState:
        carry = begin(self._arrays, self.env, self.algorithm.policy(learner), stream(self.seed, "begin"))
        counters = Counters(counting.from_int(0), counting.from_int(0))
        return TrainState(learner, carry, np.int32(0), counters)

    def _ready(self, context: Context | None = None) -> TrainState:
        """Build the state and compile what will be needed, the training loop and the rest on two threads."""
        learner = self.algorithm.init(stream(self.seed, "init"), self.spec)

        def start() -> TrainState:
            state = self._initial_state(learner, self.runner.start)
            policy = self.algorithm.policy(learner)
            evaluate_state(self._arrays, policy, self.env, stream(self.seed, "evaluation"), 0, FINAL_EPISODES)
            return state

        with ThreadPoolExecutor(1) as pool:
            shapes = partial(self._initial_state, learner, self.runner.begin)
            prepared = pool.submit(self._repeat.prepare, context, shapes) if context is not None else None
            self._state = start()  # on this thread: a host environment may not be moved between threads
            if prepared is not None:
                prepared.result()
        if self._source is not None:
            self._state = self._source.load(self, self._state)
        return self._state

    def go_on_from(self, source: Any, folder: RunFolder, budget: Budget) -> None:
        """Take over a run: `train` will load its state from `source`."""
        record = source.record
        self._source, self._budget, self.record.folder = source, budget, folder
        self.record.trackers = trackers(self.tracking, self.record.console.say)
        self.keeper = Keeper(folder.path, self.keeper.options, self.keeper.num_checkpoints, self.record.console.say)
        if record is None:
            return
        try:
            self.record.restore(record)
            self._episodes_seen = self.record.episodes
            self.convergence.restore(record.get("convergence") or self.convergence.snapshot())
            self.keeper.marks = Marks(**record["marks"])
            self.keeper.ordinal = record["ordinal"]
            self.keeper.written = {name: (count, cycle) for name, (count, cycle) in record["written"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LudusError(f"{source.checkpoint.path}: its record is damaged ({error})") from error
        assert self.keeper.checkpoints is not None
        self.keeper.checkpoints.base = {name: list(names) for name, (*_, names) in source.checkpoint.blocks.items()}
        self.keeper.last = {
            "iteration": self.record.iterations,
            "steps": self.record.steps,
            "seconds": self.record.elapsed,
        }

    def watch(self, source: Any) -> None:
        """Take the state from a checkpoint, and leave the run that it belongs to alone."""
        self._source = source
        self._source.check_meaning(self)
        self._state = self._ready()

    def context(self, budget: Budget) -> Context:
        """Return what the iterations of one call to `train` share."""
        success_return = self.record.options.success_return
        return Context(
            self._arrays,
            self._keys(),
            budget.limits(),
            np.float32(np.nan if success_return is None else success_return),
            np.int32(self.health_frequency) if self.health_frequency else None,
        )

    def meaning(self) -> dict[str, Any]:
        """Return the settings without which a saved state would mean something else, as plain data."""
        config = self._config(Budget(None, None, None))
        return plain({name: config[name] for name in MEANING})

    def _config(self, budget: Budget) -> dict[str, Any]:
        return {
            "env": self.env.id,
            "env_options": dict(self.env.options),
            "num_envs": self.env.num_envs,
            **getattr(self.env, "worker_settings", {"num_workers": 0}),
            "seed": self.seed,
            "collect": self.collect,
            "eval_frequency": self.eval_frequency,
            "eval_by": self.eval_by,
            "eval_episodes": self.eval_episodes,
            "record_episodes": self.record_episodes,
            "success": self.record.options.success,
            "success_return": self.record.options.success_return,
            "log_frequency": self.record.options.log_frequency,
            "convergence": asdict(self.convergence.options),
            "num_checkpoints": self.keeper.num_checkpoints,
            "health_frequency": self.health_frequency,
            "video_frequency": self.films.frequency,
            "checkpoint": asdict(self.keeper.options),
            "tracking": asdict(self.tracking),
            **budget._asdict(),
            "run_dir": str(self.record.folder.path) if self.record.folder else None,
            "algorithm": describe(self.algorithm),
        }

    def made_with(self) -> dict[str, str]:
        """What the last bits of a result depend on besides the settings."""
        return {"jax": jax.__version__, "device": self.device.device_kind, "platform": jax.default_backend()}

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "versions": {"ludus": __version__, "jax": jax.__version__, "numpy": np.__version__},
            "devices": [str(device) for device in jax.devices()],
            "compiler_options": dict(self.options),
        }


def _name_of(interrupt: Interrupt) -> str:
    """Return how a run that a signal ended says so."""
    return "interrupt" if interrupt.requested in (None, signal.SIGINT) else interrupt.requested.name


def _check_choice(choices: tuple[str, ...], **values: str) -> None:
    for name, value in values.items():
        if value not in choices:
            raise LudusError(f"{name}={value}: must be one of {', '.join(choices)}")


def _check_at_least(low: int, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
            raise LudusError(f"{name}={value}: must be an integer of at least {low}")
