"""Files that a run gives up are kept: they are moved to a folder of their own, RUN/before-1, before-2 and so on."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from ludus.runs import limits
from ludus.runs.folder import JOURNAL
from ludus.runtime import files


def new_place(run: Path) -> Path:
    """Return the next folder to keep things in; it is made when there is something to keep."""
    return next(path for n in itertools.count(1) if not os.path.lexists(path := run / f"before-{n}"))


def keep_journal(run: Path, place: Path) -> None:
    """Copy the journal, if there is one with something in it. OSError if it cannot be read or written."""
    try:
        journal = limits.open_journal(run / JOURNAL)
    except FileNotFoundError:
        return
    try:
        if os.fstat(journal).st_size:
            files.make_folder(place)
            with files.whole(place / JOURNAL) as partial:
                files.write(partial, _pieces(journal))
    finally:
        os.close(journal)


def move(run: Path, place: Path, *names: str) -> None:
    """Move folders of a run, those that are there. OSError if they cannot be moved."""
    for name in names:
        if os.path.lexists(run / name):
            files.make_folder(place)
            files.replace(run / name, place / name)
            files.sync_folder(run)


def _pieces(file: int) -> Iterator[bytes]:
    return iter(lambda: os.read(file, files.PIECE), b"")
