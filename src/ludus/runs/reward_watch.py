"""Looks at the alarm of learned rewards as it is journalled, and says once that it went off."""

from typing import Any


class RewardWatch:
    """Tells of a reward that may be hacked."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._has_spoken = False

    def saw(self, row: dict[str, Any]) -> str | None:
        """Take in a row of the journal; return what there is to say, once in a process."""
        if self._has_spoken or not row.get("reward_alarm"):
            return None
        self._has_spoken = True
        return (
            f"warning: the learned reward rises ({row.get('reward_trend', 0.0):+.1f} standard errors) and what it "
            f"stands for does not ({row.get('true_reward_trend', 0.0):+.1f}), in iteration {row['iteration']}: the "
            "policy may have found a fault of the reward model; look at its episodes, ask for more labels, or give "
            "reward.disagreement_coef or algorithm.kl_coef"
        )
