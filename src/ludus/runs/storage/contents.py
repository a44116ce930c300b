"""The files of a run folder that are copied: all but what can be made anew, and checkpoints that are not kept there."""

import os
from pathlib import Path
from typing import NamedTuple

from ludus.runs.checkpoint.format import CHECKPOINTS, LATEST, MANIFEST, Checkpoint
from ludus.runs.checkpoint.retention import by_score
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.storage.marker import OWN, is_path
from ludus.runs.trackers.child import LOCK
from ludus.runtime.files import PARTIAL
from ludus.types import LudusError

LEFT_OUT = (OWN, "tensorboard", CHECKPOINTS)
"""Folders that are not walked through: the copying's own, what `ludus track` makes anew, and checkpoints."""
POINTER = f"{CHECKPOINTS}/{LATEST}"
"""The file that names the step to go on from: it is made for the copy, of what the copy holds."""


class Stamp(NamedTuple):
    """The signs by which a file is taken to be the one that was read before."""

    size: int
    changed: int
    number: int


class Whole(NamedTuple):
    """A checkpoint of which nothing is missing."""

    files: dict[str, str | None]
    """Its files and what their SHA-256 must be; the manifest holds its own."""
    journal_bytes: int
    score: float | None


class Contents:
    """The files of one run folder, looked over again and again while it is written."""

    def __init__(self, run: Path, keep_last: int = 0):
        """`keep_last` checkpoints and the best are to be copied; 0: all that there are."""
        self.run, self.keep_last = run, keep_last
        self.is_sure = True
        """Whether every checkpoint that is there could be read at the last look."""
        self._known: dict[int, tuple[Stamp, Whole]] = {}

    def checkpoints(self) -> dict[int, Whole]:
        """Return the checkpoints that are to be copied, by their steps, in order."""
        store = Checkpoints(self.run)
        steps = store.steps()
        found = {step: whole for step in steps if (whole := self._whole(store, step)) is not None}
        self.is_sure = len(found) == len(steps)
        self._known = {step: known for step, known in self._known.items() if step in found}
        if not self.keep_last:
            return found
        best = by_score((step, whole.score) for step, whole in found.items())[:1]
        latest = store.latest()
        kept = {*list(found)[-int(self.keep_last) :], *best, *([] if latest is None else [latest])}
        return {step: whole for step, whole in found.items() if step in kept}

    def _whole(self, store: Checkpoints, step: int) -> Whole | None:
        try:
            stamp = stamp_of(store.folder / str(step) / MANIFEST)
            if step not in self._known or self._known[step][0] != stamp:
                self._known[step] = stamp, _read(store.open(step))
            return self._known[step][1]
        except (OSError, LudusError):  # it is being removed, or it is damaged
            return None

    def latest(self) -> int | None:
        """Return the step to go on from."""
        return Checkpoints(self.run).latest()

    def others(self) -> dict[str, Stamp]:
        """Return all other files that are to be copied, by their paths."""
        found: dict[str, Stamp] = {}
        for folder, folders, names in os.walk(self.run):  # which follows no links
            above = os.path.relpath(folder, self.run)
            folders[:] = [name for name in folders if not (above == "." and name in LEFT_OUT)]
            for name in names:
                path = name if above == "." else f"{above}/{name}"
                if name == LOCK or name.startswith(PARTIAL) or not is_path(path):
                    continue
                try:
                    if not os.path.islink(full := os.path.join(folder, name)):
                        found[path] = stamp_of(Path(full))
                except OSError:
                    continue
        return found


def stamp_of(path: Path) -> Stamp:
    """Return the signs of a file; OSError if it is none."""
    status = path.stat(follow_symlinks=False)
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino)


def _read(checkpoint: Checkpoint) -> Whole:
    digests = {f"{CHECKPOINTS}/{path}": digest for path, digest in checkpoint.digests.items()}
    record, manifest = checkpoint.record, f"{CHECKPOINTS}/{checkpoint.path.name}/{MANIFEST}"
    return Whole({**digests, manifest: None}, int(record.get("journal_bytes", 0)), record.get("score"))
