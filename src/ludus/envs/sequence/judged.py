"""A task whose rewards come from a judge of its own, such as a reward model, in place of the task's."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from ludus.envs.base import Action, Environment, Observation, State
from ludus.types import Step, Tree

TASK_REWARD = "task_reward"
"""Where `info` has the reward that the task itself gave."""


class RewardJudge(Protocol):
    """A reward for each observation that an episode comes to; it may remember the ones before."""

    def start(self) -> Tree:
        """Return the memory before an episode's first observation."""
        ...

    def judge(self, memory: Tree, obs: Observation) -> tuple[Tree, jax.Array]:
        """Take in the next observation: the new memory, and the reward for having come there."""
        ...


class JudgedState(NamedTuple):
    """The state of an episode and the memory of its judge."""

    state: State
    memory: Tree


@dataclass(frozen=True)
class JudgedTask(Environment):
    """A task as it is, but for its rewards; those stay to be seen in `info`, so that both can be compared."""

    task: Environment
    judged_by: RewardJudge

    def __post_init__(self) -> None:
        """Take over what the task says of itself, but for the return from which on it is solved."""
        for name in ("observation_space", "action_space", "max_episode_steps"):
            object.__setattr__(self, name, getattr(self.task, name))

    def reset(self, key: jax.Array) -> tuple[JudgedState, Observation]:
        """Start an episode; the judge sees where."""
        state, obs = self.task.reset(key)
        return JudgedState(state, self.judged_by.judge(self.judged_by.start(), obs)[0]), obs

    def step(self, state: JudgedState, action: Action, key: jax.Array) -> tuple[JudgedState, Step]:
        """Take an action, and let the judge say what it earns."""
        inner, step = self.task.step(state.state, action, key)
        memory, reward = self.judged_by.judge(state.memory, step.obs)
        info = step.info if isinstance(step.info, dict) else {}
        info = {**info, TASK_REWARD: jnp.asarray(step.reward, jnp.float32)}
        return JudgedState(inner, memory), step._replace(reward=reward, info=info)

    def action_mask(self, state: JudgedState) -> jax.Array | None:
        """Return the task's own."""
        return self.task.action_mask(state.state)
