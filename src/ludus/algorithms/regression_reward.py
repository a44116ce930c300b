"""Rewards from returns of segments: a model whose rewards, summed over a segment, predict the return it was given."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ludus.algorithms.hyperparameters import traced
from ludus.algorithms.labelled import Labelled
from ludus.algorithms.labelled_reward import LabelledReward, segment_sums
from ludus.algorithms.normalize import explained_variance
from ludus.algorithms.reward_state import UNTRAINED, RewardState
from ludus.algorithms.segments import Pool


class Unit(NamedTuple):
    """Mean and deviation of the returns that are learnt from."""

    mean: jax.Array
    deviation: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class RegressionReward(LabelledReward):
    """Hyperparameters of rewards from returns; they are in the units of the returns."""

    figures = ("reward_loss", "reward_explained_variance")

    label_noise: float = traced(0.0, "deviation of the noise in the returns that a synthetic labeller tells", 0.0)

    def dispute(self, model: RewardState, sums: jax.Array) -> jax.Array:
        """Return the variance over members of the return that they predict."""
        return (sums[..., 0] / jnp.where(model.scale < UNTRAINED, model.scale, 1.0)[:, None]).var(axis=0)

    def answer(self, returns: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tell the return, with noise."""
        noise = self.label_noise * jax.random.normal(key, (len(returns),))
        return returns[:, 0] + noise, jnp.full(len(returns), True)

    def unit(self, data: Labelled, weights: jax.Array) -> Unit:
        """Return mean and deviation of the returns."""
        total = jnp.maximum(weights.sum(), 1.0)
        mean = (data.label * weights).sum() / total
        return Unit(mean, jnp.sqrt((jnp.square(data.label - mean) * weights).sum() / total) + 1e-6)

    def loss(self, sums: jax.Array, label: jax.Array, unit: Unit) -> jax.Array:
        """Return half the squared error of the mean over steps, where returns have mean 0 and deviation 1."""
        return 0.5 * jnp.square(sums[:, 0] / self.segment_length - (label - unit.mean) / unit.deviation)

    def settled(
        self, model: RewardState, data: Labelled, weights: jax.Array, pool: Pool
    ) -> tuple[RewardState, dict[str, jax.Array]]:
        """Bring the model to the units of the returns; tell how much of those held out it explains."""
        unit, ones = self.unit(data, weights), jnp.ones(self.members)
        # f is for each step what the return is for a segment: r = (mean + deviation f) / L.
        scale = self.segment_length / unit.deviation
        model = replace(model, scale=scale * ones, offset=-unit.mean / unit.deviation * ones)
        held = data.held_out(self.held_out)
        means = segment_sums(model, held.segments)[..., 0] / self.segment_length  # [members, n]
        predicted = self.segment_length * model.normalized(means).mean(axis=0)
        figure = explained_variance(predicted, held.label, held.is_answered)
        return model, {"reward_explained_variance": jnp.where(held.is_answered.any(), figure, jnp.nan)}
