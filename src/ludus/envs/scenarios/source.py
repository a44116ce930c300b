"""Drawing from a stored set in training: evenly, by weight, or by difficulty, from the files that are on the device.

What changes from rollout to rollout is `Starts`, which a checkpoint holds; the scenarios themselves are `Stock`, which
is read anew. Within a rollout both are fixed, so every start can be drawn by its own key alone.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.scenarios.base import Scenario, ScenarioEnvironment
from ludus.envs.scenarios.stored import ScenarioSet
from ludus.types import IS_SUCCESS, Array, Tree

Sampling = Literal["uniform", "weight", "difficulty"]
LEAST_WEIGHT = 0.1
"""By difficulty, a scenario in which every episode succeeds is drawn so often, relative to one where none does."""
RATE = 0.3
"""Share by which the latest episode in a scenario counts in the estimate of how often they fail there."""


class Starts(NamedTuple):
    """The state of the drawing of scenarios."""

    identity: Array
    """Of the set: the beginning of its SHA-256."""
    words: Array
    """Of the key that files are chosen by."""
    number: Array
    """How often the files on the device were exchanged."""
    held: Array
    """The numbers of the files that are on the device."""
    next: Array
    """The numbers of those that come next: they are being read already."""
    failure: Array = ()
    """By difficulty: an estimate for each scenario of the set of how often episodes fail there; 1 before the first."""


class Stock(NamedTuple):
    """The scenarios on the device, file after file."""

    scenarios: Scenario
    weight: Array
    """0 for one that cannot be used."""


class Chances(NamedTuple):
    """The probabilities by which the starts of one rollout are drawn."""

    cumulative: Array
    numbers: Array
    """The number of each scenario on the device in the whole set."""
    scenarios: Scenario


@dataclass(frozen=True)
class Source:
    """The training scenarios of a set, and how they are drawn."""

    env: ScenarioEnvironment
    stored: ScenarioSet
    sampling: Sampling
    num_held: int
    """Files on the device at a time."""
    refresh: int
    """Iterations after which they are exchanged for others."""
    threshold: float | None = None
    """By difficulty: the return below which an episode has failed; None where `is_success` in its info says it."""

    @property
    def per_shard(self) -> int:
        """Scenarios in a file; the last may have fewer."""
        return self.stored.manifest.of("training")[0].scenarios

    @property
    def num_shards(self) -> int:
        """Files of the training split."""
        return len(self.stored.manifest.of("training"))

    @property
    def is_whole(self) -> bool:
        """Whether all of the set is on the device, so that nothing is ever exchanged."""
        return self.num_held == self.num_shards

    def chances(self, starts: Starts, stock: Stock) -> Chances:
        """Return what the starts of a rollout are drawn by."""
        numbers = (starts.held[:, None] * self.per_shard + jnp.arange(self.per_shard)).ravel()
        weight = stock.weight
        if self.sampling == "difficulty":
            weight = weight * _weight_of(starts.failure[numbers])
        return Chances(weight.cumsum(), numbers, stock.scenarios)

    def draw(self, chances: Chances, key: jax.Array) -> tuple[jax.Array, Scenario]:
        """Draw a scenario: its number in the set, and itself."""
        reached = jax.random.uniform(key) * chances.cumulative[-1]
        row = jnp.searchsorted(chances.cumulative, reached, side="right")
        return chances.numbers[row], jax.tree.map(lambda x: x[row], chances.scenarios)

    def settle(self, starts: Starts, numbers: Array, ended: Array, episode: Any) -> Starts:
        """Learn from the episodes that ended in a rollout, `[T, B]` each, in which scenarios they fail."""
        if self.sampling != "difficulty":
            return starts
        if self.threshold is None:
            has_failed = ~(episode.info_last[IS_SUCCESS] >= 0.5)
        else:
            has_failed = episode.episode_return < self.threshold
        # Counted in integers: a sum of floats would depend on the order in which a GPU adds them.
        nothing = jnp.zeros(len(starts.failure), jnp.int32)
        played = nothing.at[numbers].add(ended.astype(jnp.int32))
        failed = nothing.at[numbers].add((ended & has_failed).astype(jnp.int32))
        share = failed / jnp.maximum(played, 1)
        kept = jnp.power(1.0 - RATE, played.astype(jnp.float32))
        return starts._replace(failure=share + kept * (starts.failure - share))

    def figures(self, starts: Starts) -> dict[str, Any]:
        """Return what the journal says of it."""
        if self.sampling != "difficulty":
            return {}
        count = self.stored.manifest.count("training")
        return {"scenarios/failure": starts.failure[:count].mean()}

    def first(self, seed: int) -> Starts:
        """Return what it remembers before the first episode."""
        words = np.random.SeedSequence([seed, 0x5CE9A810]).generate_state(2)
        identity = np.frombuffer(bytes.fromhex(self.stored.sha256[:16]), np.uint32)
        is_by_difficulty = self.sampling == "difficulty"
        failure: Tree = np.ones(self.num_shards * self.per_shard, np.float32) if is_by_difficulty else ()
        held, after = (self.chosen(words, number, failure) for number in (0, 1))
        return Starts(identity.copy(), words, np.int32(0), held, after, failure)

    def chosen(self, words: np.ndarray, number: int, failure: Tree) -> np.ndarray:
        """Return the numbers of the files that are on the device after `number` exchanges.

        Pass after pass through the set, each in an order of its own; by difficulty at random, files with scenarios that
        fail more often than others.
        """
        if self.is_whole:
            return np.arange(self.num_shards, dtype=np.int32)
        if self.sampling == "difficulty":
            weight = _weight_of(np.asarray(failure).reshape(self.num_shards, self.per_shard).mean(axis=1))
            generator = np.random.default_rng([*words.tolist(), number])
            order = np.argsort(generator.exponential(size=self.num_shards) / weight, kind="stable")
            return np.sort(order[: self.num_held]).astype(np.int32)
        each_pass = self.num_shards // self.num_held
        order = np.random.default_rng([*words.tolist(), number // each_pass]).permutation(self.num_shards)
        at = number % each_pass * self.num_held
        return np.sort(order[at : at + self.num_held]).astype(np.int32)


def _weight_of(failure: Any) -> Any:
    return LEAST_WEIGHT + (1.0 - LEAST_WEIGHT) * failure
