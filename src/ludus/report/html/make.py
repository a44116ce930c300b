"""Making a report: read run folders, draw, write one page and the files of figures beside it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ludus.report.comparison import compared
from ludus.report.figures import behaviour, several
from ludus.report.figures import single as figures
from ludus.report.figures.drawing import Figure
from ludus.report.figures.performance import REPORT, write_summaries
from ludus.report.html import images
from ludus.report.html.page import comparison_page, run_page
from ludus.report.places import write_file
from ludus.runs.summary import Story, read_several
from ludus.types import LudusError

PAGE = "index.html"


class Report(NamedTuple):
    """A written page: its file, and what is on it."""

    page: Path
    figures: list[Figure]
    steps: int
    """Environment steps of the longest run."""
    left_out: list[str]
    """Of several runs, what is wrong with those that could not be read."""

    def write_images(self, draw: images.Draw | None = None) -> list[Path]:
        """Write the pictures that users know by name beside the page; LudusError if nothing here can draw them."""
        return images.write_images(self.figures, self.page.parent / images.FIGURES, self.steps, draw)


def make_report(runs: Sequence[Path], output: Path | None = None) -> Report:
    """Write the report of one run, or of several beside each other."""
    if not runs:
        raise LudusError("no run given; a report needs at least one run folder")
    once = list(dict.fromkeys(runs))
    stories, left_out = read_several(once) if len(once) > 1 else ([Story.read(once[0])], [])
    steps = max(int(story.total("steps") or 0) for story in stories)
    place = output or _default(stories)
    place = place / PAGE if place.is_dir() else place
    with np.errstate(all="ignore"):  # a loss may be too large to be squared; what is not known is not drawn
        drawn, page = _one(stories[0]) if len(stories) == 1 else _several(stories, left_out)
    write_file(place.parent, place.name, page.encode(errors="replace"))
    return Report(place, drawn, steps, left_out)


def _one(story: Story) -> tuple[list[Figure], str]:
    write_summaries(story)
    drawn = [*figures.draw(story), *behaviour.draw(story)]
    drawn.sort(key=lambda figure: figure.key in ("throughput", "others"))  # what it cost and what is left come last
    return drawn, run_page(story, drawn)


def _several(stories: Sequence[Story], left_out: Sequence[str]) -> tuple[list[Figure], str]:
    comparison = compared(stories, left_out)
    drawn = several.draw(comparison)
    return drawn, comparison_page(comparison, drawn)


def _default(stories: Sequence[Story]) -> Path:
    """Return where the page goes: into the run or, for several, beside them."""
    if len(stories) == 1:
        return stories[0].run.path / REPORT / PAGE
    parents = {str(story.run.path.resolve().parent) for story in stories}
    return Path(os.path.commonpath(parents)) / REPORT / PAGE
