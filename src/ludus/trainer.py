"""The conductor: one iteration is collect, then update; a chunk is many of them; `Trainer` runs chunks.

The outer loop (record, evaluate, stop) is the same text for both kinds of environment.
"""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus import __version__, counting
from ludus.compilation import Options, compiler_options, default_device, enable_compilation_cache
from ludus.counting import Budget, Counters
from ludus.evaluation import Evaluation, evaluate_state
from ludus.interrupt import Interrupt
from ludus.learning.algorithm import as_arrays
from ludus.learning.faults import FAULTS
from ludus.learning.registry import describe
from ludus.policy import FINAL, Policy, save_policy
from ludus.rollout import runner
from ludus.seeding import folded, stream
from ludus.tracking.console import duration
from ludus.tracking.records import Recorder
from ludus.types import EpisodeStats, LudusError, Rollout, RolloutKeys, Spec

CAPACITY = 256
"""The most iterations that one chunk can hold; chunk lengths below it share one program."""
CHUNK_SECONDS = 0.5
"""Chunks are cut to about this long, so that progress, signals and time limits are heeded."""
FINAL_EPISODES = 100
"""Episodes of the evaluation at the end of a run."""


class Plan(NamedTuple):
    """What is compiled into an iteration."""

    env: Any
    num_steps: int
    whole_episodes: bool
    options: Options


