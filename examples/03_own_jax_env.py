"""An environment as pure JAX functions: it trains inside one compiled loop, at millions of steps a second."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import ludus
from ludus.spaces import Box


@dataclass(frozen=True)
class Thermostat(ludus.Environment):
    """Hold a room at 20 degrees while the weather pushes; the fields of the dataclass are the physics."""

    observation_space = Box(-30.0, 60.0, (1,))
    action_space = Box(-1.0, 1.0, (1,))
    max_episode_steps = 50
    heating: float = 2.0

    def reset(self, key):
        temperature = jax.random.uniform(key, (1,), minval=5.0, maxval=35.0)
        return temperature, temperature

    def step(self, temperature, action, key):
        weather = 0.5 * jax.random.normal(key, (1,))
        temperature = jnp.clip(temperature + self.heating * action + weather, -30.0, 60.0)
        reward = -jnp.abs(temperature[0] - 20.0) / 10.0
        return temperature, ludus.Step(obs=temperature, reward=reward, terminated=jnp.array(False))


ludus.register_env("Thermostat", Thermostat)
env = ludus.make_env("Thermostat", num_envs=32, heating=3.0)
ppo = ludus.PPO(batch_size=2048, minibatch_size=256, learning_rate=3e-3, normalize_observations=True)
result = ludus.Trainer(ppo, env, ludus.Settings(seed=0)).train(total_steps=200_000)
print(result)
assert result.evaluation is not None and result.evaluation.returns.mean() > -10.0
