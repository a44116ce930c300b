"""A task whose observation is made of feature groups: point at the nearest of several targets.

Where a target stands in the observation says nothing, and some places hold none: an encoder with attention reads it
token by token, while a plain perceptron has to learn each order for itself.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ludus.envs.base import Environment, Observation
from ludus.spaces import Box, FeatureGroup, grouped, join_groups, structured
from ludus.types import IS_SUCCESS, LudusError, Step

FORMS = ("flat", "structured")
NEAR = 0.25
"""Pointing so near to the target counts as a success."""
DECOYS = 2


@dataclass(frozen=True)
class NearestTarget(Environment):
    """One step: targets and decoys are seen, and the action is to point at the nearest target.

    Each is a token of two coordinates, as the agent sees it, and `valid`; a token that holds none has any coordinates.
    The reward is minus the squared distance of the action from that target, so 0 is the best return.
    """

    targets: int = 6
    observation: str = "flat"
    action_space = Box(-1.0, 1.0, (2,))
    max_episode_steps = 1
    return_threshold = -0.05

    def __post_init__(self) -> None:
        """Refuse what cannot be shown."""
        if isinstance(self.targets, bool) or not isinstance(self.targets, int) or self.targets < 1:
            raise LudusError(f"env_options.targets={self.targets}: must be an integer of at least 1")
        if self.observation not in FORMS:
            raise LudusError(f"env_options.observation={self.observation}: must be {' or '.join(FORMS)}")
        object.__setattr__(self, "observation_space", structured(self._flat) if self._is_structured else self._flat)

    @property
    def _flat(self) -> Box:
        return grouped(
            [FeatureGroup("targets", (self.targets, 3), valid=2), FeatureGroup("decoys", (DECOYS, 3), valid=2)],
            -1.0,
            1.0,
        )

    @property
    def _is_structured(self) -> bool:
        return self.observation == "structured"

    def reset(self, key: jax.Array) -> tuple[jax.Array, Observation]:
        """Draw targets, at least one, and decoys; the state is the tokens of both, `[targets + decoys, 3]`."""
        place, count, order, decoys = jax.random.split(key, 4)
        where = jax.random.uniform(place, (self.targets + DECOYS, 2), minval=-1.0, maxval=1.0)
        there = jnp.arange(self.targets) < jax.random.randint(count, (), 1, self.targets + 1)
        there = jnp.concatenate([jax.random.permutation(order, there), jax.random.bernoulli(decoys, shape=(DECOYS,))])
        state = jnp.concatenate([where, there[:, None]], axis=1)
        return state, self._observe(state)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        """Measure how far from the nearest target the action points."""
        targets = state[: self.targets]
        distance = jnp.where(targets[:, 2] > 0, jnp.square(targets[:, :2]).sum(axis=1), jnp.inf)
        missed = jnp.square(action - targets[jnp.argmin(distance), :2]).sum()
        info = {IS_SUCCESS: (missed < NEAR**2).astype(jnp.float32)}
        return state, Step(self._observe(state), -missed, True, False, info)

    def _observe(self, state: jax.Array) -> Observation:
        parts = {"targets": state[: self.targets], "decoys": state[self.targets :]}
        return parts if self._is_structured else join_groups(self._flat, parts)


TARGETS = {"NearestTarget-v1": NearestTarget}
