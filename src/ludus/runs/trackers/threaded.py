"""A tracker on a thread of its own: training tells it that there are rows, and waits a little when the run is over."""

import threading
from collections.abc import Callable
from typing import Protocol

from ludus.runs.folder import RunFolder

LAST_SECONDS = 10.0
"""The end of a run waits so long for the last rows."""


class Writer(Protocol):
    """Brings one place where a run is shown up to date with the journal. What it raises is said, and tried again."""

    def advance(self) -> bool:
        """Pass on some of what is new; return whether there may be more."""
        ...

    def finish(self) -> None:
        """Say how the run has ended, after its last rows."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...

    def explain(self, error: Exception) -> str:
        """Say in one line what went wrong."""
        ...


class ThreadedTracker:
    """Lets a writer follow a run."""

    def __init__(self, name: str, say: Callable[[str], None], follow: Callable[[RunFolder], Writer]):
        """Start nothing yet.

        Args:
            name: of the tracker, for messages.
            say: prints one line for the user; it is called on the thread that trains.
            follow: returns the writer of a run.
        """
        self._name, self._say, self._new_writer = name, say, follow
        self._thread: threading.Thread | None = None
        self._news, self._is_over = threading.Event(), False
        self._trouble: str | None = None
        self._has_complained = False

    def begin(self, folder: RunFolder) -> None:
        """Start the thread, which does nothing before there are rows: until then the processor is busy compiling."""
        self._news, self._is_over, self._trouble = threading.Event(), False, None
        self._thread = threading.Thread(target=self._follow, args=(folder, self._news), daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread."""
        self._news.set()
        if self._trouble and not self._has_complained:
            self._complain("training goes on, the journal has it all")

    def end(self) -> None:
        """Wait for the last rows."""
        if self._thread is None:
            return
        self._is_over = True
        self._news.set()
        self._thread.join(LAST_SECONDS)
        if self._thread.is_alive():
            self._trouble = f"{self._name}: the last rows take too long"
        if self._trouble:
            self._complain("ludus track RUN sends the rest")

    def _complain(self, what_now: str) -> None:
        self._has_complained = True
        self._say(f"{self._trouble}; {what_now}")

    def _follow(self, folder: RunFolder, news: threading.Event) -> None:
        writer = self._new_writer(folder)
        try:
            is_over = False
            while not is_over:
                news.wait()
                is_over = self._is_over or news is not self._news
                news.clear()
                trouble = self._attempt(writer, is_over)
                if news is self._news:  # else this thread is one that nobody waited for
                    self._trouble = trouble
        finally:
            writer.close()

    @staticmethod
    def _attempt(writer: Writer, is_over: bool) -> str | None:
        """Pass on what is new; return what went wrong, if something did."""
        try:
            while writer.advance():
                pass
            if is_over:
                writer.finish()
        except Exception as error:  # whatever it is, it is not worth a run
            return writer.explain(error)
        return None
