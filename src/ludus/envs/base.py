"""The two kinds of environment that the rest of the package knows.

`Environment` is one simulator as pure JAX functions; `envs.vector.VectorEnv` makes a batch of it.
`HostEnv` is a batch of anything else, stepped from Python. Both deliver same-step resets with the true
successor kept, so a learner never learns which one it was fed by.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ludus.envs.episode_info import EpisodeInfo
from ludus.spaces import Space, flatten, leaves, map_leaves, mask_size, unflatten
from ludus.types import LudusError, Step


class Environment:
    """One simulator as pure functions: subclass it as a frozen dataclass whose fields are the physics.

    Equal instances compile once, so keep the fields hashable.
    """

    observation_space: ClassVar[Space]
    action_space: ClassVar[Space]
    max_episode_steps: ClassVar[int | None] = None
    """Episodes are truncated after so many steps; None leaves truncation to `step`."""
    return_threshold: ClassVar[float | None] = None
    """The mean return from which on the task counts as solved; None if nobody has said."""

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: `(state, obs)`."""
        raise NotImplementedError

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Step]:
        """Advance one step; the returned `Step` is what happened before any reset."""
        raise NotImplementedError

    def action_mask(self, state: Any) -> Any:
        """Return which actions are allowed in a state, as `ludus.Masked` says; None if all always are."""
        return None


def check_environment(env: Environment, id: str) -> None:
    """Refuse an environment that does not keep the contract, by asking for the shapes of one reset and one step."""
    import jax  # here, because worker processes of host environments import this file and have no use for JAX

    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), Space):
            raise LudusError(f"{id}: {name} must be a space of ludus.spaces, such as Box or Discrete")
    try:
        hash(env)
    except TypeError as error:
        raise LudusError(f"{id}: must be hashable: a frozen dataclass without arrays or lists ({error})") from error
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = map_leaves(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), env.action_space)
    state, obs = _shapes(env.reset, f"{id}: reset(key) must return (state, obs)", key)
    after, step = _shapes(
        env.step, f"{id}: step(state, action, key) must return (state, ludus.Step)", state, action, key
    )
    if not isinstance(step, Step):
        raise LudusError(f"{id}: step must return (state, ludus.Step), got {type(step).__name__}")
    _check_observation(env, id, "reset", obs)
    _check_observation(env, id, "step", step.obs)
    _check_mask(env, id, state)
    for what, got, wanted in (
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


def _check_observation(env: Environment, id: str, method: str, obs: Any) -> None:
    """Compare shapes leaf by leaf, and bytes with bytes: only those are scaled by their bounds."""
    import jax

    space, what = env.observation_space, f"{id}: the observation of {method}"
    try:
        parts = flatten(space, obs)
    except ValueError as error:
        raise LudusError(f"{what} is unlike its space: {error}") from error
    for (name, leaf), part in zip(leaves(space), parts, strict=True):
        where = f"{what} {name!r}" if name else what
        got = getattr(part, "shape", type(part).__name__)
        if got != leaf.shape:
            raise LudusError(f"{where} has shape {got}, but must have {leaf.shape}")
        if (part.dtype == np.uint8) != (leaf.dtype == "uint8"):
            raise LudusError(f"{where} is {part.dtype}, but its space says {leaf.dtype}")
    if jax.tree.structure(obs) != jax.tree.structure(unflatten(space, parts)):
        raise LudusError(f"{what} must be made of plain dicts and tuples, got {type(obs).__name__}")


def _check_mask(env: Environment, id: str, state: Any) -> None:
    import jax

    mask, size = jax.eval_shape(env.action_mask, state), mask_size(env.action_space)
    if mask is None:
        return
    if size is None:
        raise LudusError(
            f"{id}: has an action_mask, but masks are for Discrete and MultiDiscrete actions, not {env.action_space}"
        )
    if getattr(mask, "shape", None) != (size,) or mask.dtype != bool:
        got = f"{mask.dtype} of shape {mask.shape}" if hasattr(mask, "shape") else type(mask).__name__
        raise LudusError(f"{id}: action_mask must return {size} booleans for {env.action_space}, got {got}")


def _shapes(function: Any, contract: str, *arguments: Any) -> tuple[Any, Any]:
    import jax

    try:
        first, second = jax.eval_shape(function, *arguments)
    except (TypeError, ValueError) as error:
        raise LudusError(f"{contract} ({str(error).splitlines()[0]})") from error
    return first, second


class HostStep(NamedTuple):
    """One step of a batch on the host: `next_obs` is the true successor, `obs` what to act on next.

    Where `broken` is True nothing happened that may be learnt from: the running episode was lost, and `obs` is the
    start of another. It is None from an environment that cannot break.
    """

    next_obs: Any
    obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: Sequence[EpisodeInfo] = ()
    """What `info` came to so far in every running episode, for consecutive parts of the batch."""
    broken: np.ndarray | None = None


class HostEnv(Protocol):
    """A batch of environments that live outside JAX. Arrays it returns may be reused by the next call.

    Observations and actions are arrays `[num_envs, ...]`, or dicts and tuples of them as the spaces say; observations
    of an environment with action masks are `Masked`.
    """

    id: str
    options: Any
    """What `make_env` was given besides the id, for the record: pairs of name and value."""
    num_envs: int
    observation_space: Space
    action_space: Space
    return_threshold: float | None
    """The mean return from which on the task counts as solved; None if nobody has said."""
    max_episode_steps: int | None
    """The limit of steps that episodes have; None if none is known."""
    needs_restart: bool
    """Whether running episodes are lost, so that the next rollout must begin with `restart`."""

    def reset(self, seeds: Sequence[int]) -> Any:
        """Start one episode in each of the first `len(seeds)` environments, seeded one by one."""
        ...

    def step(self, action: Any) -> HostStep:
        """Advance every environment; those that ended have been reset already."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return, as arrays or as `Growing` ones, what it takes to come back to where the environments are."""
        ...

    def restore(self, saved: dict[str, Any]) -> Any:
        """Come back to where a snapshot was taken, as far as that is possible; return a `Recalled`."""
        ...

    def restart(self) -> Any:
        """Give running episodes up and start others; return what they show."""
        ...

    def remake(self, num_envs: int) -> "HostEnv":
        """Return separate environments of the same kind, for evaluation."""
        ...

    def close(self) -> None:
        """Free what the environments hold."""
        ...
