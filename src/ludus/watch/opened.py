"""The run that is open on the page: the figures of its report, in pieces small enough to be sent every second."""

import hashlib
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from ludus.report import figures
from ludus.report.drawing import Figure
from ludus.report.journal import Reader
from ludus.report.page import drawn, panel_id, run_facts, run_notes
from ludus.report.run import Run
from ludus.report.series import coarsely
from ludus.report.story import Story
from ludus.report.strict import strict
from ludus.report.verdict import verdict
from ludus.tracking.reading import reason
from ludus.tracking.records import LOG
from ludus.tracking.run_folder import JOURNAL
from ludus.types import LudusError
from ludus.watch.process import Meter
from ludus.watch.shelf import Watched

RESOLUTIONS = (200, 100, 50, 25)
"""Buckets of a long series: the most at which every panel is small enough."""
PANEL_BYTES = 52_000
"""A panel that is larger even at the coarsest is left to the report."""
READING_SECONDS = 0.5
LOG_BYTES = 6000
VIDEOS, VIDEO_KINDS = "videos", {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}


class Opened:
    """What is shown of one run; every viewer of it looks at the same one. Methods may be called from any thread."""

    def __init__(self, watched: Watched):
        """Read nothing yet."""
        self.watched = watched
        self.head: dict[str, Any] = {}
        """What stands above the figures."""
        self.outline: list[dict[str, Any]] = []
        """Headings and the identifiers of the panels under each."""
        self.panels: dict[str, tuple[str, str]] = {}
        """By identifier, in order: a digest and the panel as JSON."""
        self._reader = Reader(watched.path / JOURNAL)
        self._drawn_at: tuple[int, int] | None = None
        self._told: dict[str, Any] = {}
        self._meter: Meter | None = None
        self._lock = threading.Lock()
        self._next = self._next_drawing = 0.0

    def refresh(self, is_asked: bool) -> None:
        """Read what is new and draw it, unless that was done just now."""
        with self._lock:
            if time.monotonic() < self._next:
                return
            try:
                self._read_on()
                self._draw()
                problem = None
            except LudusError as error:
                problem = str(error)
            except Exception as error:  # whatever is wrong with the run, the page stays
                problem = f"{self.watched.path}: cannot be drawn ({type(error).__name__}: {reason(error)})"
            self.head = {
                **{name: self.watched.row.get(name) for name in ("id", "name", "status")},
                **self._told,
                "problem": problem,
                "log": _end_of(self.watched.path / LOG),
                "video": newest_video(self.watched.path),
                "use": self._use(),
                "stoppable": self.watched.row.get("stoppable", False),
                "asked": is_asked,
            }
            self._next = time.monotonic() + 0.5

    def _read_on(self) -> None:
        deadline = time.monotonic() + READING_SECONDS
        while self._reader.read_more() and time.monotonic() < deadline:
            pass

    def _draw(self) -> None:
        state = self._reader.offset, self.watched.version
        if state == self._drawn_at or time.monotonic() < self._next_drawing:
            return
        started = time.monotonic()
        run = Run(self.watched.path)
        run.status = str(self.watched.row.get("status"))
        story = Story(run)
        story.journal = self._reader.journal()
        with np.errstate(all="ignore"):  # a loss may be too large to be squared; what is not known is not drawn
            self._told = _told(story)
            self._lay_out(story)
        self._drawn_at = state
        # A journal of a million rows takes a while to draw; most of the time is left to others.
        self._next_drawing = time.monotonic() + 3 * (time.monotonic() - started)

    def _lay_out(self, story: Story) -> None:
        """Draw every panel as finely as it may be sent; one that does not fit at all is left out."""
        made, kept = figures_at(story, RESOLUTIONS[0])
        for buckets in RESOLUTIONS[1:]:
            if all(len(text.encode()) <= PANEL_BYTES for text in kept.values()):
                break
            _, coarser = figures_at(story, buckets)
            kept = {name: text if len(text.encode()) <= PANEL_BYTES else coarser[name] for name, text in kept.items()}
        kept = {name: text for name, text in kept.items() if len(text.encode()) <= PANEL_BYTES}
        self.panels = {name: (hashlib.sha256(text.encode()).hexdigest()[:16], text) for name, text in kept.items()}
        self.outline = [outlined for each in made if (outlined := _outline(each, kept))["panels"]]

    def _use(self) -> dict[str, Any] | None:
        holder = self.watched.holder
        if holder is None:
            self._meter = None
            return None
        if self._meter is None or self._meter.holder != holder:
            self._meter = Meter(holder)
        use = self._meter.measure()
        return None if use is None else {"pid": holder.pid, **use._asdict()}


def figures_at(story: Story, buckets: int) -> tuple[list[Figure], dict[str, str]]:
    """Draw a run at a resolution: its figures, and every panel as JSON by its identifier."""
    with coarsely(buckets):
        made = figures.draw(story)
    return made, {panel["id"]: _json(panel) for each in made for panel in map(drawn, each.panels)}


def _told(story: Story) -> dict[str, Any]:
    judged = verdict(story)
    return {
        "title": f"{story.run.environment} · {story.run.algorithm}",
        "seed": story.run.seed,
        "verdict": judged.word,
        "evidence": judged.evidence,
        "facts": [list(fact) for fact in run_facts(story)],
        "notes": run_notes(story),
    }


def _outline(figure: Figure, kept: dict[str, str]) -> dict[str, Any]:
    panels = [(name, panel) for panel in figure.panels if (name := panel_id(panel)) in kept]
    return {
        "key": figure.key,
        "title": figure.title,
        "about": figure.about,
        "panels": [{"id": name, "title": panel.title, "x": panel.x, "y": panel.y} for name, panel in panels],
    }


def _json(value: Any) -> str:
    return json.dumps(strict(value), separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _end_of(path: Path) -> str:
    """Return the last lines of a text; nothing if there is none. A link is not followed."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return ""
            file.seek(max(0, status.st_size - LOG_BYTES))
            text = file.read(LOG_BYTES)
    except OSError:
        return ""
    if status.st_size > LOG_BYTES:
        text = text.partition(b"\n")[2]
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text.decode(errors="replace")
    )


def newest_video(run: Path) -> dict[str, Any] | None:
    """Return the video of a run that was written last: its name, its kind and when it was written."""
    found = []
    try:
        if (run / VIDEOS).is_symlink():
            return None
        for entry in os.scandir(run / VIDEOS):
            kind = VIDEO_KINDS.get(Path(entry.name).suffix)
            if kind and not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name, kind))
    except OSError:
        return None
    if not found:
        return None
    written, name, kind = max(found)
    return {"name": name, "kind": kind, "written": written}
