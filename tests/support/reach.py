"""A toy whose episodes are drawn from scenarios: walk to a goal on a plane."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.scenarios.base import ScenarioEnvironment
from ludus.spaces import Box, Discrete
from ludus.types import Step

WAYS = np.array([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5], [0.0, -0.5]], np.float32)
NEAR, WIDE, FAR = 0, 1, 2


@dataclass(frozen=True)
class Reach(ScenarioEnvironment):
    """Goals lie left of the start in training and right of it in evaluation; a third of those drawn is too near."""

    says_success: bool = True
    details: int = 4
    """Numbers of a scenario that nobody needs."""

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Discrete(4)
    max_episode_steps = 12
    return_threshold = -10.0
    parameters = {"difficulty": 1.0}  # noqa: RUF012
    templates = {"training": ("near", "wide"), "evaluation": ("far",)}  # noqa: RUF012
    num_held_out = 100

    def generate(self, key: jax.Array, split: str, parameters: Any) -> Any:
        """Draw a goal."""
        of_kind, of_place, of_details = jax.random.split(key, 3)
        distance, height = jax.random.uniform(of_place, (2,)) * parameters["difficulty"]
        kind = jax.random.bernoulli(of_kind).astype(jnp.int32) if split == "training" else jnp.int32(FAR)
        x = jnp.where(kind == FAR, 1.0 + 2.0 * distance, -3.0 * distance)
        return {
            "goal": jnp.stack([x, jnp.where(kind == NEAR, 0.0, 2.0 * height)]),
            "about": {"kind": kind, "details": jax.random.uniform(of_details, (self.details,))},
        }

    def begin(self, scenario: Any, key: jax.Array) -> tuple[Any, Any]:
        """Start near the origin."""
        state = {"at": 0.01 * jax.random.normal(key, (2,)), "goal": scenario["goal"]}
        return state, self._observe(state)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Step]:
        """Walk one step."""
        state = {**state, "at": state["at"] + jnp.asarray(WAYS)[action]}
        distance = jnp.linalg.norm(self._observe(state))
        info = {"goal_x": state["goal"][0]} | ({"is_success": distance < 0.4} if self.says_success else {})
        return state, Step(self._observe(state), -distance, distance < 0.4, info=info)

    def is_usable(self, scenario: Any) -> jax.Array:
        """Refuse goals that are reached already."""
        return jnp.abs(scenario["goal"][0]) > 1.0

    def template(self, scenario: Any) -> jax.Array:
        """Return what it was drawn as."""
        return scenario["about"]["kind"]

    def weight(self, scenario: Any) -> jax.Array:
        """Return that wide ones are drawn three times as often."""
        return jnp.where(scenario["about"]["kind"] == WIDE, 3.0, 1.0)

    def _observe(self, state: Any) -> jax.Array:
        return state["goal"] - state["at"]
