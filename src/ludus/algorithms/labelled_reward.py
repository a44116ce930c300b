"""Rewards that are learnt from labels of segments: a budget of questions, and a fit whenever there are new answers."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ludus.algorithms.hyperparameters import static, traced
from ludus.algorithms.labelled import Labelled, Round, ask, drawn, nothing_asked
from ludus.algorithms.reward_source import Fitted, Lesson, RewardSource, Taught
from ludus.algorithms.reward_state import RewardState
from ludus.algorithms.segments import Pool, Segments
from ludus.networks.network import Leaves
from ludus.types import Spec, Tree


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class LabelledReward(RewardSource):
    """Hyperparameters of rewards from labels, and what the ways to learn from them have in common."""

    parts: ClassVar[int] = 1
    """Segments that a question is about."""
    figures: ClassVar[tuple[str, ...]] = ("reward_loss", "reward_accuracy")
    """What a fit reports."""

    first_labels: float = traced(0.25, "share of the labels that are asked for at once", 0.0, 1.0)
    labels_until: float = traced(0.5, "share of the run's budget by which all labels are asked for", 0.0, 1.0)
    labels: int = static(1000, "the budget: labels that may be asked for", 2)
    queries: int = static(64, "questions that can be asked in one iteration", 1)
    candidates: int = static(8, "candidates drawn for each of those, of which the most disputed is asked about", 1)

    def data(self, spec: Spec) -> Any:
        """Return a budget of which nothing is spent; nothing where the model is given."""
        return nothing_asked(self.labels, self.parts, self.segment_length, spec) if self.model is None else ()

    def learn(self, fitted: Fitted, data: Labelled, lesson: Lesson, key: jax.Array) -> Taught:
        """Ask about what the members disagree on, and fit the model where there are new answers."""
        ask_key, fit_key = jax.random.split(key)
        share = jnp.clip(lesson.progress / jnp.maximum(self.labels_until, 1e-6), 0.0, 1.0)
        due = jnp.ceil(self.labels * (self.first_labels + (1.0 - self.first_labels) * share)).astype(jnp.int32)
        terms = Round(due, self.parts, self.queries, self.candidates, self.held_out)
        data = self._ask(fitted.model, data, lesson.pool, terms, ask_key)
        answers = data.is_answered.sum(dtype=jnp.int32)
        is_new = (answers > data.learnt) & (data.weights(self.held_out).sum() > 0)
        fitted, metrics = jax.lax.cond(is_new, self.fit, self._skip, fitted, data, lesson.pool, fit_key)
        data = data._replace(learnt=jnp.where(is_new, answers, data.learnt))
        return Taught(fitted, data, is_new, {**metrics, "labels": answers.astype(jnp.float32)})

    def _ask(self, model: RewardState, data: Labelled, pool: Pool, terms: Round, key: jax.Array) -> Labelled:
        said = model.of_segments(pool.segments).sum(axis=-1)  # [members, P]
        told = pool.segments.reward.sum(axis=-1)

        def disputed(slots: jax.Array) -> jax.Array:
            return self.dispute(model, said[:, slots])

        def answer(slots: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            return self.answer(told[slots], key)

        return jax.lax.cond(
            data.asked < jnp.minimum(terms.due, data.budget),
            lambda: ask(data, pool, terms, disputed, answer, key),
            lambda: data,
        )

    def fit(self, fitted: Fitted, data: Labelled, pool: Pool, key: jax.Array) -> tuple[Fitted, dict[str, jax.Array]]:
        """Fit the model to the answers there are, and judge it by those held out."""
        weights = data.weights(self.held_out)
        scale = self.unit(data, weights)

        def draw(key: jax.Array) -> tuple[Segments, jax.Array]:
            rows = drawn(weights, key, (self.members, self.batch_size))
            return data.segments.rows(rows), data.label[rows]

        def loss(parameters: Leaves, batch: tuple[Segments, jax.Array]) -> jax.Array:
            segments, label = batch
            return self.loss(_of_member(fitted.model, parameters, segments), label, scale).mean()

        fitted, mean = self.descend(fitted, loss, draw, key)
        model, figures = self.settled(fitted.model, data, weights, pool)
        return fitted._replace(model=model), {"reward_loss": mean, **figures}

    def _skip(self, fitted: Fitted, data: Labelled, pool: Pool, key: jax.Array) -> tuple[Fitted, dict[str, jax.Array]]:
        return fitted, dict.fromkeys(self.figures, jnp.asarray(jnp.nan))

    def dispute(self, model: RewardState, sums: jax.Array) -> jax.Array:
        """Return how far members disagree about questions, of whose segments they say `[members, n, parts]`."""
        raise NotImplementedError

    def answer(self, returns: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return answers to questions about segments of these returns `[n, parts]`, and whether there are any yet."""
        raise NotImplementedError

    def unit(self, data: Labelled, weights: jax.Array) -> Tree:
        """Return the units in which answers are learnt."""
        return ()

    def loss(self, sums: jax.Array, label: jax.Array, unit: Tree) -> jax.Array:
        """Return the loss of each answer, by what a member says of the segments `[n, parts]`."""
        raise NotImplementedError

    def settled(
        self, model: RewardState, data: Labelled, weights: jax.Array, pool: Pool
    ) -> tuple[RewardState, dict[str, jax.Array]]:
        """Return a model that was just fitted, normalised and judged by the answers that were held out."""
        raise NotImplementedError


def segment_sums(model: RewardState, segments: Segments) -> jax.Array:
    """Return what each member says of segments `[n, parts, L]`, summed over their steps: `[members, n, parts]`."""
    shape = segments.reward.shape[:2]
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), segments)  # [n, parts, ...] -> [n * parts, ...]
    return model.of_segments(flat).sum(axis=-1).reshape(-1, *shape)


def _of_member(model: RewardState, parameters: Leaves, segments: Segments) -> jax.Array:
    alone = replace(model, parameters=jax.tree.map(lambda x: x[None], parameters))
    return segment_sums(alone, segments)[0]
