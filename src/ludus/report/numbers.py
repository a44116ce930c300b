"""Rows of numbers, thousands at a time: what makes a journal of a million rows readable in seconds.

Most lines of a journal are alike but for their numbers: `{"seq": 7, "kind": "train", "steps": 4096, ...}`. What is left
of a line without the characters of numbers is its *shape*. All lines of one shape are read together, eight digits in a
handful of vector operations; Python's own parser needs a third of a microsecond for each number, and a journal has
twenty million. A number comes out as `float` would read it: exactly if it has up to 15 digits or was a float32 once,
as those of networks are, and else nearly always, or the last bit is one off. Lines that are not so regular are left to
`json`.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

OF_NUMBERS = b"0123456789.+-eE"
FEWEST = 32
"""Lines of one shape from which on they are read together."""
PADDING = b"\0" * 32
"""After the text, so that a look at eight bytes never leaves it."""
EIGHT_ZEROS = np.uint64(0x3030303030303030)
HIGH_HALVES = np.uint64(0xF0F0F0F0F0F0F0F0)
POWERS = 10.0 ** np.arange(309)
WHOLE_POWERS = np.array([10**i for i in range(20)], np.uint64)
LONG_POWERS = np.longdouble(10) ** np.arange(28)
EXACT = np.uint64(1 << 53)
"""From here on a float64 does not hold every whole number."""
NEAR = 9e-16
"""How far, relatively, a result may be from the float32 that it stands for: four units in the last place."""


class Lines:
    """Complete lines of text, each ending with a newline, and where everything in them is."""

    def __init__(self, text: bytes):
        """Look the text over once."""
        self.text = text
        self.bytes = np.frombuffer(text + PADDING, np.uint8)
        # every position as the beginning of eight bytes; they overlap, and nothing is copied
        self.eights = np.ndarray(len(text) + 24, "<u8", self.bytes.data, strides=(1,))
        self.ends = np.flatnonzero(self.bytes == ord("\n"))
        self.starts = np.concatenate([[0], self.ends[:-1] + 1]) if len(self.ends) else self.ends
        self.commas, self.dots = np.flatnonzero(self.bytes == ord(",")), np.flatnonzero(self.bytes == ord("."))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> bytes:
        return self.text[self.starts[i] : self.ends[i]]

    def shapes(self) -> dict[bytes, list[int]]:
        """Return the lines of each shape."""
        found: dict[bytes, list[int]] = {}
        start = 0
        for shape, neighbours in itertools.groupby(self.text.translate(None, OF_NUMBERS).split(b"\n")[:-1]):
            end = start + len(list(neighbours))
            found.setdefault(shape, []).extend(range(start, end))
            start = end
        return found


class Rows(NamedTuple):
    """What lines of one shape say: which lines they are, their constants, and their numbers by name."""

    lines: np.ndarray
    constants: dict[str, Any]
    numbers: dict[str, np.ndarray]


def read_alike(lines: Lines, alike: Sequence[int]) -> Rows | None:
    """Read lines of one shape together; None if they are too few or not plain rows of numbers.

    Lines that hold something that is no number where the others have one are left out of the answer.
    """
    if len(alike) < FEWEST:
        return None
    first = _template(lines[alike[0]])
    if first is None:
        return None
    which = np.asarray(alike)
    begins, ends = _fields(lines, which, len(first))
    if begins is None or ends is None:
        return None
    wanted = [k for k, (_, value) in enumerate(first) if isinstance(value, int | float) and not isinstance(value, bool)]
    prefixes = [json.dumps(name).encode() + b": " for name, _ in first]
    good = _is_named(lines, begins, prefixes)
    sizes = np.array([len(prefix) for prefix in prefixes])
    values, is_number = numbers(lines, (begins + sizes)[:, wanted].ravel(), ends[:, wanted].ravel())
    good &= is_number.reshape(len(which), -1).all(axis=1)
    table = values.reshape(len(which), -1)[good]
    columns = {first[k][0]: table[:, i] for i, k in enumerate(wanted)}
    return Rows(which[good], {name: value for k, (name, value) in enumerate(first) if k not in wanted}, columns)


def _template(line: bytes) -> list[tuple[str, Any]] | None:
    """Return names and values of a flat row; None of any other line, or of one that needs a closer look."""
    if b"\\u" in line:
        return None
    try:
        pairs = json.loads(line, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    is_flat = isinstance(pairs, list) and line.startswith(b"{") and len(dict(pairs)) == len(pairs) > 0
    return pairs if is_flat and not any(isinstance(value, list | dict) for _, value in pairs) else None


def _fields(lines: Lines, which: np.ndarray, count: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return where each field of each line begins and ends, `[lines, fields]`; None if commas are not all between."""
    first = np.searchsorted(lines.commas, lines.starts[which])
    last = np.searchsorted(lines.commas, lines.ends[which])
    if not np.all(last - first == count - 1):
        return None, None
    between = lines.commas[first[:, None] + np.arange(count - 1)]  # [lines, fields - 1]
    begins = np.concatenate([lines.starts[which][:, None] + 1, between + 2], axis=1)
    ends = np.concatenate([between, lines.ends[which][:, None] - 1], axis=1)
    return begins, ends


