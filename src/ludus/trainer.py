"""The conductor: one iteration is collect, then update; a chunk is many of them; `Trainer` runs chunks.

The outer loop (record, evaluate, stop) is the same text for both kinds of environment.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus import counting
from ludus.compilation import compiler_options, enable_compilation_cache
from ludus.evaluation import Evaluation, evaluate_state
from ludus.interrupt import Interrupt
from ludus.learning.algorithm import FAULTS, as_arrays
from ludus.learning.registry import describe
from ludus.policy import FINAL, Policy, save_policy
from ludus.rollout import runner
from ludus.seeding import folded, stream
from ludus.tracking.console import Console, duration
from ludus.tracking.records import Totals, evaluation_row
from ludus.tracking.run_folder import RunFolder
from ludus.types import EpisodeStats, LudusError, Rollout, RolloutKeys, Spec

CAPACITY = 256
"""The most iterations that one chunk can hold; chunk lengths below it share one program."""
CHUNK_SECONDS = 0.5
"""Chunks are cut to about this long, so that progress, signals and time limits are heeded."""
FINAL_EPISODES = 100
"""Episodes of the evaluation at the end of a run."""


class Counters(NamedTuple):
    """What the run has done so far. Each is a 64-bit count in two 32-bit words, high word first."""

    steps: jax.Array
    episodes: jax.Array


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
    iteration: jax.Array
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


@partial(jax.jit, donate_argnames="learner")
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
    return learner, after, {**stats._asdict(), **metrics, "halt": (over | ~healthy).astype(jnp.int32)}


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
        self.spec = Spec(env.observation_space, env.action_space, env.num_envs)
        algorithm.validate(self.spec)
        _check_at_least(0, seed=seed, eval_frequency=eval_frequency)
        _check_at_least(1, eval_episodes=eval_episodes)
        if collect not in ("steps", "episodes"):
            raise LudusError(f"collect={collect!r}: must be 'steps' or 'episodes'")
        enable_compilation_cache()
        self.algorithm, self.env, self.seed, self.collect = algorithm, env, seed, collect
        self.eval_frequency, self.eval_episodes = eval_frequency, eval_episodes
        self.console = Console(verbose)
        self.runner = runner(env)
        self.options = compiler_options()
        self.folder = RunFolder(run_dir) if run_dir is not None else None
        self._arrays = as_arrays(algorithm)
        self._repeat = self.runner.Repeat(self._iteration, CAPACITY, self.options)
        self.state: TrainState | None = None
        self.totals = Totals()
        self._last_return: float | None = None

    @property
    def policy(self) -> Policy:
        """The policy as it is now; training on does not change it."""
        self._ready()
        state = jax.tree.map(jnp.copy, self.algorithm.policy(self.state.learner))
        return Policy(self._arrays, state, self.spec, self.env.id)

    def evaluate(self, episodes: int = FINAL_EPISODES) -> Evaluation:
        """Evaluate the policy as it is now, on environments and seeds that training never sees."""
        self._ready()
        policy = self.algorithm.policy(self.state.learner)
        return evaluate_state(self._arrays, policy, self.env, stream(self.seed, "evaluation"), episodes, FINAL_EPISODES)

    def train(
        self, total_steps: int | None = None, max_episodes: int | None = None, max_seconds: float | None = None
    ) -> TrainResult:
        """Train until a budget is spent: the first iteration that reaches `total_steps` or `max_episodes` is the last.

        Counts go on from call to call. Ctrl-C ends the run after the current chunk, with what was learnt saved.
        """
        budget = Budget(total_steps, max_episodes, max_seconds)
        context = Context(self._arrays, self._keys(), budget.limits())
        self._begin_record(budget)
        started = time.perf_counter()
        evaluation = None
        try:
            with Interrupt() as interrupt:
                self.console.start()
                self._ready(context)
                stopped_by = self._run(context, budget, started, interrupt)
                if not interrupt.requested:
                    evaluation = self._evaluate_and_record(FINAL_EPISODES, started)
        except BaseException as error:
            self._end_record("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            self.console.stop()
        self._end_record("interrupted" if interrupt.requested else "finished", stopped_by)
        totals = self.totals
        run_dir = self.folder.path if self.folder else None
        seconds = time.perf_counter() - started
        return TrainResult(
            totals.steps, totals.episodes, totals.updates, totals.iterations, seconds, stopped_by, evaluation, run_dir
        )

    def _iteration(self, context: Context, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Collect, then update: the whole of training, written once."""
        keys = folded(context.keys, state.iteration)
        policy = context.algorithm.policy(state.learner)
        num_steps = self.algorithm.rollout_length(self.env.num_envs)
        carry, rollout, stats = self.runner.collect(
            context.algorithm, self.env, policy, state.carry, keys["rollout"], num_steps, self.collect == "episodes"
        )
        learner, counters, row = _learn(context, state.learner, state.counters, rollout, stats, keys["update"])
        healthy = row["fault"] == 0
        carry = jax.tree.map(lambda new, old: jnp.where(healthy, new, old), carry, state.carry)
        return TrainState(learner, carry, state.iteration + healthy, counters), row

    def _run(self, context: Context, budget: "Budget", started: float, interrupt: Interrupt) -> str:
        """Run chunks until something ends the run; return what it was."""
        length = 1
        while True:
            if self.eval_frequency:
                length = min(length, self.eval_frequency - self.totals.iterations % self.eval_frequency)
            began = time.perf_counter()
            self.state, rows = self._repeat(context, self.state, length)
            now = time.perf_counter()
            self._record(rows, budget, now - started, now - began)
            if rows["fault"][-1]:
                raise LudusError(self._fault_message(int(rows["fault"][-1])))
            if self.eval_frequency and self.totals.iterations % self.eval_frequency == 0 and not rows["halt"][-1]:
                self._evaluate_and_record(self.eval_episodes, started)
            if rows["halt"][-1]:
                return "total_steps" if self.totals.steps >= (budget.total_steps or np.inf) else "max_episodes"
            if interrupt.requested:
                return "interrupt"
            if now - started >= (budget.max_seconds or np.inf):
                return "max_seconds"
            length = min(CAPACITY, 2 * length, max(1, int(length * CHUNK_SECONDS / (now - began))))

    def _keys(self) -> dict[str, Any]:
        rollout = RolloutKeys(*(stream(self.seed, f"rollout {name}") for name in RolloutKeys._fields))
        return {"rollout": rollout, "update": stream(self.seed, "update")}

    def _initial_state(self, learner: Any) -> TrainState:
        carry = self.runner.begin(self._arrays, self.env, self.algorithm.policy(learner), stream(self.seed, "begin"))
        counters = Counters(counting.from_int(0), counting.from_int(0))
        return TrainState(learner, carry, np.int32(0), counters)

    def _ready(self, context: Context | None = None) -> None:
        """Build the state and compile what will be needed, the training loop and the rest on two threads."""
        if self.state is not None:
            return
        learner = self.algorithm.init(stream(self.seed, "init"), self.spec)

        def start() -> TrainState:
            state = self._initial_state(learner)
            policy = self.algorithm.policy(learner)
            evaluate_state(self._arrays, policy, self.env, stream(self.seed, "evaluation"), 0, FINAL_EPISODES)
            return state

        with ThreadPoolExecutor(1) as pool:
            started = pool.submit(start)
            if context is not None:
                self._repeat.prepare(context, partial(self._initial_state, learner))
            self.state = started.result()

    def _record(self, rows: dict[str, np.ndarray], budget: "Budget", elapsed: float, seconds: float) -> None:
        healthy = {name: x[rows["fault"] == 0] for name, x in rows.items()}
        journal = self.totals.rows(healthy, elapsed, seconds)
        if not journal:
            return
        if self.folder:
            self.folder.append(journal)
        returns = [row["episode_return_mean"] for row in journal if "episode_return_mean" in row]
        self._last_return = returns[-1] if returns else self._last_return
        share = budget.share(self.totals, elapsed)
        facts = {
            "steps": self.totals.steps,
            "steps_per_second": journal[-1]["steps_per_second"],
            "return": self._last_return,
            "remaining_seconds": elapsed * (1 - share) / share if share > 0 else None,
        }
        self.console.progress(share, facts)

    def _evaluate_and_record(self, episodes: int, started: float) -> Evaluation:
        evaluation = self.evaluate(episodes)
        if self.folder:
            elapsed = time.perf_counter() - started
            self.folder.append([evaluation_row(self.totals.counts(), evaluation.summary(), elapsed)])
        self.console.say(f"{self.totals.steps:>12,} steps · evaluation {evaluation}")
        return evaluation

    def _fault_message(self, fault: int) -> str:
        return (
            f"training stopped: {FAULTS[fault]} is not finite (NaN or Inf) in iteration {self.totals.iterations + 1}, "
            f"after {self.totals.steps:,} steps and {self.totals.updates:,} updates; the state is kept as it was before"
        )

    def _begin_record(self, budget: "Budget") -> None:
        self.console.say(f"{self.env.id} · {self.env.num_envs} environments · seed {self.seed} · {jax.devices()[0]}")
        if not self.folder:
            return
        names = ("seed", "collect", "eval_frequency", "eval_episodes")
        self.folder.write_config(
            {
                "env": self.env.id,
                "num_envs": self.env.num_envs,
                **{name: getattr(self, name) for name in names},
                **budget._asdict(),
                "run_dir": str(self.folder.path),
                "algorithm": describe(self.algorithm),
            }
        )
        self.folder.write_identity(
            seed=self.seed,
            versions={"ludus": version("ludus"), "jax": jax.__version__, "numpy": np.__version__},
            devices=[str(device) for device in jax.devices()],
            compiler_options=self.options,
            status="running",
        )

    def _end_record(self, status: str, reason: str) -> None:
        """Save what was learnt and how the run ended."""
        if not self.folder:
            return
        if self.state is not None:
            save_policy(self.policy, self.folder.path / FINAL)
        self.folder.write_identity(status=status, exit_reason=reason, **self.totals.counts())
        self.folder.flush()


class Budget(NamedTuple):
    """When a run is over: whichever comes first."""

    total_steps: int | None
    max_episodes: int | None
    max_seconds: float | None

    def limits(self) -> Counters:
        """Check the numbers; return the limits that the compiled loop watches."""
        if self.total_steps is None and self.max_episodes is None and self.max_seconds is None:
            raise LudusError("train: give total_steps, max_episodes or max_seconds")
        for name, value in self._asdict().items():
            if value is not None and not value > 0:
                raise LudusError(f"{name}={value}: must be greater than 0")
        steps, episodes = (counting.UNLIMITED if x is None else int(x) for x in (self.total_steps, self.max_episodes))
        return Counters(counting.from_int(steps), counting.from_int(episodes))

    def share(self, totals: Totals, elapsed: float) -> float:
        """How much of the budget is spent, in [0, 1]."""
        spent = ((totals.steps, self.total_steps), (totals.episodes, self.max_episodes), (elapsed, self.max_seconds))
        return min(1.0, max(done / limit for done, limit in spent if limit))


def _check_at_least(low: int, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise LudusError(f"{name}={value}: must be an integer of at least {low}")
