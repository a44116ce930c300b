"""The PPO networks' vocabulary: `PPONetwork`, an `ActorNetwork` and a `CriticNetwork`, and functions of logits.

    action_logits, values = PPONetwork(observation_dim=4, action_dim=2)(observations)
    log_probs = jax.vmap(evaluate_action)(action_logits, actions)
    entropy = jax.vmap(get_entropy)(action_logits)

Behind them are the layers and distributions of `ludus.networks`, of which `PPOAgent`'s own network is made.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from ludus.networks.actor_critic import MLPActorCritic
from ludus.networks.distributions import Categorical
from ludus.networks.layers import Linear, Torso, generator_from
from ludus.types import Array


class ActorNetwork(nnx.Module):
    """Observations `[..., observation_dim]` to logits `[..., action_dim]`."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (64, 64),
        *,
        rngs: nnx.Rngs | None = None,
    ):
        """Draw orthogonal weights; those of the last layer are small, so that the first policy is nearly uniform."""
        generator = generator_from(rngs or nnx.Rngs(0))
        self.torso = Torso(observation_dim, hidden_sizes, "tanh", generator)
        self.head = Linear(self.torso.outputs, action_dim, 0.01, generator)

    def __call__(self, observations: Array) -> jax.Array:
        """Return the logits."""
        return self.head(self.torso(jnp.asarray(observations)))


class CriticNetwork(nnx.Module):
    """Observations `[..., observation_dim]` to values `[...]`."""

    def __init__(self, observation_dim: int, hidden_sizes: Sequence[int] = (64, 64), *, rngs: nnx.Rngs | None = None):
        """Draw orthogonal weights."""
        generator = generator_from(rngs or nnx.Rngs(0))
        self.torso = Torso(observation_dim, hidden_sizes, "tanh", generator)
        self.head = Linear(self.torso.outputs, 1, 1.0, generator)

    def __call__(self, observations: Array) -> jax.Array:
        """Return the values."""
        return self.head(self.torso(jnp.asarray(observations)))[..., 0]


class PPONetwork(nnx.Module):
    """An actor and a critic that share nothing."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (64, 64),
        *,
        rngs: nnx.Rngs | None = None,
    ):
        """Build both."""
        rngs = rngs or nnx.Rngs(0)
        self.actor = ActorNetwork(observation_dim, action_dim, hidden_sizes, rngs=rngs)
        self.critic = CriticNetwork(observation_dim, hidden_sizes, rngs=rngs)

    def __call__(self, observations: Array) -> tuple[jax.Array, jax.Array]:
        """Return logits and values."""
        return self.actor(observations), self.critic(observations)

    def take(self, module: MLPActorCritic) -> "PPONetwork":
        """Take the layers of a network of the core."""
        self.actor.torso, self.actor.head = module.actor_torso, module.actor_head.layer
        self.critic.torso, self.critic.head = module.critic_torso, module.critic_head
        return self


def evaluate_action(action_logits: Array, action: Array) -> jax.Array:
    """Return the log-probability of an action among those that the logits are of."""
    return Categorical(jnp.asarray(action_logits)).log_prob(jnp.asarray(action))


def get_entropy(action_logits: Array) -> jax.Array:
    """Return the entropy, in nats, of the choice that the logits are of."""
    return Categorical(jnp.asarray(action_logits)).entropy()
