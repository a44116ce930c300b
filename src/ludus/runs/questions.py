"""The questions that a run asks a person, and the answers: what terminal and page have in common.

reward/segments/000000.safetensors   the segments of all questions: question i is about segments 2i and 2i + 1
reward/preferences.jsonl             the answers (`runtime/preference_file.py`), added by whoever gives them
"""

import contextlib
from pathlib import Path
from typing import ClassVar

import numpy as np

from ludus.runtime import files
from ludus.runtime.demonstration_file import read_demonstrations
from ludus.runtime.preference_file import FILE_BYTES, as_line, read_preferences
from ludus.spaces import flatten, leaves
from ludus.types import LudusError

SEGMENTS = Path("reward") / "segments"
ANSWERED = Path("reward") / "preferences.jsonl"
BARS = "▁▂▃▄▅▆▇█"
MOST_LINES = 24
"""So many numbers of an observation are shown at most."""


class Questions:
    """All questions that a run has asked so far."""

    KEYS: ClassVar[dict[str, str]] = {"1": "first", "2": "second", "=": "equal"}
    """What stands for an answer."""

    def __init__(self, run: Path):
        """Read what is asked."""
        self.run = run
        if not (run / SEGMENTS).is_dir():
            raise LudusError(f"{run}: asks nobody; begin a run with reward=preferences reward.labeller=file")
        self.segments = read_demonstrations(run / SEGMENTS)

    @property
    def count(self) -> int:
        """The number of questions."""
        return self.segments.num_episodes // 2

    @property
    def open(self) -> list[int]:
        """The numbers of those that nobody has answered."""
        answered: set[int] = set()
        with contextlib.suppress(LudusError):  # there is none yet
            found = read_preferences(self.run / ANSWERED, self.segments.num_episodes)
            answered = set((found.first // 2).tolist())
        return [number for number in range(self.count) if number not in answered]

    def answer(self, number: int, prefer: str) -> None:
        """Add an answer to the file: the whole of it is there, or it is not."""
        path = self.run / ANSWERED
        before = files.read(path, FILE_BYTES) if path.is_file() else b""
        files.write_whole(path, before + as_line(2 * number, 2 * number + 1, prefer))

    def shown(self, number: int) -> list[str]:
        """Return both segments of a question as lines: for each number of observation and action, its way."""
        sides = [self.columns(2 * number + part) for part in (0, 1)]
        width = max(map(len, sides[0]))
        lines = []
        for name in list(sides[0])[:MOST_LINES]:
            first, second = (side[name] for side in sides)
            low, high = min(first.min(), second.min()), max(first.max(), second.max())
            bars = "   ".join(_bars(values, low, high) for values in (first, second))
            lines.append(f"  {name:<{width}}  {bars}  {low:.3g} to {high:.3g}")
        return [f"  {'':<{width}}  {'1':<{len(first)}}   2", *lines]

    def columns(self, episode: int) -> dict[str, np.ndarray]:
        """Return every number of a segment's observations and actions by its name, each in float64 `[steps]`."""
        segments, columns = self.segments, {}
        rows = slice(int(segments.starts[episode]), int(segments.ends[episode]) + 1)
        of = (("obs", segments.observation_space, segments.obs), ("action", segments.action_space, segments.action))
        for what, space, value in of:
            for (leaf, _), array in zip(leaves(space), flatten(space, value), strict=True):
                flat = np.asarray(array[rows], np.float64).reshape(rows.stop - rows.start, -1)
                name = f"{what}/{leaf}" if leaf else what
                columns |= {f"{name}[{i}]" if flat.shape[1] > 1 else name: flat[:, i] for i in range(flat.shape[1])}
        return columns


def _bars(values: np.ndarray, low: float, high: float) -> str:
    share = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return "".join(BARS[i] for i in np.minimum((share * len(BARS)).astype(int), len(BARS) - 1))
