"""The questions of a run as the page shows them, and the answers that the page gives.

A run folder may come from a stranger: links are not followed, and no more is read than a page can show.
"""

import os
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np

from ludus.report.live.run_index import stamp
from ludus.report.video.clip import SIZE, Segment, rate_of, strip
from ludus.runs.questions import ANSWERED, SEGMENTS, Questions
from ludus.spaces import Box, Discrete
from ludus.types import LudusError

MOST_BYTES, MOST_FILES = 1 << 28, 10_000
"""Of all segments of a run."""
MOST_POINTS, MOST_SIGNALS, MOST_OPEN = 100, 12, 50
"""Points of a curve and frames of a clip; curves of a clip; numbers of open questions that a page is told."""


class NoQuestionError(LudusError):
    """A question that the run has not asked."""


class RunQuestions:
    """The questions of one run, read again when they have changed. Its methods may be called from any thread."""

    def __init__(self, run: Path):
        """Read nothing yet."""
        self.run = run
        self._lock = threading.RLock()
        self._stamps: tuple[Any, ...] = ((), None)
        self._questions: Questions | None = None
        self._state: dict[str, Any] | None = None

    def state(self) -> dict[str, Any] | None:
        """Return how many questions there are and which are open; None if the run asks nobody."""
        with self._lock:
            stamps = _segment_stamps(self.run), stamp(self.run / ANSWERED)
            if stamps == self._stamps:
                return self._state
            if stamps[0] != self._stamps[0]:
                self._questions = None
            self._stamps, self._state = stamps, None
            if stamps[0]:
                self._state = self._read(stamps[0])
            return self._state

    def _read(self, segments: tuple[Any, ...]) -> dict[str, Any]:
        """Read the answers, and the segments too if those are other ones than before."""
        try:
            self._questions = questions = self._questions or self._asked(segments)
        except LudusError as error:
            return {"count": 0, "waiting": 0, "open": [], "problem": str(error)}
        found = questions.open
        return {"count": questions.count, "waiting": len(found), "open": found[:MOST_OPEN], "problem": None}

    def _asked(self, segments: tuple[Any, ...]) -> Questions:
        if sum(size for _, _, size in segments) > MOST_BYTES or len(segments) > MOST_FILES:
            raise LudusError("these questions are too large for a page: ludus reward ask shows them in a terminal")
        questions = Questions(self.run)
        if len(set(questions.segments.lengths.tolist())) > 1 or questions.segments.num_episodes % 2:
            raise LudusError("these segments are no questions: they must be pairs of one length")
        return questions

    def clip(self, number: int) -> dict[str, Any]:
        """Return a question as curves; LudusError if there is no such question."""
        with self._lock:
            questions = self._question(number)
            segments = questions.segments
            sides = [questions.columns(2 * number + part) for part in (0, 1)]
        every = _every(int(segments.lengths[0]))
        curves = []
        for name in list(sides[0])[:MOST_SIGNALS] if not _is_picture(segments.obs) else ():
            first, second = (side[name] for side in sides)
            both = np.concatenate([first, second])
            known = both[np.isfinite(both)]
            low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
            values = [[float(f"{x:.5g}") for x in side[::every]] for side in (first, second)]
            curves.append({"name": name, "low": low, "high": high, "values": values})
        return {
            "number": number,
            "count": questions.count,
            "env": segments.env,
            "steps": int(segments.lengths[0]),
            "every": every,
            "rate": rate_of(segments.env),
            "size": SIZE,
            "more": max(0, len(sides[0]) - len(curves)),
            "curves": curves,
        }

    def picture(self, number: int) -> bytes | None:
        """Return the frames of a question as a PNG; None where the environment cannot be drawn from what was seen."""
        with self._lock:
            segments = self._question(number).segments
        if not isinstance(segments.observation_space, Box) or not isinstance(segments.action_space, Box | Discrete):
            return None
        rows = [slice(int(segments.starts[i]), int(segments.ends[i]) + 1) for i in (2 * number, 2 * number + 1)]
        first, second = (Segment(segments.obs[part], segments.action[part]) for part in rows)
        return strip(segments.env, first, second, _every(len(first.obs)))

    def answer(self, number: int, prefer: str) -> dict[str, Any] | None:
        """Store an answer, which takes the place of an earlier one, and return what is open then."""
        with self._lock:
            self._question(number).answer(number, prefer)
            return self.state()

    def _question(self, number: int) -> Questions:
        self.state()
        questions = self._questions
        if questions is None or not 0 <= number < questions.count:
            raise NoQuestionError("there is no such question")
        return questions


def _every(steps: int) -> int:
    return max(1, -(-steps // MOST_POINTS))


def _is_picture(obs: Any) -> bool:
    return isinstance(obs, np.ndarray) and obs.dtype == np.uint8 and obs.ndim == 4


def _segment_stamps(run: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, time and size of every file of segments; none if one of them, or a folder above, is a link."""
    folder = run / SEGMENTS
    if folder.parent.is_symlink() or folder.is_symlink():
        return ()
    try:
        with os.scandir(folder) as entries:
            named = [entry for entry in entries if entry.name.endswith(".safetensors")]
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in named]
    except OSError:
        return ()
    if not all(stat.S_ISREG(status.st_mode) for _, status in found):
        return ()
    return tuple(sorted((name, status.st_mtime_ns, status.st_size) for name, status in found))
