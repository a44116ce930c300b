"""Your own network (an NNX module), optimiser (an Optax transformation) and schedule (a function of progress)."""

import jax.numpy as jnp
import optax
from flax import nnx

import ludus
from ludus.networks.actor_critic import ActionHead


class Residual(ludus.ActorCritic):
    """A layer that actor and critic share, with a shortcut around it."""

    def __init__(self, spec, rngs):
        inputs = spec.observation_space.shape[0]
        self.before = nnx.Linear(inputs, 32, rngs=rngs)
        self.layer = nnx.Linear(32, 32, rngs=rngs)
        self.head = ActionHead(32, spec.action_space, rngs=rngs)
        self.value = nnx.Linear(32, 1, rngs=rngs)

    def remember(self, memory, obs):
        x = nnx.tanh(self.before(obs))
        return memory, x + nnx.tanh(self.layer(x))

    def actor(self, features):
        return self.head(features)

    def critic(self, features):
        return self.value(features)[..., 0]


env = ludus.make_env("CartPole-v1", num_envs=8)
ppo = ludus.PPO(
    network=Residual,
    optimizer=optax.adamw(3e-3, weight_decay=1e-4),
    entropy_coef=lambda progress: 0.01 * jnp.square(1.0 - progress),
    batch_size=1024,
    minibatch_size=128,
)
result = ludus.Trainer(ppo, env, ludus.Settings(seed=0)).train(total_steps=40_960)
print(result)
assert result.evaluation is not None and result.evaluation.returns.mean() > 400.0
