"""A trained policy: what it is, how it is saved, how it is loaded. One file holds all of it, normaliser included."""

import secrets
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.policy_file import Learned, load, save
from ludus.runtime.rng import stream
from ludus.types import LudusError, Tree

FORMAT = "ludus-policy-1"
FINAL = Path("policies") / "final_actor.safetensors"
BEST = Path("policies") / "best_return_pi_ckpt.safetensors"
BEST_BY = Path("policies") / "best_pi_ckpt.safetensors"
"""The best policy where `checkpoint.best_by` says by what."""


class Policy(Learned):
    """A policy that can act on its own: call it with an observation, or a batch of them."""

    def __call__(self, obs: Tree, memory: Tree = None, *, deterministic: bool = True, seed: int | None = None) -> Any:
        """Return the action for one observation or a batch; with a memory, `(action, memory)`.

        Args:
            obs: one observation or a batch; a `ludus.Masked` one says which actions are allowed.
            memory: of a recurrent policy: `policy.initial_memory()` at first, then what it returned.
            deterministic: take the greedy action; False samples from the policy's distribution.
            seed: decides what is sampled, so give another one at each step; None takes chance as it comes.
        """
        if deterministic and seed is not None:
            raise LudusError(f"seed={seed}: goes with deterministic=False; a greedy action leaves nothing to chance")
        batch, single = self.as_batch(obs)
        count = len(jax.tree.leaves(batch)[0])
        start = self.initial_memory(count) if memory is None else memory
        if deterministic:
            new_memory, action = _greedy(self.acting, self.state, start, batch)
        else:
            key = stream(secrets.randbits(64) if seed is None else seed, "sample")
            new_memory, action = _sampled(self.acting, self.state, start, batch, key, count)
        action = jax.tree.map(lambda x: np.asarray(x)[0] if single else np.asarray(x), action)
        return action if memory is None else (action, new_memory)


@jax.jit
def _greedy(algorithm: Algorithm, state: Tree, memory: Tree, obs: Tree) -> tuple[Any, Any]:
    return algorithm.act(state, memory, obs, None, "greedy")[:2]


@partial(jax.jit, static_argnames=("count",))
def _sampled(algorithm: Algorithm, state: Tree, memory: Tree, obs: Tree, key: jax.Array, count: int) -> tuple[Any, Any]:
    return algorithm.act(state, memory, obs, algorithm.noise(state, key, (count,)), "sample")[:2]


def save_policy(policy: Policy, path: Path) -> None:
    """Write a policy as one safetensors file: a format that holds numbers and text, and can execute nothing."""
    save(policy, FORMAT, path)


def load_policy(path: str | Path, algorithm: Algorithm | None = None) -> Policy:
    """Load the final policy of a run folder, or a policy file.

    Args:
        path: a run folder, a policy file, or a PyTorch file that ludus wrote.
        algorithm: the algorithm it was trained with; needed only if that held your own network.
    """
    path = Path(path)
    file = path / FINAL if path.is_dir() else path
    return load(Policy, FORMAT, file, algorithm, lambda algorithm, state: algorithm.policy(state))