def _is_named(lines: Lines, begins: np.ndarray, prefixes: Sequence[bytes]) -> np.ndarray:
    """Tell which lines have every name where it belongs: a shape knows its letters, but neither digits nor places."""
    good = np.ones(len(begins), bool)
    for k, prefix in enumerate(prefixes):
        is_plain = len(prefix.translate(None, b"0123456789.+-")) == len(prefix)
        for offset in {*([] if is_plain else range(0, len(prefix) - 8, 8)), max(len(prefix) - 8, 0)}:
            piece = prefix[offset : offset + 8]
            mask = np.uint64((1 << 8 * len(piece)) - 1)
            good &= lines.eights[begins[:, k] + offset] & mask == np.uint64(int.from_bytes(piece, "little"))
    return good


@np.errstate(over="ignore", under="ignore")
def numbers(lines: Lines, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers written between positions, and which of them are numbers as JSON writes them."""
    negative = lines.bytes[starts] == ord("-")
    starts = starts + negative
    exponents, ends, good = _exponents(lines, starts, ends)
    dots = _next(lines.dots, starts)
    is_whole = dots >= ends
    dots = np.where(is_whole, ends, dots)
    before, after = dots - starts, np.where(is_whole, 0, ends - dots - 1)
    good &= (before >= 1) & (is_whole | (after >= 1)) & ((before + after <= 19) | _is_small(lines, dots, before, after))
    mantissa, is_right = _whole(lines, starts, np.where(good, before, 0))
    good &= is_right
    at, left = dots + 1, np.where(good, after, 0)
    while left.any():
        now = np.minimum(left, 8)
        digits, is_right = _digits(lines, at, now)
        mantissa = mantissa * WHOLE_POWERS[now] + digits
        good &= is_right
        at, left = at + now, left - now
    power = exponents - after
    good &= np.abs(power) <= 300
    values = _scaled(mantissa, power)
    return np.where(negative, -values, values), good


def _is_small(lines: Lines, dots: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Tell which are written as 0.00..., of which a few digits more do not make the mantissa too long."""
    zeros = [lines.bytes[np.minimum(dots + i, len(lines.text))] == ord("0") for i in (-1, 1, 2)]
    return (before == 1) & (after <= 21) & zeros[0] & zeros[1] & zeros[2]


def _scaled(mantissa: np.ndarray, power: np.ndarray) -> np.ndarray:
    """Return mantissa times ten to a power. A mantissa of 53 bits makes one rounding; a longer one needs more care."""
    values = mantissa.astype(np.float64)
    values = np.where(power < 0, values / POWERS[np.clip(-power, 0, 308)], values * POWERS[np.clip(power, 0, 308)])
    single = values.astype(np.float32).astype(np.float64)
    is_single = np.abs(single - values) <= NEAR * values
    long = np.flatnonzero(~is_single & (mantissa >= EXACT) & (np.abs(power) <= 27))
    exact, scale = mantissa[long].astype(np.longdouble), LONG_POWERS[np.abs(power[long])]
    values[long] = np.where(power[long] < 0, exact / scale, exact * scale)
    return np.where(is_single, single, values)


def _next(places: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the first of the places at or after each position; far beyond the end if there is none."""
    return np.append(places, np.iinfo(np.int64).max // 2)[np.searchsorted(places, positions)]


def _exponents(lines: Lines, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the exponents, where the mantissas end, and which are well formed. `repr` writes e-05, e+16, e-300."""
    exponents, good = np.zeros(len(starts), np.int64), np.ones(len(starts), bool)
    for size in (4, 5):  # e, sign and two digits; or three
        at = np.maximum(ends - size, starts)
        found = np.flatnonzero((lines.bytes[at] == ord("e")) & (ends - size > starts))
        sign = lines.bytes[at[found] + 1]
        digits, is_right = _digits(lines, at[found] + 2, np.full(len(found), size - 2))
        exponents[found] = np.where(sign == ord("-"), -1, 1) * digits.astype(np.int64)
        good[found] &= is_right & ((sign == ord("-")) | (sign == ord("+")))
        ends = ends.copy()
        ends[found] -= size
    return exponents, ends, good


def _whole(lines: Lines, starts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whole numbers of up to sixteen digits, and which of them have digits alone."""
    low = np.minimum(counts, 8)
    value, good = _digits(lines, starts + counts - low, low)
    long = np.flatnonzero(counts > 8)
    if len(long):
        above, is_right = _digits(lines, starts[long], np.minimum(counts[long] - 8, 8))
        value[long] += above * WHOLE_POWERS[8]
        good[long] &= is_right & (counts[long] <= 16)
    return value, good


def _digits(lines: Lines, starts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers that so many digits (at most eight) make, and which are digits all of them.

    Eight characters are one word, the first in its lowest byte. Neighbours are joined to pairs, pairs to fours, fours
    to eight: three multiplications. A shift takes what does not belong to the number out at the top.
    """
    shift = (64 - 8 * np.maximum(counts, 1)).astype(np.uint64)
    word, zeros = lines.eights[starts] << shift, EIGHT_ZEROS << shift
    word ^= zeros
    good = (word & HIGH_HALVES == 0) | (counts == 0)
    word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    word = (word * np.uint64(10000) + (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    word[counts == 0] = 0
    return word, good
