"""A reward model from preferences that are there already, and what it is worth: without an environment or a run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ludus.algorithms.hyperparameters import as_arrays, at
from ludus.algorithms.labelled import Labelled
from ludus.algorithms.normalize import update_statistics
from ludus.algorithms.preference_reward import PreferenceReward
from ludus.algorithms.reward_judgement import judgement
from ludus.algorithms.reward_model import RewardModel
from ludus.algorithms.reward_source import Fitted
from ludus.algorithms.segments import Pool, Segments, segments_of
from ludus.runtime.demonstrations import Demonstrations
from ludus.runtime.preference_file import Preferences
from ludus.runtime.rng import stream
from ludus.types import LudusError, Spec, Tree


def whole_segments(demonstrations: Demonstrations) -> Segments:
    """Return the episodes of demonstrations as segments; LudusError if they are not all of one length."""
    lengths = demonstrations.lengths
    if (unlike := np.flatnonzero(lengths != lengths[0])).size:
        raise LudusError(
            f"segments 0 and {unlike[0]} have {lengths[0]} and {lengths[unlike[0]]} steps; all must have as many, "
            "since sums over them are compared"
        )
    return segments_of(demonstrations, int(lengths[0]))


def labelled(segments: Segments, preferences: Preferences, order: np.ndarray | None = None) -> Labelled:
    """Return preferences as questions that are answered."""
    order = np.arange(len(preferences.label)) if order is None else order
    pairs = np.stack([preferences.first, preferences.second], axis=1)[order]
    count = np.int32(len(order))
    made = Labelled(segments.rows(pairs), preferences.label[order], np.ones(len(order), bool), count, np.int32(0))
    return jax.device_put(made)


def fit_preferences(
    source: PreferenceReward, demonstrations: Demonstrations, preferences: Preferences, seed: int = 0
) -> tuple[RewardModel, dict[str, float]]:
    """Return a model that was fitted to preferences, and its figures on those held out.

    Args:
        source: how it is learnt; `fit_steps` gradient steps are made in all.
        demonstrations: the segments: episodes of one length.
        preferences: between them.
        seed: decides the first parameters, what is held out, and the minibatches.
    """
    spec = Spec(demonstrations.observation_space, demonstrations.action_space, 1)
    segments = whole_segments(demonstrations)
    source = replace(source, segment_length=segments.reward.shape[1], model=None)
    source.validate(spec, source.segment_length)
    if len(preferences.label) < source.held_out:
        raise LudusError(
            f"preferences: there are {len(preferences.label)}, and reward.held_out={source.held_out} asks for so many"
        )
    order = np.random.default_rng(seed).permutation(len(preferences.label))
    data = labelled(segments, preferences, order)
    pool = Pool(jax.device_put(segments), jax.device_put(np.int32(len(segments.reward))))
    arrays = at(as_arrays(source), np.float32(0))
    fitted = source.init(stream(seed, "init"), spec)
    fitted, figures = _fit(arrays, fitted, data, pool, stream(seed, "update"))
    model = RewardModel(arrays, fitted.model, spec, demonstrations.env)  # ty: ignore[invalid-argument-type]
    return model, {name: float(value) for name, value in figures.items()}


@jax.jit
def _fit(
    source: PreferenceReward, fitted: Fitted, data: Labelled, pool: Pool, key: jax.Array
) -> tuple[Fitted, dict[str, jax.Array]]:
    shown = jax.tree.map(lambda x: x[:, :-1], pool.segments.obs)
    statistics = update_statistics(fitted.model.observations, shown)
    fitted = fitted._replace(model=replace(fitted.model, observations=statistics))
    return source.fit(fitted, data, pool, key)


def evaluate_reward(
    model: RewardModel, demonstrations: Demonstrations, preferences: Preferences | None = None
) -> dict[str, Any]:
    """Return what segments, and preferences between them, say of a model.

    `correlation` is that of learned and true returns of segments, absent where all true ones are equal.
    """
    segments = whole_segments(demonstrations)
    figures: dict[str, Any] = {"segments": len(segments.reward)}
    learned, true = model.of_segments(segments).sum(axis=1), segments.reward.sum(axis=1, dtype=np.float64)
    if np.ptp(true) > 0 and np.ptp(learned) > 0:
        figures["correlation"] = float(np.corrcoef(learned, true)[0, 1])
    if preferences is not None:
        judged = _judgement(model.state, labelled(segments, preferences))
        error = float(judged.calibration_error)
        figures |= {
            "preferences": len(preferences.label),
            "accuracy": float(judged.accuracy),
            "calibration_error": error,
        }
    return figures


_judgement: Callable[[Tree, Labelled], Any] = jax.jit(judgement)
