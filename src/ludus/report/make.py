"""Making a report: read run folders, draw, write one page and the files of figures beside it."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ludus import files
from ludus.report import figures, overlays
from ludus.report.comparison import compared
from ludus.report.page import comparison_page, run_page
from ludus.report.performance import FOLDER, write_summaries
from ludus.report.story import Story
from ludus.types import LudusError

PAGE = "index.html"


def make_report(runs: Sequence[Path], output: Path | None = None) -> Path:
    """Write the report of one run, or of several beside each other; return where the page is."""
    if not runs:
        raise LudusError("no run given; a report needs at least one run folder")
    stories = [Story.read(run) for run in dict.fromkeys(runs)]
    for story in stories:
        _ = story.journal  # what cannot be read is said before anything is written
    place = output or _default(stories)
    if place.is_dir():
        place /= PAGE
    with np.errstate(all="ignore"):  # a loss may be too large to be squared; what is not known is not drawn
        page = _page(stories)
    try:
        files.make_folder(place.parent)
        files.write_whole(place, page.encode())
    except OSError as error:
        raise LudusError(f"{place}: cannot be written ({error.strerror or error})") from error
    return place


def _page(stories: Sequence[Story]) -> str:
    if len(stories) == 1:
        write_summaries(stories[0])
        return run_page(stories[0], figures.draw(stories[0]))
    comparison = compared(stories)
    return comparison_page(comparison, overlays.draw(comparison))


def _default(stories: Sequence[Story]) -> Path:
    """Return where the page goes: into the run or, for several, beside them."""
    if len(stories) == 1:
        return stories[0].run.path / FOLDER / PAGE
    parents = {str(story.run.path.resolve().parent) for story in stories}
    return Path(os.path.commonpath(parents)) / FOLDER / PAGE
