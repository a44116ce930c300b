"""The result of learning so far: a policy and, if the algorithm has one, a critic."""

from pathlib import Path
from typing import NamedTuple

from ludus.algorithms.critic import FINAL as FINAL_CRITIC
from ludus.algorithms.critic import Critic, save_critic
from ludus.algorithms.policy import FINAL, Policy, save_policy


class Trained(NamedTuple):
    """A policy, and the critic of the same moment."""

    policy: Policy
    critic: Critic | None = None

    def save(self, run: Path) -> None:
        """Write both into a run folder, as what the run ended with."""
        save_policy(self.policy, run / FINAL)
        if self.critic is not None:
            save_critic(self.critic, run / FINAL_CRITIC)
