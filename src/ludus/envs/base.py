"""The two kinds of environment that the rest of the package knows.

`Environment` is one simulator as pure JAX functions; `envs.vector.VectorEnv` makes a batch of it.
`HostEnv` is a batch of anything else, stepped from Python. Both deliver same-step resets with the true
successor kept, so a learner never learns which one it was fed by.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import numpy as np

from ludus.spaces import Box, Discrete, Space
from ludus.types import LudusError, Step


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


def check_environment(env: Environment, id: str) -> None:
    """Refuse an environment that does not keep the contract, by asking for the shapes of one reset and one step."""
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), Discrete | Box):
            raise LudusError(f"{id}: {name} must be a ludus.spaces.Box or ludus.spaces.Discrete")
    try:
        hash(env)
    except TypeError as error:
        raise LudusError(f"{id}: must be hashable: a frozen dataclass without arrays or lists ({error})") from error
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = jax.ShapeDtypeStruct(env.action_space.shape, env.action_space.dtype)
    state, obs = _shapes(env.reset, f"{id}: reset(key) must return (state, obs)", key)
    after, step = _shapes(
        env.step, f"{id}: step(state, action, key) must return (state, ludus.Step)", state, action, key
    )
    if not isinstance(step, Step):
        raise LudusError(f"{id}: step must return (state, ludus.Step), got {type(step).__name__}")
    shape = env.observation_space.shape
    for what, got, wanted in (
        ("the observation of reset", obs, shape),
        ("the observation of step", step.obs, shape),
        ("the reward", step.reward, ()),
        ("terminated", step.terminated, ()),
        ("truncated", step.truncated, ()),
    ):
        if getattr(got, "shape", None) != wanted:
            raise LudusError(
                f"{id}: {what} has shape {getattr(got, 'shape', type(got).__name__)}, but must have {wanted}"
            )
    if jax.tree.map(lambda x: (x.shape, x.dtype), state) != jax.tree.map(lambda x: (x.shape, x.dtype), after):
        raise LudusError(f"{id}: step must return a state of the same shapes and types as reset")
    if step.terminated.dtype != bool or step.truncated.dtype != bool:
        raise LudusError(f"{id}: terminated and truncated must be booleans")


def _shapes(function: Any, contract: str, *arguments: Any) -> tuple[Any, Any]:
    try:
        first, second = jax.eval_shape(function, *arguments)
    except (TypeError, ValueError) as error:
        raise LudusError(f"{contract} ({str(error).splitlines()[0]})") from error
    return first, second


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
