"""`PPOClip`: clipped PPO under the PPO kit's names, to be trained by `OnPolicyTrainer` or in a loop of one's own."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from ludus.algorithms.ppo import PPO
from ludus.compat.buffers import RolloutBuffer
from ludus.networks.builders import MLP
from ludus.spaces import Box
from ludus.training.agent import Agent
from ludus.types import Array, LudusError, Tree

PLATFORMS = {"cuda": "gpu"}
"""What the kit calls a device, where JAX calls it otherwise."""


class PPOClip:
    """Clipped PPO with value clipping and early stopping by KL; unbuilt until it meets an environment."""

    def __init__(
        self,
        state_dim: int | None = None,
        action_dim: int | None = None,
        clip_range: float = 0.2,
        value_clip_range: float | None = 0.2,
        target_kl: float | None = 0.01,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        actor_lr: float = 3e-4,
        critic_lr: float = 3e-4,
        num_update_epochs: int = 10,
        device: str | None = None,
        *,
        update_epochs: int | None = None,
        anneal_learning_rate: bool = False,
        batch_size: int = 64,
        threshold_rollout_length: int = 2048,
        max_episode_len: int = 1000,
        entropy_coef: float = 0.0,
        seed: int = 0,
    ):
        """Take hyperparameters; with `state_dim` and `action_dim` also build, for unbounded vectors of those lengths.

        `value_clip_range` is in units of normalised returns, whatever the size of rewards. A rollout is over at the
        end of the trajectory that reaches `threshold_rollout_length`, and has room for one of `max_episode_len` more.
        `update_epochs` is another name of `num_update_epochs`.
        """
        _check_device(device)
        room = threshold_rollout_length + max_episode_len
        self.threshold_rollout_length, self.max_episode_len, self.seed = threshold_rollout_length, max_episode_len, seed
        self.algorithm = PPO(
            learning_rate=actor_lr,
            gamma=gamma,
            gae_lambda=gae_lambda,
            clip_epsilon=clip_range,
            value_clip_epsilon=value_clip_range,
            normalize_returns=value_clip_range is not None,
            target_kl=target_kl,
            entropy_coef=entropy_coef,
            batch_size=-(-room // batch_size) * batch_size,
            minibatch_size=batch_size,
            epochs_per_update=num_update_epochs if update_epochs is None else update_epochs,
            anneal_learning_rate=anneal_learning_rate,
            network=MLP((64, 64), "relu"),
            optimizer=None if actor_lr == critic_lr else _two_rates(actor_lr, critic_lr),
        )
        self._agent: Agent | None = None
        self._is_between = True
        if (state_dim is None) != (action_dim is None):
            raise LudusError(f"state_dim={state_dim}, action_dim={action_dim}: give both or neither")
        if state_dim is not None and action_dim is not None:
            self.build(Box(-np.inf, np.inf, (state_dim,)), Box(-np.inf, np.inf, (action_dim,)))

    @property
    def agent(self) -> Agent:
        """The core's agent behind this door."""
        if self._agent is None:
            raise LudusError(
                "PPOClip: not built yet, since it has met no environment: give state_dim and action_dim, or call "
                "build(env.observation_space, env.action_space)"
            )
        return self._agent

    @property
    def is_built(self) -> bool:
        """Whether there are networks."""
        return self._agent is not None

    def build(self, observation_space: object, action_space: object) -> None:
        """Meet an environment: build the networks for its spaces."""
        self._agent = Agent(self.algorithm, observation_space, action_space, seed=self.seed)

    @property
    def sample(self) -> Any:
        """The last selected action before it was clipped and scaled to the bounds: what a buffer must hold of it."""
        return self.agent.extras["sample"][0]

    def select_action(self, state: Array, deterministic: bool = False) -> tuple[Array, float, float]:
        """Return an action within the bounds, the value of the state, and the log-probability of `sample`."""
        action = self.agent.select_action(state, deterministic)
        return action, float(self.agent.critic(state)), float(self.agent.extras["log_prob"][0])

    def observe(self, next_state: Array, reward: float, terminated: bool, truncated: bool) -> None:
        """Take in what the last selected action led to."""
        self.agent.observe(next_state, reward, terminated, truncated)
        self._is_between = bool(terminated or truncated)

    def update(self) -> dict[str, float]:
        """Learn if whole trajectories of at least the threshold's length were observed; `{}` if not."""
        is_enough = self._is_between and self.agent.recorded >= self.threshold_rollout_length
        return self.agent.update(partial=is_enough)

    def update_with_rollout(self, rollout: RolloutBuffer) -> dict[str, float]:
        """Learn from a buffer: `num_update_epochs` passes of freshly shuffled batches, the last maybe shorter."""
        return self.agent.learn(rollout.rollout(self.algorithm.minibatch_size))

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


def _two_rates(actor_lr: float, critic_lr: float) -> optax.GradientTransformation:
    """Return Adam with a learning rate of its own for the critic."""

    def labels(tree: Tree) -> Tree:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: "critic" if "critic" in jax.tree_util.keystr(path) else "actor", tree
        )

    rates = {"actor": actor_lr, "critic": critic_lr}
    return optax.multi_transform({name: optax.adam(rate, eps=1e-5) for name, rate in rates.items()}, labels)


def _check_device(device: str | None) -> None:
    """Refuse a device that JAX does not run on: it is chosen for the whole process, not for each object."""
    name = str(device).partition(":")[0]
    if device is not None and PLATFORMS.get(name, name) != jax.default_backend():
        raise LudusError(f"device={device}: JAX runs on {jax.default_backend()} (see the variable JAX_PLATFORMS)")
