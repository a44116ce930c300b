"""The optimiser that all algorithms share: an `optax.chain` that clips, takes Adam's direction, and scales it.

Adam (Kingma and Ba 2015, arXiv 1412.6980) may be replaced by any Optax transformation. Over one vector the chain is as
fast as the same arithmetic without Optax; over a network's tree of arrays it is slower where batches are small
(docs/en/benchmarks.md).
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ludus.networks.network import Network
from ludus.types import Array, Tree

if TYPE_CHECKING:
    from ludus.algorithms.bc import BC
    from ludus.algorithms.bc_sac import BCSAC
    from ludus.algorithms.ppo import PPO
    from ludus.algorithms.sac import SAC

Kind = TypeVar("Kind", "PPO", "SAC", "BC", "BCSAC")


class Optimizer(NamedTuple):
    """The steps from gradients to changes of parameters."""

    step_size: Array
    """Adam's alone, one number or one for each entry: the user's transformation has one of its own, and a sign."""
    own: optax.GradientTransformation | None = None
    """The user's transformation, in place of Adam."""
    annealing: Array = 1.0
    """Scales the steps of both."""
    max_norm: Array = None
    """Gradients are scaled down to this norm before all else; None: they are not."""
    epsilon: float = 1e-8
    apart: Array = None
    """Entries of a vector that are clipped by a norm of their own, so that theirs does not scale the others down."""

    def init(self, parameters: Tree) -> Tree:
        """Return the state before the first step: Adam's, or that of the user's transformation."""
        if self.own is not None:
            return self.own.init(parameters)
        # Without compiling anything for it; two arrays each, since both may be donated.
        zeros = [jax.tree.map(lambda p: np.zeros(p.shape, np.float32), parameters) for _ in range(2)]
        return jax.device_put(optax.ScaleByAdamState(np.int32(0), *zeros))

    def update(self, gradient: Tree, state: Tree, parameters: Tree) -> tuple[Tree, Tree]:
        """Return what to add to the parameters, and the new state.

        Clipping and scaling have no state, so that saved runs can be read whether or not there is either.
        """
        nothing = optax.EmptyState()
        change, (_, state, _) = self._chain()(gradient, (nothing, state, nothing), parameters)
        return change, state

    def _chain(self) -> Callable[..., tuple[Tree, Tree]]:
        clip = optax.identity() if self.max_norm is None else clip_by_norm(self.max_norm, self.apart)
        if self.own is not None:
            return optax.chain(clip, self.own, optax.scale(self.annealing)).update
        adam = optax.scale_by_adam(eps=self.epsilon)
        return optax.chain(clip, adam, optax.scale(-self.step_size * self.annealing)).update


def clip_by_norm(most: Array, apart: Array = None) -> optax.GradientTransformation:
    """Scale a gradient down to the norm `most`, if its own is greater; one of zeros stays zero, whatever `most` is.

    Of a vector, entries that are `apart` and all others have a norm each.
    """

    def scale(gradient: Tree) -> jax.Array:
        return jnp.minimum(1.0, most / (optax.tree.norm(gradient) + 1e-8))

    def clipped(gradient: Tree, parameters: Tree = None) -> Tree:
        if apart is not None:
            own, others = (scale(jnp.where(here, gradient, 0.0)) for here in (apart, ~apart))
            return gradient * jnp.where(apart, own, others)
        factor = scale(gradient)
        return jax.tree.map(lambda g: g * factor, gradient)

    return optax.stateless(clipped)


def over_vector(own: optax.GradientTransformation, network: Network) -> optax.GradientTransformation:
    """Let a transformation that sees the tree of a module's parameters take its place in a chain over one vector."""

    def init(params: Tree) -> Tree:
        return own.init(network.as_tree(params))

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        held = None if params is None else network.as_tree(params)
        change, state = own.update(network.as_tree(network.unravel(updates)), state, held)
        return network.ravel(jax.tree.leaves(change)), state

    return optax.GradientTransformation(init, update)


def entries_of_critic(network: Network) -> jax.Array:
    """Return which entries of the one vector of parameters the critic alone uses."""
    runs = groupby(zip(network.of_critic_alone, network.sizes, strict=True), itemgetter(0))
    return jnp.concatenate([jnp.full(sum(size for _, size in run), is_own) for is_own, run in runs])


def rates_of_parts(network: Network, rate: Array, critic_rate: Array | None) -> tuple[Array, Array]:
    """Return Adam's step size for each entry of that vector, and which entries have a norm of their own to clip by."""
    if critic_rate is None:
        return rate, None
    apart = entries_of_critic(network)
    return jnp.where(apart, critic_rate, rate), apart


def without_optimizer(algorithm: Kind) -> Kind:
    """Return an algorithm without the user's optimiser, which only learning needs and no file can hold."""
    return algorithm if algorithm.optimizer is None else replace(algorithm, optimizer=None)
