"""Rewards from demonstrations, learnt against the policy: its steps are told from those of the demonstrations.

A discriminator D = sigmoid(f) of steps is fitted to both (Ho and Ermon 2016, arXiv 1606.03476), with a penalty on its
slope between them, and f is the reward: log D - log(1 - D), as Fu et al. (2018, arXiv 1710.11248) have it. Where
`reward.inputs=[obs]`, it depends on states alone, and can be carried over to other dynamics.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.hyperparameters import static, traced
from ludus.algorithms.losses import discrimination
from ludus.algorithms.reward_source import Fitted, Lesson, RewardSource, Taught
from ludus.algorithms.reward_state import RewardState, measured
from ludus.algorithms.segments import Segments, segments_of
from ludus.networks.network import Leaves
from ludus.runtime.demonstration_file import read_demonstrations
from ludus.runtime.demonstrations import Demonstrations, check_spaces
from ludus.types import LudusError, Spec

NEWEST = 4
"""What the policy does is seen in the newest of so many parts of the pool."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class DemonstrationReward(RewardSource):
    """Hyperparameters of rewards from demonstrations."""

    slope_penalty: float = traced(1.0, "weight of the squared slope of f between demonstrations and the policy", 0.0)
    fit_frequency: int = static(1, "iterations between fits", 1)
    demonstrations: str | None = static(
        None, "a file or folder of demonstrations, as of ludus record; in Python ludus.Demonstrations too"
    )

    def check(self) -> None:
        """Refuse to learn from nothing."""
        given = self.demonstrations
        if given is not None and not isinstance(given, str | Demonstrations):
            raise LudusError(f"reward.demonstrations={given!r}: must be a file, or ludus.Demonstrations")

    def for_acting(self) -> "DemonstrationReward":
        """Return the source without files."""
        return replace(self, model=None, demonstrations=None)

    def validate(self, spec: Spec, rollout_length: int) -> None:
        """Refuse demonstrations of other spaces, and none."""
        RewardSource.validate(self, spec, rollout_length)
        if self.model is None:
            self._segments(spec)

    def data(self, spec: Spec) -> Any:
        """Return the demonstrations as segments."""
        return () if self.model is not None else jax.device_put(self._segments(spec))

    def _segments(self, spec: Spec) -> Segments:
        given = self.demonstrations
        if given is None:
            raise LudusError("reward.demonstrations: required, but not given (a file that ludus record wrote)")
        try:
            read = read_demonstrations(given) if isinstance(given, str) else given
            check_spaces(read, spec.observation_space, spec.action_space)
            made = segments_of(read, self.segment_length)
        except LudusError as error:
            told = str(error).removeprefix(f"{given}: ").removeprefix("demonstrations: ")
            raise LudusError(f"reward.demonstrations={given}: {told}") from error
        if len(made.reward) < self.held_out:
            raise LudusError(
                f"reward.demonstrations={given}: make {len(made.reward)} segments of {self.segment_length} steps, and "
                f"reward.held_out={self.held_out} asks for so many at least"
            )
        return made

    def learn(self, fitted: Fitted, data: Segments, lesson: Lesson, key: jax.Array) -> Taught:
        """Tell demonstrations and policy apart, with what is new of the policy as its examiner first."""
        is_due = (lesson.number % self.fit_frequency == 0) & (lesson.pool.total > 0)
        accuracy = self._accuracy(fitted.model, data, lesson)
        fitted, loss = jax.lax.cond(is_due, self._fit, self._skip, fitted, data, lesson, key)
        return Taught(fitted, data, is_due, {"reward_loss": loss, "reward_accuracy": accuracy})

    def _accuracy(self, model: RewardState, data: Segments, lesson: Lesson) -> jax.Array:
        """Return the share of steps that are told right, of demonstrations held out and of segments not seen before."""
        count = len(data.reward)
        held = data.rows(np.arange(self.held_out - 1, count, self.held_out))
        new, is_there = lesson.new
        right = (model.of_segments(held).mean(axis=0) > 0).mean()
        found = (model.of_segments(new).mean(axis=0) < 0).mean(axis=1)
        share = (found * is_there).sum() / jnp.maximum(is_there.sum(), 1)
        return jnp.where(is_there.any(), 0.5 * (right + share), jnp.nan)

    def _fit(self, fitted: Fitted, data: Segments, lesson: Lesson, key: jax.Array) -> tuple[Fitted, jax.Array]:
        shown = np.delete(np.arange(len(data.reward)), np.s_[self.held_out - 1 :: self.held_out])
        shape, recent = (self.members, self.batch_size), max(1, lesson.pool.size // NEWEST)

        def draw(key: jax.Array) -> tuple[Segments, Segments, jax.Array]:
            keys = jax.random.split(key, 3)
            theirs = data.rows(jnp.asarray(shown)[jax.random.randint(keys[0], shape, 0, len(shown))])
            ours = lesson.pool.segments.rows(lesson.pool.drawn(keys[1], shape, recent))
            return theirs, ours, jax.random.uniform(keys[2], (*shape, 1, 1))

        def loss(parameters: Leaves, batch: tuple[Segments, Segments, jax.Array]) -> jax.Array:
            theirs, ours, share = batch
            return self._loss(fitted.model, parameters, theirs, ours, share)

        fitted, mean = self.descend(fitted, loss, draw, key)
        both = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), data, lesson.pool.segments)
        is_filled, _ = lesson.pool.order()
        halves = jnp.full(len(data.reward), 1.0 / len(data.reward)), is_filled / jnp.maximum(is_filled.sum(), 1)
        said = fitted.model.of_segments(both)
        weight = jnp.broadcast_to(jnp.concatenate(halves)[:, None], said.shape[1:])
        return fitted._replace(model=measured(fitted.model, said, weight, self.is_centred)), mean

    def _loss(
        self, model: RewardState, parameters: Leaves, theirs: Segments, ours: Segments, share: jax.Array
    ) -> jax.Array:
        """Cross entropy of both halves, and the mean squared slope of f at points between them."""
        module = model.network.merge(parameters)
        count, length = ours.reward.shape
        ended, start = jnp.zeros((length, count), bool), module.initial_memory(count)
        seen, shown = (module.seen(model.vectors(segments.judged())) for segments in (ours, theirs))  # [L, n, size]

        def f(vectors: jax.Array) -> jax.Array:
            return module.judge(start, vectors, ended)[1]

        between = jax.lax.stop_gradient(share.swapaxes(0, 1) * shown + (1.0 - share.swapaxes(0, 1)) * seen)
        slope = jax.grad(lambda x: f(x).sum())(between)
        losses = discrimination(f(shown), 1.0).mean() + discrimination(f(seen), 0.0).mean()
        return losses + self.slope_penalty * jnp.square(slope).sum(axis=-1).mean()

    def _skip(self, fitted: Fitted, data: Segments, lesson: Lesson, key: jax.Array) -> tuple[Fitted, jax.Array]:
        return fitted, jnp.asarray(jnp.nan)
