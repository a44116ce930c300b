"""A reward model of sequences, fitted to the rewards that a task itself gave."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from ludus.algorithms.optimizer import Optimizer
from ludus.networks.dropout import with_dropout
from ludus.networks.sequence_networks import SequenceNetwork
from ludus.types import Transition

PASSES = 200
LEARNING_RATE = 1e-3


def fit_reward(model: SequenceNetwork, steps: Transition, key: jax.Array) -> list[float]:
    """Fit a model in place to the rewards of episodes `[T, B]`; return the mean squared error before each step.

    Every episode must begin in row 0. Each step sees all of them, with the model's dropout switched on.
    """
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)
    parameters, losses = _fitted(graph, parameters, rest, steps, key)
    nnx.update(model, parameters)
    return losses.tolist()


@partial(jax.jit, static_argnums=0)
def _fitted(
    graph: nnx.GraphDef, parameters: nnx.State, rest: nnx.State, steps: Transition, key: jax.Array
) -> tuple[nnx.State, jax.Array]:
    weight = jnp.ones_like(steps.reward) if steps.valid is None else steps.valid.astype(jnp.float32)
    weight = weight / weight.sum()
    # Padding comes last, and nothing attends to what is later.
    states = jnp.concatenate([steps.obs[:1], steps.next_obs])  # [T + 1, B, input_dim]
    never = jnp.zeros(states.shape[:2], bool)
    optimizer = Optimizer(LEARNING_RATE)

    def loss(parameters: nnx.State, key: jax.Array) -> jax.Array:
        module = with_dropout(nnx.merge(graph, parameters, rest), key)
        start = module.memory.initial(states.shape[1])
        features = module.memory.span(start, states, None, never, len(states)).features
        return jnp.sum(weight * jnp.square(module.head(features)[1:, :, 0] - steps.reward))

    def step(state: tuple, key: jax.Array) -> tuple[tuple, jax.Array]:
        parameters, moments = state
        error, gradient = jax.value_and_grad(loss)(parameters, key)
        change, moments = optimizer.update(gradient, moments, parameters)
        return (jax.tree.map(jnp.add, parameters, change), moments), error

    begun = parameters, optimizer.init(parameters)
    (parameters, _), losses = jax.lax.scan(step, begun, jax.random.split(key, PASSES))
    return parameters, losses
