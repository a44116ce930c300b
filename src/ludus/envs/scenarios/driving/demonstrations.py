"""Demonstrations of a driver by rule, such as the expert, for algorithms that learn by imitation."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.scenarios.driving.environment import Driving
from ludus.envs.scenarios.held_out import Generated
from ludus.envs.scenarios.stored import scenarios_of
from ludus.runtime.demonstrations import Demonstrations
from ludus.runtime.rng import spread, stream
from ludus.types import LudusError

TOGETHER = 64
"""Episodes that are played side by side."""


def demonstrated(env: Driving, driver: str, episodes: int, seed: int = 0) -> Demonstrations:
    """Let a rule drive through scenarios of training, drawn by the seed, and write down what it saw and did."""
    if driver == "agent":
        raise LudusError("--driver=agent: has no rule to demonstrate; give expert, idm, constant or random")
    env = replace(env, driver=driver)
    generated, key = Generated(env, "training", seed), stream(seed, "demonstrations")
    scenarios = generated.up_to(episodes)
    parts = []
    for first in range(0, episodes, TOGETHER):
        rows = np.minimum(first + np.arange(TOGETHER), episodes - 1)
        keys = spread(key, (TOGETHER,), np.uint32(first))
        played = _play(env, scenarios_of(env, {name: x[rows] for name, x in scenarios.items()}), keys)
        parts.append(jax.tree.map(lambda x, count=episodes - first: x[:count], jax.device_get(played)))
    obs, final, action, reward, terminated, is_over = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    valid = ~is_over
    last = valid & np.roll(is_over, -1, axis=1)
    last[:, -1] = valid[:, -1]
    return Demonstrations(
        env.observation_space,
        env.action_space,
        jax.tree.map(lambda x: x[valid], obs),
        action[valid],
        reward[valid],
        terminated[valid],
        (last & ~terminated)[valid],
        jax.tree.map(lambda x: x[last], final),
        env="jax:driving",
        about={"driver": driver, "seed": seed, "split": "training"},
    )


@jax.jit(static_argnums=0)
def _play(env: Driving, scenarios: Any, keys: jax.Array) -> Any:
    """Play a scenario from each key."""
    return jax.vmap(lambda scenario, key: _played(env, scenario, key))(scenarios, keys)


def _played(env: Driving, scenario: Any, key: jax.Array) -> Any:
    """Return observations, those after them, actions, rewards, ends, and which steps came after the end."""
    state, obs = env.begin(scenario, key)

    def step(carry: Any, key: jax.Array) -> Any:
        state, obs, is_over = carry
        action = env.chosen(state, jnp.zeros(2))
        state, told = env.step(state, action, key)
        row = obs, told.obs, action, told.reward, told.terminated & ~is_over, is_over
        return (state, told.obs, is_over | told.terminated), row

    return jax.lax.scan(step, (state, obs, jnp.bool_(False)), jax.random.split(key, env.scenario_length))[1]
