"""A trained policy: what it is, how it is saved, how it is loaded. One file holds all of it, normaliser included."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ludus.learned import Learned, load, save

FORMAT = "ludus-policy-1"
FINAL = Path("policies") / "final_actor.safetensors"
BEST = Path("policies") / "best_return_pi_ckpt.safetensors"


class Policy(Learned):
    """A policy that can act on its own: call it with an observation, or a batch of them."""

    def __call__(self, obs: Any, memory: Any = None) -> Any:
        """Return the greedy action for one observation or a batch; with a memory, `(action, memory)`.

        A `ludus.Masked` observation says which actions are allowed.
        A recurrent policy is called with `memory=policy.initial_memory()` first, then with what it returned.
        """
        batch, single = self.as_batch(obs)
        start = self.initial_memory(len(jax.tree.leaves(batch)[0])) if memory is None else memory
        new_memory, action = _greedy(self.algorithm, self.state, start, batch)
        action = jax.tree.map(lambda x: np.asarray(x)[0] if single else np.asarray(x), action)
        return action if memory is None else (action, new_memory)


@jax.jit
def _greedy(algorithm: Any, state: Any, memory: Any, obs: Any) -> tuple[Any, Any]:
    return algorithm.act(state, memory, obs, None, "greedy")[:2]


def save_policy(policy: Policy, path: Path) -> None:
    """Write a policy as one safetensors file: a format that holds numbers and text, and can execute nothing."""
    save(policy, FORMAT, path)


def load_policy(path: str | Path, algorithm: Any = None) -> Policy:
    """Load the final policy of a run folder, or a policy file.

    Args:
        path: a run folder or a `.safetensors` policy file.
        algorithm: the algorithm it was trained with; needed only if that held your own network.
    """
    path = Path(path)
    file = path / FINAL if path.is_dir() else path
    return load(Policy, FORMAT, file, algorithm, lambda algorithm, state: algorithm.policy(state))
