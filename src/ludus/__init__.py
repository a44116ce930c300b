"""ludus trains reinforcement-learning agents on any environment.

Names are imported when they are first used, so that `ludus --help` need not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ludus.agent import Agent
    from ludus.convergence import ConvergenceOptions
    from ludus.envs.base import Environment
    from ludus.envs.registry import make_env, register_env
    from ludus.evaluation import Evaluation, evaluate
    from ludus.keeping import CheckpointOptions
    from ludus.learning.ppo import PPO
    from ludus.learning.sac import SAC
    from ludus.networks.actor_critic import GRU, MLP, ActorCritic
    from ludus.policy import Policy, load_policy
    from ludus.settings import Settings
    from ludus.tracking.tracker import TrackingOptions
    from ludus.trainer import Trainer
    from ludus.types import LudusError, Masked, Step

__version__ = "0.1.0"

__all__ = [
    "GRU",
    "MLP",
    "PPO",
    "SAC",
    "ActorCritic",
    "Agent",
    "CheckpointOptions",
    "ConvergenceOptions",
    "Environment",
    "Evaluation",
    "LudusError",
    "Masked",
    "Policy",
    "Settings",
    "Step",
    "TrackingOptions",
    "Trainer",
    "evaluate",
    "load_policy",
    "make_env",
    "register_env",
]

_HOMES = {
    "agent": ["Agent"],
    "convergence": ["ConvergenceOptions"],
    "envs.base": ["Environment"],
    "envs.registry": ["make_env", "register_env"],
    "evaluation": ["Evaluation", "evaluate"],
    "keeping": ["CheckpointOptions"],
    "learning.ppo": ["PPO"],
    "learning.sac": ["SAC"],
    "networks.actor_critic": ["GRU", "MLP", "ActorCritic"],
    "policy": ["Policy", "load_policy"],
    "settings": ["Settings"],
    "tracking.tracker": ["TrackingOptions"],
    "trainer": ["Trainer"],
    "types": ["LudusError", "Masked", "Step"],
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"ludus.{module}"), name)
    raise AttributeError(f"module 'ludus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
