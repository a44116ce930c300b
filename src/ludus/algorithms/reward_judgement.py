"""Judging a reward model by preferences that it has not learnt from: accuracy, temperature, calibration error."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.labelled import Labelled
from ludus.algorithms.labelled_reward import segment_sums
from ludus.algorithms.losses import bradley_terry
from ludus.algorithms.reward_state import RewardState

TEMPERATURES = np.geomspace(0.02, 50.0, 61).astype(np.float32)
"""Where the temperature is looked for."""
BINS = 10
"""For a calibration error, predictions are put into so many bins."""


class Judgement(NamedTuple):
    """The worth of a model by preferences."""

    accuracy: jax.Array
    """Share of those with a winner that the model puts the same way round; NaN if there are none."""
    temperature: jax.Array
    """Differences of normalised rewards are divided by it to be log-odds: the likeliest one."""
    calibration_error: jax.Array
    """Mean distance between predicted probability and observed share, over bins of the prediction."""


def differences(model: RewardState, data: Labelled) -> jax.Array:
    """Return by how much the first segment of each pair is worth more, in normalised rewards."""
    sums = segment_sums(model, data.segments) / model.scale[:, None, None]  # offsets cancel
    return (sums[..., 0] - sums[..., 1]).mean(axis=0)


def counted(label: jax.Array, is_answered: jax.Array) -> jax.Array:
    """Return 1 for pairs with a winner, and 0 for others."""
    return (is_answered & (label != 0.5)).astype(jnp.float32)


def judgement(model: RewardState, data: Labelled) -> Judgement:
    """Judge a model by answered pairs."""
    apart, answered = differences(model, data), data.is_answered.astype(jnp.float32)
    winners = counted(data.label, data.is_answered)
    is_right = (apart > 0) == (data.label > 0.5)
    count = winners.sum()
    accuracy = jnp.where(count > 0, (is_right * winners).sum() / jnp.maximum(count, 1.0), jnp.nan)
    likely = (bradley_terry(apart / TEMPERATURES[:, None], data.label) * answered).sum(axis=1)
    temperature = jnp.where(answered.sum() > 0, jnp.asarray(TEMPERATURES)[jnp.argmin(likely)], model.temperature)
    error = calibration_error(jax.nn.sigmoid(apart / temperature), data.label, answered)
    return Judgement(accuracy, temperature, error)


def calibration_error(predicted: jax.Array, label: jax.Array, weight: jax.Array) -> jax.Array:
    """Return the expected calibration error (Naeini et al. 2015); NaN if nothing has a weight."""
    place = jnp.clip((predicted * BINS).astype(jnp.int32), 0, BINS - 1)
    of_bin = (place[:, None] == jnp.arange(BINS)) * weight[:, None]  # [n, bins]
    gap = jnp.abs(((predicted - label)[:, None] * of_bin).sum(axis=0)).sum()
    return jnp.where(weight.sum() > 0, gap / jnp.maximum(weight.sum(), 1.0), jnp.nan)


def halves(model: RewardState, data: Labelled) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the accuracy on the older and on the newer half of the pairs with a winner, and the newer's number."""
    winners = counted(data.label, data.is_answered)
    is_right = ((differences(model, data) > 0) == (data.label > 0.5)).astype(jnp.float32)
    is_newer = jnp.cumsum(winners) > winners.sum() / 2
    older, newer = (winners * part for part in (~is_newer, is_newer))
    shares = [(is_right * part).sum() / jnp.maximum(part.sum(), 1.0) for part in (older, newer)]
    return shares[0], shares[1], newer.sum()
