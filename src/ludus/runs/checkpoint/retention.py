"""The choice of checkpoints to keep: the latest, the best, every n-th, and as many more as a budget has room for.

What has no room goes where it is missed least, so that old checkpoints get sparser. The choice depends on the
checkpoints that are there and on nothing else, so that a run which was resumed keeps what it would have kept anyway.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple


class Saved(NamedTuple):
    """A checkpoint as its place on the disk is concerned."""

    step: int
    size: int
    """Bytes that are its own."""
    blocks: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the pieces that it may share with others."""
    score: float | None = None
    ordinal: int = 0


class Shelf:
    """The checkpoints of a run, each looked at once: what one more costs does not grow with their number."""

    def __init__(self) -> None:
        """Begin with no checkpoint."""
        self.saved: dict[int, Saved] = {}
        self.uses: Counter[str] = Counter()
        """How often each piece is named."""
        self.size = 0
        """Bytes of all together; a shared piece counts once."""

    def add(self, saved: Saved) -> None:
        """Take note of a checkpoint."""
        blocks = tuple((sys.intern(name), size) for name, size in saved.blocks)
        self.saved[saved.step] = saved._replace(blocks=blocks)
        self.size += saved.size
        for name, size in blocks:
            self.size += 0 if self.uses[name] else size
            self.uses[name] += 1

    def drop(self, step: int) -> None:
        """Take note that one is no longer there."""
        saved = self.saved.pop(step, None)
        if saved is None:
            return
        self.size -= saved.size
        for name, size in saved.blocks:
            self.uses[name] -= 1
            if not self.uses[name]:
                del self.uses[name]
                self.size -= size


class Retention(NamedTuple):
    """The rule by which checkpoints are kept."""

    last: int = 3
    best: int = 1
    every: int = 0
    bytes: float = 0
    """So much all together may take before one goes that is none of these."""

    def next_to_go(self, shelf: Shelf) -> int | None:
        """Return the step of the checkpoint to remove next; None if all may stay.

        It is the one whose absence leaves the least hole for its age, so that holes come to grow with age.
        """
        if shelf.size <= self.bytes:
            return None
        steps = sorted(shelf.saved)
        stays = self._stays([shelf.saved[step] for step in steps])
        around = zip([0, *steps], steps, steps[1:], strict=False)
        holes = [((after - before) / (steps[-1] - step), step) for before, step, after in around if step not in stays]
        return min(holes)[1] if holes else None

    def _stays(self, saved: list[Saved]) -> set[int]:
        """Return the steps to keep whatever they take, of checkpoints given in order."""
        best = by_score((each.step, each.score) for each in saved)[: int(self.best)]
        nth = [each.step for each in saved if self.every and each.ordinal % self.every == 0]
        return {*(each.step for each in saved[-max(int(self.last), 1) :]), *best, *nth}


def by_score(scores: Iterable[tuple[int, Any]]) -> list[int]:
    """Return the steps of checkpoints that have a score, the best first.

    Of equal ones the earliest: a figure that comes now and then, such as an evaluation's, stays the latest there is
    until the next, but it was the first of these checkpoints that earned it.
    """
    return [step for _, step in sorted((-score, step) for step, score in scores if score is not None)]
