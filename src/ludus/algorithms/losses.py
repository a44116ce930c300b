"""The terms of losses, one value for each sample; the caller averages.

PPO's are those of Schulman et al. 2017, arXiv 1707.06347.
"""

import jax
import jax.numpy as jnp


def clipped_surrogate(ratio: jax.Array, advantage: jax.Array, clip_epsilon: jax.Array | float) -> jax.Array:
    """Return -min(r A, clip(r, 1-eps, 1+eps) A), eq. 7 with the sign of a loss."""
    clipped = jnp.clip(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def value_loss(
    value: jax.Array,
    old_value: jax.Array,
    target: jax.Array,
    clip_epsilon: jax.Array | float | None,
    scale: jax.Array | float | None = None,
) -> jax.Array:
    """Return 1/2 (V - target)^2; with clipping, no less than the loss of V kept within eps of its old self.

    Another `scale` stands in place of the half: that is a convention of texts on PPO, and some write it without.
    """
    scale, error = 0.5 if scale is None else scale, jnp.square(value - target)
    if clip_epsilon is None:
        return scale * error
    near_old = old_value + jnp.clip(value - old_value, -clip_epsilon, clip_epsilon)
    return scale * jnp.maximum(error, jnp.square(near_old - target))


def approximate_kl(log_ratio: jax.Array) -> jax.Array:
    """Return (r - 1) - log r, the estimator of KL(old || new) that is never negative (Schulman 2020, 'k3')."""
    return jnp.expm1(log_ratio) - log_ratio


def bradley_terry(
    difference: jax.Array, preference: jax.Array, assumed_error: jax.Array | float | None = None
) -> jax.Array:
    """Return the cross entropy of preferences under the model P(first) = sigmoid(R1 - R2).

    Christiano et al. 2017, arXiv 1706.03741, eq. 1. `preference` is 1 where the first was preferred, 0 where the second
    was, and 1/2 where neither. With an assumed error, that share of answers is taken to be given by a fair coin.
    """
    first, second = jax.nn.log_sigmoid(difference), jax.nn.log_sigmoid(-difference)
    if assumed_error is not None:
        honest, coin = jnp.log1p(-jnp.asarray(assumed_error)), jnp.log(jnp.asarray(assumed_error) / 2.0)
        first, second = jnp.logaddexp(honest + first, coin), jnp.logaddexp(honest + second, coin)
    return -(preference * first + (1.0 - preference) * second)


def discrimination(logit: jax.Array, is_expert: jax.Array | float) -> jax.Array:
    """Return the cross entropy of a discriminator sigmoid(f) (Ho and Ermon 2016, arXiv 1606.03476, eq. 14)."""
    return -(is_expert * jax.nn.log_sigmoid(logit) + (1.0 - is_expert) * jax.nn.log_sigmoid(-logit))
