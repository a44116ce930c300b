"""Dropout (Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html), in gradient passes alone.

Modules are built with their dropout switched off, and stay so wherever a policy acts, is evaluated or is updated: with
it, the policy that acted and the one that learns would not be the same, and ratios would not begin at 1. A pass that
fits values or rewards may switch it on.
"""

from typing import TypeVar

import jax
from flax import nnx

Kind = TypeVar("Kind", bound=nnx.Module)


def with_dropout(module: Kind, key: jax.Array) -> Kind:
    """Switch on all dropout of a module, in place, and return it; each layer draws from a key of its own.

    For one pass: call it inside the function that is differentiated, on a module merged there from its parameters.
    """
    layers = [layer for _, layer in nnx.iter_modules(module) if isinstance(layer, nnx.Dropout)]
    for number, layer in enumerate(layers):
        layer.deterministic = False
        layer.rngs = nnx.Rngs(dropout=jax.random.fold_in(key, number)).dropout
    return module
