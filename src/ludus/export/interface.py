"""A policy as one function of named arrays, which is what the formats of other runtimes hold.

The function is all of greedy acting: normalisation, network, squashing or choice, scaling of the action, and the next
memory. Its inputs are `obs` (one array for each leaf of a Dict or Tuple, such as `obs/camera`), `memory` if the policy
has one, and `action_mask` if the environment gives one. Its outputs are `action`, `next_memory`, and `logits` for
discrete actions, one row after the other if there are several.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.policy import Policy
from ludus.algorithms.policy_file import Learned
from ludus.networks.action_scaling import to_environment
from ludus.spaces import Box, Space, flatten, leaves, map_leaves, mask_size, unflatten
from ludus.types import Array, Masked, Tree, split_mask

Arrays = dict[str, Array]
"""Arrays `[batch, ...]` by name."""


class Port(NamedTuple):
    """One input or output: its name, its type, and its shape without the batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Interface(NamedTuple):
    """The function, its inputs and outputs, and the memory at the start of an episode."""

    act: Callable[[Arrays], Arrays]
    inputs: list[Port]
    outputs: list[Port]
    initial_memory: dict[str, np.ndarray]

    def description(self) -> dict[str, Any]:
        """Return inputs, outputs and initial memory as plain data."""
        ports = {
            side: [{"name": name, "dtype": dtype, "shape": ["batch", *shape]} for name, dtype, shape in ports]
            for side, ports in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        return {**ports, "initial_memory": {name: array.tolist() for name, array in self.initial_memory.items()}}


def interface_of(policy: Policy, is_masked: bool) -> Interface:
    """Return the greedy policy as a function of named arrays, traceable by JAX."""
    algorithm, state, spec = policy.acting, policy.state, policy.spec
    one_memory = policy.initial_memory(1)

    def act(inputs: Arrays) -> Arrays:
        obs, memory = from_inputs(policy, one_memory, inputs)
        new_memory, distribution = algorithm.distribution(state, memory, obs)
        if distribution is None:  # an algorithm that does not say what it chooses from
            memory, action, _ = algorithm.act(state, memory, obs, None, "greedy")
            outputs = named("action", spec.action_space, action)
        else:
            memory, squash = new_memory, getattr(distribution, "squash", lambda x: x)
            action = to_environment(spec.action_space, squash(distribution.mode()), spec.scaling)
            outputs = named("action", spec.action_space, action) | _logits(spec.action_space, distribution)
        return outputs | {f"next_{name}": leaf for name, leaf in _memory(memory).items()}

    example = _example(policy, one_memory, is_masked)
    start = {name: np.asarray(x[0]) for name, x in _memory(one_memory).items()}
    return Interface(act, _ports(example), _ports(jax.eval_shape(act, example)), start)


def _example(policy: Policy, memory: Tree, is_masked: bool) -> Arrays:
    """Return inputs of the right shapes and types for one episode."""
    space = policy.spec.observation_space
    obs = map_leaves(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), space)
    mask = np.ones((1, mask_size(policy.spec.action_space) or 0), bool)
    return inputs_of(policy, Masked(obs, mask) if is_masked else obs, memory)


def inputs_of(policy: Learned, obs: Tree, memory: Tree) -> Arrays:
    """Return a batch of observations and memories by name."""
    obs, mask = split_mask(obs)
    masks = {} if mask is None else {"action_mask": mask}
    return named("obs", policy.spec.observation_space, obs) | masks | _memory(memory)


def from_inputs(learned: Learned, memory: Tree, inputs: Arrays) -> tuple[Tree, Tree]:
    """Return observations and memory, which has the structure of the one given: the inverse of `inputs_of`."""
    space = learned.spec.observation_space
    obs = unflatten(space, [inputs[f"obs/{name}" if name else "obs"] for name, _ in leaves(space)])
    memory = memory_from(memory, inputs)
    return Masked(obs, inputs["action_mask"]) if "action_mask" in inputs else obs, memory


def memory_from(memory: Tree, arrays: Arrays, prefix: str = "") -> Tree:
    """Return the memory among named arrays, with the structure of the one given."""
    return jax.tree.unflatten(jax.tree.structure(memory), [arrays[prefix + name] for name in _memory(memory)])


def named(prefix: str, space: Space, value: Tree) -> Arrays:
    """Return the leaves of a value by name: the prefix alone, or with the path of a leaf in a Dict or Tuple."""
    parts = zip(leaves(space), flatten(space, value), strict=True)
    return {f"{prefix}/{name}" if name else prefix: part for (name, _), part in parts}


def _memory(memory: Tree) -> Arrays:
    found = jax.tree.leaves(memory)
    return {"memory" if len(found) == 1 else f"memory/{i}": leaf for i, leaf in enumerate(found)}


def _logits(space: Space, distribution: Any) -> Arrays:
    """Return the logits of discrete actions; continuous ones have none."""
    parts = getattr(distribution, "parts", (distribution,))
    found = {}
    for (name, leaf), part in zip(leaves(space), parts, strict=True):
        if not isinstance(leaf, Box):
            found[f"logits/{name}" if name else "logits"] = jnp.asarray(part.logits)
    return found


def _ports(arrays: Arrays) -> list[Port]:
    return [Port(name, str(np.dtype(x.dtype)), tuple(x.shape[1:])) for name, x in arrays.items()]
