"""The PPO trainer's vocabulary: `PPOTrainer` and `CartPoleWrapper`, with agent and networks from the files beside.

    agent = PPOAgent(observation_dim=4, action_dim=2)
    trainer = PPOTrainer(agent, CartPoleWrapper(), max_episodes=1000, target_reward=195.0)
    results = trainer.train()

Behind them are `ludus.Trainer` and `ludus.make_env`.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.hyperparameters import as_arrays
from ludus.compat.ppo_agent import PPOAgent
from ludus.compat.ppo_network import ActorNetwork, CriticNetwork, PPONetwork, evaluate_action, get_entropy
from ludus.envs.base import AnyEnv
from ludus.envs.registry import make_env
from ludus.runs.journal import read_journal
from ludus.runs.metrics import SUMMARY_ALIASES
from ludus.runs.trackers.base import TrackingOptions
from ludus.runtime.rng import stream
from ludus.training.settings import Settings
from ludus.training.stopping import ConvergenceOptions
from ludus.training.trainer import Trainer
from ludus.types import LudusError, RolloutKeys

__all__ = [
    "ActorNetwork",
    "CartPoleWrapper",
    "CriticNetwork",
    "PPOAgent",
    "PPONetwork",
    "PPOTrainer",
    "evaluate_action",
    "get_entropy",
]


class CartPoleWrapper:
    """CartPole-v1 as a vector of four numbers and a choice of two actions, for `PPOTrainer` or a loop of one's own."""

    def __init__(self, max_episode_steps: int = 500, normalize_observations: bool = True):
        """Make it; normalisation is the trainer's, whose policy carries it, so observations here are as they are."""
        self.max_episode_steps, self.normalize_observations = max_episode_steps, normalize_observations
        self._one: Any = make_env("gym:CartPole-v1", 1, num_workers=0, max_episode_steps=max_episode_steps)
        self.observation_space, self.action_space = self._one.observation_space, self._one.action_space
        self.observation_dim, self.action_dim = self.observation_space.shape[0], self.action_space.n

    def reset(self, seed: int = 0) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        return np.array(self._one.reset([seed])[0]), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one step; after the end of an episode the next one has begun already."""
        step = self._one.step(np.asarray([action]))
        ends = bool(step.terminated[0]), bool(step.truncated[0])
        return np.array(step.next_obs[0]), float(step.reward[0]), *ends, {}

    def batch(self, num_envs: int, max_episode_steps: int) -> AnyEnv:
        """Return the environments that a trainer steps."""
        return make_env("CartPole-v1", num_envs, max_episode_steps=min(max_episode_steps, self.max_episode_steps))

    def close(self) -> None:
        """Free what it holds."""
        self._one.close()


class PPOTrainer:
    """Trains a `PPOAgent`; all counts are in episodes."""

    def __init__(
        self,
        agent: PPOAgent,
        env: CartPoleWrapper,
        max_episodes: int = 1000,
        max_steps_per_episode: int = 500,
        target_reward: float = 195.0,
        convergence_window: int = 100,
        early_stopping_patience: int = 10,
        eval_frequency: int = 50,
        eval_episodes: int = 10,
        log_frequency: int = 10,
        enable_mlflow: bool = True,
        mlflow_experiment_name: str = "cartpole-ppo",
        *,
        num_envs: int = 1,
        collect: str = "steps",
        run_dir: str | Path | None = None,
        seed: int | None = None,
        **hyperparameters: Any,
    ):
        """Prepare a run in a new folder, `runs/ppo_run_<time>` unless told otherwise.

        `num_envs` environments are played side by side. With `collect="steps"` each update learns from `batch_size`
        steps of all of them, with "episodes" from a whole episode in each. `seed` is the agent's unless given, and so
        are the hyperparameters, from `learning_rate` to `minibatch_size`; what is given counts for this run. Without
        MLflow installed, `enable_mlflow` is a warning, not an error.
        """
        self.agent, self.max_episodes, self.log_frequency = agent, max_episodes, log_frequency
        has_mlflow = find_spec("mlflow") is not None
        if agent.algorithm.normalize_observations != env.normalize_observations:
            raise LudusError(
                f"normalize_observations={env.normalize_observations} of the environment: the agent was made with "
                f"{agent.algorithm.normalize_observations}; give both the same"
            )
        played = env.batch(num_envs, max_steps_per_episode)
        algorithm = agent.algorithm_with(**hyperparameters)
        agent.agent.meet(played.observation_space, played.action_space, played.id)
        if collect == "episodes":  # room for the longest one
            algorithm = replace(algorithm, batch_size=num_envs * (played.max_episode_steps or max_steps_per_episode))
        self.trainer = Trainer(
            algorithm,
            played,
            Settings(
                seed=agent.agent.seed if seed is None else seed,
                collect=collect,
                eval_frequency=eval_frequency,
                eval_by="episodes",
                eval_episodes=eval_episodes,
                record_episodes=True,
                success_return=target_reward,
                convergence=ConvergenceOptions("window", target_reward, convergence_window, early_stopping_patience),
                tracking=TrackingOptions(mlflow=enable_mlflow and has_mlflow, experiment=mlflow_experiment_name),
            ),
            run_dir=run_dir or Path("runs") / f"ppo_run_{time.time_ns() // 1_000_000}",
        )
        if enable_mlflow and not has_mlflow:
            self._say('MLflow is not installed (pip install "ludus[mlflow]"): the run is recorded in its folder alone')

    def train(self, callback: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
        """Train until convergence or `max_episodes`, evaluate, save; return the results under their founding names.

        Called again it goes on from what the agent holds then, for up to `max_episodes` more. Counts and results are
        those of the whole run.
        """
        self._take_over()
        limit = self.trainer.record.episodes + self.max_episodes
        result = self.trainer.train(max_episodes=limit, callback=self._speaking(callback))
        self.agent.agent.learner = self.trainer.learner
        assert result.run_dir is not None and result.evaluation is not None
        rows = read_journal(result.run_dir)
        training = [row for row in rows if row["kind"] == "train"]
        figures = result.evaluation.summary()
        losses = {name: [row[name] for row in training] for name in ("policy_loss", "value_loss", "total_loss")}
        return {
            "total_episodes": result.episodes,
            "total_steps": result.steps,
            "training_time": result.seconds,
            "final_avg_reward": figures["mean_return"],
            "final_std_reward": figures["std_return"],
            "best_avg_reward": self.trainer.judge.convergence.best_avg_reward,
            "converged": result.converged,
            "episode_rewards": [x for row in training for x in row["episode_returns"]],
            "episode_lengths": [x for row in training for x in row["episode_lengths"]],
            "eval_rewards": [row["eval_return_mean"] for row in rows if row["kind"] == "evaluation"],
            "losses": {**losses, "entropy_loss": [-row["entropy"] for row in training]},
        }

    def evaluate(self, num_episodes: int = 100) -> dict[str, float]:
        """Let the agent, as it is now, play greedy episodes on environments that training never sees."""
        self._take_over()
        summary = self.trainer.evaluate(num_episodes).summary()
        return {name: summary[ours] for name, ours in SUMMARY_ALIASES.items()}

    def collect_episode(self, number: int = 0) -> dict[str, jax.Array]:
        """Return one exploring episode of the agent as it is now; another `number` plays another one.

        `dones` says where it ended, by termination or by its limit; which of both, `terminated` says.
        """
        self._take_over()
        trainer = self.trainer
        keys = RolloutKeys(*(stream(trainer.settings.seed, f"episode {number} {name}") for name in RolloutKeys._fields))
        arrays, policy = as_arrays(trainer.algorithm), trainer.algorithm.policy(trainer.state.learner)
        longest = trainer.env.max_episode_steps
        assert longest is not None  # CartPole's
        collect = partial(trainer.loop.runner.collect, env=trainer.env, num_steps=longest, threshold=1)
        carry = trainer.state.carry
        steps = trainer.loop.runner.whole(collect)(algorithm=arrays, policy=policy, carry=carry, keys=keys)[1].steps
        rows = np.asarray(steps.valid)[:, 0]
        named = {
            "observations": steps.obs,
            "actions": steps.action,
            "rewards": steps.reward,
            "next_observations": steps.next_obs,
            "dones": steps.terminated | steps.truncated,
            "terminated": steps.terminated,
            "log_probs": steps.extras["log_prob"],
        }
        data = {name: jnp.asarray(np.asarray(array)[rows, 0]) for name, array in named.items()}
        critic = trainer.critic
        return data | ({} if critic is None else {"values": jnp.asarray(critic(data["observations"]))})

    def _take_over(self) -> None:
        """Let the core have what the agent holds: it may have learnt or loaded something of its own meanwhile."""
        self.trainer.learner = self.agent.agent.learner

    def _speaking(self, callback: Callable[[dict[str, Any]], Any] | None) -> Callable[[dict[str, Any]], Any]:
        """Return the callback with a line said every `log_frequency` episodes."""

        def heard(metrics: dict[str, Any]) -> Any:
            if self.log_frequency and metrics["episode"] % self.log_frequency == 0:
                figures = metrics["step_metrics"]
                self._say(f"episode {metrics['episode']}: reward {figures['avg_reward']:.2f}")
            return None if callback is None else callback(metrics)

        return heard if callback is None else wraps(callback)(heard)

    def _say(self, text: str) -> None:
        self.trainer.record.console.say(text)
