"""Saturated units: activations so near to the ends of their range that hardly a slope passes through them any more.

A memory or a hidden layer that slopes which are too large have driven there learns nothing from then on, and does not
come back by itself. Nothing else shows it: losses go on changing, by the last layers' biases alone.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ludus.algorithms.minibatch import blank_padding
from ludus.algorithms.normalize import normalize
from ludus.algorithms.observations import without_masks
from ludus.algorithms.ppo_state import PPOState
from ludus.algorithms.sac_state import SACState
from ludus.networks.actor_critic import MemoryOf
from ludus.networks.layers import ACTIVATIONS, Torso
from ludus.networks.memory import GRUMemory
from ludus.networks.network import PARTS
from ludus.networks.recurrence import memory_of, span
from ludus.networks.soft_actor_critic import NUM_CRITICS, Past, one_critic
from ludus.runtime.packing import MetricVector
from ludus.types import Rollout, Transition

LIMIT = 0.99
"""Beyond this, a tanh has less than a fiftieth of its greatest slope."""
STEPS = 16
"""So many steps of each environment are looked at."""
METRICS = {
    "saturation/<layer>": "share of a layer's activations that are beyond ±0.99, over the first 16 steps of the "
    "rollout; of layers with tanh, and of a GRU's memory",
}

Shares = dict[str, jax.Array]


def ppo_saturation(before: PPOState, after: PPOState, rollout: Rollout) -> MetricVector:
    """Return the share of saturated activations in each layer of the networks after an update."""
    network, module, steps = after.network, after.network.merge(after.parameters), _first(rollout.steps)
    obs, ended = normalize(before.observations, steps.obs), steps.terminated | steps.truncated
    memories = [rollout.memory, rollout.memory if network.shares_memory else before.critic_memory]
    shares: Shares = {}
    for part, memory in zip(PARTS, memories, strict=True):
        own = memory_of(module, part)
        start = own.initial_memory(ended.shape[1])
        memory = jax.tree.map(lambda a, b: jnp.where(rollout.is_start, a, b), start, memory)
        features = span(module, part, memory, obs, None, ended, len(ended)).features
        unit = own.unit if isinstance(own, MemoryOf) else None
        name = "memory" if network.shares_memory else f"{part}_memory"
        shares |= _of_unit(name, unit, features, steps.valid)
        shares |= _of_torso(f"{part}_torso", getattr(module, f"{part}_torso", None), features, steps.valid)
    return _packed(shares)


def sac_saturation(after: SACState, rollout: Rollout) -> MetricVector:
    """Likewise for SAC; of both critics, the mean. Memories begin blank, as in the sequences that it learns from."""
    parameters, networks, steps = after.learner.parameters, after.networks, _first(rollout.steps)
    obs, ended = normalize(after.observations, steps.obs), steps.terminated | steps.truncated
    shown = Past(None, obs, None, ended) if networks.has_memory else obs
    modules = [networks.actor.merge(parameters.actor)]
    modules += [networks.critic.merge(one_critic(networks.critic, parameters.critics, i)) for i in range(NUM_CRITICS)]
    found: list[Shares] = []
    for name, module in zip(["actor", *["critics"] * NUM_CRITICS], modules, strict=True):
        features = module.seen.whole(shown)
        inputs = features if name == "actor" else jnp.concatenate([features, steps.extras["unit_action"]], axis=-1)
        shares = _of_unit(f"{name}/memory", module.memory, features, steps.valid)
        found.append(shares | _of_torso(f"{name}/torso", module.torso, inputs, steps.valid))
    actor, *critics = found
    return _packed(actor | jax.tree.map(lambda *each: jnp.mean(jnp.stack(each)), *critics))


def _first(steps: Transition) -> Transition:
    """Return the first steps of a rollout."""
    return without_masks(blank_padding(jax.tree.map(lambda x: x[:STEPS], steps)))[0]


def _of_unit(name: str, unit: Any, features: Any, valid: jax.Array | None) -> Shares:
    return {name: _share(features, valid)} if isinstance(unit, GRUMemory) else {}


def _of_torso(name: str, torso: Any, x: Any, valid: jax.Array | None) -> Shares:
    """Look into hidden layers, if they are ours and their activation has ends."""
    if not isinstance(torso, Torso) or torso.activation is not ACTIVATIONS["tanh"]:
        return {}
    made: Sequence[jax.Array] = torso.activations(x)
    return {f"{name}/layers/{i}": _share(layer, valid) for i, layer in enumerate(made)}


def _share(activations: jax.Array, valid: jax.Array | None) -> jax.Array:
    where = None if valid is None else valid[..., None]
    return jnp.mean((jnp.abs(activations) > LIMIT).astype(jnp.float32), where=where)


def _packed(shares: Shares) -> MetricVector:
    if not shares:
        return MetricVector(jnp.zeros(0), ())
    return MetricVector.stacked({f"saturation/{name}": share for name, share in shares.items()})
