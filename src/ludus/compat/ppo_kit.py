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

from ludus.compat.buffers import Buffer, RolloutBuffer, TrajectoryBuffer
from ludus.compat.ppo_clip import PPOClip
from ludus.envs.base import AnyEnv
from ludus.envs.registry import make_env
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.settings import Settings
from ludus.training.trainer import Trainer, TrainResult
from ludus.types import LudusError

__all__ = ["Buffer", "OnPolicyTrainer", "PPOClip", "RolloutBuffer", "TrajectoryBuffer"]


class OnPolicyTrainer:
    """Trains a `PPOClip` on rollouts of whole trajectories, of `threshold_rollout_length` steps or a few more each."""

    def __init__(
        self,
        environment: object,
        agent: PPOClip,
        total_timesteps: int = 1_000_000,
        threshold_rollout_length: int = 2048,
        max_episode_len: int = 1000,
        batch_size: int = 64,
        num_checkpoints: int = 3,
        batch_num: int | None = None,
        verbose: bool = True,
        *,
        recent_episodes_window: int = 100,
        success: str | None = None,
        success_return: float | None = None,
        num_envs: int | None = None,
        run_dir: str | Path | None = None,
    ):
        """Prepare a run in a new folder, `runs/on_policy_<time>` unless told otherwise.

        Args:
            environment: an id, a Gymnasium environment with all its options and wrappers (of which copies are
                played), or what `ludus.make_env` returns. An id is fastest where `ludus` has the environment itself.
            agent: built for the environment's spaces if it is not built yet.
            total_timesteps: steps to train for; another call to `train` adds as many.
            threshold_rollout_length: steps from which on a rollout is over, with the trajectory that reaches them.
            max_episode_len: longer episodes are cut after so many steps.
            batch_size: steps in each gradient step; an epoch's last may have fewer.
            num_checkpoints: policies to keep from on the way.
            batch_num: gradient steps in each epoch, at most, in place of `batch_size`.
            verbose: show progress, and statistics after every rollout.
            recent_episodes_window: episodes that the recent statistics and the best policy are of.
            success: what makes an episode a success: "terminated", "info" or "return", which is meant if
                `success_return` is given.
            success_return: return from which on it is one.
            num_envs: environments played side by side, among which the threshold is divided; 1 unless told otherwise.
            run_dir: the folder.
        """
        env = _limited(environment, max_episode_len, num_envs)
        if not agent.is_built:
            agent.build(env.observation_space, env.action_space)
        agent.agent.meet(env.observation_space, env.action_space, env.id)
        longest = min(max_episode_len, env.max_episode_steps or max_episode_len)
        room = threshold_rollout_length - env.num_envs + env.num_envs * longest
        size = batch_size if batch_num is None else -(-room // batch_num)
        self.agent, self.total_timesteps = agent, total_timesteps
        self.trainer = Trainer(
            replace(
                agent.algorithm,
                batch_size=threshold_rollout_length,
                minibatch_size=min(size, threshold_rollout_length),
            ),
            env,
            Settings(
                seed=agent.seed,
                collect="trajectories",
                eval_frequency=0,
                num_checkpoints=num_checkpoints,
                record_episodes=True,
                recent_episodes_window=recent_episodes_window,
                success=success or ("terminated" if success_return is None else "return"),
                success_return=success_return,
                log_frequency=1,
                checkpoint=CheckpointOptions(best_every=1),
                verbose=verbose,
            ),
            run_dir=run_dir or Path("runs") / f"on_policy_{time.time_ns() // 1_000_000}",
        )

    def train(self) -> TrainResult:
        """Train; the agent has learnt it then, and the run's `policies` hold `final_actor` and the others."""
        self.trainer.learner = self.agent.agent.learner
        result = self.trainer.train(total_steps=self.trainer.record.steps + self.total_timesteps)
        self.agent.agent.learner = self.trainer.learner
        assert result.run_dir is not None
        if find_spec("torch") is not None:
            self.agent.save_policy_net(result.run_dir / "policies" / "final_actor.pth")
            self.agent.save_value_net(result.run_dir / "policies" / "final_critic.pth")
        return result


def _limited(environment: object, max_episode_len: int, num_envs: int | None) -> AnyEnv:
    """Make environments whose episodes are not longer than `max_episode_len`, nor than they would be by themselves."""
    if not isinstance(environment, AnyEnv):
        made = make_env(environment, num_envs or 1)
        if made.max_episode_steps is not None and made.max_episode_steps <= max_episode_len:
            return made
        made.close()
        return make_env(environment, num_envs or 1, max_episode_steps=max_episode_len)
    if num_envs not in (None, environment.num_envs):
        raise LudusError(f"num_envs={num_envs}: this environment was made with {environment.num_envs}; leave it out")
    if environment.max_episode_steps is None or environment.max_episode_steps > max_episode_len:
        raise LudusError(
            f"max_episode_len={max_episode_len}: {environment.id} has longer episodes; give make_env(..., "
            f"max_episode_steps={max_episode_len}), or a larger one here"
        )
    return environment
