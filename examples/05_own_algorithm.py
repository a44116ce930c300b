"""An algorithm of your own: REINFORCE (Williams 1992) with a linear policy.

The trainer does the rest: rollouts on both kinds of environment, evaluation, checkpoints, exact resume, reports.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import ludus


@dataclass(frozen=True)
class Reinforce(ludus.Algorithm):
    """Each action is made likelier by the return that followed it."""

    learning_rate: float = 0.05
    gamma: float = 0.99
    steps: int = 128
    """Steps of each environment between updates."""

    def rollout_length(self, num_envs):
        return self.steps

    def init(self, key, spec):
        return jnp.zeros((spec.observation_space.shape[0], spec.action_space.n))

    def policy(self, state):
        return state

    def act(self, policy, memory, obs, noise, mode):
        logits = obs @ policy
        if mode == "greedy":
            return memory, logits.argmax(-1).astype(jnp.int32), ()
        return memory, jax.vmap(jax.random.categorical)(noise, logits).astype(jnp.int32), ()  # a key for each action

    def update(self, state, rollout, key):
        steps = rollout.steps
        returns = self.returns(steps.reward, steps.terminated | steps.truncated)
        weight = (returns - returns.mean()) / (returns.std() + 1e-6)

        def loss(weights):
            log_p = jax.nn.log_softmax(steps.obs @ weights)
            return -(weight * jnp.take_along_axis(log_p, steps.action[..., None], -1)[..., 0]).mean()

        value, gradient = jax.value_and_grad(loss)(state)
        return ludus.Update(state - self.learning_rate * gradient, {"policy_loss": value})

    def returns(self, reward, ended):
        def backwards(total, step):
            total = step[0] + self.gamma * jnp.where(step[1], 0.0, total)
            return total, total

        return jax.lax.scan(backwards, jnp.zeros_like(reward[0]), (reward, ended), reverse=True)[1]


env = ludus.make_env("CartPole-v1", num_envs=16)
result = ludus.Trainer(Reinforce(), env, ludus.Settings(seed=0)).train(total_steps=200_000)
print(result)
