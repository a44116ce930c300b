"""What people see while a run goes on: a bar in a terminal, plain lines in a file."""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

LINE_EVERY_SECONDS = 10.0


class Console:
    """Progress of one run. Silent if not verbose."""

    def __init__(self, verbose: bool, stream: TextIO | None = None):
        """Decide how to speak: to a person at a terminal, or into a file."""
        self.stream = stream or sys.stderr
        self.verbose = verbose
        self._bar: Any = None
        self._task: Any = None
        self._last_line = time.monotonic()
        self.log: Path | None = None
        """A file that whatever is said is written into as well; if it cannot be written, it is done without."""

    def say(self, text: str) -> None:
        """Print one line, or a block of them."""
        if self.log is not None:
            with contextlib.suppress(OSError):
                _append(self.log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        if not self.verbose:
            return
        self._last_line = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=self.stream, flush=True)

    def start(self) -> None:
        """Begin to show progress."""
        if not (self.verbose and self.stream.isatty()):
            return
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("[bold]{task.percentage:>3.0f}%"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=RichConsole(file=self.stream),
            transient=True,
        )
        self._task = self._bar.add_task("compiling ...", total=1.0)
        self._bar.start()

    def progress(self, share: float, facts: dict[str, Any]) -> None:
        """Show how far the run is (`share` in [0, 1]) and its latest figures."""
        if not self.verbose:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=share, description=_text(facts))
        elif time.monotonic() - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            print(f"{100 * share:3.0f}%  {_text(facts)}", file=self.stream, flush=True)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _append(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.write(file, text.encode("utf-8", "replace"))
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
    parts = [f"{facts['steps']:,} steps", f"{facts['steps_per_second']:,.0f} steps/s"]
    if facts.get("return") is not None:
        parts.append(f"return {facts['return']:.1f}")
    if facts.get("remaining_seconds") is not None:
        parts.append(f"{duration(facts['remaining_seconds'])} left")
    return " · ".join(parts)
