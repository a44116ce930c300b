"""The console of a run: a progress bar in a terminal, plain lines in a file, and the same lines in its log."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Any, TextIO, cast

from ludus.runs.metrics import metric_of
from ludus.runtime import files, secrets
from ludus.runtime.output import Output

LINE_EVERY_SECONDS = 10.0
"""Between two lines of progress; whatever goes on for longer than that in silence is named."""
RETURN = "episode_return_mean"
MOST_WAITING = 100
"""Lines that wait for the run folder to be there."""


class Console:
    """Progress of one run. Silent if not verbose, but for its log."""

    def __init__(self, verbose: bool, stream: TextIO | None = None):
        """Decide how to speak: to a person at a terminal, or into a file."""
        self.stream = Output(stream or sys.stderr, self._on_loss)
        self.verbose = verbose
        self._bar: Any = None
        self._task: Any = None
        self._last_line = time.monotonic()
        self._log: Path | None = None
        self._waiting: deque[str] = deque(maxlen=MOST_WAITING)
        self._doing: tuple[str, int, int, float] | None = None
        self._is_over = threading.Event()

    @property
    def log(self) -> Path | None:
        """A file that whatever is said is written into as well; if it cannot be written, it is done without."""
        return self._log

    @log.setter
    def log(self, path: Path | None) -> None:
        self._log = path
        while path is not None and self._waiting:
            self._write(self._waiting.popleft())

    def say(self, text: str) -> None:
        """Print one line, or a block of them."""
        text = secrets.hidden(text)
        self.note(text)
        if not self.verbose:
            return
        self._last_line = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=self.stream, flush=True)

    def _on_loss(self) -> None:
        self.note(
            "nobody reads this output any more, a terminal or pipe was closed: the run goes on, and says all here"
        )

    def note(self, text: str) -> None:
        """Write into the log alone; what comes before there is one waits for it."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n"
        if self._log is None:
            self._waiting.append(line)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        assert self._log is not None
        with contextlib.suppress(OSError, files.LinkError):
            _append(self._log, line)

    @contextlib.contextmanager
    def hearing(self) -> Generator[None]:
        """Meanwhile keep what the package warns of in the log, wherever else the user lets it go."""
        logger, handler = logging.getLogger("ludus"), _Warnings(self)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def at(self, what: str, done: int = 0, total: int = 0) -> None:
        """Take note of what the run is doing, and how far it is with that: it is said if it takes long."""
        doing = self._doing
        since = doing[3] if doing is not None and doing[0] == what else time.monotonic()
        self._doing = what, done, total, since

    def _heartbeat(self, is_over: threading.Event) -> None:
        """Say what goes on, on another thread, whenever nothing has been said for a while."""
        while not is_over.wait(1.0):
            if self._doing is None or time.monotonic() - self._last_line < LINE_EVERY_SECONDS:
                continue
            what, done, total, since = self._doing
            share = f", {done:,} of {total:,}" if total else ""
            text = f"{what} ... {duration(time.monotonic() - since)}{share}"
            self._last_line = time.monotonic()
            self.note(text)
            if self._bar is not None:
                self._bar.update(self._task, description=text)
            elif self.verbose:
                print(text, file=self.stream, flush=True)

    def start(self) -> None:
        """Begin to show progress."""
        self._is_over, self._doing, self._last_line = threading.Event(), None, time.monotonic()
        threading.Thread(target=self._heartbeat, args=(self._is_over,), daemon=True).start()
        if not (self.verbose and self.stream.isatty()):
            return
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("[bold]{task.percentage:>3.0f}%"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=RichConsole(file=cast("TextIO", self.stream)),
            transient=True,
        )
        self._task = self._bar.add_task("compiling ...", total=1.0)
        self._bar.start()

    def progress(self, share: float, facts: dict[str, Any]) -> None:
        """Show how far the run is (`share` in [0, 1]) and its latest figures."""
        if self._bar is not None:
            self._bar.update(self._task, completed=share, description=_text(facts))
        if time.monotonic() - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            line = f"{100 * share:3.0f}%  {_text(facts)}"
            self.note(line)
            if self.verbose and self._bar is None:
                print(line, file=self.stream, flush=True)

    def stop(self) -> None:
        """Take the bar away; nothing goes on any more."""
        self._is_over.set()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class _Warnings(logging.Handler):
    """Brings what a logger is told into a run's log; where nobody has configured logging, it is shown as ever."""

    def __init__(self, console: Console):
        super().__init__(logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if logging.getLogger().handlers:
            self.console.note(text)
        elif self.console.verbose:
            self.console.say(text)
        else:
            self.console.note(text)
            if logging.lastResort is not None:
                logging.lastResort.handle(record)


def _append(path: Path, text: str) -> None:
    file = files.open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, secrets.hidden(text).encode("utf-8", "replace"))
    finally:
        os.close(file)


def duration(seconds: float) -> str:
    """Format seconds as people say them."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def _text(facts: dict[str, Any]) -> str:
    parts = [f"{facts[name]:,.0f} {metric_of(name).unit}" for name in ("steps", "steps_per_second")]
    if (value := facts.get(RETURN)) is not None:
        parts.append(f"{metric_of(RETURN).unit} {value:.1f}")
    if facts.get("remaining_seconds") is not None:
        parts.append(f"{duration(facts['remaining_seconds'])} left")
    return " · ".join(parts)
