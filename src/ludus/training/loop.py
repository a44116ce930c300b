"""The compiled loop of a run: how it is compiled, what every iteration is given, and the state that it begins with."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.hyperparameters import as_arrays
from ludus.envs.base import AnyEnv
from ludus.networks.action_scaling import settled
from ludus.rollout.runner import runner
from ludus.runtime import counters as counting
from ludus.runtime.compilation import Options, compile_clock, compiler_options
from ludus.runtime.counters import Counters
from ludus.runtime.placement import on_first
from ludus.runtime.rng import stream
from ludus.training import cohorts
from ludus.training import curriculum as curricula
from ludus.training.budget import Budget
from ludus.training.distributed.hosts import check_team, joined
from ludus.training.distributed.mesh import broadcast, choose
from ludus.training.evaluation import Evaluation, evaluate_state
from ludus.training.init_from import begun
from ludus.training.iteration import Context, Plan, TrainState, iteration
from ludus.training.labelling import FileLabelling
from ludus.training.repeat import Repeat, repeat
from ludus.training.settings import Settings
from ludus.types import Course, LudusError, Match, RolloutKeys, Scaling, Spec, Tree, Watch

CAPACITY = 256
"""The most iterations that one chunk can hold; chunk lengths below it share one program."""


class Loop:
    """Runs iterations of one algorithm on one environment. It knows of no folder, no clock and no user."""

    def __init__(self, algorithm: Algorithm, env: AnyEnv, settings: Settings):
        """Begin with nothing compiled."""
        self.algorithm, self.env, self.settings = algorithm, env, settings
        self.spec = Spec(env.observation_space, env.action_space, env.num_envs)
        algorithm.validate(self.spec)
        self.devices = choose(settings.devices, algorithm, self.spec)
        self.runner, self.arrays, self.team = runner(env), as_arrays(algorithm), joined()
        check_team(self.team, settings.hosts, env.id, self.runner.kind)
        if (branching := algorithm.branching()) is not None:
            self.runner.check_branching(env, branching)
        self.supply, self.curriculum = env.supply(settings.seed), curricula.curriculum_of(settings.curriculum)
        self.num_steps, self.threshold = _extent(algorithm, env, settings.collect)
        """The room that a rollout has in each environment; and, if it holds whole episodes, how many steps of them."""
        self.options: Options = ()
        """The compiler's, once they are settled."""
        self._scenarios: tuple[Tree, Tree] = ((), ())  # as the supply has them, and as the devices do
        self.repeat: Repeat | None = None
        self.labelling: FileLabelling | None = None
        """What asks a person about the reward; None where nobody is asked."""

    def use(self, arrays: Algorithm) -> None:
        """Go on with other values of traced hyperparameters: arrays of the same shapes, so nothing is compiled."""
        self.arrays = arrays

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
        plan = Plan(self.env, self.num_steps, self.threshold, self.options, every, counts, self.devices)
        self.repeat = repeat(self.runner.kind, iteration, plan, CAPACITY, self.options)

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
            self.curriculum,
            self.supply.data,
        )

    def fresh_learner(self) -> Tree:
        """Return a learner that has seen nothing."""
        with self.devices.at_first():
            learner = self.algorithm.init(stream(self.settings.seed, "init"), self.spec)
        return self._placed(learner)

    def first_learner(self) -> Tree:
        """Return the learner that a run begins with: a fresh one, with what was learnt before if that is asked for."""
        return self._placed(begun(self.settings, self.algorithm, self.spec, self.fresh_learner()))

    def _placed(self, learner: Tree) -> Tree:
        """Return a learner where it belongs; processes that train together place it with the whole state."""
        return learner if self.team else self.devices.place_learner(learner)

    def begin(self, context: Context | None, learner: Tree) -> TrainState:
        """Build the state around a learner; given a context, compile the loop meanwhile, on another thread."""
        self.tell("begin", scaling=self.spec.scaling, options=self.options)
        starts = self.supply.first()
        with ThreadPoolExecutor(1) as pool:
            prepared = None
            if context is not None:
                assert self.repeat is not None  # `settle` comes first
                shapes = partial(self._initial_state, learner, self.runner.begin, starts)
                prepared = pool.submit(self.repeat.prepare, self._now(context), shapes)
            # On this thread: a host environment may not be moved between threads.
            with self.devices.at_first():
                state = self.devices.place(self._initial_state(learner, self.runner.start, starts))
            if self.team is None or self.team.is_leader:
                self.evaluate(learner, 0)  # compiled, not played
            if prepared is not None:
                prepared.result()
        return state

    def __call__(
        self, context: Context, state: TrainState, length: int, watch: Watch | None = None
    ) -> tuple[TrainState, dict[str, np.ndarray]]:
        """Run a chunk of iterations; return the state after it, and a row of figures for each."""
        assert self.repeat is not None
        numbers = [np.asarray(x).tolist() for x in jax.tree.leaves(self.arrays)]
        with self.told("run", length=length, hyperparameters=numbers):
            state, rows = self.repeat(self._now(context), state, length, watch)
        is_first = np.arange(len(rows["halt"])) == 0
        rows["seconds/compile"] = np.where(is_first, compile_clock().lap() or np.nan, np.nan)
        return state, rows

    def _now(self, context: Context) -> Context:
        """Return a context with what may have changed since: by a callback, or because scenarios were exchanged."""
        if self._scenarios[0] is not self.supply.data:
            self._scenarios = self.supply.data, self.devices.whole(self.supply.data)
        return context._replace(algorithm=self.arrays, scenarios=self._scenarios[1])

    def restocked(self, state: TrainState, iteration: int) -> tuple[TrainState, int]:
        """Before an iteration, exchange answers with whoever is asked, and the scenarios on the device if that is due.

        Returns the state, and how many iterations may be made until it is due again.
        """
        state = state if self.labelling is None else self.labelling.exchanged(state)
        if (until := self.supply.until_next(iteration)) is None:
            return state, CAPACITY
        starts = self.supply.exchanged(state.carry.starts, iteration)
        if starts is not None:
            state = replace(state, carry=state.carry._replace(starts=self.devices.whole(starts)))
        return state, until

    def tell(self, what: str, **more: Any) -> None:
        """Let the processes that follow this one, if there are any, do the same."""
        if self.team is not None and self.team.is_leader:
            self.team.tell(what, **more)

    def told(self, what: str, **more: Any) -> contextlib.AbstractContextManager:
        """Return a context for something that all processes do together, which is watched over."""
        self.tell(what, **more)
        return contextlib.nullcontext() if self.team is None else self.team.step()

    def gathered(self, state: TrainState) -> TrainState:
        """Return a state that this process can read."""
        with self.told("gather"):
            return self.devices.gathered(state)

    def shared(self, state: TrainState) -> TrainState:
        """Return the state of process 0, on the devices of all."""
        if self.team is None:
            return state
        with self.told("take"):
            return self.devices.place(broadcast(state, self.team.is_leader))

    def use_numbers(self, numbers: list[Any]) -> None:
        """Go on with the values of traced hyperparameters that another process has, in the same order."""
        leaves, tree = jax.tree.flatten(self.arrays)
        given = [np.asarray(number, leaf.dtype) for number, leaf in zip(numbers, leaves, strict=True)]
        self.use(jax.tree.unflatten(tree, given))

    def take_over(self, scaling: Scaling) -> None:
        """Scale numbers as another process does."""
        self.spec = settled(replace(self.spec, scaling=scaling))

    def evaluate(self, learner: Tree, episodes: int, watch: Watch | None = None) -> Evaluation:
        """Play greedy episodes on environments and seeds that training never sees."""
        settings = self.settings
        lanes = max(settings.eval_episodes, settings.eval_episodes_final)  # evaluations of both kinds share a program
        match = Match(episodes, settings.eval_max_steps, lanes, watch=watch)
        return evaluate_state(
            self.arrays, on_first(self.algorithm.policy(learner)), self.env, stream(settings.seed, "evaluation"), match
        )

    def snapshot(self) -> dict[str, Any]:
        """Return where the environments are; where every rollout starts its episodes anew, that does not matter."""
        return self.runner.snapshot(self.env) if self.settings.collect == "steps" else {}

    def restore(self, saved: dict[str, np.ndarray], carry: Tree) -> bool:
        """Bring the environments to where they were when `saved` was taken; return whether they are there."""
        self.supply.take_up(getattr(carry, "starts", ()))
        return self.settings.collect != "steps" or self.runner.restore(self.env, saved, carry)

    def _initial_state(self, learner: Tree, begin: Callable, starts: Tree) -> TrainState:
        stages = curricula.begin(self.curriculum)
        course = Course(curricula.values(self.curriculum, stages, np.float32(0)), self.supply.data, starts)
        policy = self.algorithm.policy(learner)
        carry = begin(self.arrays, self.env, policy, stream(self.settings.seed, "begin"), course)
        counters = Counters(counting.from_int(0), counting.from_int(0))
        return TrainState(learner, carry, np.int32(0), counters, cohorts.begin(), stages)


def _extent(algorithm: Algorithm, env: AnyEnv, collect: str) -> tuple[int, int]:
    """Return the room of a rollout in each environment, and from how many steps on no other episode begins there.

    With whole trajectories there is room for one that begins just before enough steps are there.
    """
    length = algorithm.rollout_length(env.num_envs)
    if collect != "trajectories":
        return length, int(collect == "episodes")
    if not algorithm.is_on_policy:
        raise LudusError("collect=trajectories: this algorithm learns from a replay; use collect=steps")
    limit = env.max_episode_steps
    if limit is None:
        raise LudusError(f"collect=trajectories: {env.id} names no longest episode; give env_options.max_episode_steps")
    return length - 1 + limit, length
