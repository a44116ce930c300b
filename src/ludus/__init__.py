"""ludus trains reinforcement-learning agents on any environment.

Names are imported when they are first used, so that `ludus --help` need not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ludus.algorithms.base import Algorithm, Update
    from ludus.algorithms.bc import BC
    from ludus.algorithms.bc_sac import BCSAC
    from ludus.algorithms.demonstration_reward import DemonstrationReward
    from ludus.algorithms.learned_reward import LearnedReward
    from ludus.algorithms.policy import Policy, load_policy
    from ludus.algorithms.ppo import PPO
    from ludus.algorithms.preference_reward import PreferenceReward
    from ludus.algorithms.registry import register_algorithm
    from ludus.algorithms.regression_reward import RegressionReward
    from ludus.algorithms.reward_model import RewardModel, load_reward_model
    from ludus.algorithms.sac import SAC
    from ludus.envs.base import Environment
    from ludus.envs.registry import make_env, register_env
    from ludus.networks.actor_critic import ActorCritic
    from ludus.networks.builders import GRU, MLP, Transformer
    from ludus.runs.storage.options import StorageOptions
    from ludus.runs.trackers.base import TrackingOptions
    from ludus.runs.trackers.registry import register_tracker
    from ludus.runtime.demonstration_file import read_demonstrations, write_demonstrations
    from ludus.runtime.demonstrations import Demonstrations
    from ludus.training.agent import Agent
    from ludus.training.callback import Callback
    from ludus.training.checkpoint_writer import CheckpointOptions
    from ludus.training.evaluation import Evaluation, evaluate
    from ludus.training.record_demonstrations import record_demonstrations
    from ludus.training.settings import Settings
    from ludus.training.stopping import ConvergenceOptions
    from ludus.training.trainer import Trainer
    from ludus.types import LudusError, Masked, Step

__version__ = "0.1.0"

__all__ = [
    "BC",
    "BCSAC",
    "GRU",
    "MLP",
    "PPO",
    "SAC",
    "ActorCritic",
    "Agent",
    "Algorithm",
    "Callback",
    "CheckpointOptions",
    "ConvergenceOptions",
    "DemonstrationReward",
    "Demonstrations",
    "Environment",
    "Evaluation",
    "LearnedReward",
    "LudusError",
    "Masked",
    "Policy",
    "PreferenceReward",
    "RegressionReward",
    "RewardModel",
    "Settings",
    "Step",
    "StorageOptions",
    "TrackingOptions",
    "Trainer",
    "Transformer",
    "Update",
    "evaluate",
    "load_policy",
    "load_reward_model",
    "make_env",
    "read_demonstrations",
    "record_demonstrations",
    "register_algorithm",
    "register_env",
    "register_tracker",
    "write_demonstrations",
]

_HOMES = {
    "algorithms.base": ["Algorithm", "Update"],
    "algorithms.bc": ["BC"],
    "algorithms.bc_sac": ["BCSAC"],
    "algorithms.demonstration_reward": ["DemonstrationReward"],
    "algorithms.learned_reward": ["LearnedReward"],
    "algorithms.policy": ["Policy", "load_policy"],
    "algorithms.ppo": ["PPO"],
    "algorithms.preference_reward": ["PreferenceReward"],
    "algorithms.registry": ["register_algorithm"],
    "algorithms.regression_reward": ["RegressionReward"],
    "algorithms.reward_model": ["RewardModel", "load_reward_model"],
    "algorithms.sac": ["SAC"],
    "envs.base": ["Environment"],
    "envs.registry": ["make_env", "register_env"],
    "networks.actor_critic": ["ActorCritic"],
    "networks.builders": ["GRU", "MLP", "Transformer"],
    "runs.storage.options": ["StorageOptions"],
    "runs.trackers.base": ["TrackingOptions"],
    "runs.trackers.registry": ["register_tracker"],
    "runtime.demonstration_file": ["read_demonstrations", "write_demonstrations"],
    "runtime.demonstrations": ["Demonstrations"],
    "training.agent": ["Agent"],
    "training.callback": ["Callback"],
    "training.checkpoint_writer": ["CheckpointOptions"],
    "training.evaluation": ["Evaluation", "evaluate"],
    "training.record_demonstrations": ["record_demonstrations"],
    "training.settings": ["Settings"],
    "training.stopping": ["ConvergenceOptions"],
    "training.trainer": ["Trainer"],
    "types": ["LudusError", "Masked", "Step"],
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"ludus.{module}"), name)
    raise AttributeError(f"module 'ludus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
