"""Environments as the rest of the package knows them: single simulators, and batches of two kinds.

`Environment` is one simulator as pure JAX functions; `envs.batch.JaxEnv` makes a batch of it. `HostEnv` is a batch of
anything else, stepped from Python. Both kinds reset an ended episode within the same step and keep its true last
observation, so a learner need not know which kind it learns from. `AnyEnv` is what both have.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ludus.envs.host.action_log import Recalled
from ludus.envs.host.info_stats import EpisodeInfo
from ludus.spaces import Space
from ludus.types import LudusError, Step, Tree

if TYPE_CHECKING:
    import jax  # worker processes of host environments import this file, and have no use for JAX

State: TypeAlias = Tree
"""A pytree of arrays: whatever a JAX environment must remember of its running episode."""
Observation: TypeAlias = Tree
"""An array, or dicts and tuples of arrays, as the observation space says; `Masked` where actions can be forbidden."""
Action: TypeAlias = Tree
"""An array, or dicts and tuples of arrays, as the action space says."""
Options: TypeAlias = Mapping[str, Any] | tuple[tuple[str, Any], ...]
"""Names and values, as `dict` takes them."""


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

    def reset(self, key: "jax.Array") -> tuple[State, Observation]:
        """Start an episode: `(state, obs)`."""
        raise NotImplementedError

    def step(self, state: State, action: Action, key: "jax.Array") -> tuple[State, Step]:
        """Advance one step; the returned `Step` is what happened before any reset."""
        raise NotImplementedError

    def action_mask(self, state: State) -> "jax.Array | None":
        """Return which actions are allowed in a state, as `ludus.Masked` says; None if all always are."""
        return None

    def scene(self, state: State) -> Mapping[str, "jax.Array"]:
        """Return what it takes to draw a state and its observation does not show: arrays by name, for films."""
        return {}


class Supply:
    """The source of a batch's starts where it is read from a disk while a run goes on; here there is none."""

    data: Tree = ()
    """What is on the device of it: handed to every program, and no part of a checkpoint."""

    def first(self) -> Tree:
        """Return what drawing remembers before the first episode; a checkpoint holds it."""
        return ()

    def take_up(self, starts: Tree) -> None:
        """Bring to the device what is drawn from after a checkpoint that held this."""

    def until_next(self, iteration: int) -> int | None:
        """Return how many iterations may be made until what is on the device is exchanged; None if it never is."""
        return None

    def exchanged(self, starts: Tree, iteration: int) -> Tree | None:
        """Before an iteration, exchange it if that is due; return what drawing remembers then, or None if it is not."""
        return None


@runtime_checkable
class AnyEnv(Protocol):
    """A batch of either kind: the attributes and methods that both kinds have."""

    @property
    def id(self) -> str:
        """Library and name, as `make_env` takes them again; `object:` and a class for what was made in Python."""
        ...

    @property
    def options(self) -> Options:
        """The options that `make_env` was given, for the record."""
        ...

    @property
    def num_envs(self) -> int:
        """The number of environments in the batch."""
        ...

    @property
    def observation_space(self) -> Space:
        """The space of one environment's observations."""
        ...

    @property
    def action_space(self) -> Space:
        """The space of one environment's actions."""
        ...

    @property
    def return_threshold(self) -> float | None:
        """The mean return from which on the task counts as solved; None if nobody has said."""
        ...

    @property
    def max_episode_steps(self) -> int | None:
        """The limit of steps that episodes have; None if none is known."""
        ...

    @property
    def env_wrappers(self) -> Sequence[str | dict[str, Any]]:
        """The wrappers that `make_env` was given, for the record."""
        ...

    @property
    def worker_settings(self) -> dict[str, Any]:
        """The keys about workers that `make_env` was given, for the record: a number where "auto" was asked for."""
        ...

    @property
    def placement(self) -> str:
        """In words, where the environments are stepped and why there; empty if there is nothing to say."""
        ...

    @property
    def has_pictures(self) -> bool:
        """True if an environment of this kind can draw itself."""
        ...

    @property
    def num_held_out(self) -> int | None:
        """Number of scenarios in the evaluation set; None where episodes are not drawn from scenarios."""
        ...

    def kinds_held_out(self, count: int) -> Sequence[str]:
        """Return of which kind the first `count` scenarios of the evaluation set are; nothing where there is none."""
        ...

    def remake(self, num_envs: int) -> "AnyEnv":
        """Return separate environments of the same kind, for evaluation."""
        ...

    def supply(self, seed: int) -> Supply:
        """Return what a run with this seed draws its starts from."""
        ...

    def led(self, names: Sequence[str]) -> "AnyEnv":
        """Return environments whose parameters of these names a curriculum can lead; LudusError if there are none."""
        ...

    def close(self) -> None:
        """Free what the environments hold."""
        ...


