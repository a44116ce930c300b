"""Signals that save: the first SIGINT (Ctrl-C) or SIGTERM asks the run to end, the second ends it at once."""

import signal
import threading
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While entered, a signal sets `requested` instead of raising; a second one raises KeyboardInterrupt.

    Raising inside a compiled call would lose the training state, whose buffers that call has taken over.
    """

    def __init__(self) -> None:
        """Nothing has been asked yet."""
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        """Take the signals over; only the main thread of a process can."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _handle(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
