"""Rewards from preferences between segments of equal length (Christiano et al. 2017, arXiv 1706.03741).

The answers come from a labeller: a synthetic one that compares the environment's own rewards, or a person, who is asked
by files in the run folder. How preferences follow from rewards is the model of Bradley and Terry.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from ludus.algorithms.hyperparameters import static, traced
from ludus.algorithms.labelled import Labelled
from ludus.algorithms.labelled_reward import LabelledReward
from ludus.algorithms.losses import bradley_terry
from ludus.algorithms.reward_judgement import halves, judgement
from ludus.algorithms.reward_state import UNTRAINED, RewardState
from ludus.algorithms.segments import Pool
from ludus.types import LudusError, Tree

LABELLERS = ("synthetic", "file")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class PreferenceReward(LabelledReward):
    """Hyperparameters of rewards from preferences."""

    is_centred = True
    parts = 2
    figures = ("reward_loss", "reward_accuracy", "reward_calibration_error", "reward_temperature")

    label_error: float = traced(0.0, "share of a synthetic labeller's answers that are turned round", 0.0, 1.0)
    label_temperature: float = traced(
        0.0, "a synthetic labeller decides by chance where returns differ by less than about this", 0.0
    )
    assumed_error: float | None = traced(
        None, "share of answers that are taken to be given by a fair coin; null: none", 0.0, 0.9
    )
    labeller: str = static("synthetic", "who answers: synthetic (from the true rewards) or file (in the run folder)")

    def check(self) -> None:
        """Refuse labellers that there are not."""
        if self.labeller not in LABELLERS:
            raise LudusError(f"reward.labeller={self.labeller}: must be {' or '.join(LABELLERS)}")

    def dispute(self, model: RewardState, sums: jax.Array) -> jax.Array:
        """Return the variance over members of the probability that the first is preferred."""
        scaled = sums / jnp.where(model.scale < UNTRAINED, model.scale, 1.0)[:, None, None]
        return jax.nn.sigmoid((scaled[..., 0] - scaled[..., 1]) / model.temperature).var(axis=0)

    def answer(self, returns: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Prefer the segment of the greater return, with the faults that the labeller is given."""
        is_answered = jnp.full(len(returns), self.labeller == "synthetic")
        difference = returns[:, 0] - returns[:, 1]
        chance_key, error_key = jax.random.split(key)
        first = jax.nn.sigmoid(difference / jnp.maximum(self.label_temperature, 1e-9))
        drawn = jax.random.uniform(chance_key, difference.shape) < first
        label = jnp.where(self.label_temperature > 0, drawn.astype(jnp.float32), jnp.heaviside(difference, 0.5))
        is_wrong = jax.random.uniform(error_key, difference.shape) < self.label_error
        return jnp.where(is_wrong, 1.0 - label, label), is_answered

    def loss(self, sums: jax.Array, label: jax.Array, unit: Tree) -> jax.Array:
        """Return the cross entropy of answers."""
        return bradley_terry(sums[:, 0] - sums[:, 1], label, self.assumed_error)

    def settled(
        self, model: RewardState, data: Labelled, weights: jax.Array, pool: Pool
    ) -> tuple[RewardState, dict[str, jax.Array]]:
        """Normalise over the pool; find the temperature, accuracy and calibration error on what was held out."""
        model = self.measured(model, pool)
        judged = judgement(model, data.held_out(self.held_out))
        figures = {
            "reward_accuracy": judged.accuracy,
            "reward_calibration_error": judged.calibration_error,
            "reward_temperature": judged.temperature,
        }
        return replace(model, temperature=judged.temperature), figures

    def agreement(self, model: RewardState, data: Labelled | tuple[()]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the accuracy on the older and the newer half of the answers that were held out."""
        if not isinstance(data, Labelled):
            return super().agreement(model, data)
        return halves(model, data.held_out(self.held_out))
