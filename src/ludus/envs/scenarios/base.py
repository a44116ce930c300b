"""The protocol of environments whose every episode is played in a scenario: a road with its traffic, a maze, a physics.

A scenario is a pytree of arrays whose shapes are always the same. Training draws scenarios without end, generated on
the fly or taken from a stored set; evaluation has a fixed set of its own, and episode `i` of an evaluation is played in
scenario `i` of it. The two differ by construction: `generate` is told which it is for.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias

import jax
import jax.numpy as jnp

from ludus.envs.base import Environment, Observation, State
from ludus.types import Array, Tree

Split = Literal["training", "evaluation"]
Scenario: TypeAlias = Tree
"""Dicts of arrays, maybe within each other: what stays as it is for a whole episode."""
Parameters: TypeAlias = Mapping[str, Array]
"""What a curriculum can lead, by name: one number each."""
MOST_TRIES = 64
"""So often a scenario is generated anew that cannot be used, before the last one is taken as it is."""


class ScenarioEnvironment(Environment):
    """One simulator as pure functions, whose episodes begin in a scenario: subclass it as a frozen dataclass.

    Needed are the two spaces, `generate`, `begin` and `step`. The state holds whatever `step` needs of the scenario;
    parts of it that `step` returns as they were cost nothing.
    """

    parameters: ClassVar[Mapping[str, float]] = {}
    """The names that a curriculum can lead, such as `difficulty`, and the values that hold where none leads them: those
    of the full task, at which evaluation always is."""
    templates: ClassVar[Mapping[Split, tuple[str, ...]]] = {"training": (), "evaluation": ()}
    """The kinds of scenario that each split is made of, if they have names; no kind belongs to both."""
    num_held_out: ClassVar[int] = 1000
    """How many scenarios the evaluation set has where none is stored."""

    def generate(self, key: jax.Array, split: Split, parameters: Parameters) -> Scenario:
        """Make a scenario of one split from a key alone; `parameters` has every name of `self.parameters`."""
        raise NotImplementedError

    def generator(self) -> "ScenarioEnvironment":
        """Return an environment that generates the same scenarios: one for many whose other options differ.

        Their evaluation set is then generated once.
        """
        return self

    def begin(self, scenario: Scenario, key: jax.Array) -> tuple[State, Observation]:
        """Start an episode in a scenario: `(state, obs)`."""
        raise NotImplementedError

    def is_usable(self, scenario: Scenario) -> Array:
        """Return whether an episode can be played in a scenario, one boolean.

        One that cannot is generated anew; in a stored set it is skipped and counted, and so is one that holds a NaN or
        an infinity.
        """
        return True

    def defects(self, scenario: Scenario) -> dict[str, Array]:
        """Return what may be wrong with a scenario that comes from elsewhere: a boolean by the words that name it.

        One with a defect is skipped like one that cannot be used, and counted by these words. What `generate` makes is
        not asked.
        """
        return {}

    def template(self, scenario: Scenario) -> Array:
        """Return the kind of a scenario: its place among the templates of training and then those of evaluation."""
        return 0

    def weight(self, scenario: Scenario) -> Array:
        """Return how often a stored scenario is drawn, relative to others, where a set is sampled by weight."""
        return 1.0

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Start an episode in a fresh scenario of training, at full parameters."""
        of_scenario, of_start = jax.random.split(key)
        return self.begin(generated(self, of_scenario, "training", self.parameters), of_start)


def generated(env: ScenarioEnvironment, key: jax.Array, split: Split, parameters: Parameters) -> Scenario:
    """Generate a scenario that can be used, from a key alone."""
    if type(env).is_usable is ScenarioEnvironment.is_usable:
        return env.generate(key, split, parameters)

    def go_on(tried: tuple[jax.Array, Scenario, jax.Array]) -> tuple[jax.Array, Scenario, jax.Array]:
        scenario = env.generate(jax.random.fold_in(key, tried[0]), split, parameters)
        return tried[0] + 1, scenario, jnp.asarray(env.is_usable(scenario))

    shapes = jax.eval_shape(lambda key: env.generate(key, split, parameters), key)
    nothing = jnp.int32(0), jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), jnp.bool_(False)
    return jax.lax.while_loop(lambda tried: ~tried[2] & (tried[0] < MOST_TRIES), go_on, nothing)[1]
