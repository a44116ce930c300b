"""The interface between supervising workers and running them: processes can be replaced by a cluster's behind it.

A transport starts workers, carries commands to them and what they answer back, and says what went wrong. What follows
from that (another try, a dropped episode, the end of the run) is decided by the supervisor alone.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ludus.envs.base import Action, HostStep
from ludus.envs.workers.shared_memory import Results
from ludus.spaces import Space


class Fault(NamedTuple):
    """A worker's fault in words, and its traceback if it left one."""

    summary: str
    trace: str = ""
    is_whole: bool = False
    """True if the summary says all by itself, as our own errors do."""


class Place(NamedTuple):
    """The environment of the batch that a worker is busy with, or was when it ended, and whether it resets it."""

    row: int
    is_resetting: bool


class Transport(Protocol):
    """Workers by number, each with consecutive rows of a batch. One command at a time is given to each.

    `start`, `reset`, `step`, `restore` and `save` only give commands: `wait` is what waits for the answers.
    """

    @property
    def rows(self) -> Sequence[slice]:
        """The environments of each worker."""
        ...

    @property
    def spaces(self) -> tuple[Space, Space]:
        """The spaces of observations and actions; known once a worker has answered that it is made."""
        ...

    @property
    def results(self) -> Results:
        """The arrays that the workers write, `[num_envs, ...]`; known once one has been reset."""
        ...

    @property
    def outcome(self) -> HostStep:
        """The results as a step of the batch, in which nothing is broken."""
        ...

    @property
    def last_action(self) -> Action | None:
        """The action of the latest step; None before the first."""
        ...

    @property
    def generators(self) -> np.ndarray:
        """The state of each worker's random generators when `save` was answered, `[num_workers, words]`."""
        ...

    @property
    def is_open(self) -> bool:
        """True until it is closed."""
        ...

    def start(self, worker: int) -> None:
        """Start a worker and let it make its environments; one that ran under this number must have been ended."""
        ...

    def reset(self, worker: int, seeds: Sequence[int]) -> None:
        """Start an episode in each of the worker's first environments, seeded one by one."""
        ...

    def step(self, action: Action) -> None:
        """Let every worker advance its environments."""
        ...

    def restore(self, worker: int, saved: dict[str, np.ndarray]) -> None:
        """Let a worker come back to where a snapshot of its environments was taken."""
        ...

    def save(self, worker: int) -> None:
        """Let a worker write down the state of its process's random generators."""
        ...

    def wait(self, workers: Sequence[int], limit: float) -> list[tuple[int, Fault]]:
        """Wait for answers; return the workers that gave none, or a wrong one, and what was wrong.

        `limit` are the seconds that each single environment may be at work.
        """
        ...

    def unanswered(self) -> list[int]:
        """Return the workers that were given a command whose answer nobody has waited for."""
        ...

    def place(self, worker: int) -> Place:
        """Return what a worker is doing."""
        ...

    def end(self, worker: int) -> None:
        """End a worker at once, with whatever it has started itself; it may have ended before."""
        ...

    def close(self) -> None:
        """Close all environments and end all workers."""
        ...
