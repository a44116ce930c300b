"""Encoders that read an observation group by group, and attend to its tokens or pool them.

What they make of tokens does not depend on the order of these, unless the group says that its axes are ordered, nor on
the numbers of those that are not there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ludus.networks.attention import Norm, TransformerBlock
from ludus.networks.layers import Torso, orthogonal
from ludus.networks.tokens import Embedding, TokenReader, Tokens
from ludus.spaces import Space
from ludus.types import Scaling, Tree

if TYPE_CHECKING:
    from ludus.networks.encoders import LateFusion, LatentQuery, TokenMLP


class PooledPerceptrons(nnx.Module):
    """A perceptron for each group, whose outputs are pooled over tokens by their greatest (arXiv 1612.00593)."""

    def __init__(self, config: "TokenMLP", space: Space, generator: np.random.Generator, scaling: Scaling):
        """Draw the weights."""
        self.reader = TokenReader(space, generator, scaling)
        groups, size = self.reader.groups, config.hidden_sizes[0]
        self.embeddings = nnx.List([Embedding(group, size, generator) for group in groups])
        self.torsos = nnx.List([Torso(size, config.hidden_sizes, config.activation, generator) for _ in groups])
        self.outputs = sum(torso.outputs for torso in self.torsos)

    def __call__(self, obs: Tree) -> jax.Array:
        """Return `[..., outputs]`: what the groups come to side by side, zeros for one without a token."""
        batch, groups = self.reader(obs)
        layers = zip(self.embeddings, self.torsos, groups, strict=True)
        pooled = [_greatest(torso(embed(tokens.features)), tokens.valid) for embed, torso, tokens in layers]
        return jnp.concatenate(pooled, axis=-1).reshape(*batch, self.outputs)


def _greatest(x: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the greatest of `x` `[n, tokens, size]` over valid tokens; zeros where there is none."""
    greatest = jnp.where(valid[..., None], x, -jnp.inf).max(axis=1)
    return jnp.where(greatest > -jnp.inf, greatest, 0.0)


class LatentAttention(nnx.Module):
    """Learnt latent vectors ask the tokens, then one another, again and again (Perceiver, arXiv 2103.03206)."""

    def __init__(self, config: "LatentQuery | LateFusion", depth: int, generator: np.random.Generator):
        """Draw the latent vectors and the blocks: one pair for all rounds if they are tied, else one for each."""
        size = config.model_dim
        self.latents = nnx.Param(jax.device_put(orthogonal(generator, config.num_latents, size).astype(np.float32)))
        pairs = 1 if config.tied else depth
        self.across = nnx.List([_block(config, depth, generator) for _ in range(pairs)])
        self.among = nnx.List([_block(config, depth, generator) for _ in range(pairs)])
        self.depth = depth

    def __call__(self, tokens: jax.Array, valid: jax.Array) -> jax.Array:
        """Return the latents `[n, latents, size]` after all rounds."""
        latents, pairs = self.latents[...], len(self.across)
        h = jnp.broadcast_to(latents, (tokens.shape[0], *latents.shape))
        all_there = jnp.ones(h.shape[:2], bool)
        for i in range(self.depth):
            across, among = self.across[i % pairs], self.among[i % pairs]
            h = across.mix(h, across.attend_unordered(*across.heads_across(h, tokens), valid))
            h = among.mix(h, among.attend_unordered(*among.heads(h), all_there))
        return h


def _block(config: "LatentQuery | LateFusion", depth: int, generator: np.random.Generator) -> TransformerBlock:
    size, heads, wide = config.model_dim, config.num_heads, config.feedforward_dim
    return TransformerBlock(size, heads, wide, 2 * depth, 0.0, generator, config.rezero)


class LatentQueries(nnx.Module):
    """Latent vectors that ask the tokens of all groups at once."""

    def __init__(self, config: "LatentQuery", space: Space, generator: np.random.Generator, scaling: Scaling):
        """Draw the weights."""
        self.reader = TokenReader(space, generator, scaling)
        self.outputs = config.model_dim
        self.embeddings = nnx.List([Embedding(group, self.outputs, generator) for group in self.reader.groups])
        self.attention = LatentAttention(config, config.depth, generator)
        self.norm = Norm(self.outputs)

    def __call__(self, obs: Tree) -> jax.Array:
        """Return `[..., outputs]`: the mean of the latents."""
        batch, groups = self.reader(obs)
        latents = self.attention(_embedded(self.embeddings, groups), jnp.concatenate([g.valid for g in groups], axis=1))
        return self.norm(latents).mean(axis=1).reshape(*batch, self.outputs)


class FusedGroups(nnx.Module):
    """Latent vectors for each group, which ask its tokens alone; then others ask all of those (arXiv 2207.05844)."""

    def __init__(self, config: "LateFusion", space: Space, generator: np.random.Generator, scaling: Scaling):
        """Draw the weights."""
        self.reader = TokenReader(space, generator, scaling)
        self.outputs = config.model_dim
        self.embeddings = nnx.List([Embedding(group, self.outputs, generator) for group in self.reader.groups])
        self.attentions = nnx.List([LatentAttention(config, config.depth, generator) for _ in self.reader.groups])
        self.norm_groups, self.norm = Norm(self.outputs), Norm(self.outputs)
        self.fusion = LatentAttention(config, 1, generator)

    def __call__(self, obs: Tree) -> jax.Array:
        """Return `[..., outputs]`: the mean of the latents that fuse the groups."""
        batch, groups = self.reader(obs)
        layers = zip(self.embeddings, self.attentions, groups, strict=True)
        found = [attention(embed(tokens.features), tokens.valid) for embed, attention, tokens in layers]
        latents = self.norm_groups(jnp.concatenate(found, axis=1))
        latents = self.fusion(latents, jnp.ones(latents.shape[:2], bool))
        return self.norm(latents).mean(axis=1).reshape(*batch, self.outputs)


def _embedded(embeddings: Sequence[Embedding], groups: Sequence[Tokens]) -> jax.Array:
    """Return the vectors of all tokens, `[n, all tokens, size]`."""
    return jnp.concatenate([embed(tokens.features) for embed, tokens in zip(embeddings, groups, strict=True)], axis=1)
