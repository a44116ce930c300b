"""The result of learning so far: a policy and, if there are such, a critic and a reward model."""

from pathlib import Path
from typing import NamedTuple

from ludus.algorithms.critic import FINAL as FINAL_CRITIC
from ludus.algorithms.critic import Critic, save_critic
from ludus.algorithms.policy import FINAL, Policy, save_policy
from ludus.algorithms.reward_model import FINAL as FINAL_REWARD
from ludus.algorithms.reward_model import RewardModel, save_reward_model


class Trained(NamedTuple):
    """A policy, and the critic and the reward model of the same moment."""

    policy: Policy
    critic: Critic | None = None
    reward: RewardModel | None = None

    def save(self, run: Path) -> None:
        """Write all into a run folder, as what the run ended with."""
        save_policy(self.policy, run / FINAL)
        if self.critic is not None:
            save_critic(self.critic, run / FINAL_CRITIC)
        if self.reward is not None:
            save_reward_model(self.reward, run / FINAL_REWARD)
