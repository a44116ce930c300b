"""Labels of segments: a budget of questions, asked where the members of a model disagree, and the answers.

A question is about one segment (its return) or two of equal length (which is better). Questions that are held out are
drawn by chance alone, so that they judge the model fairly.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.segments import Pool, Segments, blank_segments, example
from ludus.types import Array, Spec


class Labelled(NamedTuple):
    """Questions in the order in which they were asked, `[budget, ...]`, and their answers."""

    segments: Segments
    """What each is about `[budget, parts]`."""
    label: Any
    """The answer to each `[budget]`; anything where there is none."""
    is_answered: Any
    """Whether there is one."""
    asked: Any
    """How many questions were asked."""
    learnt: Any
    """How many answers there were when the model was last fitted."""

    @property
    def budget(self) -> int:
        """Questions that may be asked."""
        return len(self.label)

    def weights(self, every: int) -> jax.Array:
        """Return 1 for questions to learn from, and 0 for others."""
        return (self.is_answered & ~is_held_out(jnp.arange(self.budget), every)).astype(jnp.float32)

    def held_out(self, every: int) -> "Labelled":
        """Return those that are held out."""
        rows = np.arange(every - 1, self.budget, every)
        return Labelled(self.segments.rows(rows), self.label[rows], self.is_answered[rows], self.asked, self.learnt)


def is_held_out(number: Array, every: int) -> Any:
    """Return whether the question of some number is never learnt from."""
    return number % every == every - 1


def nothing_asked(budget: int, parts: int, length: int, spec: Spec) -> Labelled:
    """Return a budget of which nothing is spent."""
    obs, action = example(spec.observation_space), example(spec.action_space)
    segments = blank_segments((budget, parts), length, obs, action)
    blank = np.zeros(budget, np.float32), np.zeros(budget, bool), np.int32(0), np.int32(0)
    return Labelled(segments, *jax.device_put(blank))


class Round(NamedTuple):
    """The terms of one round of questions."""

    due: Array
    """How many questions should have been asked by now."""
    parts: int
    """Segments in each question."""
    most: int
    """Questions that can be asked in a round."""
    candidates: int
    """Candidates for each question, of which the most disputed is asked."""
    held_out: int
    """Of so many questions one is held out."""


def ask(
    data: Labelled,
    pool: Pool,
    terms: Round,
    disputed: Callable[[jax.Array], jax.Array],
    answer: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]],
    key: jax.Array,
) -> Labelled:
    """Ask as many questions as are due.

    Args:
        data: questions so far.
        pool: the segments to ask about.
        terms: how many and how.
        disputed: how far the members disagree about candidates, given by slots of the pool `[n, parts]`.
        answer: answers of questions, given likewise, and whether there are any already; the second argument is a key.
        key: decides all that is left to chance.
    """
    draw_key, answer_key = jax.random.split(key)
    candidates = pool.drawn(draw_key, (terms.most * terms.candidates, terms.parts))
    is_sound = jnp.ones(len(candidates), bool) if terms.parts == 1 else candidates[:, 0] != candidates[:, 1]
    worth = jnp.where(is_sound, disputed(candidates), -1.0)
    _, best = jax.lax.top_k(worth, terms.most)
    by_chance = jnp.argsort(~is_sound, stable=True)[: terms.most]

    rank = jnp.arange(terms.most)
    number = data.asked + rank
    chosen = candidates[jnp.where(is_held_out(number, terms.held_out), by_chance, best)]
    count = jnp.clip(jnp.minimum(terms.due, data.budget) - data.asked, 0, terms.most)
    count = jnp.where(pool.total >= terms.parts, count, 0).astype(jnp.int32)
    rows = jnp.where(rank < count, number, data.budget)  # out of range: not stored

    label, is_answered = answer(chosen, answer_key)
    segments = jax.tree.map(lambda x, y: x.at[rows].set(y[chosen], mode="drop"), data.segments, pool.segments)
    return Labelled(
        segments,
        data.label.at[rows].set(label, mode="drop"),
        data.is_answered.at[rows].set(is_answered, mode="drop"),
        data.asked + count,
        data.learnt,
    )


def drawn(weights: jax.Array, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return indices drawn by weights that are 0 or 1."""
    sums = jnp.cumsum(weights)
    return jnp.searchsorted(sums, jnp.floor(jax.random.uniform(key, shape) * sums[-1]) + 0.5)
