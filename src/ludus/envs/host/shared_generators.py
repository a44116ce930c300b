"""NumPy's `np.random` and Python's `random`: random generators that all code of a process shares.

An environment should draw from its own `np_random`, which `reset` seeds. If it draws from these two instead, then a
batch makes it repeat itself as far as it can: `reset` seeds them, a snapshot holds where they are, and closing the
batch gives the process back what it had before. What cannot be had is an episode in the midst: its environments have
drawn in turn, and so none of them can be played again alone. Whoever plays one again must look whether it draws.
"""

import random
from collections.abc import Sequence

import numpy as np

from ludus.types import LudusError

KEYS = 624
"""Both are Mersenne Twisters: so many words, and a place in them."""
ONE = KEYS + 4
"""Words of one generator: its keys, its place, whether a normal number is left over, and the two halves of that."""
WORDS = 2 * ONE + 1
"""Those of NumPy's, of Python's, and whether anything was drawn."""
WARNING = (
    "%s: draws random numbers from np.random or random, which the whole process shares, so its running episodes cannot "
    "be played again and start anew (level: episode); let it draw from self.np_random, which reset seeds"
)


def state() -> np.ndarray:
    """Return where both generators are, as words; zeros for a NumPy generator of another kind than the usual."""
    words = np.zeros(2 * ONE, np.uint32)
    if _is_usual():
        _, keys, place, has_rest, rest = np.random.get_state()  # noqa: NPY002  what environments may draw from
        words[:ONE] = [*keys, place, *_in_words(float(rest) if has_rest else None)]
    _, keys_and_place, rest = random.getstate()
    words[ONE:] = [*keys_and_place, *_in_words(rest)]
    return words


class SharedGenerators:
    """The two generators as one batch of environments uses them."""

    def __init__(self) -> None:
        """Leave them alone, until the first reset."""
        self._before: np.ndarray | None = None
        self._seeded = np.zeros(0, np.uint32)
        self._was_used = False

    def borrow(self) -> None:
        """Remember where they are, to be set back there: from now on they are the batch's."""
        if self._before is None:
            self._before = state()

    def seed(self, seeds: Sequence[int]) -> None:
        """Set both from the seeds of a batch."""
        self.borrow()
        words = np.random.SeedSequence([int(seed) for seed in seeds]).generate_state(16)
        random.seed(int.from_bytes(words[8:].tobytes(), "little"))
        if _is_usual():
            np.random.seed(words[:8])  # noqa: NPY002
        self._seeded, self._was_used = state(), False

    def snapshot(self) -> np.ndarray:
        """Return where they are, and whether anything was drawn since they were seeded, as an array `[1, WORDS]`."""
        now = state()
        was_used = self._was_used or not np.array_equal(now, self._seeded)
        return np.append(now, np.uint32(was_used))[None]

    def restore(self, saved: np.ndarray | None) -> bool:
        """Set both to where a snapshot was taken, and say if that could be done; None where none was taken.

        A snapshot of several processes cannot be restored in one; that does no harm if nothing was drawn.
        """
        self.borrow()
        if saved is None:
            return True
        check(saved)
        if len(saved) != 1:
            return not was_used(saved)
        if not (_is_usual() and saved[0, :ONE].any()):
            return False
        self._was_used = was_used(saved)
        _set(saved[0, :-1])
        self._seeded = state()
        return True

    def give_back(self) -> None:
        """Set both to where they were before the first reset."""
        if self._before is not None:
            _set(self._before)
            self._before = None


def was_used(saved: np.ndarray) -> bool:
    """Say whether anything was drawn, in any of the processes of a snapshot."""
    return bool(saved[:, -1].any())


def check(saved: np.ndarray) -> None:
    """Refuse what is no snapshot: a place beyond its words would be read from memory that belongs to others."""
    is_whole = saved.ndim == 2 and saved.shape[1] == WORDS and saved.dtype == np.uint32
    if not is_whole or (saved[:, [KEYS, ONE + KEYS]] > KEYS).any():
        raise LudusError("checkpoint: env/generators does not say where the generators of NumPy and Python were")


def _set(words: np.ndarray) -> None:
    if _is_usual() and words[:ONE].any():
        keys, rest = words[:KEYS], _from_words(words[KEYS + 1 : ONE])
        np.random.set_state(("MT19937", keys, int(words[KEYS]), int(rest is not None), rest or 0.0))  # noqa: NPY002
    random.setstate((3, tuple(words[ONE : ONE + KEYS + 1].tolist()), _from_words(words[ONE + KEYS + 1 :])))


def _in_words(rest: float | None) -> list[int]:
    """Return whether a normal number is left over, and its halves."""
    return [rest is not None, *np.array([rest or 0.0]).view(np.uint32).tolist()]


def _from_words(words: np.ndarray) -> float | None:
    return float(words[1:].copy().view(np.float64)[0]) if words[0] else None


def _is_usual() -> bool:
    return np.random.get_state(legacy=False)["bit_generator"] == "MT19937"  # noqa: NPY002
