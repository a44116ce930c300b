"""A network split once into what is static and its parameters, a tuple of arrays."""

import traceback
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend.core import Var

from ludus.networks.actor_critic import ActorCritic
from ludus.networks.builders import NetworkBuilder
from ludus.networks.layers import Part
from ludus.networks.recurrence import memory_of
from ludus.runtime.rng import stream
from ludus.spaces import map_leaves
from ludus.types import Array, LudusError, Spec

Leaves = tuple[jax.Array, ...]
"""The parameters of a network: a tuple is the pytree that JAX takes apart quickest."""
PARTS: tuple[Part, ...] = get_args(Part)


class Network:
    """The static half of a network. Compares by identity; `network_for` returns the same one for equal arguments."""

    def __init__(self, build: NetworkBuilder, spec: Spec):
        """Build the module once to learn its structure."""
        self.build, self.spec = build, spec
        self.graph, parameters, self.rest = self._split(stream(0, "structure"))
        leaves, self.treedef = jax.tree.flatten(parameters)
        self.shapes = [np.shape(leaf) for leaf in leaves]
        self.has_filters = any(len(shape) > 2 for shape in self.shapes)
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.size = sum(self.sizes)
        self.offsets = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
        paths = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(parameters))[0]
        module = nnx.merge(self.graph, parameters, self.rest)
        self.kind = type(module).__name__
        contract = (name for name in vars(ActorCritic) if not name.startswith("_"))
        self.missing = [name for name in contract if not callable(getattr(module, name, None))]
        is_whole = not self.missing
        self.has_memory = is_whole and bool(jax.tree.leaves(jax.eval_shape(lambda: module.initial_memory(1))))
        self.shares_memory = getattr(module, "shared", getattr(module, "memory_of", None) is None)
        """Whether actor and critic see the same features."""
        self.critic_drops = not self.shares_memory and any(
            isinstance(layer, nnx.Dropout) and layer.rate > 0 for _, layer in nnx.iter_modules(module)
        )
        """Whether a critic of its own may be fitted with dropout."""
        names = (jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths)
        self.names = [name.removeprefix("memory/") for name in names]
        self.owners = [next((part for part in PARTS if name.startswith(part)), "shared") for name in self.names]
        """The part that each parameter belongs to, as its name begins: the actor, the critic, or both."""

    def _split(self, seed: jax.Array) -> tuple[Any, Any, Any]:
        module = _built(self.build, self.spec, nnx.Rngs(seed))
        if not isinstance(module, nnx.Module):
            raise LudusError(f"network {self.build!r}: must build a flax.nnx.Module, got {type(module).__name__}")
        _check_pure(module)
        graph, parameters, rest = nnx.split(module, nnx.Param, ...)
        return graph, parameters, rest

    def check_actor_critic(self) -> None:
        """Refuse a module that lacks what `ActorCritic` has."""
        if self.missing:
            raise LudusError(
                f"algorithm.network={self.kind}: has no {self.missing[0]}; inherit from ludus.ActorCritic, which says "
                "what a network must have"
            )

    def initialize(self, key: jax.Array) -> Leaves:
        """Fresh parameters, in the order of `names`."""
        return tuple(jax.device_put(np.asarray(leaf, np.float32)) for leaf in jax.tree.leaves(self._split(key)[1]))

    def merge(self, parameters: Leaves) -> Any:
        """Return the callable module for some parameters, inside or outside a trace."""
        return nnx.merge(self.graph, self.as_tree(parameters), self.rest)

    def parameters_of(self, module: nnx.Module) -> Leaves:
        """Return the parameters that a module of this structure holds; the inverse of `merge`."""
        return tuple(jax.tree.leaves(nnx.split(module, nnx.Param, ...)[1]))

    def as_tree(self, parameters: Leaves) -> Any:
        """Return the parameters as the tree that the module holds."""
        return jax.tree.unflatten(self.treedef, parameters)

    def exchanged(self, ours: Leaves, theirs: Leaves, part: Part) -> Leaves:
        """Return parameters of which those that the actor or the critic uses are theirs, the others ours."""
        return tuple(b if used else a for a, b, used in zip(ours, theirs, self._used_by(part), strict=True))

    @cached_property
    def of_critic_alone(self) -> list[bool]:
        """For each parameter, True if the critic depends on it and the actor does not."""
        return [mine and not theirs for mine, theirs in zip(*map(self._used_by, ("critic", "actor")), strict=True)]

    def _used_by(self, part: Part) -> list[bool]:
        """Return which parameters the actor or the critic depends on."""
        obs = map_leaves(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), self.spec.observation_space)

        def result(parameters: Leaves) -> Any:
            module = self.merge(parameters)
            memory = memory_of(module, part)
            return getattr(module, part)(memory.remember(memory.initial_memory(1), obs)[1])

        return _used(result, [np.zeros(shape, np.float32) for shape in self.shapes])

    def ravel(self, parameters: Sequence[jax.Array]) -> jax.Array:
        """Return arrays of the parameters' shapes as one vector."""
        return jnp.concatenate([leaf.ravel() for leaf in parameters])

    def unravel(self, vector: jax.Array) -> Leaves:
        """Return the inverse of `ravel`."""
        parts = jnp.split(vector, self.offsets)
        return tuple(part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True))


def _built(build: NetworkBuilder, spec: Spec, rngs: nnx.Rngs) -> object:
    """Return what a builder makes; LudusError, with the traceback as a note, if it raises."""
    try:
        return build(spec, rngs)
    except LudusError:
        raise
    except Exception as error:  # whatever the user's own code raises
        name = getattr(build, "__name__", type(build).__name__)
        words = " ".join(str(error).split())
        told = LudusError(
            f"algorithm.network={name}: raised {type(error).__name__}: {words} when it was built; a network is called "
            "with (spec, rngs)"
        )
        told.add_note(traceback.format_exc().rstrip())
        raise told from error


def _used(function: Callable[[Any], Any], parameters: Sequence[Array]) -> list[bool]:
    """Return which arrays the result of `function(parameters)` depends on."""
    program = jax.make_jaxpr(function)(parameters).jaxpr
    needed = {x for x in program.outvars if isinstance(x, Var)}
    for equation in reversed(program.eqns):
        if needed & set(equation.outvars):
            needed |= {x for x in equation.invars if isinstance(x, Var)}
    return [x in needed for x in program.invars]


def _check_pure(module: nnx.Module) -> None:
    """Refuse layers whose answer depends on more than parameters and input: acting and learning would not agree."""
    for path, layer in nnx.iter_modules(module):
        is_random = isinstance(layer, nnx.Dropout) and layer.rate > 0 and not layer.deterministic
        if is_random or (isinstance(layer, nnx.BatchNorm) and not layer.use_running_average):
            where = ".".join(map(str, path)) or "itself"
            raise LudusError(
                f"algorithm.network={type(module).__name__}: its layer {where} is a {type(layer).__name__}, which is "
                "not supported: the policy that acts and the one that learns would differ; nnx.LayerNorm is"
            )


@lru_cache(maxsize=64)
def network_for(build: NetworkBuilder, spec: Spec) -> Network:
    """Return the network that `build` makes for `spec`; the same object for equal arguments, so programs are shared."""
    return Network(build, spec)
