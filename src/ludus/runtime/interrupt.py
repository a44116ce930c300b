"""Signals that save: the first SIGINT (Ctrl-C), SIGTERM, SIGUSR1 or SIGHUP asks the run to end.

The second ends it at once, unless it is SIGHUP, which says that the terminal has gone: a shell that loses its terminal
sends it to what it has started, and the kernel sends it once more when the shell has ended. Where it is ignored
(`nohup`), it stays ignored.
"""

import os
import select
import signal
import threading
import time
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
GRACE_SECONDS = 1.0
"""After the second signal the process may clean up for so long."""


class Interrupt:
    """While entered, a signal sets `requested` instead of raising; a second one raises KeyboardInterrupt.

    Raising inside a compiled call would lose the training state, whose buffers that call has taken over; and while
    such a call runs, Python does not even hear of a signal. So a thread listens too, and after the second signal it
    ends a process that does not end by itself.
    """

    def __init__(self) -> None:
        """Begin without a request."""
        self.requested: signal.Signals | None = None
        self.at_once = False
        """Whether the first signal raises as well: set where nothing can be lost."""
        self._previous: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._previous_wakeup = -1

    def __enter__(self) -> "Interrupt":
        """Take the signals over; only the main thread of a process can."""
        if threading.current_thread() is threading.main_thread():
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            self._previous_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            heeded = SIGNALS[:-1] if is_ignored else SIGNALS
            self._previous = {number: signal.signal(number, self._handle) for number in heeded}
            threading.Thread(target=_listen, args=(self._pipe[0],), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if self._pipe is not None:
            signal.set_wakeup_fd(self._previous_wakeup)
            os.close(self._pipe[1])  # the listener closes its own end
            self._pipe = None

    def _handle(self, number: int, _: object) -> None:
        if number == signal.SIGHUP and self.requested is not None:
            return
        if self.requested is not None or self.at_once:
            self.requested = self.requested or signal.Signals(number)
            raise KeyboardInterrupt
        self.requested = signal.Signals(number)


def _listen(pipe: int) -> None:
    """Wait for the second signal, give the process a little time, and end it."""
    heard = 0
    while heard < 2:
        told = os.read(pipe, 1)
        if not told:
            os.close(pipe)
            return
        heard += told[0] in SIGNALS and not (heard and told[0] == signal.SIGHUP)
    # Python writes the byte even while the main thread is inside a compiled call.
    if not _closes(pipe, GRACE_SECONDS):
        os._exit(128 + told[0])


def _closes(pipe: int, seconds: float) -> bool:
    """Wait until the other end is closed: then whoever was interrupted has let go."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0] and not os.read(pipe, 64):
            os.close(pipe)
            return True
    return False
