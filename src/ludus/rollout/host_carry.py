"""The state that host environments go on with from rollout to rollout, and the seeds that they start from."""

from typing import Any, NamedTuple

import jax
import numpy as np

from ludus.types import Tree


class HostState(NamedTuple):
    """The observation of every environment, and what its running episode has gathered."""

    obs: Any
    episode_return: np.ndarray
    return_rest: np.ndarray
    """What `episode_return` leaves out by being a float32."""
    episode_length: np.ndarray


class HostCarry(NamedTuple):
    """The state that goes on from rollout to rollout: the environments and the policy's memory."""

    env: HostState
    memory: Tree


def seeds_from(key: jax.Array, count: int, start: int = 0) -> list[int]:
    """Return seeds for environments or episodes `start` to `start + count - 1`, each by its number alone."""
    words = np.asarray(jax.random.key_data(key)).tolist()
    sequences = (np.random.SeedSequence([*words, i]) for i in range(start, start + count))
    return [int(sequence.generate_state(1)[0] >> 1) for sequence in sequences]
