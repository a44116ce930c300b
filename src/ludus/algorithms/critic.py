"""A trained critic: what it is, how it is saved, how it is loaded. One file holds all of it, normalisers included."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.policy_file import Learned, load, save
from ludus.types import LudusError, Tree

FORMAT = "ludus-critic-1"
FINAL = Path("policies") / "final_critic.safetensors"


class Critic(Learned):
    """A critic that can judge on its own: call it with an observation (and an action, for SAC), or a batch of them."""

    def __call__(self, obs: Tree, action: Tree = None, memory: Tree = None) -> Any:
        """Return the value in units of the environment's rewards; with a memory, `(value, memory)`.

        A critic that was trained with `normalize_rewards` saw rewards clipped at ten deviations of the discounted
        return: where that happens, it tells the value of the clipped ones.

        Args:
            obs: one observation or a batch.
            action: for SAC, an action or a batch of them as the environment takes it; the value is the lesser of what
                its two critics say. PPO's critic judges observations alone.
            memory: of a recurrent critic: `critic.initial_memory()` at first, then what it returned.
        """
        if (action is None) == self.algorithm.values_actions:
            expected = "an observation and an action" if self.algorithm.values_actions else "an observation alone"
            raise LudusError(f"{self._name}: is called with {expected}")
        batch, single = self.as_batch(obs)
        if action is not None:
            action, _ = self._arrays(self.spec.action_space, action, "an action")
        start = self.initial_memory(len(jax.tree.leaves(batch)[0])) if memory is None else memory
        new_memory, value = _value(self.acting, self.state, start, batch, action)
        value = np.asarray(value)[0] if single else np.asarray(value)
        return value if memory is None else (value, new_memory)


@jax.jit
def _value(algorithm: Algorithm, state: Tree, memory: Tree, obs: Tree, action: Tree) -> tuple[Any, Any]:
    return algorithm.value(state, memory, obs, action)


def save_critic(critic: Critic, path: Path) -> None:
    """Write a critic as one safetensors file: a format that holds numbers and text, and can execute nothing."""
    save(critic, FORMAT, path)


def load_critic(path: str | Path, algorithm: Algorithm | None = None) -> Critic:
    """Load the final critic of a run folder, or a critic file.

    Args:
        path: a run folder, a critic file, or a PyTorch file that ludus wrote.
        algorithm: the algorithm it was trained with; needed only if that held your own network.
    """
    path = Path(path)
    file = path / FINAL if path.is_dir() else path
    return load(Critic, FORMAT, file, algorithm, lambda algorithm, state: algorithm.critic(state))
