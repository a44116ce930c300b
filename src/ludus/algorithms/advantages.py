"""Advantages and returns: pure functions over time-major arrays `[T, B]`."""

import jax
import jax.numpy as jnp

from ludus.types import BRANCH_VALUE, NEXT_BRANCH_VALUE, LudusError, Transition


def generalized_advantages(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: jax.Array | float,
    gae_lambda: jax.Array | float,
) -> jax.Array:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, eq. 16), cut at episode ends.

        delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}

    `next_value` is V of the true successor: a truncated episode bootstraps from it, a terminated one does not,
    and neither lets anything leak in from the episode after it. The lambda-return, which is the critic's target, is
    A_t + V(s_t); with `gae_lambda=1` that is the Monte-Carlo return.
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * jnp.where(terminated | truncated, 0.0, 1.0)

    def backwards(advantage: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta_t, decay_t = inputs
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    return jax.lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)[1]


def branch_advantages(steps: Transition, gamma: jax.Array | float) -> jax.Array:
    """Advantages by branches from every state (VinePPO, Kazemnejad et al. 2024, arXiv 2410.01679, section 4).

        A_t = r_t + gamma (1 - terminated_t) V_mc(s'_t) - V_mc(s_t)

    V_mc is the mean return of the branches, in units of the environment's rewards, as the advantages are. Branches to
    the end of the episode make it unbiased, whatever the critic says. An episode's end lets nothing leak in from the
    next one: there the collector has put 0, or the critic's value where the episode was truncated.
    """
    if BRANCH_VALUE not in steps.extras:
        raise LudusError(
            "algorithm.advantages=monte_carlo: this rollout has no branches, which only the trainer's collectors play; "
            "use algorithm.advantages=gae"
        )
    value, next_value = steps.extras[BRANCH_VALUE], steps.extras[NEXT_BRANCH_VALUE]
    return steps.reward + gamma * jnp.where(steps.terminated, 0.0, next_value) - value


def discounted_returns(reward: jax.Array, ended: jax.Array, start: jax.Array, gamma: jax.Array | float) -> jax.Array:
    """Running discounted sums forwards in time: `G_t = gamma G_{t-1} + r_t`, from zero after each episode's end.

    Their spread is what rewards are scaled by. `start` `[B]` carries the sum over from the rollout before.
    """

    def forwards(total: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward_t, ended_t = inputs
        total = gamma * total + reward_t
        return jnp.where(ended_t, 0.0, total), total

    return jax.lax.scan(forwards, start, (reward, ended))[1]
