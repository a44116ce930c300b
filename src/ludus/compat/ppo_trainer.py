"""The PPO trainer's vocabulary: `PPOAgent`, by the dimensions of its vectors.

    agent = PPOAgent(observation_dim=4, action_dim=2)
    action = agent.select_action(observation)
    agent.observe(next_observation, reward, terminated, truncated)
    metrics = agent.update()

Behind it is `ludus.Agent` with `ludus.PPO`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ludus.agent import Agent
from ludus.learning.ppo import PPO
from ludus.spaces import Box, Discrete
from ludus.types import LudusError


class PPOAgent:
    """PPO for observations that are vectors and a choice among `action_dim` actions."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        learning_rate: float = 3e-4,
        clip_epsilon: float = 0.2,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        entropy_coef: float = 0.01,
        value_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        epochs_per_update: int = 10,
        batch_size: int = 64,
        minibatch_size: int = 64,
        *,
        normalize_observations: bool = False,
        seed: int = 42,
    ):
        """Build the networks; defaults are those of the trainer's table."""
        for name, value in (("observation_dim", observation_dim), ("action_dim", action_dim)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise LudusError(f"{name}={value}: must be an integer of at least 1")
        self.observation_dim, self.action_dim = int(observation_dim), int(action_dim)
        self.algorithm = PPO(
            learning_rate=learning_rate,
            clip_epsilon=clip_epsilon,
            gamma=gamma,
            gae_lambda=gae_lambda,
            entropy_coef=entropy_coef,
            value_coef=value_coef,
            max_grad_norm=max_grad_norm,
            epochs_per_update=epochs_per_update,
            batch_size=batch_size,
            minibatch_size=minibatch_size,
            normalize_observations=normalize_observations,
        )
        spaces = Box(-np.inf, np.inf, (self.observation_dim,)), Discrete(self.action_dim)
        self.agent = Agent(self.algorithm, *spaces, seed=seed)

    def select_action(self, observation: Any, deterministic: bool = False) -> int:
        """Sample an action, or take the best one."""
        return int(self.agent.select_action(observation, deterministic))

    def observe(self, next_observation: Any, reward: float, terminated: bool, truncated: bool) -> None:
        """Take in what the last selected action led to."""
        self.agent.observe(next_observation, reward, terminated, truncated)

    def update(self, partial: bool = False) -> dict[str, float]:
        """Learn once `batch_size` steps were observed, with `partial` from fewer; `{}` if there are not enough."""
        return self.agent.update(partial)

    def save_policy_net(self, path: str | Path) -> Path:
        """Write the policy; see `ludus.Agent.save_policy_net`."""
        return self.agent.save_policy_net(path)

    def save_value_net(self, path: str | Path) -> Path:
        """Write the critic."""
        return self.agent.save_value_net(path)

    def load_policy_net(self, path: str | Path) -> None:
        """Go on with a saved policy."""
        self.agent.load_policy_net(path)

    def load_value_net(self, path: str | Path) -> None:
        """Go on with a saved critic."""
        self.agent.load_value_net(path)
