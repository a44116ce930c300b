"""The compiled loop of a run: how it is compiled, what every iteration is given, and the state that it begins with."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from ludus import cohorts, counting
from ludus.compilation import Options, compile_clock, compiler_options
from ludus.counting import Budget, Counters
from ludus.evaluation import Evaluation, evaluate_state
from ludus.iteration import Context, Plan, TrainState, iteration
from ludus.learning.algorithm import as_arrays
from ludus.rollout import runner
from ludus.seeding import stream
from ludus.settings import Settings
from ludus.types import LudusError, Match, RolloutKeys, Spec, Watch

CAPACITY = 256
"""The most iterations that one chunk can hold; chunk lengths below it share one program."""


class Loop:
    """Runs iterations of one algorithm on one environment. It knows of no folder, no clock and no user."""

    def __init__(self, algorithm: Any, env: Any, settings: Settings):
        """Nothing is compiled yet."""
        self.algorithm, self.env, self.settings = algorithm, env, settings
        self.spec = Spec(env.observation_space, env.action_space, env.num_envs)
        algorithm.validate(self.spec)
        self.runner, self.arrays = runner(env), as_arrays(algorithm)
        self.num_steps, self.threshold = _extent(algorithm, env, settings.collect)
        """The room that a rollout has in each environment; and, if it holds whole episodes, how many steps of them."""
        self.options: Options = ()
        """The compiler's, once they are settled."""
        self.repeat: Any = None

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps that an iteration makes, at most."""
        return self.env.num_envs * self.num_steps

    def settle(self, budget: Budget, recorded: Options | None) -> None:
        """Choose how the loop is compiled. The options are chosen by the first budget or as recorded, and kept."""
        if self.repeat is None:
            work = self.algorithm.work(self.spec, budget.total_steps)
            self.options = compiler_options(work) if recorded is None else recorded
        every, counts = self.settings.record_episodes, budget.max_episodes is not None
        plan = Plan(self.env, self.num_steps, self.threshold, self.options, every, counts)
        self.repeat = self.runner.repeat(iteration, plan, CAPACITY, self.options)

    def context(self, budget: Budget) -> Context:
        """Return what the iterations of one call to `train` share."""
        settings, seed = self.settings, self.settings.seed
        rollout = RolloutKeys(*(stream(seed, f"rollout {name}") for name in RolloutKeys._fields))
        return Context(
            self.arrays,
            {"rollout": rollout, "update": stream(seed, "update")},
            budget.limits(),
            np.float32(np.nan if settings.success_return is None else settings.success_return),
            np.int32(settings.health_frequency) if settings.health_frequency else None,
        )

    def fresh_learner(self) -> Any:
        """Return a learner that has seen nothing."""
        return self.algorithm.init(stream(self.settings.seed, "init"), self.spec)

    def begin(self, context: Context | None, learner: Any) -> TrainState:
        """Build the state around a learner; given a context, compile the loop meanwhile, on another thread."""
        with ThreadPoolExecutor(1) as pool:
            shapes = partial(self._initial_state, learner, self.runner.begin)
            prepared = pool.submit(self.repeat.prepare, context, shapes) if context is not None else None
            # On this thread: a host environment may not be moved between threads.
            state = self._initial_state(learner, self.runner.start)
            self.evaluate(learner, 0)  # compiled, not played
            if prepared is not None:
                prepared.result()
        return state

    def __call__(
        self, context: Context, state: TrainState, length: int, watch: Watch | None = None
    ) -> tuple[TrainState, dict[str, np.ndarray]]:
        """Run a chunk of iterations; return the state after it, and a row of figures for each."""
        state, rows = self.repeat(context, state, length, watch)
        is_first = np.arange(len(rows["halt"])) == 0
        rows["seconds/compile"] = np.where(is_first, compile_clock().lap() or np.nan, np.nan)
        return state, rows

    def evaluate(self, learner: Any, episodes: int, watch: Watch | None = None) -> Evaluation:
        """Play greedy episodes on environments and seeds that training never sees."""
        settings = self.settings
        lanes = max(settings.eval_episodes, settings.eval_episodes_final)  # evaluations of both kinds share a program
        match = Match(episodes, settings.eval_max_steps, lanes, watch=watch)
        return evaluate_state(
            self.arrays, self.algorithm.policy(learner), self.env, stream(settings.seed, "evaluation"), match
        )

    def _initial_state(self, learner: Any, begin: Callable) -> TrainState:
        carry = begin(self.arrays, self.env, self.algorithm.policy(learner), stream(self.settings.seed, "begin"))
        counters = Counters(counting.from_int(0), counting.from_int(0))
        return TrainState(learner, carry, np.int32(0), counters, cohorts.begin())


def _extent(algorithm: Any, env: Any, collect: str) -> tuple[int, int]:
    """Return the room of a rollout in each environment, and from how many steps on no other episode begins there.

    With whole trajectories there is room for one that begins just before enough steps are there.
    """
    length = algorithm.rollout_length(env.num_envs)
    if collect != "trajectories":
        return length, int(collect == "episodes")
    if not getattr(algorithm, "is_on_policy", True):
        raise LudusError("collect=trajectories: this algorithm learns from a replay; use collect=steps")
    limit = getattr(env, "max_episode_steps", None)
    if limit is None:
        raise LudusError(f"collect=trajectories: {env.id} names no longest episode; give env_options.max_episode_steps")
    return length - 1 + limit, length
