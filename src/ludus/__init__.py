"""ludus trains reinforcement-learning agents on any environment."""

from ludus.envs.base import Environment
from ludus.envs.registry import make_env, register_env
from ludus.evaluation import Evaluation, evaluate
from ludus.learning.ppo import PPO
from ludus.networks.actor_critic import GRU, MLP, ActorCritic
from ludus.policy import Policy, load_policy
from ludus.trainer import Trainer
from ludus.types import LudusError

__all__ = [
    "GRU",
    "MLP",
    "PPO",
    "ActorCritic",
    "Environment",
    "Evaluation",
    "LudusError",
    "Policy",
    "Trainer",
    "evaluate",
    "load_policy",
    "make_env",
    "register_env",
]
