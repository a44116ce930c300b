"""The PPO kit's vocabulary: `OnPolicyTrainer`, and `PPOClip`, which it trains or which learns in one's own loop.

    trainer = OnPolicyTrainer("Pendulum-v1", PPOClip(), total_timesteps=300_000, max_episode_len=200)
    trainer.train()

    agent = PPOClip()
    agent.build(env.observation_space, env.action_space)
    action, value, log_prob = agent.select_action(state)
    agent.observe(next_state, reward, terminated, truncated)
    metrics = agent.update()                  # learns once trajectories of at least the threshold's length are there
    agent.save_policy_net("final_actor.pth")  # PyTorch's; any other name is written as safetensors

Behind them are `ludus.Trainer` and `ludus.Agent` with `ludus.PPO`. Buffers are in `ludus.compat.buffers`.
"""

import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from ludus.agent import Agent
from ludus.compat.buffers import Buffer, RolloutBuffer, TrajectoryBuffer
from ludus.envs.registry import make_env
from ludus.learning.ppo import PPO
from ludus.networks.actor_critic import MLP
from ludus.settings import Settings
from ludus.spaces import Box
from ludus.trainer import Trainer, TrainResult
from ludus.types import LudusError

__all__ = ["Buffer", "OnPolicyTrainer", "PPOClip", "RolloutBuffer", "TrajectoryBuffer"]

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
        update_epochs: int = 10,
        device: str | None = None,
        *,
        batch_size: int = 64,
        threshold_rollout_length: int = 2048,
        max_episode_len: int = 1000,
        entropy_coef: float = 0.0,
        seed: int = 0,
    ):
        """Take hyperparameters; with `state_dim` and `action_dim` also build, for unbounded vectors of those lengths.

        `value_clip_range` is in units of normalised returns, whatever the size of rewards. A rollout is over at the
        end of the trajectory that reaches `threshold_rollout_length`, and has room for one of `max_episode_len` more.
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
            epochs_per_update=update_epochs,
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

    def build(self, observation_space: Any, action_space: Any) -> None:
        """Meet an environment: build the networks for its spaces."""
        self._agent = Agent(self.algorithm, observation_space, action_space, seed=self.seed)

    @property
    def sample(self) -> Any:
        """The last selected action before it was clipped and scaled to the bounds: what a buffer must hold of it."""
        return self.agent.extras["sample"][0]

    def select_action(self, state: Any, deterministic: bool = False) -> tuple[Any, float, float]:
        """Return an action within the bounds, the value of the state, and the log-probability of `sample`."""
        action = self.agent.select_action(state, deterministic)
        return action, float(self.agent.critic(state)), float(self.agent.extras["log_prob"][0])

    def observe(self, next_state: Any, reward: float, terminated: bool, truncated: bool) -> None:
        """Take in what the last selected action led to."""
        self.agent.observe(next_state, reward, terminated, truncated)
        self._is_between = bool(terminated or truncated)

    def update(self) -> dict[str, float]:
        """Learn if whole trajectories of at least the threshold's length were observed; `{}` if not."""
        is_enough = self._is_between and self.agent.recorded >= self.threshold_rollout_length
        return self.agent.update(partial=is_enough)

    def update_with_rollout(self, rollout: RolloutBuffer) -> dict[str, float]:
        """Learn from a buffer: `update_epochs` passes of freshly shuffled batches, the last of each maybe shorter."""
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


class OnPolicyTrainer:
    """Trains a `PPOClip` on one environment, `threshold_rollout_length` steps for each update.

    A rollout is cut where it is full and the rest of its last trajectory belongs to the next one; its value
    stands for what was cut, as it does for an episode that `max_episode_len` ends.
    """

    def __init__(
        self,
        environment: Any,
        agent: PPOClip,
        total_timesteps: int = 1_000_000,
        threshold_rollout_length: int = 2048,
        max_episode_len: int = 1000,
        batch_size: int = 64,
        num_checkpoints: int = 3,
        batch_num: int | None = None,
        verbose: bool = True,
        *,
        run_dir: str | Path | None = None,
    ):
        """Prepare a run in a new folder, `runs/on_policy_<time>` unless told otherwise.

        Args:
            environment: an id, a Gymnasium environment that was made from one, or what `ludus.make_env` returns.
            agent: built for the environment's spaces if it is not built yet.
            total_timesteps: steps to train for.
            threshold_rollout_length: steps collected for each update.
            max_episode_len: episodes are cut after so many steps.
            batch_size: steps in each gradient step.
            num_checkpoints: policies to keep from on the way.
            batch_num: gradient steps in each epoch, in place of `batch_size`.
            verbose: show progress, and statistics after every rollout.
            run_dir: the folder.
        """
        env = environment if hasattr(environment, "remake") else _limited(environment, max_episode_len)
        if not agent.is_built:
            agent.build(env.observation_space, env.action_space)
        agent.agent.meet(env.observation_space, env.action_space, env.id)
        size = batch_size if batch_num is None else -(-threshold_rollout_length // batch_num)
        rollout_length = -(-threshold_rollout_length // size) * size
        algorithm = replace(agent.algorithm, batch_size=rollout_length, minibatch_size=size)
        self.agent, self.total_timesteps = agent, total_timesteps
        self.trainer = Trainer(
            algorithm,
            env,
            Settings(
                seed=agent.seed,
                eval_frequency=0,
                num_checkpoints=num_checkpoints,
                record_episodes=True,
                log_frequency=1,
                verbose=verbose,
            ),
            run_dir=run_dir or Path("runs") / f"on_policy_{time.time_ns() // 1_000_000}",
        )

    def train(self) -> TrainResult:
        """Train; the agent has learnt it then, and the run's `policies` hold `final_actor` and the others."""
        self.trainer.learner = self.agent.agent.learner
        result = self.trainer.train(total_steps=self.total_timesteps)
        self.agent.agent.learner = self.trainer.learner
        assert result.run_dir is not None
        if find_spec("torch") is not None:
            self.agent.save_policy_net(result.run_dir / "policies" / "final_actor.pth")
            self.agent.save_value_net(result.run_dir / "policies" / "final_critic.pth")
        return result


def _limited(environment: Any, max_episode_len: int) -> Any:
    """Make the one environment, cut after `max_episode_len` steps."""
    spec = getattr(environment, "spec", None)
    name = environment if isinstance(environment, str) else getattr(spec, "id", None)
    if name is None:
        raise LudusError(f"environment={environment!r}: has no id; pass what ludus.make_env returns for it")
    return make_env(name, 1, max_episode_steps=max_episode_len)


def _two_rates(actor_lr: float, critic_lr: float) -> optax.GradientTransformation:
    """Return Adam with a learning rate of its own for the critic."""

    def labels(tree: Any) -> Any:
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