UNCLONABLE = (
    "cannot be cloned in the midst of an episode, as Monte-Carlo rollouts need it; those of JAX and Gymnasium can"
)


class HostStep(NamedTuple):
    """One step of a batch on the host: `next_obs` is the true successor, `obs` what to act on next.

    Where `broken` is True nothing happened that may be learnt from: the running episode was lost, and `obs` is the
    start of another. It is None from an environment that cannot break.
    """

    next_obs: Observation
    obs: Observation
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: Sequence[EpisodeInfo] = ()
    """The sums of `info` so far in every running episode, for consecutive parts of the batch."""
    broken: np.ndarray | None = None


class HostEnv(Protocol):
    """A batch of environments that live outside JAX. Arrays it returns may be reused by the next call.

    A subclass has the defaults of what is optional; `AnyEnv` says what each attribute means. Observations and actions
    are arrays `[num_envs, ...]`, or dicts and tuples of them as the spaces say; observations of an environment with
    action masks are `Masked`.
    """

    id: str
    options: dict[str, Any]
    num_envs: int
    observation_space: Space
    action_space: Space
    return_threshold: float | None = None
    max_episode_steps: int | None = None
    env_wrappers: Sequence[str | dict[str, Any]] = ()
    placement: str = ""
    needs_restart: bool = False
    """True if running episodes are lost, so that the next rollout must begin with `restart`."""

    @property
    def worker_settings(self) -> dict[str, Any]:
        """The keys about workers that `make_env` was given: by default, that there are none."""
        return {"num_workers": 0}

    @property
    def has_pictures(self) -> bool:
        """True if an environment of this kind can draw itself."""
        return False

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start one episode in each of the first `len(seeds)` environments, seeded one by one."""
        raise NotImplementedError

    def step(self, action: Action) -> HostStep:
        """Advance every environment; those that ended have been reset already."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, Any]:
        """Return, as arrays or as `Growing` ones, what it takes to come back to where the environments are."""
        raise NotImplementedError

    def restore(self, saved: dict[str, np.ndarray]) -> Recalled:
        """Come back to where a snapshot was taken, as far as that is possible."""
        raise NotImplementedError

    def restart(self) -> Observation:
        """Give running episodes up and start others; return what they show."""
        raise NotImplementedError

    @property
    def num_held_out(self) -> int | None:
        """That episodes are not drawn from scenarios."""
        return None

    def kinds_held_out(self, count: int) -> Sequence[str]:
        """Return nothing."""
        return ()

    def remake(self, num_envs: int) -> "HostEnv":
        """Return separate environments of the same kind, for evaluation."""
        raise NotImplementedError

    def supply(self, seed: int) -> Supply:
        """Return that nothing is drawn from."""
        return Supply()

    def led(self, names: Sequence[str]) -> "HostEnv":
        """Return itself, where no names are given: nothing outside JAX can be led."""
        if names:
            raise LudusError(f"curriculum.{names[0]}: {self.id} is not written in JAX, and has no parameters to lead")
        return self

    def close(self) -> None:
        """Free what the environments hold; by default, nothing."""

    def twin(self) -> "HostEnv":
        """Return a second batch, which `branch_off` brings to where this one is; LudusError where none can be."""
        raise LudusError(f"env={self.id}: {UNCLONABLE}")

    def branch_off(self, saved: dict[str, Any], seeds: Sequence[int]) -> Observation:
        """Come to where another batch took a snapshot, and go on from there with luck of its own, by these seeds.

        Environments that a `twin` returned have it.
        """
        raise LudusError(f"env={self.id}: {UNCLONABLE}")
