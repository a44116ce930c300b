"""The PPO agent's vocabulary: `PPOAgent`, which `PPOTrainer` trains or which learns in one's own loop.

    agent = PPOAgent(observation_dim=4, action_dim=2)
    action = agent.select_action(observation)
    agent.observe(next_observation, reward, terminated, truncated)
    metrics = agent.update()

Behind it is `ludus.Agent` with `ludus.PPO`, whose value loss is the plain squared error here.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.normalize import normalize
from ludus.algorithms.ppo import PPO, EpochState, PPOState
from ludus.algorithms.samples import Samples
from ludus.compat.ppo_network import PPONetwork
from ludus.networks.network import Leaves
from ludus.runs.metrics import also_called
from ludus.runtime.packing import MetricVector
from ludus.spaces import Box, Discrete
from ludus.training.agent import Agent
from ludus.types import Array, LudusError, Tree

MINIBATCH_SIZE = 64
"""Where it is not given; or the whole batch, if that is smaller."""


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
        minibatch_size: int | None = None,
        *,
        normalize_observations: bool = True,
        seed: int = 42,
    ):
        """Build the networks; defaults are those of the trainer's table. The learning rate is never annealed.

        `minibatch_size` is 64, or follows a `batch_size` that is smaller.
        """
        for name, value in (("observation_dim", observation_dim), ("action_dim", action_dim)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise LudusError(f"{name}={value}: must be an integer of at least 1")
        self.observation_dim, self.action_dim = int(observation_dim), int(action_dim)
        self.hyperparameters: dict[str, Any] = {
            "learning_rate": learning_rate,
            "clip_epsilon": clip_epsilon,
            "gamma": gamma,
            "gae_lambda": gae_lambda,
            "entropy_coef": entropy_coef,
            "value_coef": value_coef,
            "max_grad_norm": max_grad_norm,
            "epochs_per_update": epochs_per_update,
            "batch_size": batch_size,
            "minibatch_size": minibatch_size,
        }
        self.normalize_observations = normalize_observations
        self.algorithm = self.algorithm_with()
        spaces = Box(-np.inf, np.inf, (self.observation_dim,)), Discrete(self.action_dim)
        self.agent = Agent(self.algorithm, *spaces, seed=seed)

    def algorithm_with(self, **changes: Any) -> PPO:
        """Return the agent's algorithm with other hyperparameters, by the names that it was made with."""
        if unknown := sorted(changes.keys() - self.hyperparameters.keys()):
            names = ", ".join(self.hyperparameters)
            raise LudusError(f"{unknown[0]}: is no setting, nor one of the hyperparameters {names}")
        settings = self.hyperparameters | changes
        if settings["minibatch_size"] is None:
            batch_size = settings["batch_size"]
            settings["minibatch_size"] = (
                min(MINIBATCH_SIZE, batch_size) if isinstance(batch_size, int) else MINIBATCH_SIZE
            )
        return PPO(
            **settings,
            normalize_observations=self.normalize_observations,
            normalize_returns=False,  # the value loss is that of returns as they are
            value_loss_scale=1.0,
            anneal_learning_rate=False,
        )

    @property
    def network(self) -> PPONetwork:
        """The network with its present parameters; it sees observations as the normaliser leaves them."""
        learner = self.agent.learner
        return PPONetwork(self.observation_dim, self.action_dim).take(learner.network.merge(learner.parameters))

    @property
    def network_params(self) -> Tree:
        """The parameters of actor and critic; others of the same shapes can be set."""
        return self.agent.learner.parameters

    @network_params.setter
    def network_params(self, parameters: Tree) -> None:
        self.agent.learner = replace(self.agent.learner, parameters=tuple(parameters))

    @property
    def optimizer_state(self) -> Tree:
        """Adam's state, which can be set likewise."""
        return self.agent.learner.optimizer

    @optimizer_state.setter
    def optimizer_state(self, optimizer: Tree) -> None:
        self.agent.learner = replace(self.agent.learner, optimizer=optimizer)

    def update_step(
        self,
        network_params: Tree,
        optimizer_state: Tree,
        observations: Array,
        actions: Array,
        old_log_probs: Array,
        advantages: Array,
        returns: Array,
    ) -> tuple[Tree, Tree, dict[str, float]]:
        """Make one compiled gradient step on one minibatch; return parameters and optimiser after it, and its metrics.

        It changes nothing of the agent: what it returns can be given to the next step, and set as `network_params` and
        `optimizer_state`. Observations are normalised as the agent's are.
        """
        columns = jax.tree.map(jnp.asarray, (observations, actions, old_log_probs, advantages, returns))
        obs, action, log_prob, advantage, target = columns
        part = Samples(obs, None, action, log_prob, target, advantage, target)
        state = replace(self.agent.learner, parameters=tuple(network_params), optimizer=optimizer_state)
        parameters, optimizer, report = _gradient_step(as_arrays(self.algorithm), state, part)
        figures = {name: float(value) for name, value in report.columns().items()}
        del figures["updates"], figures["evaluated"]
        return parameters, optimizer, figures | also_called(figures)

    def select_action(self, observation: Array, deterministic: bool = False) -> int:
        """Sample an action, or take the best one."""
        return int(self.agent.select_action(observation, deterministic))

    def observe(self, next_observation: Array, reward: float, terminated: bool, truncated: bool) -> None:
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


@jax.jit
def _gradient_step(algorithm: PPO, state: PPOState, part: Samples) -> tuple[Leaves, Tree, MetricVector]:
    before = EpochState(state.parameters, state.optimizer, jnp.asarray(False), jnp.zeros(state.network.size))
    part = part._replace(obs=normalize(state.observations, part.obs))
    new, report = algorithm.gradient_step(state.network, 1.0, before, part)
    return new.parameters, new.optimizer, report
