"""The checkpoints of one run: how they are written, which is the latest or the best, and which are removed.

Whatever cuts the writing short, a checkpoint is there as a whole or not at all. `format` says what one is on disk.
"""

import contextlib
import errno
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus.runs.checkpoint.format import (
    BLOCKS,
    CHECKPOINTS,
    FORMAT,
    LATEST,
    MANIFEST,
    STATE,
    Blocks,
    Checkpoint,
    as_safetensors,
    is_hash,
    raw,
    sha256,
    signed,
    verified,
)
from ludus.runs.checkpoint.retention import Retention, Shelf, by_score
from ludus.runtime import files
from ludus.types import LudusError

LEFTOVERS = (files.PARTIAL, ".pruned-")
"""Beginnings of names that only a crash leaves behind."""


class Snapshot(NamedTuple):
    """The contents of a checkpoint: copies, which nothing changes any more."""

    step: int
    arrays: dict[str, np.ndarray]
    blocks: dict[str, Blocks]
    record: dict[str, Any]
    """Everything that is not an array, as JSON knows it."""


class Checkpoints:
    """The checkpoints of one run. One process writes; any number may read."""

    def __init__(self, run: str | Path, retention: Retention = Retention()):  # noqa: B008  a NamedTuple cannot change
        """Set up; no folder is made before the first checkpoint."""
        self.folder = Path(run) / CHECKPOINTS
        self.retention = retention
        self.base: dict[str, list[str]] = {}
        """Names of the pieces of each long array in the checkpoint that was last written or read."""
        self.last_bytes = 0
        """How much the last `save` has written."""
        self._shelf = Shelf()

    def steps(self) -> list[int]:
        """Return the steps of which there is a checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if _is_step(path.name))

    def latest(self) -> int | None:
        """Return the step to go on from: what `latest` says, or the last there is if that is unreadable."""
        steps = self.steps()
        with contextlib.suppress(OSError, ValueError):
            step = int((self.folder / LATEST).read_text()[:32])
            if step in steps:
                return step
        return steps[-1] if steps else None

    def best(self) -> int | None:
        """Return the step of the checkpoint with the best score."""
        records = ((step, checkpoint.record) for step in self.steps() if (checkpoint := self._readable(step)))
        return next(iter(by_score((step, record.get("score")) for step, record in records)), None)

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint: all of it, or nothing that could be taken for one. OSError if the disk fails."""
        if snapshot.step in self.steps() and self._is_saved(snapshot.step):
            return  # training is deterministic: it would be the same
        files.make_folder(self.folder / BLOCKS)
        self.sweep()
        try:
            self._write(snapshot)
        except OSError:
            with contextlib.suppress(OSError):
                self.sweep()  # what is there of it may be what fills the disk
            raise
        self._prune()

    def _is_saved(self, step: int) -> bool:
        """Whether there is a good checkpoint of a step already, on which the next can build; a bad one is removed."""
        try:
            checkpoint = self.open(step)
            checkpoint.verify()
        except LudusError:
            self._remove(step)
            return False
        self.point_to(step)
        self.build_on(checkpoint)
        return True

    def build_on(self, checkpoint: Checkpoint) -> None:
        """Let the next checkpoint share the pieces of long arrays that have not changed since this one."""
        self.base = {name: list(names) for name, (*_, names) in checkpoint.blocks.items()}

    def _write(self, snapshot: Snapshot) -> None:
        self.last_bytes = 0
        names = {name: self._write_blocks(name, blocks) for name, blocks in snapshot.blocks.items()}
        partial, final = self.folder / f"{files.PARTIAL}{snapshot.step}", self.folder / str(snapshot.step)
        if not self.folder.is_dir():  # or it would be made anew
            raise OSError(errno.ENOENT, "the run folder was moved or removed")
        files.make_folder(partial)
        state, written = as_safetensors(snapshot.arrays), {}
        for name, data in ((STATE, state), (MANIFEST, None)):
            data = _manifest(snapshot, written, names) if data is None else data
            files.write(partial / name, [data])
            written[name] = {"size": len(data), "sha256": sha256(data)}
            self.last_bytes += len(data)
        files.sync_folder(partial)
        files.replace(partial, final)
        try:
            self._verify(snapshot, names)
        except LudusError:
            self._remove(snapshot.step)  # it is none
            raise
        self.point_to(snapshot.step)
        self.base = names

    def point_to(self, step: int) -> None:
        """Let `latest` name a step."""
        files.write_whole(self.folder / LATEST, f"{step}\n".encode())

    def amend(self, step: int, changes: dict[str, Any]) -> None:
        """Write other figures into the record of a checkpoint, where they would have changed."""
        checkpoint = self.open(step)
        record = checkpoint.record | changes
        if record != checkpoint.record:
            files.write_whole(checkpoint.path / MANIFEST, checkpoint.manifest_with(record))

    def drop_after(self, step: int) -> list[int]:
        """Remove every checkpoint later than `step`, from which the run goes on; return which."""
        self.point_to(step)
        dropped = [other for other in self.steps() if other > step]
        for other in dropped:
            self._remove(other)
        self.sweep()
        self._prune()  # which a crash may have kept the run from
        return dropped

    def sweep(self) -> None:
        """Remove what a crash has left half done."""
        for folder in (self.folder, self.folder / BLOCKS):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.name.startswith(LEFTOVERS):
                    files.remove(path)

    def open(self, step: int) -> Checkpoint:
        """Read what a checkpoint says it holds; LudusError if that is not what was written."""
        return Checkpoint(self.folder, step)

    def _write_blocks(self, name: str, blocks: Blocks) -> list[str]:
        """Write the pieces that are new and return the names of all."""
        names, known = [], self.base.get(name, [])
        folder, fresh = self.folder / BLOCKS, False
        for index in range(blocks.num_blocks):
            piece = blocks.changed.get(index)
            if piece is None and index < len(known):
                names.append(known[index])
                continue
            # What was never written is still what arrays are made with: zeros.
            data = bytes(blocks.size(index)) if piece is None else raw(piece)
            names.append(sha256(data))
            path = folder / names[-1]
            if not self._is_there(path, len(data)):
                partial = folder / f"{files.PARTIAL}{path.name}"
                files.write(partial, [data])
                files.rename(partial, path)
                self.last_bytes += len(data)
                fresh = True
        if fresh:
            files.sync_folder(folder)
        return names

    def _is_there(self, path: Path, size: int) -> bool:
        """Whether a piece was written before, and is still what it was."""
        with contextlib.suppress(LudusError):
            verified(path, size, path.name, size)
            return True
        return False

    def _verify(self, snapshot: Snapshot, names: dict[str, list[str]]) -> None:
        """Read back what was just written; a disk that lies is found out before an older checkpoint goes."""
        checkpoint = self.open(snapshot.step)
        checkpoint.state_bytes()
        for name, blocks in snapshot.blocks.items():
            for index in blocks.changed:
                checkpoint.block(names[name][index], blocks.size(index))

    def _prune(self) -> None:
        """Remove checkpoints that need not be kept, then pieces that no checkpoint names."""
        shelf, steps = self._shelf, self.steps()
        for step in shelf.saved.keys() - set(steps):
            shelf.drop(step)
        for step in steps:
            if step not in shelf.saved and (checkpoint := self._readable(step)):
                shelf.add(checkpoint.saved)
        while (step := self.retention.next_to_go(shelf)) is not None:
            self._remove(step)
        if shelf.saved.keys() != set(self.steps()):
            return  # a checkpoint whose manifest is unreadable may need any of them
        blocks = self.folder / BLOCKS
        for path in blocks.iterdir() if blocks.is_dir() else ():
            if is_hash(path.name) and path.name not in shelf.uses:
                files.remove(path)

    def _readable(self, step: int) -> Checkpoint | None:
        with contextlib.suppress(LudusError):
            return self.open(step)
        return None

    def _remove(self, step: int) -> None:
        pruned = self.folder / f".pruned-{step}"
        files.remove(pruned)
        files.replace(self.folder / str(step), pruned)  # half removed, it must not look like a checkpoint
        self._shelf.drop(step)
        files.remove(pruned)


def _manifest(snapshot: Snapshot, written: dict[str, Any], names: dict[str, list[str]]) -> bytes:
    """Return the manifest of a snapshot, whose files and pieces were written."""
    return signed(
        {
            "format": FORMAT,
            "step": snapshot.step,
            "files": written,
            "arrays": {name: [str(array.dtype), list(array.shape)] for name, array in snapshot.arrays.items()},
            "blocks": {
                name: {"shape": list(b.shape), "dtype": b.dtype, "rows": b.rows, "sha256": names[name]}
                for name, b in snapshot.blocks.items()
            },
            "record": snapshot.record,
        }
    )


def _is_step(name: str) -> bool:
    return re.fullmatch(r"0|[1-9][0-9]{0,18}", name) is not None
