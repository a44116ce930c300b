"""Ctrl-C that saves: the first asks the run to end, the second ends it at once."""

import signal
import threading
from typing import Any


class Interrupt:
    """While entered, SIGINT sets `requested` instead of raising; a second one raises KeyboardInterrupt.

    Raising inside a compiled call would lose the training state, whose buffers that call has taken over.
    """

    def __init__(self) -> None:
        """Nothing has been asked yet."""
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> "Interrupt":
        """Take SIGINT over; only the main thread of a process can."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Give SIGINT back."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
