"""The two kinds of environment that the rest of the package knows.

`Environment` is one simulator as pure JAX functions; `envs.vector.VectorEnv` makes a batch of it.
`HostEnv` is a batch of anything else, stepped from Python. Both deliver same-step resets with the true
successor kept, so a learner never learns which one it was fed by.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ludus.spaces import Space
from ludus.types import Step


class Environment:
    """One simulator as pure functions: subclass it as a frozen dataclass whose fields are the physics.

    Equal instances compile once, so keep the fields hashable.
    """

    observation_space: ClassVar[Space]
    action_space: ClassVar[Space]
    max_episode_steps: ClassVar[int | None] = None
    """Episodes are truncated after so many steps; None leaves truncation to `step`."""

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: `(state, obs)`."""
        raise NotImplementedError

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Step]:
        """Advance one step; the returned `Step` is what happened before any reset."""
        raise NotImplementedError


class HostStep(NamedTuple):
    """One step of a batch on the host: `next_obs` is the true successor, `obs` what to act on next."""

    next_obs: np.ndarray
    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class HostEnv(Protocol):
    """A batch of environments that live outside JAX. Arrays it returns may be reused by the next call."""

    id: str
    options: Any
    """What `make_env` was given besides the id, for the record: pairs of name and value."""
    num_envs: int
    observation_space: Space
    action_space: Space

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start one episode in each of the first `len(seeds)` environments, seeded one by one."""
        ...

    def step(self, action: np.ndarray) -> HostStep:
        """Advance every environment; those that ended have been reset already."""
        ...

    def remake(self, num_envs: int) -> "HostEnv":
        """Return separate environments of the same kind, for evaluation."""
        ...

    def close(self) -> None:
        """Free what the environments hold."""
        ...
