"""The view of the run that a page shows: the figures of its report, in parts small enough to send every second."""

import hashlib
import threading
import time
from typing import Any

import numpy as np

from ludus.report.figures import single
from ludus.report.figures.drawing import Figure
from ludus.report.figures.series import coarsely
from ludus.report.html.page import drawn, panel_id, run_facts, run_notes
from ludus.report.live.process import Usage, UsageMeter
from ludus.report.live.run_files import log_end, newest_video
from ludus.report.live.run_index import RunEntry
from ludus.report.live.run_questions import RunQuestions
from ludus.report.verdict import verdict
from ludus.runs.journal import JOURNAL
from ludus.runs.limits import reason
from ludus.runs.reader import Run
from ludus.runs.recorder import LOG
from ludus.runs.strict_json import strict_json
from ludus.runs.summary import Story
from ludus.runs.table import Reader
from ludus.types import LudusError

BUCKETS = (200, 100, 50, 25)
"""Numbers of points of a long series: the first with which every panel is small enough is taken."""
PANEL_BYTES = 52_000
"""A panel that is larger even with the fewest points is left to the report."""
READING_SECONDS, REFRESH_SECONDS = 0.5, 0.5


class RunView:
    """One run as pages show it; all pages of a run share one view. Methods may be called from any thread."""

    def __init__(self, entry: RunEntry):
        """Read nothing before `refresh`."""
        self.entry = entry
        self.head: dict[str, Any] = {}
        """The texts and numbers above the figures."""
        self.outline: list[dict[str, Any]] = []
        """Headings, and the identifiers of the panels under each."""
        self.panels: dict[str, tuple[str, str]] = {}
        """A digest and the panel as JSON, by identifier."""
        self.questions = RunQuestions(entry.path)
        self._reader = Reader(entry.path / JOURNAL)
        self._drawn_state: tuple[int, int] | None = None
        self._summary: dict[str, Any] = {}
        self._meter: UsageMeter | None = None
        self._lock = threading.Lock()
        self._next_refresh = self._next_drawing = 0.0

    def refresh(self, is_asked_to_stop: bool) -> None:
        """Read what is new and draw it, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() < self._next_refresh:
                return
            try:
                self._read_on()
                self._draw()
                problem = None
            except LudusError as error:
                problem = str(error)
            except Exception as error:  # whatever is wrong with the run, the page must go on
                problem = f"{self.entry.path}: cannot be drawn ({type(error).__name__}: {reason(error)})"
            self.head = self._head(problem, is_asked_to_stop)
            self._next_refresh = time.monotonic() + REFRESH_SECONDS

    def _head(self, problem: str | None, is_asked_to_stop: bool) -> dict[str, Any]:
        row, path = self.entry.row, self.entry.path
        video, usage = newest_video(path), self._usage()
        return {
            **{name: row.get(name) for name in ("id", "name", "status")},
            **self._summary,
            "problem": problem,
            "log": log_end(path / LOG),
            "video": video and video._asdict(),
            "use": usage and usage._asdict(),
            "questions": self.questions.state(),
            "stoppable": row.get("stoppable", False),
            "asked": is_asked_to_stop,
        }

    def _read_on(self) -> None:
        deadline = time.monotonic() + READING_SECONDS
        while self._reader.read_more() and time.monotonic() < deadline:
            pass

    def _draw(self) -> None:
        state = self._reader.offset, self.entry.version
        if state == self._drawn_state or time.monotonic() < self._next_drawing:
            return
        started = time.monotonic()
        run = Run(self.entry.path)
        run.status = str(self.entry.row.get("status"))
        story = Story(run)
        story.journal = self._reader.journal()
        with np.errstate(all="ignore"):  # a loss may be too large to be squared; unknown numbers are not drawn
            self._summary = _summary(story)
            self._draw_panels(story)
        self._drawn_state = state
        # A journal of a million rows takes long to draw, and other threads need most of the time.
        self._next_drawing = time.monotonic() + 3 * (time.monotonic() - started)

    def _draw_panels(self, story: Story) -> None:
        """Draw every panel with as many points as may be sent; leave out a panel that is too large with the fewest."""
        figures, panels = draw_figures(story, BUCKETS[0])
        for buckets in BUCKETS[1:]:
            if all(_is_small(text) for text in panels.values()):
                break
            _, coarser = draw_figures(story, buckets)
            panels = {name: text if _is_small(text) else coarser[name] for name, text in panels.items()}
        panels = {name: text for name, text in panels.items() if _is_small(text)}
        self.panels = {name: (hashlib.sha256(text.encode()).hexdigest()[:16], text) for name, text in panels.items()}
        self.outline = [outline for figure in figures if (outline := _outline(figure, panels))["panels"]]

    def _usage(self) -> Usage | None:
        process = self.entry.process
        if process is None:
            self._meter = None
            return None
        if self._meter is None or self._meter.process != process:
            self._meter = UsageMeter(process)
        return self._meter.measure()


def draw_figures(story: Story, buckets: int) -> tuple[list[Figure], dict[str, str]]:
    """Draw the figures of a run with so many points; return them, and every panel as JSON by its identifier."""
    with coarsely(buckets):
        figures = single.draw(story)
    return figures, {panel["id"]: strict_json(panel) for figure in figures for panel in map(drawn, figure.panels)}


def _is_small(text: str) -> bool:
    return len(text.encode()) <= PANEL_BYTES


def _summary(story: Story) -> dict[str, Any]:
    judged = verdict(story)
    return {
        "title": f"{story.run.environment} · {story.run.algorithm}",
        "seed": story.run.seed,
        "verdict": judged.word,
        "evidence": judged.evidence,
        "facts": [list(fact) for fact in run_facts(story)],
        "notes": run_notes(story),
    }


def _outline(figure: Figure, panels: dict[str, str]) -> dict[str, Any]:
    shown = [(name, panel) for panel in figure.panels if (name := panel_id(panel)) in panels]
    return {
        "key": figure.key,
        "title": figure.title,
        "about": figure.about,
        "panels": [{"id": name, "title": panel.title, "x": panel.x, "y": panel.y} for name, panel in shown],
    }