class Context(NamedTuple):
    """What the iterations of one call to `train` share: traced values, so none of them is compiled in."""

    algorithm: Any
    keys: Any
    limits: Counters


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The whole of training: what a checkpoint must hold for a run to go on as if nothing had happened."""

    learner: Any
    carry: Any
    iteration: Any
    counters: Counters


@dataclass(frozen=True)
class TrainResult:
    """What a call to `train` reached."""

    steps: int
    episodes: int
    updates: int
    iterations: int
    seconds: float
    stopped_by: str
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


def _learn(
    context: Context, learner: Any, counters: Counters, rollout: Rollout, stats: EpisodeStats, key: jax.Array
) -> tuple[Any, Counters, dict[str, jax.Array]]:
    """Update from one rollout and count it, unless it was faulty; `halt` is set when the run is over."""
    limits = context.limits
    progress = jnp.maximum(
        counting.share(counters.steps, limits.steps), counting.share(counters.episodes, limits.episodes)
    )
    learner, metrics = context.algorithm.update(learner, rollout._replace(progress=jnp.minimum(progress, 1.0)), key)
    healthy = metrics["fault"] == 0
    after = Counters(counting.add(counters.steps, stats.steps), counting.add(counters.episodes, stats.episodes))
    after = jax.tree.map(lambda new, old: jnp.where(healthy, new, old), after, counters)
    over = counting.reached(after.steps, limits.steps) | counting.reached(after.episodes, limits.episodes)
    counts = {name: x for name, x in stats._asdict().items() if name != "info"}
    return learner, after, {**counts, **metrics, "halt": (over | ~healthy).astype(jnp.int32)}


def iteration(plan: Plan, context: Context, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
    """Collect, then update: the whole of training, written once for both kinds of environment."""
    keys = folded(context.keys, state.iteration)
    policy = context.algorithm.policy(state.learner)
    carry, rollout, stats = runner(plan.env).collect(
        context.algorithm, plan.env, policy, state.carry, keys["rollout"], plan.num_steps, plan.whole_episodes
    )
    learn = runner(plan.env).compile_update(_learn, plan.options, donate=("learner",))
    # On the host, names in `info` come and go: they may not be part of what is compiled.
    counted = stats._replace(info={})
    learner, counters, row = learn(context, state.learner, state.counters, rollout, counted, keys["update"])
    carry, number = _go_on(row["fault"] == 0, carry, state.carry, state.iteration)
    return TrainState(learner, carry, number, counters), {**row, **stats.info}


@jax.jit
def _go_on(healthy: jax.Array, carry: Any, old: Any, number: Any) -> tuple[Any, jax.Array]:
    """Where the environments are after an iteration, and its number: if it was faulty, it has not happened."""
    return jax.tree.map(lambda a, b: jnp.where(healthy, a, b), carry, old), number + healthy


@jax.jit
def _copy(tree: Any) -> Any:
    """Copy every array, in one call."""
    return jax.tree.map(jnp.copy, tree)


class Trainer:
    """Trains one algorithm on one environment."""

    def __init__(
        self,
        algorithm: Any,
        env: Any,
        *,
        seed: int = 0,
        run_dir: str | Path | None = None,
        collect: Literal["steps", "episodes"] = "steps",
        eval_frequency: int = 50,
        eval_episodes: int = 10,
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
            eval_episodes: episodes of each such evaluation.
            verbose: show progress.
        """
        if isinstance(algorithm, type) or not hasattr(algorithm, "validate"):
            raise LudusError(f"algorithm={algorithm!r}: must be an algorithm such as ludus.PPO()")
        if not hasattr(env, "num_envs") or not hasattr(env, "remake"):
            raise LudusError(f"env={env!r}: must be made by ludus.make_env")
        if jax.config.values["jax_enable_x64"]:
            raise LudusError("jax_enable_x64 is on, and ludus computes in 32 bits: switch it off (JAX_ENABLE_X64=0)")
        self.device = default_device()
        self.spec = Spec(env.observation_space, env.action_space, env.num_envs)
        algorithm.validate(self.spec)
        _check_at_least(0, seed=seed, eval_frequency=eval_frequency)
        _check_at_least(1, eval_episodes=eval_episodes)
        if collect not in ("steps", "episodes"):
            raise LudusError(f"collect={collect!r}: must be 'steps' or 'episodes'")
        enable_compilation_cache()
        self.algorithm, self.env, self.seed, self.collect = algorithm, env, int(seed), collect
        self.eval_frequency, self.eval_episodes = eval_frequency, eval_episodes
        self.runner = runner(env)
        self.record = Recorder(run_dir, verbose)
        self._arrays = as_arrays(algorithm)
        self._state: TrainState | None = None
        self._repeat: Any = None
        self._last_policy: Any = None
        self.options: Options = ()

    @property
    def state(self) -> TrainState:
        """The whole of training, as it is now; the next chunk takes its arrays over."""
        return self._state if self._state is not None else self._ready()

    @property
    def policy(self) -> Policy:
        """The policy as it is now; training on does not change it."""
        state = self.algorithm.policy(self.state.learner)
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            state = self._last_policy  # an exception broke a chunk that had taken the state over
        return Policy(self._arrays, _copy(state), self.spec, self.env.id)

    def evaluate(self, episodes: int = FINAL_EPISODES) -> Evaluation:
        """Evaluate the policy as it is now, on environments and seeds that training never sees."""
        policy = self.algorithm.policy(self.state.learner)
        return evaluate_state(self._arrays, policy, self.env, stream(self.seed, "evaluation"), episodes, FINAL_EPISODES)

    def train(
        self, total_steps: int | None = None, max_episodes: int | None = None, max_seconds: float | None = None
    ) -> TrainResult:
        """Train until a budget is spent: the first iteration that reaches `total_steps` or `max_episodes` is the last.

        Counts go on from call to call. Ctrl-C ends the run after the current chunk, with what was learnt saved.
        """
        budget = Budget(total_steps, max_episodes, max_seconds)
        if total_steps is not None and total_steps <= self.record.steps:
            raise LudusError(f"total_steps={total_steps}: {self.record.steps} steps are done already")
        context = Context(self._arrays, self._keys(), budget.limits())
        self._settle_program(budget)
        record = self.record
        record.begin(self._config(budget), self._identity())
        placement = getattr(self.env, "placement", "")
        facts = f"{self.env.num_envs} environments", placement, f"seed {self.seed}", str(self.device)
        record.console.say(" · ".join([self.env.id, *filter(None, facts)]))
        record.console.start()
        evaluation = None
        try:
            with Interrupt() as interrupt:
                self._state = self._state or self._ready(context)
                stopped_by = self._run(context, budget, interrupt)
            if stopped_by != "interrupt":
                evaluation = self._evaluate_and_record(FINAL_EPISODES)
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            with contextlib.suppress(LudusError):  # what went wrong first is what the user must hear of
                self._finish(status, f"{type(error).__name__}: {error}")
            raise
        finally:
            record.console.stop()
        self._finish("interrupted" if stopped_by == "interrupt" else "finished", stopped_by)
        return self._result(stopped_by, evaluation)

    def _settle_program(self, budget: Budget) -> None:
        """Choose how the loop is compiled, by the first budget; it is kept from then on."""
        if self._repeat is None:
            self.options = compiler_options(self.algorithm.work(self.spec, budget.total_steps))
            num_steps = self.algorithm.rollout_length(self.env.num_envs)
            plan = Plan(self.env, num_steps, self.collect == "episodes", self.options)
            self._repeat = self.runner.repeat(iteration, plan, CAPACITY, self.options)

    def _run(self, context: Context, budget: Budget, interrupt: Interrupt) -> str:
        """Run chunks until something ends the run; return what it was."""
        record, length = self.record, 1
        while True:
            if self.eval_frequency:
                length = min(length, self.eval_frequency - record.iterations % self.eval_frequency)
            self._last_policy = _copy(self.algorithm.policy(self.state.learner))
            began = time.perf_counter()
            self._state, rows = self._repeat(context, self.state, length)
            seconds = time.perf_counter() - began
            record.iterations_made(rows, seconds, budget)
            if rows["fault"][-1]:
                raise LudusError(self._fault_message(FAULTS[int(rows["fault"][-1])]))
            if rows["halt"][-1]:
                return "total_steps" if record.steps >= (budget.total_steps or np.inf) else "max_episodes"
            if interrupt.requested:
                return "interrupt"
            if record.elapsed >= (budget.max_seconds or np.inf):
                return "max_seconds"
            if self.eval_frequency and record.iterations % self.eval_frequency == 0:
                self._evaluate_and_record(self.eval_episodes)
            length = min(CAPACITY, 2 * length, max(1, int(length * CHUNK_SECONDS / seconds)))

    def _evaluate_and_record(self, episodes: int) -> Evaluation:
        evaluation = self.evaluate(episodes)
        self.record.evaluated(evaluation)
        return evaluation

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
            evaluation=evaluation,
            run_dir=record.folder.path if record.folder else None,
        )

    def _finish(self, status: str, reason: str) -> None:
        """Save the policy, if there is one and a place for it, and write down how the run ended."""
        try:
            if self.record.folder and self._state is not None:
                save_policy(self.policy, self.record.folder.path / FINAL)
        except LudusError as error:
            self.record.end("failed", str(error))
            raise
        self.record.end(status, reason)

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
        return self._state

    def _config(self, budget: Budget) -> dict[str, Any]:
        return {
            "env": self.env.id,
            "env_options": dict(self.env.options),
            "num_envs": self.env.num_envs,
            **getattr(self.env, "worker_settings", {"num_workers": 0}),
            "seed": self.seed,
            "collect": self.collect,
            "eval_frequency": self.eval_frequency,
            "eval_episodes": self.eval_episodes,
            **budget._asdict(),
            "run_dir": str(self.record.folder.path) if self.record.folder else None,
            "algorithm": describe(self.algorithm),
        }

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "versions": {"ludus": __version__, "jax": jax.__version__, "numpy": np.__version__},
            "devices": [str(device) for device in jax.devices()],
            "compiler_options": dict(self.options),
        }


def _check_at_least(low: int, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
            raise LudusError(f"{name}={value}: must be an integer of at least {low}")
