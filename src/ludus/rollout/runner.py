"""The two ways to run environments, with one signature: compiled for JAX environments, in Python for all others."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol

import jax

from ludus.envs.base import AnyEnv
from ludus.envs.batch import JaxEnv
from ludus.rollout import compiled, compiled_episodes, host, host_episodes, host_monte_carlo, monte_carlo, revisit
from ludus.rollout.acting import Actor
from ludus.rollout.episodes import Enough, Look, Played, Watched
from ludus.rollout.monte_carlo import FirstBranch, Origin, Valuing
from ludus.rollout.revisit import PlayBranch
from ludus.runtime.compilation import Options
from ludus.types import (
    Array,
    Branching,
    Course,
    EpisodeStats,
    Match,
    Mode,
    Rollout,
    RolloutKeys,
    Transition,
    Tree,
    Valuation,
    Watch,
)


class Begin(Protocol):
    """Starts every environment; returns where they are, which goes on from rollout to rollout."""

    def __call__(self, algorithm: Actor, env: Any, policy: Tree, key: jax.Array, course: Course = ...) -> Any:
        """Return the carry."""
        ...


class Collect(Protocol):
    """Makes one rollout; see `compiled.collect`."""

    def __call__(  # noqa: PLR0913  each part of a rollout is given by itself
        self,
        algorithm: Valuing,
        env: Any,
        policy: Tree,
        carry: Tree,
        keys: RolloutKeys,
        num_steps: int,
        threshold: int = 0,
        episodes_left: Array | None = None,
        *,
        course: Course = ...,
        watch: Watch | None = None,
        valuation: Valuation | None = None,
    ) -> tuple[Any, Rollout, EpisodeStats]:
        """Return the carry after it, the rollout, and what its episodes came to."""
        ...


class Play(Protocol):
    """Plays the episodes of an evaluation on separate environments."""

    def __call__(self, algorithm: Valuing, env: Any, policy: Tree, key: jax.Array, match: Match) -> Played:
        """Return what they came to."""
        ...


class WatchEpisode(Protocol):
    """Plays one of the episodes that `Play` plays, and keeps all of its steps."""

    def __call__(
        self, look: Look, parts: Tree, memory: Tree, env: Any, key: jax.Array, index: int, most: int, enough: Enough
    ) -> Watched:
        """Return episode `index`, of `most` steps at most."""
        ...


class Revisit(Protocol):
    """Comes back to states of an episode that `WatchEpisode` has played; see `revisit.revisit`."""

    def __call__(
        self, look: Look, parts: Tree, memory: Tree, env: Any, key: jax.Array, index: int, at: Sequence[int]
    ) -> list[Origin]:
        """Return where it is before steps `at`, in one origin or in several."""
        ...


class RollOut(Protocol):
    """Plays several branches from given states; see `monte_carlo.roll_out`."""

    def __call__(  # noqa: PLR0913  each part of a rollout is given by itself
        self,
        algorithm: Actor,
        env: Any,
        policy: Tree,
        origin: Origin,
        key: jax.Array,
        depth: int,
        branches: int = 1,
        *,
        mode: Mode = "sample",
        first: FirstBranch = ...,
    ) -> Transition:
        """Return their steps `[depth, branches, N, ...]`."""
        ...


class BranchReturns(Protocol):
    """Plays several branches from given states; see `monte_carlo.returns`."""

    def __call__(  # noqa: PLR0913  each part of a rollout is given by itself
        self,
        algorithm: Valuing,
        env: Any,
        policy: Tree,
        critic: Tree,
        origin: Origin,
        key: jax.Array,
        branching: Branching,
        *,
        mode: Mode = "sample",
        first: FirstBranch = ...,
        begin_with: Tree = None,
    ) -> Any:
        """Return their discounted returns `[branches, N]`."""
        ...


class Runner(NamedTuple):
    """One way to run environments."""

    kind: Literal["compiled", "host"]
    begin: Begin
    """Inside a program, where there is one."""
    start: Begin
    """As a program of its own."""
    collect: Collect
    play: Play
    watch: WatchEpisode
    snapshot: Callable[[Any], dict[str, Any]]
    """Returns what it takes, besides the carry, to come back to where the environments are."""
    restore: Callable[[Any, dict[str, Any], Any], bool]
    """Brings environments to where they were by a snapshot and a carry; returns whether they are there."""
    compile_update: Callable[[Callable, Options, tuple[str, ...]], Callable]
    """Returns an update as it has to be called: compiled, if it is a program of its own."""
    whole: Callable[[Callable], Callable]
    """Returns a rollout, all of whose settings are given, as a program of its own."""
    is_pure: bool
    """Whether an episode that another thread plays can disturb no other."""
    here: Callable[[Any, Any], Origin]
    """Returns where the environments of a carry are, for branches to begin there."""
    roll_out: RollOut
    returns: BranchReturns
    """Of host environments, the branches of their `twin`."""
    check_branching: Callable[[Any, Branching], None]
    """Refuses environments from whose states no branches can be played."""
    revisit: Revisit
    branching_off: Callable[..., AbstractContextManager[PlayBranch]]
    """Returns what plays branches one by one from the origins of `revisit`; see `revisit.branching_off`."""


COMPILED = Runner(
    "compiled",
    compiled.begin,
    compiled.start,
    compiled.collect,
    compiled_episodes.play,
    compiled_episodes.watch,
    compiled.snapshot,
    compiled.restore,
    compiled.compile_update,
    compiled.whole,
    is_pure=True,
    here=monte_carlo.here,
    roll_out=monte_carlo.roll_out,
    returns=monte_carlo.returns,
    check_branching=monte_carlo.check_branching,
    revisit=revisit.revisit,
    branching_off=revisit.branching_off,
)
HOST = Runner(
    "host",
    host.begin,
    host.start,
    host.collect,
    host_episodes.play,
    host_episodes.watch,
    host.snapshot,
    host.restore,
    host.compile_update,
    host.whole,
    is_pure=False,  # environments may share anything
    here=host_monte_carlo.here,
    roll_out=host_monte_carlo.roll_out,
    returns=host_monte_carlo.returns,
    check_branching=host_monte_carlo.check_branching,
    revisit=revisit.host_revisit,
    branching_off=revisit.host_branching_off,
)


def runner(env: AnyEnv) -> Runner:
    """Return the way to run `env`: the one place in the package that asks which kind it is."""
    return COMPILED if isinstance(env, JaxEnv) else HOST
