"""The words every room shares. This file imports nothing of ours."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Array = Any
"""One array or number: NumPy's on the host, JAX's on the device, or a traced one inside a compiled program."""
Tree = Any
"""A pytree of arrays: parameters, observations, actions, memories, states."""
Mode = Literal["explore", "sample", "greedy"]
"""How to act: as training does, by chance as the policy says, or by what it holds best."""
IS_SUCCESS = "is_success"
"""Where an environment's `info` says whether an episode succeeded."""


Scaling = Literal["bounds", "bytes"]
"""How numbers lie between spaces and networks: by the bounds of each entry. Before that, bytes were divided by 255
whatever their bounds, and actions mapped onto their bounds only where a whole box had them: "bytes" is for what was
saved then."""


class LudusError(Exception):
    """A mistake the user can mend: one line that names the field, the value and the fix."""


@dataclass(frozen=True)
class Spec:
    """The facts of an environment that an algorithm must know before it builds anything."""

    observation_space: Any
    action_space: Any
    num_envs: int
    scaling: Scaling = "bounds"


class Masked(NamedTuple):
    """An observation and the actions that are allowed there: what an environment with action masks shows.

    `action_mask` holds a boolean for each value of a Discrete action; for MultiDiscrete, for each value of each
    component, one component after the other. At least one value of every component must be allowed.
    """

    obs: Any
    action_mask: Any


def split_mask(obs: Tree) -> tuple[Tree, Array]:
    """Return what is observed and the mask of allowed actions, which is None if there is none."""
    return (obs.obs, obs.action_mask) if isinstance(obs, Masked) else (obs, None)


class Step(NamedTuple):
    """The answer of one environment to one action, before any reset."""

    obs: Any
    reward: Any
    terminated: Any
    truncated: Any = False
    info: Any = ()


class Transition(NamedTuple):
    """The seam between rollout and learning: time-major arrays `[T, B, ...]`.

    `next_obs` is the true successor of `obs`, also where the episode ends: the observation
    after an automatic reset never appears in it. `terminated` and `truncated` are never merged.
    `valid` is None for plain rollouts; otherwise rows where it is False are padding that
    no loss, statistic, counter or minibatch may see.
    """

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    next_obs: Any
    extras: Any
    valid: Any = None


class Rollout(NamedTuple):
    """Transitions, the policy's memory before the first of them, and how far the run was by then.

    `progress` is the share of the run's budget that was spent, in [0, 1]: what schedules follow. `is_start` says that
    every environment begins an episode at the first step, where other rollouts go on with running episodes.
    """

    steps: Transition
    memory: Tree
    progress: Array = 0.0
    is_start: Array = False


class Left(Exception):  # noqa: N818  nothing is wrong
    """The work that was being done is given up: a signal came, or time is over."""


class Watch(NamedTuple):
    """The listener to long work while it is being done."""

    tell: Callable[[str, int, int], None]
    """Called with what is being done, how much of it is, and of how much; may raise `Left`."""
    expects_long: bool = True
    """Whether it is called while a single program runs, too; waiting that way takes a little longer."""


MAX_EPISODE_STEPS = 30_000
"""An episode that never ends by itself is cut here, so that an evaluation always ends; Atari's own limit is 27,000."""


class Lookahead(NamedTuple):
    """Look-ahead at decision time: the policy plays rollouts from each action that is tried."""

    count: int
    """Rollouts from each of them; and so many are sampled, where they are too many to try all."""
    depth: int
    """Steps of each rollout, the action itself included."""
    critic: Tree = None
    """It values what comes after the last step; None: nothing does."""
    gamma: Any = 1.0


class Match(NamedTuple):
    """The terms on which episodes are played: how many, cut after how many steps, and how actions are chosen."""

    episodes: int
    max_steps: int
    lanes: int = 0
    """The size of the compiled program: fewer episodes than lanes reuse it."""
    mode: Mode = "greedy"
    watch: Watch | None = None
    lookahead: Lookahead | None = None


class RolloutKeys(NamedTuple):
    """The randomness of one rollout: exploration, dynamics, starts after an episode's end, starts of whole episodes."""

    noise: Any
    step: Any
    start: Any
    begin: Any
    branch: Any = None
    """Of rollouts from its states, where an algorithm asks for them."""


class Branching(NamedTuple):
    """The Monte-Carlo rollouts by which the states of a rollout are valued."""

    branches: int
    """How many begin in each state."""
    depth: int | None
    """After how many steps they are cut, if the episode has not ended; None: never."""
    gamma: Any
    """The discount factor of their returns."""


BRANCH_VALUE, NEXT_BRANCH_VALUE = "branch_value", "next_branch_value"
"""Where a rollout's `extras` hold the mean return of the branches from each state, and what its true successor is
worth: 0 after a termination, what the critic says where an episode was truncated, else the mean of its branches."""


class Valuation(NamedTuple):
    """All that a collector needs to value the states of a rollout by branches."""

    branching: Branching
    critic: Tree
    """It values what comes after the last step of a branch that has not ended."""
    memory: Tree = ()
    """The critic's, at the first step."""


class Course(NamedTuple):
    """The terms by which all starts of one rollout are drawn, besides their keys."""

    parameters: dict[str, Array] = {}  # noqa: RUF012  a NamedTuple's default; never written to
    """What a curriculum says, by the name of the environment's parameter."""
    data: Tree = ()
    """Scenarios that are on the device, where they come from a stored set."""
    starts: Tree = ()
    """What the drawing of scenarios remembers of earlier rollouts; a carry keeps it."""


class EpisodeStats(NamedTuple):
    """Sums over the episodes that ended inside one rollout."""

    episodes: Any
    return_sum: Any
    return_min: Any
    return_max: Any
    length_sum: Any
    steps: Any
    terminations: Any
    """How many of them came to an end of their own."""
    cut: Any = ()
    """How many more the rollout cut short: they are learnt from, but no episodes; nothing where it cuts none."""
    returns: Any = ()
    """The return of each, `[T, B]` where it ended; NaN where none did."""
    lengths: Any = ()
    """Their lengths, likewise; 0 where none ended."""
    stuck: Any = -1
    """The first row, counted over steps and environments, whose mask forbids every action; -1 if there is none."""
    told: Any = ()
    """What each said by `IS_SUCCESS` at its end, likewise; NaN where it said nothing."""
    info: Any = ()
    """Means of what the environments said in `info`, under their journal names."""
    seconds: Any = ()
    """What the rollout spent its time on, under the journal's names; nothing where it is part of a larger program."""


FIGURES = ("episodes", "return_sum", "length_sum", "terminations", "successes", "told", "told_successes")
"""What is summed up over episodes; `told` is how many of them said by `is_success` whether they succeeded."""


class Counted(NamedTuple):
    """The figures of an iteration about the episodes that policies are judged by (`cohorts.py`)."""

    counted: Any
    """The sum of each of `FIGURES` over the episodes that count from now on."""
    running: Any
    """How many episodes are still running that those to count next wait for."""
    waiting: Any
    """How many have ended and wait."""
