"""Algorithms and networks of a user's own, in a module that can be imported by name."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

import ludus
from ludus.networks.actor_critic import ActionHead


@dataclass(frozen=True)
class Reinforce(ludus.Algorithm):
    """A linear softmax policy; only what must be written is written."""

    learning_rate: float = 0.05
    """Step size."""
    steps: int = 32
    """Steps of a rollout."""
    explodes_at: float = 2.0
    """Share of the run from which on an update makes a NaN."""

    def rollout_length(self, num_envs):
        return self.steps

    def init(self, key, spec):
        return {"weights": jnp.zeros((spec.observation_space.shape[0], spec.action_space.n)), "updates": jnp.int32(0)}

    def policy(self, state):
        return {"weights": state["weights"]}

    def act(self, policy, memory, obs, noise, mode):
        logits = obs @ policy["weights"]
        if mode == "greedy":
            return memory, logits.argmax(-1).astype(jnp.int32), ()
        return memory, jax.vmap(jax.random.categorical)(noise, logits).astype(jnp.int32), ()

    def update(self, state, rollout, key):
        steps = rollout.steps
        weight = steps.reward - steps.reward.mean() + 0.1 * jax.random.normal(key, steps.reward.shape)

        def loss(weights):
            log_p = jax.nn.log_softmax(steps.obs @ weights)
            return -(weight * jnp.take_along_axis(log_p, steps.action[..., None], -1)[..., 0]).mean()

        value, gradient = jax.value_and_grad(loss)(state["weights"])
        gradient = jnp.where(rollout.progress >= self.explodes_at, jnp.nan, gradient)
        new = {"weights": state["weights"] - self.learning_rate * gradient, "updates": state["updates"] + 1}
        return ludus.Update(new, {"policy_loss": value, "my_figure": value**2})


@dataclass(frozen=True)
class LoudPPO(ludus.PPO):
    """PPO that says something more."""

    loudness: float = 3.0
    """How loud."""

    def update(self, state, rollout, key):
        made = super().update(state, rollout, key)
        return made._replace(metrics=made.metrics | {"loudness": jnp.asarray(self.loudness)})


class Plain:
    """An algorithm that inherits nothing: it has each function of the protocol."""

    values_actions, is_on_policy = False, True
    inner = Reinforce()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return type(other) is Plain

    def policy(self, state):
        return self.inner.policy(state)

    def init(self, key, spec):
        return self.inner.init(key, spec)

    def act(self, *arguments):
        return self.inner.act(*arguments)

    def update(self, *arguments):
        return self.inner.update(*arguments)

    def rollout_length(self, num_envs):
        return self.inner.rollout_length(num_envs)


@dataclass(frozen=True)
class Wide:
    """A builder with a field."""

    width: int = 4
    """Units of the hidden layer."""

    def __call__(self, spec, rngs):
        return ludus.MLP((self.width,))(spec, rngs)


class Shared(ludus.ActorCritic):
    """A module that is its own builder."""

    def __init__(self, spec, rngs):
        self.layer = nnx.Linear(spec.observation_space.shape[0], 8, rngs=rngs)
        self.head = ActionHead(8, spec.action_space, rngs=rngs)
        self.value = nnx.Linear(8, 1, rngs=rngs)

    def actor(self, features):
        return self.head(nnx.tanh(self.layer(features)))

    def critic(self, features):
        return self.value(nnx.tanh(self.layer(features)))[..., 0]
