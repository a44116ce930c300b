"""The state of a learned reward: an ensemble of networks, and the statistics it was fitted with.

Each member is shifted and scaled by itself, since what a reward is learnt from may leave shift and scale open; the
reward is then the mean of the members, and how far they disagree says where it is a guess.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.normalize import normalize
from ludus.algorithms.observations import observation_statistics
from ludus.algorithms.segments import Segments
from ludus.networks.network import Leaves, Network, network_for
from ludus.networks.reward_network import Judged, RewardOf
from ludus.types import Spec, Tree

if TYPE_CHECKING:
    from ludus.algorithms.reward_source import RewardSource

UNTRAINED = 1e30
"""The scale of a model that nothing was learnt from yet: all that it says is worth nothing."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RewardState:
    """All that it takes to say what a step is worth."""

    parameters: Leaves
    """Of all members, `[members, ...]`."""
    observations: Tree
    """Statistics by which observations are normalised; None if they are not."""
    offset: jax.Array
    """Subtracted from what each member says `[members]`."""
    scale: jax.Array
    """What it is divided by then `[members]`."""
    temperature: jax.Array
    """Differences of normalised rewards are divided by it to be log-odds of preferences."""
    network: Network = field(metadata={"static": True})

    @property
    def num_members(self) -> int:
        """Networks of the ensemble."""
        return len(self.offset)

    def initial_memory(self, n: int) -> Any:
        """Return the memory of every member at the start of `n` episodes, `[members, n, ...]`; `()` for none."""

        def start(leaves: Leaves) -> Tree:
            return self.network.merge(leaves).initial_memory(n)

        return jax.vmap(start)(self.parameters)

    def vectors(self, steps: Judged) -> Judged:
        """Return steps with their observations normalised."""
        obs, next_obs = (normalize(self.observations, x) for x in (steps.obs, steps.next_obs))
        return Judged(obs, steps.action, next_obs)

    def judge(self, memory: Tree, steps: Judged, ended: jax.Array) -> tuple[Tree, jax.Array]:
        """Return the memory after steps `[T, n]`, and what each member says of them, `[members, T, n]`."""
        seen = self.vectors(steps)

        def member(leaves: Leaves, memory: Tree) -> tuple[Tree, jax.Array]:
            module = self.network.merge(leaves)
            return module.judge(memory, module.seen(seen), ended)

        return jax.vmap(member)(self.parameters, memory)

    def of_segments(self, segments: Segments) -> jax.Array:
        """Return what each member says of the steps of segments `[n, L]`: `[members, n, L]`."""
        count, length = segments.reward.shape
        _, said = self.judge(self.initial_memory(count), segments.judged(), jnp.zeros((length, count), bool))
        return said.swapaxes(1, 2)  # [members, L, n] -> [members, n, L]

    def normalized(self, said: jax.Array) -> jax.Array:
        """Return normalised rewards of what members said `[members, ...]`."""
        axes = (slice(None), *[None] * (said.ndim - 1))
        return (said - self.offset[axes]) / self.scale[axes]


def blank_reward(source: "RewardSource", spec: Spec, key: jax.Array) -> RewardState:
    """Return a model that nothing was learnt from."""
    network = network_for(RewardOf(source.network, tuple(source.inputs)), spec)
    each = [network.initialize(one) for one in jax.random.split(key, source.members)]
    stacked = tuple(jax.device_put(np.stack([np.asarray(x) for x in leaves])) for leaves in zip(*each, strict=True))
    statistics = observation_statistics(spec.observation_space) if source.normalize_observations else None
    offset, scale = np.zeros(source.members, np.float32), np.full(source.members, UNTRAINED, np.float32)
    return RewardState(
        stacked, statistics, jax.device_put(offset), jax.device_put(scale), jax.device_put(np.float32(1)), network
    )


def measured(model: RewardState, said: jax.Array, weight: jax.Array, is_centred: bool) -> RewardState:
    """Return a model whose members have deviation 1 over steps, and mean 0 if they are centred.

    `said` `[members, ...]` is what they say of the steps, of weight `weight` `[...]`.
    """
    axes = tuple(range(1, said.ndim))
    total = jnp.maximum(weight.sum(), 1.0)
    mean = (said * weight).sum(axes) / total
    apart = said - mean.reshape(-1, *[1] * (said.ndim - 1))
    deviation = jnp.sqrt((jnp.square(apart) * weight).sum(axes) / total)
    offset = mean if is_centred else jnp.zeros_like(mean)
    return replace(model, offset=offset, scale=jnp.maximum(deviation, 1e-6))
