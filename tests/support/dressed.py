"""A JAX environment dressed as a host environment: the same dynamics, stepped from Python."""

import jax
import numpy as np

from ludus.envs.base import HostEnv, HostStep
from ludus.envs.batch import Draw, JaxEnv
from ludus.types import RolloutKeys


class DressedEnv(HostEnv):
    """Looks like any host batch. `use(keys, num_steps)` gives it the randomness of the next compiled rollout."""

    def snapshot(self):
        return {}

    def __init__(self, env: JaxEnv, seed: int = 0):
        self.inner, self.id, self.num_envs, self.options = env, f"dressed:{env.id}", env.num_envs, {}
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.reset_fn, self.step_fn = jax.jit(env.reset), jax.jit(env.step)
        self.draw_fn = jax.jit(env.draw, static_argnums=2)
        self.key, self.draws, self.state = jax.random.key(seed), None, None

    def use(self, state, keys: RolloutKeys, num_steps: int) -> None:
        self.state, self.draws, self.t = state, self.draw_fn(keys.step, keys.start, num_steps), 0

    def reset(self, seeds):
        keys = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
        self.state = self.reset_fn(keys)
        return jax.tree.map(np.asarray, self.state.obs)

    def step(self, action):
        draws = self.draws if self.draws is not None else self._own_draws()
        draw = jax.tree.map(lambda x: x[self.t], draws)
        self.state, step = self.step_fn(self.state, jax.tree.map(jax.numpy.asarray, action), Draw(*draw))
        self.t += 1
        return HostStep(*jax.tree.map(np.asarray, (step.obs, self.state.obs, *step[1:4])))

    def _own_draws(self) -> Draw:
        self.key, step_key, start_key = jax.random.split(self.key, 3)
        self.t = 0
        return self.draw_fn(step_key, start_key, 1)

    def remake(self, num_envs: int) -> "DressedEnv":
        return DressedEnv(self.inner.remake(num_envs), seed=1)

    def close(self) -> None:
        pass
