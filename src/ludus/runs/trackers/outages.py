"""When the other end of a process that sends a run does not answer: what is said, and when it is tried again."""

import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds between attempts while the other end does not answer; each is twice the one before."""


class Trouble(Protocol):
    """An error of the other end; `is_final` if it will not help to try again."""

    is_final: bool


Error = TypeVar("Error", bound=Trouble)


class Outages(Generic[Error]):
    """Whether the other end works; that is said when it changes, and never twice."""

    def __init__(self, say: Callable[[str], None], first: Callable[[], str], again: Callable[[], str]):
        """Begin with nothing tried: `first` is said of the first success, `again` of one after trouble."""
        self._say, self._first, self._again = say, first, again
        self.trouble: Error | None = None
        self.next_try = 0.0
        self._pause = FIRST_PAUSE
        self._is_announced = False

    @property
    def is_hopeless(self) -> bool:
        """Whether trying again is of no use."""
        return self.trouble is not None and self.trouble.is_final

    def worked(self) -> None:
        """Note a success."""
        if self.trouble is not None:
            self._say(self._again())
        if not self._is_announced:
            self._is_announced = True
            self._say(self._first())
        self.trouble, self._pause = None, FIRST_PAUSE

    def failed(self, error: Error, said: str, wait: float = 0.0) -> None:
        """Note a failure, whose first is said; the other end asks for so many seconds."""
        if self.trouble is None or (error.is_final and not self.trouble.is_final):
            self._say(said)
        self.trouble = error
        self.next_try = time.monotonic() + max(wait, self._pause)
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
