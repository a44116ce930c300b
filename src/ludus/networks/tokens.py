"""Observations as groups of tokens: what encoders with attention, and those that pool, begin with.

A flat vector whose space names its groups and a dict of the same groups give the same tokens. Whatever else an
observation holds is one token each: a vector, a choice, an image by its convolutions.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.networks.attention import Norm
from ludus.networks.encoder import Encoder
from ludus.networks.layers import Linear, orthogonal
from ludus.spaces import Box, FeatureGroup, Leaf, Space, leaves, split_groups
from ludus.types import LudusError, Scaling, Tree


class Tokens(NamedTuple):
    """The tokens of one group, of a batch of observations."""

    features: jax.Array
    """`[n, tokens, features]`; zeros where there is no token."""
    valid: jax.Array
    """Whether there is one, `[n, tokens]`."""


class GroupSource(NamedTuple):
    """The place of a group in an observation: the number of its leaf, and its name there if the leaf holds several."""

    group: FeatureGroup
    leaf: int
    name: str | None


def sources(space: Space) -> list[GroupSource]:
    """Return the groups of an observation space, sorted by name; a leaf that is none is one token.

    A box of floats with two axes or more is a group by its shape, unless it names groups itself.
    """
    found = []
    for i, (path, leaf) in enumerate(leaves(space)):
        named = leaf.groups if isinstance(leaf, Box) else ()
        if len(named) > 1 or (named and not path):
            found += [GroupSource(_named(group, f"{path}/{group.name}".strip("/")), i, group.name) for group in named]
        elif named:
            found.append(GroupSource(_named(named[0], path), i, named[0].name))
        elif isinstance(leaf, Box) and leaf.is_float and len(leaf.shape) > 1:
            found.append(GroupSource(FeatureGroup(path, leaf.shape), i, None))
        else:
            found.append(GroupSource(FeatureGroup(path, (1,)), i, None))
    return sorted(found, key=lambda source: source.group.name)


def _named(group: FeatureGroup, name: str) -> FeatureGroup:
    return FeatureGroup(name, group.shape, group.valid, group.ordered)


def layer_sizes(space: Space) -> list[int]:
    """Return the sizes of an observation that its groups' layers have: features, and places along ordered axes."""
    groups = [source.group for source in sources(space)]
    return [side for group in groups for side in (group.shape[-1], *(group.shape[axis] for axis in group.ordered))]


def check_groups(encoder: str, space: Space) -> None:
    """Refuse an observation that is a single token: there is nothing to attend to, or to pool."""
    if sum(source.group.tokens for source in sources(space)) < 2:
        raise LudusError(
            f"algorithm/network/encoder={encoder}: the observation {space} has no feature groups; name them in its "
            "space (ludus.spaces.FeatureGroup), show a Dict of boxes [tokens, features], or take encoder=none"
        )


class TokenReader(nnx.Module):
    """Takes observations apart: `Tokens` of each group."""

    def __init__(self, space: Space, generator: np.random.Generator, scaling: Scaling):
        """Find the groups; only images among them have parameters."""
        self.space, found = space, sources(space)
        self.shapes = tuple(leaf.shape for _, leaf in leaves(space))
        layers = [_layer(leaves(space)[source.leaf][1], source, generator, scaling) for source in found]
        self.layers = nnx.List([layer for layer in layers if layer is not None])
        sizes = iter([layer.outputs for layer in self.layers])
        self.sources = tuple(
            source if layer is None else source._replace(group=FeatureGroup(source.group.name, (next(sizes),)))
            for source, layer in zip(found, layers, strict=True)
        )

    @property
    def groups(self) -> list[FeatureGroup]:
        """The groups, sorted by name."""
        return [source.group for source in self.sources]

    def __call__(self, obs: Tree) -> tuple[tuple[int, ...], list[Tokens]]:
        """Return the leading axes of observations `[..., *shape]`, and their tokens with those axes made one."""
        arrays = jax.tree.leaves(obs)
        batch = arrays[0].shape[: arrays[0].ndim - len(self.shapes[0])]
        n = math.prod(batch)
        arrays = [x.reshape(n, *shape) for x, shape in zip(arrays, self.shapes, strict=True)]
        layers, found = iter(self.layers), []
        for group, leaf, name in self.sources:
            space = leaves(self.space)[leaf][1]
            x = arrays[leaf] if is_group(space) else next(layers)(arrays[leaf])
            x = split_groups(space, x)[name] if name else x
            found.append(_tokens(group, x.reshape(n, group.tokens, group.shape[-1]).astype(jnp.float32)))
        return batch, found


def _tokens(group: FeatureGroup, features: jax.Array) -> Tokens:
    if group.valid is None:
        return Tokens(features, jnp.ones(features.shape[:-1], bool))
    valid = features[..., group.valid] > 0.5
    return Tokens(jnp.where(valid[..., None], features, 0.0), valid)


def is_group(leaf: Leaf) -> bool:
    """Whether a leaf is read as tokens, rather than made into one by a layer."""
    return isinstance(leaf, Box) and (bool(leaf.groups) or (leaf.is_float and len(leaf.shape) > 1))


def _layer(leaf: Leaf, source: GroupSource, generator: np.random.Generator, scaling: Scaling) -> Encoder | None:
    return None if is_group(leaf) else Encoder(leaf, generator, scaling)


class Embedding(nnx.Module):
    """Vectors `[n, tokens, size]` for the tokens of one group, normalised; places along ordered axes are told apart."""

    def __init__(self, group: FeatureGroup, size: int, generator: np.random.Generator):
        """Draw the weights: two layers, and a vector for each place along each ordered axis."""
        self.shape, self.ordered = group.shape[:-1], group.ordered
        self.first = Linear(group.shape[-1], size, math.sqrt(2.0), generator)
        self.places = nnx.List(
            [nnx.Param(jax.device_put(_places(generator, self.shape[axis], size))) for axis in group.ordered]
        )
        self.second = Linear(size, size, 1.0, generator)
        self.norm = Norm(size)

    def __call__(self, features: jax.Array) -> jax.Array:
        """Embed features `[n, tokens, features]`."""
        x = self.first(features)
        for axis, places in zip(self.ordered, self.places, strict=True):
            sides = [1] * len(self.shape)
            sides[axis] = self.shape[axis]
            table = jnp.broadcast_to(places[...].reshape(*sides, -1), (*self.shape, x.shape[-1]))
            x = x + table.reshape(-1, x.shape[-1])  # [*axes of tokens, size] -> [tokens, size]
        return self.norm(self.second(nnx.relu(x)))


def _places(generator: np.random.Generator, count: int, size: int) -> np.ndarray:
    return orthogonal(generator, count, size).astype(np.float32)
