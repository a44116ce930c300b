"""The same task with rewards in other units: what learns it in one must learn it in all."""

from dataclasses import dataclass
from typing import Any

import jax

import ludus
from ludus.envs.base import Environment
from ludus.types import Step

SCALES = (1.0, 100.0, 10_000.0)
DEFAULTS: dict[str, tuple[str, Any]] = {
    "PPO()": ("CartPole-v1", ludus.PPO()),
    "PPO(network=GRU())": ("CartPole-v1", ludus.PPO(network=ludus.GRU())),
    "PPO(network=Transformer())": ("CartPole-v1", ludus.PPO(network=ludus.Transformer())),
    "SAC()": ("Pendulum-v1", ludus.SAC()),
}
"""What Python users meet first, and a task for each."""
STEPS = {"CartPole-v1": 65_536, "Pendulum-v1": 20_000}
NUM_ENVS = {"CartPole-v1": 16, "Pendulum-v1": 4}


@dataclass(frozen=True)
class Scaled(Environment):
    """An environment whose rewards are multiplied."""

    env: Environment
    scale: float

    def __post_init__(self) -> None:
        names = ("observation_space", "action_space", "max_episode_steps")
        vars(self).update({name: getattr(self.env, name) for name in names})

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return self.env.reset(key)

    def step(self, state: Any, action: Any, key: jax.Array) -> tuple[Any, Step]:
        state, step = self.env.step(state, action, key)
        return state, step._replace(reward=step.reward * self.scale)


def reached(task: str, algorithm: Any, scale: float, seed: int, steps: int) -> float:
    """Train with rewards in other units; return what the final evaluation comes to in the task's own."""
    env = ludus.make_env(Scaled(ludus.make_env(task).env, scale), num_envs=NUM_ENVS[task])
    settings = ludus.Settings(seed=seed, verbose=False, eval_frequency=0, record_behaviour=False)
    result = ludus.Trainer(algorithm, env, settings).train(total_steps=steps)
    assert result.evaluation is not None
    return float(result.evaluation.returns.mean()) / scale
